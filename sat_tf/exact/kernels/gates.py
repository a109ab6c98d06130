"""The gates and the states of an LSTM, as integer kernels compute them in 16 bits.

What a gate sums up has 3 bits in front of its point, 4096 codes to one; its sigmoid or tanh is a
fraction of 2^15. The cell's state has as many bits in front of its point as its scale says.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sat_tf.exact.kernels import fixed_point, functions

WIDTH = 15  # bits of a positive int16
GATE_BITS = 3
# Kernels have a tanh for cells with 0 to 6 bits in front of their point.
MOST_CELL_BITS = 6


def in_int16(values: np.ndarray) -> np.ndarray:
    """Clips integers to those of 16 bits."""
    return np.clip(values, -(1 << WIDTH), (1 << WIDTH) - 1)


class Gates(NamedTuple):
    """The rounding of one kernel."""

    # The sum of a gate, from its part of the inputs in 16 bits, and its part of the hidden state.
    summed: Callable[[np.ndarray, np.ndarray], np.ndarray]
    sigmoid: Callable[[np.ndarray], np.ndarray]  # The sigmoid of a gate's sum.
    # The tanh of numbers with some bits in front of their point.
    tanh: Callable[[np.ndarray, int], np.ndarray]
    # The product of two numbers, divided by a power of two that is given in bits.
    product: Callable[[np.ndarray, np.ndarray, int], np.ndarray]
    # The multiplier of products of two fractions of 2^15, to codes of a scale.
    to_codes: Callable[[np.float32], float]
    # Whether a hidden state gets the grid of the state's tensor, or that of an intermediate tensor.
    takes_grid_of_state: bool = False


_ALL = np.arange(-(1 << WIDTH), 1 << WIDTH)


def _looked_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns a function's result from those of all numbers of 16 bits."""
    return np.asarray(table[values + (1 << WIDTH)])


# -- LiteRT ----------------------------------------------------------------------------------------


@functools.cache
def _sigmoids_of_gemmlowp() -> np.ndarray:
    return functions.sigmoids(_ALL, GATE_BITS, WIDTH)


@functools.cache
def _tanhs_of_gemmlowp(bits: int) -> np.ndarray:
    return functions.tanhs(_ALL, bits, WIDTH)


# All of LiteRT's kernels, with and without vectors: gemmlowp's functions, and one rounding each.
OF_LITERT = Gates(
    summed=lambda inputs, hidden: in_int16(inputs + hidden),
    sigmoid=lambda values: _looked_up(values, _sigmoids_of_gemmlowp()),
    tanh=lambda values, bits: _looked_up(values, _tanhs_of_gemmlowp(bits)),
    product=lambda x, y, bits: fixed_point.shifted_away(x * y, bits),
    to_codes=lambda scale: float(np.float32(2.0 ** (-2 * WIDTH) / float(scale))),
)


# -- TFLite Micro ----------------------------------------------------------------------------------

# The kernel interpolates between sigmoids of i / 24, fractions of 2^16. Each is moved by a 16th of
# the second difference, so that lines between them are about as far below the curve as above it.
_STEPS_TO_ONE, _ENTRIES, _SHARE = 24, 256, 16
_SATURATED = 2**16 - 1


@functools.cache
def sigmoid_table() -> np.ndarray:
    """Returns the sigmoids between which TFLite Micro interpolates."""
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


def _sigmoids_of_micro(values: np.ndarray) -> np.ndarray:
    """Interpolates sigmoids, and rounds half up from 0 on; below 0, the same from 1 downwards."""
    size = _interpolated(np.abs(3 * values), 9, 0x7FFF << 10)
    half = 1 << 9
    return np.where(values >= 0, size + half, (1 << 25) - size + half - 1) >> 10


def _tanhs_of_micro(values: np.ndarray, bits: int) -> np.ndarray:
    """Computes 2 · sigmoid(2x) - 1 with the same table."""
    shift = bits - GATE_BITS
    tripled = 3 * values.astype(np.int64)
    near = tripled << shift if shift >= 0 else fixed_point.shifted_up(tripled, -shift)
    size = _interpolated(np.abs(near), 8, 0xFFFF << 8)
    half = 1 << 7
    return np.where(near >= 0, size - (1 << 23) + half, (1 << 23) - size + half - 1) >> 8


# Both parts of a sum are clipped, and products are rounded twice.
OF_MICRO = Gates(
    summed=lambda inputs, hidden: in_int16(inputs + in_int16(hidden)),
    sigmoid=_sigmoids_of_micro,
    tanh=_tanhs_of_micro,
    product=lambda x, y, bits: fixed_point.rescaled(x * y, 2.0**-bits),
    to_codes=lambda scale: 2.0 ** (-2 * WIDTH) / float(scale),
    takes_grid_of_state=True,
)
