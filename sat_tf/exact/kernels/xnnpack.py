"""The rounding of XNNPACK's int8 kernels, which for products and means depends on processors."""

from collections.abc import Callable

import numpy as np

from sat_tf.exact.kernels.fixed_point import Terms, fixed_point, rounded_once

_MULTIPLIER_BITS = 20
_RATIO_BITS = 8
_ROUNDING = 2.0**-24  # the relative rounding of float32
_LOWEST, _HIGHEST = -128, 127  # int8
_Number = np.ndarray | np.float32


def requantized(sums: np.ndarray, multipliers: np.ndarray | np.float32) -> np.ndarray:
    """Returns sums, or products of two codes, as codes: one float32 product, round half to even."""
    product = np.asarray(sums.astype(np.float32, copy=False) * multipliers.astype(np.float32))
    return np.rint(product, out=product)


def summed(
    terms: Terms, scales: list[np.float32], output: np.float32, *, difference: bool = False
) -> np.ndarray:
    """Returns codes of a sum, or a difference, of two tensors: 20-bit multipliers, round half up.

    On x86 the bias of the sum has half of the last bit, and the shift rounds down; on Arm the shift
    itself rounds half up: the same integer, and int32 holds all of them.
    """
    ratios = [np.float32(scale / output) for scale in scales]
    shift = _MULTIPLIER_BITS - (int(np.frexp(max(ratios))[1]) - 1)
    multipliers = np.rint(np.ldexp(np.array(ratios, np.float64), shift)).astype(np.int64)
    signs = (1, -1 if difference else 1)
    total = np.int64(1 << (shift - 1))
    for codes, multiplier, sign in zip(terms, multipliers, signs, strict=True):
        total = total + codes.astype(np.int64) * (sign * multiplier)
    return np.asarray(total >> shift)


def rescaled(codes: np.ndarray, source: np.float32, output: np.float32) -> np.ndarray:
    """Returns codes on another scale: the ratio of the scales in units of 1/256, round half up."""
    ratio = np.rint(np.float32(1 << _RATIO_BITS) * np.float32(source / output)).astype(np.int64)
    return np.asarray((codes.astype(np.int64) * ratio + (1 << (_RATIO_BITS - 1))) >> _RATIO_BITS)


def product_multiplier(first: np.float32, second: np.float32, output: np.float32) -> np.float32:
    """Returns the output codes of a product of two codes of 1, whose scales are given."""
    return np.float32(np.float32(first * second) / output)


def product_in_fixed_point(products: np.ndarray, multiplier: np.float32) -> np.ndarray:
    """Returns products of two codes as codes on Arm: XNNPACK's "rndnu", from 2^-16 to below 2^8."""
    return rounded_once(products, fixed_point(float(multiplier)))


def multiply_add(factor: np.ndarray, other: np.float32, summand: _Number) -> np.ndarray:
    """Returns factor · other + summand, with the product rounded to float32, and then the sum."""
    return np.asarray(factor.astype(np.float32) * np.float32(other) + np.float32(summand))


def fused_multiply_add(factor: np.ndarray, other: np.float32, summand: _Number) -> np.ndarray:
    """Returns factor · other + summand rounded once, like one instruction (FMLA, VFMADD).

    The product of two float32 is exact in float64. Its sum with the third is rounded to odd there:
    an inexact result gets an odd last bit, so that rounding it to float32 is the only rounding that
    counts, as float64 has more than twice the bits.
    """
    product = factor.astype(np.float32).astype(np.float64) * np.float64(np.float32(other))
    addend = np.float64(np.float32(summand))
    total = product + addend
    # Knuth's TwoSum tells exactly what the rounded sum has lost.
    virtual_addend = total - product
    lost = (product - (total - virtual_addend)) + (addend - virtual_addend)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(lost > 0, np.inf, -np.inf)
    odd = np.where((lost != 0) & even, np.nextafter(total, toward), total)
    return np.asarray(odd.astype(np.float32))


def mean_multiplier(scale: np.float32, output_scale: np.float32, count: int) -> np.float32:
    """Returns the output codes of one unit of the sum of `count` stored integers."""
    return np.float32(np.float32(scale / output_scale) * (np.float32(1.0) / np.float32(count)))


def mean(
    sums: np.ndarray,
    multiplier: np.float32,
    count: int,
    zero_points: tuple[int, int],
    add: Callable[[np.ndarray, np.float32, np.float32], np.ndarray],
) -> np.ndarray:
    """Returns stored integers of a mean: product and sum, first for the zero points, by `add`.

    XNNPACK's source has product and sum apart, as in `multiply_add`; compilers that fuse them make
    `fused_multiply_add` of both.
    """
    zero, output_zero = zero_points
    (offset,) = add(np.array([-count * zero], np.float32), multiplier, np.float32(output_zero))
    return np.asarray(np.rint(add(sums, multiplier, offset)))


def sums_near_halves(
    multiplier: np.float32, count: int, zero_points: tuple[int, int], ends: tuple[int, int]
) -> np.ndarray:
    """Returns the sums on whose mean rules can disagree: those nearly half way between codes.

    A rule rounds six float32 values, none of which is larger than 256 · count · multiplier + 128,
    so that none is farther from the exact mean than `error` below. For any other sum, the exact
    mean and all rules are on one side of the same half, or clipped alike.
    """
    smallest, largest = count * _LOWEST, count * _HIGHEST
    zero, output_zero = zero_points
    unit = float(multiplier)
    error = 8 * _ROUNDING * (256 * count * unit + 512)
    if error >= 0.5:
        return np.arange(smallest, largest + 1)
    halves = np.arange(*ends) + 0.5
    exact = (halves - output_zero) / unit + count * zero
    # One more sum on each side allows for the float64 of these lines.
    lower = np.maximum(np.floor(exact - error / unit) - 1, smallest)
    upper = np.minimum(np.ceil(exact + error / unit) + 1, largest)
    nonempty = lower <= upper
    windows = zip(lower[nonempty].astype(np.int64), upper[nonempty].astype(np.int64), strict=True)
    ranges = [np.arange(start, end + 1) for start, end in windows]
    return np.unique(np.concatenate([np.empty(0, np.int64), *ranges]))
