"""The curves of a run, by epoch and by step, and their CSV files."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_type_hints

from sat_tf.presentation.charts import Line
from sat_tf.presentation.tables import (
    Cell,
    digits,
    numbers,
    percent,
    plain,
    read_table,
    write_table,
)


class Metric(NamedTuple):
    """A value of a run: its names where it is listed, logged and drawn.

    A field of `EpochMetrics` is recorded, listed and drawn by its metric alone. One that
    `StepMetrics` has too is drawn by steps, where there are any.

    Attributes:
        title: of its column in the report.
        show: formats it there.
        log: its name in Keras's logs; "" for what Keras does not log.
        chart: title of the report's chart that draws it; "" for none.
        line: what draws it there, without points.
    """

    title: str
    show: Callable[[Any], Cell] = plain
    log: str = ""
    chart: str = ""
    line: Line = Line(label="", colour="")


LOSS, ACCURACY, RATE = "Loss", "Accuracy (%)", "Learning rate"
_NUMBER, _PERCENT = digits(".4g"), percent()
# The metrics of epochs and of steps.
_LEARNING_RATE = Metric(
    "learning rate",
    digits(".3g"),
    "",
    RATE,
    Line(label="learning rate", colour="var(--curve)"),
)
_LOSS = Metric(
    "loss with weight decay",
    _NUMBER,
    "loss",
    LOSS,
    Line(label="training, with weight decay", colour="var(--soft)", dashed=True),
)
_DATA_LOSS = Metric(
    "loss", _NUMBER, "data_loss", LOSS, Line(label="training", colour="var(--curve)")
)
_TOP1 = Metric(
    "top-1", _PERCENT, "top1", ACCURACY, Line(label="top-1, training", colour="var(--curve)")
)
_TOP5 = Metric("top-5", _PERCENT, "top5")
# Only epochs have these.
_HELD_OUT_LOSS = Metric(
    "held-out loss",
    _NUMBER,
    "val_loss",
    LOSS,
    Line(label="held out", colour="var(--other)", dots=True),
)
_HELD_OUT_TOP1 = Metric(
    "held-out top-1",
    _PERCENT,
    "val_top1",
    ACCURACY,
    Line(label="top-1, held out", colour="var(--other)", dots=True),
)
_HELD_OUT_TOP5 = Metric(
    "held-out top-5",
    _PERCENT,
    "val_top5",
    ACCURACY,
    Line(label="top-5, held out", colour="var(--third)", dashed=True),
)


def _metrics(kind: type) -> dict[str, Metric]:
    """The metrics of the fields of a class that have one, by the names of the fields."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: metric for name, metrics in found.items() for metric in metrics}


def logged(metrics: Mapping[str, Metric], logs: Mapping[str, Any]) -> dict[str, float]:
    """The values that Keras has logged, by the names of the fields; what it has not is left out.

    >>> logged(EPOCHS, {"loss": 2.5, "val_top1": 0.5})
    {'loss': 2.5, 'held_out_top1': 0.5}
    """
    return {name: float(logs[row.log]) for name, row in metrics.items() if row.log in logs}


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

    stage: Annotated[str, Metric("stage")]
    epoch: Annotated[int, Metric("epoch")]
    step: Annotated[int, Metric("step", digits(","))]
    learning_rate: Annotated[float | None, _LEARNING_RATE] = None
    loss: Annotated[float | None, _LOSS] = None
    data_loss: Annotated[float | None, _DATA_LOSS] = None
    train_top1: Annotated[float | None, _TOP1] = None
    train_top5: Annotated[float | None, _TOP5] = None
    held_out_loss: Annotated[float | None, _HELD_OUT_LOSS] = None
    held_out_top1: Annotated[float, _HELD_OUT_TOP1]
    held_out_top5: Annotated[float | None, _HELD_OUT_TOP5] = None
    seconds: Annotated[float | None, Metric("seconds", digits(".1f"))] = None


EPOCHS = _metrics(EpochMetrics)
COLUMNS = tuple(EPOCHS)


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
    learning_rate: Annotated[float, _LEARNING_RATE]
    loss: Annotated[float, _LOSS]
    data_loss: Annotated[float | None, _DATA_LOSS] = None
    top1: Annotated[float, _TOP1]
    top5: Annotated[float | None, _TOP5] = None
    clipping_levels: dict[str, float] = dataclasses.field(default_factory=dict)


STEPS = _metrics(StepMetrics)
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
