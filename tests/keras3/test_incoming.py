import re
import types

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from keras.src.ops.nn import DepthToSpace

import sat_tf
from sat_tf.keras3.incoming import convert, read_model
from sat_tf.training.trained_models import read_classifier
from tests.keras3 import models

L = keras3.layers


def _images(shape=(3, 8, 8, 3)):
    return np.random.default_rng(7).uniform(0, 255, shape).astype(np.float32)


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
    images = _images()
    expected, received = model.predict(images, verbose=0), converted.predict(images, verbose=0)
    np.testing.assert_allclose(received, expected, rtol=0, atol=1e-5)
    assert proof.difference <= 1e-5
    assert proof.layer_difference <= 1e-5
    conv = converted.get_layer("conv")
    assert conv.kernel_regularizer.get_config() == {"l2": pytest.approx(1e-4)}
    assert isinstance(conv.kernel_initializer, keras.initializers.HeNormal)
    assert conv.kernel_constraint.max_value == 2.0
    assert converted.get_layer("bn").momentum == 0.9
    assert converted.get_layer("dropout").rate == 0.3
    assert converted.get_layer("leaky").alpha == pytest.approx(0.2)


def test_operations_become_layers_where_there_are_some():
    keras3.utils.clear_session()  # operations are numbered through a session
    model = models.operations()
    converted = sat_tf.from_keras3(model)
    kinds = {layer.name: type(layer).__name__ for layer in converted.layers}
    assert kinds["add"] == "Add"
    assert kinds["relu"] == "ReLU"
    assert kinds["concatenate"] == "Concatenate"
    assert kinds["multiply"] == "TFOpLambda"  # by a number
    images = _images((3, 8, 8, 4))
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
    images = _images()
    np.testing.assert_allclose(converted(images), model(images), rtol=1e-4)


def test_the_converted_model_is_saved_and_loaded_by_tf_keras(classifier, tmp_path):
    _, converted, _ = classifier
    converted.save(tmp_path / "converted.keras")
    loaded = keras.models.load_model(tmp_path / "converted.keras")
    np.testing.assert_array_equal(loaded(_images()), converted(_images()))


def test_training_is_kept_where_it_is_off_and_dropped_where_keras_3_overrules_it():
    image = keras3.Input((4, 4, 2), name="image")
    x = L.BatchNormalization(name="off")(image, training=False)
    x = L.BatchNormalization(name="on")(x, training=True)
    model = models.pretend_trained(keras3.Model(image, x))
    converted = sat_tf.from_keras3(model)
    images = _images((5, 4, 4, 2))
    np.testing.assert_allclose(
        converted.predict(images, verbose=0), model.predict(images, verbose=0), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16"])
def test_lower_precision_stays(policy):
    image = keras3.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, activation="relu", dtype=policy, name="conv")(image)
    x = L.Dense(2, dtype="float32", name="head")(L.Flatten(name="flatten")(x))
    converted = sat_tf.from_keras3(models.pretend_trained(keras3.Model(image, x)))
    assert converted.get_layer("conv").dtype_policy.name == policy
    assert converted.get_layer("head").dtype_policy.name == "float32"


def test_an_open_image_size_stays_open():
    image = keras3.Input((None, None, 3), name="image")
    x = L.GlobalMaxPooling2D(name="pool")(L.Conv2D(4, 3, name="conv")(image))
    converted = sat_tf.from_keras3(keras3.Model(image, x))
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


def test_layers_of_ones_own_come_over_with_their_class():
    image = keras3.Input((4,), name="image")
    model = keras3.Model(image, Twice(5.0, name="five")(image), name="own")
    converted = sat_tf.from_keras3(model, custom_layers={"Twice": TwiceInKeras2})
    assert converted.get_layer("five").factor == 5.0


def test_an_operation_may_be_called_by_keyword():
    image = keras3.Input((4, 4, 4))
    model = keras3.Model(image, DepthToSpace(2)(x=image))
    values = np.arange(64, dtype=np.float32).reshape(1, 4, 4, 4)
    converted = sat_tf.from_keras3(model)
    np.testing.assert_array_equal(converted(values), np.asarray(model(values)))


def test_the_first_layer_that_differs_is_named(monkeypatch):
    # tf_keras' own hard_sigmoid has another slope: under its name it is another function.
    from sat_tf.graph.layers import activations

    monkeypatch.setitem(activations.OF_KERAS3, "hard_sigmoid", "hard_sigmoid")
    with pytest.raises(ValueError, match="separable: received a SeparableConv2D whose output diff"):
        sat_tf.from_keras3(models.classifier())


def test_a_layer_in_a_nested_model_is_named_with_the_model(monkeypatch):
    monkeypatch.setattr(keras.layers.BatchNormalization, "call", lambda self, x, training=None: x)
    with pytest.raises(ValueError, match="backbone/inner_bn: received a BatchNormalization"):
        sat_tf.from_keras3(models.structures())


def test_a_wrong_layer_is_not_hidden_by_a_softmax(monkeypatch):
    image = keras3.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, activation="relu", name="conv")(image)
    x = L.GlobalAveragePooling2D(name="pool")(x)
    x = L.Dense(3, activation="softmax", kernel_initializer="zeros", name="head")(x)
    monkeypatch.setattr(
        keras.layers.GlobalAveragePooling2D, "call", lambda self, x: tf.reduce_max(x, [1, 2])
    )
    with pytest.raises(ValueError, match="pool: received a GlobalAveragePooling2D"):
        sat_tf.from_keras3(keras3.Model(image, x))


def test_a_class_of_keras_3_is_said_to_be_lost():
    class Mine(keras3.Model):
        def train_step(self, *args, **kwargs):
            return super().train_step(*args, **kwargs)

    image = keras3.Input((4,), name="image")
    with pytest.warns(UserWarning, match="class Mine, .*without the methods .*with tf_keras"):
        sat_tf.from_keras3(Mine(image, L.Dense(2, name="head")(image)))


def test_the_name_of_a_file_of_keras_3_changes_nothing(tmp_path):
    image = keras3.Input((4,), name="image")
    keras3.Model(image, L.Dense(2, name="head")(image), name="small").save(tmp_path / "a.keras")
    (tmp_path / "a.h5").write_bytes((tmp_path / "a.keras").read_bytes())
    assert sat_tf.from_keras3(tmp_path / "a.h5").get_layer("head").units == 2


PICTURES = tf.constant(np.random.default_rng(0).uniform(0.0, 1.0, (8, 8, 8, 3)), tf.float32)


def _classifier(library):
    image = library.Input((8, 8, 3), name="image")
    tensor = library.layers.Conv2D(4, 3, use_bias=False, name="conv")(image)
    tensor = library.layers.BatchNormalization(name="norm")(tensor)
    tensor = library.layers.ReLU(name="relu")(tensor)
    tensor = library.layers.GlobalAveragePooling2D(name="pool")(tensor)
    head = library.layers.Dense(3, activation="softmax", name="head")
    return library.Model(image, head(tensor))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_file_of_keras_3_is_converted_and_says_so(suffix, tmp_path):
    model = _classifier(keras3)
    model.save(tmp_path / f"model{suffix}")
    read = read_model(tmp_path / f"model{suffix}")
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
