"""Models and layers of Keras 3 on their way to tf_keras, and the proof of what they become."""

import functools
import re
import types

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from keras.src.ops.nn import DepthToSpace

import sat_tf
from sat_tf.graph.layers import activations
from sat_tf.graph.layers.activations import OF_KERAS3, keras3_name
from sat_tf.keras3 import own_layers, proof, twin, variable_values
from sat_tf.keras3.incoming import convert, read_model
from sat_tf.keras3.proof import _are_ties, difference
from sat_tf.training.trained_models import read_classifier
from tests.export.proofs import proved
from tests.keras3 import models

L = keras3.layers


def _images(*shape):
    return np.random.default_rng(7).uniform(0, 255, shape or (3, 8, 8, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def classifier():
    """A Keras 3 model, the converted one, and the proof; nothing changes them."""
    model = models.classifier()
    return model, *convert(model)


@pytest.mark.essential
def test_a_classifier_comes_over_with_names_weights_and_outputs(classifier):
    model, converted, proof = classifier
    assert isinstance(converted, keras.Model)
    assert [layer.name for layer in converted.layers] == [layer.name for layer in model.layers]
    assert converted.name == model.name
    expected, received = (each.predict(_images(), verbose=0) for each in (model, converted))
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)
    assert max(proof.difference, proof.layer_difference) <= 1e-5
    conv, norm, dropout, leaky = map(converted.get_layer, ("conv", "bn", "dropout", "leaky"))
    assert conv.kernel_regularizer.get_config() == {"l2": pytest.approx(1e-4)}
    assert isinstance(conv.kernel_initializer, keras.initializers.HeNormal)
    assert conv.kernel_constraint.max_value == 2.0
    assert (norm.momentum, dropout.rate, leaky.alpha) == (0.9, 0.3, pytest.approx(0.2))


def test_operations_become_layers_where_there_are_some():
    keras3.utils.clear_session()  # operations are numbered through a session
    model = models.operations()
    converted = sat_tf.from_keras3(model)
    kinds = {(layer.name, type(layer).__name__) for layer in converted.layers}
    # The product is one with a number.
    assert {("add", "Add"), ("relu", "ReLU"), ("multiply", "TFOpLambda")} <= kinds
    assert ("concatenate", "Concatenate") in kinds
    images = _images(3, 8, 8, 4)
    np.testing.assert_allclose(converted(images), model(images), rtol=1e-5)


def test_nested_models_and_shared_layers_stay_what_they_are():
    model = models.structures()
    converted = sat_tf.from_keras3(model)
    backbone = converted.get_layer("backbone")
    assert isinstance(backbone, keras.Model)
    assert isinstance(converted.get_layer("tail"), keras.Sequential)
    assert backbone.trainable is False
    assert converted.get_layer("tail").trainable is True
    assert converted.count_params() == model.count_params()
    images = {"left": _images(), "right": _images()[::-1]}
    expected, received = model(images), converted(images)
    assert set(received) == {"scores", "features"}
    for name in received:
        np.testing.assert_allclose(received[name], expected[name], rtol=1e-5, atol=1e-5)


def test_adapted_statistics_come_over_in_a_sequential_model():
    model = models.normalized()
    converted = sat_tf.from_keras3(model)
    assert isinstance(converted, keras.Sequential)
    np.testing.assert_allclose(converted(_images()), model(_images()), rtol=1e-4)


def test_the_converted_model_is_saved_and_loaded_by_tf_keras(classifier, tmp_path):
    _, converted, _ = classifier
    converted.save(tmp_path / "converted.keras")
    loaded = keras.models.load_model(tmp_path / "converted.keras")
    np.testing.assert_array_equal(loaded(_images()), converted(_images()))


def test_training_is_kept_where_it_is_off_and_dropped_where_keras_3_overrules_it():
    image = keras3.Input((4, 4, 2), name="image")
    x = L.BatchNormalization(name="off")(image, training=False)
    x = L.BatchNormalization(name="on")(x, training=True)
    model, images = models.pretend_trained(keras3.Model(image, x)), _images(5, 4, 4, 2)
    received, expected = (
        each.predict(images, verbose=0) for each in (sat_tf.from_keras3(model), model)
    )
    np.testing.assert_allclose(received, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16"])
def test_lower_precision_and_an_open_image_size_stay(policy):
    image = keras3.Input((None, None, 3), name="image")
    x = L.Conv2D(4, 3, activation="relu", dtype=policy, name="conv")(image)
    x = L.Dense(2, dtype="float32", name="head")(L.GlobalMaxPooling2D()(x))
    converted = sat_tf.from_keras3(models.pretend_trained(keras3.Model(image, x)))
    assert converted.get_layer("conv").dtype_policy.name == policy
    assert converted.get_layer("head").dtype_policy.name == "float32"
    assert converted.input_shape == (None, None, None, 3)


def _twice(base):
    class Twice(base):
        def __init__(self, factor=2.0, **options):
            super().__init__(**options)
            self.factor = factor

        def call(self, inputs):
            return inputs * self.factor

        def get_config(self):
            return {**super().get_config(), "factor": self.factor}

    return Twice


Twice, TwiceInKeras2 = map(_twice, (L.Layer, keras.layers.Layer))


def test_layers_of_ones_own_come_over_with_their_class_and_operations_are_called_by_keyword():
    image = keras3.Input((4, 4, 4), name="image")
    model = keras3.Model(image, Twice(5.0, name="five")(DepthToSpace(2)(x=image)), name="own")
    converted = sat_tf.from_keras3(model, custom_layers={"Twice": TwiceInKeras2})
    assert converted.get_layer("five").factor == 5.0
    values = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)
    np.testing.assert_array_equal(converted(values), np.asarray(model(values)))


def test_the_first_layer_that_differs_is_named_with_the_model_it_is_in(monkeypatch):
    # tf_keras' own hard_sigmoid has another slope: under its name it is another function.
    monkeypatch.setitem(activations.OF_KERAS3, "hard_sigmoid", "hard_sigmoid")
    with pytest.raises(ValueError, match="separable: received a SeparableConv2D whose output diff"):
        sat_tf.from_keras3(models.classifier())
    monkeypatch.setattr(keras.layers.BatchNormalization, "call", lambda self, x, training=None: x)
    with pytest.raises(ValueError, match="backbone/inner_bn: received a BatchNormalization"):
        sat_tf.from_keras3(models.structures())


def test_a_wrong_layer_is_not_hidden_by_a_softmax(monkeypatch):
    pool = keras.layers.GlobalAveragePooling2D
    monkeypatch.setattr(pool, "call", lambda self, x: tf.reduce_max(x, [1, 2]))
    model = _classifier(keras3)
    model.get_layer("head").set_weights([np.zeros((4, 3)), np.zeros(3)])
    with pytest.raises(ValueError, match="pool: received a GlobalAveragePooling2D"):
        sat_tf.from_keras3(model)


PICTURES = tf.constant(np.random.default_rng(0).uniform(0.0, 1.0, (8, 8, 8, 3)), tf.float32)


def _classifier(library):
    image, of = library.Input((8, 8, 3), name="image"), library.layers
    tensor = of.BatchNormalization(name="norm")(of.Conv2D(4, 3, use_bias=False)(image))
    tensor = of.GlobalAveragePooling2D(name="pool")(of.ReLU(name="relu")(tensor))
    return library.Model(image, of.Dense(3, activation="softmax", name="head")(tensor))


@pytest.mark.parametrize(
    ("saved", "renamed"), [("a.keras",) * 2, ("a.h5",) * 2, ("a.keras", "a.h5")]
)
def test_a_file_of_keras_3_is_converted_whatever_its_name_and_says_so(saved, renamed, tmp_path):
    model = _classifier(keras3)
    model.save(tmp_path / saved)
    read = read_model((tmp_path / saved).rename(tmp_path / renamed))
    assert isinstance(read.model, keras.Model)
    assert f"saved by Keras {keras3.__version__}; converted to tf_keras" in read.note
    assert re.search(r"outputs differ by at most \S+ of their largest value\.$", read.note)
    np.testing.assert_allclose(read.model(PICTURES), np.asarray(model(PICTURES)), atol=1e-5)


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model"])
def test_a_model_of_keras_2_is_read_as_it_is(name, tmp_path):
    model = _classifier(keras)
    model.save(tmp_path / name)
    read = read_model(tmp_path / name)
    assert read.note is None
    np.testing.assert_allclose(read.model(PICTURES), model(PICTURES), atol=1e-6)


def test_a_classifier_of_keras_3_gives_logits(tmp_path):
    model = _classifier(keras3)
    model.save(tmp_path / "float.keras")
    source = types.SimpleNamespace(image_size=8, num_classes=3)
    read = read_classifier(tmp_path / "float.keras", source, key="float_model", safe_mode=True)
    # To the rounding of sums, which is that of `from_keras3`.
    np.testing.assert_allclose(
        tf.nn.softmax(read(PICTURES)), np.asarray(model(PICTURES)), atol=1e-5
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        *(([1, -4], [1.5, -4], 0.125), ([0, 0], [0, 0], 0.0), ([0, 0], [1, 1], np.inf)),
        ([[0], [0]], [[0, 0]], np.inf),
        # Infinities and NaN are equal to themselves only.
        ([np.inf, np.nan, 1], [np.inf, np.nan, 1], 0.0),
        ([np.inf, np.nan, 1], [-np.inf, np.nan, 1], np.inf),
        ([np.inf, np.nan, 1], [np.inf, 0, 1], np.inf),
        ([np.inf, np.nan, 1], [np.inf, np.nan, 1.5], 0.5),
    ],
)
def test_differences_are_parts_of_the_largest_value(one, other, expected):
    assert difference(np.float32(one), np.float32(other)) == expected


