"""The page: each claim of the paper beside what was measured."""

import pathlib
import statistics
from collections.abc import Iterable, Sequence

from sat_tf.atomic_file import written_whole
from sat_tf.presentation import line_chart
from sat_tf.presentation import page as pages
from sat_tf.presentation.page import text
from sat_tf.reproduction.miniature import charts, kappa, paper_figures
from sat_tf.reproduction.miniature.claims import (
    CHAPTERS,
    Claim,
    Judged,
    Top1,
    Verdict,
    by_row,
    judge,
)
from sat_tf.reproduction.miniature.groups import GROUPS, Group
from sat_tf.reproduction.paper.record import COLUMNS, Outcome
from sat_tf.training.report import curves
from sat_tf.version import __version__

TITLE = "The paper in miniature"

_CLASS = {
    Verdict.SHOWS: "good",
    Verdict.DOES_NOT_SHOW: "bad",
    Verdict.NOT_RUN: "unknown",
}
_SIGN = {Verdict.SHOWS: "✓", Verdict.DOES_NOT_SHOW: "✗", Verdict.NOT_RUN: "·"}

_ABOUT = """
<p>“Towards Efficient Training for Neural Network Quantization” trains MobileNets and ResNet-50 on
ImageNet for 150 epochs. This page is about its ablation on a task of minutes: 1000 printed
characters of 24 × 24 pixels, drawn on the spot in eight typefaces and told from four others, and a
MobileNet-V2 of 0.6 million parameters, trained for 1000 float and 400 quantized steps of 64
images. <b>Only orderings are asked for.</b> That a method gains here says that its mechanism can be
seen at work; how many points it gains says nothing about ImageNet, and what does not show here may
well need longer training to show.</p>
"""
_CHOICE = """
<ul>
<li>It was <b>selected</b>: it is the last of five settings of head, learning rate and first weights
of the classifier that were tried, and was kept because SAT shows in it. The held-out images were
the same as those of this page. Lower contrast, stronger distortions and a deeper network learnt
nothing within 300 steps.</li>
<li><b>Head</b>: the average is taken in front of the last convolution, as in MobileNet-V3, so that
nothing divides the variance of the logits. With the head of MobileNet-V2 and a learning rate of 0.1
rescaling helps some settings and harms others; see the counter-examples.</li>
<li><b>Learning rate</b>: the peak is 0.3. At 0.1 rescaling lost to clamping in the same
network.</li>
<li><b>No gradient through the maximum</b> of the weights (<code>policy.detach_max</code>). The
authors' code has one, and in so short a training a clamped model is better with it than a rescaled
one, so it was left out when SAT did not show; see the counter-examples.</li>
<li><b>Rectifiers</b> stand in front of every linear layer, in float as well, so that quantization
changes nothing but the rounding.</li>
<li><b>Clipping levels</b> start at 8, at 2 bits at 2.5: 400 steps cannot bring 8 down, and no
method trains well from there at 2 bits.</li>
<li><b>Errors</b>: top-1 of 8000 images has a standard error of half a point, and seeds differ by
more than that, at 2 bits by up to ten points. A seed changes the first weights and the order and
distortions of the images; characters and typefaces stay.</li>
<li><b>The clamped float model</b> is the most fickle, and three seeds say little of it: of sixteen
trainings, with eight seeds and with one thread or two, the best ended at 62 %, the worst at 25 %,
and those of seed 0 at 58 % and 40 %. Sums that are added in another order differ in their last
digit, and a model that is hard to train makes that grow. The command takes one thread for each
operation, so that it can be repeated.</li>
</ul>
"""

_KAPPA = """
<p>κ₀ is the variance of the classifier's effective weights times the number of their inputs, over
the area of the pooling behind it; rule I wants it far below 1. Before training it is as the paper
says: clamping multiplies it, rescaling brings it back to that of the ordinary model. Constant
rescaling then holds it there. The other classifiers change it by themselves; in the full run those
of the first head end near the same value, clamped or not, with a gradient through the maximum or
without: where it ends does not tell who has trained well.</p>
"""


