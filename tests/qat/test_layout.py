import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.layout import inner_layer, quantized_model
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models

L = keras.layers

# Weights are clamped, but nothing is rounded: the float model in another form.
FLOAT = BitPolicy(weight_bits=None, activation_bits=None)
_model = functools.cache(float_models.build)


def _inputs(model):
    if model.input_shape[1:] == (6,):
        return np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    return float_models.images()


def _difference(found, wanted):
    """Largest difference, in units of the largest output."""
    return np.abs(np.asarray(found) - wanted).max() / np.abs(wanted).max()


def _with_a_dead_channel(name):
    model = float_models.build(name, seed=1)
    first = model.layers[1]
    values = first.get_weights()
    first.set_weights([np.where(np.arange(v.shape[-1]) == 1, 0.0, v) for v in values])
    return model


def _without_variance():
    model = float_models.build("no_gamma")
    for name in ("a_bn", "b_bn"):
        norm = model.get_layer(name)
        norm.moving_variance.assign(np.full(4, 1e-8))
        norm.moving_mean.assign(np.full(4, 0.5))
    return model


KEPT = [
    *((_model, name, {}) for name in float_models.EVERY),
    *(
        (_with_a_dead_channel, name, {"weight_range": "channel"})
        for name in ("depthwise", "mobile_block", "no_gamma", "without_normalization")
    ),
    *(
        (_model, "without_normalization", {"rescale": rescale, "weight_range": weight_range})
        for rescale in ("stddev", "none")
        for weight_range in ("layer", "channel")
    ),
    (lambda _: _without_variance(), "no_variance", {}),
]


@pytest.mark.parametrize(("make", "name", "fields"), KEPT)
def test_a_pretrained_model_keeps_its_function_with_every_range_and_rescaling(make, name, fields):
    model = make(name)
    inputs = _inputs(model)
    quantized = sat_tf.quantize_model(model, dataclasses.replace(FLOAT, **fields))
    # A division and a multiplication by the maximum in every layer, in float32.
    assert _difference(quantized(inputs), model(inputs).numpy()) < 1e-4
    assert quantized.name == model.name


@pytest.mark.parametrize("name", ["plain", "mobile_block", "depthwise"])
def test_the_function_is_kept_in_training_too(name):
    inputs = float_models.images()
    wanted = float_models.build(name)(inputs, training=True).numpy()
    quantized = sat_tf.quantize_model(float_models.build(name), FLOAT)
    assert _difference(quantized(inputs, training=True), wanted) < 1e-4


def test_latent_weights_are_as_large_as_the_kernel_was():
    model = float_models.build("plain")
    kernels = {}
    for name in ("a", "b", "classifier"):
        variable = model.get_layer(name).kernel
        variable.assign(variable * (0.5 / np.abs(variable).max()))
        kernels[name] = variable.numpy()
    quantized = sat_tf.quantize_model(model, FLOAT)
    for name, kernel in kernels.items():
        latent = quantized.get_layer(f"quant_{name}").layer.kernel.numpy()
        np.testing.assert_allclose(latent, np.arctanh(kernel), rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "mobile_block", "residual", "without_normalization"])
def test_gradients_of_latent_weights_are_those_of_the_float_kernels(name):
    model = float_models.build(name)
    inputs = float_models.images(16)
    wanted = np.random.default_rng(3).normal(size=model(inputs).shape).astype(np.float32)
    for layer in model.layers:
        for kernel in layer.trainable_weights[:1]:
            if len(kernel.shape) > 1:  # as small as a fresh network's
                kernel.assign(kernel * (0.3 / np.abs(kernel).max()))
    quantized = sat_tf.quantize_model(model, dataclasses.replace(FLOAT, detach_max=True))
    before, after = _kernel_gradients(model, inputs, wanted), {}
    for layer_name, gradient in _kernel_gradients(quantized, inputs, wanted).items():
        after[layer_name.removeprefix("quant_")] = gradient
    assert set(before) == set(after)
    for layer_name, gradient in before.items():
        difference = np.linalg.norm(after[layer_name] - gradient) / np.linalg.norm(gradient)
        assert difference < 0.1, layer_name  # the slope of tanh there is between 0.91 and 1


def _kernel_gradients(model, inputs, wanted):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - wanted))
    kernels = {
        layer.name: getattr(layer, "layer", layer).kernel
        for layer in model.layers
        if hasattr(getattr(layer, "layer", layer), "kernel")
    }
    gradients = tape.gradient(loss, list(kernels.values()))
    return {name: value.numpy() for name, value in zip(kernels, gradients, strict=True)}


def test_as_is_keeps_the_weights_instead():
    model = float_models.build("mobile_block")
    quantized = sat_tf.quantize_model(model, BitPolicy.paper(4))
    for layer in model.layers:
        if layer.weights:
            kept = quantized.get_layer(f"quant_{layer.name}").layer.get_weights()
            np.testing.assert_equal(layer.get_weights(), kept)
    gain = quantized.get_layer("quant_classifier").kernel_variables["rescale_gain"]
    assert gain.numpy() == 1.0


