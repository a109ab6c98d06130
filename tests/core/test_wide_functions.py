"""Functions of 16 bits in training: codes of kernels, and gradients of the functions."""

import numpy as np
import pytest

from sat_tf.core import wide_functions
from sat_tf.core.tensor_ops import namespace
from sat_tf.exact.kernels import wide
from sat_tf.exact.kernels.functions import Grids
from tests.core.execution import array, tensor, value_and_gradients

CODES = np.arange(-(2**15), 2**15)
TABLES = wide.sigmoid_table(), *wide.tables()


def _tanh(x):
    return namespace(x).tanh(x)


# Each with its kernel, and the function itself.
FUNCTIONS = {
    "sigmoid": (
        *(wide_functions.sigmoid, wide.curve(wide.sigmoids, 0)),
        lambda x: 0.5 + 0.5 * _tanh(0.5 * x),
    ),
    "tanh": (wide_functions.tanh, wide.curve(wide.tanhs, 1), _tanh),
}


def _both(name, scale):
    """The fractions of 2^15 of training and of the kernel, for all codes of a scale."""
    function, kernel, smooth = FUNCTIONS[name]
    x = tensor(CODES.astype(np.float32) * scale)
    found = array(function(x, smooth(x), TABLES)) * 2.0**15
    return found, kernel(CODES, Grids(scale, wide.SCALE))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [2.0**-13, 2.0**-10, 5.0 * 2.0**-14])
def test_codes_are_those_of_kernels_where_15_bits_hold_the_multiplier(name, scale):
    found, expected = _both(name, np.float32(scale))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [1e-4, 3e-4, 1.7e-3])
def test_a_multiplier_cut_to_15_bits_moves_few_codes_by_a_bit(name, scale):
    found, expected = _both(name, np.float32(scale))
    assert np.mean(found != expected) < 0.18
    assert np.max(np.abs(found - expected)) <= 3


def _logits(rows=500, classes=17):
    return np.random.default_rng(2).integers(-(2**15), 2**15, (rows, classes))


@pytest.mark.parametrize("scale", [1e-4, 1e-3])
def test_a_softmax_has_the_codes_of_kernels_but_for_ties(scale):
    codes, scale = _logits(), np.float32(scale)
    logits = codes.astype(np.float32) * scale
    real = np.exp(logits.astype(np.float64))
    real /= real.sum(-1, keepdims=True)
    smooth = tensor(real.astype(np.float32))
    found = array(wide_functions.softmax(tensor(logits), smooth, TABLES)) * 2.0**15
    expected = wide.softmax(codes, np.float64(scale))
    assert np.mean(found != expected) < 1e-3
    assert np.max(np.abs(found - expected)) <= 2
    # Kernels take what is more than 10 below the largest logit for e^-10, 17 times at most.
    assert np.max(np.abs(found / 2**15 - real)) < 2 * 17 * np.exp(-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_function(name):
    function, _, smooth = FUNCTIONS[name]
    x = np.array([-20.0, -1.0, 0.0, 0.3, 7.0], np.float32)
    _, found = value_and_gradients(lambda x: function(x, smooth(x), TABLES), [x])
    _, expected = value_and_gradients(smooth, [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_saturate_and_nan_stays_in_its_element(name):
    function, _, smooth = FUNCTIONS[name]
    x = tensor(np.array([-np.inf, np.inf, np.nan, 0.0], np.float32))
    low, high, nan, zero = array(function(x, smooth(x), TABLES))
    assert high == 1.0 - 2.0**-15
    assert low == (2.0**-15 if name == "sigmoid" else -high)
    assert np.isnan(nan)
    assert zero == (0.5 if name == "sigmoid" else 0.0)
