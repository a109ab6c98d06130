"""A row of the registry of layer kinds: all that sat-tf knows of one class of layers."""

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
    MATRIX_PRODUCT = "matrix product"
    CONCATENATION = "tensors on one grid"  # also the largest or the smallest value of several
    MEAN = "mean"
    LOOKUP = "rows of a table, by ids"
    FUNCTION = "function"
    MOVEMENT = "data movement"
    IDENTITY = "identity in inference"
    SOFTMAX = "softmax"
    RECURRENCE = "recurrence"
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
    """One multiplication by a kernel; a separable convolution does two."""

    form: KernelForm  # The values that it multiplies.
    output_axes: tuple[int, ...]  # Its axes for the output channels.
    input_axis: int  # Its axis for the channels of the input.
    attribute: str = "kernel"  # Name of the layer's attribute that holds it.
    # Its name among the kernels of its layer; "" where it is the only one.
    suffix: str = ""
    # The layer reads sequences, which are images with one row in the file.
    one_dimensional: bool = False
    folds_inputs: bool = True  # Another scale of the layer's input can be folded into it.

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
        """Inputs of one output, n: the kernel holds those of one group."""
        inner = [size for axis, size in enumerate(shape) if axis not in self.output_axes]
        return math.prod(inner)

    def fan_out(self, shape: Sequence[int], groups: int = 1) -> int:
        """Outputs of one input, n̂, in its group, strides left out as in the paper; at least 1."""
        reached = [size for axis, size in enumerate(shape) if axis != self.input_axis]
        return math.prod(reached) // groups

    def products(self, shape: Sequence[int], read: int | None, made: int | None) -> int | None:
        """Multiply-adds of one image; None where the places are not known."""
        # Each input of a transposed convolution is multiplied by the whole kernel.
        places = read if self.transposed else made
        return None if places is None else places * math.prod(shape)


@dataclasses.dataclass(frozen=True)
class Pooling:
    """A pooling."""

    mean: bool  # It takes the mean; else the largest value.
    whole: bool = False  # It pools all places; else windows.
    # The pooling of images that a pooling of sequences becomes.
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
    JOINED = "one after the other"


