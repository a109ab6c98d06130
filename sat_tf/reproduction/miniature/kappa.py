"""κ₀ of the float models before and after training, as their runs recorded it."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sat_tf.atomic_file import written_whole
from sat_tf.messages import RunError
from sat_tf.presentation.tables import Column, Table, digits, read_table, write_table
from sat_tf.reproduction.miniature.groups import GROUPS
from sat_tf.reproduction.paper.record import Outcome
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder

# Kept beside the runs, so that writing the page does not need TensorFlow.
FILE = "kappa_0.csv"


@dataclasses.dataclass(frozen=True)
class Kappa:
    """κ₀ of the classifier of one float run.

    Attributes:
        run: its name.
        before: training.
        after: training.
    """

    run: str
    before: float
    after: float


_COLUMNS = tuple(field.name for field in dataclasses.fields(Kappa))


def note(folder: pathlib.Path, run: str) -> None:
    """Adds a float run to the file, unless it is already there or has recorded no κ₀.

    Args:
        folder: in which each run has a folder of its own.
        run: its name.

    Raises:
        RunError: the file cannot be read or written.
    """
    known = read(folder)
    found = [] if run in known else _recorded(RunFolder(folder / run))
    if len(found) < 2:
        return
    rows = [*known.values(), Kappa(run, found[0], found[-1])]
    try:
        with written_whole(folder / FILE) as temporary:
            temporary.write_text(write_table(_COLUMNS, map(dataclasses.astuple, rows)))
    except ValueError as error:
        raise RunError(str(error)) from error


def read(folder: pathlib.Path) -> dict[str, Kappa]:
    """κ₀ by the names of the runs.

    Raises:
        RunError: the file cannot be read.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    rows = read_table(
        file.read_text(encoding="utf-8"),
        lambda values: Kappa(values["run"], float(values["before"]), float(values["after"])),
        name=str(file),
        columns=_COLUMNS,
    )
    return {row.run: row for row in rows}


class _Row(NamedTuple):
    """A float run with its outcome and κ₀."""

    setting: str
    model: str
    outcome: Outcome
    kappa: Kappa


_ROW: list[Column[_Row]] = [
    Column("setting", lambda row: row.setting),
    Column("float model", lambda row: row.model),
    Column("seed", lambda row: row.outcome.seed, number=True),
    Column("κ₀ before training", lambda row: row.kappa.before, digits(".3g"), number=True),
    Column("κ₀ after", lambda row: row.kappa.after, digits(".3g"), number=True),
    Column("top-1, %", lambda row: row.outcome.top1, digits(".1f"), number=True),
]


def table(outcomes: Sequence[Outcome], folder: pathlib.Path) -> str:
    """HTML of κ₀ beside top-1, run by run; "" if none is known."""
    known = read(folder)
    rows = [
        _Row(group.title, label, outcome, known[outcome.run])
        for group in GROUPS
        for name, label in _float_rows(group.rows).items()
        for outcome in outcomes
        if outcome.row == name and outcome.run in known
    ]
    return Table(columns=_ROW, rows=rows).to_html("κ₀ of the float models") if rows else ""


def _float_rows(rows: Mapping[str, str]) -> dict[str, str]:
    return {name: label for name, label in rows.items() if "/float" in name}


def _recorded(folder: RunFolder) -> list[float]:
    """The κ₀ values that a run has written for TensorBoard, by step."""
    import tensorflow as tf
    from tensorflow.core.util import event_pb2

    found: dict[int, float] = {}
    for file in sorted(folder.file(run_folder.TENSORBOARD).glob("events.*")):
        for record in tf.data.TFRecordDataset(str(file)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == "kappa_0":
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    return [found[step] for step in sorted(found)]
