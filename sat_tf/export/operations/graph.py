"""Tensors of stored int8 codes, and the images they are made of."""

import dataclasses
import enum
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from sat_tf.quantizers.input_range import InputRange

if TYPE_CHECKING:
    from sat_tf.graph.network import Node


class Activation(enum.Enum):
    """The fused activation that makes a kernel clip where the quantizer does."""

    NONE = "NONE"
    RELU = "RELU"
    UNIT = "RELU_N1_TO_1"


@dataclasses.dataclass(frozen=True)
class Codes:
    """How a tensor stores real values as int8.

    Attributes:
        scale: real value of one code in the units of the file; float32.
        zero_point: the stored integer of real 0.
        lowest: smallest stored integer.
        highest: largest stored integer.
        unit: real value of 1 in the units of the file.
    """

    scale: np.float32
    zero_point: int
    lowest: int = -128
    highest: int = 127
    unit: float = 1.0

    @property
    def activation(self) -> Activation:
        """What a kernel must fuse, beside int8 saturation, to clip to lowest..highest."""
        if (self.lowest, self.highest) == (-128, 127):
            return Activation.NONE
        if self.highest == 127 and self.lowest == self.zero_point:
            return Activation.RELU
        return Activation.UNIT

    def rectified(self) -> "Codes":
        """The same grid without what is below real 0."""
        return dataclasses.replace(self, lowest=max(self.lowest, self.zero_point))

    @property
    def real_scale(self) -> float:
        """Real value of one code."""
        return float(self.scale) * self.unit

    @property
    def real_range(self) -> tuple[float, float]:
        """Real values of the smallest and the largest stored integer."""
        low, high = self.lowest - self.zero_point, self.highest - self.zero_point
        return low * self.real_scale, high * self.real_scale


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An activation.

    Attributes:
        name: its name in the file.
        shape: without the batch dimension.
        codes: how it is stored; None for float32.
    """

    name: str
    shape: tuple[int, ...]
    codes: Codes | None


@dataclasses.dataclass(frozen=True)
class Image:
    """An input: uint8 pixels, or what stands for them in a model that is for other data.

    Attributes:
        name: its name in the file.
        shape: rows, columns and channels, or whatever shape the model's input has.
        scale: what a pixel more, or a code, is worth to the first kernels.
        zero_point: the pixel, or the code, that is 0 to them.
        range: what the Keras model is fed, for pixels; None where only the file is known.
        type: "uint8", "int8" for codes of real values, or "float32" for these themselves.
    """

    name: str
    shape: tuple[int, ...]
    scale: np.float32
    zero_point: int = 0
    range: InputRange | None = None
    type: str = "uint8"

    def fed(self, pixels: np.ndarray) -> np.ndarray:
        """What the Keras model is fed for what the file takes, in float32."""
        if self.type != "uint8":
            return dequantized(pixels, self.codes) if self.type == "int8" else pixels
        if self.range is None:
            raise TypeError(f"{self.name}: received the graph of a file, expected one of a model.")
        return self.range.fed(pixels)

    def taken(self, values: np.ndarray) -> np.ndarray:
        """What the file takes for values: real ones become codes where it takes codes."""
        if self.type == "int8" and values.dtype != np.int8:
            return quantized(values.astype(np.float32), self.codes).astype(np.int8)
        return values.astype(np.float32) if self.type == "float32" else values

    def drawn(self, pixels: np.ndarray) -> np.ndarray:
        """Random pixels as random values of this type, over all codes."""
        if self.type == "uint8":
            return pixels
        stored = (pixels.astype(np.int32) - 128).astype(np.int8)
        return stored if self.type == "int8" else dequantized(stored, self.codes)

    @property
    def codes(self) -> Codes:
        """The input as int8; of pixels, pixel - 128."""
        return Codes(self.scale, self.zero_point - (128 if self.type == "uint8" else 0))


def quantized(real: np.ndarray, codes: Codes) -> np.ndarray:
    """Real values as stored integers, as QUANTIZE makes them with XNNPACK.

    >>> quantized(np.float32([-1.0, 0.5, 1.5, 900.0]), Codes(np.float32(1.0), 0)).tolist()
    [-1, 0, 2, 127]
    """
    rounded = np.rint(real * (np.float32(1.0) / codes.scale))
    return np.clip(rounded + codes.zero_point, -128, 127).astype(np.int32)


def dequantized(stored: np.ndarray, codes: Codes) -> np.ndarray:
    """Stored integers as real values, in float32."""
    return np.asarray((stored.astype(np.int32) - codes.zero_point).astype(np.float32) * codes.scale)


_LISTING_WIDTH = 160


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation; `inputs` and `output` are names of tensors."""

    inputs: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class Window:
    """Where the kernel of a convolution or pooling is placed.

    Attributes:
        strides: in rows and columns.
        padding: "SAME" or "VALID".
        dilation: in rows and columns.
        more: rows and columns that a transposed convolution makes beyond
            `arithmetic.transposed_size`; below 0 where it makes fewer.
    """

    strides: tuple[int, int] = (1, 1)
    padding: str = "VALID"
    dilation: tuple[int, int] = (1, 1)
    more: tuple[int, int] = (0, 0)


