"""The tables of a run folder: what was measured after epochs and steps, and how it is drawn."""

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

import tensorflow as tf

from sat_tf.atomic_file import renamed_when_done
from sat_tf.messages import RunError
from sat_tf.presentation.charts import Line
from sat_tf.presentation.tables import Cell, digits, percent, plain, write_table
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder

_LEVELS, _LEVEL = "clipping_levels", "clipping_level/"
# How the columns end that runs without labels leave out, and those with labels.
_OF_LABELS, _OF_AGREEMENT = ("top1", "top5"), ("agreement",)
# How much of an unexpected column name errors show.
_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table of a run folder; the columns are its fields.

    Runs with labels have no columns of agreement, and runs without labels none of top-1 and top-5.
    A field with a default may be missing from a file, which an earlier version then wrote. Clipping
    levels, where rows have them, are a column each.
    """

    file: ClassVar[str]

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The columns that `to_csv` writes, in order."""
        return tuple(one.name for one in dataclasses.fields(cls) if one.name != _LEVELS)

    @classmethod
    def to_csv(cls, rows: Sequence[Self]) -> str:
        """The rows as a CSV file with a header line; what is None is left empty.

        Every clipping level of any row has a column, empty where a row has none of that name.

        >>> row = StepMetrics(
        ...     stage="float", step=10, step_of_run=10, learning_rate=0.1, loss=2.5, top1=0.25,
        ...     clipping_levels={"relu": 8.0},
        ... )
        >>> print(StepMetrics.to_csv([row]))
        stage,step,step_of_run,learning_rate,loss,data_loss,top1,top5,clipping_level/relu
        float,10,10,0.1,2.5,,0.25,,8
        <BLANKLINE>
        """
        agreements = [name for name in cls.columns() if name.endswith(_OF_AGREEMENT)]
        agree = any(getattr(row, name) is not None for row in rows for name in agreements)
        left_out = _OF_LABELS if agree else _OF_AGREEMENT
        names = [name for name in cls.columns() if not name.endswith(left_out)]
        found = [getattr(row, _LEVELS, {}) for row in rows]
        levels = list(dict.fromkeys(level for one in found for level in one))
        values = (
            [*(getattr(row, name) for name in names), *(one.get(level) for level in levels)]
            for row, one in zip(rows, found, strict=True)
        )
        return write_table([*names, *(_LEVEL + level for level in levels)], values)

    @classmethod
    def from_csv(cls, text: str) -> list[Self]:
        """The rows that `to_csv` wrote, to the digits that it keeps; none of an empty text.

        Raises:
            RunError: the file has other columns, or is damaged.
        """
        if not text:
            return []
        kinds, fields = get_type_hints(cls), dataclasses.fields(cls)
        needed = [
            one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING
        ]
        try:
            reader = csv.DictReader(io.StringIO(text), strict=True)
            columns = list(reader.fieldnames or ())
            for name in columns:
                is_level = _LEVELS in kinds and name.startswith(_LEVEL)
                if (name not in cls.columns() and not is_level) or columns.count(name) > 1:
                    raise ValueError(f"its first line has the column {name[:_SHOWN]!r}")
            for name in needed:
                if name not in columns:
                    raise ValueError(f"its first line has no column {name}")
            if not text.endswith("\n"):
                raise ValueError("its last line is truncated")
            rows = []
            for values in reader:
                if None in values or None in values.values():
                    raise ValueError(
                        f"a line with {'more' if None in values else 'less'} than its columns"
                    )
                given = {name: value for name, value in values.items() if value}
                found: dict[str, Any] = {
                    name: {int: int, str: str}.get(kinds[name], float)(value)
                    for name, value in given.items()
                    if not name.startswith(_LEVEL)
                }
                if _LEVELS in kinds:
                    found[_LEVELS] = {
                        name.removeprefix(_LEVEL): float(value)
                        for name, value in given.items()
                        if name.startswith(_LEVEL)
                    }
                rows.append(cls(**found))
            return rows
        except (TypeError, ValueError, csv.Error) as error:
            raise RunError(
                f"received a table that cannot be read ({error}), expected the columns "
                f"{', '.join(cls.columns())}"
            ) from error

    @classmethod
    def read(cls, folder: RunFolder) -> list[Self]:
        """The rows in a folder; none if it has no such file.

        Raises:
            RunError: see `from_csv`.
        """
        text = folder.read_text(cls.file)
        try:
            if not text and folder.file(cls.file).exists():
                raise RunError("it is empty")
            return cls.from_csv(text)
        except RunError as error:
            raise folder.damaged(cls.file, error, "a table") from error


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
# It takes the place of accuracy where images have no labels.
SAME_ANSWERS = "Agreement with the float model (%)"
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
_AGREEMENT = Metric(
    "agreement",
    _PERCENT,
    "agreement",
    SAME_ANSWERS,
    Line(label="training", colour="var(--curve)"),
)
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
_HELD_OUT_AGREEMENT = Metric(
    "held-out agreement",
    _PERCENT,
    "val_agreement",
    SAME_ANSWERS,
    Line(label="held out", colour="var(--other)", dots=True),
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
class EpochMetrics(Row):
    """One row of the metrics file.

    Attributes:
        stage: "float" or "quantized".
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
        held_out_top1: top-1 of the held-out images, after the epoch; None without labels.
        held_out_top5: the same for top-5.
        train_agreement: share of training images without labels with the class of the float model,
            while weights change; None with labels.
        held_out_agreement: the same of the held-out images, after the epoch.
        seconds: wall-clock time of the epoch, held-out images included.
    """

    file: ClassVar[str] = run_folder.METRICS

    stage: Annotated[str, Metric("stage")]
    epoch: Annotated[int, Metric("epoch")]
    step: Annotated[int, Metric("step", digits(","))]
    learning_rate: Annotated[float | None, _LEARNING_RATE] = None
    loss: Annotated[float | None, _LOSS] = None
    data_loss: Annotated[float | None, _DATA_LOSS] = None
    train_top1: Annotated[float | None, _TOP1] = None
    train_top5: Annotated[float | None, _TOP5] = None
    held_out_loss: Annotated[float | None, _HELD_OUT_LOSS] = None
    held_out_top1: Annotated[float | None, _HELD_OUT_TOP1] = None
    held_out_top5: Annotated[float | None, _HELD_OUT_TOP5] = None
    train_agreement: Annotated[float | None, _AGREEMENT] = None
    held_out_agreement: Annotated[float | None, _HELD_OUT_AGREEMENT] = None
    seconds: Annotated[float | None, Metric("seconds", digits(".1f"))] = None

    @property
    def held_out_score(self) -> float:
        """The share that compares models: held-out top-1, or agreement without labels."""
        if self.held_out_top1 is not None:
            return self.held_out_top1
        return math.nan if self.held_out_agreement is None else self.held_out_agreement


EPOCHS = _metrics(EpochMetrics)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepMetrics(Row):
    """One row of the steps file.

    Attributes:
        stage: name of the stage.
        step: counted from 1 in each stage.
        step_of_run: the same counted from the start of the run.
        learning_rate: at this step.
        loss: mean over the steps since the row before, weight decay included.
        data_loss: the same without weight decay; None if it was not measured.
        top1: share of training images classified correctly, over the same steps, in [0, 1]; None
            without labels.
        top5: share whose class is among the five likeliest; None if it is not measured.
        agreement: share of images without labels with the class of the float model.
        clipping_levels: by the name of the layer that makes the tensor.
    """

    file: ClassVar[str] = run_folder.STEPS

    stage: str
    step: int
    step_of_run: int
    learning_rate: Annotated[float, _LEARNING_RATE]
    loss: Annotated[float, _LOSS]
    data_loss: Annotated[float | None, _DATA_LOSS] = None
    top1: Annotated[float | None, _TOP1] = None
    top5: Annotated[float | None, _TOP5] = None
    agreement: Annotated[float | None, _AGREEMENT] = None
    clipping_levels: dict[str, float] = dataclasses.field(default_factory=dict)


STEPS = _metrics(StepMetrics)


def drop_events_after(folder: pathlib.Path, step_of_run: int) -> None:
    """Removes later steps from the event files in a folder, so that a run can resume from a step.

    A truncated file keeps its whole records. Files without later steps stay as they are.

    Args:
        folder: where the event files are; it need not exist.
        step_of_run: the last step to keep.
    """
    for path in sorted(folder.glob("*tfevents*")):
        kept, changes = [], False
        try:
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                if event.WhichOneof("what") == "summary" and event.step > step_of_run:
                    changes = True
                else:
                    kept.append(record)
        except tf.errors.DataLossError:  # a truncated record
            changes = True
        if changes:
            with (
                renamed_when_done(path) as temporary,
                tf.io.TFRecordWriter(str(temporary)) as writer,
            ):
                for record in kept:
                    writer.write(record)
