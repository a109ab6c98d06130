"""Models whose functions an NPU computes: trained as deployed, written, proved, compiled."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.litert.runtime import RUNTIMES
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.native import NATIVE
from sat_tf.exact.operations.pools import AveragePool
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.export import file_content, file_graph
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.graph.layers.activations import gelu_by_tanh, hard_silu
from sat_tf.graph.network import Network
from sat_tf.planning.plan import Fate
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers import pact
from tests.export.proofs import calibrated, deployed, file_outputs, proved
from tests.export.zoo import chain, through

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
IMAGES = np.random.default_rng(0).integers(0, 256, (32, 12, 12, 3)).astype(np.uint8)
GRID = pact.FixedGridQuantizer(highest=255.0 / 256.0)  # of LOGISTIC and SOFTMAX


def _anew(function):
    is_layer = isinstance(function, L.Layer)
    return type(function).from_config(function.get_config()) if is_layer else function


def _model(function) -> keras.Model:
    """Two convolutions and a function behind the first: one of its readers is linear."""
    image = keras.Input((12, 12, 3))
    x = _anew(function)(through(image, "Conv2D 8 3 name=first | norm"))
    end = "Conv2D 8 3 strides=2 name=second | norm | ReLU | GlobalAveragePooling2D | Dense 4"
    return keras.Model(image, through(x, end))


def _trained(model: keras.Model, policy: BitPolicy = POLICY) -> keras.Model:
    """The quantized model after three steps."""
    images = IMAGES.astype(np.float32)
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


def _squeezed(x):
    x = L.ReLU()(x)
    gate = L.Conv2D(4, 1, activation="swish")(L.GlobalAveragePooling2D(keepdims=True)(x))
    return L.Multiply()([x, L.Conv2D(8, 1, activation="sigmoid")(gate)])


def _twice(x):
    act = L.PReLU(shared_axes=[1, 2], alpha_initializer=SLOPES, name="act")
    return act(L.BatchNormalization()(L.Conv2D(8, 3, padding="same")(act(x))))


BLOCKS = {
    **FUNCTIONS,
    "squeeze and excitation": (_squeezed, {"LOGISTIC", "MUL"}),
    "prelu twice": (_twice, {"PRELU"}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BLOCKS)
def test_a_function_is_proved_and_runs_on_the_npu(name, path):
    function, operators = BLOCKS[name]
    quantized = _trained(_model(function))
    report, found = proved(quantized, path, IMAGES[:8], {"pack": "none", "output_type": "int8"})
    assert found.codes_compared > 0
    assert found.is_portable
    for runtime in ("xnnpack", "arm_xnnpack", "arm_xnnpack_unfused"):
        assert sum(one.codes_differing for one in found.runtimes[runtime].tensors) == 0
    assert {*_on_the_npu(path)} & OF_FUNCTIONS == operators
    assert report.operators.get("PRELU", 0) == {"prelu": 1, "prelu twice": 2}.get(name, 0)


def _placed(model: keras.Model, policy: BitPolicy = POLICY) -> dict[str, PlacedConfig]:
    quantized = sat_tf.quantize_model(model, policy)
    configs = {layer.name: getattr(layer, "quantize_config", None) for layer in quantized.layers}
    return {name.removeprefix("quant_"): config for name, config in configs.items() if config}


def test_a_sigmoid_and_a_softmax_inside_are_trained_on_the_grid_of_their_operators():
    configs = _placed(_model(L.Activation("sigmoid", name="gate")))
    assert (configs["gate"].output, configs["gate"].target) == (GRID, "ethos-u55")
    # Its reader takes the 8 bits as they are.
    assert not any(config.inserted and "gate" in name for name, config in configs.items())
    model = _gated_by_softmax("layer")
    assert _placed(model, OF_UNITS)["gate"].output == GRID
    assert _placed(model, BitPolicy.mobile(4))["gate"].output == pact.UnitQuantizer(num_bits=8)


def _swish() -> keras.Model:
    return _model(L.Activation("swish", name="act"))


def test_a_swish_is_a_product_with_a_sigmoid_whose_range_is_that_of_a_swish():
    configs = _placed(_swish())
    assert configs["act_sigmoid"].output == GRID
    product, older = configs["act"].output, _placed(_swish(), BitPolicy.mobile(8))["act"].output
    assert isinstance(product, pact.OffsetQuantizer)
    assert (product.num_bits, product.lowest) == (8, -0.2785)
    # Its level starts where that of a swish does.
    assert product.initial_clipping_level == pytest.approx(older.initial_clipping_level, rel=0.02)
    plan = sat_tf.explain(_swish(), POLICY)
    assert (plan["act_sigmoid"].operators, plan["act"].operators) == (("LOGISTIC",), ("MUL",))


@pytest.mark.parametrize(
    ("function", "kind", "bits"),
    [
        (L.Activation(hard_silu, name="act"), pact.OffsetQuantizer, 4),
        # What is below the range of this one saturates.
        (L.LeakyReLU(0.1, name="act"), pact.OffsetQuantizer, 8),
        (L.PReLU(shared_axes=[1, 2], name="act"), pact.StreamQuantizer, 8),
    ],
)
def test_what_int8_alone_clips_has_8_bits(function, kind, bits):
    quantizer = _placed(_model(function))["act"].output
    assert (type(quantizer), quantizer.num_bits) == (kind, bits)


@pytest.mark.parametrize("target", [None, "litert", "micro"])
def test_models_for_cpus_stay_as_they_are_and_their_slopes_are_not_rounded(target):
    policy = BitPolicy.mobile(4, target=target)
    configs = _placed(_model(L.Activation("swish", name="act")), policy)
    assert "act_sigmoid" not in configs
    assert configs["act"].output.num_bits == 4
    assert all("native" not in config.get_config() for config in configs.values())
    act = L.PReLU(shared_axes=[1, 2], alpha_initializer=SLOPES, name="act")
    model = chain((6, 6, 4), "Conv2D 4 1", act, "Flatten | Dense 2")
    wrapper = sat_tf.quantize_model(model, policy).get_layer("quant_act")
    x = np.float32(-1.0 - np.arange(144).reshape(1, 6, 6, 4))
    np.testing.assert_array_equal(wrapper.before_quantization(x), wrapper.layer(x))


def test_requantizing_for_an_npu_gives_a_swish_its_operators():
    images = IMAGES[:8].astype(np.float32)
    moved = sat_tf.requantize(calibrated(_swish(), 4, images), POLICY)
    sat_tf.calibrate(moved, images)
    operators = [op for one in deployed(moved).operations for op in one.operators]
    assert {*operators} & OF_FUNCTIONS == {"LOGISTIC", "MUL"}


def test_a_model_that_is_saved_keeps_its_operators(tmp_path):
    model = _model(L.Activation("sigmoid", name="gate"))
    quantized = calibrated(model, POLICY, IMAGES[:8].astype(np.float32))
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    graphs = [deployed(model, pack="none") for model in (quantized, loaded)]
    names = [[name for op in graph.operations for name in op.operators] for graph in graphs]
    assert names[0] == names[1]
    assert "LOGISTIC" in names[0]
    assert output_quantizer(loaded.get_layer("quant_gate")) == GRID
    assert sat_tf.export_tflite(loaded, tmp_path / "m.tflite").target == POLICY.target
    fewer = sat_tf.requantize(loaded, BitPolicy.mobile(3))
    assert sat_tf.export_tflite(fewer, tmp_path / "fewer.tflite").target == POLICY.target


def test_a_model_of_keras_3_has_the_same_placement_and_ends_in_the_same_codes(tmp_path):
    keras3 = pytest.importorskip("keras")
    of = keras3.layers
    image = keras3.Input((12, 12, 3))
    x = of.Conv2D(8, 3, activation="hard_silu")(of.Conv2D(8, 3, activation="silu")(image))
    x = of.Conv2D(8, 3)(keras3.ops.abs(x))
    x = of.Conv2D(2, 1)(x * keras3.ops.relu6(x + 3.0) / 6.0)
    x = of.ELU()(of.PReLU(shared_axes=[1, 2])(x))
    quantized = _of_unit_images(keras3.Model(image, x))
    path, again = tmp_path / "model.tflite", tmp_path / "again.tflite"
    proved(quantized, path, PIXELS, {"pack": "none"})
    expected = {"LOGISTIC", "MUL", "HARD_SWISH", "ABS", "PRELU", "ELU"}
    assert {*_operators(path)} & OF_FUNCTIONS == expected
    assert _operators(path).count("HARD_SWISH") == 2
    assert (_types(path), _on_the_npu(path)[-2:]) == (["INT8"], ["PRELU", "ELU"])
    quantized.save(tmp_path / "model.keras")
    loaded = keras3.models.load_model(tmp_path / "model.keras")
    assert sat_tf.export_tflite(loaded, again, pack="none").target == OF_UNITS.target
    assert _operators(again) == _operators(path)


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
    sat_tf.calibrate(quantized, IMAGES[:8][:, :6, :6].astype(np.float32))
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


OF_UNITS = BitPolicy.mobile(4, target="ethos-u55", input_range=(0.0, 1.0))
PIXELS = np.random.default_rng(5).integers(0, 256, (12, 12, 12, 3)).astype(np.uint8)
# Functions behind the last convolution.
ENDS = ["gelu", "elu", "leaky", "prelu", "tanh", "swish", "hard_silu", "hard_sigmoid", "magnitude"]


def _body():
    image = keras.Input((12, 12, 3), name="image")
    return image, L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)


def _ending(layer, channels: int = 2) -> keras.Model:
    image, tensor = _body()
    return keras.Model(image, layer(L.Conv2D(channels, 1, name="last")(tensor)))


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
        "tokens": L.AdditiveAttention(name="attention")([tokens, tokens]),
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


def test_means_in_front_of_a_function_at_the_end_have_a_grid_of_their_own(path):
    model = _ending(lambda x: L.Activation("sigmoid")(L.AveragePooling2D(3)(x)), 3)
    report, _ = proved(_of_unit_images(model), path, PIXELS)
    assert "AVERAGE_POOL_2D" not in report.operators


def test_explain_plans_the_last_codes_and_files_for_cpus_end_in_float_as_before(path):
    plan = sat_tf.explain(_ending(L.Activation("gelu", name="end")), OF_UNITS)
    assert (plan["end"].fate, plan["end"].operators[0]) == (Fate.OBSERVED, "GELU")
    assert "rounded to the file's 8-bit codes" in plan["last"].activation_reason
    assert not plan.cpu_fallback
    policy = BitPolicy.mobile(4, input_range=(0.0, 1.0))
    quantized = _of_unit_images(_ending(L.Activation("gelu", name="end")), policy)
    report = sat_tf.export_tflite(quantized, path)
    assert report.float_layers == ["end"]
    with pytest.raises(ValueError, match=r"end, which is float, .*quantize it for an NPU"):
        sat_tf.export_tflite(quantized, path, output_type="int8")


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
    model = _of_unit_images(_gated_by_softmax(kind))
    report, found = proved(model, path, PIXELS, runtimes=RUNTIMES)
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
    # Probabilities may be asked for behind it.
    report = sat_tf.export_tflite(model, path, softmax=True)
    assert report.operators["SOFTMAX"] == 2
    sums = np.sum(file_outputs(path, PIXELS[:2]), axis=-1)
    np.testing.assert_allclose(sums, 1.0, atol=5 / 256)


# Layers behind the last convolution, and the operators behind that of the convolution.
POOLS = {
    "windows": (L.AveragePooling2D(6), ["AVERAGE_POOL_2D"]),
    "padded": (L.AveragePooling2D(5, 2, "same"), ["AVERAGE_POOL_2D"]),
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
    report, found = proved(_of_unit_images(_ending(behind, 3)), path, PIXELS)
    assert report.float_operators == []
    # Halves are rounded away from 0, and in Keras not at all.
    assert found.trained_differing < 0.01
    assert _on_the_npu(path)[-len(operators) :] == operators
    graph = read_graph(path.read_bytes(), "model.tflite")
    (pool,) = [one for one in graph.operations if isinstance(one, AveragePool)]
    assert graph.codes(pool.output) == graph.codes(pool.inputs[0])


def test_a_pool_that_is_called_twice_is_an_operator_both_times(path):
    image, tensor = _body()
    pool = L.AveragePooling2D(4)
    both = L.Add()([pool(tensor), pool(L.Conv2D(6, 3, padding="same")(tensor))])
    model = keras.Model(image, L.Dense(3)(L.Flatten()(both)))
    report, _ = proved(_of_unit_images(model), path, PIXELS)
    assert report.operators["AVERAGE_POOL_2D"] == 2
    assert report.cpu_fallback == []


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-1.0, 1.0)])
@pytest.mark.parametrize(
    ("layer", "operator"),
    [(L.AveragePooling2D(4), "AVERAGE_POOL_2D"), (L.Resizing(24, 24), "RESIZE_BILINEAR")],
    ids=["pooled", "resized"],
)
def test_pixels_are_pooled_and_resized_on_their_grid(layer, operator, ends, path):
    end = "ZeroPadding2D 1 | Conv2D 4 3 activation=relu | Flatten | Dense 3"
    model = chain((12, 12, 3), _anew(layer), end)
    policy = BitPolicy.mobile(4, target="ethos-u55", input_range=ends)
    low, high = ends
    quantized = calibrated(model, policy, np.float32(low + PIXELS / 255.0 * (high - low)))
    _, found = proved(quantized, path, PIXELS)
    assert found.is_portable
    # The operator itself gives what training rounds to.
    assert found.trained_differing < 1e-3
    assert _on_the_npu(path)[:2] == ["QUANTIZE", operator]
