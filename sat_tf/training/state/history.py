"""The tables of a run folder: what was measured after every epoch, and how it is drawn."""

import csv
import dataclasses
import io
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sat_tf.messages import first_ones
from sat_tf.presentation.charts import Line
from sat_tf.presentation.tables import digits, percent
from sat_tf.report.curves import ACCURACY, LEVEL, LOSS, RATE, Metric
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder
from sat_tf.validation import describe


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table of a run folder; the columns are its fields, in any order.

    What is None is left empty. A field with a default may be missing from a file.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    file: ClassVar[str]

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def read(cls, folder: RunFolder) -> list[Self]:
        """The rows in a folder; none if it has no such file.

        A line without its end does not count: a full disk, or a process that was killed, cut it.
        """
        text = folder.read_text(cls.file)
        whole = io.StringIO(text[: text.rfind("\n") + 1])
        try:
            rows = [
                {name: value for name, value in row.items() if value}
                for row in csv.DictReader(whole, restkey="(more)", restval="(none)", strict=True)
            ]
            return TypeAdapter(list[cls]).validate_python(rows)  # type: ignore[valid-type]
        except (csv.Error, ValidationError) as error:
            problems = (
                first_ones((line.rstrip(".") for line in describe(error)), between="; ")
                if isinstance(error, ValidationError)
                else error
            )
            columns = ", ".join(cls.columns())
            raise folder.damaged(cls.file, problems, f"a table of {columns}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochMetrics(Row):
    """One row of the metrics file."""

    file: ClassVar[str] = run_folder.METRICS

    stage: str  # "float" or "quantized".
    # Counted from 1 in each stage; 0 is the model that the stage starts from, of which only the
    # held-out images are measured.
    epoch: int
    step: int  # Steps of the stage at the end of the epoch.
    learning_rate: float | None = None  # At the last step of the epoch.
    loss: float | None = None  # Mean over the epoch's training batches, weight decay included.
    data_loss: float | None = None  # The same without weight decay.
    # Share of training images classified correctly, in [0, 1], while weights change.
    train_top1: float | None = None
    # Share of training images whose class is among the five likeliest; None if it is not measured.
    train_top5: float | None = None
    held_out_loss: float | None = None  # Mean over the held-out images, after the epoch.
    held_out_top1: float | None = None  # Top-1 of the held-out images, after the epoch.
    held_out_top5: float | None = None  # The same for top-5.
    clipping_level: float | None = None  # The mean of those of all layers, after the epoch.
    seconds: float | None = None  # Wall-clock time of the epoch, held-out images included.


def _line(label: str, colour: str, *, dashed: bool = False, dots: bool = False) -> Line:
    return Line(label=label, colour=f"var(--{colour})", dashed=dashed, dots=dots)


_NUMBER, _PERCENT, _DECAYED = digits(".4g"), percent(), "training, with weight decay"
# The metrics of an epoch, by the names of the fields.
EPOCHS: dict[str, Metric] = {
    "stage": Metric("stage"),
    "epoch": Metric("epoch"),
    "step": Metric("step", digits(","), "step"),
    "learning_rate": Metric(
        "learning rate", digits(".3g"), "learning_rate", RATE, _line("learning rate", "curve")
    ),
    "loss": Metric(
        "loss with weight decay", _NUMBER, "loss", LOSS, _line(_DECAYED, "soft", dashed=True)
    ),
    "data_loss": Metric("loss", _NUMBER, "data_loss", LOSS, _line("training", "curve")),
    "train_top1": Metric("top-1", _PERCENT, "top1", ACCURACY, _line("top-1, training", "curve")),
    "train_top5": Metric("top-5", _PERCENT, "top5"),
    "held_out_loss": Metric(
        "held-out loss", _NUMBER, "val_loss", LOSS, _line("held out", "other", dots=True)
    ),
    "held_out_top1": Metric(
        "held-out top-1",
        _PERCENT,
        "val_top1",
        ACCURACY,
        _line("top-1, held out", "other", dots=True),
    ),
    "held_out_top5": Metric(
        "held-out top-5",
        _PERCENT,
        "val_top5",
        ACCURACY,
        _line("top-5, held out", "third", dashed=True),
    ),
    "clipping_level": Metric(
        "clipping level", _NUMBER, "clipping_level", LEVEL, _line("mean of all layers", "curve")
    ),
    "seconds": Metric("seconds", digits(".1f"), "seconds"),
}


def logged(metrics: Mapping[str, Metric], logs: Mapping[str, Any]) -> dict[str, Any]:
    """The values that Keras has logged, by the names of the fields; what it has not is left out.

    >>> logged(EPOCHS, {"loss": 2.5, "val_top1": 0.5})
    {'loss': 2.5, 'held_out_top1': 0.5}
    """
    values = {name: logs[row.log] for name, row in metrics.items() if row.log in logs}
    return {name: n if isinstance(n, int) else float(n) for name, n in values.items()}
