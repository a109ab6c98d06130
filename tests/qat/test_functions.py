import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.keras3.activations import (
    celu,
    hard_shrink,
    hard_silu,
    hard_tanh,
    log_sigmoid,
    relu6_sigmoid,
    soft_shrink,
    squareplus,
    tanh_shrink,
)
from sat_tf.qat import functions, registry
from sat_tf.qat.operation_plans import gelu_by_tanh
from sat_tf.qat.registry import Role

L = keras.layers

LAYERS = [
    L.Activation("sigmoid"),
    L.Activation("hard_sigmoid"),
    L.Activation("tanh"),
    L.Activation("softsign"),
    L.Activation("softplus"),
    L.Activation("exponential"),
    L.Activation("elu"),
    L.Activation("selu"),
    L.Activation("swish"),
    L.Activation(tf.nn.silu),
    L.Activation("gelu"),
    L.Activation(gelu_by_tanh),
    L.Activation("mish"),
    *(L.Activation(f) for f in (celu, hard_silu, hard_tanh, relu6_sigmoid, squareplus)),
    L.Activation(tf.nn.leaky_relu),
    L.LeakyReLU(0.3),
    L.LeakyReLU(0.0),
    L.ELU(0.7),
    L.ReLU(negative_slope=0.1),
    L.ReLU(threshold=1.0),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_functions_stay_within_their_reach(layer):
    assert registry.role_of(layer) is Role.FUNCTION
    assert registry.unsupported_problem(layer) is None
    x = np.linspace(-20.0, 20.0, 100_001, dtype=np.float32)
    values = layer(x[np.newaxis]).numpy()
    reach = functions.reach(layer)
    highest = float(np.max(values)) if reach.highest is None else reach.highest
    assert np.max(values) <= highest
    lowest = reach.lowest - reach.share * 20.0
    assert np.min(values) >= lowest * (1.0 + 1e-6)
    # A range that reaches further than the function would waste codes.
    assert lowest == 0.0 or np.min(values) <= 0.9 * lowest
    assert functions.works_on_each_value(layer)


def test_a_softmax_is_between_0_and_1_and_no_table():
    for layer in (L.Softmax(), L.Activation("softmax")):
        assert functions.reach(layer) == functions.Reach(0.0, highest=1.0)
        assert not functions.works_on_each_value(layer)


@pytest.mark.parametrize("function", [hard_shrink, log_sigmoid, soft_shrink, tanh_shrink])
def test_functions_of_one_value_without_a_lowest_one_are_streams(function):
    layer = L.Activation(function)
    assert registry.role_of(layer) is Role.FUNCTION
    assert functions.reach(layer) == functions.UNKNOWN
    assert functions.works_on_each_value(layer)


@pytest.mark.parametrize("layer", [L.PReLU(), L.LayerNormalization()])
def test_of_layers_with_weights_nothing_is_known(layer):
    assert registry.role_of(layer) is Role.FUNCTION
    assert functions.reach(layer) == functions.UNKNOWN
    assert not functions.works_on_each_value(layer)


@pytest.mark.parametrize("interpolation", ["bilinear", "area", "nearest"])
def test_resized_images_lie_within_the_image(interpolation):
    layer = L.Resizing(7, 9, interpolation)
    assert functions.keeps_range(layer)
    image = np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32)
    made = layer(image).numpy()
    assert np.min(image) - 1e-5 <= np.min(made)
    assert np.max(made) <= np.max(image) + 1e-5
    assert not functions.keeps_range(L.Resizing(7, 9, "bicubic"))
