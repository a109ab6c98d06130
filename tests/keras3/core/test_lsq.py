import math

import numpy as np
import pytest
from keras import ops

from sat_tf.keras3.core import lsq
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients

JIT = [False, True]
SURROGATES = [("ste", None), ("ewgs", 0.3), ("dsq", 0.3)]


def _draw(shape=(3, 3, 4, 5), seed=0, deviation=0.5):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


def _weights(latent, magnitude, bits, upstream=None, jit=False, **choice):
    value, gradients = value_and_gradients(
        lambda w, m: lsq.quantize_weights(w, m, bits, **choice),
        [latent, np.float32(magnitude)],
        upstream,
        jit,
    )
    return value, *gradients


# 2 bits, m = 1: the scale is 1, codes -2..1, N = 6.
#   v      -9    -2   -0.5   0.25  1    9
#   q      -2    -2     0     0    1    1
#   dq/dv   0     0     1     1    0    0
#   dq/ds  -2    -2    0.5  -0.25  1    1
@pytest.mark.parametrize("jit", JIT)
def test_2_bit_weights_worked_by_hand(jit):
    latent = np.float32([-9, -2, -0.5, 0.25, 1, 9])
    value, by_latent, by_magnitude = _weights(latent, 1.0, 2, jit=jit)
    assert value.tolist() == [-2, -2, 0, 0, 1, 1]
    assert by_latent.tolist() == [0, 0, 1, 1, 0, 0]
    assert by_magnitude == pytest.approx((-2 - 2 + 0.5 - 0.25 + 1 + 1) / math.sqrt(6))


@pytest.mark.parametrize("axes", [(), (3,)])
@pytest.mark.parametrize("bits", range(2, 9))
def test_weights_and_gradients_are_those_of_the_reference(bits, axes):
    latent, upstream = _draw(), _draw(seed=1)
    low, high = reference.lsq_ends(bits)
    shape = (1, 1, 1, 5) if axes else ()
    magnitude = np.abs(_draw(shape, 2)) + np.float32(0.4)
    scale = np.float64(magnitude) / math.sqrt(high)
    tie = reference.distance_from_tie(latent / scale, "dorefa") < 1e-4
    latent[tie] *= 1.01
    for surrogate, strength in SURROGATES:
        choice = {"surrogate": surrogate, "strength": strength}
        value, by_latent, by_magnitude = _weights(latent, magnitude, bits, upstream, **choice)
        expected = reference.lsq_quantize(latent, scale, low, high)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        wanted, slopes = reference.lsq_gradients(
            latent, scale, low, high, upstream, surrogate, strength
        )
        np.testing.assert_allclose(by_latent, wanted, rtol=2e-3, atol=2e-4)
        slopes = np.sum(slopes, (0, 1, 2), keepdims=True) if axes else np.sum(slopes)
        # The factor g, times the square of c = sqrt(highest), times what one magnitude is in scale.
        count = latent.size / magnitude.size
        factor = reference.lsq_factor(count, high) * high / math.sqrt(high)
        np.testing.assert_allclose(by_magnitude, slopes * factor, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("jit", JIT)
def test_a_nan_weight_stays_in_its_own_element(jit):
    latent, upstream = np.float32([np.nan, np.inf, -np.inf]), np.float32([5.0, 2.0, 3.0])
    value, by_latent, by_magnitude = _weights(latent, 1.0, 2, upstream, jit)
    np.testing.assert_array_equal(value, [np.nan, 1, -2])
    assert by_latent.tolist() == [0, 0, 0]
    assert by_magnitude == pytest.approx((2 * 1 - 3 * 2) / math.sqrt(3))


def test_factors_count_features_or_the_batch_too():
    x = ops.zeros((9, 2, 2))
    assert to_numpy(lsq.level_factor(x, 1.0)) == pytest.approx(0.5)
    assert to_numpy(lsq.level_factor(x, 7.0)) == pytest.approx(49 / math.sqrt(4 * 7))
    found = lsq.gradient_factor(x, 7.0, counts_batch=True)
    assert to_numpy(found) == pytest.approx(reference.lsq_factor(36, 7))
    assert to_numpy(lsq.gradient_factor(ops.zeros((3,)), 4.0)) == pytest.approx(0.5)


def _with_offset(x, scale, offset, bits, upstream=None, jit=False):
    value, gradients = value_and_gradients(
        lambda x, s, b: lsq.quantize_with_offset(x, s, b, bits),
        [x, np.float32(scale), np.float32(offset)],
        upstream,
        jit,
    )
    return value, *gradients


# 3 bits, s = 1, β = -1.2: one code below zero.
#   x      -9   -1  -0.5  0.5  2.75   6    9
#   q      -1   -1    0    1    3     6    6
#   dq/dx   0    0    1    1    1     0    0
#   dq/ds   0    0   0.5  0.5  0.25   7    7
#   dq/dβ   1    1    0    0    0     1    1
@pytest.mark.parametrize("jit", JIT)
def test_an_offset_worked_by_hand(jit):
    x = np.float32([-9, -1, -0.5, 0.5, 2.75, 6, 9])
    value, by_x, by_scale, by_offset = _with_offset(x, 1.0, -1.2, 3, jit=jit)
    assert value.tolist() == [-1, -1, 0, 1, 3, 6, 6]
    assert by_x.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert by_scale == pytest.approx(0.5 + 0.5 + 0.25 + 14)
    assert by_offset == 4.0


@pytest.mark.parametrize("offset", [-1.3, 0.4, -90.0])
@pytest.mark.parametrize("bits", range(1, 9))
def test_offsets_are_those_of_the_reference(bits, offset):
    x, upstream = _draw((300,), bits, 2.0), _draw((300,), 9)
    scale = 4.0 / 2**bits
    x[reference.distance_from_tie(x / scale, "dorefa") < 1e-4] += np.float32(0.01)
    value, by_x, by_scale, by_offset = _with_offset(x, scale, offset, bits, upstream)
    zero = reference.lsq_plus_grid(scale, offset, bits)
    expected = reference.lsq_quantize(x, scale, -zero, 2**bits - 1 - zero)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    wanted = reference.lsq_plus_gradients(x, scale, offset, bits, upstream)
    np.testing.assert_array_equal(by_x, wanted[0].astype(np.float32))
    assert by_scale == pytest.approx(wanted[1], rel=1e-4, abs=1e-2)
    assert by_offset == pytest.approx(wanted[2], rel=1e-4, abs=1e-3)


def test_one_bit_is_refused():
    with pytest.raises(ValueError, match="LSQ"):
        lsq.quantize_weights(_draw(), 1.0, 1)
