"""The sensitivity of layers, as a picture."""

import os
from typing import TYPE_CHECKING, Any

from sat_tf.analysis.sensitivity.damage import METRICS
from sat_tf.analysis.sensitivity.measured_model import LayerSensitivity, MeasuredModel
from sat_tf.presentation import palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_MOST_LAYERS = 40
# Above this ratio a linear axis would hide the smaller half.
_WIDE_RANGE = 30.0


def write_picture(found: MeasuredModel, path: str | os.PathLike[str]) -> None:
    """Draws what each layer loses, as `Sensitivity.write_picture` says."""
    palette.write(lambda: draw(found), path)


def draw(found: MeasuredModel) -> "Picture":
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
