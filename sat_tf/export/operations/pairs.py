"""Operations of two tensors, value by value: ADD, SUB, MUL, MAXIMUM and MINIMUM, a row each."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.kernels.xnnpack import product_multiplier
from sat_tf.export.operations.builder import GraphBuilder, OperationDraft, Range, Shape
from sat_tf.export.operations.linear import identity
from sat_tf.export.operations.operation import (
    ROUNDED_ONCE,
    SELECTED,
    Basis,
    Made,
    Portability,
    enumerated,
    stored_codes,
)
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors, range_codes
from sat_tf.export.tflite.writer import Writer, fused_activation

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


@dataclasses.dataclass(frozen=True)
class Pair(OperationDraft):
    """An operation of two tensors, both codes or both float; axes of size 1 are broadcast.

    A draft may have more tensors, but for a difference.
    """

    kind: Pointwise  # Which one; what it does with codes is its row of `ON_CODES`.

    keeps_stream = True
    reads = tuple(kind.value for kind in Pointwise)
    same_in_float_because = ROUNDED_ONCE
    rounds = True
    mixes = True
    fuses = True

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind.value,)

    @property
    def selects(self) -> bool:
        return self.kind.selects

    def _grids(self, graph: Tensors) -> "tuple[Sequence[Codes], Codes]":
        return [graph.codes(name) for name in self.inputs], graph.codes(self.output)

    def placed(
        self,
        builder: GraphBuilder,
        inputs: tuple[str, ...],
        codes: Codes | None,
        name: str,
        shape: Shape,
    ) -> str:
        """Adds operations of two tensors at a time; the codes of all but the last cannot saturate.

        Those of what selects values are the same between as at the end.
        """
        first, *others, last = inputs
        for other in others:
            one, two = builder.codes(first), builder.codes(other)
            sizes = np.broadcast_shapes(builder.shape(first), builder.shape(other))
            between = codes if self.keeps_grid else None
            if not self.keeps_grid and one is not None and two is not None:
                between = range_codes(*_range(self.kind, one.real_range, two.real_range))
            read = self._taken(builder, (first, other), between)
            partial = self._named(read, builder.between(f"{name}_partial"))
            first = builder.add(partial, sizes, between)
        read = self._taken(builder, (first, last), codes)
        return builder.add(self._named(read, name), shape, codes)

    def _taken(
        self, builder: GraphBuilder, inputs: tuple[str, ...], codes: Codes | None
    ) -> tuple[str, ...]:
        """The tensors, as the kernel that makes these codes of them takes them."""
        if codes is None or not ON_CODES[self.kind].takes_summands:
            return inputs
        return tuple(summand(builder, source, codes) for source in inputs)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        """See `Draft`: of one tensor after the other."""
        ranges = [codes_of(source).real_range for source in self.inputs]
        return functools.reduce(functools.partial(_range, self.kind), ranges)

    def scale_problem(self, graph: Tensors) -> str | None:
        return ON_CODES[self.kind].problem(*self._grids(graph))

    def portability(self, graph: Tensors) -> Portability:
        """See `Operation`; for codes, its row knows it."""
        if self.is_float(graph):
            return super().portability(graph)
        return ON_CODES[self.kind].portability(*self._grids(graph))

    def title(self, graph: Tensors) -> str:
        title = ON_CODES[self.kind].title
        return title or f"{'float ' if self.is_float(graph) else ''}{self.kind.value}"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """The row's function of stored integers; the rounding is that of the kernels."""
        if self.is_float(graph):
            return self.kind.on_arrays(*inputs).astype(np.float32)
        return ON_CODES[self.kind].stored(inputs, *self._grids(graph), graph.kernels)

    def write(self, writer: Writer) -> None:
        fused = fused_activation(writer.tensors[self.output].codes)
        options = {} if self.kind.selects else fused
        writer.operator(self.kind.operator, self.inputs, self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Two tensors that operators have made: neither a constant nor places in a table."""
        pending = operator.tensor(0).name in operator.progress.pending
        return not pending and not operator.is_constant(1)

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


def _range(kind: Pointwise, first: Range, second: Range) -> Range:
    """The range of what two ranges make: each kind is monotonic in either, so that ends make it."""
    ends = kind.on_arrays(np.reshape(first, (2, 1)), np.asarray(second))
    return float(np.min(ends)), float(np.max(ends))


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


def summand(builder: GraphBuilder, source: str, output: Codes) -> str:
    """The tensor itself, or one on a larger scale where the kernel of its sum needs that."""
    codes = builder.codes(source)
    if codes is None or codes.scale / output.scale >= SMALLEST_SUMMAND:
        return source
    coarse = Codes(np.float32(COARSE_SUMMAND * output.scale), 0)
    name, shape = builder.between(f"{source}_coarse"), builder.shape(source)
    return identity(source, shape[-1]).as_codes(builder, coarse, name, shape)


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
