"""Forms: layers whose result is not a tensor yet, because the quantizer behind is still to come."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sat_tf.export.fold import ChannelCodes
from sat_tf.export.graph import WHOLE, Codes, LinearKind, Window
from sat_tf.export.pairs import PairKind

if TYPE_CHECKING:
    from sat_tf.qat.network import Node  # which loads TensorFlow


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
        channels: codes, steps and bias in real units; the kernel is laid out as Keras does, with
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
        low = np.min(ends, axis=0).sum(axis=0) * self.channels.steps + self.channels.bias
        high = np.max(ends, axis=0).sum(axis=0) * self.channels.steps + self.channels.bias
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
        step: of the map.
    """

    codes: np.ndarray
    step: np.float32

    @property
    def values(self) -> np.ndarray:
        """The map."""
        return np.asarray(self.codes * self.step, np.float32)


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
    """The 1x1 depthwise convolution with code 1 and step 1: exact re-quantization."""
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
    steps = np.full(num_channels, 1.0 / (size[0] * size[1]))
    channels = ChannelCodes.unseen(ones, steps, np.zeros(num_channels))
    return LinearForm(source, LinearKind.DEPTHWISE, channels, window)
