import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import operation_layers
from sat_tf.graph.calls.arithmetic import gelu_by_tanh
from sat_tf.graph.operation_layers import absolute
from sat_tf.keras3 import inference_operations
from sat_tf.keras3.conversion import inference_table
from sat_tf.keras3.conversion.assembly import build
from sat_tf.keras3.conversion.calls import calls_of
from sat_tf.keras3.conversion.inference_model import pieces_of

VALUES = np.random.default_rng(4).uniform(0.1, 3.0, (3, 8, 8, 4)).astype(np.float32)

# Every row of the table, written as users write it.
OPERATIONS = [
    lambda x: x + x[:, :1],
    lambda x: 1.0 - x,
    lambda x: 2.0 / x,
    lambda x: x * [1.0, 2.0, 3.0, 4.0],
    lambda x: -x,
    lambda x: x**3,
    lambda x: x[..., None, 1:3],
    lambda x: x[:, 0],
    abs,
    tf.abs,
    tf.cos,
    tf.exp,
    tf.identity,
    tf.math.erf,
    tf.math.log,
    tf.math.rsqrt,
    tf.math.sign,
    tf.math.sin,
    tf.math.softplus,
    tf.nn.elu,
    tf.nn.gelu,
    tf.nn.leaky_relu,
    tf.nn.relu,
    tf.nn.relu6,
    tf.nn.selu,
    tf.nn.silu,
    tf.nn.softmax,
    tf.nn.softsign,
    tf.sigmoid,
    tf.sqrt,
    tf.square,
    tf.stop_gradient,
    tf.tanh,
    lambda x: tf.add(x, 0.3),
    lambda x: tf.cast(x, "int32"),
    lambda x: tf.clip_by_value(x, 0.5, 2.0),
    lambda x: tf.concat([x, x[..., :1]], -1),
    lambda x: tf.divide(x, 3.0),
    lambda x: tf.compat.v1.gather(x, [3, 0, 0], axis=3),
    lambda x: tf.expand_dims(x, 1),
    lambda x: tf.gather(x, [6, 2], axis=1),
    lambda x: tf.image.resize(x, (5, 6)),
    lambda x: tf.image.resize(x, (5, 6), "nearest"),
    lambda x: tf.image.resize(x, (5, 6), antialias=True),
    lambda x: tf.floor(x),
    lambda x: tf.math.l2_normalize(x, axis=-1, epsilon=1e-6),
    lambda x: tf.math.logical_not(x > 1.0),
    lambda x: tf.math.reciprocal(x),
    lambda x: tf.math.squared_difference(x, 0.7),
    lambda x: tf.equal(x, x[:, :1]),
    lambda x: tf.logical_and(x >= 1.0, x < 2.0),
    lambda x: tf.logical_or(x <= 1.0, tf.not_equal(x, x[:, :1])),
    lambda x: tf.matmul(x, x, transpose_b=True),
    lambda x: tf.matmul(x, x[:, ::-1], transpose_a=True),
    lambda x: tf.maximum(x, 1.0),
    lambda x: tf.minimum(x, x[:, :1]),
    lambda x: tf.nn.depth_to_space(x, 2),
    lambda x: tf.nn.gelu(x, approximate=True),
    lambda x: tf.nn.leaky_relu(x - 1.0, alpha=0.1),
    lambda x: tf.nn.log_softmax(x, axis=-1),
    lambda x: tf.nn.softmax(x, axis=1),
    lambda x: tf.nn.space_to_depth(x, 4),
    lambda x: tf.pad(x, [[0, 0], [1, 2], [1, 1], [0, 0]]),
    lambda x: tf.pad(x, [[0, 0], [1, 2], [1, 1], [0, 0]], constant_values=2.5),
    lambda x: tf.pad(x, [[0, 0], [1, 2], [1, 1], [0, 0]], "REFLECT"),
    lambda x: tf.reduce_max(x, [1, 2]),
    lambda x: tf.reduce_mean(x, axis=[1, 2], keepdims=True),
    lambda x: tf.reduce_min(x, -1),
    lambda x: tf.reduce_prod(x, 1),
    lambda x: tf.reduce_sum(x, 1),
    lambda x: tf.where(x > 1.0, x, 0.1 * x),
    lambda x: tf.reshape(x, [-1, 256]),
    lambda x: tf.squeeze(x[:, :1], axis=1),
    lambda x: tf.squeeze(x[:, :1], [1]),
    lambda x: tf.stack([x, x], 2),
    lambda x: tf.tile(x, [1, 2, 1, 1]),
    lambda x: tf.transpose(x, [0, 3, 1, 2]),
]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("function", OPERATIONS)
def test_operations_are_those_of_tensorflow_bit_for_bit(function, exact):
    image = keras.Input((8, 8, 4), name="image")
    model = keras.Model(image, function(image))
    exported, _ = build(
        model,
        list(calls_of(model)),
        lambda layer, names: pieces_of(layer, names, exact=exact),
    )
    assert exact or "sat_tf" not in exported.to_json()
    again = keras3.Model.from_config(exported.get_config())
    expected, received = model(VALUES), again(VALUES)
    assert received.dtype == expected.dtype
    np.testing.assert_array_equal(received, expected)