def test_ties_are_halfway_between_two_codes_as_closely_as_the_largest_value_is_rounded():
    steps = np.array([-13.5, -13.5 + 1e-5, -13.4, 0.5, 1.0, 2.49, 100.5 - 9e-4, 127.0])
    assert np.flatnonzero(_are_ties(steps * 0.25, 0.25)).tolist() == [0, 1, 3, 6]
    assert np.all(_are_ties(np.full(1728, -13.5 * 0.108, np.float32), 0.108))


def test_rounding_that_a_model_magnifies_is_no_other_model(recwarn):
    # Its outputs are what float32 loses: the Kerases normalize in other orders.
    draws = np.random.default_rng(0)
    image = keras3.Input((8, 8, 4))
    norm, affine = L.BatchNormalization(), L.DepthwiseConv2D(1)
    outputs = L.Rescaling(1e6)(norm(image) - affine(image))
    norm.set_weights([draws.uniform(0.5, 2.0, 4) for _ in range(4)])
    gamma, beta, mean, variance = norm.get_weights()
    slope = gamma / np.sqrt(variance + norm.epsilon)
    affine.set_weights([slope.reshape(1, 1, 4, 1), beta - mean * slope])
    _, found = convert(keras3.Model(image, outputs))
    assert found.layer_difference < 1e-5 < found.difference
    assert not [warning for warning in recwarn if "differ in tf_keras" in str(warning.message)]


