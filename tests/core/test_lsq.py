"""LSQ and LSQ+ against tables by hand, the reference in float64, and properties at all bits."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import lsq
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate
from sat_tf.core.lsq import lsq_code_ends
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, value_and_gradients

BITS = range(2, 9)
# Nearer than this to a tie, in codes, float32 may round either way.
TIE = 1e-3


def _weights(latent, magnitude, bits, upstream=None, mode="eager", **choice):
    return value_and_gradients(
        lambda v, m: lsq.quantize_weights(v, m, bits, **choice), [latent, magnitude], upstream, mode
    )


# The upstream gradient is 1 everywhere. With codes -2..1, g = 1 / sqrt(N), and s = m, at first 0.5:
#   v            -2    -1   -0.99  -0.3  -0.2  0.25   0.5    3
#   v/s          -4    -2   -1.98  -0.6  -0.4   0.5     1    6
#   q            -1    -1    -1    -0.5    0    0.5   0.5  0.5     (a tie at 0.5 goes up)
#   dq/dv         0     0     1      1     1     1     0    0
#   dq/ds        -2    -2   -0.02  -0.4   0.4   0.5    1    1
# and then 1:
#   v            -9    -2   -0.5   0.25    1     9
#   q            -2    -2     0     0      1     1
#   dq/dv         0     0     1     1      0     0
#   dq/ds        -2    -2    0.5  -0.25    1     1
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("scale", "v", "codes", "by_v", "by_s"),
    [
        (
            0.5,
            [-2, -1, -0.99, -0.3, -0.2, 0.25, 0.5, 3],
            [-2, -2, -2, -1, 0, 1, 1, 1],
            [0, 0, 1, 1, 1, 1, 0, 0],
            -4 - 0.02 - 0.4 + 0.4 + 0.5 + 2,
        ),
        (1.0, [-9, -2, -0.5, 0.25, 1, 9], [-2, -2, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0], -1.75),
    ],
)
def test_2_bit_weights_worked_by_hand(scale, v, codes, by_v, by_s, mode):
    value, found, by_m = _weights(np.float32(v), np.float32(scale), 2, mode=mode)
    assert value.tolist() == [scale * code for code in codes]
    assert found.tolist() == by_v
    assert by_m == pytest.approx(by_s / math.sqrt(len(v)), rel=1e-5)
    assert array(lsq.weight_codes(np.float32(v), scale, 2)).tolist() == codes


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_gradients_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    low, high = reference.lsq_ends(bits)
    shape = [size if axis in axes else 1 for axis, size in enumerate(latent.shape)]
    magnitude = np.abs(draw(shape, 2, 1.0)) + np.float32(0.3)
    magnitude = magnitude if axes else magnitude.reshape(())
    scale = np.float64(magnitude) / math.sqrt(high)
    tie = np.abs(latent / scale - np.floor(latent / scale) - 0.5) < TIE
    latent[tie] += 3 * TIE * np.broadcast_to(scale, latent.shape)[tie].astype(np.float32)
    for surrogate in (STRAIGHT_THROUGH, Surrogate("ewgs", 0.5), Surrogate("dsq")):
        value, by_v, by_m = _weights(latent, magnitude, bits, upstream, mode, surrogate=surrogate)
        names = surrogate.name, surrogate.strength
        expected = reference.lsq_quantize(latent, scale, low, high)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        wanted, slopes = reference.lsq_gradients(latent, scale, low, high, upstream, *names)
        np.testing.assert_allclose(by_v, wanted, rtol=2e-3, atol=1e-4)
        shared = tuple(axis for axis in range(4) if axis not in axes)
        by_scale = np.sum(slopes, axis=shared, keepdims=bool(axes))
        # ds/dm = 1/c and the factor g c², with c = sqrt(high).
        g = reference.lsq_factor(latent.size // max(magnitude.size, 1), high)
        np.testing.assert_allclose(by_m, by_scale * g * math.sqrt(high), rtol=2e-3, atol=5e-3)


@given(
    bits=st.sampled_from(BITS),
    magnitude=st.floats(2.0**-20, 2.0**10, width=32),
    units=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-300, 300, width=32)),
)
def test_codes_fit_their_bits_and_are_the_nearest(bits, magnitude, units):
    scale = array(lsq.weight_scale(magnitude, bits))
    latent = units * scale
    low, high = lsq_code_ends(bits)
    codes = array(lsq.weight_codes(latent, magnitude, bits))
    assert low <= codes.min()
    assert codes.max() <= high
    value = array(lsq.quantize_weights(latent, magnitude, bits))
    np.testing.assert_array_equal(value, codes.astype(np.float32) * scale)
    ends = np.clip(latent / scale, low, high)
    assert (np.abs(codes - ends) <= 0.5 + 1e-4).all()
    assert abs(low) <= 127


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("axes", [(), (3,)])
def test_the_best_magnitude_is_no_worse_than_the_usual_one_and_that_of_the_largest(bits, axes):
    kernel = draw()
    best = lsq.best_magnitude(kernel, bits, range_axes=axes)
    largest = np.max(np.abs(kernel)) / math.sqrt(2 ** (bits - 1) - 1)
    usual = lsq.weight_magnitude(kernel, range_axes=axes)
    assert best.shape == usual.shape

    def error(magnitude):
        return np.mean((array(lsq.quantize_weights(kernel, magnitude, bits)) - kernel) ** 2)

    assert error(best) <= 1.01 * min(error(usual), error(largest))


@pytest.mark.parametrize("shape", [(6, 5, 4, 3), (9, 2, 2), (3,)])
@pytest.mark.parametrize("highest", [1, 3, 4, 7, 15, 127, 255])
def test_the_factor_counts_the_features_of_one_sample_or_of_the_batch(highest, shape):
    x = np.zeros(shape, np.float32)
    g = reference.lsq_factor(math.prod(shape[1:]), highest)
    assert float(lsq.gradient_factor(x, highest)) == pytest.approx(g, rel=1e-6)
    counted = reference.lsq_factor(x.size, highest)
    found = lsq.gradient_factor(x, highest, counts_batch=True)
    assert float(found) == pytest.approx(counted, rel=1e-6)


# s = 1 and β = -1.2: one code below zero. At 2 bits the range is [-1, 2]:
#   x        -3    -1   -0.6  0.4   1.5    2     5
#   q        -1    -1    -1    0     2     2     2
#   dq/dx     0     0     1    1     1     0     0
#   dq/ds     0     0   -0.4 -0.4   0.5    3     3
#   dq/dβ     1     1     0    0     0     1     1
# and at 3 bits [-1, 6]:
#   x        -9    -1   -0.5  0.5  2.75    6     9
#   q        -1    -1     0    1     3     6     6
#   dq/dx     0     0     1    1     1     0     0
#   dq/ds     0     0    0.5  0.5  0.25    7     7
#   dq/dβ     1     1     0    0     0     1     1
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("bits", "x", "expected", "by_s"),
    [
        (2, [-3, -1, -0.6, 0.4, 1.5, 2, 5], [-1, -1, -1, 0, 2, 2, 2], -0.4 - 0.4 + 0.5 + 6),
        (3, [-9, -1, -0.5, 0.5, 2.75, 6, 9], [-1, -1, 0, 1, 3, 6, 6], 0.5 + 0.5 + 0.25 + 14),
    ],
)
def test_activations_with_an_offset_worked_by_hand(bits, x, expected, by_s, mode):
    value, by_x, by_scale, by_offset = value_and_gradients(
        lambda x, s, b: lsq.quantize_with_offset(x, s, b, bits),
        [np.float32(x), np.float32(1.0), np.float32(-1.2)],
        mode=mode,
    )
    assert value.tolist() == expected
    assert by_x.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert by_scale == pytest.approx(by_s, abs=1e-5)
    assert by_offset == 4.0


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("offset", [-90.0, -3.0, -0.4, 0.0, 0.7])
@pytest.mark.parametrize("bits", range(1, 9))
def test_activations_with_an_offset_are_those_of_the_reference(bits, offset, mode):
    scale = 3.0 / (2**bits - 1) + 0.01
    x, upstream = draw([3000], 0, 2.0), draw([3000], 1, 1.0)
    keep = np.abs(x / scale - np.floor(x / scale) - 0.5) > TIE
    x, upstream = x[keep], upstream[keep]
    value, by_x, by_scale, by_offset = value_and_gradients(
        lambda x, s, b: lsq.quantize_with_offset(x, s, b, bits),
        [x, np.float32(scale), np.float32(offset)],
        upstream,
        mode,
    )
    zero = reference.lsq_plus_grid(scale, offset, bits)
    expected = reference.lsq_quantize(x, scale, -zero, 2**bits - 1 - zero)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    assert 0.0 in array(lsq.quantize_with_offset([0.0], scale, offset, bits))
    wanted = reference.lsq_plus_gradients(x, scale, offset, bits, upstream)
    np.testing.assert_array_equal(by_x, wanted[0].astype(np.float32))
    assert by_scale == pytest.approx(wanted[1], rel=1e-3, abs=0.05)
    assert by_offset == pytest.approx(wanted[2], rel=1e-4, abs=1e-3)
