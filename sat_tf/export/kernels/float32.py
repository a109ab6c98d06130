"""float32 arithmetic as processors do it: a product and a sum, rounded twice or once."""

import numpy as np


def multiply_add(factor: np.ndarray, other: np.float32, summand: np.float32) -> np.ndarray:
    """Factor · other + summand, with the product rounded to float32, and then the sum."""
    return np.asarray(factor.astype(np.float32) * np.float32(other) + np.float32(summand))


def fused_multiply_add(factor: np.ndarray, other: np.float32, summand: np.float32) -> np.ndarray:
    """The same rounded once, as one instruction of processors that have it (FMLA, VFMADD).

    The product of two float32 is exact in float64. Its sum with the third is rounded to odd there:
    an inexact result gets an odd last bit, so that rounding it to float32 is the only rounding that
    counts, as float64 has more than twice the bits.

    >>> a = np.float32(1 + 2**-12)
    >>> float(fused_multiply_add(np.array([a]), a, np.float32(-1))[0]) == 2**-11 + 2**-24
    True
    >>> float(multiply_add(np.array([a]), a, np.float32(-1))[0]) == 2**-11
    True
    """
    product = factor.astype(np.float32).astype(np.float64) * np.float64(np.float32(other))
    addend = np.float64(np.float32(summand))
    total = product + addend
    # What the rounded sum has lost, exactly (Knuth's TwoSum).
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(lost > 0, np.inf, -np.inf)
    odd = np.where((lost != 0) & even, np.nextafter(total, toward), total)
    return np.asarray(odd.astype(np.float32))


def rounded_away(values: np.ndarray) -> np.ndarray:
    """Integers, halves away from zero.

    >>> rounded_away(np.array([-1.5, -0.5, 0.5, 2.5])).tolist()
    [-2.0, -1.0, 1.0, 3.0]
    """
    whole = np.trunc(values)
    # The rest is exact, where a sum with a half might not be.
    return np.asarray(whole + np.where(np.abs(values - whole) >= 0.5, np.sign(values), 0.0))
