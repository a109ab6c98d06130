"""The loss of a model when each layer is quantized, and the layers that should have more bits."""

import dataclasses
import glob
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sat_tf.analysis.sensitivity.damage import METRICS, Damage
from sat_tf.qat.policy import BitPolicy

MOST_BITS = 8


@dataclasses.dataclass(frozen=True)
class BitWidth:
    """One number of bits of one layer, which can be raised to 8.

    Attributes:
        layer: its name.
        field: of `BitPolicy`: "weight_bits", "activation_bits" or "stream_bits".
        bits: in the policy.
        size: how many values have these bits.
        damage: of the model with these alone quantized.
        errors: mean square error of these values at the policy's bits, one more, and so on to 8.
    """

    layer: str
    field: str
    bits: int
    size: int
    damage: Damage
    errors: tuple[float, ...] = ()

    def loss(self, metric: str, bits: int) -> float:
        """The estimated loss at some bits, in units that can be added up.

        The squared distance and the divergence are proportional to the power of the rounding error,
        and so, by assumption, are images lost. If that is not known, the square of the scale is
        used instead.
        """
        value = _value(self.damage, metric)
        power = value * value if METRICS[metric].is_root else value
        if not self.errors:
            return power * (_levels(self.bits) / _levels(bits)) ** 2
        first = self.errors[0]
        return power * self.errors[bits - self.bits] / first if first > 0.0 else 0.0


Bits = dict[BitWidth, int]


def mean_bits(bits: Mapping[BitWidth, int], field: str) -> float:
    """Mean bits of all values of a field; NaN if there are none."""
    own = [width for width in bits if width.field == field]
    size = sum(width.size for width in own)
    return sum(width.size * bits[width] for width in own) / size if size else math.nan


def within_average(widths: Sequence[BitWidth], metric: str, average_bits: float) -> Bits:
    """The bits of each layer with the least estimated loss, within a mean.

    The mean holds for weights and for activations separately. Each bit in turn goes to where it
    saves most for its cost; layers that no longer fit are skipped.

    Raises:
        ValueError: the policy's own mean is already above it.
    """
    bits = {width: width.bits for width in widths}
    # Top-1 cannot distinguish layers that lose no image.
    metric = "divergence" if metric == "top1" else metric
    for field, what in (("weight_bits", "weights"), ("activation_bits", "activations")):
        own = [width for width in widths if width.field == field]
        mean = mean_bits(bits, field)
        if mean > average_bits and any(width.bits < MOST_BITS for width in own):
            raise ValueError(
                f"average_bits={average_bits:g}: received fewer bits than the {mean:.3f} that "
                f"{what} have in the mean under the measured policy, first and last layer "
                "included; expected more, or measure a policy with fewer bits, such as one with "
                "first_last_weight_bits=None."
            )
        room = sum(width.size * (average_bits - width.bits) for width in own)
        while able := [s for s in own if bits[s] < MOST_BITS and 0 < s.size <= room]:
            best = max(able, key=lambda width: _saved(width, metric, bits[width]) / width.size)
            if _saved(best, metric, bits[best]) <= 0.0:
                break
            bits[best] += 1
            room -= best.size
    return bits


def within_drop(widths: Sequence[BitWidth], metric: str, max_drop: float, together: Damage) -> Bits:
    """The fewest layers raised to 8 bits so that at most `max_drop` is lost, by estimate.

    The losses of layers quantized alone are added up, and the sum is scaled to the measured loss of
    the whole quantized model.

    Raises:
        ValueError: 8 bits everywhere lose more.
    """
    bits = {width: width.bits for width in widths}
    measured = _value(together, metric)
    if measured <= max_drop:
        return bits
    # No image may be lost with any layer quantized alone, but some with all of them.
    by = metric if any(_value(width.damage, metric) > 0.0 for width in widths) else "distance"
    whole = math.fsum(width.loss(by, width.bits) for width in widths)
    root = METRICS[metric].is_root

    def lost() -> float:
        part = math.fsum(width.loss(by, own) for width, own in bits.items()) / whole
        return measured * (math.sqrt(part) if root else part)

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
        factor, unit = METRICS[metric].unit
        raise ValueError(
            f"max_drop={max_drop:g}: received less than the estimated loss with 8 bits everywhere, "
            f"{least:.3g}{f' ({factor * least:.3g} {unit})' if unit else ''}; expected at least "
            "that; leave layers float, or measure with more images."
        )
    return bits


