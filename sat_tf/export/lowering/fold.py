"""BatchNormalization folded into signs, scales and biases; layers that wait for a quantizer.

A form is a layer whose result is not a tensor yet, because the quantizer behind is still to come.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import tf_keras as keras

from sat_tf.export.operations.linear import LinearKind
from sat_tf.export.operations.pairs import PairKind
from sat_tf.export.tflite.tensors import WHOLE, Codes, Window

if TYPE_CHECKING:
    from sat_tf.graph.network import Node


@dataclasses.dataclass(frozen=True)
class Affine:
    """What BatchNormalization does in inference: y = slope · x + offset, float64 a channel.

    `mean` and `deviation` are what it has seen of x: this is where it must be exact.
    """

    slope: np.ndarray
    offset: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of_constants(cls, slope: np.ndarray, offset: np.ndarray, channels: int) -> "Affine":
        """One that has seen nothing."""
        slope = np.array(np.broadcast_to(slope, channels), np.float64)
        deviation = np.where(slope == 0.0, 0.0, np.inf)
        return cls(slope, np.array(np.broadcast_to(offset, channels)), 0.0 * slope, deviation)


def affine(norm: keras.layers.Layer) -> Affine:
    """Slope γ / sqrt(σ² + ε), offset β - slope · μ; γ = 1 and β = 0 where it has none."""
    mean = norm.moving_mean.numpy().astype(np.float64)
    variance = norm.moving_variance.numpy().astype(np.float64)
    gamma = 1.0 if norm.gamma is None else norm.gamma.numpy().astype(np.float64)
    beta = 0.0 if norm.beta is None else norm.beta.numpy().astype(np.float64)
    slope = gamma / np.sqrt(variance + norm.epsilon)
    return Affine(slope, beta - slope * mean, mean, np.sqrt(np.maximum(variance, 0.0)))


@dataclasses.dataclass(frozen=True)
class ChannelCodes:
    """A linear layer before it is placed in the graph: Ξ = codes · scales, y = Ξ x + bias.

    Attributes:
        codes: integers, output channels on the last axis.
        scales: positive, one a channel.
        bias: real values, one a channel.
        center: what Ξ x usually is, as far as a normalization or an observed range knows; else 0.
        spread: the standard deviation from that; else infinite.
    """

    codes: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    center: np.ndarray
    spread: np.ndarray

    @classmethod
    def unseen(cls, codes: np.ndarray, scales: np.ndarray, bias: np.ndarray) -> "ChannelCodes":
        """A linear layer of whose values nothing is known."""
        return cls(codes, scales, bias, np.zeros(scales.size), np.full(scales.size, np.inf))

    def seen_within(self, low: float, high: float) -> "ChannelCodes":
        """The same, known to give values from `low` to `high`, where nothing better is known."""
        unknown = np.isinf(self.spread)
        center = np.where(unknown, (low + high) / 2.0 - self.bias, self.center)
        # The ends are two standard deviations away.
        spread = np.where(unknown, (high - low) / 4.0, self.spread)
        return dataclasses.replace(self, center=center, spread=spread)


def scaled(linear: ChannelCodes, slope: np.ndarray, offset: np.ndarray) -> ChannelCodes:
    """The linear layer, multiplied by a number and added to another: y = slope · (Ξ x) + offset.

    Args:
        linear: the layer.
        slope: not 0; one number, or one a channel.
        offset: likewise.
    """
    count = linear.scales.size
    slope, offset = np.broadcast_to(slope, count), np.broadcast_to(offset, count)
    return ChannelCodes(
        codes=linear.codes * np.sign(slope).astype(linear.codes.dtype),
        scales=linear.scales * np.abs(slope),
        bias=linear.bias * slope + offset,
        center=linear.center * slope,
        spread=linear.spread * np.abs(slope),
    )


def fold(linear: ChannelCodes, norm: Affine) -> ChannelCodes:
    """The linear layer and the normalization behind it, as one linear layer.

    The sign of γ goes into the codes and its size into the scales, so that weights stay on their
    lattice and nothing is rounded again. A channel with γ = 0 has codes 0.

    >>> one = ChannelCodes.unseen(np.array([[3, 1, 2]]), np.ones(3), np.ones(3))
    >>> slope, offset = np.array([2.0, -0.5, 0.0]), np.array([0.0, 0.0, 7.0])
    >>> folded = fold(one, Affine(slope, offset, np.zeros(3), np.ones(3)))
    >>> folded.codes.tolist(), folded.scales.tolist(), folded.bias.tolist()
    ([[3, -1, 0]], [2.0, 0.5, 1.0], [2.0, -0.5, 7.0])
    """
    codes = linear.codes * np.sign(norm.slope).astype(linear.codes.dtype)
    scales = np.where(norm.slope == 0.0, 1.0, np.abs(norm.slope)) * linear.scales
    bias = linear.bias * norm.slope + norm.offset
    center = norm.slope * (norm.mean - linear.bias)
    spread = np.where(norm.slope == 0.0, 0.0, np.abs(norm.slope) * norm.deviation)
    return ChannelCodes(codes, scales, bias, np.where(np.isinf(spread), 0.0, center), spread)


@dataclasses.dataclass(frozen=True)
class _OfOneTensor:
    """What is made of one tensor.

    Attributes:
        source: its name.
    """

    source: str

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors it is made of."""
        return (self.source,)


