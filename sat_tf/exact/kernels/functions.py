"""Functions of one value and softmax on codes, as int8 kernels compute them.

A kernel looks a code up in a table that it makes of a function in float32, or multiplies it in
integers. Functions of one value take and give codes, stored - zero_point, which are not clipped.
"""

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sat_tf.exact.kernels import fixed_point as integers
from sat_tf.exact.kernels.fixed_point import fixed_point, high_product, shifted_away, shifted_up


class Grids(NamedTuple):
    """The grids of an operator that computes a function, and its options."""

    scale: np.float32  # The scale of the input.
    output: np.float32  # The scale of the output.
    zero_point: int = 0  # The zero point of the output.
    settings: Mapping[str, Any] = types.MappingProxyType({})


FunctionRule = Callable[[np.ndarray, Grids], np.ndarray]
# A function of float32 values, which gives float32 values.
Curve = Callable[..., np.ndarray]

# The rounding of float32 values to codes of a scale; kernels that add the zero point before they
# round are given it.
Rounding = Callable[[np.ndarray, np.float32, int], np.ndarray]


def rounded_half_away(values: np.ndarray, scale: np.float32, zero_point: int) -> np.ndarray:
    """Rounds a float32 product with the inverse scale, halves away from zero: builtin kernels."""
    return integers.rounded_away(values * (np.float32(1.0) / scale))


def rounded_moved(values: np.ndarray, scale: np.float32, zero_point: int) -> np.ndarray:
    """Adds the product and the zero point in float32, and rounds half to even: XNNPACK."""
    product = np.asarray(values * (np.float32(1.0) / scale), np.float32)
    return np.asarray(np.rint(product + np.float32(zero_point)) - zero_point)


def rounded_moved_fused(values: np.ndarray, scale: np.float32, zero_point: int) -> np.ndarray:
    """Does `rounded_moved` with product and sum fused: the product is not rounded by itself."""
    # float64 holds the product of two float32 numbers.
    product = values.astype(np.float64) * float(np.float32(1.0) / scale)
    return np.asarray(np.rint((product + zero_point).astype(np.float32)) - zero_point)


def by_table(curve: Curve, rounding: Rounding) -> FunctionRule:
    """Returns the rule of a kernel that computes each code's result in float32."""

    def rule(codes: np.ndarray, grids: Grids) -> np.ndarray:
        real = np.asarray(codes.astype(np.float32) * np.float32(grids.scale), np.float32)
        values = np.asarray(curve(real, **grids.settings), np.float32)
        rounded = rounding(values, np.float32(grids.output), grids.zero_point)
        return np.asarray(rounded).astype(np.int64)

    return rule


def logistic_in_float64(x: np.ndarray) -> np.ndarray:
    """Computes a sigmoid of float32 numbers, rounded once: XNNPACK."""
    with np.errstate(over="ignore"):
        return np.asarray(1.0 / (1.0 + np.exp(-x.astype(np.float64))), np.float32)


def tanh(x: np.ndarray) -> np.ndarray:
    """Computes a tanh of float32 numbers, which C's libraries round to a last bit of their own.

    On 250 grids with a code that is next to a half, by 3e-5 of a code or less, 10 codes of 64,000
    differ from XNNPACK's, and 6 from the builtin kernels'.
    """
    return np.asarray(np.tanh(x.astype(np.float64)), np.float32)


def logistic(x: np.ndarray) -> np.ndarray:
    """Computes a sigmoid of float32 numbers with the C library's exponential: other kernels."""
    with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0
        power = np.exp(-x.astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(1.0) / (np.float32(1.0) + power))


# -- in integers -----------------------------------------------------------------------------------

# gemmlowp's functions on integers of 32 or of 16 bits: fractions of 2^31, or of 2^15, unless said
# otherwise. `width` is this 31 or 15.

