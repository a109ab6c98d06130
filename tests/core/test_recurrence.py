"""An LSTM in fixed point: worked by hand, beside real numbers, and its gradients."""

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core.recurrence import cell_bits, hidden_states, on_codes_of_gates, parts_of_gates
from sat_tf.quantizers.quantizing_layer import functions_of_kernels
from sat_tf.quantizers.values import itself
from tests import reference

FUNCTIONS = functions_of_kernels()


def _layer(seed, *, inputs=3, units=2, steps=5, batch=4):
    rng = np.random.default_rng(seed)
    shapes = (batch, steps, inputs), (inputs, 4 * units), (units, 4 * units), (4 * units,)
    return [tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def _by_gates(array):
    return [part.T for part in parts_of_gates(array)]


@pytest.mark.parametrize("seed", range(4))
def test_without_kernels_it_is_the_lstm_of_real_numbers(seed):
    x, kernel, recurrent, bias = _layer(seed)
    states, _ = hidden_states(x, kernel, recurrent, bias, itself)
    arrays = [tensor.numpy().astype(np.float64) for tensor in (kernel, recurrent, bias)]
    expected = reference.lstm(x.numpy().astype(np.float64), *map(_by_gates, arrays))
    np.testing.assert_allclose(states, expected, atol=1e-6)


# One unit without inputs: gates are constant. The sums of the gates, and three cell states in 2^-15
# with a range of 1. The sigmoid of 0 is 1/2, and the largest one 1 - 2^-15; tanh likewise.
BY_HAND = [
    ((0.0, 0.0, 0.0, 0.0), [0, 0, 0]),
    ((0.0, 0.0, 8.0, 0.0), [16384, 24576, 28672]),  # half of what was before, and a half
    ((0.0, 0.0, 2.0**-13, 0.0), [4, 6, 7]),  # rounded up to 2^-12, whose tanh is 8 · 2^-15
    ((9.0, 9.0, 9.0, 9.0), [32755, 65498, 65510]),  # clipped between the steps
]


@pytest.mark.parametrize(("sums", "cells"), BY_HAND)
def test_steps_worked_by_hand(sums, cells):
    x, kernel, recurrent = (tf.zeros(shape) for shape in ((1, 3, 1), (1, 4), (1, 4)))
    bias = tf.constant(sums)
    _, found = hidden_states(x, kernel, recurrent, bias, itself, FUNCTIONS, tf.constant(0.9))
    assert (found.numpy().ravel() * 2**15).tolist() == cells
    assert np.all(found.numpy() * 2**15 % 1.0 == 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_fixed_point_is_near_real_numbers(seed):
    """Functions err by 12 units of 2^-15, sums by one of 2^-12, and five steps add these up."""
    x, kernel, recurrent, bias = _layer(seed)
    real, cells = hidden_states(x, kernel, recurrent, bias, itself)
    largest = tf.reduce_max(tf.abs(cells))
    fixed, _ = hidden_states(x, kernel, recurrent, bias, itself, FUNCTIONS, largest)
    assert np.max(np.abs(fixed - real)) < 5 * 12 * 2**-12


def test_a_cell_state_is_clipped_to_its_range_and_tells_that_it_is():
    x, kernel, recurrent = (tf.zeros(shape) for shape in ((1, 9, 1), (1, 4), (1, 4)))
    bias = tf.fill([4], 8.0)  # it adds about one in each step
    for largest, end in ((0.9, 1.0), (1.1, 2.0), (0.0, 64.0)):
        _, cells = hidden_states(
            x, kernel, recurrent, bias, itself, FUNCTIONS, tf.constant(largest)
        )
        assert np.max(cells) == pytest.approx(min(end + 1.0, 9.0), abs=0.05)


def test_gradients_are_those_of_real_numbers_but_for_rounding():
    tensors = _layer(7)
    gradients = []
    for functions in (None, FUNCTIONS):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            states, _ = hidden_states(*tensors, itself, functions, tf.constant(5.0))
            loss = tf.reduce_sum(tf.square(states))
        gradients.append(tape.gradient(loss, tensors))
    for real, fixed in zip(*gradients, strict=True):
        assert np.max(np.abs(real - fixed)) < 0.02 * np.max(np.abs(real))


def test_each_gate_has_a_scale():
    weights = np.float32([[1.27, 0.001, -127.0, 0.0], [0.013, 0.127, 0.6, 0.0]])
    expected = np.float32([[1.27, 0.001, -127.0, 0.0], [0.01, 0.127, 1.0, 0.0]])
    np.testing.assert_allclose(on_codes_of_gates(tf.constant(weights)), expected, rtol=1e-6)


def test_the_bits_of_a_cell_hold_its_largest_magnitude():
    magnitudes = [0.0, 0.2, 1.0, 1.0001, 2.0, 3.0, 8.0, 9.0, 32.0, 33.0, 1e6]
    found = [int(cell_bits(tf.constant(largest))) for largest in magnitudes]
    assert found == [6, 0, 0, 1, 1, 2, 3, 4, 5, 6, 6]
