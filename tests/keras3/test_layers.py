"""Layers of sat-tf in Keras 3: operations between layers, and the layer with quantizers."""

import concurrent.futures
import itertools
import json
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
from sat_tf.keras3.quantized_layer import AtLeast, QuantizedLayer
from sat_tf.keras3.twin import twin_of
from sat_tf.qat import wrapper
from sat_tf.qat.configs import PlacedConfig
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from sat_tf.quantizers.values import (
    ACTIVATION,
    AROUND,
    BEFORE_ACTIVATION,
    BEHIND,
    INSTEAD,
    PLACES,
    WITHIN,
)

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
def test_every_row_of_the_table_is_tried_and_an_operation_stands_in_one():
    rows = registry.OPERATIONS
    symbols = [symbol for row in rows for symbol in row.calls]
    classes = [name for row in rows for name in (row.class_name, *row.synonyms)]
    assert len(symbols) == len(set(symbols))
    assert len(classes) == len(set(classes))
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


@pytest.mark.parametrize("name", [*OF_TWO, *OF_ONE])
def test_a_row_computes_the_same_in_both(name):
    # Truths, matrices that fit each other, or any numbers.
    first, second = (TRUTHS, ~TRUTHS) if name.startswith("logical") else (NUMBERS, NUMBERS[::-1])
    second = second.T if name == "matmul" else second
    numbers = (first, second.copy()) if name in OF_TWO else (first,)
    (row,) = [row for row in registry.OPERATIONS if row.name == name]
    expected = operator.attrgetter(row.calls[0])(tf)(*map(tf.constant, numbers))
    for symbol in row.calls:
        found = operations.Operation(symbol, [[{"tensor": i} for i in range(len(numbers))], {}], {})
        made = found(list(map(keras3.ops.convert_to_tensor, numbers)))
        np.testing.assert_allclose(keras3.ops.convert_to_numpy(made), expected, rtol=1e-5)


_NUMBERS, _FORMULAS = (0.3, [1.7, -2.0, 0.1, 9.0]), ("x + c", "x - c", "c - x", "x * c", "x / c")
IN_BOTH = [
    *(("Scaling", *row) for row in itertools.product(_FORMULAS, _NUMBERS)),
    ("Slice", [[1, -1, None], [None, None, 3], [0, 2, 1]], []),
    ("Slice", [[2, 3, None], [None, None, None], [-1, None, None]], [0, 2]),
]


@pytest.mark.parametrize(("kind", "first", "second"), IN_BOTH, ids=str)
def test_scalings_and_slices_are_those_of_tf_keras(kind, first, second):
    expected = getattr(operation_layers, kind)(first, second)(VALUES)
    layer = getattr(operations, kind)(first, second)
    again = type(layer).from_config(layer.get_config())
    np.testing.assert_array_equal(again(VALUES), expected)


