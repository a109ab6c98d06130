"""Operations of two values: their arithmetic on codes, and those with a constant."""

import dataclasses
import enum
import functools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.kernels.xnnpack import product_multiplier
from sat_tf.exact.operations.operation import (
    ROUNDED_ONCE,
    SELECTED,
    Basis,
    Made,
    Operation,
    Portability,
    enumerated,
    stored_codes,
)
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, codes_of
from sat_tf.exact.tflite.tensors import Codes, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer, fused_activation

_Operand = TypeVar("_Operand")
SUMS_ALIKE = "integers with multipliers of 20 bits, rounded half up, in all of XNNPACK's kernels"
# XNNPACK leaves a sum to other kernels, with another rounding, where a scale of what it adds is
# this many times its own.
_LARGEST_SUMMAND = 256.0
# XNNPACK leaves products to kernels with another rounding where codes are worth less than this, or
# `_LARGEST_SUMMAND` or more, of an output code.
_SMALLEST_PRODUCT = 2.0**-16


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


def on_codes(
    kind: Pointwise,
    stored: Sequence[np.ndarray],
    grids: Sequence[Codes],
    output: Codes,
    kernels: KernelSet,
) -> np.ndarray:
    """Stored integers made of those of two tensors; the rounding is that of the kernels."""
    if kind.selects:
        return kind.on_arrays(*stored)
    one, other = (
        array.astype(np.int64) - grid.zero_point for array, grid in zip(stored, grids, strict=True)
    )
    first, second = (grid.scale for grid in grids)
    if kind is Pointwise.PRODUCT:
        made = kernels.product(one * other, (first, second), output.scale)
    else:
        is_difference = kind is Pointwise.DIFFERENCE
        made = kernels.summed([one, other], [first, second], output.scale, difference=is_difference)
    return stored_codes(made, output)


@functools.lru_cache(maxsize=16)
def _products(first: tuple[int, int], second: tuple[int, int]) -> np.ndarray:
    """Every different product of two codes, from their ends."""
    one, other = (np.arange(low, high + 1) for low, high in (first, second))
    return np.unique(np.multiply.outer(one, other))


@dataclasses.dataclass(frozen=True)
class OfTwo(Operation):
    """An operation of two tensors, both codes or both float; axes of size 1 are broadcast."""

    kind: Pointwise  # Which one.

    reads = tuple(kind.value for kind in Pointwise)
    same_in_float_because = ROUNDED_ONCE
    rounds = True

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind.value,)

    def title(self, graph: Tensors) -> str:
        if self.is_float(graph):
            return f"float {self.kind.value}"
        return "Add" if self.kind is Pointwise.SUM else self.kind.value

    def grids(self, graph: Tensors) -> list[Codes]:
        """The grids of both."""
        return [graph.codes(name) for name in self.inputs]

    def arrays(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The values, or the stored integers, of both."""
        return inputs

    def scale_problem(self, graph: Tensors) -> str | None:
        if self.is_float(graph) or self.kind.selects:
            return None
        output, scales = graph.codes(self.output), [grid.scale for grid in self.grids(graph)]
        if self.kind is Pointwise.PRODUCT:
            multiplier = float(product_multiplier(scales[0], scales[1], output.scale))
            if _SMALLEST_PRODUCT <= multiplier < _LARGEST_SUMMAND:
                return None
            return (
                f"received a product whose codes are worth {multiplier:.4g} output codes, expected "
                f"at least {_SMALLEST_PRODUCT:.4g} and less than {_LARGEST_SUMMAND:g}; a clipping "
                "level is far from its values: call sat_tf.calibrate, or train longer."
            )
        largest = max(float(scale / output.scale) for scale in scales)
        if largest < _LARGEST_SUMMAND:
            return None
        return (
            f"received a sum with scales {largest:.4g} times smaller than those of a tensor it "
            f"adds, expected less than {_LARGEST_SUMMAND:g} times; its clipping level is much too "
            "small: call sat_tf.calibrate, or train longer."
        )

    def portability(self, graph: Tensors) -> Portability:
        """Of a product, every product of two codes is known."""
        if self.is_float(graph):
            return super().portability(graph)
        if self.kind is not Pointwise.PRODUCT:
            return Portability(Basis.RULE, SELECTED if self.kind.selects else SUMS_ALIKE)
        grids, output = self.grids(graph), graph.codes(self.output)
        scales = grids[0].scale, grids[1].scale
        first, second = (
            (grid.lowest - grid.zero_point, grid.highest - grid.zero_point) for grid in grids
        )
        products = _products(first, second)
        return enumerated(
            products,
            lambda kernels, some: stored_codes(kernels.product(some, scales, output.scale), output),
            "products",
            total=products.size,
        )

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        arrays = self.arrays(inputs)
        if self.is_float(graph):
            return self.kind.on_arrays(*arrays).astype(np.float32)
        output = graph.codes(self.output)
        return on_codes(self.kind, arrays, self.grids(graph), output, graph.kernels)


@dataclasses.dataclass(frozen=True)
class WithConstant(OfTwo):
    """An operation of a tensor and a constant."""

    # As the file has it: float32, one number or one a channel; or int8 codes, with the batch.
    constant: np.ndarray
    grid: Codes | None = None  # Of the constant; None where it is float.
    is_first: bool = False  # The constant is the first of the two.

    num_constants = 1

    def title(self, graph: Tensors) -> str:
        is_sum = self.kind is Pointwise.SUM and self.grid
        return "AddConstant" if is_sum else super().title(graph)

    def ordered(self, tensor: _Operand, constant: _Operand) -> tuple[_Operand, _Operand]:
        """Both in the order of the operator."""
        return (constant, tensor) if self.is_first else (tensor, constant)

    def grids(self, graph: Tensors) -> list[Codes]:
        if self.grid is None:
            raise TypeError(f"{self.output}: received a float constant, expected codes.")
        return list(self.ordered(graph.codes(self.inputs[0]), self.grid))

    def arrays(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        constant = self.constant.astype(np.int32) if self.grid else self.constant
        return self.ordered(inputs[0], constant)

    def write(self, writer: Writer) -> None:
        grid = (self.grid.scale, self.grid.zero_point) if self.grid else ()
        constant = writer.constant(f"{self.output}/constant", self.constant, *grid)
        codes = writer.graph.tensors[self.output].codes
        options = {} if codes is None or self.kind.selects else fused_activation(codes)
        inputs = self.ordered(writer.indices[self.inputs[0]], constant)
        writer.operator(self.kind.operator, inputs, self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Operators with a constant, but for those of places in a table."""
        is_place = operator.tensor(0).name in operator.progress.pending
        return not is_place and (operator.is_constant(0) or operator.is_constant(1))

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        kind, is_first = Pointwise(operator.name), operator.is_constant(0)
        index = 0 if is_first else 1
        codes = operator.selected_codes() if kind.selects else operator.fused_codes()
        grid, source = codes_of(operator.tensor(index)), operator.source_codes(1 - index)
        if not (grid is None) == (source is None) == (codes is None):
            raise NotUnderstoodError("it combines codes and float values")
        constant = operator.constant(index, "FLOAT32" if grid is None else "INT8")
        name = operator.source(1 - index)
        return cls((name,), operator.output.name, kind, constant, grid, is_first), codes

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

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return int(self.constant.nbytes)
