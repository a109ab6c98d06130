"""Losses by quantization, and the layers that should have more bits because of them."""

import dataclasses
import glob
import math
from collections.abc import Mapping, Sequence

import numpy as np

from sat_tf.top_k import top_hits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Damage:
    """The effect of quantization on a model's outputs; what was not measured is None."""

    # Share of the images, 0 to 1, by which top-1 falls; negative if it rises.
    top1_drop: float | None
    # Relative error of the outputs, |y' - y| / |y|, Euclidean norms over all images.
    distance: float
    # Kullback-Leibler divergence of the class probabilities from the float model's, in nats, its
    # mean over the images; None if nothing says that the output is a row of classes.
    divergence: float | None


@dataclasses.dataclass(frozen=True)
class Metric:
    """One measure of what a layer loses."""

    field: str  # Of `Damage`.
    title: str  # For readers.
    unit: tuple[float, str]  # Factor and symbol of the unit it is shown in.
    is_root: bool = False  # Its square is proportional to the power of the noise.


METRICS = {
    "top1": Metric("top1_drop", "top-1 lost", (100.0, "points")),
    "distance": Metric("distance", "relative error of the output", (1.0, ""), is_root=True),
    "divergence": Metric("divergence", "divergence of the classes", (1.0, "nats")),
}


class DamageMeter:
    """Accumulates the damage over batches of outputs, compared with the float model's.

    Args:
        probabilities: the outputs are probabilities, not logits.
        classes: the outputs are a row of classes.
    """

    def __init__(self, *, probabilities: bool, classes: bool) -> None:
        self._probabilities = probabilities
        self._has_classes = classes
        self._count = 0
        self._fewer_right = 0
        self._has_labels = False
        self._error = self._size = self._divergence = 0.0

    def add(self, own: np.ndarray, reference: np.ndarray, labels: np.ndarray | None) -> None:
        """Adds one batch of outputs, the float model's, and the classes of the images."""
        own, reference = own.astype(np.float64), reference.astype(np.float64)
        self._count += len(own)
        self._error += float(np.sum(np.square(own - reference)))
        self._size += float(np.sum(np.square(reference)))
        if self._has_classes:
            wanted = self._log_shares(reference)
            terms = np.exp(wanted) * (wanted - self._log_shares(own))
            self._divergence += float(np.sum(terms))
            if labels is not None:
                self._has_labels = True
                self._fewer_right += top_hits(reference, labels, 1) - top_hits(own, labels, 1)

    def damage(self) -> Damage:
        """The damage over all batches."""
        size = self._error / self._size if self._size else (math.inf if self._error else 0.0)
        return Damage(
            top1_drop=self._fewer_right / self._count if self._has_labels else None,
            distance=math.sqrt(size),
            divergence=max(self._divergence / self._count, 0.0) if self._has_classes else None,
        )

    def _log_shares(self, outputs: np.ndarray) -> np.ndarray:
        if self._probabilities:
            # A float32 softmax gives 0 below this.
            return np.log(np.maximum(outputs, float(np.finfo(np.float32).tiny)))
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizableLayer:
    """A linear layer or a stream of a quantized model."""

    name: str  # Of the float model's layer.
    kind: str  # Its class.
    weight_bits: int | None  # Of its kernel; None if that stays float, and for streams.
    # Of the tensor it reads; None if that stays float, is the image, or is a stream at its own
    # bits.
    activation_bits: int | None
    stream_bits: int | None  # Of the tensor it makes, for streams: sums, means, linear bottlenecks.
    num_weights: int  # Of its kernel.
    # How many values it reads for an image, or makes if it is not linear; 0 if the image size is
    # open.
    values_read: int
    values_made: int  # How many values it makes for an image; 0 if the image size is open.
    # Mean square error of the kernel at its bits, at one more, and so on to 8.
    weight_errors: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSensitivity(QuantizableLayer):
    """The loss with one layer quantized and all others float."""

    damage: Damage  # With all of this quantized.
    weights: Damage | None = None  # With its kernel alone quantized, if it has one.
    activations: Damage | None = None  # With the tensor it reads alone quantized.
    stream: Damage | None = None  # With the tensor it makes alone quantized.
    # Mean square error of what it reads, as `weight_errors`.
    activation_errors: tuple[float, ...] = ()

    def widths(self) -> list["BitWidth"]:
        """The numbers of bits of its tensors."""
        tensors = (
            ("weight_bits", self.num_weights, self.weights, self.weight_errors),
            ("activation_bits", self.values_read, self.activations, self.activation_errors),
            ("stream_bits", self.values_made, self.stream, ()),
        )
        return [
            BitWidth(self.name, field, bits, size, damage, errors)
            for field, size, damage, errors in tensors
            if (bits := getattr(self, field)) is not None and damage is not None
        ]


MOST_BITS = 8


@dataclasses.dataclass(frozen=True)
class BitWidth:
    """One number of bits of one layer, which can be raised to 8."""

    layer: str  # Its name.
    field: str  # Of `BitPolicy`: "weight_bits", "activation_bits" or "stream_bits".
    bits: int  # In the policy.
    size: int  # How many values have these bits.
    damage: Damage  # Of the model with these alone quantized.
    # Mean square error of these values at the policy's bits, one more, and so on to 8.
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
            return power * float((2**self.bits - 1) / (2**bits - 1)) ** 2
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


def _value(damage: Damage, metric: str) -> float:
    """Never below 0: a layer gains an image by being quantized only by chance."""
    return max(getattr(damage, METRICS[metric].field) or 0.0, 0.0)
