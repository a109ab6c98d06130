"""Grids: which real values a quantized number can take, and the one rounding of the package.

A grid divides the unit interval into steps. The unit value u in [0, 1] becomes the integer

    n = min(rounding(divisor * u), top)

and stands for n / divisor. Weights live on [-1, 1], so their value is Q = 2 n / divisor - 1, and
their stored integer (their *code*) is the smallest integer multiple that represents Q exactly:

    grid      divisor    top        code          Q = code * scale      2-bit values
    dorefa    2^b - 1    2^b - 1    2 n - a       scale = 1 / a         -1, -1/3, 1/3, 1
    narrow    2^b - 2    2^b - 2    n - a / 2     scale = 2 / a         -1, 0, 1
    rounded   2^b        2^b - 1    n - 2^(b-1)   scale = 2^(1-b)       -1, -1/2, 0, 1/2
    modified  2^b        2^b - 1    n - 2^(b-1)   scale = 2^(1-b)       -1, -1/2, 0, 1/2  (floor)
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from sat_tf.core.custom_gradient import straight_through
from sat_tf.messages import did_you_mean

# A number of bits; or an integer scalar tensor of it, so that it can change while a graph stays.
# Tensors are not checked: their value is known too late.
Bits: TypeAlias = int | tf.Tensor


def round_half_up(x: tf.Tensor) -> tf.Tensor:
    """Rounds to the nearest integer, ties upwards: floor(x + 1/2).

    The only rounding of the package (Eq. 8 of the paper writes the bracket), and that of
    TensorFlow's FakeQuant kernels; `tf.round` sends ties to even numbers instead.

    Args:
        x: a floating tensor of any shape.

    Returns:
        A tensor like `x` that holds integers.

    >>> round_half_up(tf.constant([-1.5, -0.5, 0.5, 1.5])).numpy().tolist()
    [-1.0, 0.0, 1.0, 2.0]
    """
    return tf.floor(x + 0.5)


@dataclasses.dataclass(frozen=True)
class Grid:
    """One row of the table of grids.

    Attributes:
        name: the name users write.
        fewest_bits: the smallest number of bits that leaves at least one step.
        divisor: number of steps in the unit interval, from the number of bits.
        top: largest integer n, from the number of bits.
        rounding: how divisor * u becomes an integer.
        codes_per_unit: how many codes lie between n and n + 1.
    """

    name: str
    fewest_bits: int
    divisor: Callable[[int], int]
    top: Callable[[int], int]
    rounding: Callable[[tf.Tensor], tf.Tensor]
    codes_per_unit: int

    def scale(self, num_bits: int) -> float:
        """Real value of one weight code, where weights span [-1, 1]."""
        return 2.0 / (self.divisor(num_bits) * self.codes_per_unit)

    def code_offset(self, num_bits: int) -> int:
        """What to subtract from codes_per_unit * n to get the code of a weight."""
        return self.divisor(num_bits) * self.codes_per_unit // 2

    def largest_code(self, num_bits: int) -> int:
        """The largest magnitude among the weight codes of this grid."""
        offset = self.code_offset(num_bits)
        return max(offset, self.codes_per_unit * self.top(num_bits) - offset)


GRIDS: dict[str, Grid] = {
    grid.name: grid
    for grid in (
        Grid(
            "dorefa",
            fewest_bits=1,
            divisor=lambda bits: 2**bits - 1,
            top=lambda bits: 2**bits - 1,
            rounding=round_half_up,
            codes_per_unit=2,
        ),
        Grid(
            "narrow",
            fewest_bits=2,
            divisor=lambda bits: 2**bits - 2,
            top=lambda bits: 2**bits - 2,
            rounding=round_half_up,
            codes_per_unit=1,
        ),
        Grid(
            "rounded",
            fewest_bits=2,
            divisor=lambda bits: 2**bits,
            top=lambda bits: 2**bits - 1,
            rounding=round_half_up,
            codes_per_unit=1,
        ),
        Grid(
            "modified",
            fewest_bits=2,
            divisor=lambda bits: 2**bits,
            top=lambda bits: 2**bits - 1,
            rounding=tf.floor,
            codes_per_unit=1,
        ),
    )
}


def find_grid(grid: str, num_bits: int) -> Grid:
    """Returns the row for `grid`; "auto" is DoReFa up to 7 bits and the narrow grid at 8.

    DoReFa's 8-bit codes reach 255 and do not fit int8; its codes up to 7 bits reach 127 and do.

    Raises:
        ValueError: the grid is unknown, or has no step at `num_bits`.
    """
    check_bits(num_bits)
    name = grid
    if grid == "auto":
        name = "dorefa" if num_bits <= 7 else "narrow"
    if name not in GRIDS:
        hint = did_you_mean(str(grid), ["auto", *GRIDS])
        raise ValueError(f"grid={grid!r} is not a grid. {hint}")
    row = GRIDS[name]
    if num_bits < row.fewest_bits:
        raise ValueError(
            f"grid={grid!r} at num_bits={num_bits} has no step; give it at least "
            f"{row.fewest_bits} bits, or use grid='dorefa'."
        )
    return row


def levels(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of steps a of a grid: a = 2^b - 1 (DoReFa), 2^b - 2 (narrow).

    Args:
        num_bits: bits b, 1 to 8; see `Bits`.
        grid: "dorefa", "narrow", "rounded", "modified", or "auto" (see `find_grid`).

    Returns:
        The number of steps between the lowest and the highest value of the grid: an integer, or a
        float32 scalar where the bits are a tensor.

    Raises:
        ValueError: bits out of range, unknown grid, or a grid without a step at these bits.

    >>> levels(4), levels(4, "narrow"), levels(8, "auto")
    (15, 14, 254)
    >>> float(levels(tf.constant(4)))
    15.0
    """
    return _look_up(num_bits, grid, lambda row, bits: row.top(bits))


