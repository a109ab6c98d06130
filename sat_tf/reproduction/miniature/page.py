"""The page: each claim of the paper beside the measurement."""

import dataclasses
import operator
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from sat_tf.atomic_file import written_whole
from sat_tf.presentation.charts import rows_of_dots
from sat_tf.presentation.page import image_source, render_page
from sat_tf.presentation.tables import Cell, Column, Marked, Table
from sat_tf.reproduction.figures.figure import COMPARED, Comparison, Figure, read_numbers
from sat_tf.reproduction.figures.library import FIGURES
from sat_tf.reproduction.miniature import charts, kappa
from sat_tf.reproduction.miniature.claims import (
    CHAPTERS,
    Chapter,
    Claim,
    ClaimVerdict,
    Judged,
    Top1,
    by_row,
    judge,
)
from sat_tf.reproduction.miniature.groups import GROUPS, Group
from sat_tf.reproduction.paper.record import COLUMNS, Outcome
from sat_tf.version import __version__

TITLE = "The paper in miniature"

_CLASS = {
    ClaimVerdict.SHOWS: "good",
    ClaimVerdict.DOES_NOT_SHOW: "bad",
    ClaimVerdict.NOT_RUN: "unknown",
}
_SIGN = {ClaimVerdict.SHOWS: "✓", ClaimVerdict.DOES_NOT_SHOW: "✗", ClaimVerdict.NOT_RUN: "·"}


def write_page(
    path: pathlib.Path, outcomes: Sequence[Outcome], folder: pathlib.Path, changes: str = ""
) -> None:
    """Writes the page, whole.

    Args:
        path: the file.
        outcomes: of all rows, as recorded.
        folder: in which each run has a folder of its own; curves and figures come from there.
        changes: only show runs with these settings besides the row.

    Raises:
        RunError: a file of a run cannot be read.
        ValueError: the page cannot be written.
    """
    whole = to_html(outcomes, folder, changes)
    with written_whole(path) as temporary:
        temporary.write_text(whole, encoding="utf-8")


def to_html(outcomes: Sequence[Outcome], folder: pathlib.Path, changes: str = "") -> str:
    """The page as one HTML file that loads nothing; see `write_page`."""
    rows = {row for group in GROUPS for row in group.rows}
    ours = [
        outcome
        for outcome in outcomes
        if outcome.row in rows and (outcome.data, outcome.changes) == ("glyphs", changes)
    ]
    top1 = by_row(ours, changes)
    of_paper = [claim for chapter in CHAPTERS if chapter.of_paper for claim in chapter.claims]
    seconds = {outcome.run: outcome.seconds for outcome in ours}
    return render_page(
        "reproduction/miniature/page.html",
        title=TITLE,
        verdict=_count(of_paper, top1, " claims of the paper"),
        num_trainings=len(seconds),
        minutes=f"{sum(seconds.values()) / 60:.0f}",
        seeds=", ".join(map(str, sorted({outcome.seed for outcome in ours}))),
        changes=changes,
        counts={chapter.title: _count(chapter.claims, top1) for chapter in CHAPTERS},
        levels=_figures(charts.LEVELS, ours, folder),
        chapters=[(chapter, _claims(chapter, top1)) for chapter in CHAPTERS],
        groups=_groups(ours, top1),
        kappas=kappa.table(ours, folder),
        learning=_figures(charts.LEARNING, ours, folder),
        figures=_drawn_figures(folder),
        num_outcomes=len(ours),
        runs=Table(columns=_RUN, rows=ours).to_html("All runs"),
        version=__version__,
    )


def _count(claims: Sequence[Claim], top1: Top1, what: str = "") -> str:
    """How many claims show, in words; `what` names them."""
    verdicts = [judge(claim, top1).verdict for claim in claims]
    shown, missing = (verdicts.count(kind) for kind in (ClaimVerdict.SHOWS, ClaimVerdict.NOT_RUN))
    run = len(verdicts) - missing
    if not run:
        return "not run"
    rest = f", {missing} not run" if missing else ""
    return f"{shown} of {run}{what} show{rest}"


def _figures(
    pictures: Iterable[charts.Picture], outcomes: Sequence[Outcome], folder: pathlib.Path
) -> list[Markup]:
    drawn = (charts.figure(picture, outcomes, folder) for picture in pictures)
    return [figure for figure in drawn if figure is not None]


def _claims(chapter: Chapter, top1: Top1) -> Markup:
    judged = [judge(claim, top1) for claim in chapter.claims]
    return Table(columns=_CLAIM, rows=judged).to_html(chapter.title)


def _text(judged: Judged) -> Cell:
    claim = judged.claim
    return Marked(claim.text, "name") if claim.checked else claim.text


