"""The loss of a model when each layer is quantized: the result, as a table and as a picture."""

import dataclasses
import math
import operator
import os
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sat_tf.analysis.sensitivity.damage import (
    METRICS,
    BitWidth,
    Damage,
    LayerSensitivity,
    Metric,
    as_overrides,
    mean_bits,
    within_average,
    within_drop,
)
from sat_tf.messages import say
from sat_tf.planning.plan import Plan
from sat_tf.presentation import charts
from sat_tf.presentation.overlay import Mark, write_overlay
from sat_tf.presentation.tables import Column, RowTable, Table
from sat_tf.qat.policy import BitPolicy

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_NONE = "-"
_TITLES = {"top1": "top-1 lost", "distance": "distance", "divergence": "divergence"}
_MOST_LAYERS = 40
_WIDE_RANGE = 30.0


_PARTS = {"": "damage", "weights_": "weights", "activations_": "activations", "stream_": "stream"}


COLUMNS = (
    *(
        field.name
        for field in dataclasses.fields(LayerSensitivity)
        if field.name not in _PARTS.values() and not field.name.endswith("_errors")
    ),
    *(f"{prefix}{metric.field}" for prefix in _PARTS for metric in METRICS.values()),
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Sensitivity(RowTable):
    """The loss of a model when each of its layers is quantized alone, and when all are."""

    COLUMNS = COLUMNS

    model: str  # Its name.
    policy: BitPolicy  # The bits that were measured.
    metric: str  # "top1", "distance" or "divergence": used by `ranked` and `suggest`.
    layers: tuple[LayerSensitivity, ...]  # Linear layers and streams, in graph order.
    together: Damage  # What the whole quantized model loses, without training.
    num_images: int  # How many images were measured.
    # Share of them that the float model classifies correctly; None without labels.
    top1: float | None = None

    def ranked(self) -> list[LayerSensitivity]:
        """The layers, the one that loses most first."""

        def lost(layer: LayerSensitivity) -> tuple[float, float]:
            return self.value(layer.damage) or 0.0, layer.damage.distance

        return sorted(self.layers, key=lost, reverse=True)

    def value(self, damage: Damage | None) -> float | None:
        """The value of the metric for some damage."""
        return None if damage is None else _value(damage, METRICS[self.metric])

    def suggest(
        self, *, max_drop: float | None = None, average_bits: float | None = None
    ) -> dict[str, dict[str, Any]]:
        """Overrides that give the sensitive layers more bits, up to 8.

        Give one of the two. With `average_bits`, bits go one by one to where they save most, as
        long as the mean stays within it: over all weights of linear layers, first and last
        included, and over all values that linear layers read, except the image.
        With `max_drop`, layers are raised to 8 bits until the model is estimated to lose no more.
        Estimates add up what layers lose alone, with the power of rounding noise at their bits;
        measure the suggested policy to be sure. Layers differ most when measured at the fewest bits
        of interest.

        Args:
            max_drop: the most that may be lost, in the unit of `Damage`: for top1 a share of the
                images, 0.01 for a point.
            average_bits: the most bits in the mean, up to 8.

        Returns:
            The policy's own overrides and those for the layers to keep at 8 bits:
            `dataclasses.replace(policy, overrides=found.suggest(average_bits=5))`.

        Raises:
            ValueError: neither or both are given, or it cannot be kept.
        """
        if (max_drop is None) == (average_bits is None):
            given = "neither" if max_drop is None else "both"
            raise ValueError(
                f"suggest: received {given} of max_drop and average_bits, expected one of them."
            )
        if average_bits is not None:
            _check("average_bits", average_bits, 8.0, "a number from 1 to 8")
            if any(not layer.values_read for layer in self.layers):
                raise ValueError(
                    f"average_bits: received a model, {self.model!r}, of any image size, expected "
                    "one of a fixed size, whose activations can be counted; build it for one, or "
                    "give max_drop."
                )
            bits = within_average(self._widths(), self.metric, average_bits)
        elif max_drop is not None:
            _check("max_drop", max_drop, math.inf, "a number of 0 or more")
            bits = within_drop(self._widths(), self.metric, max_drop, self.together)
        overrides: dict[str, dict[str, Any]] = self.policy.to_dict()["overrides"]
        for pattern, fields in as_overrides(bits).items():
            # They stand behind the policy's own, because later patterns win.
            overrides[pattern] = {**overrides.pop(pattern, {}), **fields}
        return overrides

    def mean_weight_bits(self) -> float:
        """Mean bits of all quantized weights of linear layers."""
        return mean_bits({width: width.bits for width in self._widths()}, "weight_bits")

    def mean_activation_bits(self) -> float:
        """Mean bits of the activations that linear layers read, except the image."""
        return mean_bits({width: width.bits for width in self._widths()}, "activation_bits")

    def _widths(self) -> list[BitWidth]:
        return [width for layer in self.layers for width in layer.widths()]

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer, all with the same keys, in graph order."""
        rows = []
        for layer in self.layers:
            row = {name: getattr(layer, name) for name in COLUMNS if hasattr(layer, name)}
            for prefix, part in _PARTS.items():
                damage = getattr(layer, part)
                for metric in METRICS.values():
                    row[f"{prefix}{metric.field}"] = damage and getattr(damage, metric.field)
            rows.append(row)
        return rows

    def print_to(self, console: Console) -> None:
        """Prints what the whole model loses, and each layer, the one that loses most first."""
        for line in self._summary():
            say(console, line)
        for title, table in self._tables().items():
            fitting = table.for_width(console.width)
            console.print(fitting.to_rich(title=title, title_justify="left"))

    def _headline(self) -> str:
        return self._summary()[0]

    def _tables(self) -> dict[str, Table[LayerSensitivity]]:
        metrics = [name for name in METRICS if _value(self.together, METRICS[name]) is not None]
        # The metric that layers are ranked by comes first.
        metrics.sort(key=lambda name: name != self.metric)
        columns: list[Column[LayerSensitivity]] = [
            Column("layer", lambda layer: layer.name, wrap="never"),
            # Narrower terminals have no room for the kind; the CSV has it.
            Column("kind", lambda layer: layer.kind, wrap="never", least_width=100),
            Column("bits", _bits, number=True, wrap="never"),
            *(_damage(_TITLES[name], "damage", METRICS[name]) for name in metrics),
            _damage("weights", "weights", METRICS[self.metric]),
            _damage("activations", "activations", METRICS[self.metric]),
        ]
        return {"one layer quantized, the others float": Table(columns=columns, rows=self.ranked())}

    def _notes(self) -> list[str]:
        return self._summary()[1:]

    def _summary(self) -> list[str]:
        """The measurement, the loss of the whole model, and how to read the table."""
        lost = []
        for name, metric in METRICS.items():
            if _value(self.together, metric) is not None:
                unit = metric.unit[1]
                value = shown(self.together, metric)
                lost.append(f"{_TITLES[name]} {value}{' ' if unit else ''}{unit}")
        start = f"{self.model}: {self.num_images} images"
        if self.top1 is not None:
            start += f", top-1 {100 * self.top1:.1f} % as float"
        return [
            f"{start}; {len(self.layers)} layers, ranked by {_TITLES[self.metric]}",
            f"all of them quantized, without training: {', '.join(lost)}",
            "bits: w of the kernel, a of what the layer reads, s of the stream it makes; the last "
            "two columns are the layer's kernel and what it reads, alone",
        ]

    def write_picture(self, path: str | os.PathLike[str]) -> None:
        """Draws what each layer loses; the file appears whole, or not at all.

        Args:
            path: ends in .png or .svg.

        Raises:
            ValueError: the path cannot be written, or has another suffix.
        """
        charts.write(lambda: _draw(self), path)

    def write_overlay(self, path: str | os.PathLike[str], plan: Plan) -> None:
        """Writes what each layer loses, for Model Explorer to show on the file.

        Nodes are as red as their layer loses much, by the metric that layers are ranked by.

        Args:
            path: of a .json file.
            plan: of the model, `sat_tf.explain(model, policy)`, which knows the tensors of layers.

        Raises:
            ValueError: the path cannot be written, or the model cannot be exported.
        """
        factor, unit = METRICS[self.metric].unit
        lost: dict[str, float] = {}
        for layer in self.layers:
            value = factor * (self.value(layer.damage) or 0.0)
            for tensor in plan.tensors(layer.name):  # which a kernel and a stream may share
                lost[tensor] = max(value, lost.get(tensor, value))
        marks = {tensor: Mark(value) for tensor, value in lost.items()}
        write_overlay(path, f"{_TITLES[self.metric]} {unit}".strip(), marks)


def _check(name: str, value: object, most: float, expected: str) -> None:
    least = 1.0 if most == 8.0 else 0.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= float(str(value)) <= most or math.isinf(float(str(value))):
        raise ValueError(f"{name}={value!r}: expected {expected}.")


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


def _draw(found: Sensitivity) -> "Picture":
    """Draws a row for each layer, in graph order, with its losses."""
    chosen = found.ranked()[:_MOST_LAYERS]
    layers = [layer for layer in found.layers if layer in chosen]
    # Letters of 13 points, and rows as high: still readable at half the size.
    width = 7.2 + 0.05 * max((len(layer.name) for layer in layers), default=0)
    picture, axes = charts.canvas(size=(width, 1.9 + 0.27 * max(len(layers), 4)))
    metric = METRICS[found.metric]
    factor, unit = metric.unit
    for index, layer in enumerate(layers):
        axes.plot(
            [0.0, max(_marks(found, layer).values())],
            [index, index],
            color="#D0D0D0",
            linewidth=1.2,
            zorder=1,
        )
    for label, style in _STYLES.items():
        values = [_marks(found, layer).get(label) for layer in layers]
        marks = [(factor * each, row) for row, each in enumerate(values) if each is not None]
        if marks:
            across, down = zip(*marks, strict=True)
            axes.scatter(across, down, label=label, zorder=2, **style)
    axes.set_yticks(range(len(layers)), [layer.name for layer in layers])
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlabel(f"{metric.title} ({unit})" if unit else metric.title)
    drawn = [factor * value for layer in layers for value in _marks(found, layer).values()]
    # A linear axis would hide the smaller half of values that differ much.
    if drawn and min(drawn) > 0.0 and max(drawn) > _WIDE_RANGE * min(drawn):
        axes.set_xscale("log")
        axes.set_xlim(0.6 * min(drawn), 1.7 * max(drawn))
    elif drawn:  # drops of top-1 can be 0 or negative
        low, high = min(0.0, *drawn), max(0.0, *drawn)
        margin = 0.05 * ((high - low) or 1.0)
        axes.set_xlim(low - (margin if low < 0.0 else 0.4 * margin), high + margin)
    more = len(found.layers) - len(layers)
    title = f"{found.model}: one layer quantized, the others float"
    if more:
        title += f"\nthe {len(layers)} layers that lose most; {more} lose less"
    # Above the picture, because layer names are where the axes' own title would begin.
    picture.suptitle(title, fontsize=13)
    picture.legend(loc="outside lower center", ncols=len(_STYLES))
    return picture


_STYLES: dict[str, dict[str, Any]] = {
    "kernel": {"color": charts.BLUE, "marker": "o", "s": 42},
    "what it reads": {"color": charts.ORANGE, "marker": "s", "s": 42},
    "all": {"facecolors": "none", "edgecolors": charts.BLACK, "marker": "D", "s": 72},
    "stream": {"color": charts.GREEN, "marker": "^", "s": 52},
}


def _marks(found: Sensitivity, layer: LayerSensitivity) -> dict[str, float]:
    """The values of a layer, by what is quantized."""
    damages = {
        "stream": layer.stream,
        "kernel": layer.weights,
        "what it reads": layer.activations,
        "all": layer.damage if layer.weights and layer.activations else None,
    }
    values = {label: found.value(damage) for label, damage in damages.items()}
    return {label: value for label, value in values.items() if value is not None}
