"""Activations of 16 bits, of whole networks and of single layers: what files and Keras compute."""

import ast
import dataclasses
import re
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from benchmarks import detector
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.device.kit import write_kit
from sat_tf.exact.operations.graph import simulate, wide_tensors
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.tflite.tensors import dequantized
from tests.export.proofs import calibrated, deployed, proved
from tests.export.zoo import images_for

L = keras.layers
WIDE = sat_tf.BitPolicy(weight_bits=8, activation_bits=16)


def network() -> keras.Model:
    """Every operator with kernels for 16 bits that layers of images become."""
    keras.utils.set_random_seed(1)
    image = L.Input((12, 12, 3), name="image")
    tensor = L.Conv2D(8, 3, padding="same", use_bias=False, name="stem")(image)
    skip = L.ReLU(name="stem_relu")(L.BatchNormalization(name="stem_norm")(tensor))
    tensor = L.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise")(skip)
    tensor = L.Conv2D(8, 1, name="project")(tensor)
    tensor = L.Add(name="sum")([skip, tensor])
    tensor = L.Subtract(name="difference")([tensor, L.Conv2D(8, 1, name="other")(skip)])
    tensor = L.Multiply(name="product")([tensor, skip])
    tensor = L.MaxPooling2D(name="largest")(tensor)
    side = L.Conv2D(4, 3, padding="same", activation="relu6", name="side")(tensor)
    tensor = L.Concatenate(name="join")([tensor, side])
    tensor = L.Conv2DTranspose(6, 2, 2, name="up")(L.AveragePooling2D(name="mean")(tensor))
    tensor = L.ZeroPadding2D(1, name="pad")(L.UpSampling2D(2, name="twice")(tensor))
    tensor = L.Conv2D(6, 3, 2, activation="relu", name="down")(tensor)
    return keras.Model(image, L.Dense(4, name="head")(L.GlobalAveragePooling2D(name="all")(tensor)))


def _assert_exact(found: Certificate) -> None:
    """No code differs with XNNPACK, nor in any other runtime from its own rules."""
    assert found.codes_differing == 0
    for runtime in found.runtimes.values():
        assert runtime.own_differing == 0
        assert runtime.own_compared or runtime.is_simulated or runtime is found.xnnpack
    assert not found.unexplained


EVERYWHERE = ["builtin", "reference", "arm_xnnpack", "arm_builtin"]


@pytest.mark.thorough
def test_a_whole_network_of_16_bits_is_exact_in_every_runtime(path):
    quantized = calibrated(network(), WIDE)
    report, found = proved(quantized, path, file={"snap_biases": True}, runtimes=EVERYWHERE)
    _assert_exact(found)
    graph = read_graph(path.read_bytes(), "net")
    pixels = graph.operations[0].output
    assert set(graph.integer_tensors) - set(wide_tensors(graph)) == {pixels}
    assert any("which XNNPACK does not take" in warning for warning in report.warnings)
    assert found.runtimes["arm_xnnpack"].codes_differing == 0


# The tensors of 16 bits, by the layers that read such ones.
BY_LAYER = {
    "head": {"down_wide", "all", "head_codes"},
    "project": {"stem_relu_wide", "depthwise", "project", "sum_wide"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_LAYER)
def test_single_layers_of_16_bits_are_exact_between_others_of_8(name, path):
    policy = sat_tf.BitPolicy.mobile(8, overrides={name: {"activation_bits": 16}})
    _, found = proved(calibrated(network(), policy), path, runtimes=EVERYWHERE)
    assert found.codes_differing == 0
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())
    assert set(wide_tensors(read_graph(path.read_bytes(), "net"))) == BY_LAYER[name]


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [2, 4])
def test_few_bits_read_what_16_made(bits, path):
    policy = sat_tf.BitPolicy.mobile(bits, overrides={"project": {"activation_bits": 16}})
    _, found = proved(calibrated(network(), policy), path, runtimes=EVERYWHERE)
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())


@pytest.mark.thorough
def test_codes_of_8_bits_become_16_exactly():
    policy = sat_tf.BitPolicy.mobile(8, overrides={"project": {"activation_bits": 16}})
    graph = deployed(calibrated(network(), policy))
    tensors = simulate(graph, images_for(network(), 4))
    real = {name: dequantized(tensors[name], graph.codes(name)) for name in graph.integer_tensors}
    np.testing.assert_array_equal(real["stem_relu"], real["stem_relu_wide"])