@dataclasses.dataclass(frozen=True)
class NativeFunction:
    """The operator of TFLite that computes a function of one value on codes."""

    operator: str  # Its name.
    # Its options, by the names that the schema gives them.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The smallest and the largest value of the 256 codes that TFLite fixes for its output; None
    # where these may be any.
    ends: Reach | None = None
    # The attribute of its layer with weights, which it has as `grid.int8_codes`; "" without any.
    weights: str = ""
    is_gate: bool = False  # Whether the function is the product of what it computes and its input.


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that a layer computes between quantizers."""

    reach: Callable[[Any], Reach] = lambda layer: UNKNOWN  # The range of its values.
    # It is elementwise: the same function of each value by itself.
    on_each_value: Callable[[Any], bool] = lambda layer: False
    # Its outputs lie within the range of its inputs, as in a resized image.
    keeps_range: Callable[[Any], bool] = lambda layer: False
    # Its output is nonnegative where its input is.
    keeps_sign: Callable[[Any], bool] = lambda layer: False
    # It resizes images by bilinear interpolation, pixels placed by their centers.
    interpolates: Callable[[Any], bool] = lambda layer: False
    # It is piecewise linear: not a smooth function that rounding would coarsen.
    is_broken_line: bool = False
    # Its result for values (channels, quantiles), where it is not elementwise.
    spread: Callable[[Any, Any], Any] | None = None
    # Cuts off those of its values that 8-bit codes of its input do not tell apart.
    cut: Callable[[Any], Any] = lambda values: values
    # The operator that NPUs compute it by, or None.
    native: Callable[[Any], NativeFunction | None] = lambda layer: None


@dataclasses.dataclass(frozen=True)
class Move:
    """One operator of data movement."""

    operator: str  # Its name in TFLite.
    arguments: tuple[Any, ...] = ()  # Its arguments other than its tensor.
    # The shape of its output, without the batch; None for that of the layer's output.
    shape: Shape | None = None
    suffix: str = ""  # The end of its output's name; "" for the output of the layer.


# Finds the operators for a layer and the shapes of its input and output, without the batch.
Moves = Callable[[Any, Shape, Shape], tuple[Move, ...]]


@dataclasses.dataclass(frozen=True)
class Keras3:
    """The layer of Keras 3 that computes the same, and how settings translate."""

    name: str = ""  # Its class's name; "" for the name of the class in tf_keras.
    # Names of settings there, by those in tf_keras.
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    channels_last: bool = False  # On CPUs tf_keras computes it with the channels last only.
    # Settings that hold layers, with the attribute that holds each there.
    wrapped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    one_axis: bool = False  # Tf_keras gives the axis as a list, Keras 3 takes one number.


SAME = Keras3()


def window_detail(layer: Any) -> str:
    """Size of the kernel or the window, strides and dilation, where they say something."""

    def sizes(*names: str) -> tuple[int, ...]:
        size = next(filter(None, (getattr(layer, name, None) for name in names)), ())
        return tuple(size) if isinstance(size, tuple | list) else (size,)

    words = ["x".join(map(str, sizes("kernel_size", "pool_size")))]
    for mark, name in (("/", "strides"), ("dilated ", "dilation_rate")):
        steps = sizes(name)
        if set(steps) - {1}:
            words.append(mark + "x".join(map(str, steps if len(set(steps)) > 1 else steps[:1])))
    return " ".join(filter(None, words))


@dataclasses.dataclass(frozen=True)
class LayerKind:
    """One row of the registry."""

    # The layer's role, or the function that finds it.
    role: Role | Callable[[Any], Role] = Role.OPAQUE
    # Returns what is wrong with this layer's settings, with the fix, or None.
    refuse: Callable[[Any], str | None] = lambda layer: None
    # Sat-tf quantizes it; else it is left float, or first rewritten as other layers.
    quantized: bool = True
    fix: str = ""  # The fix for a layer that is not quantized.
    # Returns why no file can have it, quantized or float, after a tensor of a rank, counted
    # without the batch, or None.
    refuse_at: Callable[[Any, int], str | None] = lambda layer, rank: None
    kernels: tuple[Kernel, ...] = ()  # The kernels it multiplies by, in order.
    # The layers that it becomes, one for each kernel, before it is quantized.
    pieces: tuple[type[keras.layers.Layer], ...] = ()
    # Its weights, of whatever shape, are factors of single channels or values, or rows of a table:
    # they count no products, and are no matrices.
    weights_by_channel: bool = False
    normalizes: bool = False  # It divides by a deviation that it measures.
    # Mean and variance of its output by channel, from its weights.
    moments: Callable[[Any], Moments] | None = None
    pooling: Pooling | None = None  # How it pools.
    combination: Combination | None = None  # How it combines several tensors.
    function: Function | None = None  # The function it computes.
    moves: Moves | None = None  # How it moves the codes that it reads.
    keeps_channels: bool = False  # It moves values within their channel.
    reshapes: bool = False  # It changes the shape of its values and keeps their order.
    detail: Callable[[Any], str] = window_detail  # The settings that tables show.
    short_name: str = ""  # Its class's name in tables; "" for the name itself.
    # TensorFlow's converter makes the same operators of it at all sizes.
    alike_at_all_sizes: bool = False
    # Its output in training, where the output of Keras has no gradient.
    in_training: Callable[[Any, Any], Any] | None = None
    # It takes its input for ids: neighbouring numbers stand for unlike things.
    reads_ids: bool = False
    # The attribute with the table whose rows it gives, which are `grid.int8_codes` where they are
    # quantized; "" without any.
    table: str = ""
    keras3: Keras3 | None = None  # Its counterpart in Keras 3, or None.

    @property
    def channel_axes(self) -> tuple[int, ...]:
        """The output-channel axes of the quantized kernel; empty without one."""
        return self.kernels[0].output_axes if self.quantized and self.kernels else ()


Kinds = dict[type[keras.layers.Layer], LayerKind]


def axes_of(layer: Any) -> list[int]:
    """Returns the axes of a layer whose setting is one of them, or several."""
    return [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)


def refuse_batch_axis(layer: Any) -> str | None:
    """Why a layer that works along the batch too is refused; None for other layers."""
    axes = axes_of(layer)
    if 0 in axes:
        axis = axes if len(axes) > 1 else 0
        return f"received axis={axis}, with the batch, expected another one; use axis=-1"
    return None


def refuse_channels_first(layer: Any) -> str | None:
    """Why a layer whose images have their channels first is refused; None for other layers."""
    if layer.data_format != "channels_last":
        return f"received data_format={layer.data_format!r}, expected 'channels_last'"
    return None
