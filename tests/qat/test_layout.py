import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.tflite.input_range import range_of
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.layout import inner_layer, quantized_network
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.value_ranges import PixelRanges, Spread, Spreads
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from tests.qat import float_models
from tests.qat.float_models import L, model_of, pretend_trained

# Weights are clamped, but nothing is rounded: the float model in another form.
FLOAT = BitPolicy(weight_bits=None, activation_bits=None)
_model = functools.cache(float_models.build)


def _difference(found, wanted):
    """Largest difference, in units of the largest output."""
    return np.abs(np.asarray(found) - wanted).max() / np.abs(wanted).max()


def _with_a_dead_channel(name):
    model = float_models.build(name, seed=1)
    values = model.layers[1].get_weights()
    model.layers[1].set_weights([np.where(np.arange(v.shape[-1]) == 1, 0.0, v) for v in values])
    return model


def _without_variance(name):
    model = float_models.build(name)
    for norm in ("a_bn", "b_bn"):
        model.get_layer(norm).moving_variance.assign(np.full(4, 1e-8))
        model.get_layer(norm).moving_mean.assign(np.full(4, 0.5))
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
    (_without_variance, "no_gamma", {}),
]


@pytest.mark.parametrize(("make", "name", "fields"), KEPT)
def test_a_pretrained_model_keeps_its_function_with_every_range_and_rescaling(make, name, fields):
    model, inputs = make(name), float_models.images()
    if model.input_shape[1:] == (6,):
        inputs = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
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
    before, after = (_kernel_gradients(each, inputs, wanted) for each in (model, quantized))
    assert set(before) == set(after)
    for layer_name, gradient in before.items():
        difference = np.linalg.norm(after[layer_name] - gradient) / np.linalg.norm(gradient)
        assert difference < 0.1, layer_name  # the slope of tanh there is between 0.91 and 1


def _kernel_gradients(model, inputs, wanted):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs, training=True) - wanted))
    layers = map(inner_layer, model.layers)
    kernels = {layer.name: layer.kernel for layer in layers if hasattr(layer, "kernel")}
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


def test_layer_settings_survive_and_frozen_layers_stay_frozen():
    decay, positive = keras.regularizers.L2(1e-4), keras.constraints.NonNeg()
    options = {"kernel_regularizer": decay, "bias_constraint": positive, "padding": "same"}
    layer = L.Conv2D(4, (3, 2), (2, 1), name="a", **options)
    norm = L.BatchNormalization(momentum=0.9, epsilon=1e-5, name="a_bn")
    quantized = sat_tf.quantize_model(model_of(layer, norm, L.Flatten(), L.Dense(3, name="last")))
    assert inner_layer(quantized.get_layer("quant_a")).get_config() == layer.get_config()
    assert inner_layer(quantized.get_layer("quant_a_bn")).get_config() == norm.get_config()
    # The regularizer speaks of the latent weights.
    latent = inner_layer(quantized.get_layer("quant_a")).kernel
    (loss,) = quantized.losses
    assert loss.numpy() == pytest.approx(1e-4 * np.square(latent.numpy()).sum(), rel=1e-5)
    # Frozen layers stay frozen.
    model = float_models.build("plain")
    model.get_layer("a").trainable = False
    model.get_layer("a_bn").trainable = False
    quantized = sat_tf.quantize_model(model)
    assert not inner_layer(quantized.get_layer("quant_a")).trainable_weights
    assert not inner_layer(quantized.get_layer("quant_a_bn")).trainable_weights
    assert inner_layer(quantized.get_layer("quant_b")).trainable_weights


def test_layers_left_float_keep_their_weights():
    leaky, both = L.PReLU(name="leaky"), L.Concatenate(name="both")
    layers = [L.Conv2D(4, 3, activation="tanh", name="bent"), lambda x: both([x, leaky(x)])]
    layers += [L.SeparableConv2D(4, 3, name="separable"), L.GlobalMaxPooling2D()]
    model = pretend_trained(model_of(*layers, L.Dense(3, name="last")))
    inputs = float_models.images()
    quantized = sat_tf.quantize_model(model, dataclasses.replace(FLOAT, unsupported="float"))
    assert _difference(quantized(inputs), model(inputs).numpy()) < 1e-4
    integer = sat_tf.quantize_model(model, BitPolicy(unsupported="float"))
    assert np.isfinite(integer(inputs)).all()


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


RANGES = [(0, 1), (-1, 1), (20, 275), "torch", "caffe", ((0, -1, -2), (1, 1, 3))]
PICTURES = np.random.default_rng(3).integers(0, 256, (8, 8, 8, 3)).astype(np.uint8)


