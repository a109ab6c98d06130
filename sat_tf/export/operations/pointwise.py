"""Float values with a constant, value by value."""

import dataclasses
import enum

import numpy as np

from sat_tf.export.operations.operation import (
    ROUNDED_ONCE,
    FileParts,
    Made,
    Operation,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Operator, Writer


class Pointwise(enum.Enum):
    """An operation of two values, by the name of its operator in a file."""

    MAXIMUM = "MAXIMUM"
    MINIMUM = "MINIMUM"
    PRODUCT = "MUL"
    SUM = "ADD"
    DIFFERENCE = "SUB"

    @property
    def selects(self) -> bool:
        """Whether it selects one of the values."""
        return self in (Pointwise.MAXIMUM, Pointwise.MINIMUM)

    @property
    def operator(self) -> Operator:
        """Its operator in a file."""
        options = "MaximumMinimum" if self.selects else self.value.capitalize()
        return Operator(self.value, 2, f"{options}Options")

    def on_arrays(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Its result for arrays, whose axes of size 1 are broadcast."""
        return np.asarray(_FUNCTIONS[self](first, second))


_FUNCTIONS = {
    Pointwise.MAXIMUM: np.maximum,
    Pointwise.MINIMUM: np.minimum,
    Pointwise.PRODUCT: np.multiply,
    Pointwise.SUM: np.add,
    Pointwise.DIFFERENCE: np.subtract,
}
_FLOAT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class WithConstant(Operation):
    """Elementwise operation of a float tensor and a constant."""

    kind: Pointwise  # Which one; no difference.
    constant: np.ndarray  # Float32, one number, or one a channel.

    reads = ("MAXIMUM", "MINIMUM", "MUL", "ADD")
    same_in_float_because = ROUNDED_ONCE

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind.value,)

    def title(self, graph: Tensors) -> str:
        return f"float {self.kind.value}"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (source,) = inputs
        return self.kind.on_arrays(source, self.constant).astype(np.float32)

    def write(self, writer: Writer) -> None:
        constant = writer.constant(f"{self.output}/constant", self.constant)
        writer.operator(self.kind.operator, [*self.inputs, constant], self.output)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """A constant beside what operators have made; sums of codes are others'."""
        if operator.tensor(0).name in operator.progress.pending or not operator.is_constant(1):
            return False
        return operator.name != Pointwise.SUM.value or operator.codes() is None

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        kind = Pointwise(operator.name)
        if operator.codes() is not None:
            raise NotUnderstoodError("it changes codes by a constant")
        if kind in (Pointwise.SUM, Pointwise.PRODUCT):
            operator.fused_codes()
        constant = operator.constant(1, "FLOAT32")
        return cls((operator.source(),), operator.output.name, kind, constant), None

    def bounded(self, codes: Codes) -> Codes | None:
        """See `Operation`: a maximum or minimum with one number is a bound."""
        if self.constant.size != 1 or not self.kind.selects:
            return None
        bound = float(self.constant.item()) / codes.real_scale + codes.zero_point
        if not -128 <= bound <= 127:
            return None
        if self.kind is Pointwise.MAXIMUM:
            return dataclasses.replace(codes, lowest=int(np.rint(bound)))
        return dataclasses.replace(codes, highest=int(np.rint(bound)))

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """The constant."""
        return FileParts(constants=1, data_bytes=_FLOAT_BYTES * int(np.size(self.constant)))
