import pathlib

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

# Operations that users write between layers, and those that they become: see the file.
OPERATIONS = dict(
    line.split(" -> ")
    for line in pathlib.Path(__file__).with_name("operations.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
)
LEFT = [operation for operation, layers in OPERATIONS.items() if layers == "nothing"]


def _model(operation):
    image = keras.Input((8, 8, 4), name="image")
    x = L.Conv2D(4, 3, padding="same", name="x")(image)
    y = L.Conv2D(4, 3, padding="same", name="y")(image)
    return keras.Model(image, operation(x, y), name="written")


def _written(operation):
    return _model(lambda x, y: eval(operation, globals(), {"x": x, "y": y}))


def _images(shape=(8, 8, 4), count=3):
    draw = np.random.default_rng(3)
    return draw.normal(0.0, 3.0, (count, *shape)).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("operation", [each for each in OPERATIONS if each not in LEFT])
def test_every_operation_becomes_layers_with_the_same_outputs_and_names(operation):
    model = _written(operation)
    rewritten = network_of_layers(model).model
    new = [layer for layer in rewritten.layers if layer.name not in ("image", "x", "y")]
    assert [type(layer).__name__ for layer in new] == OPERATIONS[operation].split()
    known = [layer.name for layer in model.layers]
    assert all(layer.name.startswith(tuple(known)) for layer in new)
    assert new[-1].name == known[-1]
    assert all(layer_kinds.unsupported_problem(layer) is None for layer in new)
    images = _images()
    np.testing.assert_array_equal(rewritten(images), model(images))


@pytest.mark.parametrize("operation", LEFT)
def test_operations_without_a_layer_are_left_to_tensorflow(operation, tmp_path):
    model = _written(operation)
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
    names = [layer.name for layer in rewritten.layers if "padding" in layer.name]
    assert names == ["conv_padding", "conv_padding_2"]
    assert network_of_layers(rewritten).model is rewritten
    np.testing.assert_array_equal(rewritten(_images((8, 2))), model(_images((8, 2))))
