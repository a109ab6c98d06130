"""Layers of several tensors, and operations on truths and whole numbers, that are left float."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from tests.export.proofs import calibrated, proved

L = keras.layers
FLOAT = sat_tf.BitPolicy.mobile(8, unsupported="float")


def _masked(x):
    mask = tf.ones_like(x)[:, :, 0] > 0.5
    return L.MultiHeadAttention(2, 3, name="mha")(x, value=x, key=x, attention_mask=mask[:, None])


def _twice(x):
    layer = L.MultiHeadAttention(2, 3, name="mha")
    x = 0.02 * x  # whose softmax is smooth
    y = layer(x, x)
    return layer(y, y)


LEFT_FLOAT = {
    "twice": _twice,
    "root": lambda x: tf.sqrt(x),
    "shares": lambda x: x / (1e-3 + tf.reduce_sum(x, -1, keepdims=True)),
    "empty_for_any_batch": lambda x: tf.math.lgamma(x + 1.0),
    "attention": lambda x: L.MultiHeadAttention(2, 3, name="mha")(x, x),
    "causal": lambda x: L.MultiHeadAttention(2, 3, name="mha")(x, x, use_causal_mask=True),
    "masked": _masked,
    "where": lambda x: tf.where(x > 20.0, x, 0.1 * x),
    "logical": lambda x: x * tf.cast(tf.logical_and(x > 20.0, x < 80.0), tf.float32),
    "one_hot": lambda x: x + tf.one_hot(tf.argmax(x, -1), 6),
}


def _model(operation):
    keras.utils.set_random_seed(3)
    image = keras.Input((5, 5, 3), name="image")
    tensor = L.Conv2D(6, 2, activation="relu", name="conv")(image)
    tensor = operation(L.Reshape((16, 6), name="tokens")(tensor))
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor)))


def _images(count=64):
    return np.random.default_rng(4).integers(0, 256, (count, 5, 5, 3)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LEFT_FLOAT)
def test_it_is_left_float_saved_and_in_the_file_what_it_is_in_keras(name, tmp_path):
    float_model = _model(LEFT_FLOAT[name])
    quantized = calibrated(float_model, FLOAT, _images())
    expected = quantized(_images()).numpy()
    if "mha" in [layer.name for layer in float_model.layers]:
        # In the mean: a softmax over large scores turns on which of two is the larger one.
        assert np.mean(np.abs(float_model(_images()) - expected)) < 0.02 * np.ptp(expected)
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(_images()), quantized(_images()))
    path, pixels = tmp_path / "model.tflite", _images(8).astype(np.uint8)
    proved(quantized, path, pixels)
    # Codes behind what is left float depend on it: the whole file is held against Keras.
    found = Runtime(path.read_bytes(), keep_tensors=False).run(pixels)
    # In the mean, because a code that differs may be on the other side of a threshold.
    assert np.mean(np.abs(found - expected[:8])) < 0.02 * np.ptp(expected)


@pytest.mark.thorough
def test_attention_trains():
    quantized = sat_tf.quantize_model(_model(LEFT_FLOAT["attention"]), FLOAT)
    quantized.compile("sgd", "mse")
    before = quantized.get_layer("quant_mha").get_weights()
    quantized.fit(_images(), np.zeros((64, 3)), verbose=0)
    after = quantized.get_layer("quant_mha").get_weights()
    assert any(np.any(one != other) for one, other in zip(before, after, strict=True))


def test_values_without_a_number_between_layers_are_named(tmp_path):
    model = _model(lambda x: x / tf.reduce_sum(x, -1, keepdims=True))
    model.get_layer("conv").set_weights(
        [np.ones_like(model.get_layer("conv").get_weights()[0]), np.zeros(6)]
    )
    quantized = calibrated(model, FLOAT, 1.0 + _images())
    path, black = tmp_path / "model.tflite", np.zeros((2, 5, 5, 3), np.uint8)
    sat_tf.export_tflite(quantized, path)
    with pytest.raises(ValueError, match=r"received NaN or infinite values on .*by 0"):
        sat_tf.verify_tflite(quantized, path, black)


@pytest.mark.parametrize(("shift", "axis"), [(1, 1), (-3, -1), (20, 1)])
def test_a_roll_moves_codes(shift, axis, path):
    float_model = _model(lambda x: tf.roll(x, shift, axis))
    report, _ = proved(calibrated(float_model, 4, _images()), path, _images(8).astype(np.uint8))
    assert report.islands == []
    wide = calibrated(float_model, 8, _images())
    expected = float_model(_images()).numpy()
    assert np.max(np.abs(wide(_images()) - expected)) < 0.1 * np.ptp(expected)


def test_an_output_that_is_listed_twice_is_verified(tmp_path):
    image = keras.Input((5, 5, 3))
    logits = L.Dense(3)(L.Flatten()(L.Conv2D(6, 2, activation="relu")(image)))
    model = keras.Model(image, [logits, logits])
    quantized = calibrated(model, sat_tf.BitPolicy.mobile(4), _images())
    proved(quantized, tmp_path / "model.tflite", _images(8).astype(np.uint8))
