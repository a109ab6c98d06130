"""Tensors joined along an axis."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.operation import (
    SELECTED,
    Constants,
    Made,
    Operation,
    TfTensor,
    fake_quantized,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Tensors
from sat_tf.export.tflite.writer import Operator, Writer


@dataclasses.dataclass(frozen=True)
class Concatenate(Operation):
    """Tensors on one grid, joined along an axis.

    Attributes:
        axis: along which, counted without the batch dimension.
    """

    axis: int

    operator = Operator("CONCATENATION", 2, "ConcatenationOptions")
    reads = ("CONCATENATION",)
    mixes = True
    same_in_float_because = SELECTED

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`."""
        return True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`."""
        del graph
        return np.concatenate(inputs, axis=self.axis + 1)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        writer.operator(self.operator, self.inputs, self.output, axis=self.axis + 1)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        operator.expect(fusedActivationFunction=0, otherwise="it fuses an activation:")
        names = [operator.source(index) for index in range(len(operator.stored.inputs))]
        codes = operator.selected_codes()
        dimensions = len(operator.output.shape)
        axis = operator.option("axis") % dimensions
        if axis == 0:
            raise NotUnderstoodError("it joins images, not their parts")
        return cls(tuple(names), operator.output.name, axis - 1), codes

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        import tensorflow as tf

        del graph, constants
        return tf.concat(inputs, self.axis + 1)

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        import tensorflow as tf

        codes = graph.tensors[self.output].codes
        return lambda *parts: fake_quantized(codes, tf.concat(parts, self.axis + 1))