@dataclasses.dataclass(frozen=True)
class LinearForm(_OfOneTensor):
    """A linear layer on the codes of `source`, with the normalizations behind it folded in.

    Attributes:
        kind: which operation.
        channels: codes, scales and bias in real units; the kernel is laid out as Keras does, with
            all output channels on the last axis.
        window: strides, padding and dilation.
    """

    kind: LinearKind
    channels: ChannelCodes
    window: Window = WHOLE

    @property
    def is_pointwise(self) -> bool:
        """Whether it is one factor and one constant a channel."""
        depthwise = self.kind is LinearKind.DEPTHWISE
        return depthwise and self.channels.codes.shape[:2] == (1, 1) and self.window == WHOLE

    def kernel(self) -> np.ndarray:
        """The codes as `LinearKind` lays them out."""
        codes = self.channels.codes
        return codes if self.kind is LinearKind.DEPTHWISE else np.moveaxis(codes, -1, 0)

    def worst_range(self, source: Codes) -> tuple[float, float]:
        """The smallest and the largest real value any input codes can give."""
        codes = self.channels.codes.reshape(-1, self.channels.codes.shape[-1]).astype(np.float64)
        ends = np.array(source.real_range)[:, np.newaxis, np.newaxis] * codes
        low = np.min(ends, axis=0).sum(axis=0) * self.channels.scales + self.channels.bias
        high = np.max(ends, axis=0).sum(axis=0) * self.channels.scales + self.channels.bias
        return float(np.min(low)), float(np.max(high))


@dataclasses.dataclass(frozen=True)
class SumForm:
    """The sum of tensors, or their mean.

    Attributes:
        sources: the tensors it is made of.
        divisor: what the sum is divided by.
    """

    sources: tuple[str, ...]
    divisor: int = 1


@dataclasses.dataclass(frozen=True)
class ConstantSumForm(_OfOneTensor):
    """The sum of `source` and a map that is the same for all images.

    Attributes:
        codes: of the map, integers from -127 to 127.
        scale: of the map.
    """

    codes: np.ndarray
    scale: np.float32

    @property
    def values(self) -> np.ndarray:
        """The map."""
        return np.asarray(self.codes * self.scale, np.float32)


@dataclasses.dataclass(frozen=True)
class PairForm:
    """The difference of two tensors, or the product of several."""

    sources: tuple[str, ...]
    kind: PairKind


@dataclasses.dataclass(frozen=True)
class FunctionForm(_OfOneTensor):
    """A function that is no rectifier.

    Attributes:
        node: the layer that computes it.
        function: the same on single values, where it works on each of them alone.
    """

    node: "Node"
    function: Callable[[np.ndarray], np.ndarray] | None


@dataclasses.dataclass(frozen=True)
class MeanForm(_OfOneTensor):
    """The mean of `source` over rows and columns."""

    keep_dims: bool


