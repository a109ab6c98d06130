import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph import layer_kinds
from sat_tf.graph.rewrite import network_of_layers
from tests.export.proofs import proved

L = keras.layers
MAP = np.random.default_rng(8).normal(size=(8, 8, 4)).astype(np.float32)

# Operations that users write between layers, on x of shape (8, 8, 4) and y like it, and the layers
# that they become.
OPERATIONS = {
    "sum": (lambda x, y: x + y, [L.Add]),
    "sum_by_name": (lambda x, y: tf.add(x, y), [L.Add]),
    "sum_of_three": (lambda x, y: tf.add_n([x, y, x]), [L.Add]),
    "difference": (lambda x, y: x - y, [L.Subtract]),
    "product": (lambda x, y: x * y, [L.Multiply]),
    "product_by_name": (lambda x, y: tf.multiply(x, y), [L.Multiply]),
    "square": (lambda x, y: x * x, [L.Multiply]),
    "largest": (lambda x, y: tf.maximum(x, y), [L.Maximum]),
    "smallest": (lambda x, y: tf.minimum(x, y), [L.Minimum]),
    "doubled": (lambda x, y: x * 2, ["Scaling"]),
    "doubled_from_the_left": (lambda x, y: 2 * x, ["Scaling"]),
    "tenth": (lambda x, y: x * 0.1, ["Scaling"]),
    "sixth": (lambda x, y: x / 6, ["Scaling"]),
    "plus": (lambda x, y: x + 3.0, ["Scaling"]),
    "minus": (lambda x, y: x - 1.7, ["Scaling"]),
    "from_one": (lambda x, y: 1 - x, ["Scaling"]),
    "negative": (lambda x, y: -x, ["Scaling"]),
    "mean_subtracted": (lambda x, y: x - np.float32([1, 2, 3, 4]), ["Scaling"]),
    "relu": (lambda x, y: tf.nn.relu(x), [L.ReLU]),
    "relu6": (lambda x, y: tf.nn.relu6(x), [L.ReLU]),
    "relu_as_maximum": (lambda x, y: tf.maximum(x, 0.0), [L.ReLU]),
    "clipped": (lambda x, y: tf.clip_by_value(x, 0.0, 3.0), [L.ReLU]),
    "leaky": (lambda x, y: tf.nn.leaky_relu(x, 0.1), [L.LeakyReLU]),
    "swish": (lambda x, y: tf.nn.swish(x), [L.Activation]),
    "sigmoid": (lambda x, y: tf.sigmoid(x), [L.Activation]),
    "tanh": (lambda x, y: tf.tanh(x), [L.Activation]),
    "gelu": (lambda x, y: tf.nn.gelu(x), [L.Activation]),
    "gelu_by_tanh": (lambda x, y: tf.nn.gelu(x, approximate=True), [L.Activation]),
    "elu": (lambda x, y: tf.nn.elu(x), [L.Activation]),
    "softplus": (lambda x, y: tf.nn.softplus(x), [L.Activation]),
    "softmax": (lambda x, y: tf.nn.softmax(x), [L.Softmax]),
    "hard_sigmoid": (
        lambda x, y: keras.activations.hard_sigmoid(x),
        ["Scaling", "Scaling", L.ReLU],
    ),
    "reshaped": (lambda x, y: tf.reshape(x, [-1, 64, 4]), [L.Reshape]),
    "reshaped_by_its_shape": (lambda x, y: tf.reshape(x, [tf.shape(x)[0], 16, 16]), [L.Reshape]),
    "expanded": (lambda x, y: tf.expand_dims(x, 1), [L.Reshape]),
    "squeezed": (lambda x, y: tf.squeeze(x[:, :1], 1), ["Slice", L.Reshape]),
    "transposed": (lambda x, y: tf.transpose(x, [0, 2, 1, 3]), [L.Permute]),
    "padded": (lambda x, y: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]]), [L.ZeroPadding2D]),
    "joined": (lambda x, y: tf.concat([x, y], -1), [L.Concatenate]),
    "pooled": (lambda x, y: tf.reduce_mean(x, [1, 2]), [L.GlobalAveragePooling2D]),
    "pooled_keeping": (
        lambda x, y: tf.reduce_mean(x, axis=(1, 2), keepdims=True),
        [L.GlobalAveragePooling2D],
    ),
    "largest_pixel": (lambda x, y: tf.reduce_max(x, [1, 2]), [L.GlobalMaxPooling2D]),
    "resized": (lambda x, y: tf.image.resize(x, (12, 20)), [L.Resizing]),
    "enlarged": (lambda x, y: tf.image.resize(x, (16, 24), "nearest"), [L.UpSampling2D]),
    "sliced": (lambda x, y: x[:, 1:-1, ::2], ["Slice"]),
    "sliced_channels": (lambda x, y: x[..., 1:3], ["Slice"]),
    "one_row": (lambda x, y: x[:, 2], ["Slice"]),
    "last_channel": (lambda x, y: x[..., -1], ["Slice"]),
    "max_pool2d": (lambda x, y: tf.nn.max_pool2d(x, 2, 2, "SAME"), [L.MaxPooling2D]),
    "max_pool": (
        lambda x, y: tf.nn.max_pool(x, [1, 3, 2, 1], strides=[1, 2, 1, 1], padding="VALID"),
        [L.MaxPooling2D],
    ),
    "avg_pool2d": (
        lambda x, y: tf.nn.avg_pool2d(input=x, ksize=(2, 3), strides=2, padding="SAME"),
        [L.AveragePooling2D],
    ),
    "avg_pool": (lambda x, y: tf.nn.avg_pool(x, 3, 2, "VALID"), [L.AveragePooling2D]),
    "pool": (lambda x, y: tf.nn.pool(x, (2, 2), "AVG", padding="SAME"), [L.AveragePooling2D]),
    "pool_of_keras": (
        lambda x, y: keras.backend.pool2d(x, (2, 2), (2, 2), "same"),
        [L.MaxPooling2D],
    ),
    "mean_pool_of_keras": (
        lambda x, y: keras.backend.pool2d(x, (2, 2), (2, 1), pool_mode="avg"),
        [L.AveragePooling2D],
    ),
    "absolute": (lambda x, y: tf.abs(x), [L.Activation]),
    "absolute_in_python": (lambda x, y: abs(x), [L.Activation]),
    "squared": (lambda x, y: tf.square(x), [L.Multiply]),
    "depth_to_space": (lambda x, y: tf.nn.depth_to_space(x, 2), ["DepthToSpace"]),
    "depth_to_space_by_name": (
        lambda x, y: tf.compat.v1.depth_to_space(x, block_size=2),
        ["DepthToSpace"],
    ),
    "space_to_depth": (lambda x, y: tf.nn.space_to_depth(x, 4), ["SpaceToDepth"]),
    "channel_mean": (lambda x, y: tf.reduce_mean(x, axis=-1, keepdims=True), ["ChannelMean"]),
    "channel_mean_of_keras": (lambda x, y: keras.backend.mean(x, 3, True), ["ChannelMean"]),
    "channel_max": (lambda x, y: tf.math.reduce_max(x, [3], True), ["ChannelMax"]),
    "channel_padding": (lambda x, y: tf.pad(x, [[0, 0], [0, 0], [0, 0], [1, 3]]), ["Padding"]),
    "all_padded": (
        lambda x, y: tf.pad(paddings=tf.constant([[0, 0], [1, 0], [0, 2], [1, 3]]), tensor=x),
        ["Padding"],
    ),
    "padded_by_keras": (
        lambda x, y: keras.backend.spatial_2d_padding(x, ((1, 2), (0, 1))),
        [L.ZeroPadding2D],
    ),
    "gathered": (lambda x, y: tf.gather(x, [3, 1, 1], axis=-1), ["Gather"]),
    "gathered_rows": (lambda x, y: tf.gather(x, np.int64([5, 0]), axis=1), ["Gather"]),
    "gathered_in_order": (lambda x, y: tf.gather(x, [1, 3], axis=3), ["Slice"]),
    "one_gathered": (lambda x, y: tf.gather(x, tf.constant(2), axis=2), ["Slice"]),
    "at_most": (lambda x, y: tf.minimum(x, 6.0), ["Clip"]),
    "at_most_from_the_left": (lambda x, y: tf.math.minimum(2.0, x), ["Clip"]),
    "at_least": (lambda x, y: keras.backend.maximum(x, -1.5), ["Clip"]),
    "clipped_both_ways": (lambda x, y: tf.clip_by_value(x, -1.0, 1.0), ["Clip"]),
    "clipped_by_keras": (lambda x, y: keras.backend.clip(x, -2, 3), ["Clip"]),
    "relu6_as_minimum": (lambda x, y: tf.minimum(tf.maximum(x, 0.0), 6.0), [L.ReLU]),
    "relu6_as_maximum": (lambda x, y: tf.maximum(0.0, tf.minimum(x, 6.0)), [L.ReLU]),
    "minimum_of_relu": (lambda x, y: tf.minimum(tf.nn.relu(x), 3.0), [L.ReLU]),
    "minimum_of_a_layer": (lambda x, y: tf.minimum(L.ReLU(name="inner")(x), 3.0), [L.ReLU]),
    "relu_of_keras": (lambda x, y: keras.backend.relu(x, max_value=4.0), [L.ReLU]),
    "stacked": (lambda x, y: tf.stack([x, y], 1), [L.Reshape, L.Reshape, L.Concatenate]),
    "map_added": (lambda x, y: x + MAP, ["ConstantSum"]),
    "map_added_to": (lambda x, y: tf.constant(MAP) + x, ["ConstantSum"]),
    "map_by_name": (lambda x, y: tf.add(x=x, y=MAP[np.newaxis]), ["ConstantSum"]),
    "map_of_rows": (lambda x, y: x + MAP[:, :1, :1], ["ConstantSum"]),
    "map_subtracted": (lambda x, y: x - MAP, ["ConstantSum"]),
    "map_as_a_layer": (lambda x, y: L.Add()([x, MAP[np.newaxis]]), ["ConstantSum"]),
    "map_first_in_a_layer": (
        lambda x, y: L.Add()([tf.constant(MAP[np.newaxis]), x]),
        ["ConstantSum"],
    ),
    "map_subtracted_in_a_layer": (lambda x, y: L.Subtract()([x, MAP[np.newaxis]]), ["ConstantSum"]),
    "positions_embedded": (
        lambda x, y: L.Reshape((64, 4))(x) + L.Embedding(64, 4)(tf.range(64)),
        [L.Reshape, "ConstantSum"],
    ),
    "from_a_map": (lambda x, y: MAP - x, ["Scaling", "ConstantSum"]),
    "bias": (lambda x, y: tf.nn.bias_add(x, MAP[0, 0]), ["Scaling"]),
    "resized_nearest": (lambda x, y: tf.image.resize(x, (12, 5), "nearest"), [L.Resizing]),
    "reduced_nearest": (
        lambda x, y: tf.image.resize(x, [3, 8], method=tf.image.ResizeMethod.NEAREST_NEIGHBOR),
        [L.Resizing],
    ),
    "enlarged_by_keras": (
        lambda x, y: keras.backend.resize_images(x, 2, 3, "channels_last"),
        [L.UpSampling2D],
    ),
    "stopped": (lambda x, y: tf.stop_gradient(x), ["StopGradient"]),
    "cast_to_what_it_is": (lambda x, y: tf.cast(x, tf.float32), [L.Activation]),
}


