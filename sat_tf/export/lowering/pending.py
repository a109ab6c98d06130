"""Layers whose results are not tensors yet: each waits for the quantizer that stands behind it.

What a layer computes, and on which grid, is decided by that quantizer. Until then the layer is
pending: `builder.GraphBuilder` makes a tensor of it, of codes or of float values.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sat_tf.export.lowering.fold import ChannelCodes
from sat_tf.export.operations.float_layer import FloatCall
from sat_tf.export.operations.linear import LinearKind
from sat_tf.export.operations.pairs import PairKind
from sat_tf.export.tflite.tensors import WHOLE, Codes, Window

if TYPE_CHECKING:
    from sat_tf.graph.network import Node


@dataclasses.dataclass(frozen=True)
class _OfOneTensor:
    """A layer of one tensor.

    Attributes:
        source: its name.
    """

    source: str

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors it is made of."""
        return (self.source,)


@dataclasses.dataclass(frozen=True)
class PendingLinear(_OfOneTensor):
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
class PendingSum:
    """The sum of tensors, or their mean.

    Attributes:
        sources: the tensors it is made of.
        divisor: of the sum.
    """

    sources: tuple[str, ...]
    divisor: int = 1


@dataclasses.dataclass(frozen=True)
class PendingConstantSum(_OfOneTensor):
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
class PendingPair:
    """The difference of two tensors, or the product of several."""

    sources: tuple[str, ...]
    kind: PairKind


@dataclasses.dataclass(frozen=True)
class PendingFunction(_OfOneTensor):
    """A function other than a rectifier.

    Attributes:
        node: the layer that computes it.
        function: the same on single values, where it works on each of them alone.
    """

    node: "Node"
    function: Callable[[np.ndarray], np.ndarray] | None


@dataclasses.dataclass(frozen=True)
class PendingFloatLayer:
    """A layer left float whose output is no float32: what reads it takes it in, as it is.

    Attributes:
        sources: the tensors it is made of.
        calls: of it, and of the layers in front of it of which the same holds.
    """

    sources: tuple[str, ...]
    calls: tuple[FloatCall, ...]


@dataclasses.dataclass(frozen=True)
class PendingMean(_OfOneTensor):
    """The mean of `source` over rows and columns."""

    keep_dims: bool


class Strip(NamedTuple):
    """Windows along an axis that lie equally far inside an image, beside each other.

    Attributes:
        start: the first place that they read.
        stop: behind the last.
        size: how many places each reads.
        stride: from one to the next.
        made: how many they are.
    """

    start: int
    stop: int
    size: int
    stride: int
    made: int