_WIDTH = 31
ONE = 2**_WIDTH - 1
# e to the power of -1/8, and a third.
_EXP_OF_EIGHTH, _THIRD = 1895147668, 715827883
# e to the power of -1/4, -1/2, -1, ... -16.
_EXPONENTIALS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
# 48/17 and -32/17, of Newton's division, as fractions of 2^29.
_FIRST, _SLOPE = 1515870810, -1010580540


def _narrowed(constant: int, width: int) -> np.ndarray:
    """Returns a constant of 32 bits in the bits of an integer."""
    return shifted_away(np.asarray(constant), _WIDTH - width)


def exponentials(values: np.ndarray, integer_bits: int, width: int = _WIDTH) -> np.ndarray:
    """Returns e to the power of numbers from -2^bits to 0, fractions of 2^(width - bits)."""
    multiply = functools.partial(high_product, bits=width)
    quarter = 1 << (width - integer_bits - 2)
    remainder = (values & (quarter - 1)) - quarter
    x = (remainder << integer_bits) + (1 << (width - 3))
    exp_of_eighth, third = (_narrowed(number, width) for number in (_EXP_OF_EIGHTH, _THIRD))
    square = multiply(x, x)
    cube, fourth = multiply(square, x), multiply(square, square)
    higher_terms = shifted_away(multiply(shifted_away(fourth, 2) + cube, third) + square, 1)
    one = 2**width - 1
    power = np.minimum(exp_of_eighth + multiply(x + higher_terms, exp_of_eighth), one)
    quarters = (remainder - values) // quarter
    for bit, factor in enumerate(_EXPONENTIALS):
        is_set = (quarters >> bit) & 1 == 1
        power = np.where(is_set, multiply(power, _narrowed(factor, width)), power)
    # The factors end at e^-16.
    power = np.where(values < -(32 << (width - integer_bits)), 0, power)
    return np.where(values == 0, one, power)


def inverses_of_one_plus(values: np.ndarray, width: int = _WIDTH) -> np.ndarray:
    """Returns 1 / (1 + x) of numbers from 0 to 1."""
    return np.minimum(_inverses_of_half(values, width) << 1, 2**width - 1)


def _inverses_of_half(values: np.ndarray, width: int) -> np.ndarray:
    """Returns 2 / (1 + x) of numbers from 0 to 1, as fractions of 2^(width - 2)."""
    multiply = functools.partial(high_product, bits=width)
    half, one = (values + 2**width) // 2, 1 << (width - 2)
    x = _narrowed(_FIRST, width) + multiply(half, _narrowed(_SLOPE, width))
    for _ in range(3):
        x = x + (multiply(x, one - multiply(half, x)) << 2)
    return np.asarray(x)


def sigmoids(x: np.ndarray, integer_bits: int, width: int = _WIDTH) -> np.ndarray:
    """Returns 1 / (1 + e^-|x|), or 1 minus that, of fractions of 2^(width - bits)."""
    positive = inverses_of_one_plus(exponentials(-np.abs(x), integer_bits, width), width)
    sigmoid = np.where(x < 0, 2**width - 1 - positive, positive)
    return np.where(x == 0, 1 << (width - 1), sigmoid)


def tanhs(x: np.ndarray, integer_bits: int, width: int = _WIDTH) -> np.ndarray:
    """Returns (1 - e^-2|x|) / (1 + e^-2|x|), with the sign of x; see `sigmoids`."""
    # The same integer with one bit more in front of its point is twice the number.
    power = exponentials(-np.abs(x), integer_bits + 1, width)
    one = 1 << (width - 2)
    return np.sign(x) * np.minimum((_inverses_of_half(power, width) - one) << 2, 2**width - 1)


_CURVE_BITS = 4  # in the integer part of the number that a sigmoid or a tanh takes


