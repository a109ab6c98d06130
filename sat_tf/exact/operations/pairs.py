"""Operations of several tensors: combined value by value, or joined."""

import dataclasses

import numpy as np

from sat_tf.exact.operations.operation import SELECTED, Made, Operation
from sat_tf.exact.operations.pointwise import OfTwo, Pointwise
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView
from sat_tf.exact.tflite.tensors import Tensors
from sat_tf.exact.tflite.writer import Operator, Writer, fused_activation


@dataclasses.dataclass(frozen=True)
class Pair(OfTwo):
    """An operation of two tensors."""

    @property
    def selects(self) -> bool:
        return self.kind.selects

    def write(self, writer: Writer) -> None:
        fused = fused_activation(writer.graph.tensors[self.output].codes)
        options = {} if self.kind.selects else fused
        writer.operator(self.kind.operator, self.inputs, self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Two tensors that operators have made: neither a constant nor places in a table."""
        is_place = operator.tensor(0).name in operator.progress.pending
        return not (is_place or operator.is_constant(0) or operator.is_constant(1))

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        kind = Pointwise(operator.name)
        codes = operator.codes() if kind.selects else operator.fused_codes()
        names = (operator.source(0), operator.source(1))
        if any((operator.source_codes(index) is None) != (codes is None) for index in (0, 1)):
            raise NotUnderstoodError("it combines codes and float values")
        if kind.selects:
            codes = operator.selected_codes()
        return cls(names, operator.output.name, kind), codes


@dataclasses.dataclass(frozen=True)
class Concatenate(Operation):
    """Tensors on one grid, joined along an axis."""

    axis: int  # Along which, counted without the batch dimension.

    operator = Operator("CONCATENATION", 2, "ConcatenationOptions")
    keeps_grid = True
    same_in_float_because = SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return np.concatenate(inputs, axis=self.axis + 1)

    def write(self, writer: Writer) -> None:
        writer.operator(self.operator, self.inputs, self.output, axis=self.axis + 1)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Parts of images; other tools also join images, and constants."""
        constants = [one for one in operator.stored.reads if one.data is not None]
        return not constants and operator.option("axis") % len(operator.output.shape) > 0

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        operator.expect(fusedActivationFunction=0, otherwise="it fuses an activation:")
        names = [operator.source(index) for index in range(len(operator.stored.inputs))]
        codes = operator.selected_codes()
        axis = operator.option("axis") % len(operator.output.shape)
        return cls(tuple(names), operator.output.name, axis - 1), codes
