"""The metrics of a run, epoch by epoch, and their CSV file."""

import csv
import dataclasses
import io
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """One row of the metrics file.

    Attributes:
        stage: "float", "quantized" or "deploy_tail".
        epoch: counted from 1 in each stage.
        learning_rate: at the last step of the epoch.
        loss: mean over the epoch's training batches, weight decay included.
        train_top1: share of training images classified rightly, in [0, 1], while weights change.
        held_out_top1: the same of the held-out images, after the epoch.
        seconds: wall-clock time of the epoch, held-out images included.
    """

    stage: str
    epoch: int
    learning_rate: float
    loss: float
    train_top1: float
    held_out_top1: float
    seconds: float


COLUMNS = tuple(field.name for field in dataclasses.fields(EpochMetrics))


def to_csv(rows: list[EpochMetrics]) -> str:
    """The rows as a CSV file with a header line.

    >>> row = EpochMetrics(
    ...     stage="float", epoch=1, learning_rate=0.1, loss=2.5, train_top1=0.25,
    ...     held_out_top1=0.5, seconds=1.25,
    ... )
    >>> print(to_csv([row]))
    stage,epoch,learning_rate,loss,train_top1,held_out_top1,seconds
    float,1,0.1,2.5,0.25,0.5,1.25
    <BLANKLINE>
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(
            f"{value:.6g}" if isinstance(value, float) else value
            for value in dataclasses.astuple(row)
        )
    return text.getvalue()


def from_csv(text: str) -> list[EpochMetrics]:
    """Reads back what `to_csv` wrote.

    Raises:
        ValueError: it is something else.
    """
    kinds = {field.name: field.type for field in dataclasses.fields(EpochMetrics)}
    rows = list(csv.DictReader(io.StringIO(text)))
    if any(set(row) != set(COLUMNS) or None in row.values() for row in rows):
        raise ValueError(f"received a table of other columns, expected {', '.join(COLUMNS)}.")
    return [
        EpochMetrics(**{name: _read(kinds[name], value) for name, value in row.items()})
        for row in rows
    ]


def _read(kind: Any, value: str) -> Any:
    return {str: str, int: int}.get(kind, float)(value)
