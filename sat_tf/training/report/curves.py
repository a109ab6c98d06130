"""The curves of a run, as a picture and for its report."""

import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from sat_tf.presentation import palette
from sat_tf.presentation.charts import Line, LineChart, Point
from sat_tf.training.state.history import (
    ACCURACY,
    EPOCHS,
    LOSS,
    RATE,
    STEPS,
    EpochMetrics,
    StepMetrics,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_COLOURS = {"float": palette.BLUE, "quantized": palette.ORANGE, "deploy_tail": palette.GREEN}


def draw_curves(rows: list[EpochMetrics], title: str, path: str | os.PathLike[str]) -> None:
    """Draws top-1 and loss over the epochs of all stages; the loss without weight decay too.

    Args:
        rows: the metrics of the run, stage after stage; at least one.
        title: of the picture.
        path: of the PNG file.
    """
    with palette.styled():
        palette.save(_curves(rows, title), path)


def _curves(rows: list[EpochMetrics], title: str) -> "Picture":
    from matplotlib.ticker import MaxNLocator  # here because it is slow to load

    picture, (top1, loss) = palette.canvas(1, 2, size=(10.4, 4.6))
    before = 0
    for stage in dict.fromkeys(row.stage for row in rows):
        own = [row for row in rows if row.stage == stage]
        epochs = [before + row.epoch for row in own]
        colour = _COLOURS.get(stage)
        held_out = [100 * row.held_out_top1 for row in own]
        top1.plot(epochs, held_out, color=colour, marker=".", label=f"{stage}, held out")
        # Epoch 0 is the start of a stage, which nothing is known of but the held-out images.
        own = [row for row in own if row.epoch]
        epochs = [before + row.epoch for row in own]
        train = [None if row.train_top1 is None else 100 * row.train_top1 for row in own]
        top1.plot(epochs, train, color=colour, linestyle=":", label=f"{stage}, training")
        total = [row.loss for row in own]
        data = [row.data_loss for row in own]
        if None not in data:
            loss.plot(epochs, data, color=colour, marker=".", label=stage)
        loss.plot(epochs, total, color=colour, linestyle=":", label=f"{stage}, with weight decay")
        if before:
            for axes in (top1, loss):
                axes.axvline(before + 0.5, color=palette.GREY, linewidth=0.8)
        before += len(own)
    top1.set(xlabel="epoch", ylabel="top-1 (%)")
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    for axes in (top1, loss):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=11)
    picture.suptitle(title)
    return picture


# The charts of metrics, by their titles: what they show in words, what values are multiplied by,
# and how they are drawn.
_CHARTS: dict[str, tuple[str, float, dict[str, Any]]] = {
    LOSS: ("loss", 1.0, {"logarithmic": True}),
    ACCURACY: ("accuracy in percent", 100.0, {"least": 0.0, "most": 100.0}),
    RATE: ("learning rate", 1.0, {"from_zero": True}),
}
# This stands below the chart of a run whose training asks for more than the labels, or for less.
_OTHER_LOSS = (
    "The two losses are not to be compared: the held-out one is of the labels alone, that of "
    "training has {}."
)


def charts(
    epochs: Sequence[EpochMetrics], steps: Sequence[StepMetrics], *, targets: str = ""
) -> list[LineChart]:
    """Loss, accuracy, learning rate and clipping levels over all stages, with a gap between stages.

    Args:
        epochs: the rows of the metrics file; they give the held-out images.
        steps: the rows of the steps file; without any, the epochs' means are drawn.
        targets: what is asked of the model in training beside the labels, in words; "" for nothing.
    """
    starts = _starts(epochs, steps)
    stages = [(float(start), name.replace("_", " ")) for name, start in starts.items()]

    lines: dict[str, list[Line]] = {title: [] for title in _CHARTS}
    for name, metric in EPOCHS.items():
        if not metric.chart:
            continue
        by_step = [step for step, other in STEPS.items() if other == metric]
        found = [
            (row.stage, row.step_of_run, getattr(row, step)) for step in by_step for row in steps
        ]
        by_epoch = [(row.stage, starts[row.stage] + row.step, getattr(row, name)) for row in epochs]
        unit = _CHARTS[metric.chart][1]
        if points := _points(found, unit) or _points(by_epoch, unit):
            lines[metric.chart].append(dataclasses.replace(metric.line, points=points))
    levels = clipping_lines(steps)
    num_levels = len({name for row in steps for name in row.clipping_levels})
    some = f" Of {num_levels} tensors, those that move most are named." if levels else ""
    return [
        *(
            LineChart(
                title=title,
                lines=lines[title],
                stages=stages,
                summary=_ends(what, lines[title]),
                caption=_OTHER_LOSS.format(targets) if targets and title == LOSS else "",
                **options,
            )
            for title, (what, _, options) in _CHARTS.items()
        ),
        LineChart(
            title="Clipping levels",
            lines=levels,
            stages=stages,
            logarithmic=True,
            summary=_ends("clipping levels", [line for line in levels if not line.dashed]) + some,
            caption=some.strip() if num_levels > _MOST_MOVING else "",
        ),
    ]


_MOVING = ("var(--kind0)", "var(--kind1)", "var(--kind2)", "var(--kind3)")
_MOST_MOVING = len(_MOVING)


def clipping_lines(steps: Sequence[StepMetrics]) -> list[Line]:
    """The clipping levels that move most; of many, also their largest, median and smallest.

    How far a level moves is the ratio of its largest and its smallest value in the run.
    """
    names = list(dict.fromkeys(name for row in steps for name in row.clipping_levels))
    of_name = {
        name: _points(
            [(row.stage, row.step_of_run, row.clipping_levels.get(name)) for row in steps]
        )
        for name in names
    }
    moved = sorted(names, key=lambda name: -_span(of_name[name]))[:_MOST_MOVING]
    lines = [
        Line(label=name, points=of_name[name], colour=colour)
        for name, colour in zip(sorted(moved, key=names.index), _MOVING, strict=False)
    ]
    if len(names) <= _MOST_MOVING:
        return lines

    def over_layers(value: Callable[[Collection[float]], float]) -> list[Point]:
        return _points(
            [
                (row.stage, row.step_of_run, value(row.clipping_levels.values()))
                for row in steps
                if row.clipping_levels
            ]
        )

    smallest, largest = over_layers(min), over_layers(max)
    between = (largest[-1][0], math.nan)
    return [
        Line(
            label=f"median of {len(names)}",
            points=over_layers(statistics.median),
            colour="var(--soft)",
        ),
        Line(
            label="smallest and largest",
            points=[*largest, between, *smallest],
            colour="var(--soft)",
            dashed=True,
        ),
        *lines,
    ]


def _span(points: Sequence[Point]) -> float:
    levels = [level for _, level in points if level > 0]  # also leaves NaN out
    return math.log(max(levels) / min(levels)) if levels else 0.0


def _points(values: Sequence[tuple[str, int, float | None]], unit: float = 1.0) -> list[Point]:
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


def _starts(epochs: Sequence[EpochMetrics], steps: Sequence[StepMetrics]) -> dict[str, int]:
    """The step of the run after which each stage starts, in order."""
    lengths: dict[str, int] = {}
    places = [(row.stage, row.step) for row in epochs] + [(row.stage, row.step) for row in steps]
    for stage, step in places:
        lengths[stage] = max(lengths.get(stage, 0), step)
    starts, before = {}, 0
    for stage, length in lengths.items():
        starts[stage] = before
        before += length
    return starts