def test_every_row_of_the_table_is_tried():
    tried = set()
    for function in OPERATIONS:
        image = keras.Input((8, 8, 4), name="image")
        for layer in keras.Model(image, function(image)).layers:
            tried.add(getattr(layer, "symbol", "__operators__.getitem"))
    # TensorFlow's other names for the same: which of them a model holds depends on its release.
    aliases = {"math.divide", "squeeze", "transpose", "abs"}
    assert set(inference_operations.known_operations()) - tried <= aliases


@pytest.mark.parametrize("formula", ["x + c", "x - c", "c - x", "x * c", "x / c"])
def test_scalings_are_those_of_tf_keras(formula):
    for number in (0.3, [1.7, -2.0, 0.1, 9.0]):
        expected = operation_layers.Scaling(formula, number)(VALUES)
        layer = inference_operations.InferenceScaling(formula, number)
        again = inference_operations.InferenceScaling.from_config(layer.get_config())
        np.testing.assert_array_equal(again(VALUES), expected)


@pytest.mark.parametrize(
    ("slices", "dropped"),
    [
        ([[1, -1, None], [None, None, 3], [0, 2, 1]], []),
        ([[2, 3, None], [None, None, None], [-1, None, None]], [0, 2]),
    ],
)
def test_slices_are_those_of_tf_keras(slices, dropped):
    expected = operation_layers.Slice(slices, dropped)(VALUES)
    layer = inference_operations.InferenceSlice(slices, dropped)
    again = inference_operations.InferenceSlice.from_config(layer.get_config())
    np.testing.assert_array_equal(again(VALUES), expected)


OWN_LAYERS = [
    operation_layers.Clip(0.5, 2.0),
    operation_layers.Clip(None, 2.0),
    operation_layers.Clip(1.0, None),
    operation_layers.DepthToSpace(2),
    operation_layers.SpaceToDepth(2),
    operation_layers.ChannelMean(),
    operation_layers.ChannelMax(),
    operation_layers.Padding([(0, 1), (2, 0), (1, 3)]),
    operation_layers.Gather([3, 1, 1], 2),
    operation_layers.ConstantSum(VALUES[0] - 1.0),
]


@pytest.mark.parametrize("layer", OWN_LAYERS, ids=lambda layer: layer.name)
def test_layers_of_quantized_operations_are_those_of_tf_keras(layer):
    for exact in (True, False):
        (made,) = inference_table.make_layers(
            layer, lambda name: name, activation=True, kernel=None, exact=exact
        )
        assert inference_table.problem_of(layer, exact=exact) is None
        made(keras3.Input(VALUES.shape[1:]))
        np.testing.assert_array_equal(made(VALUES), layer(VALUES))
    copy = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(copy(VALUES), layer(VALUES))


def test_functions_of_tf_keras_that_keras_3_has_not_are_those_of_tf_keras():
    values = tf.constant(VALUES * 3.0 - 4.0)
    np.testing.assert_array_equal(
        inference_operations.hard_sigmoid_of_keras2(values), keras.activations.hard_sigmoid(values)
    )
    np.testing.assert_array_equal(inference_operations.gelu_by_tanh(values), gelu_by_tanh(values))
    np.testing.assert_array_equal(inference_operations.absolute(values), absolute(values))
