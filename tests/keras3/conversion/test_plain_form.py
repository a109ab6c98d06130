import keras as keras3
import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.calls.arithmetic import gelu_by_tanh
from sat_tf.graph.operation_layers import absolute
from sat_tf.keras3.conversion import inference_table
from sat_tf.keras3.conversion.inference_model import Names
from sat_tf.keras3.conversion.plain_form import in_form
from sat_tf.keras3.inference_layers import PixelGrid, QuantizedActivation
from sat_tf.keras3.inference_operations import InferenceScaling, InferenceSlice


def _spelled_out(layer, shape, dtype="float32"):
    """The layer spelled out, as a file would hold it."""
    image = keras3.Input(shape, dtype=dtype)
    model = keras3.Model(image, in_form(layer, Names([]).give, exact=False)(image))
    assert "sat_tf" not in model.to_json()
    assert not model.weights
    return keras3.models.model_from_json(model.to_json())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("ends", "from_zero"), [((0, 15), False), ((-7, 7), False), ((-3, 12), True), ((0, 255), False)]
)
def test_a_quantizer_rounds_to_the_same_codes(ends, from_zero, dtype):
    draws = np.random.default_rng(3)
    for scale in draws.uniform(0.001, 0.9, 5).astype(np.float32):
        layer = QuantizedActivation(*ends, from_zero=from_zero, dtype=dtype, name="quant_conv")
        layer.scale.assign(scale)
        ties = (np.arange(-300, 300) + 0.5) * scale
        near = np.concatenate([ties, np.nextafter(ties, 9), np.nextafter(ties, -9)])
        given = np.asarray([*near, *draws.normal(0, 9 * scale, 200), np.inf, -np.inf, np.nan])
        given = given.astype(dtype)[None]
        made = _spelled_out(layer, given.shape[1:], dtype)
        expected = layer(given)
        assert made.layers[-1].name == "quant_conv"
        np.testing.assert_array_equal(made(given), expected)


@pytest.mark.parametrize("reverses", [False, True])
def test_a_grid_of_pixels_is_the_same(reverses):
    layer = PixelGrid(3, reverses)
    layer.shift.assign([0.1, -0.3, 1.7])
    layer.ratio.assign([1.0, 0.97, 0.3])
    given = np.random.default_rng(4).normal(size=(2, 4, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(_spelled_out(layer, (4, 4, 3))(given), layer(given))


@pytest.mark.parametrize(
    "layer",
    [
        InferenceScaling("c - x", 0.3),
        InferenceScaling("x / c", [1.7, -2.0, 0.1]),
        InferenceSlice([[1, 2, None], [None, None, 2], [0, 2, 1]], [0]),
    ],
    ids=lambda layer: layer.name,
)
def test_scalings_and_slices_are_the_same(layer):
    given = np.random.default_rng(5).normal(size=(2, 4, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(_spelled_out(layer, (4, 4, 3))(given), layer(given))


@pytest.mark.parametrize("function", [keras.activations.hard_sigmoid, gelu_by_tanh, absolute])
def test_a_function_that_keras_3_has_not_stands_behind_its_layer(function):
    given = np.random.default_rng(6).normal(0, 3, (2, 5)).astype(np.float32)
    dense = keras.layers.Dense(4, function, name="dense")
    expected = dense(given)
    pieces = inference_table.make_layers(
        dense, Names([]).give, activation=True, kernel=None, exact=False
    )
    x = image = keras3.Input((5,))
    for piece in pieces:
        x = piece(x)
    model = keras3.Model(image, x)
    assert "sat_tf" not in model.to_json()
    assert model.layers[1].name == "dense"
    np.testing.assert_array_equal(model(given), expected)


def test_an_activation_layer_with_such_a_function_keeps_its_name():
    layer = keras.layers.Activation("hard_sigmoid", name="gate")
    given = np.random.default_rng(8).normal(0, 3, (2, 5)).astype(np.float32)
    (piece,) = inference_table.make_layers(
        layer, Names([]).give, activation=True, kernel=None, exact=False
    )
    image = keras3.Input((5,))
    model = keras3.Model(image, piece(image))
    assert [one.name for one in model.layers][1:] == ["gate"]
    np.testing.assert_array_equal(model(given), layer(given))


def test_a_function_within_a_recurrent_layer_is_refused_with_the_fix():
    layer = keras.layers.LSTM(3, recurrent_activation="hard_sigmoid")
    layer(np.zeros((1, 2, 3), np.float32))
    problem = inference_table.problem_of(layer, exact=False)
    assert "recurrent_activation='hard_sigmoid_of_keras2' within LSTM" in problem
    assert "pass exact=True" in problem
    assert "hard_sigmoid" not in (inference_table.problem_of(layer, exact=True) or "")


def test_one_layer_called_at_two_sizes_has_one_name():
    small, large = keras3.Input((4, 4, 2)), keras3.Input((6, 6, 2))
    piece = in_form(QuantizedActivation(0, 15, name="quant"), Names([]).give, exact=False)
    model = keras3.Model([small, large], [piece(small), piece(large)])
    assert [output.shape[1] for output in model.outputs] == [4, 6]
    assert [layer.name for layer in model.layers].count("quant") == 1


def test_it_is_the_default():
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(4, 3, activation="relu", name="multiply")(image)
    x = keras.layers.Dense(2, name="floor")(keras.layers.Flatten(name="add")(x))
    model = sat_tf.quantize_model(keras.Model(image, x))
    exported = sat_tf.to_keras3(model)
    names = ["image", "multiply", "quant_multiply", "add", "floor"]
    assert [layer.name for layer in exported.layers] == names
    quantized = keras3.Model(exported.inputs, exported.get_layer("quant_multiply").output)
    assert len(np.unique(quantized(np.random.default_rng(7).normal(size=(4, 8, 8, 3))))) <= 16
    assert all(type(layer).__module__.startswith("keras.") for layer in exported.layers)