def _verdict(judged: Judged) -> Marked:
    verdict = judged.verdict
    return Marked(f"{_SIGN[verdict]} {verdict.value}", _CLASS[verdict])


def _measured(judged: Judged) -> Cell:
    """The mean over the seeds, and below it seed by seed."""
    if len(judged.differences) < 2:
        return judged.measured
    by_seed = ", ".join(f"{value:+.1f}" for value in judged.differences.values())
    by_seed = by_seed.replace("-", "−")
    return Markup("{}<br><small>{}</small>").format(judged.measured, by_seed)


def _in_the_paper(judged: Judged) -> Markup:
    claim = judged.claim
    if not claim.source:
        return Markup("<small>a question of ours</small>")
    return Markup("{}<br><small>{}</small>").format(claim.source, claim.printed)


def _compared(judged: Judged) -> Markup:
    plus, minus = (
        Markup(" + ").join(Markup("<code>{}</code>").format(row) for row in rows)
        for rows in (judged.claim.plus, judged.claim.minus)
    )
    if len(judged.claim.minus) > 1:
        minus = Markup("({})").format(minus)
    return Markup("<small>{} − {}</small>").format(plus, minus)


_CLAIM: list[Column[Judged]] = [
    Column("claim", _text),
    Column("verdict", _verdict),
    Column("measured", _measured),
    Column("asked", lambda judged: judged.claim.asks),
    Column("in the paper", _in_the_paper),
    Column("rows compared", _compared),
]


class _GroupRow(NamedTuple):
    """The results of a row of the paper."""

    row: str
    top1: Mapping[int, float]
    top5: list[float]

    @property
    def by_seed(self) -> str:
        """Top-1 seed by seed."""
        return ", ".join(f"{self.top1[seed]:.1f}" for seed in sorted(self.top1))


_ACCURACY: list[Column[_GroupRow]] = [
    Column("row", lambda found: Marked(found.row, "code")),
    Column("top-1, %", lambda found: _spread(list(found.top1.values())), number=True),
    Column("by seed", lambda found: found.by_seed, number=True),
    Column("top-5, %", lambda found: _spread(found.top5), number=True),
]


def _groups(outcomes: Sequence[Outcome], top1: Top1) -> list[tuple[Group, Markup, Markup]]:
    """Each group with a drawing and a table of the rows that were run."""
    found = []
    for group in GROUPS:
        run = [row for row in group.rows if row in top1]
        if not run:
            continue
        drawing = rows_of_dots([(group.rows[row], top1[row]) for row in run], title=group.title)
        rows = [
            _GroupRow(
                row,
                top1[row],
                [o.top5 for o in outcomes if o.row == row and o.top5 is not None],
            )
            for row in run
        ]
        found.append((group, drawing, Table(columns=_ACCURACY, rows=rows).to_html(group.title)))
    return found


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


_RUN: list[Column[Outcome]] = [
    Column(name.replace("_", " "), operator.attrgetter(name)) for name in COLUMNS
]


# The folder of the recomputed figures of the paper, beside the runs.
FIGURES_FOLDER = "figures"


def missing_figures(folder: pathlib.Path) -> list[Figure]:
    """The figures that the folder of the miniature lacks.

    Raises:
        RunError: the numbers of one cannot be read.
    """
    place = folder / FIGURES_FOLDER
    return [figure for figure in FIGURES.values() if read_numbers(place, figure) is None]


@dataclasses.dataclass(frozen=True)
class _DrawnFigure:
    """A figure of the paper as the page shows it.

    Attributes:
        title: with its place in the paper.
        source: data URL of the image.
        caption: in plain text.
        comparisons: a table of comparisons with the paper.
    """

    title: str
    source: str
    caption: str
    comparisons: Markup


def _drawn_figures(folder: pathlib.Path) -> list[_DrawnFigure]:
    """The figures that the folder of the miniature has, compared with the paper.

    Raises:
        RunError: the numbers of one cannot be read.
    """
    made = {figure: read_numbers(folder / FIGURES_FOLDER, figure) for figure in FIGURES.values()}
    return [
        _drawn_figure(folder, figure, figure.compare(numbers))
        for figure, numbers in made.items()
        if numbers is not None
    ]


def _drawn_figure(
    folder: pathlib.Path, figure: Figure, comparisons: Sequence[Comparison]
) -> _DrawnFigure:
    title = f"{figure.place}: {figure.title}"
    source = image_source((folder / FIGURES_FOLDER / f"{figure.name}.svg").read_bytes())
    return _DrawnFigure(
        title, source, figure.caption, Table(columns=COMPARED, rows=comparisons).to_html(title)
    )
