"""Integer kernels written a second time, from their definition, with loops and Python integers."""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np


def requantized(total: int, multiplier: float, zero_point: int, lowest: int, highest: int) -> int:
    """One float32 product, rounded half to even, clipped."""
    product = Fraction(float(np.float32(np.float32(total) * np.float32(multiplier))))
    return min(max(round(product) + zero_point, lowest), highest)


def product_on_arm(product: int, multiplier: float) -> int:
    """XNNPACK's rndnu, from its definition in whole numbers."""
    fraction, exponent = math.frexp(multiplier)
    mantissa = int(math.ldexp(fraction, 24)) << 7  # in [2^30, 2^31)
    shift = -exponent  # multiplier = mantissa / 2^31 / 2^shift
    behind = max(shift, 1)
    before = product * 2 ** (behind - shift)
    high = before * mantissa // 2**31
    return (2 * high + 2**behind) // 2 ** (behind + 1)


def mean_on_x86(total: int, count: int, scales: tuple[float, float], zeros: tuple[int, int]) -> int:
    """The stored integer of a mean, each operation rounded to float32 by itself."""
    multiplier = _multiplier_of_mean(count, scales)
    offset = float32(zeros[1] - float32(count * zeros[0] * multiplier))
    return round(float32(float32(total * multiplier) + offset))


def mean_on_arm(total: int, count: int, scales: tuple[float, float], zeros: tuple[int, int]) -> int:
    """The same with fused multiply-adds: each is rounded to float32 once."""
    multiplier = _multiplier_of_mean(count, scales)
    offset = float32(zeros[1] - count * zeros[0] * multiplier)
    return round(float32(total * multiplier + offset))


def _multiplier_of_mean(count: int, scales: tuple[float, float]) -> Fraction:
    ratio = float32(Fraction(scales[0]) / Fraction(scales[1]))
    return float32(ratio * Fraction(float(np.float32(1.0 / count))))


def float32(value: Fraction | int) -> Fraction:
    """The nearest float32, ties to even, by whole numbers."""
    value = Fraction(value)
    if value == 0:
        return value
    # The number of bits before the point, so that 24 of them are kept.
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    return round(value / unit) * unit


def fixed_point(multiplier: float) -> tuple[int, int]:
    """A multiplier as m and e: the nearest m / 2^31 · 2^e, m in [2^30, 2^31)."""
    fraction, exponent = math.frexp(multiplier)
    mantissa = math.floor(Fraction(fraction) * 2**31 + Fraction(1, 2))
    return (2**30, exponent + 1) if mantissa == 2**31 else (mantissa, exponent)


def half_up(value: Fraction) -> int:
    """The nearest integer, halves up."""
    return math.floor(value + Fraction(1, 2))


def half_away(value: Fraction) -> int:
    """The nearest integer, halves away from zero."""
    return half_up(value) if value >= 0 else -half_up(-value)


def scaled_twice(value: int, multiplier: float, last: Callable[[Fraction], int]) -> int:
    """Gemmlowp's: the product with m rounded half up, and its shift as `last` says."""
    mantissa, exponent = fixed_point(multiplier)
    return _scaled_twice(value, mantissa, exponent, last)


def _scaled_twice(value: int, mantissa: int, exponent: int, last: Callable[[Fraction], int]) -> int:
    high = half_up(Fraction(value * 2 ** max(exponent, 0) * mantissa, 2**31))
    return last(Fraction(high, 2 ** max(-exponent, 0)))


def scaled_once(value: int, multiplier: float) -> int:
    """Ruy's on Arm: the exact product with m / 2^31 · 2^e, rounded half up."""
    mantissa, exponent = fixed_point(multiplier)
    return half_up(value * mantissa * Fraction(2) ** (exponent - 31))


def builtin_sum(codes: list[int], scales: list[float], output: float, sign: int) -> int:
    """A sum or a difference: 20 more bits, twice the larger scale, everything rounded twice."""
    widest = 2.0 * max(scales)
    first, second = (
        scaled_twice(code * 2**20, scale / widest, half_away)
        for code, scale in zip(codes, scales, strict=True)
    )
    multiplier = widest / float(np.float32(2**20 * output))
    return scaled_twice(first + sign * second, multiplier, half_away)


def builtin_mean(
    total: int, count: int, scales: tuple[float, float], zeros: tuple[int, int]
) -> int:
    """A mean: its multiplier is that of the scales, divided by the count and rounded down."""
    mantissa, exponent = fixed_point(scales[0] / scales[1])
    bits = math.floor(math.log2(count))
    divided = mantissa * 2**bits // count
    return _scaled_twice(total - zeros[0] * count, divided, exponent - bits, half_away) + zeros[1]
