import pathlib
import re

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


INPUTS = ("image", "x", "y", "rows", "row")


def _model(operation):
    image = keras.Input((8, 8, 4), name="image")
    x = L.Conv2D(4, 3, padding="same", name="x")(image)
    y = L.Conv2D(4, 3, padding="same", name="y")(image)
    return keras.Model(image, operation(x, y), name="written")


def _written(operation):
    def of_tensors(x, y):
        row = L.Cropping1D((0, 1), name="row")(L.Reshape((64, 4), name="rows")(x))
        return eval(operation, globals(), {"x": x, "y": y, "row": row})

    return _model(of_tensors)


def _images(shape=(8, 8, 4), count=3):
    draw = np.random.default_rng(3)
    return draw.normal(0.0, 3.0, (count, *shape)).astype(np.float32)


# Layers of several parts, sequences and infinite ends are quick; the others are thorough.
QUICK = re.compile(r"L\.|.*(\brow\b|np\.inf)")


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(each, marks=[] if QUICK.match(each) else pytest.mark.thorough)
        for each in OPERATIONS
        if each not in LEFT
    ],
)
def test_every_operation_becomes_layers_with_the_same_outputs_and_names(operation):
    model = _written(operation)
    draw = np.random.default_rng(1)
    model.set_weights([draw.normal(size=value.shape) for value in model.get_weights()])
    rewritten = network_of_layers(model).model
    new = [layer for layer in rewritten.layers if layer.name not in INPUTS]
    assert [type(layer).__name__ for layer in new] == OPERATIONS[operation].split()
    known = [layer.name for layer in model.layers]
    assert all(layer.name.startswith(tuple(known)) for layer in new)
    assert new[-1].name.removesuffix("_swish").removesuffix("_tanh") == known[-1]
    assert all(layer_kinds.unsupported_problem(layer) is None for layer in new)
    assert all(np.isfinite(getattr(layer, "high", None) or 0.0) for layer in new)
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


def test_a_layer_that_is_called_twice_stays_one_and_a_model_is_rewritten_once():
    image = keras.Input((8,))
    dense = L.Dense(8, activation="tanh", name="shared")
    model = keras.Model(image, dense(dense(image)))
    rewritten = network_of_layers(model).model
    assert len(rewritten.get_layer("shared").inbound_nodes) == 2
    np.testing.assert_array_equal(rewritten(_images((8,))), model(_images((8,))))
    image, shared = keras.Input((8, 2)), L.Conv1D(2, 3, padding="causal", name="conv")
    model = keras.Model(image, shared(shared(image)))
    rewritten = network_of_layers(model).model
    names = [layer.name for layer in rewritten.layers if "padding" in layer.name]
    assert names == ["conv_padding", "conv_padding_2"]
    assert network_of_layers(rewritten).model is rewritten
    np.testing.assert_array_equal(rewritten(_images((8, 2))), model(_images((8, 2))))


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


FUNCTIONS = [
    *map(L.Activation, ("sigmoid", "hard_sigmoid", "tanh", "softsign", "softplus", "exponential")),
    *map(L.Activation, ("elu", "selu", "swish", tf.nn.silu, "gelu", gelu_by_tanh, "mish")),
    *(Clip(*ends) for ends in ((-1.0, 1.0), (-2.0, 3.0), (0.25, 1.0), (0.5, 4.0), (-0.5, None))),
    *map(L.Activation, (celu, hard_silu, hard_tanh, relu6_sigmoid, squareplus, absolute)),
    *(L.Activation(tf.nn.leaky_relu), L.LeakyReLU(0.3), L.LeakyReLU(0.0), L.ELU(0.7)),
    *(L.ReLU(negative_slope=0.1), L.ReLU(threshold=1.0)),
]


@pytest.mark.parametrize("layer", FUNCTIONS, ids=lambda layer: layer.name)
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


def test_a_gate_and_a_mean_keep_the_range_of_a_function_that_has_a_lowest_value():
    for function, lowest in (("swish", -0.2785), ("gelu", -0.1701)):
        for quantizer in _quantizers_of_a_gated(function).values():
            assert isinstance(quantizer, OffsetQuantizer)
            assert quantizer.lowest == lowest
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


def _of_values(function) -> keras.Model:
    image = keras.Input(VALUES.shape[1:])
    return keras.Model(image, function(image))


def _functions(model: keras.Model) -> list[str]:
    return [activation_name(one) for one in model.layers if isinstance(one, L.Activation)]


def _assert_same(made: keras.Model, model: keras.Model) -> None:
    np.testing.assert_allclose(made(VALUES), model(VALUES), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", HARD_SWISHES)
def test_a_hard_swish_in_operations_is_one_function_for_an_npu_alone(name):
    model = _of_values(HARD_SWISHES[name])
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
    made = network_of_layers(_of_values(OTHERS[name]), processor=NPU).model
    assert _functions(made) == []


def test_a_hard_swish_keeps_what_is_computed_of_it_and_of_its_gate():
    def function(x):
        gate = tf.nn.relu6(x + 3.0) / 6.0
        return L.Concatenate()([2.0 * (x * gate), gate])

    model = _of_values(function)
    made = network_of_layers(model, processor=NPU).model
    assert _functions(made) == ["hard_silu"]
    _assert_same(made, model)


@pytest.mark.parametrize("function", ["hard_sigmoid", relu6_sigmoid])
def test_a_hard_sigmoid_is_a_rectifier_of_a_line(function):
    model = _of_values(L.Activation(function, name="gate"))
    made = network_of_layers(model, processor=NPU).model
    names = [one.name for one in made.layers[1:]]
    assert names == ["gate_slope", "gate_offset", "gate"]
    assert made.layers[-1].max_value == 1.0
    _assert_same(made, model)
    assert network_of_layers(made, processor=NPU).model is made
