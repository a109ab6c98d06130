"""Functions on codes of 16 bits: lines between the entries of tables, which give fractions of 2^15.

All of LiteRT's kernels and TFLite Micro have the same tables, but for inputs whose scale is a power
of two: see `logistic_by_gemmlowp`.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from sat_tf.exact.kernels.fixed_point import rescaled, rounded_away, shifted_up
from sat_tf.exact.kernels.functions import Curve, Grids, sigmoids, tanhs

WIDTH = 15  # bits of a positive int16
# The grid of the results.
SCALE = np.float32(2.0**-WIDTH)
ALL = np.arange(-(1 << WIDTH), 1 << WIDTH)


def in_int16(values: np.ndarray) -> np.ndarray:
    """Clips integers to those of 16 bits."""
    return np.clip(values, -(1 << WIDTH), (1 << WIDTH) - 1)


# -- sigmoid and tanh ------------------------------------------------------------------------------

# The kernels interpolate between sigmoids of i / 24, fractions of 2^16. Each is moved by a 16th of
# the second difference, so that lines between them are about as far below the curve as above it.
_STEPS_TO_ONE, _ENTRIES, _SHARE = 24, 256, 16
_SATURATED = 2**16 - 1
# Units of the table's input, thirds of 2^-12, in one.
UNITS = 3.0 * 2**12


@functools.cache
def sigmoid_table() -> np.ndarray:
    """Returns the sigmoids between which kernels interpolate."""
    curve = 1.0 / (1.0 + np.exp(-np.arange(_ENTRIES) / _STEPS_TO_ONE))
    bend = curve * (1.0 - curve) * (1.0 - 2.0 * curve) / _STEPS_TO_ONE**2
    table = np.rint(2.0**16 * (curve - bend / _SHARE)).astype(np.int64)
    table[-1] = _SATURATED
    return table


def _interpolated(sizes: np.ndarray, bits: int, saturated: int) -> np.ndarray:
    """Returns sigmoids, as fractions of 2^(16 + bits), of sizes whose last `bits` lie between."""
    place, fraction = sizes >> bits, sizes & ((1 << bits) - 1)
    table = sigmoid_table()
    lower = table[np.minimum(place, _ENTRIES - 2)]
    upper = table[np.minimum(place + 1, _ENTRIES - 1)]
    return np.where(place < _ENTRIES - 1, (lower << bits) + fraction * (upper - lower), saturated)


def sigmoids_by_table(near: np.ndarray) -> np.ndarray:
    """Interpolates sigmoids, and rounds half up from 0 on; below 0, the same from 1 downwards."""
    size = _interpolated(np.abs(near), 9, 0x7FFF << 10)
    half = 1 << 9
    return np.where(near >= 0, size + half, (1 << 25) - size + half - 1) >> 10


def tanhs_by_table(near: np.ndarray) -> np.ndarray:
    """Computes 2 · sigmoid(2x) - 1 with the same table."""
    size = _interpolated(np.abs(near), 8, 0xFFFF << 8)
    half = 1 << 7
    return np.where(near >= 0, size - (1 << 23) + half, (1 << 23) - size + half - 1) >> 8


def _power_of_two(scale: np.float32, *, most_bits: int) -> int | None:
    """Returns the power of two that a scale is, counted from 2^-12; None for other scales.

    Kernels take scales within 0.07 % for the power itself.
    """
    power = np.log2(float(scale))
    nearest = int(np.rint(power))
    bits = nearest + 12
    return bits if abs(power - nearest) < 1e-3 and 0 <= bits <= most_bits else None


def _in_units(codes: np.ndarray, scale: np.float32, *, most_bits: int) -> np.ndarray:
    """Returns codes in units of the table's input: by a multiplier of 15 bits, cut off."""
    codes = codes.astype(np.int64)
    if (bits := _power_of_two(scale, most_bits=most_bits)) is not None:
        return codes * (3 << bits)
    multiplier, shift = float(scale) * UNITS, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = 2.0 * multiplier, shift + 1
    return shifted_up(codes * int(multiplier), shift)


