"""A row of the registry of layer kinds: all that sat-tf knows of one class of layers.

Placement, calibration, lowering, explain, audit and the Keras 3 translation ask the row, not the
class. A row only describes; its readers interpret it.
"""

import dataclasses
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tf_keras as keras

from sat_tf.core.asymmetric import UNKNOWN, Reach

# A number or an array for each channel.
Moments = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
Shape = tuple[int, ...]


class Role(enum.Enum):
    """The role of a layer in the placement of quantizers."""

    INPUT = "input"
    LINEAR = "linear layer"
    NORM = "normalization"
    AFFINE = "preprocessing"
    RECTIFIER = "rectifier"
    SCALING = "multiplication by a number, or sum with one"
    SUM = "sum"
    PRODUCT = "product"
    CONCATENATION = "tensors on one grid"  # also the largest or the smallest value of several
    MEAN = "mean"
    FUNCTION = "function"
    MOVEMENT = "data movement"
    IDENTITY = "identity in inference"
    SOFTMAX = "softmax"
    OPAQUE = "left float"

    @property
    def keeps_codes(self) -> bool:
        """Whether its output has the codes of its input, in any places."""
        return self in (Role.MOVEMENT, Role.IDENTITY)


class KernelForm(enum.Enum):
    """The values that a kernel multiplies."""

    DENSE = "all values of the last axis"
    CONVOLUTION = "a window of all channels, or of those of a group"
    DEPTHWISE = "a window of one channel"
    TRANSPOSED = "one pixel, spread over a window of the output"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One multiplication by a kernel; a separable convolution does two.

    Attributes:
        form: the values that it multiplies.
        output_axes: its axes for the output channels.
        input_axis: its axis for the channels of the input.
        attribute: name of the layer's attribute that holds it.
        suffix: what tells it from the other kernels of its layer; "" where it is the only one.
        one_dimensional: the layer reads sequences, which are images with one row in the file.
        folds_inputs: another scale of the layer's input can be folded into it.
    """

    form: KernelForm
    output_axes: tuple[int, ...]
    input_axis: int
    attribute: str = "kernel"
    suffix: str = ""
    one_dimensional: bool = False
    folds_inputs: bool = True

    @property
    def depthwise(self) -> bool:
        """Whether each output channel is made of one input channel."""
        return self.form is KernelForm.DEPTHWISE

    @property
    def transposed(self) -> bool:
        """Whether it is that of a transposed convolution."""
        return self.form is KernelForm.TRANSPOSED

    def name(self, layer_name: str) -> str:
        """The name of the multiplication."""
        return f"{layer_name}/{self.suffix}" if self.suffix else layer_name

    def fan_in(self, shape: Sequence[int]) -> int:
        """Inputs of one output, n: the kernel holds those of one group.

        Args:
            shape: of the kernel.
        """
        inner = [size for axis, size in enumerate(shape) if axis not in self.output_axes]
        return math.prod(inner)

    def fan_out(self, shape: Sequence[int], groups: int = 1) -> int:
        """Outputs of one input, n̂, strides left out as in the paper; at least 1.

        Args:
            shape: of the kernel.
            groups: number of groups of channels; an input reaches those of its own.

        >>> Kernel(KernelForm.CONVOLUTION, (3,), 2).fan_out((3, 3, 16, 32))
        288
        """
        reached = [size for axis, size in enumerate(shape) if axis != self.input_axis]
        return math.prod(reached) // groups

    def products(self, shape: Sequence[int], read: int | None, made: int | None) -> int | None:
        """Multiply-adds of one image; None where the places are not known.

        Args:
            shape: of the kernel.
            read: places of the input.
            made: places of the output.
        """
        # Each input of a transposed convolution is multiplied by the whole kernel.
        places = read if self.transposed else made
        return None if places is None else places * math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Pooling:
    """A pooling.

    Attributes:
        mean: it takes the mean; else the largest value.
        whole: over all places; else over windows.
        on_images: for sequences, the same for images, which it becomes.
    """

    mean: bool
    whole: bool = False
    on_images: type[keras.layers.Layer] | None = None


class Combination(enum.Enum):
    """A way to combine several tensors."""

    SUM = "their sum"
    WITH_MAP = "the sum of one with a map of numbers, which the layer holds"
    DIFFERENCE = "the first without the second"
    MEAN = "their mean"
    PRODUCT = "their product"
    MAXIMUM = "the largest values"
    MINIMUM = "the smallest values"
    JOINED = "one behind the other"


@dataclasses.dataclass(frozen=True)
class NativeFunction:
    """The operator of TFLite that computes a function of one value on codes.

    Attributes:
        operator: its name.
        settings: its options, by the names that the schema gives them.
        ends: the smallest and the largest value of the 256 codes that TFLite fixes for its output;
            None where these may be any.
        weights: the attribute of its layer with weights, which it has as `grid.int8_codes`; "" for
            those without.
    """

    operator: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ends: Reach | None = None
    weights: str = ""


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that a layer computes between quantizers.

    Attributes:
        reach: the range of its values.
        on_each_value: it is elementwise: the same function of each value by itself.
        keeps_range: its outputs lie within the range of its inputs, as in a resized image.
        keeps_sign: its output is nonnegative where its input is.
        interpolates: it resizes images by bilinear interpolation, pixels placed by their centers.
        is_broken_line: it is piecewise linear: not a smooth function that rounding would coarsen.
        spread: its result for values (channels, quantiles), where it is not elementwise.
        native: the operator that NPUs compute it by; None where there is none.
    """

    reach: Callable[[Any], Reach] = lambda layer: UNKNOWN
    on_each_value: Callable[[Any], bool] = lambda layer: False
    keeps_range: Callable[[Any], bool] = lambda layer: False
    keeps_sign: Callable[[Any], bool] = lambda layer: False
    interpolates: Callable[[Any], bool] = lambda layer: False
    is_broken_line: bool = False
    spread: Callable[[Any, Any], Any] | None = None
    native: Callable[[Any], NativeFunction | None] = lambda layer: None