def _model(operation):
    image = keras.Input((8, 8, 4), name="image")
    x = L.Conv2D(4, 3, padding="same", name="x")(image)
    y = L.Conv2D(4, 3, padding="same", name="y")(image)
    return keras.Model(image, operation(x, y), name="written")


def _images(shape=(8, 8, 4), count=3):
    draw = np.random.default_rng(3)
    return draw.normal(0.0, 3.0, (count, *shape)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_becomes_layers_with_the_same_outputs_and_names(name):
    operation, expected = OPERATIONS[name]
    model = _model(operation)
    rewritten = network_of_layers(model).model
    new = [layer for layer in rewritten.layers if layer.name not in ("image", "x", "y")]
    names = [kind if isinstance(kind, str) else kind.__name__ for kind in expected]
    assert [type(layer).__name__ for layer in new] == names
    known = [layer.name for layer in model.layers]
    assert all(layer.name.startswith(tuple(known)) for layer in new)
    assert new[-1].name == known[-1]
    assert all(layer_kinds.unsupported_problem(layer) is None for layer in new)
    images = _images()
    np.testing.assert_array_equal(rewritten(images), model(images))


OTHERS = {
    "truediv": lambda x, y: x / y,
    "sin": lambda x, y: tf.math.sin(x),
    "reduce_mean": lambda x, y: tf.reduce_mean(x, [2, 3]),
    "reduce_all": lambda x, y: tf.reduce_mean(x),
    "getitem": lambda x, y: x[:, ::-1, ..., 1:],
    "multiply": lambda x, y: x * 0.0,
    "concat": lambda x, y: tf.concat([x, x[:, :1]], 1)[::1],
    "clip_by_value": lambda x, y: tf.clip_by_value(x, MAP, MAP + 1.0),
    "minimum": lambda x, y: tf.minimum(x, MAP),
    "pad": lambda x, y: tf.pad(x, [[0, 0], [0, 0], [0, 0], [1, 1]], constant_values=1.0),
    "max_pool2d": lambda x, y: tf.nn.max_pool2d(x, 2, 2, [[0, 0], [1, 1], [1, 1], [0, 0]]),
    "pool": lambda x, y: tf.nn.pool(x, (2, 2), "MAX", dilations=(2, 2)),
    "einsum": lambda x, y: tf.einsum("bhwc,cd->bhwd", x, np.eye(4, 3, dtype=np.float32)),
    "gather": lambda x, y: tf.gather(x, np.int64([[3, 1]]), axis=-1),
    "cast": lambda x, y: tf.cast(x, tf.float64),
    "more_axes": lambda x, y: x + np.ones((1, 1, 1, 1, 1), np.float32),
}


@pytest.mark.parametrize("name", OTHERS)
def test_operations_without_a_layer_are_left_to_tensorflow(name, tmp_path):
    model = _model(OTHERS[name])
    rewritten = network_of_layers(model).model
    np.testing.assert_array_equal(rewritten(_images()), model(_images()))
    rewritten.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(_images()), model(_images()))


