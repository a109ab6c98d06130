"""Functions with codes of 16 bits as kernels compute them, differentiable.

Results are multiples of 2^-15, on lines between the entries of the kernels' tables. Gradients are
those of the functions themselves, whose values are given as `smooth`.
"""

from typing import Any, NamedTuple

import numpy as np

from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import round_half_up
from sat_tf.core.tensors import Namespace, Tensor, in_float32, namespace

_UNIT, _HALF, _MOST = 2.0**-15, 2**15, 2**16 - 1
_LINE = 128  # values on a line between two entries, of powers and inverses


class Tables(NamedTuple):
    """The tables of kernels, integers."""

    sigmoids: np.ndarray  # (256,): fractions of 2^16, of multiples of 1/24.
    powers: np.ndarray  # (513,): fractions of 2^15, e to the power of -10 to 0.
    inverses: np.ndarray  # (513,): 1 / (1 + x) of 0 to 1.


def sigmoid(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The sigmoid of a tensor."""
    n = namespace(x)
    odd = _odd(n, x, tables.sigmoids, 2.0**9, _HALF - 2.0)
    codes = _HALF // 2 + n.sign(x) * n.floor((odd + 1.0) / 2.0)
    return straight_through(n.cast(codes * _UNIT, smooth.dtype), smooth)


def swish(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The product of a tensor and its sigmoid."""
    return x * sigmoid(x, 0.5 + 0.5 * namespace(x).tanh(0.5 * x), tables)


def tanh(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The tanh of a tensor: 2 · sigmoid(2x) - 1."""
    n = namespace(x)
    codes = n.sign(x) * n.floor(_odd(n, x, tables.sigmoids, 2.0**8, _HALF - 1.0) + 0.5)
    return straight_through(n.cast(codes * _UNIT, smooth.dtype), smooth)


def _odd(n: Namespace, x: Tensor, table: np.ndarray, line: float, end: float) -> Tensor:
    """2^16 · sigmoid - 2^15 of magnitudes, in units of 2^-12 / 3, on lines of some units each."""
    last = len(table) - 1
    size = n.minimum(n.abs(round_half_up(in_float32(n, x) * (3.0 * 2**12))), line * (last + 1))
    place = _within(n, n.cast(n.floor(size / line), "int32"), last)
    lower, rise = (
        n.take(n.constant(array, "float32"), place, axis=0)
        for array in (table - _HALF, np.append(np.diff(table), 0))
    )
    between = size / line - n.cast(place, "float32")
    return n.where(place < last, lower + rise * between, end)


def softmax(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The softmax over the last axis: powers, times the inverse of their sum, in 32 bits."""
    n = namespace(x)
    real = in_float32(n, x)
    units = round_half_up((real - n.max(real, axis=-1, keepdims=True)) * (_MOST / 10.0))
    power = _on_lines(n, n.cast(n.maximum(units, -float(_MOST)), "int32") + _MOST, tables.powers)
    total = n.sum(power, axis=-1, keepdims=True)
    half = n.ones_like(total)
    for bits in range(1, 31):  # the largest power of two up to the total
        half = n.where(total >= 2**bits, 2**bits, half)
    ratio = n.cast(total, "float32") / n.cast(half, "float32")
    fraction = n.cast(round_half_up((ratio - 1.0) * (_MOST + 1.0)), "int32")
    product = power * _on_lines(n, fraction, tables.inverses)
    codes = n.minimum((product + half // 2) // half, _HALF - 1)
    return straight_through(n.cast(codes, smooth.dtype) * _UNIT, smooth)


def _on_lines(n: Namespace, values: Tensor, table: np.ndarray) -> Any:
    """Integers on the lines of a table, by values from 0 to 2^16 - 1."""
    values = _within(n, values, _MOST)
    lower, rise = (
        n.take(n.constant(array, "int32"), values // _LINE, axis=0)
        for array in (table, np.append(np.diff(table), 0))
    )
    return lower + (rise * (values % _LINE) + _LINE // 2) // _LINE


def _within(n: Namespace, values: Tensor, most: int) -> Tensor:
    """Integers from 0 to an end, also those that NaN became."""
    return n.minimum(n.maximum(values, 0), most)
