import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core import asymmetric, dorefa, grid, pact
from sat_tf.core.clipping_gradients import CLIPPING_GRADIENTS
from sat_tf.core.custom_gradient import straight_through
from sat_tf.core.on_tensorflow import with_gradient
from tests.core.execution import MODES, value_and_gradients

# Each with a gradient of its own.
FUNCTIONS = {
    "activation": lambda x: pact.quantize_activation(x, 2.0, 3),
    "stream": lambda x: pact.quantize_stream(x, 2.0, 3, "pact"),
    "offset": lambda x: asymmetric.quantize_offset(x, 2.0, 3, lowest=-0.3),
    "unit": lambda x: grid.quantize_unit(x, 7),
    "weights": lambda x: dorefa.quantize_weights(x, 3),
    "weights by channel": lambda x: dorefa.quantize_weights(x, 3, range_axes=(1,)),
    "clamp": dorefa.clamp_weights,
    "rate": lambda x: pact.learning_at_rate(x, 0.5),
}


def _floored(n, x, *, times, constant):
    del times, constant
    return n.floor(x), (n.tensor(4.0),)


def _times(n, upstream, value, x, kept, *, times, constant):
    del n, value
    return [upstream * times + 0.0 * x + kept * constant]


def _graph_with_gradient(function):
    """The graph of a function and its gradient, traced anew."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return step.get_concrete_function(tf.TensorSpec([3, 2])).graph


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_is_that_of_the_function_whatever_made_the_value(mode):
    def function(x):
        return with_gradient(_floored, _times, [x], times=3.0, constant=tf.constant(0.5))

    value, gradient = value_and_gradients(function, [[1.5, 2.5]], [1.0, 10.0], mode)
    np.testing.assert_array_equal(value, [1.0, 2.0])
    np.testing.assert_array_equal(gradient, [5.0, 32.0])


def test_a_function_that_was_traced_before_is_differentiated_as_well():
    traced = tf.function(lambda x: straight_through(tf.floor(x), x * x))
    x = tf.constant([1.5, 2.5])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.cond(tf.constant(True), lambda: traced(x), lambda: x)
    np.testing.assert_array_equal(y, [1.0, 2.0])
    np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 5.0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_configuration_is_registered_once(name, monkeypatch):
    registered = []
    real = tf.RegisterGradient.__init__

    def counted(self, op_type):
        registered.append(op_type)
        real(self, op_type)

    monkeypatch.setattr(tf.RegisterGradient, "__init__", counted)
    _graph_with_gradient(FUNCTIONS[name])
    assert len(registered) <= 1
    before = list(registered)
    for _ in range(3):
        _graph_with_gradient(FUNCTIONS[name])
    assert registered == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_graph_outlives_its_function(name):
    graph = weakref.ref(_graph_with_gradient(FUNCTIONS[name]))
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
def test_settings_are_not_confused(gradient):
    x = tf.constant([0.4, 0.6])
    level = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(level)
        y = pact.quantize_activation(x, level, 2, gradient)
    expected = {"pact": 0.0, "calibrated": (1.0 - 0.6) / 3.0 - 0.4 / 3.0}[gradient]
    np.testing.assert_allclose(tape.gradient(y, level), expected, atol=1e-7)


def test_a_saved_model_computes_and_says_that_it_has_no_gradients(tmp_path):
    module = tf.Module()
    module.level = tf.Variable(3.0)
    module.f = tf.function(
        lambda x: pact.quantize_activation(x, module.level, 2),
        input_signature=[tf.TensorSpec([4])],
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    x = tf.constant([-1.0, 0.4, 0.6, 9.0])
    with tf.GradientTape() as tape:
        y = loaded.f(x)
    np.testing.assert_array_equal(y, [0.0, 0.0, 1.0, 3.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"load it with keras\.models\.load"):
        tape.gradient(y, loaded.level)
