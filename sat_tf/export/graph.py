"""The graph of a deployed model: operations on tensors of stored int8 codes.

Real values, codes and stored integers relate as

    real = unit · step · (stored - zero_point),      code = stored - zero_point.

`step` and `zero_point` are what the file says of a tensor. `unit` is what the file does not say:
a signed tensor that only linear layers read is stored on [-1, 1], where a fused RELU_N1_TO_1 clips
it exactly, and its clipping level sits in the steps of the layers that read it.
"""

import dataclasses
import enum
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from sat_tf.export.tensor import Activation as Activation
from sat_tf.export.tensor import Codes as Codes
from sat_tf.export.tensor import Image as Image
from sat_tf.export.tensor import Tensor as Tensor

if TYPE_CHECKING:
    from sat_tf.qat.network import Node  # which loads TensorFlow

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

    In the units of the file, y = steps · input step · (Σ codes · input code) + bias.

    Attributes:
        kind: which one.
        kernel: integer codes, laid out as `LinearKind` says.
        steps: step of each output channel's codes.
        bias: one number an output channel: real values until `steps.snap_biases`, then integers of
            steps · input step.
        center: what y - bias usually is; 0 where nothing is known.
        spread: its standard deviation; infinite where nothing is known.
        window: strides, padding and dilation.
        real: computed in float32, on dequantized inputs and kernel: the float head.
        storage: how the file holds the kernel.
    """

    kind: LinearKind
    kernel: np.ndarray
    steps: np.ndarray
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
    def shares_step(self) -> bool:
        """Whether several channels have one step in common."""
        return self.steps.size > 1 and bool(np.all(self.steps == self.steps[0]))

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
        step: of the map, an array without axes: float32.
    """

    constant: np.ndarray
    step: np.ndarray

    @property
    def codes(self) -> Codes:
        """How the map is stored."""
        return Codes(np.float32(self.step), 0)


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
        from sat_tf.export.listing import graph_table  # which reads graphs

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