PARTS = {
    "split": (lambda x: tf.split(x, 2, -1), (8, 8, 2)),
    "split_by_sizes": (lambda x: tf.split(value=x, num_or_size_splits=[1, 1, 6], axis=1), None),
    "split_to_the_end": (lambda x: tf.split(x, [3, -1], 3), None),
    "unstacked": (lambda x: tf.unstack(x, axis=-1), (8, 8)),
    "unstacked_rows": (lambda x: tf.unstack(x, num=8, axis=1), (8, 4)),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_gives_several_tensors_becomes_a_slice_for_each(name):
    operation, shape = PARTS[name]
    image = keras.Input((8, 8, 4), name="image")
    parts = operation(image)
    model = keras.Model(image, parts[::-1])
    rewritten = network_of_layers(model).model
    names = {layer.name: type(layer).__name__ for layer in rewritten.layers}
    operation_name = model.layers[-1].name
    expected = {f"{operation_name}_part_{index}": "Slice" for index in range(len(parts))}
    assert names == {"image": "InputLayer", **expected}
    for found, wanted in zip(rewritten(_images()), model(_images()), strict=True):
        assert shape is None or found.shape[1:] == shape
        np.testing.assert_array_equal(found, wanted)


def test_parts_that_nothing_reads_are_left_out():
    model = _model(lambda x, y: tf.split(x, 4, -1)[2])
    rewritten = network_of_layers(model).model
    assert [type(layer).__name__ for layer in rewritten.layers] == ["InputLayer", "Conv2D", "Slice"]
    assert rewritten.layers[-1].name == f"{model.layers[-1].name}_part_2"


ROWS = {
    "max_pool1d": lambda x: tf.nn.max_pool1d(x, 2, 2, "SAME"),
    "avg_pool1d": lambda x: tf.nn.avg_pool1d(x, [3], [2], "VALID"),
    "pool": lambda x: tf.nn.pool(x, (2,), "MAX", strides=[2], padding="SAME"),
    "mean": lambda x: tf.reduce_mean(x, axis=1),
    "largest": lambda x: tf.reduce_max(x, 1, keepdims=True),
    "channel_mean": lambda x: tf.reduce_mean(x, -1),
    "channel_max": lambda x: tf.reduce_max(x, 2, keepdims=True),
    "padded": lambda x: keras.backend.temporal_padding(x, (2, 1)),
    "positions": lambda x: x + np.linspace(-1.0, 1.0, 36, dtype=np.float32).reshape(9, 4),
}


@pytest.mark.parametrize("name", ROWS)
def test_operations_on_sequences_become_layers_too(name):
    row = keras.Input((9, 4), name="row")
    model = keras.Model(row, ROWS[name](row))
    rewritten = network_of_layers(model).model
    assert all(layer_kinds.unsupported_problem(layer) is None for layer in rewritten.layers)
    images = _images((9, 4))
    np.testing.assert_array_equal(rewritten(images), model(images))


LAYERS = {
    "separable": ((8, 8, 4), L.SeparableConv2D(6, 3, strides=2, depth_multiplier=2, name="it")),
    "separable_relu": ((8, 8, 4), L.SeparableConv2D(6, 3, activation="relu", name="it")),
    "separable_swish": ((8, 8, 4), L.SeparableConv2D(6, 3, activation="swish", name="it")),
    "separable_1d": ((9, 4), L.SeparableConv1D(6, 3, strides=2, depth_multiplier=2, name="it")),
    "separable_1d_causal": (
        (9, 4),
        L.SeparableConv1D(6, 3, padding="causal", dilation_rate=2, activation="relu", name="it"),
    ),
    "depthwise_1d_swish": ((9, 4), L.DepthwiseConv1D(3, activation="swish", name="it")),
    "transposed_1d_tanh": ((9, 4), L.Conv1DTranspose(6, 3, 2, activation="tanh", name="it")),
    "causal": ((9, 4), L.Conv1D(6, 3, padding="causal", dilation_rate=2, name="it")),
    "swish_inside": ((8, 8, 4), L.Conv2D(6, 3, activation="swish", name="it")),
    "tanh_inside": ((8,), L.Dense(6, activation="tanh", name="it")),
    "max_1d": ((9, 4), L.MaxPooling1D(2, padding="same", name="it")),
    "average_1d": ((9, 4), L.AveragePooling1D(3, 2, name="it")),
    "global_max_1d": ((9, 4), L.GlobalMaxPooling1D(name="it")),
    "global_average_1d": ((9, 4), L.GlobalAveragePooling1D(keepdims=True, name="it")),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_several_parts_are_taken_apart(name):
    shape, layer = LAYERS[name]
    layer = type(layer).from_config(layer.get_config())
    image = keras.Input(shape, name="image")
    model = keras.Model(image, layer(image))
    if layer.weights:
        draw = np.random.default_rng(1)
        layer.set_weights([draw.normal(size=value.shape) for value in layer.get_weights()])
    rewritten = network_of_layers(model).model
    assert "it" in {layer.name for layer in rewritten.layers}
    assert all(layer_kinds.unsupported_problem(layer) is None for layer in rewritten.layers)
    images = _images(shape)
    np.testing.assert_array_equal(rewritten(images), model(images))


def _with_weighted_sum(scale):
    """A sum as Keras writes it in InceptionResNetV2."""
    weighted_sum = keras.utils.get_registered_object("Custom>CustomScaleLayer")
    return _model(lambda x, y: weighted_sum(scale, name="it")([x, y]))


@pytest.mark.parametrize("scale", [0.17, 1.0, -2.0])
def test_a_weighted_sum_becomes_a_scaling_and_an_addition(scale, tmp_path):
    model = _with_weighted_sum(scale)
    rewritten = network_of_layers(model).model
    kinds = {layer.name: type(layer).__name__ for layer in rewritten.layers}
    assert kinds["it"] == "Add"
    assert kinds["it_scale"] == "Scaling"
    summands = rewritten.get_layer("it").input
    assert [tensor.node.layer.name for tensor in summands] == ["x", "it_scale"]
    images = _images()
    np.testing.assert_array_equal(rewritten(images), model(images))
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8))
    sat_tf.calibrate(quantized, np.abs(images) * 20.0)
    pixels = np.random.default_rng(0).integers(0, 256, images.shape).astype(np.uint8)
    _, proof = proved(quantized, tmp_path / "model.tflite", pixels)
    assert not proof.float_layers


