"""Rounding to a grid of `sat_tf.core.grid_table`; bits may be tensors, as in `sat_tf.core.grid`."""

from collections.abc import Callable
from typing import Any

from keras import ops

from sat_tf.core.grid_table import Grid, find_grid, numbers_by_bits

# A number of bits; or an int32 tensor of one for each channel, of a shape that broadcasts to that
# of the values, which is not checked.
Bits = Any


def round_half_up(x: Any) -> Any:
    """Rounds to the nearest integer, ties upwards: floor(x + 1/2); see the one in TensorFlow."""
    return ops.floor(x + 0.5)


def levels(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of intervals a of a grid: a = 2^b - 1 (DoReFa), 2^b - 2 (narrow).

    Args:
        num_bits: bits b, 1 to 8; see `Bits`.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.

    Returns:
        An integer, or a float32 tensor where the bits are one.

    Raises:
        ValueError: bits out of range, unknown grid, or a grid with a single value at these bits.
    """
    return _look_up(num_bits, grid, lambda row, bits: row.top(bits))


def divisor(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of intervals in the unit interval, from bits and grid as in `levels`."""
    return _look_up(num_bits, grid, lambda row, bits: row.divisor(bits))


def middle(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Where real 0 lies among the integers n of a grid, from bits and grid as in `levels`."""
    return _look_up(num_bits, grid, lambda row, bits: row.middle(bits))


def rounding(num_bits: Bits, grid: str = "dorefa") -> Callable[[Any], Any]:
    """How a grid rounds, from bits and grid as in `levels`."""
    row = find_grid(grid, 8 if ops.is_tensor(num_bits) else num_bits)
    return {"half up": round_half_up, "down": ops.floor}[row.rounding]


def grid_units(values: Any, maximum: Any, num_bits: Bits, grid: str) -> Any:
    """Integers n = 0..top of a grid on [-maximum, maximum], as float32; NaN stays NaN.

    Args:
        values: any shape, float32; those beyond the maximum are clipped.
        maximum: positive, float32; of a shape that broadcasts to that of the values.
        num_bits: see `levels`.
        grid: see there.
    """
    half, top = divisor(num_bits, grid) / 2.0, levels(num_bits, grid)
    position = values * (half / maximum) + half
    return clip(rounding(num_bits, grid)(position), 0.0, top)


def clip(x: Any, lowest: Any, highest: Any) -> Any:
    """Clips to a range; NaN, which `ops.clip` may move to an end, stays NaN on all backends."""
    return ops.maximum(ops.minimum(x, highest), lowest)


def _look_up(num_bits: Bits, grid: str, number: Callable[[Grid, int], float]) -> Any:
    if not ops.is_tensor(num_bits):
        return number(find_grid(grid, num_bits), num_bits)
    # From a table, because powers of tensors are not exact everywhere.
    numbers = ops.convert_to_tensor(numbers_by_bits(grid, number), "float32")
    return ops.take(numbers, num_bits, axis=0)
