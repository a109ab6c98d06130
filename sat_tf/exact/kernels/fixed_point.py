"""The rounding of LiteRT's builtin kernels: multipliers of 31 bits and shifts, in integers.

A multiplier is m · 2^e with m an integer of 31 bits, read as a fraction of 2^31. A product with it
is a product with m, whose upper 32 bits are kept, and a shift by e. Kernels differ in where they
round, and in how they break ties: each way is a function `rounded_...`.

All functions take and give exact integers, channels on the last axis; shifted to the left, they fit
int32.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_MANTISSA_BITS = 31
_SMALLEST_EXPONENT = -31
# Sums and differences are taken with this many more bits.
SUM_BITS, WIDE_SUM_BITS = 20, 15  # of codes of 8 and of 16 bits


class Multipliers(NamedTuple):
    """Multipliers of 31 bits: m / 2^31 · 2^e."""

    mantissas: np.ndarray  # The m of each, in [2^30, 2^31); 0 for a multiplier below 2^-32.
    exponents: np.ndarray  # The e of each.

    @property
    def left(self) -> np.ndarray:
        """The bits by which sums are shifted to the left, before the product."""
        return np.maximum(self.exponents, 0)

    @property
    def right(self) -> np.ndarray:
        """The bits by which sums are shifted to the right, after the product."""
        return np.maximum(-self.exponents, 0)


Rule = Callable[[np.ndarray, Multipliers], np.ndarray]
# The scales, and the zero points, of the input and of the output.
Scales = tuple[np.float32, np.float32]
Zeros = tuple[int, int]
Terms = list[np.ndarray]  # The codes of both tensors of a sum.


def fixed_point(multipliers: np.ndarray | np.float32 | float) -> Multipliers:
    """Returns positive multipliers in fixed point, each m rounded half up."""
    fractions, exponents = np.frexp(np.asarray(multipliers, np.float64))
    mantissas = np.floor(np.ldexp(fractions, _MANTISSA_BITS) + 0.5).astype(np.int64)
    carried = mantissas == 1 << _MANTISSA_BITS
    mantissas = np.where(carried, mantissas >> 1, mantissas)
    exponents = exponents.astype(np.int64) + carried
    is_nonzero = exponents >= _SMALLEST_EXPONENT
    return Multipliers(np.asarray(mantissas * is_nonzero), np.asarray(exponents * is_nonzero))


def high_product(
    values: np.ndarray, mantissas: np.ndarray, bits: int = _MANTISSA_BITS
) -> np.ndarray:
    """Returns the upper half of the doubled product, rounded half up (SQRDMULH).

    `bits` is 31 for integers of 32 bits, and 15 for those of 16.
    """
    product = np.asarray(values.astype(np.int64, copy=False) * mantissas)
    product += 1 << (bits - 1)
    product >>= bits
    return product


def shifted_up(values: np.ndarray, bits: np.ndarray | int) -> np.ndarray:
    """Shifts values to the right, rounding half up (SRSHL)."""
    total = np.asarray(values + ((np.int64(1) << bits) >> 1))
    return np.right_shift(total, bits, out=total)


def shifted_away(values: np.ndarray, bits: np.ndarray | int) -> np.ndarray:
    """Shifts values to the right, rounding half away from zero (gemmlowp's RoundingDivideByPOT)."""
    return np.asarray(np.sign(values) * shifted_up(np.abs(values), bits))


def rounded_twice_up(values: np.ndarray, multipliers: Multipliers) -> np.ndarray:
    """Rounds products half up, then shifts half up."""
    high = high_product(values.astype(np.int64) << multipliers.left, multipliers.mantissas)
    return shifted_up(high, multipliers.right)


def rounded_twice_away(values: np.ndarray, multipliers: Multipliers) -> np.ndarray:
    """Rounds products half up, then shifts half away from zero."""
    high = high_product(values.astype(np.int64) << multipliers.left, multipliers.mantissas)
    return shifted_away(high, multipliers.right)


def rescaled(values: np.ndarray, ratio: np.ndarray | np.float32 | float) -> np.ndarray:
    """Multiplies values by positive ratios, as `rounded_twice_away` does."""
    return rounded_twice_away(values.astype(np.int64), fixed_point(ratio))


def rounded_once(values: np.ndarray, multipliers: Multipliers) -> np.ndarray:
    """Rounds products down, then shifts half up: with p = max(-e, 1), one rounding in all.

    (((value << (e + p)) · m) >> 31 + 2^(p-1)) >> p
    """
    right_bits = np.maximum(multipliers.right, 1)
    left_bits = multipliers.exponents + right_bits
    high = ((values.astype(np.int64) << left_bits) * multipliers.mantissas) >> _MANTISSA_BITS
    return shifted_up(high, right_bits)


def rounded_before_shifts(values: np.ndarray, multipliers: Multipliers) -> np.ndarray:
    """Rounds products half up, then shifts: left by e above 0, otherwise right, half up."""
    high = high_product(values.astype(np.int64), multipliers.mantissas)
    return shifted_up(high << multipliers.left, multipliers.right)


def rounded_in_int64(values: np.ndarray, multipliers: Multipliers) -> np.ndarray:
    """Multiplies large values by multipliers of 15 bits, and shifts half up."""
    narrow = np.minimum((multipliers.mantissas + (1 << 15)) >> 16, (1 << 15) - 1)
    shifted = shifted_up(values.astype(np.int64) * narrow, 15 - multipliers.exponents)
    return np.asarray(shifted.astype(np.int32), np.int64)


def shifted_in_int32(values: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Computes `shifted_away` like processors, which take bits below 0 or above 31 modulo 32."""
    short = bits & 31
    mask = np.where(bits == short, (np.int64(1) << short) - 1, -1)
    return np.asarray((values >> short) + ((values & mask) > (mask >> 1) + (values < 0)))


def summed(
    terms: Terms,
    scales: list[np.float32],
    output: np.float32,
    *,
    difference: bool = False,
    bits: int = SUM_BITS,
) -> np.ndarray:
    """Returns the codes of a sum, or a difference, of two tensors.

    Each tensor is brought to twice the larger scale with 20 more bits, rounded twice; their sum is
    brought to the scale of the output in the same way.
    """
    augend, addend = (
        rounded_twice_away(codes.astype(np.int64) << bits, multiplier)
        for codes, multiplier in zip(terms, summand_multipliers(scales), strict=True)
    )
    return sum_as_codes(augend - addend if difference else augend + addend, scales, output, bits)


def summand_multipliers(scales: list[np.float32]) -> list[Multipliers]:
    """Returns the multipliers that bring two summands to twice the larger scale."""
    widest = 2.0 * float(max(scales))
    return [fixed_point(float(scale) / widest) for scale in scales]


def sum_as_codes(
    total: np.ndarray, scales: list[np.float32], output: np.float32, bits: int = SUM_BITS
) -> np.ndarray:
    """Returns sums with 20 more bits, or as many as given, as codes."""
    widest, unit = 2.0 * float(max(scales)), np.float32(1 << bits)
    return rescaled(total, widest / float(unit * output))


def rounded_away(values: np.ndarray) -> np.ndarray:
    """Rounds values to integers, halves away from zero."""
    whole = np.trunc(values)
    # The remainder is exact, whereas a sum with a half might not be.
    return np.asarray(whole + np.where(np.abs(values - whole) >= 0.5, np.sign(values), 0.0))


def moved_away(values: np.ndarray) -> np.ndarray:
    """Rounds float32 values as Armv7 does: half a code away from zero, then towards it."""
    return np.trunc(values + np.copysign(np.float32(0.5), values))


def mean(sums: np.ndarray, count: int, scales: Scales, zeros: Zeros) -> np.ndarray:
    """Returns the stored integers of a mean: the multiplier is divided by the count in integers."""
    mantissa, exponent = fixed_point(float(scales[0]) / float(scales[1]))
    shift = min(count.bit_length() - 1, 32, _MANTISSA_BITS + int(exponent))
    divided = Multipliers((mantissa << shift) // count, exponent - shift)
    return rounded_twice_away(sums - zeros[0] * count, divided) + zeros[1]


# The first two constants have 3 bits in front of the point.
_ONE, _THREE_HALVES, _HALF_ROOT_OF_TWO = map(np.asarray, (1 << 28, 3 << 27, 1518500250))
_STEPS = 5
_LARGEST = np.asarray((1 << 31) - 1)


def inverse_roots(numbers: np.ndarray) -> Multipliers:
    """Returns 1 / √n of integers from 1 on, in 32 bits by Newton's x += x/2 · (1 - n · x²)."""
    narrow, fours = numbers.astype(np.int64), np.zeros_like(numbers, np.int64)
    while np.any(is_wide := narrow >= 1 << 29):
        narrow, fours = np.where(is_wide, narrow // 4, narrow), fours + is_wide
    pairs = (30 - np.floor(np.log2(narrow)).astype(np.int64)) // 2 - 1
    wide = (narrow << (2 * pairs)) >> 1
    half = (wide + 1) >> 1
    x = np.full_like(wide, _ONE)
    for _ in range(_STEPS):
        cube = high_product(high_product(x, x), x) << 6
        x = (high_product(x, _THREE_HALVES) - high_product(half, cube)) << 3
    mantissas, exponents = high_product(x, _HALF_ROOT_OF_TWO), pairs - 11 - fours
    is_one = numbers == 1
    return Multipliers(np.where(is_one, _LARGEST, mantissas), np.where(is_one, 0, exponents))


def scaled(values: np.ndarray, by: Multipliers, bits: int) -> np.ndarray:
    """Multiplies values by multipliers that are 2^bits times as large, rounding twice."""
    return rounded_twice_away(values, by._replace(exponents=by.exponents + bits))


# -- with vectors ----------------------------------------------------------------------------------

# LiteRT's optimized kernels are written for Arm's vectors, and x86 has the same ones, translated.
# They take values in blocks, and values that do not fill a block as the reference kernels do. A
# block has other ties than these kernels, and its sums have other last bits.
_CHANNELS, _MEANS, _REALS = 8, 16, 8  # in a block
_SUMS, _SUMS_WITH_ONE_VALUE = 16, 8


def in_blocks(length: int, size: int) -> np.ndarray:
    """Tells which of `length` values are in a full block of `size`."""
    return np.arange(length) < length // size * size


def requantized_in_blocks(
    values: np.ndarray, multipliers: Multipliers, size: int = _CHANNELS
) -> np.ndarray:
    """Rounds twice: channels in blocks up, the others away from zero."""
    up, away = rounded_twice_up(values, multipliers), rounded_twice_away(values, multipliers)
    return np.where(in_blocks(values.shape[-1], size), up, away)


def mean_in_blocks(sums: np.ndarray, count: int, scales: Scales, zeros: Zeros) -> np.ndarray:
    """Returns stored integers of a mean that keeps its dimensions: one multiplier, in float32."""
    scale, output_scale = scales
    moved = np.float32(np.float32(zeros[0]) * scale) / output_scale
    moved = np.float32(moved + (np.float32(0.5) if moved > 0 else np.float32(-0.5)))
    multiplier = fixed_point(float(scale / (np.float32(count) * output_scale)))
    return requantized_in_blocks(sums, multiplier, _MEANS) + (zeros[1] - int(moved))


def quantized_in_blocks(
    real: np.ndarray, scale: np.float32, nearest: Callable[[np.ndarray], np.ndarray] = np.rint
) -> np.ndarray:
    """Returns codes of images' float32 values: blocks by a product, the others by division."""
    flat = real.reshape(len(real), math.prod(real.shape[1:]))
    product = nearest(flat * (np.float32(1.0) / scale))
    divided = rounded_away(flat.astype(np.float64) / np.float64(scale))
    codes = np.where(in_blocks(flat.shape[1], _REALS), product, divided)
    return np.asarray(codes.reshape(real.shape))


def summed_in_blocks(
    summands: Terms, scales: list[np.float32], output: np.float32, bits: int = SUM_BITS
) -> np.ndarray:
    """Returns the codes of a sum of two tensors, images on the first axis.

    In a block, a summand is shifted before its product, which is then rounded once; where a summand
    is one value throughout, the shift comes after the product, and rounds down.
    """
    plain = summed(summands, scales, output, bits=bits)
    length, is_one_value = stretch(*(codes.shape[1:] for codes in summands))
    size = _SUMS_WITH_ONE_VALUE if is_one_value else _SUMS
    if length < size:
        return plain
    total = np.int64(0)
    for codes, multiplier in zip(summands, summand_multipliers(scales), strict=True):
        wide, right = codes.astype(np.int64), multiplier.right
        if is_one_value:
            product = high_product(wide << bits, multiplier.mantissas) >> right
        else:
            product = high_product(wide << np.maximum(bits - right, 0), multiplier.mantissas)
        total = total + product
    blocks = sum_as_codes(np.asarray(total), scales, output, bits)
    places = np.arange(math.prod(plain.shape[1:])) % length
    in_block = in_blocks(length, size)[places].reshape(plain.shape[1:])
    return np.where(in_block, blocks, plain)


def stretch(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, bool]:
    """Returns how many values a sum's kernel takes at once, and if a summand has only one there.

    Shapes are without the batch dimension; 0 values where the kernel without vectors computes it.
    """
    axes = max(len(first), len(second))
    first_shape, second_shape = ((1,) * (axes - len(shape)) + shape for shape in (first, second))
    pairs = list(zip(first_shape, second_shape, strict=True))[::-1]
    alike = next((i for i, (a, b) in enumerate(pairs) if a != b), axes)
    length = math.prod(a for a, _ in pairs[:alike])
    if alike == axes:
        return length, False
    # The summand with 1 on the first axis that differs comes first; five stretches follow.
    if pairs[alike][1] == 1:
        pairs = [(b, a) for a, b in pairs]
    remaining = pairs[alike:]
    once = list(itertools.takewhile(lambda pair: pair[0] == 1, remaining))
    broadcast = math.prod(b for _, b in once)
    tail = itertools.dropwhile(lambda pair: pair[0] == 1, remaining)
    tail = itertools.dropwhile(lambda pair: pair[0] == pair[1], tail)
    tail = itertools.dropwhile(lambda pair: pair[1] == 1, tail)
    remaining = list(itertools.dropwhile(lambda pair: pair[0] == pair[1], tail))
    if remaining:
        return 0, False
    return (length, False) if length > 1 else (broadcast, True)
