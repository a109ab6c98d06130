"""Grids: the table of the real values that a quantized number can take; rounding to them; ranges.

A grid divides the unit interval into equal intervals. The unit value u in [0, 1] becomes the
integer

    n = min(rounding(divisor * u), top)

and stands for n / divisor, or (n + 1/2) / divisor where the grid is centered. Weights live on
[-1, 1], so their value is Q = 2 n / divisor - 1 (centered: 2 (n + 1/2) / divisor - 1), and their
stored integer (their *code*) is Q / scale, with the largest scale that makes every code an integer:

    grid      divisor    top        code          Q = code * scale      2-bit values
    dorefa    2^b - 1    2^b - 1    2 n - a       scale = 1 / a         -1, -1/3, 1/3, 1
    narrow    2^b - 2    2^b - 2    n - a / 2     scale = 2 / a         -1, 0, 1
    rounded   2^b        2^b - 1    n - 2^(b-1)   scale = 2^(1-b)       -1, -1/2, 0, 1/2
    modified  2^b        2^b - 1    n - 2^(b-1)   scale = 2^(1-b)       -1, -1/2, 0, 1/2  (floor)
    nested    2^b        2^b - 1    2 n - top     scale = 2^-b          -3/4, -1/4, 1/4, 3/4
                                                                        (floor, centered)

The integers n of "nested" at b bits are the upper b bits of those at more bits.

A new grid is a row here: policies, figures and the exporter read the table; users read of it in
`BitPolicy` and in the glossary.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np

from sat_tf.core.gradients import straight_through
from sat_tf.core.tensor_ops import Tensor, in_float32, is_tensor, namespace
from sat_tf.messages import did_you_mean

# A range of weights whose size is smaller counts as one of zeros. The square of this is still a
# normal number, by which gradients divide.
SMALLEST_SIZE = 2.0**-63
# Below this nothing but zeros was observed: there is no range.
SMALLEST_RANGE = 1e-24
# A leaky rectifier of slope 0.2 has z half way between two integers at every even number of bits
# and every level: float32's rounding must not choose one of them anew in each step.
_TIE = 2.0**-10


def axes_within(rank: int, range_axes: Iterable[int]) -> list[int]:
    """The axes along which a range extends, in a tensor with a range for each of `range_axes`."""
    own_axes = {axis % rank for axis in range_axes}
    return [axis for axis in range(rank) if axis not in own_axes]


def range_shape(shape: Sequence[int], range_axes: Iterable[int]) -> list[int]:
    """The shape of one number for each range, of the tensor's rank."""
    within = axes_within(len(shape), range_axes)
    return [1 if axis in within else size for axis, size in enumerate(shape)]


