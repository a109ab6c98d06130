"""The rounding of LiteRT's builtin kernels: multipliers of 31 bits and shifts, in integers."""

import numpy as np

_MANTISSA_BITS = 31


def requantized(sums: np.ndarray, multipliers: np.ndarray) -> np.ndarray:
    """Sums as codes, as the builtin kernels make them on x86: rounded twice, both times half up.

    The multiplier is m · 2^e with m an integer of 31 bits. The product with m is rounded to the
    upper 32 bits, the shift by e rounds again:

        (((sum << max(e, 0)) · m + 2^30) >> 31 + 2^(s-1)) >> s,   s = max(-e, 0)

    Args:
        sums: exact integers, channels on the last axis; shifted, they fit int32.
        multipliers: positive float64, one a channel.

    Returns:
        Integers, not yet clipped.
    """
    fractions, exponents = np.frexp(multipliers)
    mantissas = np.floor(np.ldexp(fractions, _MANTISSA_BITS) + 0.5).astype(np.int64)
    carried = mantissas == 1 << _MANTISSA_BITS
    mantissas, exponents = np.where(carried, mantissas >> 1, mantissas), exponents + carried
    left, right = (np.maximum(shifts, 0).astype(np.int64) for shifts in (exponents, -exponents))
    multiplied = (sums.astype(np.int64) << left) * mantissas
    rounded = (multiplied + (1 << (_MANTISSA_BITS - 1))) >> _MANTISSA_BITS
    return np.asarray((rounded + ((1 << right) >> 1)) >> right)
