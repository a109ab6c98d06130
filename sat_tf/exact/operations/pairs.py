"""Operations on two tensors, or on one and a constant."""

import dataclasses
import enum
import functools
import math
from collections.abc import Sequence
from typing import Self, TypeVar

import numpy as np

from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.kernels.xnnpack import product_multiplier
from sat_tf.exact.operations import operation as shared
from sat_tf.exact.operations.operation import Basis, Constant, Made, Portability, stored_codes
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, codes_of
from sat_tf.exact.tflite.tensors import WIDE, Codes, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer, fused_activation

_Operand = TypeVar("_Operand")
SUMS_ALIKE = "integers with multipliers of 20 bits, rounded half up, in all of XNNPACK's kernels"
# XNNPACK leaves a sum to other kernels, with another rounding, where the scale of a summand is
# this many times its own.
_LARGEST_SUMMAND = 256.0
# XNNPACK leaves products to kernels with another rounding where the codes of a product are worth
# less than this many output codes, or `_LARGEST_SUMMAND` or more.
_SMALLEST_PRODUCT = 2.0**-16
# The same for codes of 16 bits, whose products fill 31 bits; and the factor between scales of
# summands, beyond which kernels would shift the smaller one away.
_WIDE_PRODUCTS, _WIDEST = (2.0**-30, 1.0), 2.0**14


class Pointwise(enum.Enum):
    """An operation on two values, by the name of its operator in a file."""

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
        """Computes it on arrays, whose axes of size 1 are broadcast."""
        return np.asarray(_FUNCTIONS[self](first, second))


# Their kernels for 16 bits also have a form for powers of two, which files ask for by default.
_WITH_SHIFTS = (Pointwise.SUM, Pointwise.DIFFERENCE)
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
    """Computes stored integers from those of two tensors, rounded as the kernels do."""
    if kind.selects:
        return kind.on_arrays(*stored)
    left_codes, right_codes = (
        array.astype(np.int64) - grid.zero_point for array, grid in zip(stored, grids, strict=True)
    )
    left_scale, right_scale = (grid.scale for grid in grids)
    kernels = kernels.on(output.bits)
    if kind is Pointwise.PRODUCT:
        rounded = kernels.product(left_codes * right_codes, (left_scale, right_scale), output.scale)
    else:
        subtracts = kind is Pointwise.DIFFERENCE
        rounded = kernels.summed(
            [left_codes, right_codes], [left_scale, right_scale], output.scale, difference=subtracts
        )
    return stored_codes(rounded, output)


@functools.lru_cache(maxsize=16)
def _products(left_ends: tuple[int, int], right_ends: tuple[int, int]) -> np.ndarray:
    """Returns every distinct product of two codes, given the ends of their ranges."""
    left_codes, right_codes = (np.arange(low, high + 1) for low, high in (left_ends, right_ends))
    return np.unique(np.multiply.outer(left_codes, right_codes))


