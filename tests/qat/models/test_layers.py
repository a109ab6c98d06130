"""Models of layers beside the usual ones: what they compute, how they train, how they are saved."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from tests.export.layer_models import MODELS
from tests.qat.float_models import pretend_trained

QUICK = ("squeeze_and_excitation",)
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def _images(count=48):
    return np.random.default_rng(1).integers(0, 256, (count, 8, 8, 3)).astype(np.float32)


@pytest.fixture(scope="module", params=NAMES)
def float_model(request):
    return pretend_trained(MODELS[request.param].build())


@pytest.fixture(scope="module")
def quantized(float_model):
    model = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(4))
    return sat_tf.calibrate(model, _images())


@pytest.mark.thorough
def test_eight_bits_keep_the_function(float_model):
    images = _images()
    model = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(8))
    sat_tf.calibrate(model, images, batch_normalization=False)
    expected, found = float_model(images).numpy(), model(images).numpy()
    assert np.corrcoef(expected.ravel(), found.ravel())[0, 1] > 0.99


@pytest.mark.thorough
def test_a_gradient_reaches_every_variable(quantized):
    # Each output has a weight of its own, as a softmax hides what all have in common.
    weights = tf.constant([1.0, -2.0, 3.0, -4.0])
    with tf.GradientTape() as tape:
        total = tf.reduce_mean(quantized(_images(), training=True) * weights)
    gradients = tape.gradient(total, quantized.trainable_variables)
    names = [variable.name for variable in quantized.trainable_variables]
    missing = [name for name, found in zip(names, gradients, strict=True) if found is None]
    assert missing == []
    assert all(np.all(np.isfinite(found)) for found in gradients)
    kernels = [f for name, f in zip(names, gradients, strict=True) if "kernel" in name]
    assert all(np.any(found != 0.0) for found in kernels)


def test_a_saved_model_loads_as_it_was(quantized, tmp_path):
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(_images(4)), quantized(_images(4)))


def test_requantizing_keeps_what_was_learnt(quantized):
    again = sat_tf.requantize(quantized, sat_tf.BitPolicy.mobile(4))
    np.testing.assert_array_equal(again(_images(4)), quantized(_images(4)))


@pytest.mark.thorough
def test_training_lowers_the_loss(quantized):
    labels = np.random.default_rng(2).integers(0, 4, 48)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    quantized.compile(keras.optimizers.Adam(0.01), loss)
    losses = quantized.fit(_images(), labels, batch_size=24, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
