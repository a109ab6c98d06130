"""What the report of a run has beside that of its model: curves, epochs and settings."""

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from sat_tf import output_folder
from sat_tf.presentation.charts import Line, LineChart, Point, save_charts
from sat_tf.presentation.tables import Column, Table
from sat_tf.qat.policy_fields import known_weights
from sat_tf.report import report
from sat_tf.report.results import Results
from sat_tf.report.training import OF_LOSS, OF_SHARE, OTHER_LOSS, template_values
from sat_tf.training.state import run_folder
from sat_tf.training.state.history import (
    ACCURACY,
    EPOCHS,
    LEVEL,
    LOSS,
    RATE,
    EpochMetrics,
)
from sat_tf.training.state.run_folder import RunFolder
from sat_tf.yaml_text import load_yaml


def write_curves(folder: RunFolder) -> None:
    """Writes curves.png, the loss and the accuracy of a run that has trained.

    Raises:
        RunError: a table of the folder cannot be read, or the picture cannot be written.
    """
    epochs = EpochMetrics.read(folder)
    if not epochs:
        return
    settings = _settings(folder)
    curves = learning_curves(epochs, targets=_targets(settings))
    shown = (ACCURACY, LOSS)
    drawn = [one for title in shown for one in curves if one.title == title]
    with folder.written(run_folder.CURVES) as temporary:
        save_charts(drawn, str(settings.get("name", "")), temporary)


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The configuration of a run; empty where it cannot be read, and is shown as it is written."""
    try:
        settings = load_yaml(folder.read_text(output_folder.CONFIG))
    except ValueError:
        settings = None
    return settings if isinstance(settings, dict) else {}


def _weights(settings: Mapping[str, Any]) -> str:
    """What quantizes the weights of inner layers, and why; "" where the run says no bits."""
    policy = settings.get("policy")
    if not isinstance(policy, dict) or policy.get("weight_bits") is None:
        return ""
    bits, name = policy["weight_bits"], known_weights(policy)
    if policy.get("weight_quantizer") is not None:
        return name
    is_best = name == known_weights({"weight_bits": bits})
    best = f", and it is the best known at {bits} bits" if is_best else ""
    return f"{name}: the policy names none{best}"


def write_report(folder: RunFolder) -> None:
    """Writes report.html from the files of a run, also of one that is not finished.

    Raises:
        RunError: a file of the folder cannot be read, or the page cannot be written.
    """
    settings = _settings(folder)
    epochs = EpochMetrics.read(folder)
    curves = learning_curves(epochs, targets=_targets(settings)) if epochs else []
    training: dict[str, str] = {}
    if folder.file(output_folder.RESULTS).exists():
        results = Results.read(folder)
        training = {
            "Learning rate": results.rate(),
            "Weights of epoch": results.kept(),
        }
    if any(training.values()):
        training["Weights by"] = _weights(settings)
    table = Table(columns=_EPOCH, rows=epochs).without_empty("")
    of_run: dict[str, Any] = {
        "name": str(settings.get("name", "")),
        "is_run": folder.holds_run,
        "num_epochs": len(epochs),
        **template_values(curves, table, training),
        "environment": _flat(folder.read_json(run_folder.ENVIRONMENT) or {}),
        "config": folder.read_text(output_folder.CONFIG),
    }
    report.write_report(folder, **of_run, **({"verb": "Trained"} if epochs else {}))


_EPOCH: list[Column[EpochMetrics]] = [
    Column(metric.title, operator.attrgetter(name), metric.show, number=name != "stage")
    for name, metric in EPOCHS.items()
]


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.replace("_", " "): ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
        for name, value in values.items()
        if value is not None
    }


def _targets(settings: Mapping[str, Any]) -> str:
    """Names the targets that recipes give a model in training beside the labels."""
    recipes = settings.get("recipes")
    if not isinstance(recipes, dict):
        return ""
    found = {"the teacher": "distillation", "smoothed labels": "label_smoothing"}
    return " and ".join(words for words, recipe in found.items() if recipes.get(recipe))


# The charts of metrics, by their titles: what they show in words, what values are multiplied by,
# and how they are drawn.
_CHARTS: dict[str, tuple[str, float, Mapping[str, Any]]] = {
    LOSS: ("loss", 1.0, OF_LOSS),
    ACCURACY: ("accuracy in percent", 100.0, OF_SHARE),
    RATE: ("learning rate", 1.0, {"from_zero": True}),
    LEVEL: ("clipping level", 1.0, {"from_zero": True}),
}


def learning_curves(epochs: Sequence[EpochMetrics], *, targets: str = "") -> list[LineChart]:
    """The charts of metrics that have points, over all stages, with a gap between stages.

    Args:
        epochs: the rows of the metrics file.
        targets: what is asked of the model in training beside the labels, in words; "" for nothing.
    """
    starts = _starts(epochs)
    stages = [(float(start), name.replace("_", " ")) for name, start in starts.items()]
    lines: dict[str, list[Line]] = {title: [] for title in _CHARTS}
    for name, metric in EPOCHS.items():
        if not metric.chart:
            continue
        values = [(row.stage, starts[row.stage] + row.step, getattr(row, name)) for row in epochs]
        if points := _points(values, _CHARTS[metric.chart][1]):
            lines[metric.chart].append(dataclasses.replace(metric.line, points=points))
    return [
        LineChart(
            title=title,
            lines=lines[title],
            stages=stages,
            summary=_ends(what, lines[title]),
            caption=OTHER_LOSS.format("labels", targets) if targets and title == LOSS else "",
            **options,
        )
        for title, (what, _, options) in _CHARTS.items()
        if lines[title]
    ]


def _points(values: Sequence[tuple[str, int, float | None]], unit: float) -> list[Point]:
    """Points from stage, step and value, times `unit`, with a gap where another stage begins."""
    points: list[Point] = []
    last = None
    for stage, step, value in values:
        if value is None:
            continue
        if last not in (None, stage):
            points.append((float(step), math.nan))
        points.append((float(step), unit * value))
        last = stage
    return points


def _ends(what: str, lines: Sequence[Line]) -> str:
    """The first and the last value of each line, in words."""
    ends = [
        f"{line.label} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines
    ]
    return f"The {what} over the steps of the run: {'; '.join(ends)}." if ends else ""


def _starts(epochs: Sequence[EpochMetrics]) -> dict[str, int]:
    """The step of the run after which each stage starts, in order."""
    lengths: dict[str, int] = {}
    for row in epochs:
        lengths[row.stage] = max(lengths.get(row.stage, 0), row.step)
    starts, before = {}, 0
    for stage, length in lengths.items():
        starts[stage] = before
        before += length
    return starts