@dataclasses.dataclass(frozen=True)
class Pair(shared.Operation):
    """An operation on two values, both codes or both float; axes of size 1 are broadcast."""

    kind: Pointwise  # The operation on the two values.
    # The value that is no tensor, if any: float32, one number or one a channel; or int8 codes,
    # with the batch dimension.
    constant: Constant | None = None
    constant_is_first: bool = False

    reads = tuple(pointwise.value for pointwise in Pointwise)
    same_in_float_because = shared.ROUNDED_ONCE
    rounds = True
    takes_wide = True

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind.value,)

    def title(self, graph: Tensors) -> str:
        return f"float {self.kind.value}" if self.is_float(graph) else self.kind.value

    @property
    def on_rows(self) -> Self | None:
        return self if self.constant is None or self.constant.values.ndim < 2 else None

    @property
    def selects(self) -> bool:
        return self.constant is None and self.kind.selects

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`: codes of a constant are on the grid of the tensor, too."""
        return self.kind.selects and (self.constant is None or self.constant.grid is not None)

    def _with(self, tensors: Sequence[_Operand], constant: _Operand | None) -> list[_Operand]:
        """Puts the constant's item with the tensors' ones, in the order of the operator."""
        if constant is None:
            return [*tensors]
        return [constant, *tensors] if self.constant_is_first else [*tensors, constant]

    def _grids(self, graph: Tensors) -> list[Codes]:
        """Returns the grids of both values."""
        grid = None if self.constant is None else self.constant.grid
        return self._with([graph.codes(name) for name in self.inputs], grid)

    def scale_problem(self, graph: Tensors) -> str | None:
        if self.is_float(graph) or self.kind.selects:
            return None
        output, scales = graph.codes(self.output), [grid.scale for grid in self._grids(graph)]
        is_wide = output.bits == WIDE
        if is_wide and self.kind is not Pointwise.PRODUCT and max(scales) > _WIDEST * min(scales):
            return (
                f"received a sum of tensors whose scales are {max(scales):.4g} and "
                f"{min(scales):.4g}, expected them within a factor of {_WIDEST:g}, as kernels for "
                "16 bits do; call sat_tf.calibrate, or give the layer 8 bits."
            )
        if self.kind is Pointwise.PRODUCT:
            multiplier = float(product_multiplier(scales[0], scales[1], output.scale))
            smallest, largest = _WIDE_PRODUCTS if is_wide else (_SMALLEST_PRODUCT, _LARGEST_SUMMAND)
            if smallest <= multiplier < largest:
                return None
            return (
                f"received a product whose codes are worth {multiplier:.4g} output codes, expected "
                f"at least {smallest:.4g} and less than {largest:g}; a clipping "
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

    def takes_blocks(self, graph: Tensors) -> bool:
        """See `Operation`: kernels for sums of 16 bits take 16 values at once."""
        is_wide_sum = self.kind is Pointwise.SUM and WIDE in self.bits(graph)
        return is_wide_sum and bool(math.prod(graph.tensors[self.output].shape) % 16)

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """See `Operation`: every product of two codes is known."""
        if WIDE in self.bits(graph):
            return super().portability_of_codes(graph)
        if self.kind is not Pointwise.PRODUCT:
            return Portability(Basis.RULE, shared.SELECTED if self.kind.selects else SUMS_ALIKE)
        grids, output = self._grids(graph), graph.codes(self.output)
        scales = grids[0].scale, grids[1].scale
        left_ends, right_ends = (
            (grid.lowest - grid.zero_point, grid.highest - grid.zero_point) for grid in grids
        )
        products = _products(left_ends, right_ends)

        def codes(kernels: KernelSet, some: np.ndarray) -> np.ndarray:
            return stored_codes(kernels.product(some, scales, output.scale), output)

        return shared.enumerated(products, codes, "products", total=products.size)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        values = None if self.constant is None else self.constant.values
        if self.is_float(graph):
            return self.kind.on_arrays(*self._with(inputs, values)).astype(np.float32)
        codes = None if values is None else values.astype(np.int32)
        grids, output = self._grids(graph), graph.codes(self.output)
        return on_codes(self.kind, self._with(inputs, codes), grids, output, graph.kernels)

    def write(self, writer: Writer) -> None:
        index: int | str | None = None
        if self.constant is not None:
            grid = self.constant.grid
            if grid and self.kind.selects:
                grid = writer.graph.codes(self.output)  # which may have moved
            quantization = (grid.scale, grid.zero_point) if grid else ()
            name = f"{self.output}/constant"
            index = writer.constant(name, self.constant.values, *quantization)
        codes = writer.graph.tensors[self.output].codes
        options = {} if self.kind.selects else fused_activation(codes)
        if codes and codes.bits == WIDE and self.kind in _WITH_SHIFTS:
            options["potScaleInt16"] = False
        writer.operator(self.kind.operator, self._with(self.inputs, index), self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Accepts all operators except additions to places in a table."""
        return operator.tensor(0).name not in operator.progress.pending

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        pointwise = Pointwise(operator.name)
        is_wide = operator.output.type == "INT16" and pointwise in _WITH_SHIFTS
        if is_wide and operator.option("potScaleInt16"):
            raise NotUnderstoodError("its scales are powers of two, for which it has other kernels")
        codes = operator.selected_codes() if pointwise.selects else operator.fused_codes()
        names, constants = [], []
        for index in (0, 1):
            is_constant = operator.is_constant(index)
            tensor = operator.tensor(index)
            grid = codes_of(tensor) if is_constant else operator.source_codes(index)
            if (grid is None) != (codes is None):
                raise NotUnderstoodError("it combines codes and float values")
            if is_constant:
                values = operator.constant(index, "FLOAT32" if grid is None else f"INT{grid.bits}")
                constants.append(Constant(values, grid))
            else:
                names.append(operator.source(index))
        if not names:
            raise NotUnderstoodError("it reads constants alone")
        constant = constants[0] if constants else None
        if codes is not None and constant is not None and pointwise is Pointwise.MAXIMUM:
            codes = dataclasses.replace(codes, lowest=int(np.min(constant.values)))
        is_first = bool(constants) and operator.is_constant(0)
        return cls(tuple(names), operator.output.name, pointwise, constant, is_first), codes

    def bounded(self, codes: Codes) -> Codes | None:
        """See `Operation`: a maximum or minimum with one number is a bound."""
        if self.constant is None or self.constant.values.size != 1 or not self.kind.selects:
            return None
        bound = float(self.constant.values.item()) / codes.real_scale + codes.zero_point
        if not -128 <= bound <= 127:
            return None
        if self.kind is Pointwise.MAXIMUM:
            return dataclasses.replace(codes, lowest=int(np.rint(bound)))
        return dataclasses.replace(codes, highest=int(np.rint(bound)))

    @property
    def num_constants(self) -> int:
        return 0 if self.constant is None else 1

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return 0 if self.constant is None else int(self.constant.values.nbytes)
