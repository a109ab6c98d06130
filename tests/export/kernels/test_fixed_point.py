import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.export.kernels import fixed_point, xnnpack


def test_builtin_kernels_round_twice_and_halves_up():
    sums = np.array([[-3], [-2], [-1], [0], [1], [2], [3], [5]])
    # 0.25 is 2^30 · 2^-1: halves first, rounded up, and halved again.
    found = fixed_point.requantized(sums, np.array([0.25]))
    assert found.reshape(-1).tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    once = xnnpack.requantized(sums, np.array([0.25], np.float32))
    assert once.reshape(-1).tolist() == [-1, 0, 0, 0, 0, 0, 1, 1]


@given(total=st.integers(-(2**22), 2**22), multiplier=st.floats(2.0**-32, 255.0))
def test_builtin_fixed_point_is_that_of_whole_numbers(total, multiplier):
    """The kernels' own arithmetic, in Python's integers."""
    fraction, exponent = np.frexp(multiplier)
    mantissa = int(np.floor(float(fraction) * 2**31 + 0.5))
    if mantissa == 2**31:
        mantissa, exponent = 2**30, exponent + 1
    high = (total * 2 ** max(int(exponent), 0) * mantissa + 2**30) // 2**31
    shift = max(-int(exponent), 0)
    found = fixed_point.requantized(np.array([[total]]), np.array([multiplier]))
    assert found.item() == (high + (2**shift // 2)) // 2**shift