OWN_LAYERS = [
    *(operation_layers.Clip(*ends) for ends in ((0.5, 2.0), (None, 2.0), (1.0, None))),
    *(operation_layers.DepthToSpace(2), operation_layers.SpaceToDepth(2)),
    *(operation_layers.ChannelMean(), operation_layers.ChannelMax()),
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
    program = [sys.executable, "-c", f"import {first}; import keras, sat_tf; print({names})"]
    run = subprocess.run(program, capture_output=True, text=True, env=others)
    modules = "sat_tf.keras3.operations sat_tf.keras3.quantized_layer\n"
    assert run.stdout == modules, run.stderr[-2000:]


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(0.0, 2.0, shape).astype(np.float32)


def numpy(tensor):
    return keras3.ops.convert_to_numpy(tensor)


def quantized_convolution(dtype=None, **options):
    keras3.utils.set_random_seed(1)
    layer = keras3.layers.Conv2D(4, 3, activation="relu", name="conv", dtype=dtype)
    quantizers = DorefaQuantizer(num_bits=2), PactQuantizer(num_bits=2, initial_clipping_level=3.0)
    return QuantizedLayer(layer, *quantizers, place=ACTIVATION, **options)


def test_a_convolution_computes_with_its_effective_kernel_and_keeps_its_own():
    layer, x = quantized_convolution(), images(2, 6, 6, 3)
    found = numpy(layer(x))
    assert len(np.unique(numpy(layer.effective_kernel()))) == 4
    assert len(np.unique(numpy(layer.layer.kernel))) > 50
    by_hand = keras3.ops.conv(x, layer.effective_kernel()) + layer.layer.bias
    codes = np.floor(np.clip(numpy(by_hand), 0.0, 3.0) + 0.5)
    np.testing.assert_array_equal(found, codes)


def test_a_quantizer_takes_the_place_of_a_rectifier_and_its_level_has_a_smallest_value():
    quantizer, x = PactQuantizer(num_bits=8, initial_clipping_level=4.0), images(2, 5)
    instead = QuantizedLayer(keras3.layers.ReLU(name="relu"), None, quantizer, place=INSTEAD)
    np.testing.assert_allclose(numpy(instead(x)), np.clip(x, 0, 4), atol=4 / 255)
    np.testing.assert_allclose(numpy(AtLeast(1e-3)(keras3.ops.array([-1.0, 2.0]))), [1e-3, 2.0])


# For each place, a layer of the package that is given and the quantizers of its kernel and output.
PLACED = {
    BEHIND: lambda of: (of.Dense(4), DorefaQuantizer(num_bits=3), StreamQuantizer(num_bits=4)),
    ACTIVATION: lambda of: (of.Dense(4, activation="relu"), None, PactQuantizer(num_bits=4)),
    BEFORE_ACTIVATION: lambda of: (of.Dense(4, activation="softmax"), None, RangeObserver()),
    INSTEAD: lambda of: (of.ReLU(), None, PactQuantizer(num_bits=4)),
    AROUND: lambda of: (of.AveragePooling2D(2), None, StreamQuantizer(num_bits=4)),
}


def test_all_places_but_that_within_a_recurrence_are_placed_here():
    # That of an LSTM is proved in both Kerases with its file.
    assert {*PLACED, WITHIN} == {*PLACES}


@pytest.mark.parametrize("place", PLACED)
def test_a_quantizer_in_each_place_does_the_same_in_both_kerases(place):
    x = images(2, 4, 4, 3)
    layer, *quantizers = PLACED[place](keras3.layers)
    three = QuantizedLayer(layer, *quantizers, place=place)
    layer, *quantizers = PLACED[place](keras.layers)
    config = PlacedConfig(weights=quantizers[0], output=quantizers[1], around=place == AROUND)
    two = wrapper.QuantizedLayer(layer, config)
    assert two.place == place
    two(x)
    three(x)
    three.layer.set_weights(two.layer.get_weights())
    for training in (True, False):
        outputs = two(x, training=training).numpy()
        np.testing.assert_array_equal(numpy(three(x, training=training)), outputs)
        assert np.any(outputs)
    for name, variable in two.output_variables.items():
        np.testing.assert_array_equal(numpy(three.output_variables[name]), variable)


def test_what_reads_and_makes_codes_of_one_grid_passes_the_proof_of_its_twin():
    first = keras3.layers.Conv2D(4, 3, activation="gelu", padding="same")
    pool, last = keras3.layers.AveragePooling2D(2, name="pool"), keras3.layers.Conv2D(2, 1)
    model = keras3.Sequential([keras3.Input((8, 8, 3)), first, pool, last])
    policy = sat_tf.BitPolicy.mobile(8, target="ethos-u55", input_max=255.0)
    model = sat_tf.quantize_model(model, policy)
    assert model.get_layer("quant_pool").place == AROUND


def test_an_observer_stands_before_a_softmax_and_one_of_a_frozen_layer_observes_nothing():
    classifier, x = keras3.layers.Dense(3, activation="softmax", name="classifier"), images(2, 5)
    before = QuantizedLayer(classifier, None, RangeObserver(), place=BEFORE_ACTIVATION)
    np.testing.assert_allclose(np.sum(numpy(before(x, training=True)), axis=-1), 1.0, rtol=1e-5)
    logits = x @ numpy(classifier.kernel) + numpy(classifier.bias)
    np.testing.assert_allclose(before.output_variables["highest"], logits.max(), rtol=1e-5)
    frozen = QuantizedLayer(
        keras3.layers.Identity(name="x"), None, RangeObserver(), trainable=False
    )
    frozen(x, training=True)
    assert float(numpy(frozen.output_variables["observations"])) == 0.0


def test_its_configuration_survives_json_and_its_variables_a_file_but_of_no_later_version(tmp_path):
    layer = quantized_convolution(annotation={"weight_bits": 2})
    model = keras3.Sequential([keras3.Input((6, 6, 3)), layer])
    layer.output_variables["clipping_level"].assign(2.5)
    again = QuantizedLayer.from_config(json.loads(json.dumps(layer.get_config())))
    one, other = again.get_config(), layer.get_config()
    for config in (one, other):  # only one has been built
        config["layer"].pop("build_config", None)
        config["layer"]["config"].pop("build_config", None)
    assert one == other
    model.save(tmp_path / "model.keras")
    loaded = keras3.saving.load_model(tmp_path / "model.keras")
    x = images(2, 6, 6, 3)
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    assert float(loaded.layers[-1].output_variables["clipping_level"]) == 2.5
    config = {**layer.get_config(), "saved_by": {"sat_tf": "9.9.9", "format": 99}}
    with pytest.raises(ValueError, match=r"sat-tf 9\.9\.9 in format 99.*install sat-tf 9\.9\.9"):
        QuantizedLayer.from_config(config)


def test_quantizers_compute_in_float32_whatever_the_precision():
    layer = quantized_convolution("mixed_bfloat16")
    image = keras3.Input((6, 6, 3), dtype="float32")
    outputs = keras3.Model(image, layer(image))(images(2, 6, 6, 3))
    kernel = layer.effective_kernel()
    types = [keras3.backend.standardize_dtype(tensor.dtype) for tensor in (outputs, kernel)]
    assert types == ["bfloat16", "float32"]
    assert len(np.unique(numpy(kernel))) == 4


def test_threads_do_not_see_the_stand_ins_of_each_other():
    layer = quantized_convolution()
    x = images(2, 6, 6, 3)
    expected = numpy(layer(x))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: numpy(layer(x)), range(8)))
    np.testing.assert_array_equal(found, np.stack([expected] * 8))
    assert layer.layer.activation is keras3.activations.relu