@pytest.fixture
def scaled(monkeypatch):
    """Multiplies what a kind of layers of tf_keras gives."""

    def by(kind, factor):
        original = kind.call
        monkeypatch.setattr(kind, "call", lambda self, x: original(self, x) * factor)

    return by


def test_a_difference_that_rounding_does_not_explain_is_told_and_refused_where_answers_change(
    scaled, monkeypatch
):
    # Each layer differs by less than it may, and all of them in one direction.
    layers = [L.Conv2D(3, 1, use_bias=False) for _ in range(6)]
    model = keras3.Sequential([keras3.Input((8, 8, 3)), *layers])
    scaled(keras.layers.Conv2D, 1.0 + 9e-6)
    with pytest.warns(UserWarning, match=r"differ in tf_keras by 5.4e-05 .* answers are the same"):
        convert(model)
    monkeypatch.setattr(proof, "_changed_answers", lambda expected, received: 0.25)
    with pytest.raises(ValueError, match=r"and 25\.0% of its answers"):
        convert(model)


def test_a_layer_that_does_something_else_is_no_rounding(scaled):
    image = keras3.Input((8, 8, 3))
    model = keras3.Model(image, L.UpSampling2D(interpolation="bilinear", name="up")(image))
    scaled(keras.layers.UpSampling2D, 1.0 + 1e-4)
    with pytest.raises(ValueError, match="up: received an UpSampling2D whose output differs"):
        sat_tf.from_keras3(model)


VALUES = tf.linspace([-7.0], [7.0], 57, axis=-1)


@pytest.mark.parametrize("name", OF_KERAS3)
def test_an_activation_is_that_of_keras_3_and_survives_saving_and_its_name_leads_back(name):
    layer = keras.layers.Activation(OF_KERAS3[name])
    expected = keras3.activations.get(name)(VALUES)
    np.testing.assert_allclose(layer(VALUES), expected, rtol=1e-6, atol=1e-7)
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    np.testing.assert_array_equal(again(VALUES), layer(VALUES))
    aliases = {"hard_swish": "hard_silu", "swish": "silu"}
    found = keras3_name(layer.activation)
    assert aliases.get(found, found) == aliases.get(name, name)


def test_names_are_matched_by_as_many_parts_as_tell_them_apart_or_else_by_order():
    sources = ["attention/query/kernel", "attention/key/kernel"]
    targets = ["model/attention/key/kernel:0", "model/attention/query/kernel:0"]
    assert variable_values.matched(sources, targets) == [1, 0]
    others = ["c/depthwise_kernel:0", "c/bias:0"]
    assert variable_values.matched(["conv/kernel", "conv/bias"], others) == [0, 1]
    # So are arrays put in the other order.
    layer = L.Dense(3)
    layer.build((None, 2))
    arrays = [np.ones((3,)), np.ones((2, 3))]
    variable_values.fill(layer, ["a/bias", "a/kernel"], arrays, ["b/kernel", "b/bias"])
    assert all(np.all(weight == 1.0) for weight in layer.get_weights())