def logistic(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a sigmoid with a table: all kernels, but for some scales.

    >>> logistic(np.array([-32768, 0, 2048, 32767]), Grids(np.float32(3e-4), SCALE)).tolist()
    [2, 16384, 21265, 32766]
    """
    return sigmoids_by_table(_in_units(codes, grids.scale, most_bits=0))


def tanh(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a tanh with a table: all kernels, but for some scales."""
    return tanhs_by_table(_in_units(codes, grids.scale, most_bits=1))


def logistic_by_gemmlowp(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a sigmoid by gemmlowp where the scale is 2^-12: the builtin kernels."""
    if _power_of_two(grids.scale, most_bits=0) is None:
        return logistic(codes, grids)
    return sigmoids(codes.astype(np.int64), 3, WIDTH)


def tanh_by_gemmlowp(codes: np.ndarray, grids: Grids) -> np.ndarray:
    """Computes a tanh by gemmlowp where the scale is 2^-12 or 2^-11: the builtin kernels."""
    bits = _power_of_two(grids.scale, most_bits=1)
    if bits is None:
        return tanh(codes, grids)
    return tanhs(in_int16(codes.astype(np.int64) << bits), 3, WIDTH)


_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-30, 32767.0 / UNITS


def scale_problem(scale: np.float32) -> str | None:
    """Returns why the tables do not take the scale of an input, with the fix; None if they do."""
    if _SMALLEST_SCALE < scale <= _LARGEST_SCALE:
        return None
    return (
        f"received a sigmoid or a tanh of codes whose scale is {scale:.4g}, expected more than "
        f"{_SMALLEST_SCALE:.2g} and at most {_LARGEST_SCALE:.4g}; a clipping level is far from its "
        "values: call sat_tf.calibrate, or train longer."
    )


# -- softmax ---------------------------------------------------------------------------------------

_STEPS, _OFFSET_BITS = 512, 7
_LOWEST_EXPONENT = 10.0  # e to the power of less counts as that of -10


def _table(curve: Curve, low: float, high: float, real: type[np.floating[Any]]) -> np.ndarray:
    """Returns a curve's fractions of 2^15 at 513 places, moved by half of the error between two.

    It is computed in a type of real numbers, whose rounding decides some of the last bits.
    """
    step, unit = real((high - low) / _STEPS), real(2.0**WIDTH)
    places = real(low) + step * np.arange(_STEPS + 1, dtype=real)
    at, between = rounded_away(curve(places) * unit), rounded_away(curve(places + step / 2) * unit)
    middle = rounded_away((curve(places + step) * unit + at) / 2)
    moved = at - rounded_away((middle - between) / 2)
    return in_int16(np.append(moved[:-1], at[-1:])).astype(np.int64)


class Tables(NamedTuple):
    """The tables of a softmax."""

    exponentials: np.ndarray  # e to the power of -10 to 0.
    inverses: np.ndarray  # 1 / (1 + x) of 0 to 1.


@functools.cache
def tables(precision: str = "float64") -> Tables:
    """Returns the tables that kernels compute in a precision, "float64" or "float32"."""
    real = np.dtype(precision).type

    def exponential(x: np.ndarray) -> np.ndarray:
        return np.exp(x.astype(np.float64)).astype(real)

    def inverse(x: np.ndarray) -> np.ndarray:
        return np.asarray(real(1.0) / (real(1.0) + x))

    ends = -_LOWEST_EXPONENT, 0.0
    return Tables(_table(exponential, *ends, real), _table(inverse, 0.0, 1.0, real))


def looked_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Interpolates between the entries of a table of 513, by values of 16 bits."""
    place = (values >> _OFFSET_BITS) + _STEPS // 2
    offset = values & ((1 << _OFFSET_BITS) - 1)
    rise = (table[place + 1] - table[place]) * offset
    return np.asarray(table[place] + ((rise + 64) >> _OFFSET_BITS))


def softmax(stored: np.ndarray, scale: np.floating[Any], precision: str = "float64") -> np.ndarray:
    """Multiplies powers by the inverse of their exact sum, both from tables.

    LiteRT computes the tables in float64, and TFLite Micro in float32.

    >>> softmax(np.array([[0, 0]]), np.float64(1e-3)).tolist()
    [[16384, 16384]]
    """
    exponentials, inverses_of_one_plus = tables(precision)
    differences = stored - np.max(stored, axis=-1, keepdims=True)
    scaled = rescaled(differences, float(scale) / (_LOWEST_EXPONENT / (2.0**16 - 1.0)))
    powers = looked_up(in_int16(scaled + 32767), exponentials)
    sums = np.sum(powers, axis=-1, keepdims=True)
    # The sums are 2^bits · (1 + x), and the table reads x from -2^15 on.
    bits = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    fractions = ((sums << (31 - bits)) + (1 << 13)) >> 14
    inverses = looked_up(in_int16(fractions - (1 << 15) - (1 << 16)), inverses_of_one_plus)
    products = shifted_up(powers * inverses, bits - 1)
    return np.clip(products, 0, 32767).astype(np.int32)
