"""The rounding of softmax on int8: probabilities in units of 1/256, from stored integers.

Every set of kernels subtracts the largest integer of a row, so that zero points do not count, and
makes 256 p - 128, clipped to int8. They differ in how they take e to a power, and divide by the sum
of these powers: in float32, with tables of 16 bits, or in fixed point throughout.
"""

import numpy as np

from sat_tf.export.kernels.fixed_point import (
    fixed_point,
    high_product,
    rounded_away,
    rounded_twice_away,
    shifted_away,
)

SCALE, ZERO_POINT = np.float32(1.0 / 256.0), -128
_LEVELS = 256
_HIGHEST = 127


def powers(scale: np.float32) -> np.ndarray:
    """E to the power of the differences 0, -1, ... -255 times a scale, float32.

    float64 is rounded once to float32, as `expf` of the C library has it but for ties that no
    scale has been found to meet.
    """
    exponents = np.float32(-scale) * np.arange(_LEVELS, dtype=np.float32)
    return np.exp(exponents.astype(np.float64)).astype(np.float32)


def _differences(stored: np.ndarray) -> np.ndarray:
    """How far integers are below the largest one of their row."""
    return np.asarray(np.max(stored, axis=-1, keepdims=True) - stored)


def _stored(rounded: np.ndarray) -> np.ndarray:
    return np.clip(rounded + ZERO_POINT, ZERO_POINT, _HIGHEST).astype(np.int32)


def in_float32(stored: np.ndarray, scale: np.float32) -> np.ndarray:
    """A float32 sum from the first class to the last, its inverse, and halves away from zero.

    >>> in_float32(np.array([[3, 3, -90]]), np.float32(0.25)).tolist()
    [[0, 0, -128]]
    """
    found = powers(scale)[_differences(stored)]
    # One after another, as the order of additions counts in the last bit.
    sums = np.add.accumulate(found, axis=-1, dtype=np.float32)[..., -1:]
    inverse = np.float32(1.0) / (sums * SCALE)
    return _stored(rounded_away(found * inverse))


def with_tables(stored: np.ndarray, scale: np.float32) -> np.ndarray:
    """Powers of 16 bits, whose sum is exact, and a multiplier of 31 bits: Arm with 64 bits.

    >>> with_tables(np.array([[3, 3, -90]]), np.float32(0.25)).tolist()
    [[0, 0, -128]]
    """
    wide = (powers(scale) * np.float32(2**16 - 1)).astype(np.float64) + 0.5
    found = np.minimum(wide.astype(np.int64), 2**16 - 1)[_differences(stored)]
    sums = np.sum(found, axis=-1, keepdims=True)
    inverse = np.float32(1.0) / (sums.astype(np.float32) * SCALE)
    return _stored(rounded_twice_away(found, fixed_point(inverse)))


# -- in fixed point --------------------------------------------------------------------------------
# gemmlowp's functions on int32, as fractions of 2^31 unless said otherwise.

ONE = 2**31 - 1
_INTEGER_BITS = 5  # of a difference, behind its scale
_SUM_BITS = 12  # of the integer part of a sum
_EIGHTH = 1 << 28
_EXP_OF_EIGHTH, _THIRD = np.array(1895147668), np.array(715827883)
# e to the power of -1/4, -1/2, -1, ... -16.
_EXPONENTIALS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
# 48/17 and -32/17, of Newton's division, as fractions of 2^29.
_FIRST, _SLOPE = 1515870810, np.array(-1010580540)


def exponentials(values: np.ndarray, integer_bits: int) -> np.ndarray:
    """E to the power of numbers from -2^bits to 0, which are fractions of 2^(31 - bits)."""
    quarter = 1 << (31 - integer_bits - 2)
    part = (values & (quarter - 1)) - quarter
    x = (part << integer_bits) + _EIGHTH
    square = high_product(x, x)
    cube, fourth = high_product(square, x), high_product(square, square)
    rest = shifted_away(high_product(shifted_away(fourth, 2) + cube, _THIRD) + square, 1)
    found = _EXP_OF_EIGHTH + high_product(x + rest, _EXP_OF_EIGHTH)
    quarters = (part - values) // quarter
    for bit, factor in enumerate(_EXPONENTIALS):
        chosen = (quarters >> bit) & 1 == 1
        found = np.where(chosen, high_product(found, np.array(factor)), found)
    return np.where(values == 0, ONE, found)


def inverses_of_one_plus(values: np.ndarray) -> np.ndarray:
    """1 / (1 + x) of numbers from 0 to 1."""
    return np.minimum(_inverses_of_half(values) << 1, ONE)


def one_minus_over_one_plus(values: np.ndarray) -> np.ndarray:
    """(1 - x) / (1 + x) of numbers from 0 to 1."""
    return np.minimum((_inverses_of_half(values) - (1 << 29)) << 2, ONE)


def _inverses_of_half(values: np.ndarray) -> np.ndarray:
    """2 / (1 + x) of numbers from 0 to 1, as fractions of 2^29."""
    half = (values + ONE + 1) // 2
    x = _FIRST + high_product(half, _SLOPE)
    for _ in range(3):
        x = x + (high_product(x, (1 << 29) - high_product(half, x)) << 2)
    return np.asarray(x)


# Fewer powers of at most 1 never add up to 512, which kernels in fixed point refuse.
MOST_CLASSES = 511


def in_fixed_point(stored: np.ndarray, scale: np.float32) -> np.ndarray:
    """Gemmlowp's exponentials and Newton's division, of the plain C++ sources.

    A sum has 12 bits in front of its point. Where the powers of a row add up to 512 or more, as
    those of a thousand equal logits do, the kernels need a shift that they refuse, and end the
    process of LiteRT or TFLite Micro.

    >>> in_fixed_point(np.array([[3, 3, -90]]), np.float32(0.25)).tolist()
    [[0, 0, -128]]
    """
    fraction = 31 - _INTEGER_BITS
    multiplier = fixed_point(min(float(scale) * 2.0**fraction, 2.0**31 - 1.0))
    left = int(multiplier.left)
    widest = ((2**_INTEGER_BITS - 1) << fraction) >> left
    differences = -_differences(stored).astype(np.int64)
    near = differences >= -widest
    scaled = high_product(np.where(near, differences, 0) << left, multiplier.mantissas)
    found = np.where(near, exponentials(scaled, _INTEGER_BITS), 0)
    sums = np.sum(shifted_away(found, _SUM_BITS), axis=-1, keepdims=True)
    # 1 / (1 + x) of sums that are 2^bits · (1 + x).
    headroom = 32 - np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    inverses = inverses_of_one_plus((sums << headroom) - (np.int64(1) << 31))
    bits = _SUM_BITS - headroom
    return _stored(shifted_away(high_product(inverses, found), bits + 31 - 8))