def strips(length: int, size: int, stride: int) -> list[Strip]:
    """The windows of SAME padding along an axis, without the padding.

    >>> [(strip.start, strip.stop, strip.size, strip.made) for strip in strips(6, 3, 1)]
    [(0, 2, 2, 1), (0, 6, 3, 4), (4, 6, 2, 1)]
    """
    made = -(-length // stride)
    front = max((made - 1) * stride + size - length, 0) // 2
    starts = [place * stride - front for place in range(made)]
    inside = [start for start in starts if 0 <= start <= length - size]
    found = []
    for start in starts:
        if start not in inside:
            first, stop = max(start, 0), min(start + size, length)
            found.append(Strip(first, stop, stop - first, 1, 1))
        elif start == inside[0]:
            found.append(Strip(start, inside[-1] + size, size, stride, len(inside)))
    return found


# In more parts than these, of windows of 7x7, an image is not pooled.
_MOST_PARTS = 49


@dataclasses.dataclass(frozen=True)
class PendingAveragePool(_OfOneTensor):
    """The mean of `source` in each of many windows, of which some reach beyond the image."""

    size: tuple[int, int]
    window: Window

    def parts(self, shape: tuple[int, ...]) -> tuple[list[Strip], list[Strip]] | None:
        """The windows that are pooled together, by rows and columns; None where they are too many.

        Args:
            shape: of `source`.
        """
        rows, columns = (
            strips(*axis) for axis in zip(shape, self.size, self.window.strides, strict=False)
        )
        return (rows, columns) if len(rows) * len(columns) <= _MOST_PARTS else None


@dataclasses.dataclass(frozen=True)
class PendingRectifier:
    """The positive part of another layer, up to a ceiling, where no quantizer makes it.

    It is float, or a part of a concatenation, whose grid it then gets.
    """

    rectified: "Lowered"
    ceiling: float | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors it is made of."""
        return self.rectified.sources


@dataclasses.dataclass(frozen=True)
class PendingPart:
    """One part of a concatenation, with the name and the shape of the tensor it becomes."""

    pending: "Lowered"
    name: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PendingConcatenation:
    """Parts on one grid: joined along an axis, or the largest or smallest values of them.

    Attributes:
        parts: in order.
        axis: along which they are joined, counted without the batch dimension.
        kind: which values are selected; None where parts are joined.
    """

    parts: tuple[PendingPart, ...]
    axis: int = 0
    kind: PairKind | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensors it is made of."""
        return tuple(source for part in self.parts for source in part.pending.sources)


@dataclasses.dataclass(frozen=True)
class FinishedTensor(_OfOneTensor):
    """A tensor that exists: nothing is pending."""


# A layer as far as it is lowered.
Lowered = (
    PendingLinear
    | PendingSum
    | PendingPair
    | PendingFunction
    | PendingFloatLayer
    | PendingMean
    | PendingAveragePool
    | PendingConstantSum
    | PendingRectifier
    | PendingConcatenation
    | FinishedTensor
)


def identity(source: str, num_channels: int) -> PendingLinear:
    """The 1x1 depthwise convolution with code 1 and scale 1: exact requantization."""
    ones = np.ones((1, 1, num_channels), np.int32)
    channels = ChannelCodes.unseen(ones, np.ones(num_channels), np.zeros(num_channels))
    return PendingLinear(source, LinearKind.DEPTHWISE, channels)


def channel_mean(source: str, num_channels: int) -> PendingLinear:
    """The mean over the channels, as a 1x1 convolution with one of them left."""
    ones = np.ones((1, 1, num_channels, 1), np.int32)
    channels = ChannelCodes.unseen(ones, np.full(1, 1.0 / num_channels), np.zeros(1))
    return PendingLinear(source, LinearKind.CONVOLUTION, channels)


def window_mean(
    source: str, num_channels: int, size: tuple[int, int], window: Window
) -> PendingLinear:
    """Average pooling without padding, as a depthwise convolution."""
    ones = np.ones((*size, num_channels), np.int32)
    scales = np.full(num_channels, 1.0 / (size[0] * size[1]))
    channels = ChannelCodes.unseen(ones, scales, np.zeros(num_channels))
    return PendingLinear(source, LinearKind.DEPTHWISE, channels, window)


Range = tuple[float, float]


def worst_range(pending: Lowered, codes_of: Callable[[str], Codes]) -> Range:
    """The smallest and the largest value that a layer can have.

    Args:
        pending: the layer.
        codes_of: the codes of the tensors that it reads.
    """
    if isinstance(pending, PendingLinear):
        return pending.worst_range(codes_of(pending.source))
    if isinstance(pending, PendingRectifier):
        return 0.0, max(worst_range(pending.rectified, codes_of)[1], 0.0)
    if isinstance(pending, PendingConcatenation):
        low, high = zip(
            *(worst_range(part.pending, codes_of) for part in pending.parts), strict=True
        )
        return min(low), max(high)
    if isinstance(pending, PendingSum):
        ranges = np.array([codes_of(source).real_range for source in pending.sources])
        low, high = ranges.sum(axis=0) / pending.divisor
        return float(low), float(high)
    if isinstance(pending, PendingConstantSum):
        ends = codes_of(pending.source).real_range
        return ends[0] + float(np.min(pending.values)), ends[1] + float(np.max(pending.values))
    if isinstance(pending, PendingPair):
        return _of_pairs(pending.kind, [codes_of(source).real_range for source in pending.sources])
    (source, *_) = pending.sources
    return codes_of(source).real_range


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
