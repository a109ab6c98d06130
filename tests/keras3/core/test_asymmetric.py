import numpy as np
import pytest
from keras import ops

from sat_tf.keras3.core import asymmetric
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients

JIT = [False, True]


def _offset(x, level, bits, upstream=None, jit=False, gradient="calibrated", **settings):
    def function(x, level):
        return asymmetric.quantize_offset(x, level, bits, gradient, **settings)

    value, (dx, dlevel) = value_and_gradients(function, [x, np.float32(level)], upstream, jit)
    return value, dx, dlevel


# α = 6, ℓ = 1 at 3 bits: the scale is 1, and there is one code below zero.
#   x      -9   -1  -0.5  0.5  2.75   6    9
#   q      -1   -1    0    1    3     6    6
#   dq/dx   0    0    1    1    1     0    0
#   dq/ds  -1   -1   0.5  0.5  0.25   6    6      dα = ds / 7
@pytest.mark.parametrize("jit", JIT)
def test_a_3_bit_offset_worked_by_hand(jit):
    x = np.float32([-9, -1, -0.5, 0.5, 2.75, 6, 9])
    value, dx, dlevel = _offset(x, 6.0, 3, jit=jit, lowest=-1.0)
    assert value.tolist() == [-1, -1, 0, 1, 3, 6, 6]
    assert dx.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert dlevel == pytest.approx((-1 - 1 + 0.5 + 0.5 + 0.25 + 6 + 6) / 7, abs=1e-6)
    _, _, dlevel = _offset(x, 6.0, 3, jit=jit, lowest=-1.0, gradient="pact")
    assert dlevel == pytest.approx((-1 - 1 + 6 + 6) / 7, abs=1e-6)


@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
@pytest.mark.parametrize(("lowest", "share"), [(-0.375, 0.0), (0.0, 0.21), (-0.2785, 0.1)])
@pytest.mark.parametrize("bits", range(1, 9))
def test_offsets_are_those_of_the_reference(bits, lowest, share, gradient):
    draws = np.random.default_rng(bits)
    x, upstream = draws.normal(0, 2, (2, 300)).astype(np.float32)
    settings = {"lowest": lowest, "share": share}
    value, dx, dlevel = _offset(x, 2.7, bits, upstream, gradient=gradient, **settings)
    level = float(np.float32(2.7))
    scale, _ = reference.offset_grid(level, bits, lowest, share)
    clear = reference.distance_from_tie(x / scale, "dorefa") > 1e-4
    expected = reference.quantize_offset(x, level, bits, lowest, share)
    np.testing.assert_allclose(value[clear], expected[clear], atol=1e-6)
    expected, by_level = reference.offset_gradients(
        x, level, bits, upstream, lowest, share, gradient
    )
    np.testing.assert_array_equal(dx, expected.astype(np.float32))
    # What is at a tie may be a code off.
    room = 1e-5 * np.abs(upstream).sum() + np.abs(upstream[~clear]).sum()
    assert abs(dlevel - by_level) <= room


@pytest.mark.parametrize("jit", JIT)
@pytest.mark.parametrize("surrogate", ["ste", "ewgs", "dsq"])
def test_nan_stays_in_its_own_element_and_infinities_are_clipped(surrogate, jit):
    x = np.float32([np.inf, -np.inf, np.nan])
    upstream = np.float32([7.0, 14.0, 5.0])
    found = _offset(x, 6.0, 3, upstream, jit, lowest=-1.0, surrogate=surrogate)
    np.testing.assert_array_equal(found[0], [6.0, -1.0, np.nan])
    np.testing.assert_array_equal(found[1], [0.0, 0.0, 0.0])
    assert found[2] == pytest.approx((7 * 6 - 14) / 7)


@pytest.mark.parametrize("jit", JIT)
def test_an_observed_range_rounds_ties_to_even_and_passes_the_gradient_inside(jit):
    # The scale is 1, and real 0 is stored as -127.
    x = np.float32([-9.0, -1.0, 0.5, 1.5, 254.0, 300.0, np.inf, np.nan])

    def function(x):
        ends = [ops.convert_to_tensor(np.float32(end)) for end in (-1.0, 254.0)]
        return asymmetric.quantize_observed(x, *ends)

    value, (dx,) = value_and_gradients(function, [x], jit=jit)
    np.testing.assert_array_equal(value, [-1.0, -1.0, 0.0, 2.0, 254.0, 254.0, 254.0, np.nan])
    assert dx.tolist() == [0, 1, 1, 1, 1, 0, 0, 0]


def test_without_a_range_a_tensor_passes_as_it_is():
    x = np.float32([-3.0, 0.0, 1e9])

    def function(x):
        return asymmetric.quantize_observed(x, np.float32(0.0), np.float32(0.0))

    value, (dx,) = value_and_gradients(function, [x])
    np.testing.assert_array_equal(value, x)
    assert dx.tolist() == [1, 1, 1]


def test_a_range_that_does_not_hold_zero_is_made_to():
    x = ops.convert_to_tensor(np.float32([0.0, 2.0, 255.0]))
    found = asymmetric.quantize_observed(x, np.float32(1.0), np.float32(255.0))
    assert to_numpy(found).tolist() == [0.0, 2.0, 255.0]
