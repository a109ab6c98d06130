import operator
import os
import pathlib
import subprocess
import sys

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph import operation_layers
from sat_tf.graph import operations as registry
from sat_tf.graph.layers.activations import absolute, gelu_by_tanh
from sat_tf.graph.operations import arithmetic, pooling
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.keras3 import operations
from sat_tf.keras3.placed import placed
from sat_tf.keras3.twin import twin_of

VALUES = np.random.default_rng(4).uniform(0.1, 3.0, (3, 8, 8, 4)).astype(np.float32)

_, *OPERATIONS = pathlib.Path(__file__).with_name("operations.txt").read_text("utf-8").splitlines()


def _of_images(operation):
    image = keras.Input((8, 8, 4), name="image")
    return keras.Model(image, eval(operation, globals(), {"x": image}))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_are_those_of_tensorflow_bit_for_bit(operation):
    model = network_of_layers(_of_images(operation)).model
    made = placed(model, {})[0]
    again = keras3.Model.from_config(made.get_config())
    expected, received = model(VALUES), again(VALUES)
    assert received.dtype == expected.dtype
    np.testing.assert_array_equal(received, expected)


@pytest.mark.essential
def test_every_row_of_the_table_is_tried():
    tried = set()
    for operation in OPERATIONS:
        for layer in _of_images(operation).layers:
            function = getattr(layer, "function", "__operators__.getitem")
            tried.add(getattr(layer, "symbol", function))
    # TensorFlow's other names for the same: which of them a model holds depends on its release.
    aliases = {"math.divide", "squeeze", "transpose", "abs"}
    assert set(operations.COMPUTED_BY) - tried <= aliases


OF_ONE = [row.name for row in (*arithmetic.OF_ONE, *pooling.REDUCTIONS)]
OF_TWO = [row.name for row in arithmetic.OF_TWO]
NUMBERS = np.linspace(0.25, 2.0, 8, dtype=np.float32).reshape(2, 4)
TRUTHS = NUMBERS > 1.0


def _numbers(name):
    """Tensors for an operation: of truths, matrices that fit each other, or any."""
    first, second = (TRUTHS, ~TRUTHS) if name.startswith("logical") else (NUMBERS, NUMBERS[::-1])
    if name == "matmul":
        second = second.T
    return (first, second.copy()) if name in OF_TWO else (first,)


@pytest.mark.parametrize("name", [*OF_TWO, *OF_ONE])
def test_a_row_computes_the_same_in_both(name):
    numbers = _numbers(name)
    (row,) = [row for row in registry.OPERATIONS if row.name == name]
    expected = operator.attrgetter(row.calls[0])(tf)(*map(tf.constant, numbers))
    for symbol in row.calls:
        found = operations.Operation(symbol, [[{"tensor": i} for i in range(len(numbers))], {}], {})
        made = found(list(map(keras3.ops.convert_to_tensor, numbers)))
        np.testing.assert_allclose(keras3.ops.convert_to_numpy(made), expected, rtol=1e-5)


def test_an_operation_stands_in_one_row():
    rows = registry.OPERATIONS
    symbols = [symbol for row in rows for symbol in row.calls]
    classes = [name for row in rows for name in (row.class_name, *row.synonyms)]
    assert len(symbols) == len(set(symbols))
    assert len(classes) == len(set(classes))


@pytest.mark.parametrize("formula", ["x + c", "x - c", "c - x", "x * c", "x / c"])
def test_scalings_are_those_of_tf_keras(formula):
    for number in (0.3, [1.7, -2.0, 0.1, 9.0]):
        expected = operation_layers.Scaling(formula, number)(VALUES)
        layer = operations.Scaling(formula, number)
        again = operations.Scaling.from_config(layer.get_config())
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
    layer = operations.Slice(slices, dropped)
    again = operations.Slice.from_config(layer.get_config())
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
    image = keras.Input(VALUES.shape[1:], name="image")
    made = placed(keras.Model(image, layer(image)), {})[0]
    np.testing.assert_array_equal(made(VALUES), layer(VALUES))
    copy = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(copy(VALUES), layer(VALUES))


def test_layers_that_sat_tf_has_in_both_come_back_from_a_file_with_their_twins(tmp_path):
    image = keras3.Input((6, 6, 3), name="image")
    x = keras3.layers.Conv2D(4, 3, activation="relu")(image) * 1.5
    x = keras3.ops.stop_gradient(x) + x
    x = keras3.layers.Dense(2)(keras3.layers.Flatten()(x[:, 1:, ::2]))
    policy = sat_tf.BitPolicy.mobile(4, input_max=1.0, initial_clipping_level=4.0)
    sat_tf.quantize_model(keras3.Model(image, x), policy).save(tmp_path / "model.keras")
    model = keras3.saving.load_model(tmp_path / "model.keras")
    inner = {type(layer.layer) for layer in model.layers if hasattr(layer, "layer")}
    assert {operations.Scaling, operations.Slice, operations.StopGradient} <= inner
    images = np.random.default_rng(0).uniform(0.0, 1.0, (4, 6, 6, 3)).astype(np.float32)
    np.testing.assert_allclose(twin_of(model)(images), model(images), rtol=1e-5, atol=1e-5)


def test_functions_of_tf_keras_that_keras_3_has_not_are_those_of_tf_keras():
    values = tf.constant(VALUES * 3.0 - 4.0)
    np.testing.assert_array_equal(
        operations.hard_sigmoid_of_keras2(values), keras.activations.hard_sigmoid(values)
    )
    np.testing.assert_array_equal(operations.gelu_by_tanh(values), gelu_by_tanh(values))
    np.testing.assert_array_equal(operations.absolute(values), absolute(values))


def test_a_file_of_an_earlier_version_gives_what_it_gave(tmp_path):
    golden = pathlib.Path(__file__).parent / "golden"
    model = keras3.saving.load_model(golden / "format4.keras", compile=False)
    kinds = {type(getattr(layer, "layer", layer)) for layer in model.layers}
    own = {kind.__name__ for kind in kinds if kind.__module__ == operations.__name__}
    assert own == {"OfSeveralTensors", "Operation", "Scaling", "Slice"}
    with np.load(golden / "format4.npz") as saved:
        images, expected = saved["images"], saved["expected"]
        for index, value in enumerate(model.get_weights()):
            np.testing.assert_array_equal(value, saved[f"weight{index}"])
    # Processors add in their own order, which is a few units in the last place.
    np.testing.assert_allclose(np.asarray(model(images)), expected, rtol=1e-5, atol=1e-5)
    sat_tf.export_tflite(model, tmp_path / "model.tflite")


@pytest.mark.thorough  # a process for each
@pytest.mark.parametrize("first", ["sat_tf", "sat_tf, tf_keras", "tensorflow, sat_tf", "keras"])
def test_keras_3_knows_its_layers_in_any_order_of_imports(first):
    find = "keras.saving.get_registered_object('sat_tf>{}').__module__"
    names = ", ".join(find.format(name) for name in ("Slice", "QuantizedLayer"))
    # TFMOT, loaded here, asks for Keras 2 in all processes started from this one.
    others = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    run = subprocess.run(
        [sys.executable, "-c", f"import {first}; import keras, sat_tf; print({names})"],
        capture_output=True,
        text=True,
        env=others,
    )
    modules = "sat_tf.keras3.operations sat_tf.keras3.quantized_layer\n"
    assert run.stdout == modules, run.stderr[-2000:]
