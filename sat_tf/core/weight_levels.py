"""The codes of weights in methods that take no row of `grid_table`. Needs no TensorFlow."""

import functools

from sat_tf.core.grid_table import check_bits

# With one bit the highest code of two's complement is 0.
FEWEST_SIGNED_BITS = 2
# Of LQ-Nets: a basis vector that no weight tells from another one moves by so little towards the
# solution.
LQ_RIDGE = 1e-4


def lsq_code_ends(num_bits: int) -> tuple[int, int]:
    """The lowest and the highest code of LSQ's weights: those of two's complement.

    At 8 bits without -128, whose negative int8 does not hold.

    Raises:
        ValueError: bits out of range; at 1 bit the highest code is 0.

    >>> lsq_code_ends(2), lsq_code_ends(4), lsq_code_ends(8)
    ((-2, 1), (-8, 7), (-127, 127))
    """
    check_bits(num_bits)
    if num_bits < FEWEST_SIGNED_BITS:
        raise ValueError(
            f"num_bits={num_bits}: LSQ's weights have the codes -1 and 0 at 1 bit, and no scale "
            f"can be learnt; give them {FEWEST_SIGNED_BITS} bits or more, or use "
            "weight_quantizer='dorefa' or 'l1'."
        )
    highest = 2 ** (num_bits - 1) - 1
    return (-highest if num_bits == 8 else -highest - 1), highest


def lsq_ends_by_bits() -> list[tuple[int, int]]:
    """`lsq_code_ends` at 0, 1, ... 8 bits, where too few count as the fewest."""
    return [lsq_code_ends(max(bits, FEWEST_SIGNED_BITS)) for bits in range(9)]


def qil_largest_code(num_bits: int) -> int:
    """The highest code of QIL's weights, 2^(b-1) - 1; the lowest is its negative.

    Raises:
        ValueError: bits out of range; at 1 bit the highest code is 0.

    >>> qil_largest_code(2), qil_largest_code(4), qil_largest_code(8)
    (1, 7, 127)
    """
    check_bits(num_bits)
    if num_bits < FEWEST_SIGNED_BITS:
        raise ValueError(
            f"num_bits={num_bits}: QIL's weights have the code 0 alone at 1 bit; give them "
            f"{FEWEST_SIGNED_BITS} bits or more, or use weight_quantizer='dorefa' or 'l1'."
        )
    return 2 ** (num_bits - 1) - 1


@functools.cache
def lq_patterns(num_bits: int) -> list[list[float]]:
    """All e in {-1, 1}^b, one a row, by which LQ-Nets adds up a basis.

    Raises:
        ValueError: bits out of range.

    >>> lq_patterns(2)
    [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]]
    """
    check_bits(num_bits)
    return [
        [1.0 if number >> place & 1 else -1.0 for place in range(num_bits)]
        for number in range(2**num_bits)
    ]
