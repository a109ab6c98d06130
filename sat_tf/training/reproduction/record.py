"""The outcomes of rows: a line of a CSV for each row, data set, seed and setting; their tables.

The tables have the printed values beside the outcomes.
"""

import csv
import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import rich.box
import rich.table
from filelock import FileLock

from sat_tf.files import written_whole
from sat_tf.messages import RunError
from sat_tf.presentation.tables import Column, Marked, Table
from sat_tf.training.reproduction.library import Entry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one run of a row."""

    row: str  # Name of the row.
    data: str  # Name of the data set it was trained on.
    seed: int  # Of the run.
    changes: str  # Settings besides the row, as key=value, separated by "; ".
    # Held-out top-1 in percent: of the quantized model, or of the float model if the row measures
    # that.
    top1: float
    top5: float | None  # The same for top-5; None if it was not measured.
    tflite_top1: float | None  # Top-1 of the TFLite file in LiteRT in percent; None without a file.
    # How many of the held-out images it was measured on; None without a file, and in lines of
    # earlier versions, which do not say.
    tflite_images: int | None
    # Codes of the file that LiteRT computes differently; None without a file.
    codes_differing: int | None
    images: int  # How many held-out images top-1 was measured on.
    seconds: float  # Of the run, without the run of a float model that it started from.
    run: str  # Name of the run, which ends in a hash of its configuration.
    commit: str | None  # Of the code, if known.
    date: str  # When the run was started, in UTC.

    @property
    def key(self) -> tuple[str, str, int, str]:
        """A later outcome with the same key replaces this one."""
        return self.row, self.data, self.seed, self.changes


COLUMNS = tuple(field.name for field in dataclasses.fields(Outcome))
_NEW = "tflite_images"  # files of earlier versions have no such column


def outcome_of(
    row: str,
    data: str,
    changes: Iterable[str],
    run: str,
    *,
    results: Mapping[str, Any],
    stages: Mapping[str, Mapping[str, float]],
    environment: Mapping[str, Any],
) -> Outcome:
    """The outcome in the files of a finished run."""
    measured = stages.get("quantized") or stages["float"]
    return Outcome(
        row=row,
        data=data,
        seed=environment["seed"],
        changes="; ".join(changes),
        top1=round(100 * measured["top1"], 3),
        top5=_percent(measured.get("top5")),
        tflite_top1=_percent(results["tflite_top1"]),
        tflite_images=results["tflite_images"],
        codes_differing=results["codes_differing"],
        images=results["held_out_images"],
        seconds=round(results["seconds"], 1),
        run=run,
        commit=environment["commit"],
        date=environment["started"],
    )


def read_outcomes(path: pathlib.Path) -> list[Outcome]:
    """The outcomes in a file; none if it does not exist."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            if columns not in (COLUMNS, tuple(name for name in COLUMNS if name != _NEW)):
                raise ValueError(f"received the columns {', '.join(reader.fieldnames or ())}")
            kinds = get_type_hints(Outcome)
            outcomes = []
            for line in reader:
                values: dict[str, Any] = {}
                for name, kind in kinds.items():
                    text, (first, *other) = line.get(name, ""), get_args(kind) or (kind,)
                    values[name] = None if other and text == "" else first(text)
                outcomes.append(Outcome(**values))
            return outcomes
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}: {error}; expected a file with the columns {', '.join(COLUMNS)}; choose "
            "another one with --results."
        ) from error


def add_outcomes(path: pathlib.Path, outcomes: Iterable[Outcome]) -> None:
    """Adds outcomes to a file, replacing those of the same row, data, seed and changes.

    Several processes can do so at the same time; readers always see a whole file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            kept = {outcome.key: outcome for outcome in read_outcomes(path)}
            kept.update((outcome.key, outcome) for outcome in outcomes)
            with (
                written_whole(path) as temporary,
                temporary.open("w", newline="", encoding="utf-8") as file,
            ):
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(dataclasses.asdict(outcome) for outcome in kept.values())
    except RunError:
        raise
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}; choose another file with --results.") from error


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 3)


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