class CustomScaleLayer(L.Layer):
    """A layer of the user, named like one of keras.applications."""

    scale = 2.0

    def call(self, inputs):
        return inputs[0] - inputs[1]


AS_IT_IS = {
    "layers": lambda: _model(lambda x, y: L.Add()([x, y])),
    "an operation that no file could hold": lambda: _model(lambda x, y: tf.math.top_k(x, 2)[0]),
    "a weighted sum that leaves one tensor out": lambda: _with_weighted_sum(0.0),
    "a layer of the user": lambda: _model(lambda x, y: CustomScaleLayer()([x, y])),
    "a softmax at the end": lambda: keras.Sequential(
        [L.Input((8,)), L.Dense(3, activation="softmax")]
    ),
}


@pytest.mark.parametrize("name", AS_IT_IS)
def test_a_model_without_operations_for_layers_is_returned_as_it_is(name):
    model = AS_IT_IS[name]()
    assert network_of_layers(model).model is model


BEHIND_A_SOFTMAX = {
    "dropout": [L.Dropout(0.1), L.Conv2D(2, 3)],
    "largest": [L.MaxPooling2D(), L.Conv2D(2, 3)],
    "flat": [L.Flatten(), L.Dense(2)],
    "several": [L.ZeroPadding2D(), L.Dropout(0.1), L.Flatten(), L.Dense(2)],
    "mean": [L.Dropout(0.1), L.AveragePooling2D()],
    "sum": [L.Activation("linear"), L.GlobalAveragePooling2D(), L.Reshape((1, 4))],
}


