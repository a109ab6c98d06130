"""The loss of a model when each layer is quantized: a table, a picture, and suggested bits."""

import dataclasses
import glob
import math
import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sat_tf.arguments import is_number
from sat_tf.messages import charts
from sat_tf.messages.tables import Column, RowTable, Table
from sat_tf.qat.policy import BitPolicy

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_NONE = "-"
_MOST_LAYERS = 40
_WIDE_RANGE = 30.0
MOST_BITS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """The effect of quantization on a model's outputs; values that were not measured are None."""

    # Share of the images, 0 to 1, by which top-1 falls; negative if it rises.
    top1_drop: float | None
    # Relative error of the outputs, |y' - y| / |y|, Euclidean norms over all images.
    distance: float
    # Kullback-Leibler divergence of the class probabilities from the float model's, in nats, its
    # mean over the images; None if nothing says that the output is a row of classes.
    divergence: float | None


@dataclasses.dataclass(frozen=True)
class Metric:
    """One measure of a layer's loss."""

    field: str  # Its field of `Damage`.
    short: str  # Its title in tables.
    title: str  # Its title in pictures.
    unit: tuple[float, str]  # Factor and symbol of the unit it is shown in.
    is_root: bool = False  # Its square is proportional to the power of the noise.

    def of(self, damage: Damage | None) -> float | None:
        """Returns its value; None where nothing was measured."""
        value: float | None = None if damage is None else getattr(damage, self.field)
        return value

    def loss(self, damage: Damage) -> float:
        """Returns its value, but never below 0: quantizing gains an image only by chance."""
        return max(self.of(damage) or 0.0, 0.0)

    def show(self, damage: Damage | None) -> str:
        """Returns its value in three digits of its unit; a dash if nothing was measured."""
        value = self.of(damage)
        return _NONE if value is None else f"{self.unit[0] * value:.3g}"