A, ops = keras3.activations, keras3.ops
FLOAT = sat_tf.BitPolicy.mobile(8, input_type="float32", unsupported="float")


@keras3.saving.register_keras_serializable("tests_own_layers")
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


@keras3.saving.register_keras_serializable("tests_own_layers")
class Shape(L.Layer):
    def call(self, inputs):
        return ops.convert_to_tensor(np.asarray(inputs) + 1.0)


GIVEN = np.random.default_rng(3).normal(size=(64, 8)).astype(np.float32)


def _model(*layers, activation=None):
    keras3.utils.set_random_seed(3)
    given = keras3.Input((8,))
    tensor = L.Dense(6, activation=activation, name="first")(given)
    for layer in layers:
        tensor = layer(tensor)
    return keras3.Model(given, L.Dense(2, name="last")(tensor))


@pytest.mark.thorough
def test_a_layer_that_is_left_float_learns_and_its_file_has_what_it_learnt(tmp_path):
    model = sat_tf.calibrate(sat_tf.quantize_model(_model(Gated(name="own")), FLOAT), GIVEN)
    own = model.get_layer("quant_own").layer
    assert isinstance(own, Gated)
    before = [ops.convert_to_numpy(weight) for weight in own.weights]
    model.compile(keras3.optimizers.Adam(1e-2), "mse")
    model.fit(GIVEN, np.ones((64, 2), np.float32), verbose=0)
    pairs = zip(before, map(ops.convert_to_numpy, own.weights), strict=True)
    moved = [np.any(one != other) for one, other in pairs]
    assert moved == [weight.trainable for weight in own.weights]
    proved(model, tmp_path / "model.tflite", GIVEN[:8])
    expected = ops.convert_to_numpy(model(GIVEN))
    np.testing.assert_allclose(twin.twin_of(model)(GIVEN), expected, rtol=0, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras3.saving.load_model(tmp_path / "model.keras")
    sat_tf.export_tflite(loaded, tmp_path / "loaded.tflite")
    contents = {(tmp_path / name).read_bytes() for name in ("model.tflite", "loaded.tflite")}
    assert len(contents) == 1


def test_other_backends_compute_the_operations_of_a_layer_with_the_twins_variables():
    layer = Gated(name="own")
    layer.build((None, 8))
    layer.built = True
    variables = {id(own): tf.Variable(ops.convert_to_numpy(own)) for own in layer.weights}
    given = ((keras3.Input((8,)),), {})
    run = own_layers._Operations(layer, given, variables)
    np.testing.assert_allclose(run(GIVEN), layer(GIVEN), rtol=0, atol=1e-6)
    variables[id(layer.offset)].assign_add(tf.ones(8))
    np.testing.assert_allclose(run(GIVEN), layer(GIVEN) + 1.0, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"received Shape .* functions of keras.ops"):
        own_layers._Operations(Shape(), given, {})


@keras3.saving.register_keras_serializable("tests_own_layers")
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
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, FLOAT), GIVEN)
    layers = [getattr(layer, "layer", layer) for layer in twin.twin_of(quantized).layers]
    behind = [type(layer).__name__ for layer in layers]
    assert behind[behind.index("Dense") + 1 : -1] == expected
    expected = ops.convert_to_numpy(model(GIVEN))
    found = ops.convert_to_numpy(quantized(GIVEN))
    assert np.max(np.abs(found - expected)) < 0.05 * np.max(np.abs(expected))


# The second has an activation that Keras 3 alone has: the whole stays a layer of Keras 3.
@pytest.mark.parametrize("name", ["sequences", "outputs"])
def test_layers_around_recurrent_ones_stay_float(name):
    layer = L.LSTM(3, return_sequences=True, recurrent_activation="tanh")
    if name == "outputs":
        layer = L.RNN(L.GRUCell(3, activation="sparse_sigmoid"), return_sequences=True)
    given = keras3.Input((6, 4))
    tensor = L.Conv1D(4, 2)(L.Bidirectional(layer)(given))
    model = keras3.Model(given, L.Dense(2)(L.GlobalAveragePooling1D()(tensor)))
    quantized = sat_tf.quantize_model(model, FLOAT)  # which proves that each layer is the same
    layers = [getattr(layer, "layer", layer) for layer in twin.twin_of(quantized).layers]
    (left,) = [layer for layer in layers if type(layer).__name__ == "Bidirectional"]
    assert isinstance(left, own_layers.OfKeras3) == (name == "outputs")