@dataclasses.dataclass(frozen=True)
class Move:
    """One operator of data movement.

    Attributes:
        operator: its name in TFLite.
        arguments: what it is given beside its tensor.
        shape: of its output, without the batch; None for that of the layer's output.
        suffix: of the name of its output; "" for the output of the layer.
    """

    operator: str
    arguments: tuple[Any, ...] = ()
    shape: Shape | None = None
    suffix: str = ""


# It takes a layer and the shapes of its input and output, without the batch.
Moves = Callable[[Any, Shape, Shape], tuple[Move, ...]]


@dataclasses.dataclass(frozen=True)
class Keras3:
    """The layer of Keras 3 that computes the same, and how settings translate.

    Attributes:
        name: of its class; "" for the name of the class in tf_keras.
        renamed: names of settings there, by those in tf_keras.
        channels_last: on CPUs tf_keras computes it with the channels last only.
        wrapped: settings that hold layers, with the attribute that holds each there.
        one_axis: tf_keras gives the axis as a list, Keras 3 takes one number.
    """

    name: str = ""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    channels_last: bool = False
    wrapped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    one_axis: bool = False


SAME = Keras3()


def shared_sizes(sizes: Any) -> str:
    """Sizes along axes, as one where they are equal.

    >>> shared_sizes((2, 2)), shared_sizes((1, 3)), shared_sizes(None)
    ('2', '1x3', '')
    """
    if sizes is None:
        return ""
    values = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))


def window_detail(layer: Any) -> str:
    """Size of the kernel or the window, strides and dilation, where they say something."""
    words = []
    size = getattr(layer, "kernel_size", None) or getattr(layer, "pool_size", None)
    if size is not None:
        words.append("x".join(map(str, size if isinstance(size, tuple | list) else (size,))))
    strides = shared_sizes(getattr(layer, "strides", None))
    if strides not in ("", "1"):
        words.append(f"/{strides}")
    dilation = shared_sizes(getattr(layer, "dilation_rate", None))
    if dilation not in ("", "1"):
        words.append(f"dilated {dilation}")
    return " ".join(words)


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """One row of the registry.

    Attributes:
        role: of the layer, or how to tell it from the layer.
        refuse: returns what is wrong with this layer's settings, with the fix, or None.
        quantized: sat-tf quantizes it; else it is left float, or first rewritten as other layers.
        fix: what to do about one that is not quantized.
        refuse_at: returns why no file can have it, quantized or float, behind a tensor of so many
            axes without the batch, or None.
        kernels: those it multiplies by, in order.
        pieces: the layers that it becomes, one for each kernel, before it is quantized.
        weights_by_channel: its weights, of whatever shape, are factors of single channels or
            values: they count no products, and are no matrices.
        normalizes: it divides by a deviation that it measures.
        moments: mean and variance of its output by channel, from its weights.
        pooling: how it pools.
        combination: how it combines several tensors.
        function: that it computes.
        moves: how it moves the codes that it reads.
        keeps_channels: it moves values within their channel.
        reshapes: it changes the shape of its values and keeps their order.
        detail: the settings that tables show.
        short_name: of its class in tables; "" for the name itself.
        alike_at_all_sizes: TensorFlow's converter makes the same operators of it at all sizes.
        in_training: its output in training, where that of Keras has no gradient.
        reads_ids: it takes its input for numbers of things, of which no neighbour is like another.
        keras3: its counterpart in Keras 3, or None.
    """

    role: Role | Callable[[Any], Role] = Role.OPAQUE
    refuse: Callable[[Any], str | None] = lambda layer: None
    quantized: bool = True
    fix: str = ""
    refuse_at: Callable[[Any, int], str | None] = lambda layer, rank: None
    kernels: tuple[Kernel, ...] = ()
    pieces: tuple[type[keras.layers.Layer], ...] = ()
    weights_by_channel: bool = False
    normalizes: bool = False
    moments: Callable[[Any], Moments] | None = None
    pooling: Pooling | None = None
    combination: Combination | None = None
    function: Function | None = None
    moves: Moves | None = None
    keeps_channels: bool = False
    reshapes: bool = False
    detail: Callable[[Any], str] = window_detail
    short_name: str = ""
    alike_at_all_sizes: bool = False
    in_training: Callable[[Any, Any], Any] | None = None
    reads_ids: bool = False
    keras3: Keras3 | None = None

    @property
    def kernel(self) -> str:
        """Name of the attribute that holds the kernel that is quantized; "" where none is."""
        return self.kernels[0].attribute if self.quantized and self.kernels else ""

    @property
    def channel_axes(self) -> tuple[int, ...]:
        """The output-channel axes of that kernel."""
        return self.kernels[0].output_axes if self.quantized and self.kernels else ()


Kinds = dict[type[keras.layers.Layer], LayerKind]


def axes_of(layer: Any) -> list[int]:
    """Returns the axes of a layer whose setting is one of them, or several."""
    return [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)


def refuse_channels_first(layer: Any) -> str | None:
    """Why a layer is refused whose images have their channels first; None where it is not."""
    if layer.data_format != "channels_last":
        return f"received data_format={layer.data_format!r}, expected 'channels_last'"
    return None