WHOLE = Window()


class LinearKind(enum.Enum):
    """The linear operations, by how their kernel codes are laid out."""

    CONVOLUTION = "CONV_2D"  # (outputs, rows, columns, inputs of its group)
    TRANSPOSED = "TRANSPOSE_CONV"  # (outputs, rows, columns, inputs)
    DEPTHWISE = "DEPTHWISE_CONV_2D"  # (rows, columns, outputs), outputs = inputs · multiplier
    FULLY_CONNECTED = "FULLY_CONNECTED"  # (outputs, inputs)


class Storage(enum.Enum):
    """Bits that the file spends on a weight code: two's complement."""

    INT8 = 8
    INT4 = 4
    INT2 = 2

    @property
    def lowest(self) -> int:
        """The smallest code it holds."""
        return -(2 ** (self.value - 1))

    @property
    def highest(self) -> int:
        """The largest code it holds."""
        return 2 ** (self.value - 1) - 1


class Kernels(enum.Enum):
    """Who computes an operation, as far as the rounding of its results depends on it."""

    XNNPACK = "xnnpack"
    BUILTIN = "builtin"


@dataclasses.dataclass(frozen=True)
class Linear(Operation):
    """A linear operation, with everything folded into it.

    In the units of the file, y = scales · input scale · (Σ codes · input code) + bias.

    Attributes:
        kind: which one.
        kernel: integer codes, laid out as `LinearKind` says.
        scales: scale of each output channel's codes.
        bias: one number an output channel: real values until `scales.round_biases`, then integers
            of scales · input scale.
        center: what y - bias usually is; 0 where nothing is known.
        spread: its standard deviation; infinite where nothing is known.
        window: strides, padding and dilation.
        real: computed in float32, on dequantized inputs and kernel: the float head.
        storage: how the file holds the kernel.
    """

    kind: LinearKind
    kernel: np.ndarray
    scales: np.ndarray
    bias: np.ndarray
    center: np.ndarray
    spread: np.ndarray
    window: Window = WHOLE
    real: bool = False
    storage: Storage = Storage.INT8

    @property
    def kernels(self) -> Kernels:
        """Who computes it where XNNPACK takes what it can: all but packed convolutions."""
        packed = self.storage is not Storage.INT8
        dense = self.kind is LinearKind.FULLY_CONNECTED
        return Kernels.BUILTIN if packed and not dense else Kernels.XNNPACK

    @property
    def channel_axis(self) -> int:
        """The kernel's axis of output channels."""
        return self.kernel.ndim - 1 if self.kind is LinearKind.DEPTHWISE else 0

    @property
    def inner_axes(self) -> tuple[int, ...]:
        """The kernel's other axes."""
        return tuple(axis for axis in range(self.kernel.ndim) if axis != self.channel_axis)

    @property
    def shares_scale(self) -> bool:
        """Whether several channels have one scale in common."""
        return self.scales.size > 1 and bool(np.all(self.scales == self.scales[0]))

    def along_channels(self, values: np.ndarray) -> np.ndarray:
        """One value a channel, shaped to broadcast with the kernel."""
        shape = [1] * self.kernel.ndim
        shape[self.channel_axis] = -1
        return np.reshape(values, shape)


@dataclasses.dataclass(frozen=True)
class Add(Operation):
    """Sum of two tensors, both codes or both float."""


@dataclasses.dataclass(frozen=True)
class AddConstant(Operation):
    """Sum of a tensor of codes and a map of codes that is the same for all images.

    Attributes:
        constant: integer codes; axes of size 1 are stretched.
        scale: of the map, an array without axes: float32.
    """

    constant: np.ndarray
    scale: np.ndarray

    @property
    def codes(self) -> Codes:
        """How the map is stored."""
        return Codes(np.float32(self.scale), 0)


@dataclasses.dataclass(frozen=True)
class Mean(Operation):
    """Mean over rows and columns.

    Attributes:
        keep_dims: rows and columns stay, with size 1.
    """

    keep_dims: bool = False


@dataclasses.dataclass(frozen=True)
class AveragePool(Operation):
    """Mean of a window without its padding, on the grid of the input."""

    size: tuple[int, int]
    window: Window


@dataclasses.dataclass(frozen=True)
class Concatenate(Operation):
    """Tensors of one grid behind each other.

    Attributes:
        axis: along which, counted without the batch dimension.
    """

    axis: int


@dataclasses.dataclass(frozen=True)
class MaxPool(Operation):
    """Largest value in a window."""

    size: tuple[int, int]
    window: Window


@dataclasses.dataclass(frozen=True)
class Pad(Operation):
    """Real zeros around values.

    Attributes:
        margins: for each axis but the batch, how many in front and behind.
    """

    margins: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Reshape(Operation):
    """The same values in another shape."""


@dataclasses.dataclass(frozen=True)
class ShiftImage(Operation):
    """uint8 pixels to int8, stored = pixel - 128; int8 codes of an input as they are."""