def test_a_rectified_output_is_never_negative(path):
    image = L.Input((6, 6, 3), name="image")
    model = keras.Model(image, L.Conv2D(4, 3, activation="relu", name="conv")(image))
    quantized = calibrated(model, WIDE)
    sat_tf.export_tflite(quantized, path)
    graph = read_graph(path.read_bytes(), "net")
    tensors = simulate(graph, images_for(model, 8))
    assert np.min(tensors[graph.output]) == 0.0
    assert np.max(tensors[graph.output]) > 0.0


DATA = np.random.default_rng(5).normal(size=(61, 5)).astype(np.float32)


def _regression() -> keras.Model:
    keras.utils.set_random_seed(2)
    values = L.Input((5,), name="values")
    tensor = L.Dense(16, activation="relu", name="hidden")(values)
    return keras.Model(values, L.Dense(1, name="head")(tensor))


TYPES = [("int16", "INT16"), ("float32", "INT16"), ("int8", "INT8")]


@pytest.mark.essential
@pytest.mark.parametrize(("type_", "first"), TYPES)
def test_features_enter_as_codes_of_16_bits(type_, first, path):
    """Five values an image are no whole block, so that images are run one by one."""
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, input_type=type_)
    quantized = calibrated(_regression(), policy, DATA)
    _, found = proved(quantized, path, DATA, file={"snap_biases": True}, runtimes=EVERYWHERE)
    _assert_exact(found)
    graph = read_graph(path.read_bytes(), "net")
    assert f"INT{graph.codes(graph.operations[0].output).bits}" == first
    assert graph.images[0].type == type_
    assert found.is_portable == (type_ != "float32")
    assert found.trained_differing < 0.01


@pytest.mark.thorough
def test_16_bits_keep_what_8_lose(path):
    model, errors = _regression(), {}
    for bits in (8, 16):
        policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=bits, input_type="float32")
        quantized = calibrated(model, policy, DATA)
        of_weights = keras.models.clone_model(model)
        of_weights.set_weights(model.get_weights())
        for name in ("hidden", "head"):
            layer = quantized.get_layer(f"quant_{name}")
            of_weights.get_layer(name).kernel.assign(layer.effective_kernel())
        sat_tf.export_tflite(quantized, path)
        graph = read_graph(path.read_bytes(), "net")
        outputs = simulate(graph, DATA)[graph.output]
        errors[bits] = float(np.sqrt(np.mean(np.square(outputs - of_weights(DATA).numpy()))))
    assert errors[16] < errors[8] / 100.0