def as_overrides(bits: Mapping[BitWidth, int]) -> dict[str, dict[str, int]]:
    """The layers with more bits than in the policy, in the form of `BitPolicy.overrides`.

    >>> lost = Damage(top1_drop=None, distance=0.1, divergence=None)
    >>> as_overrides({BitWidth("conv[1]", "weight_bits", 4, 9, lost): 8})
    {'conv[[]1]': {'weight_bits': 8}}
    """
    overrides: dict[str, dict[str, int]] = {}
    for width, own in bits.items():
        if own > width.bits:
            overrides.setdefault(glob.escape(width.layer), {})[width.field] = own
    return overrides


def _saved(width: BitWidth, metric: str, bits: int) -> float:
    return width.loss(metric, bits) - width.loss(metric, bits + 1)


def _levels(bits: int) -> int:
    return int(2**bits - 1)


def _value(damage: Damage, metric: str) -> float:
    """Never below 0: a layer gains an image by being quantized only by chance."""
    return max(getattr(damage, METRICS[metric].field) or 0.0, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSensitivity:
    """The loss with one layer quantized and all others float.

    Attributes:
        name: of the layer.
        kind: its class.
        weight_bits: of its kernel; None if that stays float, and for streams.
        activation_bits: of the tensor it reads; None if that stays float or is the image.
        stream_bits: of the tensor it makes, for streams: sums, means, linear bottlenecks.
        num_weights: of its kernel.
        values_read: how many values it reads for an image, or makes if it is not linear; 0 if the
            image size is open.
        values_made: how many values it makes for an image; 0 if the image size is open.
        damage: with all of this quantized.
        weights: with its kernel alone quantized, if it has one.
        activations: with the tensor it reads alone quantized.
        stream: with the tensor it makes alone quantized.
        weight_errors: mean square error of the kernel at its bits, at one more, and so on to 8.
        activation_errors: the same of what it reads.
    """

    name: str
    kind: str
    weight_bits: int | None
    activation_bits: int | None
    stream_bits: int | None
    num_weights: int
    values_read: int
    values_made: int
    damage: Damage
    weights: Damage | None = None
    activations: Damage | None = None
    stream: Damage | None = None
    weight_errors: tuple[float, ...] = ()
    activation_errors: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """The loss of a model when each of its layers is quantized alone, and when all are.

    Attributes:
        model: its name.
        policy: the bits that were measured.
        metric: "top1", "distance" or "divergence": used by `ranked` and `suggest`.
        layers: linear layers and streams, in graph order.
        together: what the whole quantized model loses, without training.
        num_images: how many images were measured.
        top1: share of them that the float model classifies correctly; None without labels.
    """

    model: str
    policy: BitPolicy
    metric: str
    layers: tuple[LayerSensitivity, ...]
    together: Damage
    num_images: int
    top1: float | None = None

    def ranked(self) -> list[LayerSensitivity]:
        """The layers, the one that loses most first."""

        def lost(layer: LayerSensitivity) -> tuple[float, float]:
            return self.value(layer.damage) or 0.0, layer.damage.distance

        return sorted(self.layers, key=lost, reverse=True)

    def value(self, damage: Damage | None) -> float | None:
        """The value of the metric for some damage."""
        if damage is None:
            return None
        value: float | None = getattr(damage, METRICS[self.metric].field)
        return value

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
            self._refuse_open_sizes()
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

    def _refuse_open_sizes(self) -> None:
        if any(not layer.values_read for layer in self.layers):
            raise ValueError(
                f"average_bits: received a model, {self.model!r}, of any image size, expected one "
                "of a fixed size, whose activations can be counted; build it for one, or give "
                "max_drop."
            )

    def _widths(self) -> list[BitWidth]:
        return [
            width
            for layer in self.layers
            for width in (
                _width(layer, "weight_bits", layer.num_weights, layer.weights),
                _width(layer, "activation_bits", layer.values_read, layer.activations),
                _width(layer, "stream_bits", layer.values_made, layer.stream),
            )
            if width is not None
        ]


def _width(
    layer: LayerSensitivity, field: str, size: int, damage: Damage | None
) -> BitWidth | None:
    bits: int | None = getattr(layer, field)
    if bits is None or damage is None:
        return None
    errors = getattr(layer, field.replace("_bits", "_errors"), ())
    return BitWidth(layer.name, field, bits, size, damage, errors)


def _check(name: str, value: object, most: float, expected: str) -> None:
    least = 1.0 if most == 8.0 else 0.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= float(str(value)) <= most or math.isinf(float(str(value))):
        raise ValueError(f"{name}={value!r}: expected {expected}.")
