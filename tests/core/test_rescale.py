import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.core import dorefa
from sat_tf.core.dorefa import RESCALINGS
from tests import reference
from tests.core.execution import MODES, array, tensor, value_and_gradients


def _rescaled(weights, *arguments):
    return dorefa.rescale_factor(weights, *arguments) * weights


def test_rescaled_weights_worked_by_hand():
    # mean(Q²) = (1 + 1/9 + 1/9 + 1)/4 = 5/9, n̂ = 5: c = 1/sqrt(25/9) = 3/5.
    weights = np.float32([[-1.0, -1 / 3], [1 / 3, 1.0]])
    np.testing.assert_allclose(array(_rescaled(weights, 5)), [[-0.6, -0.2], [0.2, 0.6]], rtol=1e-6)
    # mean(W²) = 4: c = sqrt(4 · 9/5).
    latent = np.float32([[2.0, -2.0], [-2.0, 2.0]])
    by_deviation = array(dorefa.rescale_factor(weights, 5, "stddev", latent))
    assert by_deviation == pytest.approx(math.sqrt(7.2), rel=1e-6)
    assert array(dorefa.rescale_factor(weights, 5, "none")) == 1.0


@pytest.mark.parametrize("axes", [(3,), (-1,), (2, 3)])
def test_channels_with_maxima_of_their_own_get_their_own_size_back(axes):
    draw = np.random.default_rng(0)
    weights, latent = (draw.normal(size=(3, 3, 4, 5)).astype(np.float32) for _ in range(2))
    factor = array(dorefa.rescale_factor(weights, 9, "stddev", latent, range_axes=axes))
    for channel in np.ndindex(factor.shape):
        part = tuple(
            channel[axis] if axis in {kept % 4 for kept in axes} else slice(None)
            for axis in range(4)
        )
        expected = reference.rescale_factor(weights[part], 9, "stddev", latent[part])
        assert factor[channel] == pytest.approx(expected, rel=1e-6)
    # Eq. 10 is about the whole layer.
    constant = dorefa.rescale_factor(weights, 9, "constant", range_axes=axes)
    assert array(constant) == array(dorefa.rescale_factor(weights, 9, "constant"))


def test_a_channel_without_weights_keeps_its_size():
    weights = np.array([[1.0, 0.0], [1.0, 0.0]], np.float32)
    factor = dorefa.rescale_factor(weights, 2, "stddev", 2.0 * weights, range_axes=(1,))
    assert array(factor).tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize("bits", range(1, 9))
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), fan_out=st.integers(1, 5000))
def test_rescaled_weights_have_mean_square_one_over_fan_out(bits, seed, fan_out):
    latent = np.random.default_rng(seed).normal(size=(3, 3, 4, 8)).astype(np.float32)
    weights = dorefa.quantize_weights(latent, bits)
    rescaled = array(_rescaled(weights, fan_out)).astype(np.float64)
    # A mean of 288 squares and a reciprocal root, in float32: a few units in the last place.
    assert np.mean(np.square(rescaled)) * fan_out == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("method", RESCALINGS)
@pytest.mark.parametrize("mode", MODES)
def test_the_factor_is_that_of_the_reference_and_carries_no_gradient(method, mode):
    draw = np.random.default_rng(0)
    latent = draw.normal(size=(3, 3, 4, 8)).astype(np.float32)
    weights, upstream = np.tanh(latent), draw.normal(size=latent.shape).astype(np.float32)
    value, gradient, latent_gradient = value_and_gradients(
        lambda weights, latent: _rescaled(weights, 72, method, latent) + 0.0 * latent,
        [weights, latent],
        upstream,
        mode=mode,
    )
    factor = reference.rescale_factor(weights, 72, method, latent)
    np.testing.assert_allclose(value, factor * weights, rtol=1e-6)
    np.testing.assert_allclose(gradient, factor * upstream, rtol=1e-6)
    assert not latent_gradient.any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_weights_are_rescaled_in_float32(dtype):
    # 2^-12 squared is below float16's smallest number.
    weights = tensor(np.full([64, 64], 2.0**-12), dtype)
    assert float(dorefa.rescale_factor(weights, 4)) == 2.0**11


@pytest.mark.parametrize("method", RESCALINGS)
def test_nan_and_infinite_weights_have_no_part_in_the_factor(method):
    weights, latent = [0.5, -1.0, 0.25], [0.3, -2.0, 0.1]
    clean = dorefa.rescale_factor(weights, 3, method, latent)
    for value in (np.nan, np.inf, -np.inf):
        spoilt = np.float32([*weights, value]), np.float32([*latent, value])
        assert array(dorefa.rescale_factor(spoilt[0], 3, method, spoilt[1])) == array(clean)
        rescaled = array(_rescaled(spoilt[0], 3, method, spoilt[1]))
        np.testing.assert_array_equal(rescaled[:3], np.float32(weights) * array(clean))
        np.testing.assert_array_equal(rescaled[3], value)


@pytest.mark.parametrize("method", RESCALINGS)
@pytest.mark.parametrize("weights", [[0.0, 0.0], [np.nan, np.inf], [1.0, -1.0]])
def test_the_factor_is_positive_and_finite_whatever_the_latent_weights(method, weights):
    for latent in ([0.0, 0.0], [np.nan, np.inf], [1e-30, 1e30]):
        factor = dorefa.rescale_factor(weights, 2, method, latent)
        assert 0.0 < factor < np.inf
        assert weights == [1.0, -1.0] or factor == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_without_size_includes_that_of_the_constant(mode):
    weights = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    upstream = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)

    def rescaled(weights):
        return dorefa.without_size(weights) * dorefa.rescale_factor(weights, 7)

    value, found = value_and_gradients(rescaled, [weights], upstream, mode)
    np.testing.assert_allclose(value, array(_rescaled(weights, 7)), rtol=1e-6)
    expected = np.zeros_like(weights, np.float64)
    wide = weights.astype(np.float64)
    for place in np.ndindex(*weights.shape):  # by finite differences of Q / sqrt(n̂ mean(Q²))
        sums = []
        for step in (1e-6, -1e-6):
            moved = wide.copy()
            moved[place] += step
            sums.append(np.sum(upstream * moved * reference.rescale_factor(moved, 7)))
        expected[place] = (sums[0] - sums[1]) / 2e-6
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert abs(np.sum(found * weights)) < 1e-5


@pytest.mark.parametrize("mode", MODES)
def test_weights_without_size_have_no_gradient_along_them(mode):
    weights = np.float32([3.0, 4.0, np.nan, np.inf])
    upstream = np.float32([1.0, 0.0, 2.0, 5.0])
    value, gradient = value_and_gradients(dorefa.without_size, [weights], upstream, mode)
    np.testing.assert_array_equal(value, weights)
    np.testing.assert_allclose(gradient, [0.64, -0.48, 2.0, 5.0], rtol=1e-6)
    _, gradient = value_and_gradients(dorefa.without_size, [np.zeros(4, np.float32)], upstream)
    np.testing.assert_array_equal(gradient, upstream)