@pytest.mark.thorough
def test_a_proof_kit_holds_codes_of_16_bits(path):
    quantized = calibrated(network(), WIDE)
    sat_tf.export_tflite(quantized, path)
    graph = read_graph(path.read_bytes(), "net")
    kit = write_kit(path, images_for(quantized, 2), path.with_suffix(".zip"), codes=True)
    shapes = {name: graph.tensors[name].shape for name in kit.compared}
    expected = sum(np.prod(shapes[name]) * graph.codes(name).bits // 8 for name in shapes)
    with zipfile.ZipFile(kit.path) as archive:
        assert len(archive.read("codes/0")) == expected


FUNCTIONS = {
    **{name: L.Activation(name, name="bent") for name in ("sigmoid", "tanh", "swish", "softmax")},
    "leaky": L.LeakyReLU(0.1, name="bent"),
    "magnitude": lambda tensor: keras.layers.Activation(tf.abs, name="bent")(tensor),
}


def _with(function) -> keras.Model:
    keras.utils.set_random_seed(3)
    image = L.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(6, 3, padding="same", name="first")(image)
    tensor = L.Conv2D(6, 3, name="second")(function(tensor))
    return keras.Model(image, L.Conv2D(3, 3, name="last")(tensor))


# With a whole model of 16 bits; and with layers that alone read, or make, such codes.
WIDE_LAYERS = [(), ("first",), ("second",)]


@pytest.mark.thorough
@pytest.mark.parametrize("layers", WIDE_LAYERS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_16_bits_are_exact_in_every_runtime(name, layers, path):
    overrides = {layer: {"activation_bits": 16} for layer in layers}
    policy = sat_tf.BitPolicy.mobile(8, overrides=overrides) if layers else WIDE
    quantized = calibrated(_with(FUNCTIONS[name]), policy)
    report, found = proved(quantized, path, file={"snap_biases": True}, runtimes=EVERYWHERE)
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())
    if layers:
        return
    assert not found.unexplained
    # Multipliers of sigmoid and tanh are cut to 15 bits, and a leaky rectifier rounds twice.
    differing = {"sigmoid": 0.25, "tanh": 0.25, "leaky": 0.05}.get(name, 0.01)
    for one in found.trained:
        if one.name == "bent":
            assert one.alone_differing <= differing * one.alone_compared
    assert not [name for name in report.float_operators if not name.startswith("DEQUANTIZE")]


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["litert", "ethos-u85"])
def test_attention_of_16_bits_is_exact_in_every_runtime(target, path):
    keras.utils.set_random_seed(3)
    values = L.Input((10, 12), name="values")
    tensor = L.Dense(16, name="embed")(values)
    attention = L.MultiHeadAttention(2, 8, name="heads")(tensor, tensor, use_causal_mask=True)
    tensor = L.LayerNormalization(name="rows")(L.Add(name="sum")([tensor, attention]))
    model = keras.Model(values, L.Dense(3, name="head")(tensor))
    data = np.random.default_rng(0).normal(size=(32, 10, 12)).astype(np.float32)
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, input_type="int16", target=target)
    report, found = proved(calibrated(model, policy, data), path, data, runtimes=EVERYWHERE)
    _assert_exact(found)
    graph = read_graph(path.read_bytes(), "net")
    assert {"BATCH_MATMUL", "SOFTMAX"} <= {one.operators[0] for one in graph.operations}
    of_8_bits = {*graph.integer_tensors} - {*wide_tensors(graph)}
    # Ethos-U has RSQRT with 8 bits alone; CPUs normalize in float32 between codes of 16.
    assert of_8_bits == ({"rows_coarse", "rows_inverse_root"} if target != "litert" else set())
    assert report.cpu_fallback == []


@pytest.mark.thorough
@pytest.mark.parametrize("layer", [L.GRU, L.SimpleRNN])
def test_single_steps_of_16_bits_are_exact_in_every_runtime(layer, path):
    keras.utils.set_random_seed(3)
    values = L.Input((2, 5), name="values")
    model = keras.Model(values, L.Dense(3, name="head")(layer(6, name="steps")(values)))
    data = np.random.default_rng(0).normal(size=(32, 2, 5)).astype(np.float32)
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, input_type="int16")
    _, found = proved(calibrated(model, policy, data), path, data, runtimes=EVERYWHERE)
    _assert_exact(found)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["litert", "ethos-u55"])
def test_boxes_of_16_bits_leave_scores_at_8_in_one_file(target, path):
    model = detector.ssd_like(size=16, channels=(8, 8, 8))
    overrides = {"box_?": {"activation_bits": 16}}
    policy = sat_tf.BitPolicy.mobile(8, target=target, overrides=overrides)
    _, found = proved(calibrated(model, policy), path, runtimes=EVERYWHERE)
    _assert_exact(found)
    graph = read_graph(path.read_bytes(), "net")
    bits = {name: graph.codes(name).bits for name in graph.integer_tensors}
    assert {bits[name] for name in bits if name.startswith("class")} == {8}
    joined = [one.output for one in graph.operations if one.operators[0] == "CONCATENATION"]
    assert sorted(bits[name] for name in joined) == [8, 16]


@pytest.mark.thorough
def test_what_is_refused_is_exact_once_it_has_the_8_bits_of_the_message(path):
    model, overrides = _with(L.Activation("gelu", name="bent")), {}
    with pytest.raises(ValueError, match="no kernel computes in 16") as refused:
        sat_tf.quantize_model(model, WIDE)
    for text in re.findall(r"overrides=(\{.*?\}\})", str(refused.value)):
        overrides |= ast.literal_eval(text)
    assert overrides == {"first": {"stream_bits": 8}, "second": {"activation_bits": 8}} | {
        "bent": {"stream_bits": 8}
    }
    policy = dataclasses.replace(WIDE, overrides=overrides)
    _, found = proved(calibrated(model, policy), path, runtimes=EVERYWHERE)
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())
    assert wide_tensors(read_graph(path.read_bytes(), "net"))