def logistic_in_fixed_point(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a sigmoid by gemmlowp: TFLite Micro.

    >>> half = np.float32(0.5)
    >>> logistic_in_fixed_point(np.array([-40, -1, 0, 40]), Grids(half, half, -128)).tolist()
    [0, 97, 128, 255]
    """
    x, is_near = _fixed_point_input(codes, grids.scale)
    rounded = shifted_away(sigmoids(x, _CURVE_BITS), 31 - 8)
    return np.where(is_near, rounded, np.where(codes < 0, 0, 255))


def tanh_in_fixed_point(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a tanh by gemmlowp: TFLite Micro.

    >>> half = np.float32(0.5)
    >>> tanh_in_fixed_point(np.array([-40, -1, 0, 1, 40]), Grids(half, half)).tolist()
    [-128, -59, 0, 59, 127]
    """
    x, is_near = _fixed_point_input(codes, grids.scale)
    rounded = shifted_away(tanhs(x, _CURVE_BITS), 31 - 7)
    return np.where(is_near, rounded, np.where(codes < 0, -128, 127))


def _fixed_point_input(codes: np.ndarray, scale: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Returns numbers with 4 bits in front of their point, and which of them these bits hold."""
    multiplier = fixed_point(float(scale) * 2.0 ** (31 - _CURVE_BITS))
    widest = ((2**_CURVE_BITS - 1) << (31 - _CURVE_BITS)) >> int(multiplier.left)
    is_near = np.abs(codes) < widest
    near_codes = np.where(is_near, codes, 0).astype(np.int64)
    return integers.rounded_twice_away(near_codes, multiplier), is_near


# The factors of XNNPACK for the codes of a leaky rectifier.
_SMALLEST_FACTOR, _LARGEST_FACTOR = 2.0**-8, 2.0**7

WIDTH_16 = 15  # bits of a positive int16
_MORE_BITS = 7  # added to a code in hard-swish
_REACH = 3.0  # hard-swish is 0 below -3, and x above 3


def _narrow(multiplier: float) -> tuple[int, int]:
    """Returns a multiplier of 15 bits, rounded from 31, and its exponent."""
    wide = fixed_point(multiplier)
    return min((int(wide.mantissas) + (1 << 15)) >> 16, (1 << 15) - 1), int(wide.exponents)


def in_int16(values: np.ndarray) -> np.ndarray:
    """Clips integers to those of 16 bits."""
    return np.clip(values, -(1 << WIDTH_16), (1 << WIDTH_16) - 1)


def _half_up(values: np.ndarray, mantissa: int) -> np.ndarray:
    """Returns the upper 16 bits of the doubled product, rounded half up."""
    return in_int16((values * mantissa + (1 << (WIDTH_16 - 1))) >> WIDTH_16)


def hard_swish(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes hard-swish, x · relu6(x + 3) / 6, in 16 bits: all kernels without Arm's vectors.

    x is multiplied once to the scale of the output, as far as 16 bits hold it, and once so that
    3 is 2^15, which saturates; the second is moved from [-1, 1] to [0, 1]. The product of both is
    rounded towards zero. All shifts round half away from zero.
    """
    x, gate, shift = _hard_swish_factors(codes, grids, shifted_away)
    product = gate * x
    return shifted_away(np.sign(product) * (np.abs(product) >> WIDTH_16), shift)


def hard_swish_of_arm(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes hard-swish with Arm's vectors: the product is rounded down, all shifts half up."""
    x, gate, shift = _hard_swish_factors(codes, grids, shifted_up)
    return shifted_up((gate * x) >> WIDTH_16, shift)


def _hard_swish_factors(
    codes: np.ndarray, grids: Grids, shifted: Callable[[np.ndarray, int], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns x, relu6(x + 3) / 6 of 15 bits, and the bits that their product is shifted by."""
    wide = codes.astype(np.int64) << _MORE_BITS
    fine = np.float32(np.float32(1.0 / (1 << _MORE_BITS)) * np.float32(grids.scale))
    to_output, shift = _narrow(float(fine / np.float32(grids.output)))
    to_gate, growth = _narrow(float(fine / np.float32(_REACH / (1 << WIDTH_16))))
    gate = wide
    if growth > 0:
        gate = in_int16(gate << (growth - 1))
    gate = _half_up(gate, to_gate)
    if growth > 0:
        gate = in_int16(gate << 1)
    if growth < 0:
        gate = shifted(gate, -growth)
    gate = (gate + (1 << WIDTH_16)) >> 1
    return _half_up(wide, to_output), gate, -shift


def hard_swish_problem(scale: np.float32, output: np.float32) -> str | None:
    """Returns why the kernel does not take these scales, with the fix; None where it does."""
    ratio = float(scale) / float(output)
    if ratio < 1 << _MORE_BITS:
        return None
    return (
        f"received a hard-swish whose input codes are worth {ratio:.4g} output codes, expected "
        f"less than {1 << _MORE_BITS}; a clipping level is far from its values: call "
        "sat_tf.calibrate, or train longer."
    )


# The multipliers of codes from 0 on and of codes below, from the scale of the input, the factor by
# which codes below 0 are multiplied, and the scale of the output.
Slopes = Callable[[np.float32, np.float32, np.float32], tuple[float, float]]


def narrow_slopes(scale: np.float32, factor: np.float32, output: np.float32) -> tuple[float, float]:
    """Returns the multipliers that LiteRT's kernels compute in float32."""
    below = np.float32(scale * factor)
    return float(np.float32(scale / output)), float(np.float32(below / output))


def wide_slopes(scale: np.float32, factor: np.float32, output: np.float32) -> tuple[float, float]:
    """Returns the multipliers that TFLite Micro computes in float64."""
    return float(scale) / float(output), float(scale) * float(factor) / float(output)


def sloped(codes: np.ndarray, products: np.ndarray, slopes: tuple[float, float]) -> np.ndarray:
    """Multiplies codes from 0 on, and products of those below, by their slopes, rounding twice."""
    positive, negative = map(integers.rescaled, (codes, products), slopes)
    return np.where(codes >= 0, positive, negative)


def leaky(codes: np.ndarray, grids: Grids, slopes: Slopes = narrow_slopes) -> np.ndarray:
    """Computes a leaky rectifier with two multipliers of 31 bits: all kernels except XNNPACK's."""
    factors = slopes(grids.scale, np.float32(grids.settings["alpha"]), grids.output)
    return sloped(codes, codes, factors)


def magnitude(codes: np.ndarray, grids: Grids, slopes: Slopes = narrow_slopes) -> np.ndarray:
    """Computes a magnitude, with a multiplier of 31 bits."""
    factor, _ = slopes(grids.scale, np.float32(1.0), grids.output)
    return integers.rescaled(np.abs(codes), factor)


def leaky_of_xnnpack(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a leaky rectifier with two multipliers of 8 bits after the point, rounded half up.

    XNNPACK takes multipliers from 1/256 to 128, and leaves others to the builtin kernels.
    """
    source, output = np.float32(grids.scale), np.float32(grids.output)
    slope = np.float32(source * np.float32(grids.settings["alpha"]))
    factors = np.float32(source / output), np.float32(slope / output)
    if not all(_SMALLEST_FACTOR <= factor <= _LARGEST_FACTOR for factor in factors):
        return leaky(codes, grids)
    positive, negative = (int(np.rint(np.float32(256.0) * factor)) for factor in factors)
    product = codes.astype(np.int64) * np.where(codes >= 0, positive, negative)
    return np.asarray((product + 128) >> 8)


# Every set of kernels subtracts the largest integer of a row, so that zero points do not count, and
# makes 256 p - 128, clipped to int8. Sets differ in how they take e to a power, and divide by the
# sum of these powers: in float32, with tables of 16 bits, or in fixed point throughout.

SOFTMAX_SCALE, SOFTMAX_ZERO_POINT = np.float32(1.0 / 256.0), -128
_LEVELS = 256
_HIGHEST = 127


def powers(scale: np.floating[Any]) -> np.ndarray:
    """Returns e to the power of the differences 0, -1, ... -255 times a scale, float32.

    float64 is rounded once to float32, like `expf` of the C library except for ties, which no
    scale has been found to meet.
    """
    exponents = np.float32(-scale) * np.arange(_LEVELS, dtype=np.float32)
    return np.exp(exponents.astype(np.float64)).astype(np.float32)


def _differences(stored: np.ndarray) -> np.ndarray:
    """Returns how far integers are below the largest one of their row."""
    return np.asarray(np.max(stored, axis=-1, keepdims=True) - stored)


def _stored(rounded: np.ndarray) -> np.ndarray:
    return np.clip(rounded + SOFTMAX_ZERO_POINT, SOFTMAX_ZERO_POINT, _HIGHEST).astype(np.int32)


def softmax_in_float32(stored: np.ndarray, scale: np.floating[Any]) -> np.ndarray:
    """Multiplies by the inverse of a float32 sum in class order, rounding halves away from zero."""
    terms = powers(scale)[_differences(stored)]
    # Terms are added one after another, as the order of additions counts in the last bit.
    sums = np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1:]
    inverse = np.float32(1.0) / (sums * SOFTMAX_SCALE)
    return _stored(integers.rounded_away(terms * inverse))


def softmax_with_tables(stored: np.ndarray, scale: np.floating[Any]) -> np.ndarray:
    """Multiplies powers of 16 bits by the inverse of their exact sum, in 31 bits: 64-bit Arm."""
    wide = (powers(scale) * np.float32(2**16 - 1)).astype(np.float64) + 0.5
    terms = np.minimum(wide.astype(np.int64), 2**16 - 1)[_differences(stored)]
    sums = np.sum(terms, axis=-1, keepdims=True)
    inverse = np.float32(1.0) / (sums.astype(np.float32) * SOFTMAX_SCALE)
    return _stored(integers.rounded_twice_away(terms, fixed_point(inverse)))


_INTEGER_BITS = 5  # of a difference times its scale
_SUM_BITS = 12  # of the integer part of a sum
# Fewer powers of at most 1 never add up to 512, which kernels in fixed point refuse.
MOST_CLASSES = 511


class _Scaled(NamedTuple):
    """The differences of integers from the largest one of their row, in fixed point."""

    differences: np.ndarray  # The differences in integers.
    real: np.ndarray  # The scaled differences, with 5 bits in front of the point; 0 of far ones.
    powers: np.ndarray  # E to the power of `real`, as fractions of 2^31; 0 of far ones.
    multiplier: integers.Multipliers  # The multiplier of the scale.
    widest: int  # The largest difference that is not far.


def _scaled_differences(stored: np.ndarray, scale: np.floating[Any]) -> _Scaled:
    fraction = 31 - _INTEGER_BITS
    multiplier = fixed_point(min(float(scale) * 2.0**fraction, 2.0**31 - 1.0))
    left_bits = int(multiplier.left)
    widest = ((2**_INTEGER_BITS - 1) << fraction) >> left_bits
    differences = -_differences(stored).astype(np.int64)
    near = differences >= -widest
    real = high_product(np.where(near, differences, 0) << left_bits, multiplier.mantissas)
    terms = np.where(near, exponentials(real, _INTEGER_BITS), 0)
    return _Scaled(differences, real, terms, multiplier, widest)


def softmax_in_fixed_point(stored: np.ndarray, scale: np.floating[Any]) -> np.ndarray:
    """Computes a softmax with gemmlowp's exponentials and Newton's division: plain C++ sources.

    A sum has 12 bits in front of its point. Where the powers of a row add up to 512 or more, as
    those of a thousand equal logits do, the kernels need a shift that they refuse, and end the
    process of LiteRT or TFLite Micro.
    """
    terms = _scaled_differences(stored, scale).powers
    sums = np.sum(shifted_away(terms, _SUM_BITS), axis=-1, keepdims=True)
    # 1 / (1 + x) of sums that are 2^bits · (1 + x).
    headroom = 32 - np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    inverses = inverses_of_one_plus((sums << headroom) - (np.int64(1) << 31))
    bits = _SUM_BITS - headroom
    return _stored(shifted_away(high_product(inverses, terms), bits + 31 - 8))


# Stored integers are 16 · log(p) + 127.

_LOG_SCALE, _LOG_ZERO_POINT, _LOG_BITS = np.float32(1.0 / 16.0), 127, 4


def log_softmax_in_float32(
    stored: np.ndarray,
    scale: np.float32,
    add: Callable[[np.ndarray, np.float32, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Takes a float32 sum from the first class to the last, a product and sum for each class."""
    terms, largest = powers(scale)[_differences(stored)], np.max(stored, axis=-1, keepdims=True)
    sums = np.add.accumulate(terms, axis=-1, dtype=np.float32)[..., -1:]
    logarithms = np.log(sums.astype(np.float64)).astype(np.float32)
    offset = add(largest, scale, logarithms) / _LOG_SCALE
    rounded = np.rint(add(stored, scale / _LOG_SCALE, -offset)).astype(np.int64) + _LOG_ZERO_POINT
    return np.clip(rounded, SOFTMAX_ZERO_POINT, _HIGHEST).astype(np.int32)


def log_softmax_in_fixed_point(stored: np.ndarray, scale: np.float32) -> np.ndarray:
    """Takes gemmlowp's exponentials, and a logarithm by rational functions: plain C++ sources."""
    row = _scaled_differences(stored, scale)
    sums = np.sum(shifted_away(row.powers, _SUM_BITS), axis=-1, keepdims=True)
    logarithms = _logarithms(sums)
    power = 1 << (31 - int(row.multiplier.left))
    inverse = fixed_point(power / float(row.multiplier.mantissas))
    farthest = integers.rounded_twice_away(logarithms - (np.int64(1) << 31), inverse)
    lowest = np.maximum(-row.widest - 1, farthest)
    rounded = shifted_away(row.real - logarithms, 31 - _INTEGER_BITS - _LOG_BITS) + _LOG_ZERO_POINT
    rounded = np.where(row.differences > lowest, rounded, SOFTMAX_ZERO_POINT)
    return np.clip(rounded, SOFTMAX_ZERO_POINT, _HIGHEST).astype(np.int32)


# log 2, √½, √√½, and the coefficients of a rational function of √x near 1.
_LOG_2, _ROOT_OF_HALF, _FOURTH_ROOT_OF_HALF = map(np.asarray, (1488522236, 1518500250, 1805811301))
_NUMERATOR, _SQUARED, _CONSTANT, _LINEAR = map(
    np.asarray, (117049297, 127690142, 1057819769, 638450708)
)
_QUARTER = 1 << 23  # with 6 bits in front of the point


def _logarithms(sums: np.ndarray) -> np.ndarray:
    """Returns logarithms, with 5 bits in front of the point, of numbers from 1 on, with 12 bits."""
    zeros = 32 - np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    reduced = np.minimum(high_product(sums << (zeros - 1), _ROOT_OF_HALF) << 1, ONE)
    reduced_power = ((_SUM_BITS - zeros) << 25) + _QUARTER
    half = high_product(sums, _ROOT_OF_HALF)
    headroom = 31 - np.frexp(half.astype(np.float64))[1].astype(np.int64)
    normalized = np.minimum(sums << headroom, ONE)
    normalized_power = ((_SUM_BITS - headroom) << 25) - _QUARTER
    r = np.minimum(reduced, normalized)
    total = r + _FOURTH_ROOT_OF_HALF
    p = (total + 1) >> 1
    q = 2 * (r - _FOURTH_ROOT_OF_HALF)
    square = high_product(q, q)
    numerator = high_product(q, r) + high_product(high_product(q, square), _NUMERATOR)
    denominator = high_product(p, _CONSTANT + q + high_product(_SQUARED, square))
    inverses = inverses_of_one_plus(denominator + high_product(_LINEAR, q))
    fraction = high_product(shifted_away(numerator, _INTEGER_BITS + 1), inverses)
    whole = high_product(np.maximum(reduced_power, normalized_power), _LOG_2)
    return np.asarray((whole + fraction) << 1)
