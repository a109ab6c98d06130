"""The epochs of a training in the report: their metrics, table and learning curves."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sat_tf.presentation.charts import Line, LineChart, Point
from sat_tf.presentation.tables import Cell, Column, Table, plain

LOSS, ACCURACY, RATE, LEVEL = "Loss", "Accuracy (%)", "Learning rate", "Clipping level"
# The charts of metrics, by their titles: what they show in words, what values are multiplied by,
# and how they are drawn.
CHARTS: dict[str, tuple[str, float, dict[str, Any]]] = {
    LOSS: ("loss", 1.0, {"logarithmic": True}),
    ACCURACY: ("accuracy in percent", 100.0, {"least": 0.0, "most": 100.0}),
    RATE: ("learning rate", 1.0, {"from_zero": True}),
    LEVEL: ("clipping level", 1.0, {"from_zero": True}),
}
# This stands below the chart of losses where training asks for more than the labels, or for less.
_OTHER_LOSS = (
    "The two losses are not to be compared: the held-out one is of the classes alone, that of "
    "training has {}."
)
# What x is, for one place and for several.
_PLACES = {"step": ("step of the run", "steps of the run"), "epoch": ("epoch", "epochs")}


class Metric(NamedTuple):
    """A value of an epoch: its names where it is listed, logged and drawn."""

    title: str  # Of its column in the report.
    show: Callable[[Any], Cell] = plain  # Formats it there.
    log: str = ""  # Its name in Keras' logs.
    chart: str = ""  # Title of the report's chart that draws it; "" for none.
    line: Line = Line(label="", colour="")  # What draws it there, without points.


def _value(name: str, row: Any) -> Any:
    """A value of an epoch; None where it was not measured."""
    value = getattr(row, name)
    return value if value == value else None  # NaN is not equal to itself


def epochs_table(rows: Sequence[Any], metrics: Mapping[str, Metric]) -> str:
    """The table of epochs, whose columns are attributes of the rows."""
    columns: list[Column[Any]] = [
        Column(metric.title, functools.partial(_value, name), metric.show, number=name != "stage")
        for name, metric in metrics.items()
    ]
    return Table(columns=columns, rows=rows).without_empty("").to_html("Epochs")


def learning_curves(
    rows: Sequence[Any],
    metrics: Mapping[str, Metric],
    charts: Mapping[str, tuple[str, float, dict[str, Any]]] = CHARTS,
    *,
    across: str = "step",
    targets: str = "",
) -> list[LineChart]:
    """The charts of metrics that have points, over all stages, with a gap between stages.

    Metrics are attributes of the rows, `across` is the one that is the place in a stage, and rows
    without the attribute `stage` are one stage. `targets` says what is asked of the model in
    training besides the labels.
    """
    lengths: dict[str, int] = {}
    for row in rows:
        stage = getattr(row, "stage", "")
        lengths[stage] = max(lengths.get(stage, 0), getattr(row, across))
    starts = {stage: sum(list(lengths.values())[:index]) for index, stage in enumerate(lengths)}
    lines: dict[str, list[Line]] = {title: [] for title in charts}
    for name, metric in metrics.items():
        points: list[Point] = []
        last = None
        for row in rows:
            stage, value = getattr(row, "stage", ""), _value(name, row)
            if metric.chart and value is not None:
                place = float(starts[stage] + getattr(row, across))
                if last not in (None, stage):
                    points.append((place, math.nan))
                points.append((place, charts[metric.chart][1] * value))
                last = stage
        if points:
            lines[metric.chart].append(dataclasses.replace(metric.line, points=points))
    stages = [(float(start), name.replace("_", " ")) for name, start in starts.items() if name]
    place_name, places = _PLACES[across]
    return [
        LineChart(
            title=title,
            lines=lines[title],
            stages=stages,
            summary=f"The {what} over the {places}: {'; '.join(map(_ends, lines[title]))}.",
            caption=_OTHER_LOSS.format(targets) if targets and title == LOSS else "",
            across=place_name,
            **options,
        )
        for title, (what, _, options) in charts.items()
        if lines[title]
    ]


def _ends(line: Line) -> str:
    """The first and the last value of a line, in words."""
    return f"{line.label} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}"