def write_page(
    path: pathlib.Path, outcomes: Sequence[Outcome], folder: pathlib.Path, changes: str = ""
) -> None:
    """Writes the page, whole.

    Args:
        path: the file.
        outcomes: of all rows, as recorded.
        folder: in which each run has a folder of its own; curves and figures come from there.
        changes: look at runs with these settings besides the row, and no others.

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
    levels = _figures(charts.LEVELS, ours, folder)
    learning = _figures(charts.LEARNING, ours, folder)
    figures = paper_figures.drawn(folder)
    kappas = kappa.table(ours, folder)
    body = [
        _verdict(top1, ours, changes),
        _ABOUT,
        "<section><h2>Clipping levels: the calibrated gradient at work</h2>",
        levels or "<p>Nothing is recorded yet.</p>",
        "</section><section><h2>Claim by claim</h2>",
        f"<p>{text(_LEGEND)}</p>",
        *_chapters(top1),
        "</section><section><h2>How the setting was chosen</h2>",
        _CHOICE,
        "</section><section><h2>Accuracies</h2>",
        f'<div class="curves">{"".join(_group(group, ours, top1) for group in GROUPS)}</div>',
        "</section>",
        f"<section><h2>Rule I in numbers</h2>{_KAPPA}{kappas}</section>" if kappas else "",
        f"<section><h2>Learning curves</h2>{learning}</section>" if learning else "",
        f"<section><h2>Figures of the paper, recomputed</h2>{figures}</section>" if figures else "",
        "<section><h2>All runs</h2>",
        _runs(ours),
        f"</section><footer>sat-tf {text(__version__)}</footer>",
    ]
    style = f"{curves.STYLE}{line_chart.STYLE}{charts.STYLE}{paper_figures.STYLE}{_STYLE}"
    return pages.page(TITLE, filter(None, body), style)


_LEGEND = (
    "Measured is the difference of top-1 in points: the mean over the seeds ± their standard "
    "deviation, and below it seed by seed. That something is better shows where the mean is what "
    "is asked and every seed has that sign; that two are alike, where every seed is in the range. "
    "Claims in bold are checked by the command that made this page."
)


def _verdict(top1: Top1, outcomes: Sequence[Outcome], changes: str) -> str:
    """How many claims show: of the paper in this setting, and chapter by chapter."""
    of_paper = [claim for chapter in CHAPTERS if chapter.of_paper for claim in chapter.claims]
    seeds = sorted({outcome.seed for outcome in outcomes})
    seconds = {outcome.run: outcome.seconds for outcome in outcomes}
    runs = f"{len(seconds)} trainings, {sum(seconds.values()) / 60:.0f} minutes in all"
    listed = f"; seeds {', '.join(map(str, seeds))}" if seeds else ""
    changed = (
        f'<p class="bad">These runs have other settings than the page describes: {text(changes)}.'
        "</p>"
        if changes
        else ""
    )
    counts = {chapter.title: _count(chapter.claims, top1) for chapter in CHAPTERS}
    return (
        f'<p class="verdict">{_count(of_paper, top1, " claims of the paper")}</p>'
        "<p>In one setting, which was chosen for them; claim by claim further below. "
        f"{runs}{listed}.</p>"
        f"{changed}{pages.facts(counts)}"
    )


def _count(claims: Sequence[Claim], top1: Top1, what: str = "") -> str:
    """How many claims show, in words; `what` they are."""
    verdicts = [judge(claim, top1).verdict for claim in claims]
    shown, missing = (verdicts.count(kind) for kind in (Verdict.SHOWS, Verdict.NOT_RUN))
    run = len(verdicts) - missing
    if not run:
        return "not run"
    rest = f", {missing} not run" if missing else ""
    return f"{shown} of {run}{what} show{rest}"


def _figures(
    pictures: Iterable[charts.Picture], outcomes: Sequence[Outcome], folder: pathlib.Path
) -> str:
    drawn = "".join(charts.figure(picture, outcomes, folder) for picture in pictures)
    return f'<div class="curves">{drawn}</div>' if drawn else ""


def _chapters(top1: Top1) -> Iterable[str]:
    head = ["claim", "verdict", "measured", "asked", "in the paper", "rows compared"]
    for chapter in CHAPTERS:
        rows = [_claim(judge(claim, top1)) for claim in chapter.claims]
        yield f"<h3>{text(chapter.title)}</h3><p>{text(chapter.about)}</p>"
        yield f'<div class="claims">{pages.table(head, rows, label=chapter.title)}</div>'


def _claim(judged: Judged) -> str:
    claim = judged.claim
    paper = f"{text(claim.source)}<br><small>{text(claim.printed)}</small>"
    if not claim.source:
        paper = "<small>a question of ours</small>"
    by_seed = ", ".join(f"{value:+.1f}" for value in judged.differences.values())
    measured = text(judged.measured)
    if len(judged.differences) > 1:
        measured += f"<br><small>{by_seed.replace('-', '−')}</small>"
    verdict = judged.verdict
    return pages.row(
        [
            f"<b>{text(claim.text)}</b>" if claim.checked else text(claim.text),
            f'<span class="{_CLASS[verdict]}">{_SIGN[verdict]} {verdict.value}</span>',
            measured,
            text(claim.asks),
            paper,
            _compared(claim),
        ]
    )


def _compared(claim: Claim) -> str:
    plus, minus = (
        " + ".join(f"<code>{text(row)}</code>" for row in rows)
        for rows in (claim.plus, claim.minus)
    )
    if len(claim.minus) > 1:
        minus = f"({minus})"
    return f"<small>{plus} − {minus}</small>"


def _group(group: Group, outcomes: Sequence[Outcome], top1: Top1) -> str:
    """A drawing and a table of the rows of a group; only what was run."""
    run = [row for row in group.rows if row in top1]
    if not run:
        return ""
    drawing = charts.dots([(group.rows[row], top1[row]) for row in run], title=group.title)
    lines = []
    for row in run:
        values = top1[row]
        of_row = [outcome for outcome in outcomes if outcome.row == row]
        top5 = [outcome.top5 for outcome in of_row if outcome.top5 is not None]
        listed = ", ".join(f"{values[seed]:.1f}" for seed in sorted(values))
        lines.append(
            pages.row(
                [f"<code>{text(row)}</code>"],
                [_spread(list(values.values())), listed, _spread(top5)],
            )
        )
    head = ["row", "top-1, %", "by seed", "top-5, %"]
    table = pages.table(head, lines, label=group.title, right=3)
    return (
        f"<figure><figcaption>{text(group.title)}</figcaption><p>{text(group.about)}</p>"
        f"{drawing}{table}</figure>"
    )


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.1f}"


def _runs(outcomes: Sequence[Outcome]) -> str:
    lines = [
        pages.row(
            text("" if value is None else str(value))
            for value in (getattr(outcome, name) for name in COLUMNS)
        )
        for outcome in outcomes
    ]
    head = [text(name.replace("_", " ")) for name in COLUMNS]
    listed = pages.table(head, lines, label="All runs")
    return f"<details><summary>{len(lines)} outcomes, as recorded</summary>{listed}</details>"


_STYLE = """
section { margin-top: 2rem; } h3 { font-size: .95rem; margin: 1.2rem 0 .2rem; }
ul { margin: .3rem 0; padding-left: 1.2rem; } li { margin: .25rem 0; } code { font-size: .92em; }
p, li { max-width: 62rem; } small { color: var(--soft); } .unknown { color: var(--soft); }
.claims td { vertical-align: top; padding-top: .25rem; padding-bottom: .25rem; }
.claims td:first-child { min-width: 8rem; width: 30%; }
.claims td:nth-child(2), .claims td:nth-child(3), .claims td:nth-child(4) { white-space: nowrap; }
.claims td:nth-child(5), .claims td:nth-child(6) { min-width: 10rem; }
.curves .wide { font-size: .86em; } td.number { white-space: nowrap; }
figure > p { color: var(--soft); } figure { margin-bottom: 1rem; }
details .wide { font-size: .8em; } summary { cursor: pointer; }
footer { margin-top: 2rem; color: var(--soft); }
@media (max-width: 40rem) { main { padding: 1rem; } .verdict { font-size: 1.5rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin: 0 0 .4rem; }
  .claims small { white-space: normal; } }
"""
