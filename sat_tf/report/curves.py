"""The epochs of a training in the report: their metrics, table and learning curves."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from sat_tf.messages import printable
from sat_tf.messages.charts import BLUE, GREY, ORANGE, PURPLE, figure
from sat_tf.messages.tables import Cell, Column, Table, plain

LOSS, ACCURACY, RATE, LEVEL = "Loss", "Accuracy (%)", "Learning rate", "Clipping level"
# The charts of metrics, by their titles: the factor on values, and the settings of the axes.
CHARTS: dict[str, tuple[float, dict[str, Any]]] = {
    LOSS: (1.0, {"yscale": "log"}),
    ACCURACY: (100.0, {}),
    RATE: (1.0, {"ylim": (0.0, None)}),
    LEVEL: (1.0, {"ylim": (0.0, None)}),
}
# The styles of lines: for training images and held-out ones, with weight decay, and of top-5.
TRAINING: dict[str, Any] = {"color": BLUE}
HELD_OUT: dict[str, Any] = {"color": ORANGE, "marker": "o"}
DECAYED: dict[str, Any] = {"color": GREY, "linestyle": "--"}
TOP5: dict[str, Any] = {"color": PURPLE, "linestyle": "--"}
# This note stands below the curves where training asks for more than the labels, or for less.
_OTHER_LOSS = (
    "<p>The two losses are not to be compared: the held-out one is of the classes alone, that of "
    "training has {}.</p>"
)


class EpochValue(NamedTuple):
    """A value of an epoch: its names where it is listed, logged and drawn."""

    title: str  # The title of its column in the report.
    show: Callable[[Any], Cell] = plain  # Formats it in that column.
    log: str = ""  # Its name in Keras' logs.
    chart: str = ""  # Title of the report's chart that draws it; "" for none.
    label: str = ""  # The label of its line in that chart.
    line: Mapping[str, Any] = TRAINING  # The style of that line.


def _value(name: str, row: Any) -> Any:
    """A value of an epoch; None where it was not measured."""
    value = getattr(row, name)
    return value if value == value else None  # NaN is not equal to itself


def epochs_table(rows: Sequence[Any], metrics: Mapping[str, EpochValue]) -> str:
    """The table of epochs, whose columns are attributes of the rows."""
    columns: list[Column[Any]] = [
        Column(metric.title, functools.partial(_value, name), metric.show, number=name != "stage")
        for name, metric in metrics.items()
    ]
    return Table(columns=columns, rows=rows).without_empty("").to_html("Epochs")


def learning_curves(
    rows: Sequence[Any],
    metrics: Mapping[str, EpochValue],
    charts: Mapping[str, tuple[float, dict[str, Any]]] = CHARTS,
    *,
    across: str = "step",
    targets: str = "",
) -> list[Markup]:
    """The charts of metrics that have values, over all stages, with a gap between stages.

    Metrics are attributes of the rows, `across` is the attribute with the place in a stage, and
    rows without the attribute `stage` are one stage. `targets` names the targets of training
    besides the labels.
    """
    groups = itertools.groupby(rows, lambda row: getattr(row, "stage", ""))
    stages = {stage: list(group) for stage, group in groups}
    lengths = (getattr(group[-1], across) for group in stages.values())
    starts = dict(zip(stages, itertools.accumulate(lengths, initial=0), strict=False))
    figures = []
    for title, (factor, settings) in charts.items():
        lines = []
        for name in (name for name, metric in metrics.items() if metric.chart == title):
            xs, ys = list[float](), list[float]()
            for stage, group in stages.items():
                measured = [row for row in group if _value(name, row) is not None]
                xs += [*(starts[stage] + getattr(row, across) for row in measured), math.nan]
                ys += [*(factor * getattr(row, name) for row in measured), math.nan]
            if any(map(math.isfinite, ys)):
                lines.append((xs, ys, metrics[name]))
        settings = {"xlabel": "epoch" if across == "epoch" else "step of the run", **settings}
        if lines:
            figures.append(figure(title, functools.partial(_draw, lines, starts, settings)))
    return [*figures, *([Markup(_OTHER_LOSS).format(targets)] if targets else [])]


def _draw(
    lines: Sequence[tuple[list[float], list[float], EpochValue]],
    starts: Mapping[str, int],
    settings: dict[str, Any],
    axes: Any,
) -> None:
    for xs, ys, metric in lines:
        # The marker shows a single point between two gaps.
        axes.plot(xs, ys, label=metric.label, **{"marker": ".", **metric.line})
    for row, (stage, start) in enumerate(starts.items()):
        if stage:
            axes.axvline(start, color=GREY, linewidth=1.0, linestyle=":")
            above = axes.get_xaxis_transform()
            place = start, 1.0 + 0.07 * row
            axes.text(*place, printable(stage), color=GREY, transform=above, parse_math=False)
    axes.set(**settings)
