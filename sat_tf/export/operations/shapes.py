"""The same codes in another shape, and zeros around them."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.operation import SELECTED, FileParts, Made, Operation, TfTensor
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Tensors
from sat_tf.export.tflite.writer import Operator, Writer

_RESHAPE = Operator("RESHAPE", 1, "ReshapeOptions")


@dataclasses.dataclass(frozen=True)
class Pad(Operation):
    """Real zeros around values.

    Attributes:
        margins: for each axis but the batch, how many in front and behind.
    """

    margins: tuple[tuple[int, int], ...]

    operator = Operator("PAD", 2, "PadOptions")
    reads = ("PAD",)
    same_in_float_because = SELECTED

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`."""
        return True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`."""
        (source,) = inputs
        codes = graph.tensors[self.output].codes
        zero = codes.zero_point if codes else 0.0
        return np.pad(source, ((0, 0), *self.margins), constant_values=zero)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        margins = np.array([(0, 0), *self.margins], np.int32)
        constant = writer.constant(f"{self.output}/margins", margins)
        writer.operator(self.operator, [*self.inputs, constant], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        margins, dimensions = operator.constant(1, "INT32"), len(operator.output.shape)
        if margins.shape != (dimensions, 2) or np.any(margins[0]) or margins.min() < 0:
            raise NotUnderstoodError("its margins are not those of images")
        inner = tuple((before, behind) for before, behind in margins[1:].tolist())
        return cls((operator.source(),), operator.output.name, inner), operator.moved_codes()

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """The margins."""
        del graph, shares_kernel
        return FileParts(constants=1)

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        import tensorflow as tf

        del graph
        return lambda source: tf.pad(source, [(0, 0), *self.margins])


@dataclasses.dataclass(frozen=True)
class Reshape(Operation):
    """The same values in another shape."""

    operator = _RESHAPE
    reads = ("RESHAPE",)
    same_in_float_because = SELECTED

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`."""
        return True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`."""
        (source,) = inputs
        return source.reshape(len(source), *graph.tensors[self.output].shape)

    def write(self, writer: Writer) -> None:
        """See `write_reshape`."""
        write_reshape(writer, self.inputs[0], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        source = operator.tensor(0)
        if source.shape[:1] != operator.output.shape[:1] or (
            np.prod(source.shape[1:]) != np.prod(operator.output.shape[1:])
        ):
            raise NotUnderstoodError(f"it makes {operator.output.shape} of {source.shape}")
        return cls((operator.source(),), operator.output.name), operator.moved_codes()

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """The shape."""
        del graph, shares_kernel
        return FileParts(constants=1)

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        import tensorflow as tf

        shape = graph.tensors[self.output].shape
        return lambda source: tf.reshape(source, [-1, *shape])


def write_reshape(writer: Writer, source: int | str, output: str) -> None:
    """Adds the operator that makes `output` of a tensor, by name or by index."""
    shape = np.array([-1, *writer.tensors[output].shape], np.int32)
    constant = writer.constant(f"{output}/shape", shape)
    writer.operator(_RESHAPE, [source, constant], output, newShape=list(shape))
