"""Functions on codes of 16 bits: fractions of 2^15, on lines between the entries of tables."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from sat_tf.exact.kernels.fixed_point import rescaled, rounded_away, shifted_up
from sat_tf.exact.kernels.functions import WIDTH_16 as WIDTH
from sat_tf.exact.kernels.functions import Curve, FunctionRule, Grids, in_int16

SCALE = np.float32(2.0**-WIDTH)  # of the results
# The operators of functions with kernels for codes of 16 bits.
OPERATORS = ("ABS", "LEAKY_RELU", "LOGISTIC", "SOFTMAX", "TANH")

# The kernels interpolate between sigmoids of i / 24, fractions of 2^16. Each is moved by a 16th of
# the second difference, so that lines between them are about as far below the curve as above it.
_STEPS_TO_ONE, _ENTRIES, _SHARE = 24, 256, 16
_SATURATED = 2**16 - 1


@functools.cache
def sigmoid_table() -> np.ndarray:
    """Returns the sigmoids between which kernels interpolate."""
    curve = 1.0 / (1.0 + np.exp(-np.arange(_ENTRIES) / _STEPS_TO_ONE))
    bend = curve * (1.0 - curve) * (1.0 - 2.0 * curve) / _STEPS_TO_ONE**2
    table = np.rint(2.0**16 * (curve - bend / _SHARE)).astype(np.int64)
    table[-1] = _SATURATED
    return table


def _interpolated(sizes: np.ndarray, bits: int, saturated: int) -> np.ndarray:
    """Returns sigmoids, in units of 2^-(16 + bits), between entries that are 2^bits sizes apart."""
    place, fraction = sizes >> bits, sizes & ((1 << bits) - 1)
    table = sigmoid_table()
    lower = table[np.minimum(place, _ENTRIES - 2)]
    upper = table[np.minimum(place + 1, _ENTRIES - 1)]
    return np.where(place < _ENTRIES - 1, (lower << bits) + fraction * (upper - lower), saturated)


def sigmoids(thirds: np.ndarray) -> np.ndarray:
    """Interpolates sigmoids, rounded half up; below 0, 1 less those of -x, rounded half down."""
    size = _interpolated(np.abs(thirds), 9, 0x7FFF << 10)
    half = 1 << 9
    return np.where(thirds >= 0, size + half, (1 << 25) - size + half - 1) >> 10


def tanhs(thirds: np.ndarray) -> np.ndarray:
    """Computes 2 · sigmoid(2x) - 1 with the same table."""
    size = _interpolated(np.abs(thirds), 8, 0xFFFF << 8)
    half = 1 << 7
    return np.where(thirds >= 0, size - (1 << 23) + half, (1 << 23) - size + half - 1) >> 8


def curve(
    by_table: Callable[[np.ndarray], np.ndarray],
    most_bits: int,
    by_gemmlowp: Callable[[np.ndarray, int, int], np.ndarray] | None = None,
) -> FunctionRule:
    """Returns the rule of a sigmoid or a tanh, whose table reads thirds of 2^-12.

    A multiplier truncated to 15 bits makes these of codes. A scale within 0.07 % of 2^-12, or of
    up to `most_bits` larger powers of two, counts as that power: the builtin kernels have another
    function there, and the others a multiplier of 3.

    >>> rule = curve(sigmoids, 0)
    >>> rule(np.array([-32768, 0, 2048, 32767]), Grids(np.float32(3e-4), SCALE)).tolist()
    [2, 16384, 21265, 32766]
    """

    def rule(codes: np.ndarray, grids: Grids) -> np.ndarray:
        codes, power = codes.astype(np.int64), np.log2(float(grids.scale)) + 12.0
        bits = int(np.rint(power))
        if abs(power - bits) < 1e-3 and 0 <= bits <= most_bits:
            if by_gemmlowp is None:
                return by_table(3 * codes << bits)
            return by_gemmlowp(in_int16(codes << bits), 3, WIDTH)
        multiplier, shift = float(grids.scale) * 3.0 * 2**12, 0
        if multiplier > _SATURATED:  # kernels overflow int32
            raise ValueError(f"its scale of {grids.scale:.4g} is too large for its kernels")
        while multiplier <= 32767.0 / 2.0 and shift <= 30:
            multiplier, shift = 2.0 * multiplier, shift + 1
        return by_table(shifted_up(codes * int(multiplier), shift))

    return rule


# -- softmax ---------------------------------------------------------------------------------------

_STEPS, _OFFSET_BITS = 512, 7
_LOWEST = -10.0  # e to any lower power counts as e^-10


@functools.cache
def tables(precision: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Returns e to the power of -10 to 0, and 1 / (1 + x) of 0 to 1: fractions of 2^15.

    LiteRT computes these 513 entries in float64, and TFLite Micro in float32. Each is moved by half
    of the error in the middle to the next.
    """
    real = np.dtype(precision).type

    def table(function: Curve, low: float) -> np.ndarray:
        step, unit = real(max(1.0, -low) / _STEPS), real(2.0**WIDTH)
        places = real(low) + step * np.arange(_STEPS + 1, dtype=real)
        at, between = (rounded_away(function(x) * unit) for x in (places, places + step / 2))
        middle = rounded_away((function(places + step) * unit + at) / 2)
        moved = at - rounded_away((middle - between) / 2)
        return in_int16(np.append(moved[:-1], at[-1:])).astype(np.int64)

    powers = table(lambda x: np.exp(x.astype(np.float64)).astype(real), _LOWEST)
    return powers, table(lambda x: np.asarray(real(1.0) / (real(1.0) + x)), 0.0)


def _looked_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Interpolates between the entries of a table of 513, by values of 16 bits."""
    place = (values >> _OFFSET_BITS) + _STEPS // 2
    rise = (table[place + 1] - table[place]) * (values & ((1 << _OFFSET_BITS) - 1))
    return np.asarray(table[place] + ((rise + 64) >> _OFFSET_BITS))


def softmax(stored: np.ndarray, scale: np.floating[Any], precision: str = "float64") -> np.ndarray:
    """Multiplies powers by the inverse of their exact sum, both from tables.

    >>> softmax(np.array([[0, 0]]), np.float64(1e-3)).tolist()
    [[16384, 16384]]
    """
    differences = stored - np.max(stored, axis=-1, keepdims=True)
    scaled = rescaled(differences, float(scale) / (-_LOWEST / _SATURATED))
    powers = _looked_up(in_int16(scaled + 32767), tables(precision)[0])
    sums = np.sum(powers, axis=-1, keepdims=True)
    # The sums are 2^bits · (1 + x), and the table reads x from -2^15 on.
    bits = np.frexp(sums.astype(np.float64))[1].astype(np.int64)
    fractions = ((sums << (31 - bits)) + (1 << 13)) >> 14
    inverses = _looked_up(in_int16(fractions - (3 << WIDTH)), tables(precision)[1])
    return np.clip(shifted_up(powers * inverses, bits - 1), 0, 32767).astype(np.int32)
