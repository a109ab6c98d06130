"""The training curves on the page, several methods in each chart."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from sat_tf.presentation.charts import Line, LineChart, Point
from sat_tf.reproduction.paper.record import Outcome
from sat_tf.training.state import run_folder
from sat_tf.training.state.history import StepMetrics, steps_from_csv
from sat_tf.training.state.run_folder import RunFolder

Value = Callable[[StepMetrics], float | None]


@dataclasses.dataclass(frozen=True)
class Method:
    """A row as a line of a chart.

    Attributes:
        row: its name.
        label: in plain text.
        colour: a CSS colour.
        dashed: whether the line is.
    """

    row: str
    label: str
    colour: str
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Picture:
    """A chart of the runs' records.

    Attributes:
        title: in plain text, with the unit of y.
        caption: what to look at.
        methods: its lines, one for each seed.
        value: y of a recorded row.
        from_zero: whether y starts at 0.
    """

    title: str
    caption: str
    methods: tuple[Method, ...]
    value: Value
    from_zero: bool = False


def mean_clipping_level(row: StepMetrics) -> float | None:
    """The mean of all clipping levels, if there are any.

    >>> common = dict(stage="", step=1, step_of_run=1, learning_rate=0.1, loss=1.0, top1=0.0)
    >>> mean_clipping_level(StepMetrics(**common, clipping_levels={"a": 2.0, "b": 3.0}))
    2.5
    """
    levels = row.clipping_levels.values()
    return statistics.fmean(levels) if levels else None


def _top1(row: StepMetrics) -> float:
    return 100.0 * row.top1


_ORIGINAL, _CALIBRATED, _THIRD, _PLAIN = (
    "var(--other)",
    "var(--curve)",
    "var(--third)",
    "var(--soft)",
)


def _gradients(bits: int) -> tuple[Method, ...]:
    return (
        Method(f"glyphs/{bits}bits/pact", "PACT, original gradient", _ORIGINAL, True),
        Method(f"glyphs/{bits}bits/pact_sat", "PACT+SAT, original gradient", _ORIGINAL),
        Method(f"glyphs/{bits}bits/pact_cg", "PACT+CG, calibrated gradient", _CALIBRATED, True),
        Method(f"glyphs/{bits}bits/pact_sat_cg", "PACT+SAT+CG, calibrated gradient", _CALIBRATED),
    )


LEVELS = tuple(
    Picture(
        f"Mean clipping level, {bits} bits",
        caption,
        _gradients(bits),
        mean_clipping_level,
        from_zero=True,
    )
    for bits, caption in (
        (
            2,
            "The original gradient treats values below the clipping level as exact, and ignores "
            "that the scale grows with the level: clipping levels drift upwards, and with 3 "
            "intervals in the range small values are lost. The calibrated gradient includes the "
            "rounding error. Each seed has a line; the legend gives the means of the first and "
            "last points.",
        ),
        (4, "With 15 intervals in the range the rounding error matters less."),
    )
)
LEARNING = (
    Picture(
        "Top-1 of the float models in training (%)",
        "As in Figure 2b.",
        (
            Method("glyphs/float/vanilla", "vanilla", _PLAIN),
            Method("glyphs/float/clamp", "clamp", _ORIGINAL),
            Method("glyphs/float/clamp_constant", "clamp + constant rescale", _CALIBRATED),
            Method("glyphs/float/clamp_stddev", "clamp + stddev rescale", _THIRD, True),
        ),
        _top1,
        from_zero=True,
    ),
    Picture("Top-1 in training, 2 bits (%)", "As in Figure 3, left.", _gradients(2), _top1, True),
    Picture("Top-1 in training, 4 bits (%)", "As in Figure 3, right.", _gradients(4), _top1, True),
)


def figure(picture: Picture, outcomes: Sequence[Outcome], folder: pathlib.Path) -> Markup | None:
    """A picture with its caption; None if none of its runs is in the folder.

    Args:
        picture: what to draw.
        outcomes: of the rows, with the names of their run folders.
        folder: in which each run has a folder of its own.

    Raises:
        RunError: a steps file cannot be read.
    """
    lines: list[Line] = []
    named: list[Line] = []
    for method in picture.methods:
        found = [
            Line(
                label=f"{method.label}, seed {outcome.seed}",
                points=points,
                colour=method.colour,
                dashed=method.dashed,
            )
            for outcome in outcomes
            if outcome.row == method.row
            and (points := _points(RunFolder(folder / outcome.run), picture.value))
        ]
        lines += found
        if found:
            named.append(dataclasses.replace(found[0], label=_with_ends(method.label, found)))
    if not lines:
        return None
    chart = LineChart(
        title=picture.title,
        lines=lines,
        stages=(),
        from_zero=picture.from_zero,
        summary="; ".join(line.label for line in named),
        caption=picture.caption,
        named=named,
    )
    return chart.to_figure()


def ends(lines: Sequence[Line]) -> Mapping[str, float]:
    """Means of the first and of the last points of lines."""
    first, last = (
        [line.points[index][1] for line in lines if math.isfinite(line.points[index][1])]
        for index in (0, -1)
    )
    return {
        name: statistics.fmean(values)
        for name, values in (("first", first), ("last", last))
        if values
    }


def _with_ends(label: str, lines: Sequence[Line]) -> str:
    found = ends(lines)
    return f"{label}: {found['first']:.3g} to {found['last']:.3g}" if len(found) == 2 else label


def _points(folder: RunFolder, value: Value) -> list[Point]:
    rows = steps_from_csv(folder.read_text(run_folder.STEPS))
    return [(float(row.step_of_run), found) for row in rows if (found := value(row)) is not None]
