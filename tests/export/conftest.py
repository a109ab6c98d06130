"""A small quantized network with all that MobileNet-V2 has, shared by the tests of the export."""

import pathlib

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.training.models import build
from tests.export import zoo


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    return tmp_path / "model.tflite"


@pytest.fixture(scope="package")
def images() -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.integers(0, 256, (64, 32, 32, 3)).astype(np.uint8)


@pytest.fixture(scope="package")
def float_model() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = build("mobilenet_v2", image_size=32, num_classes=10, width_multiplier=0.1)
    rng = np.random.default_rng(3)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            count = layer.gamma.shape[0]
            layer.gamma.assign(rng.normal(1.0, 0.4, count))
            layer.beta.assign(rng.normal(0.0, 0.3, count))
            layer.moving_mean.assign(rng.normal(0.0, 0.3, count))
            layer.moving_variance.assign(rng.uniform(0.3, 2.0, count))
    return model


@pytest.fixture(scope="package")
def quantized(float_model, images) -> keras.Model:
    """The same at w4a4 with 8-bit streams, calibrated."""
    return sat_tf.calibrate(sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(4)), images)


@pytest.fixture(scope="package")
def small() -> keras.Model:
    """A quantized model of a few thousand weights, which nobody changes."""
    return zoo.quantized("bottleneck")


@pytest.fixture(scope="package")
def small_file(small, tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("small") / "model.tflite"
    sat_tf.export_tflite(small, path)
    return path


@pytest.fixture(scope="package")
def small_images(small) -> np.ndarray:
    return zoo.images_for(small)
