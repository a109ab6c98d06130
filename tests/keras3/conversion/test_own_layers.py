"""Layers and activations of Keras 3 that are their users' own."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf.keras3 import own_layers, twin

L, A, ops = keras.layers, keras.activations, keras.ops
FLOAT = sat_tf.BitPolicy.mobile(8, input_type="float32", unsupported="float")


@keras.saving.register_keras_serializable("tests_own_layers")
class Gated(L.Layer):
    """Weights of its own, one of them not trained, and layers inside."""

    def build(self, shape):
        self.gain = self.add_weight(name="gain", shape=(shape[-1],), initializer="ones")
        self.offset = self.add_weight(name="offset", shape=(shape[-1],), trainable=False)
        self.inner, self.noise = L.Dense(shape[-1], name="inner"), L.Dropout(0.5)
        self.inner.build(shape)

    def call(self, inputs, training=None):
        gate = ops.tanh(self.noise(self.inner(inputs), training=training))
        return ops.maximum(inputs * self.gain, 0.1 * gate) + self.offset


@keras.saving.register_keras_serializable("tests_own_layers")
class Shape(L.Layer):
    def call(self, inputs):
        return ops.convert_to_tensor(np.asarray(inputs) + 1.0)


def _model(layer=None, activation=None):
    keras.utils.set_random_seed(3)
    given = keras.Input((8,))
    tensor = L.Dense(6, activation=activation, name="first")(given)
    model = keras.Model(given, L.Dense(2, name="last")(layer(tensor) if layer else tensor))
    model(_given())
    return model


def _given():
    return np.random.default_rng(3).normal(size=(64, 8)).astype(np.float32)


@pytest.mark.thorough
def test_a_layer_that_is_left_float_learns_and_its_file_has_what_it_learnt(tmp_path):
    model = sat_tf.calibrate(sat_tf.quantize_model(_model(Gated(name="own")), FLOAT), _given())
    own = model.get_layer("quant_own").layer
    assert isinstance(own, Gated)
    before = [ops.convert_to_numpy(weight) for weight in own.weights]
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    model.fit(_given(), np.ones((64, 2), np.float32), verbose=0)
    pairs = zip(before, map(ops.convert_to_numpy, own.weights), strict=True)
    moved = [np.any(one != other) for one, other in pairs]
    assert moved == [weight.trainable for weight in own.weights]
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    found = sat_tf.verify_tflite(model, tmp_path / "model.tflite", _given()[:8], progress=False)
    assert found.codes_differing == 0
    expected = ops.convert_to_numpy(model(_given()))
    np.testing.assert_allclose(twin.twin_of(model)(_given()), expected, rtol=0, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    sat_tf.export_tflite(loaded, tmp_path / "loaded.tflite")
    contents = {(tmp_path / name).read_bytes() for name in ("model.tflite", "loaded.tflite")}
    assert len(contents) == 1


def test_other_backends_compute_the_operations_of_a_layer_with_the_twins_variables():
    layer = Gated(name="own")
    layer.build((None, 8))
    layer.built = True
    variables = {id(own): tf.Variable(ops.convert_to_numpy(own)) for own in layer.weights}
    given = ((keras.Input((8,)),), {})
    run = own_layers._Operations(layer, given, variables)
    np.testing.assert_allclose(run(_given()), layer(_given()), rtol=0, atol=1e-6)
    variables[id(layer.offset)].assign_add(tf.ones(8))
    np.testing.assert_allclose(run(_given()), layer(_given()) + 1.0, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"received Shape .* functions of keras.ops"):
        own_layers._Operations(Shape(), given, {})


@keras.saving.register_keras_serializable("tests_own_layers")
def halved(x):
    return ops.relu(x) * 0.5


# Activations, and the layers that they become behind the one that they were given to.
ACTIVATIONS = {
    "lambda": (lambda x: A.relu(x, max_value=2.0), ["ReLU"]),
    "partial": (functools.partial(A.leaky_relu, negative_slope=0.1), ["LeakyReLU"]),
    "registered": (halved, ["ReLU", "Scaling"]),
    "layer": (L.LeakyReLU(0.1), ["LeakyReLU"]),
    "own_swish": (lambda x: x * ops.sigmoid(1.7 * x), ["Scaling", "Activation", "Multiply"]),
    "of_tensorflow": (lambda x: tf.nn.leaky_relu(x, 0.3), ["LeakyReLU"]),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_ones_own_become_layers(name):
    activation, expected = ACTIVATIONS[name]
    model = _model(activation=activation)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, FLOAT), _given())
    layers = [getattr(layer, "layer", layer) for layer in twin.twin_of(quantized).layers]
    behind = [type(layer).__name__ for layer in layers]
    assert behind[behind.index("Dense") + 1 : -1] == expected
    expected = ops.convert_to_numpy(model(_given()))
    found = ops.convert_to_numpy(quantized(_given()))
    assert np.max(np.abs(found - expected)) < 0.05 * np.max(np.abs(expected))


def _bidirectional(cell):
    return L.Bidirectional(L.RNN(cell, return_sequences=True))


# Layers around recurrent ones, and the layers of tf_keras that they become. The second has an
# activation that Keras 3 alone has: the whole stays a layer of Keras 3.
AROUND = {
    "sequences": (lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)), "keras"),
    "outputs": (lambda: _bidirectional(L.GRUCell(3, activation="sparse_sigmoid")), "keras3"),
}


@pytest.mark.parametrize("name", AROUND)
def test_layers_around_recurrent_ones_stay_float(name):
    layer, expected = AROUND[name]
    given = keras.Input((6, 4))
    tensor = L.Conv1D(4, 2)(layer()(given))
    model = keras.Model(given, L.Dense(2)(L.GlobalAveragePooling1D()(tensor)))
    quantized = sat_tf.quantize_model(model, FLOAT)  # which proves that each layer is the same
    layers = [getattr(layer, "layer", layer) for layer in twin.twin_of(quantized).layers]
    (left,) = [layer for layer in layers if type(layer).__name__ == "Bidirectional"]
    assert isinstance(left, own_layers.OfKeras3) == (expected == "keras3")
