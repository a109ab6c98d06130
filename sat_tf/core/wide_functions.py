"""Functions with codes of 16 bits as kernels compute them, differentiable.

Results are multiples of 2^-15: lines between the entries of the kernels' tables, which callers
give. Gradients are those of the functions themselves, which are given as `smooth`.
"""

from typing import Any

import numpy as np

from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import round_half_up
from sat_tf.core.tensors import Namespace, Tensor, in_float32, namespace

_UNIT = 2.0**-15
_UNITS_TO_ONE = 3.0 * 2**12  # of the input of the table of sigmoids
_HALF, _LAST = 2**15, 255  # 1/2 as a fraction of 2^16, and the place of the table's last entry
_MOST = 2**16 - 1
_UNITS_OF_POWERS = _MOST / 10.0  # to one, of the input of the table of powers
_LINE = 128  # values on a line between two entries


def sigmoid(x: Tensor, smooth: Tensor, table: np.ndarray) -> Tensor:
    """The sigmoid of a tensor: 1/2 and half of the odd function that the table holds."""
    n = namespace(x)
    odd = _odd(n, x, table, 2.0**9, 2.0 * (_HALF - 1.0) - _HALF)
    codes = _HALF // 2 + n.sign(x) * n.floor((odd + 1.0) / 2.0)
    return straight_through(n.cast(codes * _UNIT, smooth.dtype), smooth)


def tanh(x: Tensor, smooth: Tensor, table: np.ndarray) -> Tensor:
    """The tanh of a tensor: 2 · sigmoid(2x) - 1."""
    n = namespace(x)
    codes = n.sign(x) * n.floor(_odd(n, x, table, 2.0**8, _MOST - _HALF) + 0.5)
    return straight_through(n.cast(codes * _UNIT, smooth.dtype), smooth)


def _odd(n: Namespace, x: Tensor, table: np.ndarray, line: float, end: float) -> Tensor:
    """2^16 · sigmoid - 2^15 of magnitudes of a tensor, between entries `line` units apart."""
    size = n.minimum(n.abs(round_half_up(in_float32(n, x) * _UNITS_TO_ONE)), line * (_LAST + 1))
    place = _within(n, n.cast(n.floor(size / line), "int32"), _LAST)
    lower, rise = table - _HALF, np.append(np.diff(table), 0)
    entries = [n.take(n.constant(array, "float32"), place, axis=0) for array in (lower, rise)]
    between = (size - n.cast(place, "float32") * line) / line
    return n.where(place < _LAST, entries[0] + entries[1] * between, end)


def _within(n: Namespace, values: Tensor, most: int) -> Tensor:
    """Integers from 0 to an end, also those that NaN became."""
    return n.minimum(n.maximum(values, 0), most)


def softmax(x: Tensor, smooth: Tensor, powers: np.ndarray, inverses: np.ndarray) -> Tensor:
    """The softmax over the last axis: powers, times the inverse of their sum, in 32 bits."""
    n = namespace(x)
    real = in_float32(n, x)
    differences = round_half_up((real - n.max(real, axis=-1, keepdims=True)) * _UNITS_OF_POWERS)
    power = _looked_up(n, n.cast(n.maximum(differences, -float(_MOST)), "int32") + _MOST, powers)
    total = n.sum(power, axis=-1, keepdims=True)
    # 2^bits is the largest power of two up to the total.
    half = n.ones_like(total)
    for bits in range(1, 31):
        half = n.where(total >= 2**bits, 2**bits, half)
    ratio = n.cast(total, "float32") / n.cast(half, "float32")
    fraction = n.cast(round_half_up((ratio - 1.0) * (_MOST + 1.0)), "int32")
    product = power * _looked_up(n, fraction, inverses)
    codes = n.minimum((product + half // 2) // half, _HALF - 1)
    return straight_through(n.cast(codes, smooth.dtype) * _UNIT, smooth)


def _looked_up(n: Namespace, values: Tensor, table: np.ndarray) -> Any:
    """Integers on the lines between the entries of a table, by values from 0 to 2^16 - 1."""
    values = _within(n, values, _MOST)
    place, offset = values // _LINE, values % _LINE
    lower, rise = (
        n.take(n.constant(array, "int32"), place, axis=0)
        for array in (table, np.append(np.diff(table), 0))
    )
    return lower + (rise * offset + _LINE // 2) // _LINE
