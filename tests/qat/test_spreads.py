import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.value_ranges import PixelRanges, Spread, Spreads
from sat_tf.quantizers.pact import ClippingQuantizer, PactQuantizer, StreamQuantizer
from tests.qat import float_models

L = keras.layers

# Levels from the weights.
FROM_WEIGHTS = {"initial_clipping_level": None, "initial_classifier_clipping_level": None}


def _mobile(bits, **fields):
    return BitPolicy.mobile(bits, **FROM_WEIGHTS, **fields)


def _spreads(model):
    network = Network(model)
    pixels = PixelRanges(
        network, {name: BitPolicy().range_of(name).grid for name in network.inputs}
    )

    def kernel(name):
        layer = network[name].layer
        return getattr(layer, layer_kinds.kernel_name(layer))

    return Spreads(network, pixels, kernel)


def _normalized(shape=(8, 8, 4), seed=0):
    """An input behind a normalization, with γ and β, and values that are distributed so."""
    draw = np.random.default_rng(seed)
    tensor = keras.Input(shape, name="image")
    norm = L.BatchNormalization(name="bn", epsilon=0.0)
    hidden = norm(tensor)
    gamma, beta = draw.uniform(0.5, 2.0, shape[-1]), draw.normal(size=shape[-1])
    norm.set_weights([gamma, beta, np.zeros(shape[-1]), np.ones(shape[-1])])
    values = draw.normal(size=(512, *shape)).astype(np.float32)
    return tensor, hidden, values


def _agrees(model, values, tolerance=0.05):
    """Whether the spread of a model's output is that of its outputs for independent values."""
    found = _spreads(model)[model.layers[-1].name]
    seen = model.predict_on_batch(values).reshape(-1, model.output_shape[-1])
    size = np.std(seen)
    np.testing.assert_allclose(found.mean, seen.mean(axis=0), atol=tolerance * size)
    np.testing.assert_allclose(
        np.sqrt(found.variance), seen.std(axis=0), atol=tolerance * size, rtol=tolerance
    )


FUNCTIONS = {
    "rectifier": lambda x: L.ReLU()(x),
    "ceiling": lambda x: L.ReLU(1.0)(x),
    "swish": lambda x: L.Activation("swish")(x),
    "leaky": lambda x: L.LeakyReLU(0.1)(x),
    "prelu": lambda x: L.PReLU("ones", shared_axes=[1, 2])(x),
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
    tensor, hidden, values = _normalized()
    tf.random.set_seed(0)
    model = keras.Model(tensor, FUNCTIONS[name](hidden))
    # No two values are alike if a kernel has one pixel, and Dense one value of each pixel.
    _agrees(model, values, tolerance=0.6 if name == "flattened" else 0.08)


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


def _levels(model):
    return {
        layer.name: float(layer.output_variables["clipping_level"])
        for layer in model.layers
        if isinstance(getattr(layer, "quantize_config", None), object)
        and hasattr(layer, "output_variables")
        and "clipping_level" in layer.output_variables
    }


def test_levels_are_near_those_of_calibration_where_statistics_are_those_of_the_images():
    images = float_models.images(64)
    model = float_models.build("mobile_block")
    norms = [layer for layer in model.layers if isinstance(layer, L.BatchNormalization)]
    for norm in norms:
        norm.momentum = 0.0
    model(images, training=True)
    for bits in (4, 8):
        quantized = sat_tf.quantize_model(model, _mobile(bits, weight_bits=8))
        found = _levels(quantized)
        calibrated = _levels(sat_tf.calibrate(quantized, images, batch_normalization=False))
        del found["quant_pool"]  # the mean of pixels that are drawn one by one hardly varies
        for name, level in found.items():
            assert 0.5 < level / calibrated[name] < 2.6, (name, level, calibrated[name])


def test_a_rectifiers_ceiling_is_never_exceeded():
    model = sat_tf.quantize_model(float_models.build("relu6"), _mobile(8))
    assert all(level <= 6.0 for level in _levels(model).values())


def test_the_policy_wins_and_the_paper_keeps_its_levels():
    policy = BitPolicy(
        initial_clipping_level=3.0, overrides={"a_relu": {"initial_clipping_level": 2.0}}
    )
    levels = _levels(sat_tf.quantize_model(float_models.build("plain"), policy))
    assert (levels["quant_a_relu"], levels["quant_b_relu"]) == (2.0, 3.0)
    paper = BitPolicy.paper(4)
    assert (paper.initial_clipping_level, paper.initial_classifier_clipping_level) == (8.0, 10.0)


def test_levels_that_nothing_is_known_of_are_warned_of_by_name():
    with pytest.warns(GuessedClippingLevelsWarning, match="levels of a, b_relu, pool start at a"):
        sat_tf.quantize_model(float_models.build("without_normalization"), _mobile(4))


def test_new_levels_of_another_policy_follow_the_effective_weights():
    float_bits = {"weight_bits": None, "activation_bits": None}
    policies = BitPolicy(**float_bits), BitPolicy.paper(4, **float_bits)
    model = float_models.build("without_normalization")
    direct, *others = (
        _levels(sat_tf.quantize_model(model, _mobile(8))),
        *(
            _levels(sat_tf.requantize(sat_tf.quantize_model(model, one), _mobile(8)))
            for one in policies[:1]
        ),
    )
    for levels in others:
        assert levels == pytest.approx(direct, rel=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("name", float_models.EVERY)
def test_every_level_is_positive_and_finite(name):
    quantized = sat_tf.quantize_model(float_models.build(name), _mobile(4))
    for layer in quantized.layers:
        output = getattr(getattr(layer, "quantize_config", None), "output", None)
        if isinstance(output, ClippingQuantizer):
            level = float(layer.output_variables["clipping_level"])
            assert 0.0 < level < np.inf


def test_explain_says_where_each_level_comes_from():
    plan = sat_tf.explain(float_models.build("mobile_block"), _mobile(4))
    rows = {row.name: row for row in plan.rows}
    assert re.search(r"clipping level from γ and β of a_bn", rows["a_relu"].activation_reason)
    plan = sat_tf.explain(float_models.build("without_normalization"), _mobile(4))
    rows = {row.name: row for row in plan.rows}
    assert "typical pixels: a guess, calibrate" in rows["b_relu"].activation_reason


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (L.Conv1DTranspose(6, 3, 2, name="a"), L.Conv2DTranspose(6, (1, 3), (1, 2), name="a")),
        (
            L.DepthwiseConv1D(3, depth_multiplier=2, name="a"),
            L.DepthwiseConv2D((1, 3), depth_multiplier=2, name="a"),
        ),
    ],
    ids=["transposed", "depthwise"],
)
def test_layers_of_sequences_are_those_of_images_with_one_row(one, two):
    found = []
    for layer, shape in ((one, (8, 4)), (two, (1, 8, 4))):
        image = keras.Input(shape, name="image")
        tensor = L.Conv2D(5, (1, 3), name="c") if len(shape) == 3 else L.Conv1D(5, 3, name="c")
        tensor = L.BatchNormalization(name="bn")(tensor(image))
        model = keras.Model(image, layer(L.ReLU(name="relu")(tensor)))
        if found:
            for layer_of_one, layer_of_two in zip(found[0][0].layers, model.layers, strict=True):
                for weight, other in zip(layer_of_one.weights, layer_of_two.weights, strict=True):
                    other.assign(np.reshape(weight.numpy(), other.shape))
        found.append((model, _spreads(model)))
    (first, spreads), (second, others) = found
    name = first.layers[-1].name
    np.testing.assert_array_equal(spreads[name].values, others[second.layers[-1].name].values)
