"""The sensitivity of layers, as a table on the screen and as a picture."""

import dataclasses
import operator
import os
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sat_tf.analysis.sensitivity.damage import METRICS, Damage, Metric
from sat_tf.analysis.sensitivity.measured_model import LayerSensitivity, MeasuredModel
from sat_tf.messages import say
from sat_tf.presentation import palette
from sat_tf.presentation.tables import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_NONE = "-"
_TITLES = {"top1": "top-1 lost", "distance": "distance", "divergence": "divergence"}
# Narrower terminals have no column for the kind; the CSV has it.
_WIDE = 100
_MOST_LAYERS = 40
# Above this ratio a linear axis would hide the smaller half.
_WIDE_RANGE = 30.0


def print_sensitivity(found: MeasuredModel, console: Console, *, most: int | None = None) -> None:
    """Prints what the whole model loses, and each layer, the one that loses most first.

    Args:
        found: what was measured.
        console: where to print.
        most: how many layers; by default all.
    """
    for line in summary(found):
        say(console, line)
    table = layer_table(found, wide=console.width >= _WIDE)
    hidden = len(table.rows) - len(table.rows[:most])
    table = dataclasses.replace(table, rows=table.rows[:most])
    console.print(table.to_rich(title=TITLE, title_justify="left"))
    if hidden:
        console.print(f"and {hidden} more layers, which lose less", highlight=False)


TITLE = "one layer quantized, the others float"


def layer_table(found: MeasuredModel, *, wide: bool = True) -> Table[LayerSensitivity]:
    """The layers, the one that loses most first."""
    return Table(columns=_columns(found, wide=wide), rows=found.ranked())


def _columns(found: MeasuredModel, *, wide: bool) -> list[Column[LayerSensitivity]]:
    metrics = [name for name in METRICS if _value(found.together, METRICS[name]) is not None]
    # The metric that layers are ranked by comes first.
    metrics.sort(key=lambda name: name != found.metric)
    kind: Column[LayerSensitivity] = Column("kind", lambda layer: layer.kind, wrap="never")
    return [
        Column("layer", lambda layer: layer.name, wrap="never"),
        *([kind] if wide else []),
        Column("bits", _bits, number=True, wrap="never"),
        *(_damage(_TITLES[name], "damage", METRICS[name]) for name in metrics),
        _damage("weights", "weights", METRICS[found.metric]),
        _damage("activations", "activations", METRICS[found.metric]),
    ]


def _damage(title: str, field: str, metric: Metric) -> Column[LayerSensitivity]:
    def show(damage: Damage | None) -> str:
        return shown(damage, metric)

    return Column(title, operator.attrgetter(field), show, number=True, wrap="never")


def shown(damage: Damage | None, metric: Metric) -> str:
    """The value of a metric, in three digits of its unit; a dash if nothing was measured."""
    value = None if damage is None else _value(damage, metric)
    factor, _ = metric.unit
    return _NONE if value is None else f"{factor * value:.3g}"


def _value(damage: Damage, metric: Metric) -> float | None:
    value: float | None = getattr(damage, metric.field)
    return value


def _bits(layer: LayerSensitivity) -> str:
    named = (("w", layer.weight_bits), ("a", layer.activation_bits), ("s", layer.stream_bits))
    return "".join(f"{letter}{bits}" for letter, bits in named if bits is not None)


def summary(found: MeasuredModel) -> list[str]:
    """The measurement, the loss of the whole model, and how to read the table."""
    lost = []
    for name, metric in METRICS.items():
        if _value(found.together, metric) is not None:
            unit = metric.unit[1]
            value = shown(found.together, metric)
            lost.append(f"{_TITLES[name]} {value}{' ' if unit else ''}{unit}")
    start = f"{found.model}: {found.num_images} images"
    if found.top1 is not None:
        start += f", top-1 {100 * found.top1:.1f} % as float"
    return [
        f"{start}; {len(found.layers)} layers, ranked by {_TITLES[found.metric]}",
        f"all of them quantized, without training: {', '.join(lost)}",
        "bits: w of the kernel, a of what the layer reads, s of the stream it makes; the last two "
        "columns are the layer's kernel and what it reads, alone",
    ]


def write_picture(found: MeasuredModel, path: str | os.PathLike[str]) -> None:
    """Draws what each layer loses, as `Sensitivity.write_picture` says."""
    palette.write(lambda: _draw(found), path)


def _draw(found: MeasuredModel) -> "Picture":
    """A row for each layer, in graph order."""
    chosen = found.ranked()[:_MOST_LAYERS]
    layers = [layer for layer in found.layers if layer in chosen]
    # Letters of 13 points, and rows as high: still readable at half the size.
    width = 7.2 + 0.05 * max((len(layer.name) for layer in layers), default=0)
    picture, axes = palette.canvas(size=(width, 1.9 + 0.27 * max(len(layers), 4)))
    metric = METRICS[found.metric]
    factor, unit = metric.unit
    for index, layer in enumerate(layers):
        ends = [value for _, value, _ in _marks(found, layer)]
        axes.plot([0.0, max(ends)], [index, index], color="#D0D0D0", linewidth=1.2, zorder=1)
    for label, style in _STYLES.items():
        marks = [
            (factor * value, index)
            for index, layer in enumerate(layers)
            for name, value, _ in _marks(found, layer)
            if name == label
        ]
        if marks:
            across, down = zip(*marks, strict=True)
            axes.scatter(across, down, label=label, zorder=2, **style)
    axes.set_yticks(range(len(layers)), [layer.name for layer in layers])
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlabel(f"{metric.title} ({unit})" if unit else metric.title)
    _set_range(axes, [factor * value for layer in layers for _, value, _ in _marks(found, layer)])
    more = len(found.layers) - len(layers)
    title = f"{found.model}: one layer quantized, the others float"
    if more:
        title += f"\nthe {len(layers)} layers that lose most; {more} lose less"
    # Above the picture, because layer names are where the axes' own title would begin.
    picture.suptitle(title, fontsize=13)
    picture.legend(loc="outside lower center", ncols=len(_STYLES))
    return picture


_STYLES: dict[str, dict[str, Any]] = {
    "kernel": {"color": palette.BLUE, "marker": "o", "s": 42},
    "what it reads": {"color": palette.ORANGE, "marker": "s", "s": 42},
    "all": {"facecolors": "none", "edgecolors": palette.BLACK, "marker": "D", "s": 72},
    "stream": {"color": palette.GREEN, "marker": "^", "s": 52},
}


def _marks(found: MeasuredModel, layer: LayerSensitivity) -> list[tuple[str, float, str]]:
    """The marks of a layer: kind, value, layer."""
    parts = (
        ("stream", layer.stream),
        ("kernel", layer.weights),
        ("what it reads", layer.activations),
        ("all", layer.damage if layer.weights and layer.activations else None),
    )
    return [
        (label, value, layer.name)
        for label, damage in parts
        if (value := found.value(damage)) is not None
    ]


def _set_range(axes: Any, values: list[float]) -> None:
    """A logarithmic axis if values differ much; drops of top-1 can be 0 or negative."""
    if values and min(values) > 0.0 and max(values) > _WIDE_RANGE * min(values):
        axes.set_xscale("log")
        axes.set_xlim(0.6 * min(values), 1.7 * max(values))
    elif values:
        low, high = min(0.0, *values), max(0.0, *values)
        margin = 0.05 * ((high - low) or 1.0)
        axes.set_xlim(low - (margin if low < 0.0 else 0.4 * margin), high + margin)