@pytest.mark.thorough
def test_an_lstm_reads_8_bits_of_a_network_of_16(path):
    values = L.Input((3, 5), name="values")
    tensor = L.LSTM(4, name="lstm")(L.Conv1D(6, 1, name="read")(values))
    model = keras.Model(values, L.Dense(2, name="head")(tensor))
    data = np.random.default_rng(0).normal(size=(32, 3, 5)).astype(np.float32)
    policy = dataclasses.replace(WIDE, input_type="int16")
    fix = re.escape("BitPolicy(overrides={'read': {'stream_bits': 8}})")
    with pytest.raises(ValueError, match=f"read: received 16 bits for a tensor of lstm.*{fix}"):
        sat_tf.quantize_model(model, policy)
    policy = dataclasses.replace(policy, overrides={"read": {"stream_bits": 8}})
    _, found = proved(calibrated(model, policy, data), path, data, runtimes=EVERYWHERE)
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())


@pytest.mark.thorough
def test_an_npu_takes_every_operator(path):
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, target="ethos-u55")
    report = sat_tf.export_tflite(calibrated(network(), policy), path)
    assert report.cpu_fallback == []
    assert report.float_operators == []


@pytest.mark.thorough
def test_a_multiplier_is_one_that_kernels_hold(path):
    """The scale of each channel makes a multiplier of 15 bits, to the last bit of float32."""
    graph = deployed(calibrated(network(), WIDE))
    stem = next(operation for operation in graph.operations if operation.output == "stem_relu")
    source, output = graph.codes(stem.inputs[0]), graph.codes(stem.output)
    ratios = float(source.scale) * stem.scales.astype(np.float64) / float(output.scale)
    fractions, _ = np.frexp(ratios)
    np.testing.assert_allclose(fractions * 2**15, np.rint(fractions * 2**15), rtol=2.0**-23)


@pytest.mark.thorough
@pytest.mark.parametrize("type_", ["int8", "float32"])
def test_an_input_that_a_concatenation_reads_keeps_its_range(type_, path):
    keras.utils.set_random_seed(4)
    values = L.Input((5,), name="values")
    hidden = L.Dense(4, activation="relu", name="hidden")(values)
    other = L.Input((3,), name="other")
    joined = L.Concatenate(name="join")([hidden, other])
    model = keras.Model([values, other], L.Dense(2, name="head")(joined))
    policy = sat_tf.BitPolicy(weight_bits=8, activation_bits=16, input_type=type_)
    data = [DATA, 3.0 * DATA[:, :3]]
    quantized = calibrated(model, policy, data)
    _, found = proved(quantized, path, tuple(data), runtimes=EVERYWHERE)
    assert all(runtime.own_differing == 0 for runtime in found.runtimes.values())
    exact = model.predict(data, verbose=0)
    assert np.max(np.abs(quantized.predict(data, verbose=0) - exact)) < 0.1 * np.max(np.abs(exact))


@pytest.mark.parametrize("layer", [L.AveragePooling2D, L.UpSampling2D])
def test_a_mean_of_an_npu_reads_codes_of_8_bits_where_training_does(layer, path):
    """Also behind a layer of 16 bits: a mean of rounded values is not the rounded mean."""
    keras.utils.set_random_seed(1)
    image = L.Input((8, 8, 3), name="image")
    one = L.Conv2D(4, 3, activation="relu", name="wide")(image)
    tensor = L.Multiply(name="product")([one, L.Conv2D(4, 3, name="other")(image)])
    options = {"interpolation": "bilinear"} if layer is L.UpSampling2D else {"padding": "same"}
    tensor = layer(2, name="mean", **options)(tensor)
    model = keras.Model(image, L.Dense(2)(L.Flatten()(L.Conv2D(2, 1, name="reads")(tensor))))
    wide = {name: {"activation_bits": 16} for name in ("wide", "other")}
    policy = sat_tf.BitPolicy.mobile(8, target="ethos-u55", overrides=wide)
    _, found = proved(calibrated(model, policy), path, file={"snap_biases": True})
    _assert_exact(found)