@pytest.mark.parametrize("name", BEHIND_A_SOFTMAX)
def test_a_softmax_that_is_read_behind_data_movement_gets_a_layer_of_its_own(name):
    softmax = L.Conv2D(4, 3, activation="softmax", name="gate")
    model = keras.Sequential([L.Input((8, 8, 3)), softmax, *BEHIND_A_SOFTMAX[name]])
    quantized = sat_tf.quantize_model(model, 8)
    assert quantized.get_layer("quant_gate_softmax").layer.activation.__name__ == "softmax"
    found = network_of_layers(model).model(_images((8, 8, 3)))
    np.testing.assert_array_equal(found, model(_images((8, 8, 3))))


def test_a_layer_that_is_called_twice_stays_one_layer():
    image = keras.Input((8,))
    dense = L.Dense(8, activation="tanh", name="shared")
    model = keras.Model(image, dense(dense(image)))
    rewritten = network_of_layers(model).model
    assert len(rewritten.get_layer("shared").inbound_nodes) == 2
    np.testing.assert_array_equal(rewritten(_images((8,))), model(_images((8,))))


def test_inputs_outputs_and_what_is_frozen_stay_as_they_are():
    first, second = keras.Input((8,), name="first"), keras.Input((8,), name="second")
    frozen = L.Dense(4, activation="sigmoid", name="frozen", trainable=False)
    outputs = {"sum": frozen(first) + frozen(second), "one": frozen(first)}
    model = keras.Model({"first": first, "second": second}, outputs)
    rewritten = network_of_layers(model).model
    assert not rewritten.get_layer("frozen").trainable
    assert rewritten.input_names == model.input_names
    images = {"first": _images((8,)), "second": _images((8,)) + 1.0}
    expected, found = model(images), rewritten(images)
    for name in outputs:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
    ("operation", "layer"),
    [
        (lambda x, y: tf.clip_by_value(x, -np.inf, 0.5), "Clip"),
        (lambda x, y: tf.clip_by_value(x, 0.0, np.inf), "ReLU"),
        (lambda x, y: tf.maximum(x, -np.inf), "Activation"),
        (lambda x, y: tf.clip_by_value(x, -np.inf, np.inf), "Activation"),
    ],
    ids=["above", "below", "one", "both"],
)
def test_infinite_ends_are_none(operation, layer):
    model = _model(operation)
    rewritten = network_of_layers(model).model
    assert layer in {type(each).__name__ for each in rewritten.layers}
    images = _images(model.input_shape[1:])
    np.testing.assert_array_equal(rewritten(images), model(images))
    assert all(np.isfinite(getattr(each, "high", 0.0) or 0.0) for each in rewritten.layers)


def test_a_model_that_was_rewritten_is_not_rewritten_again():
    image, shared = keras.Input((8, 2)), L.Conv1D(2, 3, padding="causal", name="conv")
    model = keras.Model(image, shared(shared(image)))
    rewritten = network_of_layers(model).model
    assert [layer.name for layer in rewritten.layers if "padding" in layer.name] == [
        "conv_padding",
        "conv_padding_2",
    ]
    assert network_of_layers(rewritten).model is rewritten
    np.testing.assert_array_equal(rewritten(_images((8, 2))), model(_images((8, 2))))
