"""Probabilities, in float."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.operation import Made, Operation, TfTensor
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Tensors
from sat_tf.export.tflite.writer import Operator, Writer


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float32."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=-1, keepdims=True), np.float32)


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Float softmax over the last axis."""

    operator = Operator("SOFTMAX", 1, "SoftmaxOptions")
    reads = ("SOFTMAX",)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`; in the last bits, kernels differ."""
        del graph
        (source,) = inputs
        return softmax(source)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        writer.operator(self.operator, self.inputs, self.output, beta=1.0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        operator.expect(beta=1.0, otherwise="it is scaled:")
        if operator.source_codes() is not None or operator.codes() is not None:
            raise NotUnderstoodError("it reads or makes codes")
        return cls((operator.source(),), operator.output.name), None

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        import tensorflow as tf

        del graph
        return tf.nn.softmax