def divisor(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of steps in the unit interval, from bits and grid as in `levels`.

    >>> divisor(2, "rounded"), levels(2, "rounded")
    (4, 3)
    """
    return _look_up(num_bits, grid, lambda row, bits: row.divisor(bits))


def rounding(num_bits: Bits, grid: str = "dorefa") -> Callable[[tf.Tensor], tf.Tensor]:
    """How a grid rounds, from bits and grid as in `levels`."""
    return find_grid(grid, 8 if tf.is_tensor(num_bits) else num_bits).rounding


def _look_up(num_bits: Bits, grid: str, number: Callable[[Grid, int], int]) -> Any:
    if not tf.is_tensor(num_bits):
        return number(find_grid(grid, num_bits), num_bits)
    fewest = 1 if grid == "auto" else find_grid(grid, 8).fewest_bits
    # From a table, because powers of tensors are not exact everywhere.
    table = [max(bits, fewest) for bits in range(9)]
    numbers = [float(number(find_grid(grid, bits), bits)) for bits in table]
    return tf.gather(tf.constant(numbers), num_bits)


def check_bits(num_bits: int) -> None:
    """Raises ValueError unless `num_bits` is an integer from 1 to 8."""
    if isinstance(num_bits, bool) or not isinstance(num_bits, int) or not 1 <= num_bits <= 8:
        raise ValueError(f"num_bits={num_bits!r}: expected an integer from 1 to 8.")


def quantize_unit(x: tf.Tensor, levels: int) -> tf.Tensor:
    """The paper's q_k: rounds the unit interval to n / a, straight-through (Eq. 8 and 12).

    Forward: q = round_half_up(a x) / a. Backward: dq/dx = 1.

    Computed in float32, returned in the type of `x`. NaN stays NaN, in its own element only.

    Args:
        x: values in [0, 1], any shape; float32, float16 or bfloat16.
        levels: the number of steps a, at least 1 (see `levels`).

    Returns:
        A tensor like `x` on the grid 0, 1/a, ..., 1.

    Raises:
        ValueError: fewer than one step.

    >>> quantize_unit(tf.constant([0.0, 0.4, 0.5, 1.0]), 2).numpy().tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise ValueError(f"levels={levels!r}: expected an integer of at least 1.")

    x = tf.convert_to_tensor(x)
    codes = round_half_up(tf.cast(x, tf.float32) * float(levels))
    return straight_through(tf.cast(codes / float(levels), x.dtype), x)
