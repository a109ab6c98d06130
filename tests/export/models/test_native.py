"""Models whose functions an NPU computes: trained as deployed, written, proved, compiled."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.litert.runtime import RUNTIMES, Runtime
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.native import NATIVE
from sat_tf.exact.operations.pools import AveragePool
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.exact.targets.table import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.export import file_content, file_graph
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.layers.activations import gelu_by_tanh, hard_silu
from sat_tf.graph.network import Network
from sat_tf.planning.plan import Fate
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.pact import (
    FixedGridQuantizer,
    OffsetQuantizer,
    StreamQuantizer,
    UnitQuantizer,
)
from tests.export.proofs import calibrated, proved

L = keras.layers
POLICY = BitPolicy.mobile(4, target="ethos-u55")
SLOPES = keras.initializers.RandomUniform(0.05, 0.3, seed=1)
# The function of a tensor, and the operators that stand for it in a file.
FUNCTIONS = {
    "sigmoid": (L.Activation("sigmoid"), {"LOGISTIC"}),
    "tanh": (L.Activation("tanh"), {"TANH"}),
    "swish": (L.Activation("swish"), {"LOGISTIC", "MUL"}),
    "silu": (tf.nn.silu, {"LOGISTIC", "MUL"}),
    "hard_silu": (L.Activation(hard_silu), {"HARD_SWISH"}),
    "hard_silu in layers": (lambda x: x * tf.nn.relu6(x + 3.0) / 6.0, {"HARD_SWISH"}),
    "hard_sigmoid": (L.Activation("hard_sigmoid"), set()),
    "magnitude": (tf.abs, {"ABS"}),
    "elu": (L.ELU(), {"ELU"}),
    "leaky": (L.LeakyReLU(0.1), {"LEAKY_RELU"}),
    "rectifier with a slope": (L.ReLU(negative_slope=0.25), {"LEAKY_RELU"}),
    "gelu": (L.Activation("gelu"), {"GELU"}),
    "gelu by tanh": (L.Activation(gelu_by_tanh), {"GELU"}),
    "prelu": (L.PReLU(shared_axes=[1, 2], alpha_initializer=SLOPES), {"PRELU"}),
}
OF_FUNCTIONS = {*NATIVE, "PRELU", "MUL", "GATHER"}
GRID = FixedGridQuantizer(highest=255.0 / 256.0)  # of LOGISTIC and SOFTMAX


def _images(count: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 12, 12, 3)).astype(np.uint8)


def _anew(function):
    is_layer = isinstance(function, L.Layer)
    return type(function).from_config(function.get_config()) if is_layer else function


def _model(function) -> keras.Model:
    """Two convolutions and a function behind the first: one of its readers is linear."""
    image = keras.Input((12, 12, 3))
    x = L.BatchNormalization()(L.Conv2D(8, 3, name="first")(image))
    x = L.Conv2D(8, 3, strides=2, name="second")(_anew(function)(x))
    x = L.ReLU()(L.BatchNormalization()(x))
    return keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D()(x)))


def _trained(model: keras.Model, policy: BitPolicy = POLICY) -> keras.Model:
    """The quantized model after three steps."""
    images = _images().astype(np.float32)
    quantized = calibrated(model, policy, images)
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labels = np.random.default_rng(1).integers(0, 4, len(images))
    losses = quantized.fit(images, labels, batch_size=12, verbose=0).history["loss"]
    assert np.all(np.isfinite(losses))
    return quantized


def _contents(path):
    return read_contents(path.read_bytes(), path.name)


def _types(path) -> list[str]:
    return [made.type for made in _contents(path).outputs]


def _operators(path) -> list[str]:
    return [operator.name for operator in _contents(path).operators]


def _on_the_npu(path) -> list[str]:
    """The operators of a file of which nothing is left to the CPU."""
    assert TARGETS["ethos-u55"].cpu_fallback(_contents(path)) == []
    assert compile_file(path, "ethos-u55-128").on_cpu == ()
    return _operators(path)


def _assert_proved_and_compiled(quantized: keras.Model, path) -> set[str]:
    """Proves and compiles the file; returns its operators that compute functions."""
    _, found = proved(quantized, path, _images(8), {"pack": "none", "output_type": "int8"})
    assert found.codes_compared > 0
    assert found.is_portable
    for name in ("xnnpack", "arm_xnnpack", "arm_xnnpack_unfused"):
        assert sum(one.codes_differing for one in found.runtimes[name].tensors) == 0
    return {*_on_the_npu(path)} & OF_FUNCTIONS


@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_proved_and_runs_on_the_npu(name, path):
    function, operators = FUNCTIONS[name]
    quantized = _trained(_model(function))
    assert _assert_proved_and_compiled(quantized, path) == operators


@pytest.mark.thorough
def test_squeeze_and_excitation_runs_on_the_npu(path):
    image = keras.Input((12, 12, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3)(image)))
    gate = L.Conv2D(4, 1, activation="swish")(L.GlobalAveragePooling2D(keepdims=True)(x))
    gate = L.Conv2D(8, 1, activation="sigmoid")(gate)
    x = L.Conv2D(8, 3)(L.Multiply()([x, gate]))
    quantized = _trained(keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D()(x))))
    assert _assert_proved_and_compiled(quantized, path) == {"LOGISTIC", "MUL"}


def _placed(model: keras.Model, policy: BitPolicy = POLICY) -> dict[str, PlacedConfig]:
    quantized = sat_tf.quantize_model(model, policy)
    configs = {layer.name: getattr(layer, "quantize_config", None) for layer in quantized.layers}
    return {name.removeprefix("quant_"): config for name, config in configs.items() if config}


def test_a_sigmoid_is_trained_on_the_grid_of_its_operator():
    configs = _placed(_model(L.Activation("sigmoid", name="gate")))
    assert configs["gate"].output == GRID
    assert configs["gate"].target == "ethos-u55"
    # Its reader takes the 8 bits as they are.
    assert not any(config.inserted and "gate" in name for name, config in configs.items())


def _swish() -> keras.Model:
    return _model(L.Activation("swish", name="act"))


def test_a_swish_is_a_product_with_a_sigmoid_whose_range_is_that_of_a_swish():
    configs = _placed(_swish())
    assert configs["act_sigmoid"].output == GRID
    product, older = configs["act"].output, _placed(_swish(), BitPolicy.mobile(8))["act"].output
    assert isinstance(product, OffsetQuantizer)
    assert (product.num_bits, product.lowest) == (8, -0.2785)
    # Its level starts where that of a swish does.
    assert product.initial_clipping_level == pytest.approx(older.initial_clipping_level, rel=0.02)


@pytest.mark.parametrize(
    ("function", "kind", "bits"),
    [
        (L.Activation(hard_silu, name="act"), OffsetQuantizer, 4),
        (L.LeakyReLU(0.1, name="act"), OffsetQuantizer, 8),  # what is below its range saturates
        (L.PReLU(shared_axes=[1, 2], name="act"), StreamQuantizer, 8),
    ],
)
def test_what_int8_alone_clips_has_8_bits(function, kind, bits):
    quantizer = _placed(_model(function))["act"].output
    assert isinstance(quantizer, kind)
    assert quantizer.num_bits == bits


@pytest.mark.parametrize("target", [None, "litert", "micro"])
def test_models_for_cpus_stay_as_they_are(target):
    policy = BitPolicy.mobile(4, target=target)
    configs = _placed(_model(L.Activation("swish", name="act")), policy)
    assert "act_sigmoid" not in configs
    assert configs["act"].output.num_bits == 4
    assert all("native" not in config.get_config() for config in configs.values())


def test_explain_plans_these_operators():
    plan = sat_tf.explain(_swish(), POLICY)
    assert plan["act_sigmoid"].operators == ("LOGISTIC",)
    assert plan["act"].operators == ("MUL",)


def test_requantizing_for_an_npu_gives_a_swish_its_operators(tmp_path):
    images = _images(8).astype(np.float32)
    moved = sat_tf.requantize(calibrated(_swish(), 4, images), POLICY)
    sat_tf.calibrate(moved, images)
    operators = [op for one in deployed_graph(Network(moved)).operations for op in one.operators]
    assert {*operators} & OF_FUNCTIONS == {"LOGISTIC", "MUL"}


def test_a_model_that_is_saved_keeps_its_operators(tmp_path):
    model = _model(L.Activation("sigmoid", name="gate"))
    quantized = calibrated(model, POLICY, _images(8).astype(np.float32))
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    graphs = [deployed_graph(Network(model), pack="none") for model in (quantized, loaded)]
    names = [[name for op in graph.operations for name in op.operators] for graph in graphs]
    assert names[0] == names[1]
    assert "LOGISTIC" in names[0]
    assert output_quantizer(loaded.get_layer("quant_gate")) == GRID
    assert sat_tf.export_tflite(loaded, tmp_path / "m.tflite").target == POLICY.target
    fewer = sat_tf.requantize(loaded, BitPolicy.mobile(3))
    assert sat_tf.export_tflite(fewer, tmp_path / "fewer.tflite").target == POLICY.target


def test_a_model_of_keras_3_has_the_same_placement(tmp_path):
    keras3 = pytest.importorskip("keras")
    image = keras3.Input((12, 12, 3))
    x = keras3.layers.Conv2D(8, 3, activation="silu", name="first")(image)
    x = keras3.layers.Conv2D(8, 3, activation="hard_silu", name="second")(x)
    x = keras3.layers.Conv2D(8, 3)(keras3.ops.abs(x))
    x = x * keras3.ops.relu6(x + 3.0) / 6.0
    x = keras3.layers.GlobalAveragePooling2D()(x)
    model = keras3.Model(image, keras3.layers.Dense(4)(x))
    quantized = calibrated(model, POLICY, _images(8).astype(np.float32))
    path, again = tmp_path / "model.tflite", tmp_path / "again.tflite"
    proved(quantized, path, _images(4), {"pack": "none"})
    assert {*_operators(path)} & OF_FUNCTIONS == {"LOGISTIC", "MUL", "HARD_SWISH", "ABS"}
    assert _operators(path).count("HARD_SWISH") == 2
    quantized.save(tmp_path / "model.keras")
    loaded = keras3.models.load_model(tmp_path / "model.keras")
    assert sat_tf.export_tflite(loaded, again).target == POLICY.target
    assert _operators(again) == _operators(path)


@pytest.mark.thorough
def test_a_prelu_that_is_called_twice_runs_on_the_npu(path):
    image = keras.Input((12, 12, 3))
    act = L.PReLU(shared_axes=[1, 2], alpha_initializer=SLOPES, name="act")
    x = act(L.BatchNormalization()(L.Conv2D(6, 3, padding="same")(image)))
    x = act(L.BatchNormalization()(L.Conv2D(6, 3, padding="same")(x)))
    quantized = _trained(keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D()(x))))
    assert _assert_proved_and_compiled(quantized, path) == {"PRELU"}
    assert _operators(path).count("PRELU") == 2


@pytest.mark.parametrize("keras_of", ["tf_keras", "keras"])
def test_slopes_of_a_prelu_are_trained_as_the_codes_of_the_file(keras_of, path):
    package = pytest.importorskip(keras_of)
    initial = np.array([0.25, 0.1, -0.03, 0.0], np.float32)
    image = package.Input((6, 6, 3))
    act = package.layers.PReLU(shared_axes=[1, 2], name="act")
    x = act(package.layers.Conv2D(4, 3, name="conv")(image))
    x = package.layers.GlobalAveragePooling2D()(x)
    model = package.Model(image, package.layers.Dense(2)(x))
    act.set_weights([initial.reshape(1, 1, 4)])
    quantized = sat_tf.quantize_model(model, POLICY)
    sat_tf.calibrate(quantized, _images(8)[:, :6, :6].astype(np.float32))
    wrapper = quantized.get_layer("quant_act")
    sat_tf.export_tflite(quantized, path)
    graph = read_graph(path.read_bytes(), "model.tflite")
    (written,) = [one for one in graph.operations if one.operators == ("PRELU",)]
    (_, slopes) = written.constants
    codes = slopes.values.ravel()
    assert codes.tolist() == [127, 51, -15, 0]
    inside = np.float32(codes) * slopes.grid.scale
    x = -50.0 * np.arange(1, 5, dtype=np.float32) * np.ones((1, 4, 4, 1), np.float32)
    plain = package.layers.PReLU(shared_axes=[1, 2])
    plain.build((None, 4, 4, 4))
    plain.set_weights([inside.reshape(1, 1, 4)])
    found = np.asarray(wrapper(x))
    assert np.any(found)
    quantizer = wrapper.output_quantizer if keras_of == "keras" else output_quantizer(wrapper)
    expected = quantizer(plain(x), False, wrapper.output_variables)
    np.testing.assert_array_equal(found, np.asarray(expected))
    # The user's own slopes stay as they are.
    np.testing.assert_array_equal(np.ravel(wrapper.layer.get_weights()[0]), initial)


def test_slopes_for_cpus_are_not_rounded():
    image = keras.Input((6, 6, 4))
    act = L.PReLU(shared_axes=[1, 2], alpha_initializer=SLOPES, name="act")
    model = keras.Model(image, L.Dense(2)(L.Flatten()(act(L.Conv2D(4, 1)(image)))))
    wrapper = sat_tf.quantize_model(model, BitPolicy.mobile(4)).get_layer("quant_act")
    x = np.float32(-1.0 - np.arange(144).reshape(1, 6, 6, 4))
    np.testing.assert_array_equal(wrapper.before_quantization(x), wrapper.layer(x))


OF_UNITS = BitPolicy.mobile(4, target="ethos-u55", input_range=(0.0, 1.0))
PIXELS = np.random.default_rng(5).integers(0, 256, (12, 12, 12, 3)).astype(np.uint8)
# Functions behind the last convolution.
ENDS = ["gelu", "elu", "leaky", "prelu", "tanh", "swish", "hard_silu", "hard_sigmoid", "magnitude"]


def _body():
    image = keras.Input((12, 12, 3), name="image")
    return image, L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)


def _ending(layer: keras.layers.Layer) -> keras.Model:
    image, tensor = _body()
    return keras.Model(image, layer(L.Conv2D(2, 1, name="last")(tensor)))


def _of_unit_images(model, policy=OF_UNITS):
    return calibrated(model, policy, PIXELS / np.float32(255.0))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENDS)
def test_a_function_at_the_end_makes_integers_on_the_npu(name, path):
    function, operators = FUNCTIONS[name]
    report, found = proved(_of_unit_images(_ending(_anew(function))), path, PIXELS)
    assert found.is_portable
    assert found.trained_differing < 0.01
    assert (report.float_operators, report.float_layers, report.cpu_fallback) == ([], [], [])
    assert _types(path) == ["INT8"]
    assert {*_on_the_npu(path)} & OF_FUNCTIONS == operators


def test_outputs_of_several_functions_are_integers_on_grids_of_their_own(path):
    image, tensor = _body()
    ends = {
        "size": L.Reshape((-1, 2))(L.Conv2D(2, 1, activation="gelu", name="size")(tensor)),
        "score": L.Conv2D(2, 1, name="score")(tensor),
        "angle": L.Conv2D(1, 1, activation="tanh", name="angle")(tensor),
    }
    proved(_of_unit_images(keras.Model(image, ends)), path, PIXELS)
    assert set(_types(path)) == {"INT8"}
    assert len({float(made.scales[0]) for made in _contents(path).outputs}) == 3
    assert "DEQUANTIZE" not in _on_the_npu(path)


def test_only_outputs_behind_a_layer_left_float_are_float(path):
    image, tensor = _body()
    tokens = L.Reshape((-1, 6))(tensor)
    ends = {
        "logits": L.Dense(4, name="logits")(L.GlobalAveragePooling2D()(tensor)),
        "tokens": L.MultiHeadAttention(2, 3, name="attention")(tokens, tokens),
        "mask": L.Conv2D(1, 1, activation="sigmoid", name="mask")(tensor),
    }
    policy = BitPolicy.mobile(4, target="ethos-u55", unsupported="float", input_range=(0.0, 1.0))
    quantized = _of_unit_images(keras.Model(image, ends), policy)
    report, _ = proved(quantized, path, PIXELS)
    assert _types(path) == ["INT8", "INT8", "FLOAT32"]
    assert "mask" not in report.float_operators
    settings = FileSettings.of_file(_contents(path).settings, "file")
    assert settings.output_type is None
    assert file_content(file_graph(Network(quantized), settings), settings) == path.read_bytes()


def test_a_function_without_an_operator_is_a_table_of_the_last_codes(path):
    report, _ = proved(_of_unit_images(_ending(L.Activation("softplus"))), path, PIXELS)
    assert _types(path) == ["INT8"]
    assert {one.operator for one in report.cpu_fallback} == {"CAST", "GATHER"}


def test_explain_plans_the_last_codes():
    plan = sat_tf.explain(_ending(L.Activation("gelu", name="end")), OF_UNITS)
    assert plan["end"].fate is Fate.OBSERVED
    assert plan["end"].operators[0] == "GELU"
    assert "rounded to the file's 8-bit codes" in plan["last"].activation_reason
    assert not plan.cpu_fallback


def test_files_for_cpus_end_in_float_as_before(path):
    policy = BitPolicy.mobile(4, input_range=(0.0, 1.0))
    quantized = _of_unit_images(_ending(L.Activation("gelu", name="end")), policy)
    report = sat_tf.export_tflite(quantized, path)
    assert report.float_layers == ["end"]
    with pytest.raises(ValueError, match=r"end, which is float, .*quantize it for an NPU"):
        sat_tf.export_tflite(quantized, path, output_type="int8")


def test_a_model_of_keras_3_ends_in_the_same_codes(path):
    keras3 = pytest.importorskip("keras")
    image = keras3.Input((12, 12, 3))
    x = keras3.layers.Conv2D(6, 3, activation="relu")(image)
    x = keras3.layers.PReLU(shared_axes=[1, 2])(keras3.layers.Conv2D(2, 1)(x))
    proved(_of_unit_images(keras3.Model(image, keras3.layers.ELU()(x))), path, PIXELS)
    assert _types(path) == ["INT8"]
    assert _on_the_npu(path)[-2:] == ["PRELU", "ELU"]


def _gated_by_softmax(kind: str) -> keras.Model:
    """A classifier whose features are weighted by a softmax over channels."""
    image, tensor = _body()
    gate = L.Conv2D(6, 1, activation="softmax" if kind == "activation" else None)(tensor)
    gate = L.Softmax(name="gate")(gate) if kind == "layer" else gate
    weighted = L.Conv2D(4, 3)(L.Multiply()([tensor, gate]))
    return keras.Model(image, L.Dense(5, name="logits")(L.GlobalAveragePooling2D()(weighted)))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["layer", "activation"])
def test_a_softmax_inside_is_one_of_codes_and_says_that_arm_may_differ(kind, path):
    quantized = _of_unit_images(_gated_by_softmax(kind))
    report, found = proved(quantized, path, PIXELS, runtimes=RUNTIMES)
    for name in ("xnnpack", "builtin", "reference"):
        counted = found.runtimes[name]
        assert sum(one.codes_differing for one in counted.own or counted.tensors) == 0, name
    assert found.trained_differing < 0.01
    assert (report.float_operators, report.warnings) == ([], [])
    assert _on_the_npu(path).count("SOFTMAX") == 1
    assert not found.is_portable
    (claim,) = [claim for claim in found.portability if not claim.is_portable]
    assert claim.operators == "SOFTMAX"
    assert "x86 and of Arm differ" in claim.why


def test_a_softmax_inside_is_trained_on_the_grid_of_its_operator():
    model = _gated_by_softmax("layer")
    assert _placed(model, OF_UNITS)["gate"].output == GRID
    assert _placed(model, BitPolicy.mobile(4))["gate"].output == UnitQuantizer(num_bits=8)


def test_probabilities_are_asked_for_behind_a_softmax_inside(path):
    report = sat_tf.export_tflite(_of_unit_images(_gated_by_softmax("layer")), path, softmax=True)
    assert report.operators["SOFTMAX"] == 2
    probabilities = Runtime(path.read_bytes(), keep_tensors=False).run(PIXELS[:2])
    np.testing.assert_allclose(np.sum(probabilities, axis=-1), 1.0, atol=5 / 256)


# Layers behind the last convolution, and the operators behind that of the convolution.
POOLS = {
    "windows": (lambda x: L.AveragePooling2D(6)(x), ["AVERAGE_POOL_2D"]),
    "padded": (lambda x: L.AveragePooling2D(5, 2, "same")(x), ["AVERAGE_POOL_2D"]),
    "rectified": (lambda x: L.AveragePooling2D(4)(L.ReLU()(x)), ["AVERAGE_POOL_2D"]),
    "logits": (
        lambda x: L.Softmax()(L.Flatten()(L.AveragePooling2D(12)(x))),
        ["AVERAGE_POOL_2D", "RESHAPE", "SOFTMAX"],
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", POOLS)
def test_means_at_the_end_are_an_operator_on_the_codes_that_it_reads(name, path):
    behind, operators = POOLS[name]
    image, tensor = _body()
    model = keras.Model(image, behind(L.Conv2D(3, 1, name="last")(tensor)))
    report, found = proved(_of_unit_images(model), path, PIXELS)
    assert report.float_operators == []
    # Halves are rounded away from 0, and in Keras not at all.
    assert found.trained_differing < 0.01
    assert _on_the_npu(path)[-len(operators) :] == operators
    graph = read_graph(path.read_bytes(), "model.tflite")
    (pool,) = [one for one in graph.operations if isinstance(one, AveragePool)]
    assert graph.codes(pool.output) == graph.codes(pool.inputs[0])


def test_means_in_front_of_a_function_at_the_end_have_a_grid_of_their_own(path):
    image, tensor = _body()
    end = L.Activation("sigmoid")(L.AveragePooling2D(3)(L.Conv2D(3, 1)(tensor)))
    report, _ = proved(_of_unit_images(keras.Model(image, end)), path, PIXELS)
    assert "AVERAGE_POOL_2D" not in report.operators


def test_a_pool_that_is_called_twice_is_an_operator_both_times(path):
    image, tensor = _body()
    pool = L.AveragePooling2D(4)
    both = L.Add()([pool(tensor), pool(L.Conv2D(6, 3, padding="same")(tensor))])
    model = keras.Model(image, L.Dense(3)(L.Flatten()(both)))
    report, _ = proved(_of_unit_images(model), path, PIXELS)
    assert report.operators["AVERAGE_POOL_2D"] == 2
    assert report.cpu_fallback == []


PREPARED = {
    "pooled": (L.AveragePooling2D(4), "AVERAGE_POOL_2D"),
    "resized": (L.Resizing(24, 24), "RESIZE_BILINEAR"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("name", PREPARED)
def test_pixels_are_pooled_and_resized_on_their_grid(name, ends, path):
    layer, operator = PREPARED[name]
    image = keras.Input((12, 12, 3))
    first = type(layer).from_config(layer.get_config())(image)
    tensor = L.Conv2D(4, 3, activation="relu")(L.ZeroPadding2D(1)(first))
    model = keras.Model(image, L.Dense(3)(L.Flatten()(tensor)))
    policy = BitPolicy.mobile(4, target="ethos-u55", input_range=ends)
    low, high = ends
    quantized = calibrated(model, policy, np.float32(low + PIXELS / 255.0 * (high - low)))
    _, found = proved(quantized, path, PIXELS)
    assert found.is_portable
    # The operator itself gives what training rounds to.
    assert found.trained_differing < 1e-3
    assert _on_the_npu(path)[:2] == ["QUANTIZE", operator]
