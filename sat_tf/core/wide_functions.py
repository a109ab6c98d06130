"""Differentiable functions with codes of 16 bits, as kernels compute them.

Results are multiples of 2^-15, on lines between the entries of the kernels' tables: integers, the
sigmoids of multiples of 1/24, the powers of e from -10 to 0, and the inverses of 1 to 2. Gradients
are those of the functions themselves, whose values are given as `smooth`.
"""

from collections.abc import Sequence

import numpy as np

from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import round_half_up
from sat_tf.core.tensor_ops import Namespace, Tensor, in_float32, namespace

_UNIT, _ONE, _MOST = 2.0**-15, 2**15, 2**16 - 1
Tables = Sequence[np.ndarray]


def sigmoid(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The sigmoid of a tensor."""
    n = namespace(x)
    codes = n.minimum((_on_lines(n, _size(n, x), tables[0], 512) + 512) // 1024, _ONE - 1)
    codes = n.where(x < 0.0, _ONE - codes, codes)
    return _fractions(n, codes, smooth)


def swish(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The product of a tensor and its sigmoid."""
    return x * sigmoid(x, 0.5 + 0.5 * namespace(x).tanh(0.5 * x), tables)


def tanh(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The tanh of a tensor: 2 · sigmoid(2x) - 1."""
    n = namespace(x)
    codes = (_on_lines(n, _size(n, x), tables[0], 256) + 128) // 256 - _ONE
    codes = n.where(x < 0.0, -codes, codes)
    return _fractions(n, codes, smooth)


def _fractions(n: Namespace, codes: Tensor, smooth: Tensor) -> Tensor:
    """The values of codes, and NaN where the function itself is NaN."""
    return straight_through(n.cast(codes, smooth.dtype) * _UNIT + 0.0 * smooth, smooth)


def _size(n: Namespace, x: Tensor) -> Tensor:
    """Magnitudes in units of 2^-12 / 3, int32; the table ends before 2^18 of them."""
    units = n.abs(round_half_up(in_float32(n, x) * (3.0 * 2**12)))
    return n.cast(n.minimum(units, 2.0**18), "int32")


def softmax(x: Tensor, smooth: Tensor, tables: Tables) -> Tensor:
    """The softmax over the last axis: powers, times the inverse of their sum, in 32 bits."""
    n = namespace(x)
    real = in_float32(n, x)
    units = round_half_up((real - n.max(real, axis=-1, keepdims=True)) * (_MOST / 10.0))
    places = n.cast(n.maximum(units, -float(_MOST)), "int32") + _MOST
    power = (_on_lines(n, places, tables[1], 128) + 64) // 128
    total = n.sum(power, axis=-1, keepdims=True)
    half = n.ones_like(total)
    for bits in range(1, 31):  # the largest power of two up to the total
        half = n.where(total >= 2**bits, 2**bits, half)
    ratio = n.cast(total, "float32") / n.cast(half, "float32") - 1.0
    places = n.minimum(n.cast(round_half_up(ratio * (_MOST + 1.0)), "int32"), _MOST)
    product = power * ((_on_lines(n, places, tables[2], 128) + 64) // 128)
    codes = n.minimum((product + half // 2) // half, _ONE - 1)
    return _fractions(n, codes, smooth)


def _on_lines(n: Namespace, places: Tensor, table: np.ndarray, line: int) -> Tensor:
    """Interpolates between entries of a table, `line` places apart; in units of 1 / `line`."""
    places = n.minimum(n.maximum(places, 0), (len(table) - 1) * line)  # also where NaN became one
    lower, rise = (
        n.take(n.constant(array, "int32"), places // line, axis=0)
        for array in (table, np.append(np.diff(table), 0))
    )
    return lower * line + rise * (places % line)
