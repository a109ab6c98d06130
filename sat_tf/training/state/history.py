"""The curves of a run, by epoch and by step, and their CSV files."""

import dataclasses
from collections.abc import Sequence

from sat_tf.presentation.tables import numbers, read_table, write_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """One row of the metrics file.

    Attributes:
        stage: "float", "quantized" or "deploy_tail".
        epoch: counted from 1 in each stage; 0 is the model that the stage starts from, of which
            only the held-out images are measured.
        step: steps of the stage at the end of the epoch.
        learning_rate: at the last step of the epoch.
        loss: mean over the epoch's training batches, weight decay included.
        data_loss: the same without weight decay; None if it was not measured.
        train_top1: share of training images classified correctly, in [0, 1], while weights change.
        train_top5: share of training images whose class is among the five likeliest; None if it
            is not measured.
        held_out_loss: mean over the held-out images, after the epoch; None where not measured.
        held_out_top1: top-1 of the held-out images, after the epoch.
        held_out_top5: the same for top-5.
        seconds: wall-clock time of the epoch, held-out images included.
    """

    stage: str
    epoch: int
    step: int
    learning_rate: float | None = None
    loss: float | None = None
    data_loss: float | None = None
    train_top1: float | None = None
    train_top5: float | None = None
    held_out_loss: float | None = None
    held_out_top1: float
    held_out_top5: float | None = None
    seconds: float | None = None


COLUMNS = tuple(field.name for field in dataclasses.fields(EpochMetrics))


def to_csv(rows: list[EpochMetrics]) -> str:
    """The rows as a CSV file with a header line; what is None is left empty.

    >>> row = EpochMetrics(
    ...     stage="float", epoch=1, step=9, learning_rate=0.1, loss=2.5, train_top1=0.25,
    ...     held_out_top1=0.5, seconds=1.25,
    ... )
    >>> print(to_csv([row]).splitlines()[1])
    float,1,9,0.1,2.5,,0.25,,,0.5,,1.25
    """
    return write_table(COLUMNS, map(dataclasses.astuple, rows))


def from_csv(text: str) -> list[EpochMetrics]:
    """The rows that `to_csv` wrote, to the digits that it keeps.

    Raises:
        RunError: the file cannot be read, or has other columns.
    """

    def row(values: dict[str, str]) -> EpochMetrics:
        found = numbers(values, COLUMNS[1:], ("epoch", "step"))
        return EpochMetrics(stage=values["stage"], **found)

    return read_table(text, row, name="metrics", columns=COLUMNS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One row of the steps file.

    Attributes:
        stage: name of the stage.
        step: counted from 1 in each stage.
        step_of_run: the same counted from the start of the run.
        learning_rate: at this step.
        loss: mean over the steps since the row before, weight decay included.
        data_loss: the same without weight decay; None if it was not measured.
        top1: share of training images classified correctly, over the same steps, in [0, 1].
        top5: share whose class is among the five likeliest; None if it is not measured.
        clipping_levels: by the name of the layer that makes the tensor.
    """

    stage: str
    step: int
    step_of_run: int
    learning_rate: float
    loss: float
    data_loss: float | None = None
    top1: float
    top5: float | None = None
    clipping_levels: dict[str, float] = dataclasses.field(default_factory=dict)


STEP_COLUMNS = tuple(field.name for field in dataclasses.fields(StepMetrics))[:-1]
_LEVEL = "clipping_level/"


def steps_to_csv(rows: Sequence[StepMetrics]) -> str:
    """The rows as a CSV file: a column for every clipping level of any stage, empty elsewhere.

    >>> row = StepMetrics(
    ...     stage="float", step=10, step_of_run=10, learning_rate=0.1, loss=2.5, top1=0.25,
    ...     clipping_levels={"relu": 8.0},
    ... )
    >>> print(steps_to_csv([row]))
    stage,step,step_of_run,learning_rate,loss,data_loss,top1,top5,clipping_level/relu
    float,10,10,0.1,2.5,,0.25,,8
    <BLANKLINE>
    """
    names = list(dict.fromkeys(name for row in rows for name in row.clipping_levels))
    values = (
        [
            *(getattr(row, name) for name in STEP_COLUMNS),
            *(row.clipping_levels.get(name) for name in names),
        ]
        for row in rows
    )
    return write_table([*STEP_COLUMNS, *(_LEVEL + name for name in names)], values)


def steps_from_csv(text: str) -> list[StepMetrics]:
    """The rows that `steps_to_csv` wrote, to the digits that it keeps.

    Raises:
        RunError: the file cannot be read, or has other columns.
    """

    def row(values: dict[str, str]) -> StepMetrics:
        levels = {
            name.removeprefix(_LEVEL): float(value)
            for name, value in values.items()
            if name.startswith(_LEVEL) and value
        }
        found = numbers(values, STEP_COLUMNS[1:], ("step", "step_of_run"))
        return StepMetrics(stage=values["stage"], clipping_levels=levels, **found)

    return read_table(text, row, name="steps", columns=STEP_COLUMNS, more=_LEVEL)