def _behind(*front):
    is_flat = any(isinstance(layer, L.Flatten) for layer in front)
    pool = [] if is_flat else L.GlobalAveragePooling2D(name="pool")
    return pretend_trained(model_of(*front, pool, L.Dense(3, name="classifier")))


# The function stays what it was, as nothing pads the image with zeros.
FRONTS = {
    "bias": lambda: [L.Conv2D(4, 3, name="conv")],
    "norm": lambda: [L.Conv2D(4, 3, use_bias=False, name="conv"), L.BatchNormalization(name="bn")],
    "bias_and_norm": lambda: [L.Conv2D(4, 3, name="conv"), L.BatchNormalization(name="bn")],
    "flat": lambda: [L.Flatten(name="flat"), L.Dense(4, activation="relu", name="dense")],
    "cropped": lambda: [L.Cropping2D(1), L.MaxPooling2D(2), L.Conv2D(4, 3, name="conv")],
}
# Their outputs have the channels of the image, so that "caffe" is not for them.
IN_ORDER = {
    "norm_first": lambda: [L.BatchNormalization(name="bn"), L.Conv2D(4, 3, name="conv")],
    "depthwise": lambda: [L.DepthwiseConv2D(3, depth_multiplier=2, name="depthwise"), L.ReLU()],
    "groups": lambda: [L.Conv2D(6, 3, groups=3, name="conv"), L.ReLU()],
}


# One range for all channels and one for each stand for the others in the fast tests.
QUICK = [*itertools.product(FRONTS, [(-1, 1), "caffe"]), *itertools.product(IN_ORDER, ["torch"])]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, marks=() if (name, value) in QUICK else pytest.mark.thorough)
        for name in (*FRONTS, *IN_ORDER)
        for value in RANGES
        if value != "caffe" or name in FRONTS
    ],
    ids=str,
)
def test_a_model_keeps_its_function(name, value):
    model = _behind(*{**FRONTS, **IN_ORDER}[name]())
    policy = dataclasses.replace(FLOAT, input_range=value)
    fed = range_of(value).fed(PICTURES)
    expected = model(fed).numpy()
    found = sat_tf.quantize_model(model, policy)(fed).numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_beside_zero_padding_a_pixel_stands_for_real_0():
    model = _behind(L.Conv2D(4, 3, padding="same", name="conv"))
    policy = dataclasses.replace(FLOAT, input_range="tf")
    quantized = sat_tf.quantize_model(model, policy)
    fed = range_of("tf").fed(PICTURES)
    inside = np.s_[:, 1:-1, 1:-1]
    expected = model.get_layer("conv")(fed).numpy()
    made = keras.Model(quantized.input, quantized.get_layer("quant_conv").output)(fed).numpy()
    np.testing.assert_allclose(made[inside], expected[inside], atol=1e-5)
    kernel = model.get_layer("conv").kernel.numpy()
    assert 0 < np.abs(made - expected).max() <= 1 / 255 * np.abs(kernel).sum(axis=(0, 1, 2)).max()


def test_a_layer_without_a_place_for_half_a_pixel_is_fed_that_much_more():
    model = _behind(L.Conv2D(4, 3, use_bias=False, name="conv"), L.ReLU())
    policy = dataclasses.replace(FLOAT, input_range=(-1, 1))
    fed = range_of("tf").fed(PICTURES)
    found = sat_tf.quantize_model(model, policy)(fed)
    np.testing.assert_allclose(found, model(fed - np.float32(1 / 255)), rtol=1e-4, atol=1e-4)


def _of_two(first, second, channels=3):
    """A model with an image for each of two layers, which may be the same one."""
    one, other = keras.Input((8, 8, 3), name="one"), keras.Input((8, 8, channels), name="other")
    pooled = L.GlobalAveragePooling2D()(L.Concatenate()([first(one), second(other)]))
    return pretend_trained(keras.Model([one, other], L.Dense(3, name="classifier")(pooled)))


def test_a_layer_that_two_inputs_share_takes_their_range_in_once():
    conv = L.Conv2D(4, 3, name="conv")
    model = _of_two(conv, conv)
    fed = [range_of("caffe").fed(PICTURES), range_of("caffe").fed(PICTURES[::-1])]
    found = sat_tf.quantize_model(model, dataclasses.replace(FLOAT, input_range="caffe"))
    np.testing.assert_allclose(found(fed), model(fed), rtol=1e-4, atol=1e-2)
    with pytest.raises(ValueError, match="conv: received an input_range that differs"):
        sat_tf.quantize_model(model, dataclasses.replace(FLOAT, input_range={"one": "caffe"}))


