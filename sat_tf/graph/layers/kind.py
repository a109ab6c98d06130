"""What a row of the registry of layer kinds holds: all that sat-tf knows of one class of layers.

Placement, calibration, lowering, explain, audit and the Keras 3 translation ask the row, and no
class. A row describes; whoever needs it interprets it.
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
    """The part a layer plays in the placement of quantizers."""

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
        """Whether what comes out are the codes that go in, in whatever places."""
        return self in (Role.MOVEMENT, Role.IDENTITY)


class KernelForm(enum.Enum):
    """What is multiplied by a kernel."""

    DENSE = "all values of the last axis"
    CONVOLUTION = "a window of all channels, or of those of a group"
    DEPTHWISE = "a window of one channel"
    TRANSPOSED = "one pixel, spread over a window of the output"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One multiplication by a kernel; a separable convolution does two.

    Attributes:
        form: what is multiplied by it.
        output_axes: its axes for the output channels.
        input_axis: its axis for the channels of the input.
        attribute: name of the layer's attribute that holds it.
        suffix: what tells it from the other kernels of its layer; "" where it is the only one.
        one_dimensional: the layer reads sequences, which are images with one row in the file.
        folds_inputs: another scale of what the layer reads can be taken into it.
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
        """What to call the multiplication."""
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
            groups: in how many groups the channels fall; an input reaches those of its own.

        >>> Kernel(KernelForm.CONVOLUTION, (3,), 2).fan_out((3, 3, 16, 32))
        288
        """
        reached = [size for axis, size in enumerate(shape) if axis != self.input_axis]
        return math.prod(reached) // groups

    def products(self, shape: Sequence[int], read: int | None, made: int | None) -> int | None:
        """Multiply-adds of one image; None where a place is not known.

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
    """What is made of several tensors."""

    SUM = "their sum"
    DIFFERENCE = "the first without the second"
    MEAN = "their mean"
    PRODUCT = "their product"
    MAXIMUM = "the largest values"
    MINIMUM = "the smallest values"
    JOINED = "one behind the other"


def _never(layer: Any) -> bool:
    del layer
    return False


@dataclasses.dataclass(frozen=True)
class Function:
    """A function that is computed as it is, between what is quantized.

    Attributes:
        reach: which values it gives.
        on_each_value: each value it gives follows from one value alone, and the same everywhere.
        keeps_range: all that it gives lies between values of its input, as a resized image.
        keeps_sign: it gives no negative value for one that is not negative.
        is_broken_line: it is made of straight pieces: no smooth function that an output loses by.
        spread: what it makes of values (channels, quantiles), where `on_each_value` is not it.
    """

    reach: Callable[[Any], Reach] = lambda layer: UNKNOWN
    on_each_value: Callable[[Any], bool] = _never
    keeps_range: Callable[[Any], bool] = _never
    keeps_sign: Callable[[Any], bool] = _never
    is_broken_line: bool = False
    spread: Callable[[Any, Any], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Move:
    """One operator of data movement.

    Attributes:
        operator: its name in TFLite.
        arguments: what it is given, behind its tensor.
        shape: of what it makes, without the batch; None for that of the layer's output.
        suffix: of the name of what it makes; "" for the output of the layer.
    """

    operator: str
    arguments: tuple[Any, ...] = ()
    shape: Shape | None = None
    suffix: str = ""


# From a layer, the shape of what it reads and that of what it makes, without the batch.
Moves = Callable[[Any, Shape, Shape], tuple[Move, ...]]


@dataclasses.dataclass(frozen=True)
class Keras3:
    """The layer of Keras 3 that computes the same, and how settings translate.

    Attributes:
        name: of its class; "" for the name of the class in tf_keras.
        renamed: names of settings there, by those in tf_keras.
        channels_last: tf_keras computes it on CPUs with the channels last alone.
        wrapped: settings that hold layers, with the attribute that holds each there.
        one_axis: tf_keras gives the axis as a list, Keras 3 takes one number.
        inference: name of the class of `sat_tf.keras3` that infers bit for bit as tf_keras does;
            "" where that of Keras does.
    """

    name: str = ""
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    channels_last: bool = False
    wrapped: Mapping[str, str] = dataclasses.field(default_factory=dict)
    one_axis: bool = False
    inference: Callable[[Any], str] = lambda layer: ""


SAME = Keras3()


def _no_problem(layer: Any) -> str | None:
    del layer
    return None


def _no_problem_at(layer: Any, rank: int) -> str | None:
    del layer, rank
    return None


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
        role: the part the layer plays, or how to tell it from the layer.
        refuse: returns what is wrong with this layer's settings, with the fix, or None.
        quantized: sat-tf quantizes it; else it is left float, or rewritten as others first.
        fix: what to do about one that is not quantized.
        refuse_at: the same as `refuse` for a tensor of so many axes behind the batch, when the
            model is lowered.
        kernels: those it multiplies by, in order.
        pieces: the layers that it becomes, one for each kernel, before it is quantized.
        weights_by_channel: its weights, of whatever shape, are factors of single channels or
            values: they count no products, and are no matrices.
        normalizes: it divides by a deviation that it measures.
        moments: mean and variance of its output by channel, from its weights.
        pooling: of what.
        combination: of several tensors.
        function: that it computes.
        moves: how it moves the codes that it reads.
        keeps_channels: it moves values about within their channel.
        reshapes: it gives values another shape, and leaves them in order.
        detail: the settings by which people know it.
        short_name: of its class in tables; "" for the name itself.
        alike_at_all_sizes: TensorFlow's converter makes the same operators of it at all sizes.
        in_training: what it makes of a tensor in training, where that of Keras has no gradient.
        keras3: its counterpart in Keras 3, or None.
    """

    role: Role | Callable[[Any], Role] = Role.OPAQUE
    refuse: Callable[[Any], str | None] = _no_problem
    quantized: bool = True
    fix: str = ""
    refuse_at: Callable[[Any, int], str | None] = _no_problem_at
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


def refuse_channels_first(layer: Any) -> str | None:
    """What is wrong with the order of the axes of images."""
    if layer.data_format != "channels_last":
        return f"received data_format={layer.data_format!r}, expected 'channels_last'"
    return None
