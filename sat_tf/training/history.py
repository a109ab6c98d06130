"""The metrics of a run, epoch by epoch, and their CSV file."""

import dataclasses

from sat_tf.training.csv_table import numbers, read_table, write_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """One row of the metrics file.

    Attributes:
        stage: "float", "quantized" or "deploy_tail".
        epoch: counted from 1 in each stage.
        step: steps of the stage at the end of the epoch.
        learning_rate: at the last step of the epoch.
        loss: mean over the epoch's training batches, weight decay included.
        train_top1: share of training images classified rightly, in [0, 1], while weights change.
        train_top5: share of training images whose class is among the five likeliest; None where it
            is not measured.
        held_out_loss: mean over the held-out images, after the epoch; None where not measured.
        held_out_top1: top-1 of the held-out images, after the epoch.
        held_out_top5: the same for top-5.
        seconds: wall-clock time of the epoch, held-out images included.
    """

    stage: str
    epoch: int
    step: int
    learning_rate: float
    loss: float
    train_top1: float
    train_top5: float | None = None
    held_out_loss: float | None = None
    held_out_top1: float
    held_out_top5: float | None = None
    seconds: float


COLUMNS = tuple(field.name for field in dataclasses.fields(EpochMetrics))
_INTEGERS = ("epoch", "step")


def to_csv(rows: list[EpochMetrics]) -> str:
    """The rows as a CSV file with a header line; what is None is left empty.

    >>> row = EpochMetrics(
    ...     stage="float", epoch=1, step=9, learning_rate=0.1, loss=2.5, train_top1=0.25,
    ...     held_out_top1=0.5, seconds=1.25,
    ... )
    >>> print(to_csv([row]).splitlines()[1])
    float,1,9,0.1,2.5,0.25,,,0.5,,1.25
    """
    return write_table(COLUMNS, map(dataclasses.astuple, rows))


def from_csv(text: str) -> list[EpochMetrics]:
    """The rows that `to_csv` wrote, to the digits that it keeps.

    Raises:
        RunError: it is no such file.
    """
    return read_table(text, _row, name="metrics", columns=COLUMNS)


def _row(values: dict[str, str]) -> EpochMetrics:
    return EpochMetrics(stage=values["stage"], **numbers(values, COLUMNS[1:], _INTEGERS))