def test_each_input_has_a_range_of_its_own():
    model = _of_two(L.Conv2D(4, 3, name="first"), L.Conv2D(4, 3, name="second"), channels=1)
    ranges = {"one": "torch", "other": (-1, 1)}
    quantized = sat_tf.quantize_model(model, dataclasses.replace(FLOAT, input_range=ranges))
    fed = [range_of("torch").fed(PICTURES), range_of("tf").fed(PICTURES[..., :1])]
    np.testing.assert_allclose(quantized(fed), model(fed), rtol=1e-4, atol=1e-4)
    found = input_ranges(quantized_network(quantized, when="first"))
    assert found == {name: range_of(value) for name, value in ranges.items()}


def test_requantize_leaves_a_model_its_range_and_function():
    model = _behind(*FRONTS["norm"]())
    first = dataclasses.replace(FLOAT, input_range="caffe")
    quantized = sat_tf.quantize_model(model, first)
    fed = range_of("caffe").fed(PICTURES)
    again = sat_tf.requantize(quantized, FLOAT)
    np.testing.assert_array_equal(again(fed), quantized(fed))
    same = sat_tf.requantize(again, dataclasses.replace(first, weight_bits=8))
    assert input_ranges(quantized_network(same, when="first")) == {"image": range_of("caffe")}
    with pytest.raises(ValueError, match=r'input_range=\(0, 255\) for an input of "caffe"'):
        sat_tf.requantize(quantized, dataclasses.replace(first, input_range=(0, 255)))


@pytest.mark.parametrize("name", ["bias", "norm"])
def test_a_trained_model_gets_the_range_that_fits_without_another_function(name):
    model = _behind(*FRONTS[name]())
    policy = BitPolicy(weight_bits=4, activation_bits=None)
    quantized = sat_tf.quantize_model(model, policy)
    fed = range_of("tf").fed(PICTURES)
    fitting = sat_tf.requantize(quantized, dataclasses.replace(policy, input_range="tf"))
    np.testing.assert_allclose(fitting(fed), quantized(fed), rtol=1e-4, atol=1e-4)


FROM_WEIGHTS = {"initial_clipping_level": None, "initial_classifier_clipping_level": None}


def _mobile(bits, **fields):
    return BitPolicy.mobile(bits, **FROM_WEIGHTS, **fields)


def _spreads(model):
    network, grid = Network(model), BitPolicy().range_of("image").grid
    pixels = PixelRanges(network, dict.fromkeys(network.inputs, grid))
    return Spreads(network, pixels, lambda name: layer_kinds.kernel_of(network[name].layer))


