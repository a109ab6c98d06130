import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import sat_tf
from sat_tf.graph.layers.activations import OF_KERAS3, keras3_name
from sat_tf.keras3 import own_layers, proof, twin, values
from sat_tf.keras3.incoming import convert
from sat_tf.keras3.proof import _are_ties, difference
from tests.export.proofs import proved

L = keras.layers


def test_differences_are_parts_of_the_largest_value():
    assert difference(np.float32([1.0, -4.0]), np.float32([1.5, -4.0])) == 0.125
    assert difference(np.zeros(2), np.zeros(2)) == 0.0
    assert difference(np.zeros(2), np.ones(2)) == np.inf
    assert difference(np.zeros((2, 1)), np.zeros((1, 2))) == np.inf


def test_infinities_and_nan_are_equal_to_themselves_only():
    odd = np.array([np.inf, np.nan, 1.0])
    assert difference(odd, odd) == 0.0
    assert difference(odd, np.array([-np.inf, np.nan, 1.0])) == np.inf
    assert difference(odd, np.array([np.inf, 0.0, 1.0])) == np.inf
    assert difference(odd, np.array([np.inf, np.nan, 1.5])) == 0.5


def test_ties_are_halfway_between_two_codes_as_closely_as_the_largest_value_is_rounded():
    steps = np.array([-13.5, -13.5 + 1e-5, -13.4, 0.5, 1.0, 2.49, 100.5 - 9e-4, 127.0])
    assert np.flatnonzero(_are_ties(steps * 0.25, 0.25)).tolist() == [0, 1, 3, 6]
    assert np.all(_are_ties(np.full(1728, -13.5 * 0.108, np.float32), 0.108))


def test_rounding_that_a_model_magnifies_is_no_other_model(recwarn):
    # Its outputs are what float32 loses: the Kerases normalize in other orders.
    draws = np.random.default_rng(0)
    image = keras.Input((8, 8, 4))
    norm, affine = L.BatchNormalization(), L.DepthwiseConv2D(1)
    outputs = L.Rescaling(1e6)(norm(image) - affine(image))
    norm.set_weights([draws.uniform(0.5, 2.0, 4) for _ in range(4)])
    gamma, beta, mean, variance = norm.get_weights()
    slope = gamma / np.sqrt(variance + norm.epsilon)
    affine.set_weights([slope.reshape(1, 1, 4, 1), beta - mean * slope])
    _, found = convert(keras.Model(image, outputs))
    assert found.layer_difference < 1e-5 < found.difference
    assert not [warning for warning in recwarn if "differ in tf_keras" in str(warning.message)]


def test_a_difference_that_rounding_does_not_explain_is_told_and_refused_where_answers_change(
    monkeypatch,
):
    # Each layer differs by less than it may, and all of them in one direction.
    original = tf_keras.layers.Conv2D.call
    image = keras.Input((8, 8, 3))
    tensor = image
    for _ in range(6):
        tensor = L.Conv2D(3, 1, use_bias=False)(tensor)
    model = keras.Model(image, tensor)
    monkeypatch.setattr(
        tf_keras.layers.Conv2D, "call", lambda self, x: original(self, x) * (1.0 + 9e-6)
    )
    with pytest.warns(UserWarning, match=r"differ in tf_keras by 5.4e-05 .* answers are the same"):
        convert(model)
    monkeypatch.setattr(proof, "_changed_answers", lambda expected, received: 0.25)
    with pytest.raises(ValueError, match=r"and 25\.0% of its answers"):
        convert(model)


def test_a_layer_that_does_something_else_is_no_rounding(monkeypatch):
    image = keras.Input((8, 8, 3))
    model = keras.Model(image, L.UpSampling2D(interpolation="bilinear", name="up")(image))
    original = tf_keras.layers.UpSampling2D.call
    monkeypatch.setattr(
        tf_keras.layers.UpSampling2D, "call", lambda self, x: original(self, x) * (1.0 + 1e-4)
    )
    with pytest.raises(ValueError, match="up: received an UpSampling2D whose output differs"):
        sat_tf.from_keras3(model)


VALUES = tf.linspace([-7.0], [7.0], 57, axis=-1)


@pytest.mark.parametrize("name", OF_KERAS3)
def test_an_activation_is_that_of_keras_3_and_survives_saving(name):
    layer = tf_keras.layers.Activation(OF_KERAS3[name])
    expected = keras.activations.get(name)(VALUES)
    np.testing.assert_allclose(layer(VALUES), expected, rtol=1e-6, atol=1e-7)
    again = tf_keras.layers.deserialize(tf_keras.layers.serialize(layer))
    np.testing.assert_array_equal(again(VALUES), layer(VALUES))


def test_names_lead_back():
    aliases = {"hard_swish": "hard_silu", "swish": "silu"}
    for name, row in OF_KERAS3.items():
        found = keras3_name(tf_keras.activations.get(row))
        assert aliases.get(found, found) == aliases.get(name, name)


def test_names_are_matched_by_as_many_parts_as_tell_them_apart_or_else_by_order():
    sources = ["attention/query/kernel", "attention/key/kernel"]
    targets = ["model/attention/key/kernel:0", "model/attention/query/kernel:0"]
    assert values.matched(sources, targets) == [1, 0]
    others = ["c/depthwise_kernel:0", "c/bias:0"]
    assert values.matched(["conv/kernel", "conv/bias"], others) == [0, 1]


def test_arrays_are_put_in_the_other_order():
    arrays = [np.zeros((3,)), np.zeros((2, 3))]
    found = values.arrange(["a/bias", "a/kernel"], arrays, ["b/kernel", "b/bias"], [(2, 3), (3,)])
    assert [array.shape for array in found] == [(2, 3), (3,)]


A, ops = keras.activations, keras.ops
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
    proved(model, tmp_path / "model.tflite", _given()[:8])
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
