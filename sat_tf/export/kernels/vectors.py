"""Builtin kernels with vectors: blocks of values round otherwise than those behind the last one.

LiteRT's optimized kernels are written for Arm's vectors, and x86 has the same ones, translated.
They take values in blocks, and those that do not fill one as the reference kernels do. A block has
other ties than these, and sums in it other last bits.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from sat_tf.export.kernels.fixed_point import (
    SUM_BITS,
    Multipliers,
    fixed_point,
    high_product,
    rounded_away,
    rounded_twice_away,
    rounded_twice_up,
    sum_as_codes,
    summand_multipliers,
    summed,
)

_CHANNELS, _MEANS, _REALS = 8, 16, 8  # in a block
_SUMS, _SUMS_WITH_ONE_VALUE = 16, 8


def in_blocks(length: int, size: int) -> np.ndarray:
    """Tells which of `length` values are in a full block of `size`.

    >>> in_blocks(5, 2).tolist()
    [True, True, True, True, False]
    """
    return np.arange(length) < length // size * size


def requantized(values: np.ndarray, multipliers: Multipliers) -> np.ndarray:
    """Rounded twice: channels in blocks up, the others away from zero."""
    return _requantized(values, multipliers, _CHANNELS)


def _requantized(values: np.ndarray, multipliers: Multipliers, size: int) -> np.ndarray:
    up, away = rounded_twice_up(values, multipliers), rounded_twice_away(values, multipliers)
    return np.where(in_blocks(values.shape[-1], size), up, away)


def mean_of_stored(
    sums: np.ndarray, count: int, scales: tuple[np.float32, np.float32], zeros: tuple[int, int]
) -> np.ndarray:
    """Stored integers of a mean that keeps its dimensions.

    Sums of stored integers are scaled as they are, with a multiplier in float32; the zero points
    are added as one integer.

    Args:
        sums: of stored integers, channels on the last axis.
        count: how many are in a sum.
        scales: of the input and of the output.
        zeros: their zero points.
    """
    scale, output_scale = scales
    moved = np.float32(np.float32(zeros[0]) * scale) / output_scale
    moved = np.float32(moved + (np.float32(0.5) if moved > 0 else np.float32(-0.5)))
    multiplier = fixed_point(float(scale / (np.float32(count) * output_scale)))
    return _requantized(sums, multiplier, _MEANS) + (zeros[1] - int(moved))


def quantized(real: np.ndarray, scale: np.float32) -> np.ndarray:
    """Codes of float32 values of images: blocks as XNNPACK rounds, the others by division."""
    flat = real.reshape(len(real), -1)
    product = np.rint(flat * (np.float32(1.0) / scale))
    divided = rounded_away(flat.astype(np.float64) / np.float64(scale))
    found = np.where(in_blocks(flat.shape[1], _REALS), product, divided)
    return np.asarray(found.reshape(real.shape))


def sum_of(
    summands: list[np.ndarray], scales: list[np.float32], output_scale: np.float32
) -> np.ndarray:
    """Codes of a sum of two tensors, images on the first axis.

    In a block, a summand is shifted before its product, which is then rounded once; where all of
    it is one value, the shift is behind the product, and rounds down.
    """
    plain = summed(summands, scales, output_scale)
    length, is_one_value = stretch(*(codes.shape[1:] for codes in summands))
    size = _SUMS_WITH_ONE_VALUE if is_one_value else _SUMS
    if length < size:
        return plain
    total = np.int64(0)
    for codes, multiplier in zip(summands, summand_multipliers(scales), strict=True):
        wide, right = codes.astype(np.int64), multiplier.right
        if is_one_value:
            scaled = high_product(wide << SUM_BITS, multiplier.mantissas) >> right
        else:
            scaled = high_product(wide << np.maximum(SUM_BITS - right, 0), multiplier.mantissas)
        total = total + scaled
    vectors = sum_as_codes(np.asarray(total), scales, output_scale)
    places = np.arange(math.prod(plain.shape[1:])) % length
    in_block = in_blocks(length, size)[places].reshape(plain.shape[1:])
    return np.where(in_block, vectors, plain)


def stretch(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, bool]:
    """The stretch of values that a sum's kernel takes in one call, and how.

    Args:
        first: shape of a summand, without the batch dimension.
        second: of the other one.

    Returns:
        How many values it has, and whether one of the summands has a single value for all of them.
        0 values where the kernel without vectors computes the sum.

    >>> stretch((2, 3, 4), (2, 3, 4)), stretch((2, 3, 4), (1, 1, 4)), stretch((2, 3, 1), (2, 3, 4))
    ((24, False), (4, False), (4, True))
    """
    axes = max(len(first), len(second))
    one, other = ((1,) * (axes - len(shape)) + shape for shape in (first, second))
    pairs = list(zip(one, other, strict=True))[::-1]
    alike = next((i for i, (a, b) in enumerate(pairs) if a != b), axes)
    length = math.prod(a for a, _ in pairs[:alike])
    if alike == axes:
        return length, False
    # The summand that has 1 on the first axis that differs, and the five stretches from there on.
    if pairs[alike][1] == 1:
        pairs = [(b, a) for a, b in pairs]
    left = pairs[alike:]
    once = _while(lambda a, b: a == 1, left)
    broadcast = math.prod(b for _, b in once)
    left = left[len(once) :]
    for is_part in (lambda a, b: a == b, lambda a, b: b == 1, lambda a, b: a == b):
        left = left[len(_while(is_part, left)) :]
    if left:
        return 0, False
    return (length, False) if length > 1 else (broadcast, True)


def _while(
    is_part: Callable[[int, int], bool], pairs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    return list(itertools.takewhile(lambda pair: is_part(*pair), pairs))
