"""Operations of two tensors, value by value, beside their sum: SUB, MUL, MAXIMUM and MINIMUM."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.kernels.xnnpack import product_multiplier
from sat_tf.export.operations.add import (
    LARGEST_SUMMAND,
    SUMS_ALIKE,
    computed_sum,
    scaled_multipliers,
    sum_problem,
    summand,
)
from sat_tf.export.operations.builder import GraphBuilder, OperationDraft, Range, Shape
from sat_tf.export.operations.operation import (
    ROUNDED_ONCE,
    Basis,
    Constants,
    Made,
    Numbers,
    Portability,
    TfTensor,
    clipped,
    code_ends,
    enumerated,
    stored_codes,
    tf,
)
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors, range_codes
from sat_tf.export.tflite.writer import Writer, fused_activation

# XNNPACK leaves products to kernels with another rounding where codes are worth less than this, or
# `LARGEST_SUMMAND` or more, of an output code.
_SMALLEST_PRODUCT = 2.0**-16


@dataclasses.dataclass(frozen=True)
class Pair(OperationDraft):
    """An operation of two tensors, both codes or both float; axes of size 1 are broadcast.

    A draft may have more tensors, but for a difference.

    Attributes:
        kind: which one; no sum.
    """

    kind: Pointwise

    keeps_stream = True
    reads = ("SUB", "MUL", "MAXIMUM", "MINIMUM")
    same_in_float_because = ROUNDED_ONCE
    rounds = True
    mixes = True
    fuses = True

    @property
    def operators(self) -> tuple[str, ...]:
        """See `Operation`."""
        return (self.kind.value,)

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`."""
        return self.kind.selects

    @property
    def selects(self) -> bool:
        """See `Operation`."""
        return self.kind.selects

    def placed(
        self,
        builder: GraphBuilder,
        inputs: tuple[str, ...],
        codes: Codes | None,
        name: str,
        shape: Shape,
    ) -> str:
        """Adds operations of two tensors at a time; codes of products between cannot saturate."""
        first, *others, last = inputs
        for other in others:
            one, two = builder.codes(first), builder.codes(other)
            sizes = np.broadcast_shapes(builder.shape(first), builder.shape(other))
            between = codes if self.keeps_grid else None
            if not self.keeps_grid and one is not None and two is not None:
                ends = np.outer(one.real_range, two.real_range)
                between = range_codes(float(np.min(ends)), float(np.max(ends)))
            partial = self._named((first, other), builder.between(f"{name}_partial"))
            first = builder.add(partial, sizes, between)
        inputs = (first, last)
        if codes is not None and self.kind is Pointwise.DIFFERENCE:
            inputs = (summand(builder, first, codes), summand(builder, last, codes))
        return builder.add(self._named(inputs, name), shape, codes)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        """See `Draft`: of a difference or a product of tensors, one after the other."""
        (low, high), *others = (codes_of(source).real_range for source in self.inputs)
        for smallest, largest in others:
            if self.kind is Pointwise.DIFFERENCE:
                low, high = low - largest, high - smallest
            else:
                ends = np.outer((low, high), (smallest, largest))
                low, high = float(np.min(ends)), float(np.max(ends))
        return low, high

    def scale_problem(self, graph: Tensors) -> str | None:
        """See `Operation`."""
        inputs, output = [graph.codes(name) for name in self.inputs], graph.codes(self.output)
        if self.kind is Pointwise.DIFFERENCE:
            return sum_problem(inputs, output)
        if self.kind is not Pointwise.PRODUCT:
            return None
        multiplier = float(product_multiplier(inputs[0].scale, inputs[1].scale, output.scale))
        if _SMALLEST_PRODUCT <= multiplier < LARGEST_SUMMAND:
            return None
        return (
            f"received a product whose codes are worth {multiplier:.4g} output codes, expected at "
            f"least {_SMALLEST_PRODUCT:.4g} and less than {LARGEST_SUMMAND:g}; a clipping level is "
            "far from its values: call sat_tf.calibrate, or train longer."
        )

    def portability(self, graph: Tensors) -> Portability:
        """Every product of two codes is known; the rest as sums, or selected."""
        if self.is_float(graph) or self.keeps_grid:
            return super().portability(graph)
        if self.kind is not Pointwise.PRODUCT:
            return Portability(Basis.RULE, SUMS_ALIKE)
        inputs, output = [graph.codes(name) for name in self.inputs], graph.codes(self.output)
        scales = inputs[0].scale, inputs[1].scale

        def codes(kernels: KernelSet, products: np.ndarray) -> np.ndarray:
            return stored_codes(kernels.product(products, scales, output.scale), output)

        products = _products(*(_ends(grid) for grid in inputs))
        return enumerated(products, codes, "products", total=products.size)

    def title(self, graph: Tensors) -> str:
        """See `Operation`."""
        return f"{'float ' if self.is_float(graph) else ''}{self.kind.value}"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `on_codes`."""
        first, second = inputs
        if self.is_float(graph):
            return self.kind.on_arrays(first, second).astype(np.float32)
        one, other = (graph.codes(name) for name in self.inputs)
        codes = (one, other), graph.codes(self.output)
        return on_codes(self.kind, (first, second), *codes, graph.kernels)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        fused = fused_activation(writer.tensors[self.output].codes)
        options = {} if self.kind.selects else fused
        writer.operator(self.kind.operator, self.inputs, self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Two tensors, none of which is a constant."""
        return not operator.is_constant(1)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        kind = Pointwise(operator.name)
        codes = operator.codes() if kind.selects else operator.fused_codes()
        names = (operator.source(0), operator.source(1))
        if any((operator.source_codes(index) is None) != (codes is None) for index in (0, 1)):
            raise NotUnderstoodError("it combines codes and float values")
        if kind.selects:
            codes = operator.selected_codes()
        return cls(names, operator.output.name, kind), codes

    def numbers(self, graph: Tensors) -> Numbers:
        """Multipliers, and the ends of the codes."""
        if self.is_float(graph) or self.kind.selects:
            return {}
        output = graph.codes(self.output)
        one, other = (graph.codes(name) for name in self.inputs)
        if self.kind is Pointwise.PRODUCT:
            multiplier = product_multiplier(one.scale, other.scale, output.scale)
            return {"multiplier": multiplier, **code_ends(output)}
        multipliers = scaled_multipliers((one, other), output)
        return {"multipliers": multipliers * [1.0, -1.0], **code_ends(output)}

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        if self.is_float(graph) or self.kind.selects:
            return self.on_reals(graph, *inputs)
        if self.kind is Pointwise.PRODUCT:
            product = inputs[0] * inputs[1] * constants["multiplier"]
            return clipped(tf.round(product), constants)
        return computed_sum(constants, inputs)

    def on_reals(self, graph: Tensors, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        del graph
        return self.kind.on_tensors(*inputs)


def on_codes(
    kind: Pointwise,
    tensors: tuple[np.ndarray, np.ndarray],
    inputs: tuple[Codes, Codes],
    output: Codes,
    kernels: KernelSet,
) -> np.ndarray:
    """The operation on stored integers; the rounding is that of the kernels."""
    if kind.selects:
        return kind.on_arrays(*tensors)
    one, other = (
        stored.astype(np.int64) - codes.zero_point
        for stored, codes in zip(tensors, inputs, strict=True)
    )
    scales = inputs[0].scale, inputs[1].scale
    if kind is Pointwise.PRODUCT:
        return stored_codes(kernels.product(one * other, scales, output.scale), output)
    made = kernels.summed([one, other], [*scales], output.scale, difference=True)
    return stored_codes(made, output)


def _ends(codes: Codes) -> tuple[int, int]:
    return codes.lowest - codes.zero_point, codes.highest - codes.zero_point


@functools.lru_cache(maxsize=16)
@functools.cache
def _products(first: tuple[int, int], second: tuple[int, int]) -> np.ndarray:
    """Every different product of two codes, from their ends."""
    one, other = (np.arange(low, high + 1) for low, high in (first, second))
    return np.unique(np.multiply.outer(one, other))