def test_the_float_model_is_left_alone():
    model = float_models.build("mobile_block")
    weights = [value.copy() for value in model.get_weights()]
    config, names = model.get_config(), [layer.name for layer in model.layers]
    inputs = float_models.images()
    before = model(inputs).numpy()
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
    sat_tf.calibrate(quantized, float_models.images(64))
    assert model.get_config() == config
    assert [layer.name for layer in model.layers] == names
    np.testing.assert_equal(weights, model.get_weights())
    np.testing.assert_array_equal(model(inputs), before)
    shared = {id(v) for v in model.variables} & {id(v) for v in quantized.variables}
    assert not shared


def test_layer_settings_survive():
    image = keras.Input((8, 8, 3), name="image")
    layer = L.Conv2D(
        4,
        (3, 2),
        strides=(2, 1),
        padding="same",
        dilation_rate=1,
        kernel_regularizer=keras.regularizers.L2(1e-4),
        bias_constraint=keras.constraints.NonNeg(),
        name="a",
    )
    norm = L.BatchNormalization(momentum=0.9, epsilon=1e-5, name="a_bn")
    model = keras.Model(image, L.Dense(3, name="last")(L.Flatten()(norm(layer(image)))))
    quantized = sat_tf.quantize_model(model)
    assert inner_layer(quantized.get_layer("quant_a")).get_config() == layer.get_config()
    assert inner_layer(quantized.get_layer("quant_a_bn")).get_config() == norm.get_config()
    # The regularizer speaks of the latent weights.
    latent = inner_layer(quantized.get_layer("quant_a")).kernel
    (loss,) = quantized.losses
    assert loss.numpy() == pytest.approx(1e-4 * np.square(latent.numpy()).sum(), rel=1e-5)


def test_frozen_layers_stay_frozen():
    model = float_models.build("plain")
    model.get_layer("a").trainable = False
    model.get_layer("a_bn").trainable = False
    quantized = sat_tf.quantize_model(model)
    assert not inner_layer(quantized.get_layer("quant_a")).trainable_weights
    assert not inner_layer(quantized.get_layer("quant_a_bn")).trainable_weights
    assert inner_layer(quantized.get_layer("quant_b")).trainable_weights


def test_layers_left_float_keep_their_weights():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="tanh", name="bent")(image)
    tensor = L.Concatenate(name="both")([tensor, L.PReLU(name="leaky")(tensor)])
    tensor = L.SeparableConv2D(4, 3, name="separable")(tensor)
    model = keras.Model(image, L.Dense(3, name="last")(L.GlobalMaxPooling2D()(tensor)))
    model = float_models.pretend_trained(model)
    inputs = float_models.images()
    quantized = sat_tf.quantize_model(
        model, BitPolicy(weight_bits=None, activation_bits=None, unsupported="float")
    )
    assert _difference(quantized(inputs), model(inputs).numpy()) < 1e-4
    integer = sat_tf.quantize_model(model, BitPolicy(unsupported="float"))
    assert np.isfinite(integer(inputs)).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("plain", 1),  # no tensor of it can be negative
        ("mobile_block", 2),
        ("preactivation", 4),
        ("depthwise", 8),
        ("sum_of_three", 4),
        ("sum_with_the_image", 2),
        ("average_pool_same", 4),
        ("max_pool_between", 4),
        ("softmax_in_the_classifier", 4),
        ("rectified_logits", 8),
        ("sequential_built_later", 2),
        ("dense_only", 1),
        ("any_image_size", 4),
    ],
)
def test_models_run_at_every_width(name, bits):
    model = _model(name)
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(bits))
    outputs = quantized(_inputs(model)).numpy()
    assert outputs.shape == model(_inputs(model)).shape
    assert np.isfinite(outputs).all()


def test_some_layers_alone_can_be_quantized():
    model = float_models.build("plain")
    built = quantized_model(model, {"b": None}, FLOAT)
    names = [layer.name for layer in built.layers if layer.name.startswith("quant_")]
    assert names == ["quant_b"]  # the image is for a layer left float alone
    inputs = float_models.images()
    assert _difference(built(inputs), model(inputs).numpy()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNet", "MobileNetV2", "ResNet50", "ResNet50V2", "VGG16"])
def test_the_usual_architectures_of_keras_keep_their_function(name):
    make = getattr(keras.applications, name)
    model = make(input_shape=(32, 32, 3), weights=None, classes=10, classifier_activation=None)
    images = float_models.images(size=32)
    wanted = model(images).numpy()
    assert _difference(sat_tf.quantize_model(model, FLOAT)(images), wanted) < 1e-4
    integer = sat_tf.quantize_model(model, BitPolicy.mobile(4))
    assert np.isfinite(integer(images)).all()