METRICS = {
    "top1": Metric("top1_drop", "top-1 lost", "top-1 lost", (100.0, "points")),
    "distance": Metric(
        "distance", "distance", "relative error of the output", (1.0, ""), is_root=True
    ),
    "divergence": Metric("divergence", "divergence", "divergence of the classes", (1.0, "nats")),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSensitivity:
    """The loss with one layer quantized, a linear one or a stream, and all others float."""

    name: str  # The name of the float model's layer.
    kind: str  # Its class.
    weight_bits: int | None  # Bits of its kernel; None if that stays float, and for streams.
    # Bits of the tensor it reads; None if that stays float, is the image, or is a stream at its
    # own bits.
    activation_bits: int | None
    stream_bits: int | None  # Bits of a stream that it makes: a sum, mean, linear bottleneck.
    num_weights: int  # The number of weights in its kernel.
    # The number of values it reads for an image, or makes if it is not linear; 0 if the image size
    # is open.
    values_read: int
    values_made: int  # The number of values it makes for an image; 0 if its size is open.
    # Mean square error of the kernel at its bits, at one more, and so on to 8.
    weight_errors: tuple[float, ...] = ()
    damage: Damage  # The damage with all of these quantized.
    weights: Damage | None = None  # The damage with its kernel alone quantized, if it has one.
    activations: Damage | None = None  # The damage with its input alone quantized.
    stream: Damage | None = None  # The damage with its output alone quantized.
    # Mean square error of the tensor it reads, as `weight_errors`.
    activation_errors: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class BitWidth:
    """One number of bits of one layer, which can be raised to 8."""

    layer: str  # The layer's name.
    field: str  # The field of `BitPolicy`: "weight_bits", "activation_bits" or "stream_bits".
    bits: int  # The number in the policy.
    size: int  # The number of values that have these bits.
    damage: Damage  # The damage with these values alone quantized.
    # Mean square error of these values at the policy's bits, one more, and so on to 8.
    errors: tuple[float, ...] = ()

    def loss(self, metric: str, bits: int) -> float:
        """The estimated loss at some bits, in units that can be added up.

        The squared distance and the divergence are proportional to the power of the rounding error,
        and so, by assumption, are images lost. If that is not known, the square of the scale is
        used instead.
        """
        value = METRICS[metric].loss(self.damage)
        power = value * value if METRICS[metric].is_root else value
        if not self.errors:
            return power * float((2**self.bits - 1) / (2**bits - 1)) ** 2
        base_error = self.errors[0]
        return power * self.errors[bits - self.bits] / base_error if base_error > 0.0 else 0.0


Bits = dict[BitWidth, int]


def mean_bits(bits: Mapping[BitWidth, int], field: str) -> float:
    """Mean bits of all values of a field; NaN if there are none."""
    field_widths = [width for width in bits if width.field == field]
    size = sum(width.size for width in field_widths)
    return sum(width.size * bits[width] for width in field_widths) / size if size else math.nan


def within_average(widths: Sequence[BitWidth], metric: str, average_bits: float) -> Bits:
    """Adds bits one by one where they save most, within a mean of weights and of activations."""
    bits = {width: width.bits for width in widths}
    # Top-1 cannot distinguish layers that lose no image.
    metric = "divergence" if metric == "top1" else metric

    def saved(width: BitWidth) -> float:
        return width.loss(metric, bits[width]) - width.loss(metric, bits[width] + 1)

    for field, what in (("weight_bits", "weights"), ("activation_bits", "activations")):
        field_widths = [width for width in widths if width.field == field]
        mean = mean_bits(bits, field)
        if mean > average_bits and any(width.bits < MOST_BITS for width in field_widths):
            raise ValueError(
                f"average_bits={average_bits:g}: received fewer bits than the {mean:.3f} that "
                f"{what} have in the mean under the measured policy, first and last layer "
                "included; expected more, or measure a policy with fewer bits, such as one with "
                "first_last_weight_bits=None."
            )
        room = sum(width.size * (average_bits - width.bits) for width in field_widths)
        while able := [s for s in field_widths if bits[s] < MOST_BITS and 0 < s.size <= room]:
            best = max(able, key=lambda width: saved(width) / width.size)
            if saved(best) <= 0.0:
                break
            bits[best] += 1
            room -= best.size
    return bits


def within_drop(widths: Sequence[BitWidth], metric: str, max_drop: float, together: Damage) -> Bits:
    """Raises the fewest layers to 8 bits so that at most `max_drop` is lost, by estimate.

    The losses of layers alone are added up, and scaled to the loss of the whole quantized model.
    """
    bits = {width: width.bits for width in widths}
    measured = METRICS[metric].loss(together)
    if measured <= max_drop:
        return bits
    # No image may be lost with any layer quantized alone, but some with all of them.
    by = metric if any(METRICS[metric].loss(width.damage) for width in widths) else "distance"
    whole = math.fsum(width.loss(by, width.bits) for width in widths)
    root = METRICS[metric].is_root

    def lost() -> float:
        share = math.fsum(width.loss(by, number) for width, number in bits.items()) / whole
        return measured * (math.sqrt(share) if root else share)

    def worth(width: BitWidth) -> float:
        saved = width.loss(by, width.bits) - width.loss(by, MOST_BITS)
        return saved / (width.size or 1) / (MOST_BITS - width.bits)

    able = [width for width in widths if width.bits < MOST_BITS]
    for width in sorted(able, key=worth, reverse=True):
        if whole <= 0.0 or lost() <= max_drop:
            break
        bits[width] = MOST_BITS
    least = lost() if whole > 0.0 else measured
    if least > max_drop:
        raise ValueError(
            f"max_drop={max_drop:g}: received less than the estimated loss with 8 bits everywhere, "
            f"{least:.3g}; expected at least that; leave layers float, or measure with more images."
        )
    return bits


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

    model: str  # The model's name.
    policy: BitPolicy  # The bits that were measured.
    metric: str  # "top1", "distance" or "divergence": used by `ranked` and `suggest`.
    layers: tuple[LayerSensitivity, ...]  # Linear layers and streams, in graph order.
    together: Damage  # The damage of the whole quantized model, without training.
    num_images: int  # The number of images that were measured.
    # Share of them that the float model classifies correctly; None without labels.
    top1: float | None = None

    def ranked(self) -> list[LayerSensitivity]:
        """The layers, the one that loses most first."""
        metric = METRICS[self.metric]

        def lost(layer: LayerSensitivity) -> tuple[float, float]:
            return metric.of(layer.damage) or 0.0, layer.damage.distance

        return sorted(self.layers, key=lost, reverse=True)

    def suggest(
        self, *, max_drop: float | None = None, average_bits: float | None = None
    ) -> dict[str, dict[str, Any]]:
        """Overrides that give the sensitive layers more bits, up to 8.

        Give one of the two. With `average_bits`, bits go one by one to where they save most, as
        long as the means stay within it: over all weights of linear layers, and over all values
        that they read, except the image. With `max_drop`, layers are raised to 8 bits until the
        model is estimated to lose no more. Estimates add up what layers lose alone; measure the
        suggested policy to be sure.

        Args:
            max_drop: the most that may be lost, in the unit of `Damage`: for top1 a share of the
                images, 0.01 for a point.
            average_bits: the most bits in the mean, up to 8.

        Returns:
            The policy's own overrides and those for the layers to keep at 8 bits:
            `dataclasses.replace(policy, overrides=found.suggest(average_bits=5))`.

        Raises:
            ValueError: neither or both are given, or the limit cannot be kept.
        """
        if (max_drop is None) == (average_bits is None):
            received = "neither" if max_drop is None else "both"
            raise ValueError(
                f"suggest: received {received} of max_drop and average_bits, expected one of them."
            )
        if average_bits is not None:
            if not is_number(average_bits) or not 1.0 <= float(average_bits) <= MOST_BITS:
                raise ValueError(f"average_bits={average_bits!r}: expected a number from 1 to 8.")
            if any(not layer.values_read for layer in self.layers):
                raise ValueError(
                    f"average_bits: received the model {self.model!r} for images of any size, "
                    "expected one size, for which activations can be counted; build it for one, or "
                    "give max_drop."
                )
            bits = within_average(self.widths(), self.metric, average_bits)
        elif max_drop is not None:
            if not is_number(max_drop) or not 0.0 <= float(max_drop) < math.inf:
                raise ValueError(f"max_drop={max_drop!r}: expected a number of 0 or more.")
            bits = within_drop(self.widths(), self.metric, max_drop, self.together)
        overrides: dict[str, dict[str, Any]] = self.policy.to_dict()["overrides"]
        for width, number in bits.items():
            if number > width.bits:
                pattern = glob.escape(width.layer)
                # New overrides come after the policy's own, because later patterns win.
                overrides[pattern] = {**overrides.pop(pattern, {}), width.field: number}
        return overrides

    def widths(self) -> list[BitWidth]:
        """The numbers of bits of all tensors."""
        widths = []
        for layer in self.layers:
            for field, size, damage, errors in (
                ("weight_bits", layer.num_weights, layer.weights, layer.weight_errors),
                ("activation_bits", layer.values_read, layer.activations, layer.activation_errors),
                ("stream_bits", layer.values_made, layer.stream, ()),
            ):
                bits = getattr(layer, field)
                if bits is not None and damage is not None:
                    widths.append(BitWidth(layer.name, field, bits, size, damage, errors))
        return widths

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer, all with the same keys, in graph order."""
        rows = []
        for layer in self.layers:
            row = {name: getattr(layer, name) for name in COLUMNS if hasattr(layer, name)}
            for prefix, field in _PARTS.items():
                for metric in METRICS.values():
                    row[f"{prefix}{metric.field}"] = metric.of(getattr(layer, field))
            rows.append(row)
        return rows

    def _tables(self) -> dict[str, Table[LayerSensitivity]]:
        ranking = METRICS[self.metric]
        metrics = [metric for metric in METRICS.values() if metric.of(self.together) is not None]
        # The metric that layers are ranked by comes first.
        metrics.sort(key=lambda metric: metric is not ranking)
        damages = [
            *((metric.short, "damage", metric) for metric in metrics),
            ("weights", "weights", ranking),
            ("activations", "activations", ranking),
        ]
        columns: list[Column[LayerSensitivity]] = [
            Column("layer", lambda layer: layer.name, wrap="never"),
            # Narrower terminals have no room for the kind; the CSV has it.
            Column("kind", lambda layer: layer.kind, wrap="never", least_width=100),
            Column("bits", _bits, number=True, wrap="never"),
            *(
                Column(title, operator.attrgetter(field), metric.show, number=True, wrap="never")
                for title, field, metric in damages
            ),
        ]
        return {"one layer quantized, the others float": Table(columns=columns, rows=self.ranked())}

    def _headline(self) -> str:
        measured = "" if self.top1 is None else f", top-1 {100 * self.top1:.1f} % as float"
        return (
            f"{self.model}: {self.num_images} images{measured}; {len(self.layers)} layers, ranked "
            f"by {METRICS[self.metric].short}"
        )

    def _notes(self) -> list[str]:
        lost = [
            f"{metric.short} {metric.show(self.together)} {metric.unit[1]}".rstrip()
            for metric in METRICS.values()
            if metric.of(self.together) is not None
        ]
        return [
            f"all of them quantized, without training: {', '.join(lost)}",
            "bits: w of the kernel, a of what the layer reads, s of the stream it makes; the last "
            "two columns are the layer's kernel and what it reads, alone",
        ]

    def write_picture(self, path: str | os.PathLike[str]) -> None:
        """Draws the loss of each layer, to a file that ends in .png or .svg."""
        charts.write(lambda: _draw(self), path)


def _bits(layer: LayerSensitivity) -> str:
    named = (("w", layer.weight_bits), ("a", layer.activation_bits), ("s", layer.stream_bits))
    return "".join(f"{letter}{bits}" for letter, bits in named if bits is not None)


# The field of `LayerSensitivity` and the style of its marks, by the quantized part of a layer.
_STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "kernel": ("weights", {"color": charts.BLUE, "marker": "o", "s": 42}),
    "what it reads": ("activations", {"color": charts.ORANGE, "marker": "s", "s": 42}),
    "stream": ("stream", {"color": charts.GREEN, "marker": "^", "s": 52}),
    "all": ("damage", {"facecolors": "none", "edgecolors": charts.BLACK, "marker": "D", "s": 72}),
}


def _draw(measured: Sensitivity) -> "Picture":
    """Draws a row for each layer, in graph order, with its losses."""
    top_layers = measured.ranked()[:_MOST_LAYERS]
    layers = [layer for layer in measured.layers if layer in top_layers]
    metric = METRICS[measured.metric]
    factor, unit = metric.unit
    # Letters have 13 points, and rows as many: still readable at half the size.
    width = 7.2 + 0.05 * max((len(layer.name) for layer in layers), default=0)
    picture, axes = charts.canvas(size=(width, 1.9 + 0.27 * max(len(layers), 4)))
    drawn: list[float] = []
    for label, (field, style) in _STYLES.items():
        values = [metric.of(getattr(layer, field)) for layer in layers]
        rows = [row for row, value in enumerate(values) if value is not None]
        across = [factor * value for value in values if value is not None]
        if rows:
            axes.scatter(across, rows, label=label, zorder=2, **style)
        drawn += across
    axes.grid(axis="y", color="#D0D0D0", linewidth=1.2)
    axes.set_yticks(range(len(layers)), [layer.name for layer in layers])
    axes.set_ylim(len(layers) - 0.4, -0.6)
    axes.set_xlabel(f"{metric.title} ({unit})" if unit else metric.title)
    # A linear axis would hide the smaller half of values that differ much.
    if drawn and min(drawn) > 0.0 and max(drawn) > _WIDE_RANGE * min(drawn):
        axes.set_xscale("log")
    title = f"{measured.model}: one layer quantized, the others float"
    if num_hidden := len(measured.layers) - len(layers):
        title += f"\nthe {len(layers)} layers that lose most; {num_hidden} lose less"
    # Above the picture, because layer names are where the axes' own title would begin.
    picture.suptitle(title, fontsize=13)
    picture.legend(loc="outside lower center", ncols=len(_STYLES))
    return picture
