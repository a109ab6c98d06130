"""Ranges: which axes share one, when it counts as none, its scale and zero."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

# A range of weights whose size is smaller counts as one of zeros. The square of this is still a
# normal number, by which gradients divide.
SMALLEST_SIZE = 2.0**-63
# Below this nothing but zeros was observed: there is no range.
SMALLEST_RANGE = 1e-24
# A leaky rectifier of slope 0.2 has z half way between two integers at every even number of bits
# and every level: float32's rounding must not choose one of them anew in each step.
_TIE = 2.0**-10


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
    clipping_level: Any, levels: Any, lowest: Any, share: float, floor: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """The scale s and the number z of codes below zero of `asymmetric.quantize_offset`.

    `floor` is that of TensorFlow, Keras or NumPy, whichever the numbers are of.

    >>> scale_and_zero(6.0, 7, -1.0, 0.0, int)
    (1.0, 1)
    """
    scale = ((1.0 + share) * clipping_level - lowest) / levels
    return scale, count_below_zero(share * clipping_level - lowest, scale, floor)


def ends_of_skew(clipping_level: Any, skew: Any, where: Callable[..., Any]) -> tuple[Any, Any]:
    """The ends of a range whose larger one, of either sign, is a clipping level α.

        [-(1 - κ) α, α] where κ > 0,  [-α, (1 + κ) α] where κ < 0,  [-α, α] where κ = 0

    `where` is the choice by a condition, of whichever the numbers are of.

    >>> [float(end) for end in ends_of_skew(4.0, 0.75, np.where)]
    [-1.0, 4.0]
    """
    low = -clipping_level * where(skew > 0.0, 1.0 - skew, 1.0)
    high = clipping_level * where(skew < 0.0, 1.0 + skew, 1.0)
    return low, high


def count_below_zero(reach: Any, scale: Any, floor: Callable[[Any], Any]) -> Any:
    """The number z of codes that a range needs below zero, where half a code counts as one.

        z = floor(reach / s + 1/2 + 2^-10)

    The reach is how far the range goes below zero.

    >>> count_below_zero(2.4, 1.0, int), count_below_zero(0.2 * 5.2, 1.2 * 5.2 / 15, int)
    (2, 3)
    """
    return floor(reach / scale + (0.5 + _TIE))


def scale_and_zero_point(lowest: Any, highest: Any, rint: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The scale of 256 codes for a range that holds zero, and the stored code of real 0.

        s = (highest - lowest) / 255,  z = clip(round(-128 - lowest / s), -128, 127)

    Both ends are float64, and `SMALLEST_RANGE` apart; `rint` rounds ties to even.

    >>> scale_and_zero_point(-1.0, 254.0, round)
    (1.0, -127)
    """
    scale = (highest - lowest) / 255.0
    zero_point = rint(-128.0 - lowest / scale)
    return scale, zero_point


def observed_ends(scale: Any, zero_point: int) -> tuple[np.float32, np.float32] | None:
    """The ends of an observed range for which `scale_and_zero_point` gives this grid, bit for bit.

    None where no float32 numbers near by give this scale, as happens where one of them is 0.

    >>> [float(end) for end in observed_ends(np.float32(0.5), -126) or ()]
    [-1.0, 126.5]
    """
    scale = np.float32(scale)
    ends = [np.float32((end - zero_point) * np.float64(scale)) for end in (-128, 127)]
    for low in _neighbours(ends[0]):
        for high in _neighbours(ends[1]):
            found = scale_and_zero_point(np.float64(low), np.float64(high), np.rint)
            if (np.float32(found[0]), int(found[1])) == (scale, zero_point):
                return low, high
    return None


def _neighbours(value: np.float32) -> Iterator[np.float32]:
    """A number and the nearest float32 numbers on both sides; 0 alone."""
    for units in (0, 1, -1, 2, -2) if value else (0,):
        yield np.float32(value + np.float32(units) * np.spacing(value))