@dataclasses.dataclass(frozen=True)
class AverageForm(_OfOneTensor):
    """The mean of `source` in each of many windows, of which padding is no part."""

    size: tuple[int, int]
    window: Window


@dataclasses.dataclass(frozen=True)
class RectifiedForm:
    """The positive part of another form, up to a ceiling, where no quantizer makes it.

    It is float, or a part of a concatenation, whose grid it then gets.
    """

    form: "Form"
    ceiling: float | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors it is made of."""
        return self.form.sources


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a concatenation: a form, and the name and the shape of the tensor it becomes."""

    form: "Form"
    name: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ConcatenationForm:
    """Parts on one grid: behind each other, or the largest or smallest values of them.

    Attributes:
        parts: what they are.
        axis: along which they lie, counted without the batch dimension.
        kind: which values are picked, where that is what is done.
    """

    parts: tuple[Part, ...]
    axis: int = 0
    kind: PairKind | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors it is made of."""
        return tuple(source for part in self.parts for source in part.form.sources)


@dataclasses.dataclass(frozen=True)
class TensorForm(_OfOneTensor):
    """A tensor that exists."""


Form = (
    LinearForm
    | SumForm
    | PairForm
    | FunctionForm
    | MeanForm
    | AverageForm
    | ConstantSumForm
    | RectifiedForm
    | ConcatenationForm
    | TensorForm
)


def identity(source: str, num_channels: int) -> LinearForm:
    """The 1x1 depthwise convolution with code 1 and scale 1: exact re-quantization."""
    ones = np.ones((1, 1, num_channels), np.int32)
    channels = ChannelCodes.unseen(ones, np.ones(num_channels), np.zeros(num_channels))
    return LinearForm(source, LinearKind.DEPTHWISE, channels)


def channel_mean(source: str, num_channels: int) -> LinearForm:
    """The mean over the channels, as a 1x1 convolution with one of them left."""
    ones = np.ones((1, 1, num_channels, 1), np.int32)
    channels = ChannelCodes.unseen(ones, np.full(1, 1.0 / num_channels), np.zeros(1))
    return LinearForm(source, LinearKind.CONVOLUTION, channels)


def window_mean(
    source: str, num_channels: int, size: tuple[int, int], window: Window
) -> LinearForm:
    """Average pooling without padding, as a depthwise convolution."""
    ones = np.ones((*size, num_channels), np.int32)
    scales = np.full(num_channels, 1.0 / (size[0] * size[1]))
    channels = ChannelCodes.unseen(ones, scales, np.zeros(num_channels))
    return LinearForm(source, LinearKind.DEPTHWISE, channels, window)


Range = tuple[float, float]


def worst_range(form: Form, codes_of: Callable[[str], Codes]) -> Range:
    """The smallest and the largest value that a form can have.

    Args:
        form: what is computed.
        codes_of: the codes of the tensors that it reads.
    """
    if isinstance(form, LinearForm):
        return form.worst_range(codes_of(form.source))
    if isinstance(form, RectifiedForm):
        return 0.0, max(worst_range(form.form, codes_of)[1], 0.0)
    if isinstance(form, ConcatenationForm):
        low, high = zip(*(worst_range(part.form, codes_of) for part in form.parts), strict=True)
        return min(low), max(high)
    if isinstance(form, SumForm):
        ranges = np.array([codes_of(source).real_range for source in form.sources])
        low, high = ranges.sum(axis=0) / form.divisor
        return float(low), float(high)
    if isinstance(form, ConstantSumForm):
        ends = codes_of(form.source).real_range
        return ends[0] + float(np.min(form.values)), ends[1] + float(np.max(form.values))
    if isinstance(form, PairForm):
        return _of_pairs(form.kind, [codes_of(source).real_range for source in form.sources])
    return codes_of(form.source).real_range


def _of_pairs(kind: PairKind, ranges: list[Range]) -> Range:
    """The range of a difference or a product of several tensors, taken one after the other."""
    low, high = ranges[0]
    for smallest, largest in ranges[1:]:
        if kind is PairKind.DIFFERENCE:
            low, high = low - largest, high - smallest
        else:
            ends = np.outer((low, high), (smallest, largest))
            low, high = float(np.min(ends)), float(np.max(ends))
    return low, high
