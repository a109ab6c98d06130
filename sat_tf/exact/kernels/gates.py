"""The gates and the states of an LSTM, as integer kernels compute them in 16 bits.

What a gate sums up has 3 bits in front of its point, 4096 codes to one; its sigmoid or tanh is a
fraction of 2^15. The cell's state has as many bits in front of its point as its scale says.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sat_tf.exact.kernels import fixed_point, functions, wide
from sat_tf.exact.kernels.wide import ALL, WIDTH, in_int16

GATE_BITS = 3
# Kernels have a tanh for cells with 0 to 6 bits in front of their point.
MOST_CELL_BITS = 6


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


def _looked_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns a function's result from those of all numbers of 16 bits."""
    return np.asarray(table[values + (1 << WIDTH)])


# -- LiteRT ----------------------------------------------------------------------------------------


@functools.cache
def _sigmoids_of_gemmlowp() -> np.ndarray:
    return functions.sigmoids(ALL, GATE_BITS, WIDTH)


@functools.cache
def _tanhs_of_gemmlowp(bits: int) -> np.ndarray:
    return functions.tanhs(ALL, bits, WIDTH)


# All of LiteRT's kernels, with and without vectors: gemmlowp's functions, and one rounding each.
OF_LITERT = Gates(
    summed=lambda inputs, hidden: in_int16(inputs + hidden),
    sigmoid=lambda values: _looked_up(values, _sigmoids_of_gemmlowp()),
    tanh=lambda values, bits: _looked_up(values, _tanhs_of_gemmlowp(bits)),
    product=lambda x, y, bits: fixed_point.shifted_away(x * y, bits),
    to_codes=lambda scale: float(np.float32(2.0 ** (-2 * WIDTH) / float(scale))),
)


# -- TFLite Micro ----------------------------------------------------------------------------------


def _tanhs_of_micro(values: np.ndarray, bits: int) -> np.ndarray:
    shift = bits - GATE_BITS
    tripled = 3 * values.astype(np.int64)
    near = tripled << shift if shift >= 0 else fixed_point.shifted_up(tripled, -shift)
    return wide.tanhs(near)


# Both parts of a sum are clipped, and products are rounded twice.
OF_MICRO = Gates(
    summed=lambda inputs, hidden: in_int16(inputs + in_int16(hidden)),
    sigmoid=lambda values: wide.sigmoids(3 * values),
    tanh=_tanhs_of_micro,
    product=lambda x, y, bits: fixed_point.rescaled(x * y, 2.0**-bits),
    to_codes=lambda scale: 2.0 ** (-2 * WIDTH) / float(scale),
    takes_grid_of_state=True,
)
