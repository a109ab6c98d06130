import subprocess
import sys

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.layers.preprocessing import is_plain_factor, slope_and_offset
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.pact import StreamQuantizer
from tests.qat import float_models

L = keras.layers
FLOAT = BitPolicy(weight_bits=None, activation_bits=None)


def adapted():
    norm = L.Normalization(name="norm")
    norm.adapt(float_models.images(64))
    return norm


LAYERS = {
    "rescaling": lambda: L.Rescaling(1 / 127.5, -1.0, name="norm"),
    "by_channel": lambda: L.Rescaling([0.1, 0.2, -0.3], [1.0, 0.0, 2.0], name="norm"),
    "adapted": adapted,
    "given": lambda: L.Normalization(mean=[120, 110, 100], variance=[3e3, 2e3, 0.0], name="norm"),
    "scalar": lambda: L.Normalization(axis=None, mean=100.0, variance=50.0, name="norm"),
    "inverted": lambda: L.Normalization(axis=None, mean=1.0, variance=4.0, invert=True),
}


def _model(*front):
    image = keras.Input((8, 8, 3), name="image")
    tensor = image
    for layer in front:
        tensor = layer(tensor)
    tensor = L.Conv2D(4, 3, padding="same", name="conv")(tensor)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="preprocessed")


@pytest.mark.parametrize("name", LAYERS)
def test_slope_and_offset_are_what_the_layer_computes(name):
    layer, images = LAYERS[name](), float_models.images()
    expected = layer(images).numpy()
    slope, offset = slope_and_offset(layer)
    np.testing.assert_allclose(slope * images + offset, expected, rtol=1e-5, atol=1e-4)


def test_only_one_positive_factor_is_plain():
    assert is_plain_factor(L.Rescaling(1 / 255))
    assert is_plain_factor(L.Rescaling([0.5, 0.5, 0.5], 0))
    for layer in (L.Rescaling(-1.0), L.Rescaling(1.0, 0.1), L.Rescaling([1.0, 2.0]), L.ReLU()):
        assert not is_plain_factor(layer)


@pytest.mark.parametrize("name", ["rescaling", "adapted"])
def test_a_preprocessed_model_keeps_its_function(name):
    model, images = _model(LAYERS[name]()), float_models.images()
    expected = model(images).numpy()
    assert np.abs(sat_tf.quantize_model(model, FLOAT)(images) - expected).max() < 1e-4


def test_a_plain_factor_gets_no_codes_of_its_own():
    model = _model(L.Rescaling(1 / 255, name="rescaling"))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
    assert quantized.get_layer("quant_rescaling").quantize_config.output is None
    # The first convolution reads pixels, not a re-quantized tensor.
    assert [layer.name for layer in quantized.layers][:4] == [
        "image",
        "quant_image_image",
        "quant_rescaling",
        "quant_conv",
    ]


@pytest.mark.parametrize(
    ("layer", "level"),
    [
        (lambda: L.Rescaling(1 / 127.5, -1.0, name="norm"), 1.0),
        (lambda: L.Normalization(axis=None, mean=100.0, variance=25.0, name="norm"), 31.0),
    ],
)
def test_other_preprocessing_gets_8_bits_over_all_pixels(layer, level):
    quantized = sat_tf.quantize_model(_model(layer()), BitPolicy.mobile(4))
    quantizer = quantized.get_layer("quant_norm").quantize_config.output
    assert isinstance(quantizer, StreamQuantizer)
    assert quantizer.num_bits == 8
    assert quantizer.initial_clipping_level == pytest.approx(level)


def test_only_the_last_of_several_preprocessing_layers_has_codes():
    front = [L.Rescaling(1 / 255, name="a"), L.Rescaling(2.0, -1.0, name="b"), adapted()]
    quantized = sat_tf.quantize_model(_model(*front), BitPolicy.mobile(4))
    found = [quantized.get_layer(f"quant_{name}").quantize_config.output for name in "ab"]
    assert found == [None, None]
    assert quantized.get_layer("quant_norm").quantize_config.output.num_bits == 8


@pytest.mark.slow
def test_an_adapted_normalization_is_loaded_with_its_mean(tmp_path):
    quantized = sat_tf.quantize_model(_model(adapted()), BitPolicy.mobile(4))
    images = float_models.images()
    np.save(tmp_path / "expected.npy", quantized(images))
    quantized.save(tmp_path / "model.keras")
    np.save(tmp_path / "images.npy", images)
    code = (
        "import sys, numpy as np, sat_tf, tf_keras\n"
        "model = tf_keras.models.load_model(sys.argv[1] + '/model.keras')\n"
        "found = model(np.load(sys.argv[1] + '/images.npy')).numpy()\n"
        "assert np.array_equal(found, np.load(sys.argv[1] + '/expected.npy'))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
    copy = keras.models.clone_model(quantized)
    copy.set_weights(quantized.get_weights())
    np.testing.assert_array_equal(copy(images), quantized(images))
    again = sat_tf.requantize(quantized, BitPolicy.mobile(4))
    np.testing.assert_array_equal(again(images), quantized(images))
    assert inner_layer(again.get_layer("quant_norm")).weights
