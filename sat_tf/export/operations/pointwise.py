"""Operations of two values: their arithmetic on codes, a row each, and those with a constant."""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.kernels.xnnpack import product_multiplier
from sat_tf.export.operations.operation import (
    ROUNDED_ONCE,
    SELECTED,
    Basis,
    Made,
    Operation,
    Portability,
    enumerated,
    stored_codes,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView, codes_of
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Operator, Writer, fused_activation

_Operand = TypeVar("_Operand")
SUMS_ALIKE = "integers with multipliers of 20 bits, rounded half up, in all of XNNPACK's kernels"
# XNNPACK leaves a sum to other kernels, with another rounding, where a scale of what it adds is
# less than 2^-10 of its own. A summand of 2^-9 still counts hundredths of an output code.
SMALLEST_SUMMAND = 2.0**-10
COARSE_SUMMAND = 2.0**-9
# The same holds where such a scale is this many times its own.
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


@dataclasses.dataclass(frozen=True)
class OnCodes:
    """The arithmetic of a kind of pair on codes: a row for each."""

    # Why its kernel does not take the grids of its inputs and its output, with the fix.
    problem: Callable[[Sequence[Codes], Codes], str | None]
    # Stored integers made of those of the inputs, on these grids, by these kernels.
    stored: Callable[[Sequence[np.ndarray], Sequence[Codes], Codes, KernelSet], np.ndarray]
    # The processors that give it its codes of x86, by the grids.
    portability: Callable[[Sequence[Codes], Codes], Portability]
    takes_summands: bool = False  # Its kernel adds, and takes what it reads as `summand` makes it.
    title: str = ""  # Its name in the listing of a graph; "" for that of its operator.


# -- sums and differences --------------------------------------------------------------------------


def _sum_problem(summands: Sequence[Codes], output: Codes) -> str | None:
    largest = max(float(codes.scale / output.scale) for codes in summands)
    if largest < _LARGEST_SUMMAND:
        return None
    return (
        f"received a sum with scales {largest:.4g} times smaller than those of a tensor it adds, "
        f"expected less than {_LARGEST_SUMMAND:g} times; its clipping level is much too small: "
        "call sat_tf.calibrate, or train longer."
    )


def _summing(*, difference: bool, title: str = "") -> OnCodes:
    """The row of a sum, or of a difference."""

    def stored(
        summands: Sequence[np.ndarray], inputs: Sequence[Codes], output: Codes, kernels: KernelSet
    ) -> np.ndarray:
        codes, scales = _from_zero(summands, inputs), [grid.scale for grid in inputs]
        made = kernels.summed(codes, scales, output.scale, difference=difference)
        return stored_codes(made, output)

    return OnCodes(
        problem=_sum_problem,
        stored=stored,
        portability=lambda inputs, output: Portability(Basis.RULE, SUMS_ALIKE),
        takes_summands=True,
        title=title,
    )


# -- products --------------------------------------------------------------------------------------


def _product_problem(inputs: Sequence[Codes], output: Codes) -> str | None:
    multiplier = float(product_multiplier(inputs[0].scale, inputs[1].scale, output.scale))
    if _SMALLEST_PRODUCT <= multiplier < _LARGEST_SUMMAND:
        return None
    return (
        f"received a product whose codes are worth {multiplier:.4g} output codes, expected at "
        f"least {_SMALLEST_PRODUCT:.4g} and less than {_LARGEST_SUMMAND:g}; a clipping level is "
        "far from its values: call sat_tf.calibrate, or train longer."
    )


def _rounded_product(
    factors: Sequence[np.ndarray], inputs: Sequence[Codes], output: Codes, kernels: KernelSet
) -> np.ndarray:
    one, other = _from_zero(factors, inputs)
    scales = inputs[0].scale, inputs[1].scale
    return stored_codes(kernels.product(one * other, scales, output.scale), output)


def _product_portability(inputs: Sequence[Codes], output: Codes) -> Portability:
    """Every product of two codes is known."""
    scales = inputs[0].scale, inputs[1].scale

    def codes(kernels: KernelSet, products: np.ndarray) -> np.ndarray:
        return stored_codes(kernels.product(products, scales, output.scale), output)

    products = _products(
        *((grid.lowest - grid.zero_point, grid.highest - grid.zero_point) for grid in inputs)
    )
    return enumerated(products, codes, "products", total=products.size)


@functools.lru_cache(maxsize=16)
def _products(first: tuple[int, int], second: tuple[int, int]) -> np.ndarray:
    """Every different product of two codes, from their ends."""
    one, other = (np.arange(low, high + 1) for low, high in (first, second))
    return np.unique(np.multiply.outer(one, other))


def _selecting(kind: Pointwise) -> OnCodes:
    """The row of a kind that selects one of two values, all on one grid."""
    return OnCodes(
        problem=lambda inputs, output: None,
        stored=lambda tensors, inputs, output, kernels: kind.on_arrays(*tensors),
        portability=lambda inputs, output: Portability(Basis.RULE, SELECTED),
    )


def _from_zero(tensors: Sequence[np.ndarray], grids: Sequence[Codes]) -> list[np.ndarray]:
    """Codes, stored - zero_point, of stored integers."""
    return [
        stored.astype(np.int64) - grid.zero_point
        for stored, grid in zip(tensors, grids, strict=True)
    ]


# Every kind of pair has a row: one that is forgotten is a KeyError.
ON_CODES: Mapping[Pointwise, OnCodes] = {
    Pointwise.SUM: _summing(difference=False, title="Add"),
    Pointwise.DIFFERENCE: _summing(difference=True),
    Pointwise.PRODUCT: OnCodes(
        _product_problem,
        _rounded_product,
        _product_portability,
    ),
    Pointwise.MAXIMUM: _selecting(Pointwise.MAXIMUM),
    Pointwise.MINIMUM: _selecting(Pointwise.MINIMUM),
}


@dataclasses.dataclass(frozen=True)
class OfTwo(Operation):
    """An operation of two tensors, both codes or both float; axes of size 1 are broadcast."""

    kind: Pointwise  # Which one; what it does with codes is its row of `ON_CODES`.

    reads = tuple(kind.value for kind in Pointwise)
    same_in_float_because = ROUNDED_ONCE
    rounds = True
    fuses = True

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind.value,)

    def title(self, graph: Tensors) -> str:
        if self.is_float(graph):
            return f"float {self.kind.value}"
        return ON_CODES[self.kind].title or self.kind.value

    def grids(self, graph: Tensors) -> list[Codes]:
        """The grids of both."""
        return [graph.codes(name) for name in self.inputs]

    def arrays(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The values, or the stored integers, of both."""
        return inputs

    def scale_problem(self, graph: Tensors) -> str | None:
        if self.is_float(graph):
            return None
        return ON_CODES[self.kind].problem(self.grids(graph), graph.codes(self.output))

    def portability(self, graph: Tensors) -> Portability:
        if self.is_float(graph):
            return super().portability(graph)
        return ON_CODES[self.kind].portability(self.grids(graph), graph.codes(self.output))

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        arrays = self.arrays(inputs)
        if self.is_float(graph):
            return self.kind.on_arrays(*arrays).astype(np.float32)
        output = graph.codes(self.output)
        return ON_CODES[self.kind].stored(arrays, self.grids(graph), output, graph.kernels)


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
        codes = writer.tensors[self.output].codes
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
