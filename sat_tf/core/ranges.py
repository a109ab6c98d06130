"""Ranges: which axes share one, when it counts as none, its scale and zero; those observed.

Needs no TensorFlow.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

# A range of weights whose size is smaller counts as one of zeros. The square of this is still a
# normal number, by which gradients divide.
SMALLEST_SIZE = 2.0**-63
# Below this nothing but zeros was observed: there is no range.
SMALLEST_RANGE = 1e-24
# The share of the largest values that tells how a distribution ends, and how many times as many
# values its end is extrapolated to.
_TAIL_SHARE = 0.1
_TIMES_AS_MANY = 30.0


def axes_within(rank: int, range_axes: Iterable[int]) -> list[int]:
    """The axes along which a range extends, in a tensor with a range for each of `range_axes`.

    >>> axes_within(4, (-1,)), axes_within(2, ())
    ([0, 1, 2], [0, 1])
    """
    kept = {axis % rank for axis in range_axes}
    return [axis for axis in range(rank) if axis not in kept]


def range_shape(shape: Sequence[int], range_axes: Iterable[int]) -> list[int]:
    """The shape of one number for each range, of the tensor's rank.

    >>> range_shape((3, 3, 16, 32), (-1,)), range_shape((3, 3, 16, 32), ())
    ([1, 1, 1, 32], [1, 1, 1, 1])
    """
    within = axes_within(len(shape), range_axes)
    return [1 if axis in within else size for axis, size in enumerate(shape)]


def scale_and_zero(
    clipping_level: Any,
    levels: Any,
    lowest: float,
    share: float,
    floor: Callable[[Any], Any],
) -> tuple[Any, Any]:
    """The scale s and the number z of codes below zero of `asymmetric.quantize_offset`.

    Args:
        clipping_level: α, a float32 scalar tensor or a number.
        levels: a, the number of intervals.
        lowest: see there.
        share: see there.
        floor: of TensorFlow, Keras or NumPy, whichever the numbers are of.

    >>> scale_and_zero(6.0, 7, -1.0, 0.0, int)
    (1.0, 1)
    """
    scale = ((1.0 + share) * clipping_level - lowest) / levels
    return scale, floor((share * clipping_level - lowest) / scale + 0.5)


def scale_and_zero_point(lowest: Any, highest: Any, rint: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The scale of 256 codes for a range that holds zero, and the stored code of real 0.

        s = (highest - lowest) / 255,  z = clip(round(-128 - lowest / s), -128, 127)

    Args:
        lowest: at most 0, in float64.
        highest: at least 0, in float64, and `SMALLEST_RANGE` above `lowest`.
        rint: rounds to the nearest integer, ties to even; of whichever the numbers are of.

    >>> scale_and_zero_point(-1.0, 254.0, round)
    (1.0, -127)
    """
    scale = (highest - lowest) / 255.0
    zero_point = rint(-128.0 - lowest / scale)
    return scale, zero_point


def expected_largest(values: np.ndarray) -> float:
    """The largest value that is expected of 30 times as many as were seen, and at least 0.

        max(v) + b ln 30,  b = mean of v - t over the tenth of the values above t

    An end that falls off exponentially beyond t, the peaks-over-threshold method, has its largest
    value there. Values that all end at one bound, like probabilities, leave it where it is; that of
    a normal distribution is a quarter higher, and that of a heavy-tailed one twice as high. Where
    no value is positive, none is expected to be.

    Args:
        values: any number of them; those that are not finite do not count.

    >>> expected_largest(np.array([1.0, 1.0, 0.5])), expected_largest(np.array([-1.0, -2.0]))
    (1.0, 0.0)
    >>> round(expected_largest(np.arange(101.0)), 1)
    120.4
    """
    ordered = np.sort(values[np.isfinite(values)].astype(np.float64))
    if not ordered.size or ordered[-1] <= 0.0:
        return 0.0
    count = min(math.ceil(_TAIL_SHARE * ordered.size), ordered.size - 1)
    excess = np.mean(ordered[-count:] - ordered[-count - 1]) if count else 0.0
    return float(ordered[-1] + excess * math.log(_TIMES_AS_MANY))