FUNCTIONS = {
    "rectifier": L.ReLU(),
    "ceiling": L.ReLU(1.0),
    "swish": L.Activation("swish"),
    "leaky": L.LeakyReLU(0.1),
    "prelu": L.PReLU("ones", shared_axes=[1, 2]),
    "doubled": lambda x: L.Add()([L.ReLU()(x)] * 2),
    "concatenation": lambda x: L.Concatenate()([x, L.ReLU()(x)]),
    "pointwise": lambda x: L.Conv2D(3, 1, bias_initializer="ones", name="conv")(x),
    "pointwise_groups": lambda x: L.Conv2D(6, 1, groups=2, name="conv")(x),
    "depthwise": lambda x: L.DepthwiseConv2D(1, depth_multiplier=2, name="conv")(x),
    "dense": lambda x: L.Dense(5, activation="relu", name="dense")(x),
    "flattened": lambda x: L.Dense(5, name="dense")(L.Flatten()(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_moments_are_those_of_values_that_do_not_know_of_each_other(name):
    draw, norm = np.random.default_rng(0), L.BatchNormalization(name="bn", epsilon=0.0)
    model = model_of(norm, FUNCTIONS[name], shape=(8, 8, 4))
    norm.set_weights([draw.uniform(0.5, 2.0, 4), draw.normal(size=4), np.zeros(4), np.ones(4)])
    values = draw.normal(size=(512, 8, 8, 4)).astype(np.float32)
    found = _spreads(model)[model.layers[-1].name]
    seen = model.predict_on_batch(values).reshape(-1, model.output_shape[-1])
    # No two values are alike if a kernel has one pixel, and Dense one value of each pixel.
    tolerance = 0.6 if name == "flattened" else 0.08
    room = {"atol": tolerance * np.std(seen)}
    np.testing.assert_allclose(found.mean, seen.mean(axis=0), **room)
    deviation = np.sqrt(found.variance)
    np.testing.assert_allclose(deviation, seen.std(axis=0), rtol=tolerance, **room)


def test_a_normalization_is_known_whatever_is_in_front_of_it():
    model = float_models.build("mobile_block")
    spreads = _spreads(model)
    norm = model.get_layer("a_bn")
    found = spreads["a_bn"]
    np.testing.assert_allclose(found.mean, norm.beta, rtol=1e-6)
    assert found.known
    assert found.source == "γ and β of a_bn"
    assert spreads["a_relu"].source == "γ and β of a_bn"
    assert spreads["add"].known
    assert not spreads["a"].known  # it reads pixels


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", [PactQuantizer, StreamQuantizer])
def test_the_level_has_the_smallest_error_on_normal_values(bits, kind):
    draw = np.random.default_rng(0)
    mean, deviation = np.array([0.5, -1.0, 0.0]), np.array([1.0, 2.0, 0.3])
    values = draw.normal(mean, deviation, (20000, 3)).astype(np.float32)
    quantiles = np.linspace(-4.5, 4.5, 91)
    quantizer = kind(num_bits=bits)
    found = Spread(mean[:, None] + deviation[:, None] * quantiles, "").best_level(quantizer)
    wanted = values if quantizer.signed else np.maximum(values, 0.0)
    power = 4 if bits == 8 else 2

    def error(level):
        weights = {"clipping_level": tf.constant(level, tf.float32)}
        return np.mean(np.abs(quantizer(values, False, weights).numpy() - wanted) ** power)

    smallest = min(error(level) for level in np.linspace(0.5, 9.0, 86))
    # 60000 values have no such tail as a normal distribution, which counts at the fourth power.
    found /= 1.5  # the room for longer tails
    assert error(found) <= (2.5 if bits == 8 else 1.1) * smallest


def _initial_levels(model):
    """The clipping levels, by the names of layers."""
    named = {layer.name: getattr(layer, "output_variables", {}) for layer in model.layers}
    levels = {name: variables.get("clipping_level") for name, variables in named.items()}
    return {name: float(level) for name, level in levels.items() if level is not None}


def test_levels_are_near_those_of_calibration_where_statistics_are_those_of_the_images():
    images = float_models.images(64)
    model = float_models.build("mobile_block")
    for layer in model.layers:
        layer.momentum = 0.0  # of normalizations
    model(images, training=True)
    for bits in (4, 8):
        quantized = sat_tf.quantize_model(model, _mobile(bits, weight_bits=8))
        found = _initial_levels(quantized)
        calibrated = _initial_levels(sat_tf.calibrate(quantized, images, batch_normalization=False))
        del found["quant_pool"]  # the mean of pixels that are drawn one by one hardly varies
        for name, level in found.items():
            assert 0.5 < level / calibrated[name] < 2.6, (name, level, calibrated[name])


def test_levels_do_not_exceed_a_ceiling_and_follow_the_effective_weights():
    model = sat_tf.quantize_model(float_models.build("relu6"), _mobile(8))
    assert all(level <= 6.0 for level in _initial_levels(model).values())
    model = float_models.build("without_normalization")
    direct = _initial_levels(sat_tf.quantize_model(model, _mobile(8)))
    other = sat_tf.quantize_model(model, BitPolicy(weight_bits=None, activation_bits=None))
    assert _initial_levels(sat_tf.requantize(other, _mobile(8))) == pytest.approx(direct, rel=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("name", float_models.EVERY)
def test_every_level_is_positive_and_finite(name):
    levels = _initial_levels(sat_tf.quantize_model(float_models.build(name), _mobile(4)))
    assert all(0.0 < level < np.inf for level in levels.values())


def test_explain_says_where_each_level_comes_from():
    plan = sat_tf.explain(float_models.build("mobile_block"), _mobile(4))
    assert "clipping level from γ and β of a_bn" in plan["a_relu"].activation_reason
    plan = sat_tf.explain(float_models.build("without_normalization"), _mobile(4))
    assert "typical pixels: a guess, calibrate" in plan["b_relu"].activation_reason


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (L.Conv1DTranspose(6, 3, 2), L.Conv2DTranspose(6, (1, 3), (1, 2))),
        (L.DepthwiseConv1D(3, depth_multiplier=2), L.DepthwiseConv2D((1, 3), depth_multiplier=2)),
    ],
    ids=["transposed", "depthwise"],
)
def test_layers_of_sequences_are_those_of_images_with_one_row(one, two):
    models, spreads = [], []
    for layer, shape in ((one, (8, 4)), (two, (1, 8, 4))):
        first = L.Conv2D(5, (1, 3)) if len(shape) == 3 else L.Conv1D(5, 3)
        models.append(model_of(first, L.BatchNormalization(), L.ReLU(), layer, shape=shape))
        weights = zip(models[0].weights, models[-1].weights, strict=True)
        models[-1].set_weights([np.reshape(weight, other.shape) for weight, other in weights])
        spreads.append(_spreads(models[-1])[layer.name].values)
    np.testing.assert_array_equal(*spreads)
