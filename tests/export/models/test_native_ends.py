"""Models that end in functions or pools of NPUs, or hold a softmax: proved and compiled."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.evaluate import run_tflite
from sat_tf.export.export import file_content, file_graph
from sat_tf.export.litert.runtime import RUNTIMES
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.operations.pools import AveragePool
from sat_tf.export.targets.ethos_u import compile_file
from sat_tf.export.targets.table import TARGETS
from sat_tf.export.tflite.contents import read_contents
from sat_tf.graph.layers.activations import absolute, hard_silu
from sat_tf.planning.layer_plan import Fate
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.pact import FixedGridQuantizer, UnitQuantizer
from tests.export.proofs import calibrated, proved

L = keras.layers
POLICY = BitPolicy.mobile(4, target="ethos-u55", input_range=(0.0, 1.0))
SLOPES = keras.initializers.RandomUniform(0.05, 0.3, seed=1)
PIXELS = np.random.default_rng(5).integers(0, 256, (12, 12, 12, 3)).astype(np.uint8)
# The layer behind the last convolution, and its operators.
FUNCTIONS = {
    "gelu": (lambda: L.Activation("gelu"), ["GELU"]),
    "elu": (lambda: L.ELU(), ["ELU"]),
    "leaky": (lambda: L.LeakyReLU(0.1), ["LEAKY_RELU"]),
    "prelu": (lambda: L.PReLU(alpha_initializer=SLOPES), ["PRELU"]),
    "tanh": (lambda: L.Activation("tanh"), ["TANH"]),
    "swish": (lambda: L.Activation("swish"), ["LOGISTIC", "MUL"]),
    "hard_silu": (lambda: L.Activation(hard_silu), ["HARD_SWISH"]),
    "hard_sigmoid": (lambda: L.Activation("hard_sigmoid"), []),
    "absolute": (lambda: L.Activation(absolute), ["ABS"]),
}


def _body():
    image = keras.Input((12, 12, 3), name="image")
    return image, L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)


def _model(layer: keras.layers.Layer) -> keras.Model:
    image, tensor = _body()
    return keras.Model(image, layer(L.Conv2D(2, 1, name="last")(tensor)))


def _quantized(model, policy=POLICY):
    return calibrated(model, policy, PIXELS / np.float32(255.0))


def _contents(path):
    return read_contents(path.read_bytes(), path.name)


def _on_the_npu(path) -> list[str]:
    """The operators of a file of which nothing is left to the CPU."""
    contents = _contents(path)
    assert TARGETS["ethos-u55"].elsewhere(contents) == []
    assert compile_file(path, "ethos-u55-128").on_cpu == ()
    return [operator.name for operator in contents.operators]


@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_at_the_end_makes_integers_on_the_npu(name, tmp_path):
    function, operators = FUNCTIONS[name]
    path = tmp_path / "model.tflite"
    report, found = proved(_quantized(_model(function())), path, PIXELS)
    assert found.is_portable
    assert found.trained_differing < 0.01
    assert (report.float_operators, report.islands, report.elsewhere) == ([], [], [])
    assert [made.type for made in _contents(path).outputs] == ["INT8"]
    assert [name for name in _on_the_npu(path) if name in {*operators}] == operators


def test_outputs_of_several_functions_are_integers_on_grids_of_their_own(tmp_path):
    image, tensor = _body()
    ends = {
        "size": L.Reshape((-1, 2))(L.Conv2D(2, 1, activation="gelu", name="size")(tensor)),
        "score": L.Conv2D(2, 1, name="score")(tensor),
        "angle": L.Conv2D(1, 1, activation="tanh", name="angle")(tensor),
    }
    path = tmp_path / "model.tflite"
    proved(_quantized(keras.Model(image, ends)), path, PIXELS)
    outputs = _contents(path).outputs
    assert {made.type for made in outputs} == {"INT8"}
    assert len({float(made.scales[0]) for made in outputs}) == 3
    assert "DEQUANTIZE" not in _on_the_npu(path)


def test_only_outputs_behind_a_layer_left_float_are_float(tmp_path):
    image, tensor = _body()
    tokens = L.Reshape((-1, 6))(tensor)
    ends = {
        "logits": L.Dense(4, name="logits")(L.GlobalAveragePooling2D()(tensor)),
        "tokens": L.MultiHeadAttention(2, 3, name="attention")(tokens, tokens),
        "mask": L.Conv2D(1, 1, activation="sigmoid", name="mask")(tensor),
    }
    policy = BitPolicy.mobile(4, target="ethos-u55", unsupported="float", input_range=(0.0, 1.0))
    quantized = _quantized(keras.Model(image, ends), policy)
    path = tmp_path / "model.tflite"
    report, _ = proved(quantized, path, PIXELS)
    contents = _contents(path)
    assert [made.type for made in contents.outputs] == ["INT8", "INT8", "FLOAT32"]
    assert "mask" not in report.float_operators
    settings = FileSettings.of_file(contents.settings, "file")
    assert settings.output_type is None
    assert file_content(file_graph(quantized, settings), settings) == path.read_bytes()
    with pytest.raises(ValueError, match="behind attention, a layer left float"):
        sat_tf.export_tflite(quantized, path, output_type="int8")


def test_a_function_without_an_operator_is_a_table_of_the_last_codes(tmp_path):
    path = tmp_path / "model.tflite"
    report, _ = proved(_quantized(_model(L.Activation("softplus"))), path, PIXELS)
    assert [made.type for made in _contents(path).outputs] == ["INT8"]
    assert {one.operator for one in report.elsewhere} == {"CAST", "GATHER"}


def test_explain_plans_the_last_codes():
    plan = sat_tf.explain(_model(L.Activation("gelu", name="end")), POLICY)
    assert plan["end"].fate is Fate.OBSERVED
    assert plan["end"].operators[0] == "GELU"
    assert "a function of codes reads it" in plan["last"].activation_reason
    assert not plan.elsewhere


def test_files_for_cpus_end_in_float_as_before(tmp_path):
    policy = BitPolicy.mobile(4, input_range=(0.0, 1.0))
    quantized = _quantized(_model(L.Activation("gelu", name="end")), policy)
    path = tmp_path / "model.tflite"
    report = sat_tf.export_tflite(quantized, path)
    assert report.islands == ["end"]
    with pytest.raises(ValueError, match=r"which end computes in float32.*quantize it for an NPU"):
        sat_tf.export_tflite(quantized, path, output_type="int8")


def test_a_model_of_keras_3_ends_in_the_same_codes(tmp_path):
    keras3 = pytest.importorskip("keras")
    image = keras3.Input((12, 12, 3))
    x = keras3.layers.Conv2D(6, 3, activation="relu")(image)
    x = keras3.layers.PReLU(shared_axes=[1, 2])(keras3.layers.Conv2D(2, 1)(x))
    path = tmp_path / "model.tflite"
    proved(_quantized(keras3.Model(image, keras3.layers.ELU()(x))), path, PIXELS)
    assert [made.type for made in _contents(path).outputs] == ["INT8"]
    assert _on_the_npu(path)[-2:] == ["PRELU", "ELU"]


def _gated(kind: str) -> keras.Model:
    """A classifier whose features are weighted by a softmax over channels."""
    image, tensor = _body()
    if kind == "layer":
        gate = L.Softmax(name="gate")(L.Conv2D(6, 1)(tensor))
    else:
        gate = L.Conv2D(6, 1, activation="softmax")(tensor)
    weighted = L.Conv2D(4, 3)(L.Multiply()([tensor, gate]))
    return keras.Model(image, L.Dense(5, name="logits")(L.GlobalAveragePooling2D()(weighted)))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["layer", "activation"])
def test_a_softmax_inside_is_one_of_codes_and_says_that_arm_may_differ(kind, tmp_path):
    path = tmp_path / "model.tflite"
    quantized = _quantized(_gated(kind))
    report, found = proved(quantized, path, PIXELS, runtimes=RUNTIMES)
    for name in ("xnnpack", "builtin", "reference"):
        counted = found.runtimes[name]
        assert sum(one.codes_differing for one in counted.own or counted.tensors) == 0, name
    assert found.trained_differing < 0.01
    assert (report.float_operators, report.warnings) == ([], [])
    assert _on_the_npu(path).count("SOFTMAX") == 1
    assert not found.is_portable
    (hold,) = [hold for hold in found.holds if not hold.is_portable]
    assert hold.operators == "SOFTMAX"
    assert "x86 and of Arm differ" in hold.why


def test_a_softmax_inside_is_trained_on_the_grid_of_its_operator():
    quantized = sat_tf.quantize_model(_gated("layer"), POLICY)
    grid = FixedGridQuantizer(highest=255.0 / 256.0)
    assert output_quantizer(quantized.get_layer("quant_gate")) == grid
    older = sat_tf.quantize_model(_gated("layer"), BitPolicy.mobile(4))
    assert output_quantizer(older.get_layer("quant_gate")) == UnitQuantizer(num_bits=8)


def test_probabilities_are_asked_for_behind_a_softmax_inside(tmp_path):
    path = tmp_path / "model.tflite"
    report = sat_tf.export_tflite(_quantized(_gated("layer")), path, softmax=True)
    assert report.operators["SOFTMAX"] == 2
    probabilities = run_tflite(path, PIXELS[:2])
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
def test_means_at_the_end_are_an_operator_on_the_codes_that_it_reads(name, tmp_path):
    behind, operators = POOLS[name]
    image, tensor = _body()
    model = keras.Model(image, behind(L.Conv2D(3, 1, name="last")(tensor)))
    path = tmp_path / "model.tflite"
    report, found = proved(_quantized(model), path, PIXELS)
    assert report.float_operators == []
    # Halves are rounded away from 0, and in Keras not at all.
    assert found.trained_differing < 0.01
    assert _on_the_npu(path)[-len(operators) :] == operators
    graph = read_graph(path.read_bytes(), "model.tflite")
    (pool,) = [one for one in graph.operations if isinstance(one, AveragePool)]
    assert graph.codes(pool.output) == graph.codes(pool.inputs[0])


def test_means_in_front_of_a_function_at_the_end_have_a_grid_of_their_own(tmp_path):
    image, tensor = _body()
    end = L.Activation("sigmoid")(L.AveragePooling2D(3)(L.Conv2D(3, 1)(tensor)))
    path = tmp_path / "model.tflite"
    report, _ = proved(_quantized(keras.Model(image, end)), path, PIXELS)
    assert "AVERAGE_POOL_2D" not in report.operators


def test_a_pool_that_is_called_twice_is_an_operator_both_times(tmp_path):
    image, tensor = _body()
    pool = L.AveragePooling2D(4)
    both = L.Add()([pool(tensor), pool(L.Conv2D(6, 3, padding="same")(tensor))])
    model = keras.Model(image, L.Dense(3)(L.Flatten()(both)))
    path = tmp_path / "model.tflite"
    report, _ = proved(_quantized(model), path, PIXELS)
    assert report.operators["AVERAGE_POOL_2D"] == 2
    assert report.elsewhere == []


PREPARED = {
    "pooled": (L.AveragePooling2D(4), "AVERAGE_POOL_2D"),
    "resized": (L.Resizing(24, 24), "RESIZE_BILINEAR"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [(0.0, 1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("name", PREPARED)
def test_pixels_are_pooled_and_resized_on_their_grid(name, ends, tmp_path):
    layer, operator = PREPARED[name]
    image = keras.Input((12, 12, 3))
    first = type(layer).from_config(layer.get_config())(image)
    tensor = L.Conv2D(4, 3, activation="relu")(L.ZeroPadding2D(1)(first))
    model = keras.Model(image, L.Dense(3)(L.Flatten()(tensor)))
    policy = BitPolicy.mobile(4, target="ethos-u55", input_range=ends)
    low, high = ends
    quantized = calibrated(model, policy, np.float32(low + PIXELS / 255.0 * (high - low)))
    path = tmp_path / "model.tflite"
    _, found = proved(quantized, path, PIXELS)
    assert found.is_portable
    # The operator itself gives what training rounds to.
    assert found.trained_differing < 1e-3
    assert _on_the_npu(path)[:2] == ["QUANTIZE", operator]
