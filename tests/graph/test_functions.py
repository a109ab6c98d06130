import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.core import asymmetric
from sat_tf.exact.targets.processors import PROCESSORS
from sat_tf.graph import layer_kinds
from sat_tf.graph.layer_kinds import activation_name
from sat_tf.graph.layers.activations import (
    absolute,
    celu,
    gelu_by_tanh,
    hard_shrink,
    hard_silu,
    hard_tanh,
    log_sigmoid,
    relu6_sigmoid,
    soft_shrink,
    squareplus,
    tanh_shrink,
)
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.operation_layers import Clip
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.pact import OffsetQuantizer, PactQuantizer, StreamQuantizer

L = keras.layers

LAYERS = [
    *map(L.Activation, ("sigmoid", "hard_sigmoid", "tanh", "softsign", "softplus", "exponential")),
    *map(L.Activation, ("elu", "selu", "swish", tf.nn.silu, "gelu", gelu_by_tanh, "mish")),
    *(Clip(*ends) for ends in ((-1.0, 1.0), (-2.0, 3.0), (0.25, 1.0), (0.5, 4.0), (-0.5, None))),
    *map(L.Activation, (celu, hard_silu, hard_tanh, relu6_sigmoid, squareplus, absolute)),
    *(L.Activation(tf.nn.leaky_relu), L.LeakyReLU(0.3), L.LeakyReLU(0.0), L.ELU(0.7)),
    *(L.ReLU(negative_slope=0.1), L.ReLU(threshold=1.0)),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_functions_stay_within_their_reach(layer):
    assert layer_kinds.role_of(layer) is Role.FUNCTION
    assert layer_kinds.unsupported_problem(layer) is None
    x = np.linspace(-20.0, 20.0, 100_001, dtype=np.float32)
    values = layer(x[np.newaxis]).numpy()
    reach = layer_kinds.reach_of(layer)
    highest = float(np.max(values)) if reach.highest is None else reach.highest
    assert np.max(values) <= highest
    lowest = reach.lowest - reach.share * 20.0
    assert np.min(values) >= lowest * (1.0 + 1e-6)
    # A range that reaches further than the function would waste codes.
    assert lowest == 0.0 or np.min(values) <= 0.9 * lowest
    assert layer_kinds.works_on_each_value(layer)


@pytest.mark.thorough
def test_what_is_cut_off_above_keeps_its_sign():
    assert layer_kinds.reach_of(Clip(None, 2.0)) == asymmetric.UNKNOWN
    assert layer_kinds.works_on_each_value(Clip(None, 2.0))
    image = keras.Input((8, 8, 3))
    kinds = {}
    for name, function in (("positive", "softplus"), ("signed", "linear")):
        features = L.Activation(function, name=name)(L.Conv2D(4, 3)(image))
        for high in (2.0, -2.0):
            cut = tf.minimum(features, high)
            model = keras.Model(image, L.Dense(2)(L.Flatten()(L.Conv2D(4, 3)(cut))))
            quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
            wrapper = quantized.get_layer(f"quant_{cut.node.layer.name}")
            kinds[name, high] = type(wrapper.quantize_config.output)
    assert kinds.pop(("positive", 2.0)) is PactQuantizer
    assert set(kinds.values()) == {StreamQuantizer}


def test_a_softmax_is_between_0_and_1_and_no_table():
    for layer in (L.Softmax(), L.Activation("softmax")):
        assert layer_kinds.reach_of(layer) == asymmetric.Reach(0.0, highest=1.0)
        assert not layer_kinds.works_on_each_value(layer)


@pytest.mark.parametrize(
    ("layer", "on_each_value"),
    [
        *((L.Activation(f), True) for f in (hard_shrink, log_sigmoid, soft_shrink, tanh_shrink)),
        *((layer, False) for layer in (L.PReLU(), L.LayerNormalization())),
    ],
)
def test_functions_without_a_lowest_value_are_streams(layer, on_each_value):
    assert layer_kinds.role_of(layer) is Role.FUNCTION
    assert layer_kinds.reach_of(layer) == asymmetric.UNKNOWN
    assert layer_kinds.works_on_each_value(layer) == on_each_value


@pytest.mark.parametrize("interpolation", ["bilinear", "area", "nearest"])
def test_resized_images_lie_within_the_image(interpolation):
    layer = L.Resizing(7, 9, interpolation)
    assert layer_kinds.keeps_range(layer)
    image = np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32)
    made = layer(image).numpy()
    assert np.min(image) - 1e-5 <= np.min(made)
    assert np.max(made) <= np.max(image) + 1e-5
    assert not layer_kinds.keeps_range(L.Resizing(7, 9, "bicubic"))


