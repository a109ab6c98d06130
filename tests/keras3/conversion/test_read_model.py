import re

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.keras3.conversion.incoming import read_model
from sat_tf.training.state.classifier_file import read_classifier

IMAGES = tf.constant(np.random.default_rng(0).uniform(0.0, 1.0, (8, 8, 8, 3)), tf.float32)


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
    assert re.search(
        r"outputs (are equal|differ by at most \S+ of their largest value)\.$", read.note
    )
    np.testing.assert_allclose(read.model(IMAGES), np.asarray(model(IMAGES)), atol=1e-5)


@pytest.mark.parametrize("name", ["model.keras", "model.h5", "saved_model"])
def test_a_model_of_keras_2_is_read_as_it_is(name, tmp_path):
    model = _classifier(keras)
    model.save(tmp_path / name)
    read = read_model(tmp_path / name)
    assert read.note is None
    np.testing.assert_allclose(read.model(IMAGES), model(IMAGES), atol=1e-6)


def test_a_classifier_of_keras_3_gives_logits(tmp_path):
    model = _classifier(keras3)
    model.save(tmp_path / "float.keras")
    read = read_classifier(tmp_path / "float.keras", image_size=8, num_classes=3, key="float_model")
    # To the rounding of sums, which is that of `from_keras3`.
    np.testing.assert_allclose(tf.nn.softmax(read(IMAGES)), np.asarray(model(IMAGES)), atol=1e-5)
