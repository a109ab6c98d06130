"""Operations of two tensors, value by value, beside their sum; in NumPy as LiteRT's kernels do."""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.arithmetic import stored_codes, summand_multipliers
from sat_tf.export.operations.graph import Codes, Operation


class PairKind(enum.Enum):
    """Which operation, by its name in the file."""

    DIFFERENCE = "SUB"
    PRODUCT = "MUL"
    MAXIMUM = "MAXIMUM"
    MINIMUM = "MINIMUM"

    @property
    def keeps_grid(self) -> bool:
        """Whether it picks codes: its inputs and its output then have the same ones."""
        return self in (PairKind.MAXIMUM, PairKind.MINIMUM)


@dataclasses.dataclass(frozen=True)
class Pair(Operation):
    """An operation of two tensors, both codes or both float; axes of size 1 are stretched.

    Attributes:
        kind: which one.
    """

    kind: PairKind


def on_floats(kind: PairKind, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The operation on real values, or on codes that it only picks."""
    return np.asarray(_FUNCTIONS[kind](first, second))


def on_codes(
    kind: PairKind,
    first: np.ndarray,
    second: np.ndarray,
    inputs: tuple[Codes, Codes],
    output: Codes,
) -> np.ndarray:
    """The operation on stored integers.

    A difference is computed as a sum is, with a second multiplier below zero: 20 bits, round half
    up. A product is exact, then multiplied once in float32, and rounded half to even.
    """
    if kind.keeps_grid:
        return on_floats(kind, first, second)
    one, other = (
        stored.astype(np.int64) - codes.zero_point
        for stored, codes in zip((first, second), inputs, strict=True)
    )
    if kind is PairKind.PRODUCT:
        products = (one * other).astype(np.float32) * product_multiplier(inputs, output)
        return stored_codes(np.rint(products), output)
    multipliers, shift = summand_multipliers(inputs, output)
    total = one * multipliers[0] - other * multipliers[1] + (1 << (shift - 1))
    return stored_codes(total >> shift, output)


def product_multiplier(inputs: tuple[Codes, Codes], output: Codes) -> np.float32:
    """Output codes of a product of two codes of 1."""
    return np.float32(np.float32(inputs[0].scale * inputs[1].scale) / output.scale)


_FUNCTIONS: dict[PairKind, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    PairKind.DIFFERENCE: np.subtract,
    PairKind.PRODUCT: np.multiply,
    PairKind.MAXIMUM: np.maximum,
    PairKind.MINIMUM: np.minimum,
}