def _quantizers_of_a_gated(function):
    image = keras.Input((8, 8, 3))
    features = L.Activation(function, name="function")(L.Conv2D(4, 3)(image))
    squeezed = L.GlobalAveragePooling2D(keepdims=True, name="mean")(features)
    gate = L.Activation("sigmoid", name="gate")(L.Conv2D(4, 1)(squeezed))
    gated = L.Multiply(name="gated")([features, gate])
    pooled = L.GlobalAveragePooling2D(name="pool")(gated)
    model = sat_tf.quantize_model(keras.Model(image, L.Dense(2)(pooled)), BitPolicy.mobile(8))
    return {
        name: model.get_layer(f"quant_{name}").quantize_config.output
        for name in ("function", "mean", "gated", "pool")
    }


def test_a_gate_and_a_mean_keep_the_range_of_a_function():
    for function, lowest in (("swish", -0.2785), ("gelu", -0.1701)):
        for quantizer in _quantizers_of_a_gated(function).values():
            assert isinstance(quantizer, OffsetQuantizer)
            assert quantizer.lowest == lowest


def test_what_a_gate_multiplies_keeps_a_clipping_level_where_it_has_no_lowest_value():
    quantizers = _quantizers_of_a_gated("linear")
    found = quantizers["gated"], quantizers["pool"], _quantizers_of_a_gated("tanh")["gated"]
    assert all(isinstance(quantizer, StreamQuantizer) for quantizer in found)


NPU = PROCESSORS["ethos-u55"]
VALUES = np.linspace(-6.0, 9.0, 151, dtype=np.float32).reshape(1, 151)
HARD_SWISHES = {
    "divided last": lambda x: x * tf.nn.relu6(x + 3.0) / 6.0,
    "divided first": lambda x: x * (tf.nn.relu6(x + 3) / 6),
    "as Keras' MobileNetV3": lambda x: L.Multiply()([x, L.ReLU(6.0)(x + 3.0) * (1.0 / 6.0)]),
    "clipped, the gate first": lambda x: tf.clip_by_value(3.0 + x, 0.0, 6.0) * x * (1 / 6),
    "the input divided": lambda x: (x / 6.0) * tf.minimum(tf.maximum(x - (-3.0), 0.0), 6.0),
}
OTHERS = {
    "another summand": lambda x: x * tf.nn.relu6(x + 2.0) / 6.0,
    "another divisor": lambda x: x * tf.nn.relu6(x + 3.0) / 5.0,
    "another ceiling": lambda x: x * L.ReLU(5.0)(x + 3.0) / 6.0,
    "another factor": lambda x: (x + 1.0) * tf.nn.relu6(x + 3.0) / 6.0,
    "three factors": lambda x: x * x * tf.nn.relu6(x + 3.0) / 6.0,
    "a divisor for each channel": lambda x: x * tf.nn.relu6(x + 3.0) / np.full(151, 6.0, "float32"),
}


def _model(function) -> keras.Model:
    image = keras.Input(VALUES.shape[1:])
    return keras.Model(image, function(image))


def _functions(model: keras.Model) -> list[str]:
    return [activation_name(one) for one in model.layers if isinstance(one, L.Activation)]


def _assert_same(made: keras.Model, model: keras.Model) -> None:
    np.testing.assert_allclose(made(VALUES), model(VALUES), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", HARD_SWISHES)
def test_a_hard_swish_in_operations_is_one_function_for_an_npu_alone(name):
    model = _model(HARD_SWISHES[name])
    made = network_of_layers(model, processor=NPU).model
    assert _functions(made) == ["hard_silu"]
    assert len(made.layers) == 2
    assert made.layers[-1].name == model.layers[-1].name
    _assert_same(made, model)
    plain = network_of_layers(model).model
    assert _functions(plain) == []
    np.testing.assert_array_equal(plain(VALUES), model(VALUES))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_like_a_hard_swish_is_none(name):
    made = network_of_layers(_model(OTHERS[name]), processor=NPU).model
    assert _functions(made) == []


def test_a_hard_swish_keeps_what_is_computed_of_it_and_of_its_gate():
    def function(x):
        gate = tf.nn.relu6(x + 3.0) / 6.0
        return L.Concatenate()([2.0 * (x * gate), gate])

    model = _model(function)
    made = network_of_layers(model, processor=NPU).model
    assert _functions(made) == ["hard_silu"]
    _assert_same(made, model)


@pytest.mark.parametrize("function", ["hard_sigmoid", relu6_sigmoid])
def test_a_hard_sigmoid_is_a_rectifier_of_a_line(function):
    model = _model(L.Activation(function, name="gate"))
    made = network_of_layers(model, processor=NPU).model
    names = [one.name for one in made.layers[1:]]
    assert names == ["gate_slope", "gate_offset", "gate"]
    assert made.layers[-1].max_value == 1.0
    _assert_same(made, model)
    assert network_of_layers(made, processor=NPU).model is made