@dataclasses.dataclass(frozen=True)
class Dequantize(Operation):
    """Codes to float32."""


@dataclasses.dataclass(frozen=True)
class Quantize(Operation):
    """float32 to codes; values beyond the range saturate."""


class Pointwise(enum.Enum):
    """What a float operation does with each value and a constant."""

    MAXIMUM = "MAXIMUM"
    MINIMUM = "MINIMUM"
    PRODUCT = "MUL"
    SUM = "ADD"


@dataclasses.dataclass(frozen=True)
class WithConstant(Operation):
    """Elementwise operation of a float tensor and a constant.

    Attributes:
        kind: which one.
        constant: float32, one number, or one a channel.
    """

    kind: Pointwise
    constant: np.ndarray


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Float softmax over the last axis."""


@dataclasses.dataclass(frozen=True)
class Island(Operation):
    """A Keras layer, `node`, that is left float: it reads and makes float tensors."""

    node: "Node"

    @property
    def layer(self) -> str:
        """The name of the layer, and of the call where there are several."""
        from sat_tf.qat.layout import call_name  # which loads TensorFlow

        return call_name(self.node)


@dataclasses.dataclass(frozen=True)
class Foreign(Operation):
    """An operator of a file between float tensors that no other operation here stands for.

    Attributes:
        layer: the layer that it is part of, which is left float.
    """

    layer: str


@dataclasses.dataclass(frozen=True)
class Graph:
    """A deployed model.

    Attributes:
        name: name of the Keras model.
        tensors: by name; the inputs are not among them.
        operations: producers before consumers.
        images: the inputs, in the order of the model's.
        output: name of the output tensor.
        warnings: what its user should know.
        layer_outputs: the tensor with the output of each Keras layer that has one, by their names.
        more_outputs: names of the other output tensors.
    """

    name: str
    tensors: dict[str, Tensor]
    operations: tuple[Operation, ...]
    images: tuple[Image, ...]
    output: str
    warnings: tuple[str, ...] = ()
    layer_outputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more_outputs: tuple[str, ...] = ()

    def image(self, name: str) -> Image:
        """The input of this name."""
        return next(image for image in self.images if image.name == name)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all output tensors, in the order of the model's."""
        return self.output, *self.more_outputs

    def expect_one_of_each(self, purpose: str) -> None:
        """Raises ValueError where there are several inputs or outputs, which `purpose` cannot."""
        if len(self.images) > 1 or self.more_outputs:
            raise ValueError(
                f"{purpose}: received a model with {len(self.images)} inputs and "
                f"{len(self.outputs)} outputs, expected one of each; keep one in "
                "keras.Model(inputs, outputs)."
            )

    def __str__(self) -> str:
        from sat_tf.export.operations.listing import graph_table  # which reads graphs

        console = Console(width=_LISTING_WIDTH, color_system=None, file=io.StringIO())
        with console.capture() as capture:
            console.print(graph_table(self))
        return capture.get()

    def codes(self, name: str) -> Codes:
        """How tensor `name`, which is not float, is stored."""
        if (codes := self.tensors[name].codes) is None:
            raise TypeError(f"{name}: received a float tensor, expected codes.")
        return codes

    @property
    def islands(self) -> dict[str, str]:
        """The layers left float, by the tensors that they make, or their operators in a file."""
        return {op.output: op.layer for op in self._left_float}

    @property
    def _left_float(self) -> list[Island | Foreign]:
        return [op for op in self.operations if isinstance(op, Island | Foreign)]

    @property
    def float_layers(self) -> tuple[str, ...]:
        """The layers that are left float, producers first."""
        return tuple(dict.fromkeys(self.islands.values()))

    @property
    def integer_tensors(self) -> tuple[str, ...]:
        """The tensors of codes, producers first."""
        made = [operation.output for operation in self.operations]
        return tuple(name for name in made if self.tensors[name].codes is not None)

    def is_float(self, operation: Operation) -> bool:
        """Whether an operation makes a float tensor."""
        return self.tensors[operation.output].codes is None

    def map_linear(self, change: Callable[["Graph", Linear], Linear]) -> "Graph":
        """The same graph with every integer linear operation changed."""
        operations = tuple(
            change(self, op) if isinstance(op, Linear) and not op.real else op
            for op in self.operations
        )
        return dataclasses.replace(self, operations=operations)


def weight_factors(linear: Linear) -> np.ndarray:
    """What the codes of each channel are multiplied by: most often the same in all of them."""
    shared = np.gcd.reduce(np.abs(linear.kernel), axis=linear.inner_axes)
    values, counts = np.unique(shared[shared > 0], return_counts=True)
    usual = int(max(zip(counts, values, strict=True))[1]) if values.size else 1
    return np.where(shared % usual == 0, usual, np.maximum(shared, 1))


def weight_counts(linear: Linear) -> dict[int, int]:
    """How often each code occurs, without the factor that the export multiplies codes by."""
    codes = linear.kernel // linear.along_channels(weight_factors(linear))
    values, counts = np.unique(codes, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
