import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.messages import RunError
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.loop import start as module
from sat_tf.training.loop.start import (
    float_model,
    float_start,
    quantized_start,
    trained_float_model,
)
from tests.training.small import small_float_model, small_images

CONFIG = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"
SOURCE = ArraySource(small_images())
IMAGES = tf.constant(small_images().test_images, tf.float32)
EIGHT_BITS = "policy={weight_bits: 8, activation_bits: 8}"


def config(*overrides):
    stated = "stages.quantized.base_learning_rate=0.05"  # as a trained model asks for
    return parse_config(CONFIG, [stated, *overrides])


def kernel_bits(model):
    layers = [layer for layer in model.layers if isinstance(layer, QuantizedLayer)]
    return [
        layer.quantize_config.weights.num_bits
        for layer in layers
        if layer.quantize_config.weights is not None
    ]


def test_the_float_stage_trains_clamped_weights_or_an_ordinary_model():
    plain = small_float_model()
    assert kernel_bits(float_start(config(), plain)) == [None] * 4
    assert float_start(config("training.start=vanilla"), plain) is plain


def test_options_that_together_make_a_giant_are_refused_before_its_weights(monkeypatch):
    monkeypatch.setattr(module, "_MOST_WEIGHT_BYTES", 2**16)
    with pytest.raises(RunError, match=r"more than 65,536 bytes of weights for mobilenet_v2 with"):
        float_model(config("model.options={width_multiplier: 1.5}"), SOURCE)


@pytest.mark.parametrize("rescale", ["constant", "stddev"])
def test_an_ordinary_model_keeps_its_function(rescale):
    plain = small_float_model()
    policy = f"policy={{weight_bits: 8, activation_bits: 8, rescale: {rescale}}}"
    start = quantized_start(config("training.start=vanilla", policy), plain)
    sat_tf.calibrate(start, small_images().train_images, batch_normalization=False)
    logits, expected = start(IMAGES).numpy(), plain(IMAGES).numpy()
    # Codes of 8 bits are off by up to half a step of 1/255 of the range in every layer.
    assert np.abs(logits - expected).max() < 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("rescale", ["constant", "stddev"])
@pytest.mark.parametrize("bits", [2, 4])
def test_the_classifier_of_an_ordinary_model_keeps_its_size_at_few_bits(bits, rescale):
    plain = small_float_model()
    fields = (
        f"{{weight_bits: {bits}, first_last_weight_bits: null, rescale: {rescale},"
        " weight_range: layer, weight_quantizer: dorefa}"
    )
    start = quantized_start(config("training.start=vanilla", f"policy={fields}"), plain)
    effective = start.get_layer("quant_classifier").effective_kernel().numpy()
    kernel = plain.get_layer("classifier").kernel.numpy()
    np.testing.assert_allclose(
        np.sqrt(np.mean(effective**2)), np.sqrt(np.mean(kernel**2)), rtol=1e-5
    )


def test_an_ordinary_model_keeps_its_function_even_where_the_policy_is_the_papers():
    papers = "policy={weight_bits: 8, activation_bits: 8, latent_start: as_is}"
    start = quantized_start(config("training.start=vanilla", papers), small_float_model())
    keeping = quantized_start(config("training.start=vanilla", EIGHT_BITS), small_float_model())
    for one, other in zip(start.get_weights(), keeping.get_weights(), strict=True):
        assert np.array_equal(one, other)


def test_a_clamped_model_goes_on_with_its_latent_weights():
    clamped = float_start(config(), small_float_model())
    start = quantized_start(config(), clamped)
    assert kernel_bits(start) == [8, 4, 4, 8]
    for name in ("stem", "pointwise", "classifier"):
        one, other = (model.get_layer(f"quant_{name}").layer.kernel for model in (start, clamped))
        assert np.array_equal(one, other)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("start", ["clamped", "vanilla"])
def test_a_trained_float_model_comes_from_a_file(start, suffix, tmp_path):
    made = float_start(config(f"training.start={start}"), small_float_model())
    made.save(tmp_path / f"float{suffix}")
    read = trained_float_model(config(f"training.float_model={tmp_path}/float{suffix}"), SOURCE)
    assert np.array_equal(read(IMAGES), made(IMAGES))
    assert kernel_bits(quantized_start(config(), read)) == [8, 4, 4, 8]


def test_without_a_file_there_is_no_trained_float_model():
    assert trained_float_model(config(), SOURCE) is None


def _with_softmax(own_layer):
    plain = small_float_model()
    if own_layer:
        return keras.Model(plain.inputs, keras.layers.Softmax(name="shares")(plain.output))
    features = plain.get_layer("pool").output
    classifier = keras.layers.Dense(3, activation="softmax", name="shares")
    model = keras.Model(plain.inputs, classifier(features))
    classifier.set_weights(plain.get_layer("classifier").get_weights())
    return model


@pytest.mark.parametrize("own_layer", [True, False])
def test_a_softmax_at_the_end_of_a_file_is_taken_off(own_layer, tmp_path):
    _with_softmax(own_layer).save(tmp_path / "float.keras")
    read = trained_float_model(config(f"training.float_model={tmp_path}/float.keras"), SOURCE)
    np.testing.assert_allclose(read(IMAGES), small_float_model()(IMAGES), rtol=1e-6)


def test_a_saved_model_may_be_the_float_model(tmp_path):
    small_float_model().save(tmp_path / "float")
    read = trained_float_model(config(f"training.float_model={tmp_path}/float"), SOURCE)
    np.testing.assert_allclose(read(IMAGES), small_float_model()(IMAGES), rtol=1e-6)


def test_a_policy_that_does_not_fit_is_an_error_of_the_run():
    nothing = "policy.overrides={nothing: {weight_bits: 8}}"
    for start in ("clamped", "vanilla"):
        with pytest.raises(RunError, match="nothing"):
            quantized_start(
                config(nothing),
                float_start(config(f"training.start={start}"), small_float_model()),
            )
