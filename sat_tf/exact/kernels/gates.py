"""The gates and the states of an LSTM, as integer kernels compute them in 16 bits.

What a gate sums up has 3 bits in front of its point, 4096 codes to one; its sigmoid or tanh is a
fraction of 2^15. The cell's state has as many bits in front of its point as its scale says.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sat_tf.exact.kernels import fixed_point, functions, wide
from sat_tf.exact.kernels.functions import WIDTH_16 as WIDTH
from sat_tf.exact.kernels.functions import in_int16

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


_ALL = np.arange(-(1 << WIDTH), 1 << WIDTH)


# -- LiteRT ----------------------------------------------------------------------------------------


@functools.cache
def _of_all(function: Callable[..., np.ndarray], bits: int) -> np.ndarray:
    """Returns gemmlowp's results for all numbers of 16 bits."""
    return function(_ALL, bits, WIDTH)


# All of LiteRT's kernels, with and without vectors: gemmlowp's functions, and one rounding each.
OF_LITERT = Gates(
    summed=lambda inputs, hidden: in_int16(inputs + hidden),
    sigmoid=lambda values: _of_all(functions.sigmoids, GATE_BITS)[values - _ALL[0]],
    tanh=lambda values, bits: _of_all(functions.tanhs, bits)[values - _ALL[0]],
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
