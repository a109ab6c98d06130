"""Rounding to a grid of `grid_table`; bits may be tensors."""

from collections.abc import Callable
from typing import Any, TypeAlias

from sat_tf.core.gradients import straight_through
from sat_tf.core.grid_table import Grid, find_grid, numbers_by_bits
from sat_tf.core.ranges import axes_within
from sat_tf.core.tensors import Tensor, in_float32, is_tensor, namespace

# A number of bits; or an integer tensor of it, so that it can change while a graph stays: a scalar,
# or one for each channel, of a shape that broadcasts to that of the values. Tensors are not
# checked: their value is known too late.
Bits: TypeAlias = int | Tensor


def round_half_up(x: Tensor) -> Tensor:
    """Rounds to the nearest integer, ties upwards: floor(x + 1/2).

    The only rounding of the package (Eq. 8 of the paper writes the bracket), and that of
    TensorFlow's FakeQuant kernels; `tf.round` sends ties to even numbers instead.

    The sum and, in front of it, the quotient of a value by its scale are floating-point numbers: a
    tie is what is one after that rounding. Half a step of a scale of 0.1 need not be one, and
    0.49999997, the largest float32 below a half, is taken for it.

    Args:
        x: a floating tensor of any shape.

    Returns:
        A tensor like `x` that holds integers.

    >>> import numpy as np
    >>> round_half_up(np.float32([-1.5, -0.5, 0.49999997, 0.5, 1.5])).numpy().tolist()
    [-1.0, 0.0, 1.0, 1.0, 2.0]
    """
    return namespace(x).floor(x + 0.5)


def levels(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of intervals a of a grid: a = 2^b - 1 (DoReFa), 2^b - 2 (narrow).

    Args:
        num_bits: bits b, 1 to 8; see `Bits`.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.

    Returns:
        The number of intervals between the lowest and the highest value of the grid: an integer,
        or a float32 tensor where the bits are one.

    Raises:
        ValueError: bits out of range, unknown grid, or a grid with a single value at these bits.

    >>> levels(4), levels(4, "narrow"), levels(8, "auto")
    (15, 14, 254)
    >>> import tensorflow as tf
    >>> float(levels(tf.constant(4)))
    15.0
    """
    return _look_up(num_bits, grid, lambda row, bits: row.top(bits))


def divisor(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of intervals in the unit interval, from bits and grid as in `levels`.

    >>> divisor(2, "rounded"), levels(2, "rounded")
    (4, 3)
    """
    return _look_up(num_bits, grid, lambda row, bits: row.divisor(bits))


def middle(num_bits: Bits, grid: str = "dorefa") -> Any:
    """The place of real 0 among the integers n of a grid, from bits and grid as in `levels`.

    >>> middle(2, "dorefa"), middle(2, "rounded"), middle(2, "nested")
    (1.5, 2.0, 1.5)
    """
    return _look_up(num_bits, grid, lambda row, bits: row.middle(bits))


def codes_per_unit(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Difference between the codes of n and n + 1, from bits and grid as in `levels`.

    >>> codes_per_unit(2, "dorefa"), codes_per_unit(2, "narrow")
    (2, 1)
    """
    return _look_up(num_bits, grid, lambda row, bits: row.codes_per_unit)


def rounding(num_bits: Bits, grid: str = "dorefa") -> Callable[[Tensor], Tensor]:
    """How a grid rounds, from bits and grid as in `levels`."""
    row = find_grid(grid, 8 if is_tensor(num_bits) else num_bits)
    return {"half up": round_half_up, "down": lambda x: namespace(x).floor(x)}[row.rounding]


def _look_up(num_bits: Bits, grid: str, number: Callable[[Grid, int], float]) -> Any:
    if not is_tensor(num_bits):
        return number(find_grid(grid, num_bits), num_bits)
    # A table holds them, because powers of tensors are not exact everywhere.
    n = namespace(num_bits)
    return n.take(n.constant(numbers_by_bits(grid, number), "float32"), num_bits, axis=0)


def grid_units(values: Tensor, maximum: Tensor, num_bits: Bits, grid: str) -> Tensor:
    """Integers n = 0..top of a grid on [-maximum, maximum], as float32; NaN stays NaN.

    Args:
        values: any shape, float32; those beyond the maximum are clipped.
        maximum: positive, float32; of a shape that broadcasts to that of the values.
        num_bits: see `levels`.
        grid: see there.
    """
    n = namespace(values)
    half, top = divisor(num_bits, grid) / 2.0, levels(num_bits, grid)
    rounded = rounding(num_bits, grid)
    position = values * (half / maximum) + half
    if rounded is round_half_up and not is_tensor(num_bits):
        # On a range as long as it has intervals, the kernel's scale is exactly 1: it clips and
        # rounds to integers.
        narrow = top == 2**num_bits - 2
        units = n.fake_quant(position, 0.0, float(top), num_bits, narrow_range=narrow)
        if units is not None:
            return units
    return n.clip(rounded(position), 0.0, top if is_tensor(top) else float(top))


def round_to_largest(x: Tensor, num_bits: Bits, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """Rounds to the narrow grid that ends at the largest magnitude, straight-through.

    Forward: q = M · round_half_up(a x / (2 M)) · 2 / a, with a = 2^b - 2 and M the largest |x| that
    is finite. Backward: dq/dx = 1.

    Args:
        x: float32. NaN stays NaN, infinite values become M or -M.
        num_bits: 2 to 8; see `Bits`.
        range_axes: axes that keep an M of their own; () is one for all.

    >>> import numpy as np
    >>> round_to_largest(np.float32([-3.0, -0.4, 1.6]), 3).numpy().tolist()
    [-3.0, 0.0, 2.0]
    """
    n = namespace(x)
    axes = tuple(axes_within(len(x.shape), range_axes))
    finite = n.where(n.isfinite(x), n.abs(x), 0.0)
    largest = n.max(finite, axis=axes, keepdims=True)
    half = in_float32(n, levels(num_bits, "narrow")) / 2.0
    unit = n.where(largest > 0.0, largest, 1.0) / half
    return straight_through(n.clip(round_half_up(x / unit), -half, half) * unit, x)


def quantize_unit(x: Tensor, levels: int) -> Tensor:
    """The paper's q_k: rounds the unit interval to n / a, straight-through (Eq. 8 and 12).

    Forward: q = round_half_up(a x) / a. Backward: dq/dx = 1.

    Computed in float32, returned in the type of `x`. NaN stays NaN, in its own element only.

    Args:
        x: values in [0, 1], any shape; float32, float16 or bfloat16.
        levels: the number of intervals a, at least 1 (see `levels`).

    Returns:
        A tensor like `x` on the grid 0, 1/a, ..., 1.

    Raises:
        ValueError: fewer than one interval.

    >>> quantize_unit([0.0, 0.4, 0.5, 1.0], 2).numpy().tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise ValueError(f"levels={levels!r}: expected an integer of at least 1.")
    n = namespace(x)
    x = n.tensor(x)
    codes = round_half_up(n.cast(x, "float32") * float(levels))
    return straight_through(n.cast(codes / float(levels), x.dtype), x)
