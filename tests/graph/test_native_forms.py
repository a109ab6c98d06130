"""Functions that get another form for NPUs: what is recognized, and what they then compute."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layer_kinds import activation_name
from sat_tf.graph.layers.activations import hard_silu, relu6_sigmoid
from sat_tf.graph.rewrite import with_layers_for_operations
from sat_tf.targets import PROCESSORS

L = keras.layers
NPU = PROCESSORS["ethos-u55"]
VALUES = np.linspace(-6.0, 9.0, 151, dtype=np.float32).reshape(1, 151)
HARD_SWISHES = {
    "divided last": lambda x: x * tf.nn.relu6(x + 3.0) / 6.0,
    "divided first": lambda x: x * (tf.nn.relu6(x + 3) / 6),
    "as Keras' MobileNetV3": lambda x: L.Multiply()([x, L.ReLU(6.0)(x + 3.0) * (1.0 / 6.0)]),
    "clipped, the gate first": lambda x: tf.clip_by_value(3.0 + x, 0.0, 6.0) * x * (1 / 6),
    "the input divided": lambda x: (x / 6.0) * tf.minimum(tf.maximum(x - (-3.0), 0.0), 6.0),
}
OTHERS = {
    "another summand": lambda x: x * tf.nn.relu6(x + 2.0) / 6.0,
    "another divisor": lambda x: x * tf.nn.relu6(x + 3.0) / 5.0,
    "another ceiling": lambda x: x * L.ReLU(5.0)(x + 3.0) / 6.0,
    "another factor": lambda x: (x + 1.0) * tf.nn.relu6(x + 3.0) / 6.0,
    "three factors": lambda x: x * x * tf.nn.relu6(x + 3.0) / 6.0,
    "a divisor for each channel": lambda x: x * tf.nn.relu6(x + 3.0) / np.full(151, 6.0, "float32"),
}


def _model(function) -> keras.Model:
    image = keras.Input(VALUES.shape[1:])
    return keras.Model(image, function(image))


def _functions(model: keras.Model) -> list[str]:
    return [activation_name(one) for one in model.layers if isinstance(one, L.Activation)]


def _assert_same(made: keras.Model, model: keras.Model) -> None:
    np.testing.assert_allclose(made(VALUES), model(VALUES), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", HARD_SWISHES)
def test_a_hard_swish_in_operations_is_one_function_for_an_npu_alone(name):
    model = _model(HARD_SWISHES[name])
    made = with_layers_for_operations(model, processor=NPU)
    assert _functions(made) == ["hard_silu"]
    assert len(made.layers) == 2
    assert made.layers[-1].name == model.layers[-1].name
    _assert_same(made, model)
    plain = with_layers_for_operations(model)
    assert _functions(plain) == []
    np.testing.assert_array_equal(plain(VALUES), model(VALUES))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_like_a_hard_swish_is_none(name):
    made = with_layers_for_operations(_model(OTHERS[name]), processor=NPU)
    assert _functions(made) == []


def test_a_hard_swish_keeps_what_is_computed_of_it_and_of_its_gate():
    def function(x):
        gate = tf.nn.relu6(x + 3.0) / 6.0
        return L.Concatenate()([2.0 * (x * gate), gate])

    model = _model(function)
    made = with_layers_for_operations(model, processor=NPU)
    assert _functions(made) == ["hard_silu"]
    _assert_same(made, model)


@pytest.mark.parametrize("function", ["hard_sigmoid", relu6_sigmoid])
def test_a_hard_sigmoid_is_a_rectifier_of_a_line(function):
    model = _model(L.Activation(function, name="gate"))
    made = with_layers_for_operations(model, processor=NPU)
    names = [one.name for one in made.layers[1:]]
    assert names == ["gate_slope", "gate_offset", "gate"]
    assert made.layers[-1].max_value == 1.0
    _assert_same(made, model)
    assert with_layers_for_operations(made, processor=NPU) is made


@pytest.mark.parametrize("function", [HARD_SWISHES["divided last"], L.Activation(hard_silu)])
def test_a_hard_swish_without_an_operator_is_a_product(function):
    model = _model(function)
    made = with_layers_for_operations(model, processor=PROCESSORS["edgetpu"])
    assert _functions(made) == []
    assert [type(one) for one in made.layers].count(L.Multiply) == 1
    _assert_same(made, model)
