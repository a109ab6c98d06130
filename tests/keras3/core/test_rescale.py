import numpy as np
import pytest

from sat_tf.core.rescale_table import METHODS
from sat_tf.keras3.core import rescale
from tests import reference
from tests.keras3.gradients import to_numpy, value_and_gradients


def _draw(seed=0, deviation=0.5):
    return np.random.default_rng(seed).normal(0, deviation, (3, 3, 4, 5)).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
def test_the_factor_is_that_of_the_reference(method):
    weights, latent = _draw(), _draw(1, 0.1)
    found = to_numpy(rescale.rescale_factor(weights, 45, method, latent))
    assert found == pytest.approx(reference.rescale_factor(weights, 45, method, latent), rel=1e-5)


def test_channels_with_ranges_have_factors_of_their_own():
    weights, latent = _draw(), _draw(1, 0.1)
    found = to_numpy(rescale.rescale_factor(weights, 9, "stddev", latent, range_axes=(-1,)))
    assert found.shape == (1, 1, 1, 5)
    for channel in range(5):
        own = [values[..., channel] for values in (weights, latent)]
        expected = reference.rescale_factor(own[0], 9, "stddev", own[1])
        assert found[0, 0, 0, channel] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_the_factor_is_positive_whatever_the_weights_are(method):
    for weights in (np.zeros(4), [np.nan] * 4, [np.inf, -np.inf, np.nan, 0.0], [1e30] * 4):
        weights = np.float32(weights)
        assert to_numpy(rescale.rescale_factor(weights, 9, method, weights)) == 1.0
    some = np.float32([np.nan, np.inf, 2.0, 2.0])
    assert to_numpy(rescale.rescale_factor(some, 4, "constant")) == pytest.approx(0.25)


def test_the_factor_carries_no_gradient():
    def function(weights):
        return weights * rescale.rescale_factor(weights, 9)

    weights = _draw()
    value, (gradient,) = value_and_gradients(function, [weights])
    expected = reference.rescale_factor(weights, 9)
    np.testing.assert_allclose(gradient, np.full_like(weights, expected), rtol=1e-5)
    np.testing.assert_allclose(value, weights * gradient)


@pytest.mark.parametrize("jit", [False, True])
def test_weights_without_size_have_no_gradient_along_them(jit):
    weights, upstream = np.float32([3.0, 4.0]), np.float32([1.0, 0.0])
    value, (gradient,) = value_and_gradients(rescale.without_size, [weights], upstream, jit)
    assert value.tolist() == [3.0, 4.0]
    np.testing.assert_allclose(gradient, [0.64, -0.48], rtol=1e-6)
    special = np.float32([3.0, 4.0, np.nan, np.inf])
    upstream = np.float32([1.0, 0.0, 2.0, 5.0])
    value, (gradient,) = value_and_gradients(rescale.without_size, [special], upstream, jit)
    np.testing.assert_array_equal(value, special)
    np.testing.assert_allclose(gradient, [0.64, -0.48, 2.0, 5.0], rtol=1e-6)
    _, (gradient,) = value_and_gradients(rescale.without_size, [np.zeros(4, np.float32)], upstream)
    np.testing.assert_array_equal(gradient, upstream)


def test_what_it_needs_is_asked_for():
    with pytest.raises(ValueError, match="constant"):
        rescale.rescale_factor(_draw(), 9, "constat")
    with pytest.raises(ValueError, match="fan_out=0"):
        rescale.rescale_factor(_draw(), 0)
    with pytest.raises(ValueError, match="latent"):
        rescale.rescale_factor(_draw(), 9, "stddev")