def scale_and_zero(
    clipping_level: Any, levels: Any, lowest: Any, share: float, floor: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """The scale s and the number z of codes below zero of `asymmetric.quantize_offset`."""
    scale = ((1.0 + share) * clipping_level - lowest) / levels
    return scale, count_below_zero(share * clipping_level - lowest, scale, floor)


def ends_of_skew(clipping_level: Any, skew: Any, where: Callable[..., Any]) -> tuple[Any, Any]:
    """The ends of a range whose larger one, of either sign, is a clipping level α.

    [-(1 - κ) α, α] where κ > 0,  [-α, (1 + κ) α] where κ < 0,  [-α, α] where κ = 0
    """
    low = -clipping_level * where(skew > 0.0, 1.0 - skew, 1.0)
    high = clipping_level * where(skew < 0.0, 1.0 + skew, 1.0)
    return low, high


def count_below_zero(reach: Any, scale: Any, floor: Callable[[Any], Any]) -> Any:
    """The number z of codes that a range needs below zero, where half a code counts as one.

        z = floor(reach / s + 1/2 + 2^-10)

    The reach is how far the range goes below zero.

    >>> count_below_zero(2.4, 1.0, int), count_below_zero(0.2 * 5.2, 1.2 * 5.2 / 15, int)
    (2, 3)
    """
    return floor(reach / scale + (0.5 + _TIE))


def wide_scale(lowest: Any, highest: Any, maximum: Callable[[Any, Any], Any]) -> Any:
    """The scale of codes of int16 around 0 for a range that holds zero: s = max(-l, h) / 32767."""
    return maximum(-lowest, highest) / LARGEST_INT16


def scale_and_zero_point(lowest: Any, highest: Any, rint: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The scale of 256 codes for a range that holds zero, and the stored code of real 0.

        s = (highest - lowest) / 255,  z = clip(round(-128 - lowest / s), -128, 127)

    Both ends are float64, and `SMALLEST_RANGE` apart; `rint` rounds ties to even.
    """
    scale = (highest - lowest) / 255.0
    zero_point = rint(-128.0 - lowest / scale)
    return scale, zero_point


def observed_ends(scale: Any, zero_point: int) -> tuple[np.float32, np.float32] | None:
    """The ends of an observed range for which `scale_and_zero_point` gives this grid, bit for bit.

    None where no float32 numbers near by give this scale, as happens where one of them is 0.

    >>> [float(end) for end in observed_ends(np.float32(0.5), -126) or ()]
    [-1.0, 126.5]
    """
    scale = np.float32(scale)
    ends = [np.float32((end - zero_point) * np.float64(scale)) for end in (-128, 127)]
    # Each end and the nearest float32 numbers on both sides; 0 alone.
    near = [
        [np.float32(end + np.float32(units) * np.spacing(end)) for units in (0, 1, -1, 2, -2)]
        if end
        else [end]
        for end in ends
    ]
    for low, high in itertools.product(*near):
        pair = scale_and_zero_point(np.float64(low), np.float64(high), np.rint)
        if (np.float32(pair[0]), int(pair[1])) == (scale, zero_point):
            return low, high
    return None


# At fewer bits the highest code of two's complement is 0.
FEWEST_SIGNED_BITS = 2
# Magnitude of the largest code that int8 holds both ways.
LARGEST_INT8 = 127
# The bits of activations of int16, whose zero point is 0: those without a sign have half the codes.
WIDE_BITS = 16
LARGEST_INT16 = 32767


@dataclasses.dataclass(frozen=True)
class Grid:
    """One row of the table of grids, whose divisor and top are 2^b less a constant."""

    name: str  # The name users write.
    fewest_bits: int  # The smallest number of bits that leaves at least two values.
    # The unit interval has 2^b - divisor_less intervals, and the largest integer n is
    # 2^b - top_less.
    divisor_less: int
    top_less: int
    codes_per_unit: int  # Difference between the codes of n and n + 1.
    # The rounding of divisor * u to an integer: to the nearest, ties up; or down.
    rounding: Literal["half up", "down"] = "half up"
    centered: bool = False  # Whether n stands for n + 1/2, the middle of what is rounded to n.
    # The warnings, by the number of bits; the one of None holds at any.
    cautions: Mapping[int | None, str] = dataclasses.field(default_factory=dict)

    def divisor(self, num_bits: int) -> int:
        """Number of intervals in the unit interval."""
        return 2**num_bits - self.divisor_less

    def top(self, num_bits: int) -> int:
        """Largest integer n."""
        return 2**num_bits - self.top_less

    def scale(self, num_bits: int) -> float:
        """Real value of one weight code, where weights span [-1, 1]."""
        return 2.0 / (self.divisor(num_bits) * self.codes_per_unit)

    def code_offset(self, num_bits: int) -> int:
        """The number subtracted from codes_per_unit * n to get the code of a weight."""
        return int(self.middle(num_bits) * self.codes_per_unit)

    def middle(self, num_bits: int) -> float:
        """The place of real 0 among the integers n."""
        return (self.divisor(num_bits) - self.centered) / 2.0

    def largest_code(self, num_bits: int) -> int:
        """The largest magnitude among the weight codes of this grid."""
        low, high = self.code_ends(num_bits)
        return max(-low, high)

    def code_ends(self, num_bits: int) -> tuple[int, int]:
        """The smallest and the largest of the weight codes of this grid."""
        offset = self.code_offset(num_bits)
        return -offset, self.codes_per_unit * self.top(num_bits) - offset

    def fits_int8(self, num_bits: int) -> bool:
        """Whether int8 holds every weight code, its negative included."""
        return self.largest_code(num_bits) <= LARGEST_INT8


GRIDS: dict[str, Grid] = {
    grid.name: grid
    for grid in (
        Grid("dorefa", fewest_bits=1, divisor_less=1, top_less=1, codes_per_unit=2),
        Grid(
            "narrow",
            fewest_bits=2,
            divisor_less=2,
            top_less=2,
            codes_per_unit=1,
            cautions={
                2: "weight_grid='narrow' at 2 bits is ternary: after division by the maximum "
                "nearly every weight is 0, and training diverged in experiments; "
                "weight_grid='rounded' stores 2 bits without that"
            },
        ),
        Grid("rounded", fewest_bits=2, divisor_less=0, top_less=1, codes_per_unit=1),
        Grid(
            "modified",
            fewest_bits=2,
            divisor_less=0,
            top_less=1,
            codes_per_unit=1,
            rounding="down",
            cautions={
                None: "weight_grid='modified' rounds down, which biases every weight by half an "
                "interval; it exists to reproduce the authors' released code and trains badly at "
                "2 bits"
            },
        ),
        Grid(
            "nested",
            fewest_bits=1,
            divisor_less=0,
            top_less=1,
            codes_per_unit=2,
            rounding="down",
            centered=True,
        ),
    )
}

# Names that stand for one grid or another, by the number of bits. "auto" is the paper's wherever
# int8 holds its codes: at 8 bits DoReFa's reach 255. "packed" is the one whose codes need no more
# bits than they have where files store few: DoReFa's codes of 4 bits reach 15, and INT4 holds 7.
AUTOMATIC: dict[str, Callable[[int], str]] = {
    "auto": lambda bits: "narrow" if bits == 8 else "dorefa",
    "packed": lambda bits: "narrow" if bits in (4, 8) else "dorefa",
}


def find_grid(grid: str, num_bits: int) -> Grid:
    """Returns the row for `grid`, the name of one or of `AUTOMATIC`; bits may be int16's."""
    if not is_wide(num_bits):
        check_bits(num_bits)
    name = AUTOMATIC[grid](num_bits) if grid in AUTOMATIC else grid
    if name not in GRIDS:
        hint = did_you_mean(str(grid), [*AUTOMATIC, *GRIDS])
        raise ValueError(f"grid={grid!r} is not a grid. {hint}")
    row = GRIDS[name]
    if num_bits < row.fewest_bits:
        raise ValueError(
            f"grid={grid!r} at num_bits={num_bits} has a single value; give it at least "
            f"{row.fewest_bits} bits, or use grid='dorefa'."
        )
    return row


def is_bits(value: Any) -> TypeGuard[int]:
    """Whether a value is an integer from 1 to 8."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 8


def is_wide(num_bits: Any) -> bool:
    """Whether bits are those of int16, or of its codes without a sign."""
    return isinstance(num_bits, int) and num_bits in (WIDE_BITS, WIDE_BITS - 1)


def bits_in_file(num_bits: int, *, signed: bool) -> int:
    """The bits of the grid that a file's integers of some bits hold: int16 gives its sign away.

    >>> bits_in_file(16, signed=False), bits_in_file(16, signed=True), bits_in_file(8, signed=False)
    (15, 16, 8)
    """
    return num_bits - 1 if num_bits == WIDE_BITS and not signed else num_bits


def check_bits(num_bits: int) -> None:
    """Raises ValueError unless `num_bits` is an integer from 1 to 8."""
    if not is_bits(num_bits):
        raise ValueError(f"num_bits={num_bits!r}: expected an integer from 1 to 8.")


# A number of bits; or an integer tensor of it, so that it can change while a graph stays: a scalar,
# or one for each channel, of a shape that broadcasts to that of the values. Tensors are not
# checked: their value is known too late.
Bits: TypeAlias = int | Tensor


def round_half_up(x: Tensor) -> Tensor:
    """Rounds to the nearest integer, ties upwards: floor(x + 1/2).

    The only rounding of the package (Eq. 8 of the paper writes the bracket), and that of
    TensorFlow's FakeQuant kernels; `tf.round` sends ties to even numbers instead.

    The sum and, in front of it, the quotient of a value by its scale are floating-point numbers:
    ties are decided after that rounding. Half a step of a scale of 0.1 need not be a tie, and
    0.49999997, the largest float32 below a half, is taken for one.
    """
    return namespace(x).floor(x + 0.5)


# The share of a tensor that the largest code clips, by bits: for normal weights, the squared error
# is smallest with about these.
_CLIPPED = {2: 0.22, 3: 0.05, 4: 0.0135, 5: 0.005, 6: 0.0012, 7: 0.0004}


def int8_codes(x: Tensor, num_bits: int = 8) -> tuple[Tensor, Tensor]:
    """The codes of a tensor whose largest magnitude is code 127, and the real value of one code.

        s = max|x| / a,  code = clip(round(x / s), -a, a),  a = 2^(b-1) - 1

    With 7 bits and fewer, a share `_CLIPPED` of the magnitudes is left out of the maximum; one bit
    counts as 2. Both are float32 without gradients. Where the whole tensor is about 0, the scale
    is 1.
    """
    n = namespace(x)
    values = n.stop_gradient(in_float32(n, x))
    sizes, top = n.abs(values), float(2 ** (max(num_bits, 2) - 1) - 1)
    largest = n.max(sizes)
    if num_bits < 8:
        sizes = n.reshape(sizes, (-1,))
        beyond = int(_CLIPPED[max(num_bits, 2)] * sizes.shape[0])
        end = n.take(sizes, n.argsort(sizes)[sizes.shape[0] - 1 - beyond], axis=0)
        largest = n.where(end >= SMALLEST_SIZE, end, largest)
    divisor = n.exact_divisor(top, largest)
    scale = n.where(largest >= SMALLEST_SIZE, largest / divisor, 1.0)
    return n.clip(round_half_up(values / scale), -top, top), scale


def on_int8_codes(x: Tensor, num_bits: int = 8) -> Tensor:
    """A tensor rounded to its `int8_codes`, float32, with the gradient of the tensor itself."""
    codes, scale = int8_codes(x, num_bits)
    return straight_through(codes * scale, in_float32(namespace(x), x))


def levels(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of intervals a of a grid, by its name: 2^b - 1 (DoReFa), 2^b - 2 (narrow)."""
    return _look_up(num_bits, grid, lambda row, bits: row.top(bits))


def divisor(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Number of intervals in the unit interval, from bits and grid as in `levels`."""
    return _look_up(num_bits, grid, lambda row, bits: row.divisor(bits))


def middle(num_bits: Bits, grid: str = "dorefa") -> Any:
    """The place of real 0 among the integers n of a grid, from bits and grid as in `levels`."""
    return _look_up(num_bits, grid, lambda row, bits: row.middle(bits))


def codes_per_unit(num_bits: Bits, grid: str = "dorefa") -> Any:
    """Difference between the codes of n and n + 1, from bits and grid as in `levels`."""
    return _look_up(num_bits, grid, lambda row, bits: row.codes_per_unit)


def _look_up(num_bits: Bits, grid: str, number: Callable[[Grid, int], float]) -> Any:
    if not is_tensor(num_bits):
        return number(find_grid(grid, num_bits), num_bits)
    n = namespace(num_bits)
    # A table holds the numbers at 0 to 8 bits, because powers of tensors are not exact everywhere.
    # At too few bits it has the number of the fewest.
    fewest = 1 if grid in AUTOMATIC else find_grid(grid, 8).fewest_bits
    possible = [max(bits, fewest) for bits in range(9)]
    table = [float(number(find_grid(grid, bits), bits)) for bits in possible]
    return n.take(n.constant(table, "float32"), num_bits, axis=0)


def grid_units(values: Tensor, maximum: Tensor, num_bits: Bits, grid: str) -> Tensor:
    """Integers n = 0..top of a grid on [-maximum, maximum], as float32; NaN stays NaN.

    Values are float32, and beyond the maximum they are clipped. The maximum is positive, and
    broadcasts to the values.
    """
    n = namespace(values)
    half, top = divisor(num_bits, grid) / 2.0, levels(num_bits, grid)
    # Bits in a tensor do not tell the row; all rows of a name round alike.
    row = find_grid(grid, 8 if is_tensor(num_bits) else num_bits)
    position = values * (half / maximum) + half
    if row.rounding == "half up" and not is_tensor(num_bits):
        # On a range as long as it has intervals, the kernel's scale is exactly 1: it clips and
        # rounds to integers.
        narrow = top == 2**num_bits - 2
        units = n.fake_quant(position, 0.0, float(top), num_bits, narrow_range=narrow)
        if units is not None:
            return units
    rounded = round_half_up(position) if row.rounding == "half up" else n.floor(position)
    return n.clip(rounded, 0.0, top if is_tensor(top) else float(top))


def off_halves(
    values: Tensor, scale: Any, lowest: Any, intervals: Any, window: Sequence[int] | None
) -> Tensor:
    """Values moved off halves of their codes, so that rounding half up has the ties of a kernel.

    AVERAGE_POOL_2D rounds means of stored integers, code + zero point, half away from zero. Such a
    mean is a multiple of 1 / count, of which a quarter is added or taken away. RESIZE_BILINEAR
    rounds half up; for the usual factors its sums are multiples of 1/16 or 1/64, and 1/512 makes up
    for the last bits of float32. No other value is rounded otherwise.

    A mean has a window of count values; images that are resized have none.

    >>> [float(x) for x in off_halves(np.float32([2.5, 200.5]), 1.0, 0.0, 255, (1, 2))]
    [2.375, 200.625]
    """
    n = namespace(values)
    values = in_float32(n, values)
    scale, lowest = in_float32(n, scale), in_float32(n, lowest)
    if window is None:
        return values + n.stop_gradient(scale / 512.0)
    highest = lowest + in_float32(n, intervals)
    zero_point = n.where(lowest == -highest, 0.0, LARGEST_INT8 - highest)
    quarter = scale / (4.0 * math.prod(window))
    is_positive = values / scale + zero_point > 0.0
    return values + n.stop_gradient(n.where(is_positive, quarter, -quarter))


def round_to_largest(x: Tensor, num_bits: Bits, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """Rounds to the narrow grid that ends at the largest magnitude, straight-through.

    Forward: q = M · round_half_up(a x / (2 M)) · 2 / a, with a = 2^b - 2 and M the largest |x| that
    is finite. Backward: dq/dx = 1. NaN stays NaN, and infinite values become M or -M.
    """
    n = namespace(x)
    axes = tuple(axes_within(len(x.shape), range_axes))
    finite = n.where(n.isfinite(x), n.abs(x), 0.0)
    largest = n.max(finite, axis=axes, keepdims=True)
    half = in_float32(n, levels(num_bits, "narrow")) / 2.0
    unit = n.where(largest > 0.0, largest, 1.0) / half
    return straight_through(n.clip(round_half_up(x / unit), -half, half) * unit, x)
