"""Float values: with a constant, value by value, and as probabilities."""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.operation import (
    ROUNDED_ONCE,
    Constants,
    FileParts,
    Made,
    Numbers,
    Operation,
    TfTensor,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Operator, Writer


class Pointwise(enum.Enum):
    """A float operation on each value and a constant."""

    MAXIMUM = "MAXIMUM"
    MINIMUM = "MINIMUM"
    PRODUCT = "MUL"
    SUM = "ADD"


_OPERATORS = {
    Pointwise.MAXIMUM: Operator("MAXIMUM", 2, "MaximumMinimumOptions"),
    Pointwise.MINIMUM: Operator("MINIMUM", 2, "MaximumMinimumOptions"),
    Pointwise.PRODUCT: Operator("MUL", 2, "MulOptions"),
    Pointwise.SUM: Operator("ADD", 2, "AddOptions"),
}
_FUNCTIONS: dict[Pointwise, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    Pointwise.MAXIMUM: np.maximum,
    Pointwise.MINIMUM: np.minimum,
    Pointwise.PRODUCT: np.multiply,
    Pointwise.SUM: np.add,
}
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class WithConstant(Operation):
    """Elementwise operation of a float tensor and a constant.

    Attributes:
        kind: which one.
        constant: float32, one number, or one a channel.
    """

    kind: Pointwise
    constant: np.ndarray

    reads = tuple(kind.value for kind in Pointwise)
    same_in_float_because = ROUNDED_ONCE

    @property
    def operators(self) -> tuple[str, ...]:
        """See `Operation`."""
        return (self.kind.value,)

    def title(self, graph: Tensors) -> str:
        """See `Operation`."""
        del graph
        return f"float {self.kind.value}"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`."""
        del graph
        (source,) = inputs
        return np.asarray(_FUNCTIONS[self.kind](source, self.constant), np.float32)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        constant = writer.constant(f"{self.output}/constant", self.constant)
        writer.operator(_OPERATORS[self.kind], [*self.inputs, constant], self.output)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """A constant beside what operators have made; sums of codes are others'."""
        if operator.tensor(0).name in operator.progress.pending or not operator.is_constant(1):
            return False
        return operator.name != Pointwise.SUM.value or operator.codes() is None

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        kind = Pointwise(operator.name)
        if operator.codes() is not None:
            raise NotUnderstoodError("it changes codes by a constant")
        if kind in (Pointwise.SUM, Pointwise.PRODUCT):
            operator.fused_codes()
        constant = operator.constant(1, "FLOAT32")
        return cls((operator.source(),), operator.output.name, kind, constant), None

    def bounded(self, codes: Codes) -> Codes | None:
        """See `Operation`: a maximum or minimum with one number is a bound."""
        is_lowest = self.kind is Pointwise.MAXIMUM
        if self.constant.size != 1 or not (is_lowest or self.kind is Pointwise.MINIMUM):
            return None
        bound = float(self.constant.item()) / codes.real_scale + codes.zero_point
        if not -128 <= bound <= 127:
            return None
        return dataclasses.replace(
            codes, **{"lowest" if is_lowest else "highest": int(np.rint(bound))}
        )

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """The constant."""
        del graph, shares_kernel
        return FileParts(constants=1, data_bytes=_FLOAT_BYTES * int(np.size(self.constant)))

    def numbers(self, graph: Tensors) -> Numbers:
        """The constant."""
        del graph
        return {"constant": self.constant}

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        del graph
        (source,) = inputs
        return self._in_tensorflow()(source, constants["constant"])

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        del graph
        function, constant = self._in_tensorflow(), self.constant.astype(np.float32)
        return lambda source: function(source, constant)

    def _in_tensorflow(self) -> Callable[..., TfTensor]:
        import tensorflow as tf

        functions: dict[Pointwise, Callable[..., TfTensor]] = {
            Pointwise.MAXIMUM: tf.maximum,
            Pointwise.MINIMUM: tf.minimum,
            Pointwise.PRODUCT: tf.multiply,
            Pointwise.SUM: tf.add,
        }
        return functions[self.kind]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float32."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=-1, keepdims=True), np.float32)


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Float softmax over the last axis."""

    operator = Operator("SOFTMAX", 1, "SoftmaxOptions")
    reads = ("SOFTMAX",)
    makes_probabilities = True

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
