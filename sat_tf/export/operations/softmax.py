"""Probabilities over the last axis, of float values or of codes."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.kernels.softmax import MOST_CLASSES, SCALE, ZERO_POINT, in_fixed_point
from sat_tf.export.operations.operation import Basis, Made, Operation, Portability
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView, grid_of
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Operator, Writer

# Its kernel takes no other grid: 0 to 255/256.
PROBABILITIES = Codes(SCALE, ZERO_POINT)
_OF_CODES = Operator("SOFTMAX", 2, "SoftmaxOptions")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float32."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=-1, keepdims=True), np.float32)


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Softmax over the last axis: of float values in float32, of codes as `PROBABILITIES`.

    XNNPACK leaves that of codes to the builtin kernels. On x86 they add powers in float32, on Arm
    integers of 16 bits, in the reference kernels and in TFLite Micro all is in fixed point: about
    one code of a thousand differs, by one.
    """

    operator = Operator("SOFTMAX", 1, "SoftmaxOptions")
    makes_probabilities = True
    rounds = True

    def portability(self, graph: Tensors) -> Portability:
        """See `Operation`: the codes that it reads hold wherever they do without it."""
        if self.is_float(graph):
            return super().portability(graph)
        return Portability(
            Basis.IMAGES,
            "no delegate takes it, and the builtin kernels of x86 and of Arm differ in about one "
            "code of a thousand",
        )

    def ends_process(self, graph: Tensors, kernels: KernelSet) -> str | None:
        """See `Operation`: sums in fixed point of many like powers do not fit their kernels."""
        classes = graph.tensors[self.output].shape[-1]
        is_short = self.is_float(graph) or kernels.softmax is not in_fixed_point
        if is_short or classes <= MOST_CLASSES:
            return None
        return (
            f"its kernel of SOFTMAX ends the process where {classes:,} classes are about equally "
            f"likely, and takes {MOST_CLASSES} safely"
        )

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`; of float values kernels differ in the last bits."""
        (source,) = inputs
        if self.is_float(graph):
            return softmax(source)
        return graph.kernels.softmax(source, graph.codes(self.inputs[0]).scale)

    def on_codes(
        self, inputs: tuple[str, ...], codes: Sequence[Codes]
    ) -> tuple[Operation, Codes] | None:
        return dataclasses.replace(self, inputs=inputs), PROBABILITIES

    def write(self, writer: Writer) -> None:
        operator = self.operator if self.is_float(writer) else _OF_CODES
        writer.operator(operator, self.inputs, self.output, beta=1.0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        operator.expect(beta=1.0, otherwise="it is scaled:")
        codes = operator.codes()
        if (operator.source_codes() is None) != (codes is None):
            raise NotUnderstoodError("it reads codes and makes float values, or the reverse")
        if codes is not None and grid_of(codes) != grid_of(PROBABILITIES):
            raise NotUnderstoodError(
                f"its scale and zero point are {codes.scale:.6g} and {codes.zero_point}, expected "
                "1/256 and -128"
            )
        return cls((operator.source(),), operator.output.name), codes
