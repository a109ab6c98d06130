"""Tables of rows: the printed values beside our outcomes."""

import dataclasses
import itertools
import pathlib
import re
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence

import rich.box
import rich.table

from sat_tf.atomic_file import written_whole
from sat_tf.messages import RunError, list_problems, value_errors_as_run_errors
from sat_tf.presentation.tables import Column, Marked, Table
from sat_tf.reproduction.library import Entry, find
from sat_tf.reproduction.record import Outcome

# A block of a Markdown file that `update` rewrites: the patterns of its rows, then the table.
_BLOCK = re.compile(
    r"(?P<begin><!-- sat-tf paper table (?P<patterns>[^\n]*?) -->\n)"
    r"(?P<table>.*?)"
    r"(?P<end><!-- end of sat-tf paper table -->)",
    re.DOTALL,
)


def show(rows: Iterable[Entry], outcomes: Sequence[Outcome]) -> Iterator[rich.table.Table]:
    """The rows for the terminal: a table for each table or figure of the paper."""
    columns = [*_OF_ENTRY, _PRINTED, *(_measured(data, outcomes) for data in _data_of(outcomes))]
    # The names of data sets are wider than the numbers below them.
    columns = [
        dataclasses.replace(column, title=column.title.replace(", ", ",\n")) for column in columns
    ]
    for (source, caption), group in itertools.groupby(rows, lambda row: (row.source, row.caption)):
        yield Table(columns=columns, rows=list(group)).to_rich(
            title=f"[bold]{source}[/]: {caption}",
            title_style="",
            title_justify="left",
            box=rich.box.SIMPLE_HEAD,
            pad_edge=False,
        )


def markdown(rows: Sequence[Entry], outcomes: Sequence[Outcome]) -> str:
    """The rows as a Markdown table, with a column for each data set that any row was run on.

    A cell is blank where that row was not run. A mean over several seeds has their standard
    deviation and number behind it.
    """
    chosen = {entry.id for entry in rows}
    data = _data_of([outcome for outcome in outcomes if outcome.row in chosen])
    printed = [_PRINTED] if any(_printed(entry) for entry in rows) else []
    columns = [*_OF_ENTRY, *printed, *(_measured(name, outcomes) for name in data)]
    return Table(columns=columns, rows=rows).to_markdown()


def summary(row: str, data: str, outcomes: Iterable[Outcome]) -> str:
    """Top-1 of a row in percent: one number, or mean ± standard deviation (number of seeds).

    Runs with other settings than the row's do not count.
    """
    found = [
        outcome.top1
        for outcome in outcomes
        if (outcome.row, outcome.data, outcome.changes) == (row, data, "")
    ]
    if not found:
        return ""
    mean = f"{statistics.fmean(found):.1f}"
    if len(found) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(found):.1f} ({len(found)})"


def updated(text: str, outcomes: Sequence[Outcome], subject: str) -> str:
    """A Markdown text with its tables updated from the outcomes.

    A table is between `<!-- sat-tf paper table PATTERN... -->` and
    `<!-- end of sat-tf paper table -->`, each on a line of its own.

    Raises:
        RunError: there is no such block, or a pattern fits no row.
    """
    problems: list[str] = []

    def fill(block: re.Match[str]) -> str:
        rows, wrong = find(shlex.split(block["patterns"]))
        problems.extend(wrong)
        return f"{block['begin']}\n{markdown(rows, outcomes)}\n{block['end']}"

    filled, count = _BLOCK.subn(fill, text)
    if not count:
        problems.append(
            "received no line '<!-- sat-tf paper table PATTERN... -->' with, further down, "
            "'<!-- end of sat-tf paper table -->'; expected them around every table to write."
        )
    if problems:
        raise RunError(list_problems(subject, problems))
    return filled


@value_errors_as_run_errors()
def update(path: pathlib.Path, outcomes: Sequence[Outcome]) -> None:
    """Rewrites the tables of a Markdown file; see `updated`.

    Raises:
        RunError: the file cannot be read or written, or has no such table.
    """
    try:
        text = updated(path.read_text(encoding="utf-8"), outcomes, str(path))
        with written_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path}: {error}; expected a Markdown file that can be replaced."
        ) from error


def _data_of(outcomes: Iterable[Outcome]) -> list[str]:
    """The data sets of the outcomes, ImageNet first."""
    run_on = {outcome.data for outcome in outcomes if not outcome.changes}
    return sorted(run_on, key=lambda name: (name != "imagenet2012", name))


def _printed(entry: Entry) -> str:
    """The printed values of a row: "top-1 / top-5" in percent, or kappa_0."""
    printed = entry.row.printed
    if printed.kappa_0 is not None:
        return f"κ₀ {printed.kappa_0:g}"
    return " / ".join(
        f"{percent:.1f}" for percent in (printed.top1, printed.top5) if percent is not None
    )


_OF_ENTRY: list[Column[Entry]] = [
    Column("row", lambda entry: Marked(entry.id, "code"), wrap="never"),
    Column("method", lambda entry: entry.row.method),
]
_PRINTED: Column[Entry] = Column("paper, top-1 / top-5", _printed, number=True)


def _measured(data: str, outcomes: Sequence[Outcome]) -> Column[Entry]:
    return Column(f"{data}, top-1", lambda entry: summary(entry.id, data, outcomes), number=True)
