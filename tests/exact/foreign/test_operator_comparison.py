"""Files of other tools: what is compared, what is named, and what cannot be."""

import copy
import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.operations.conversions import Requantize
from sat_tf.exact.operations.tabled import Computed
from sat_tf.exact.operator_comparison import read_any_file
from sat_tf.export import compare_operators
from tests.commands.light import told_without_tensorflow
from tests.exact.foreign import make
from tests.exact.foreign.one_operator import Grid, add_operator, file_of, table, with_options
from tests.export.damage import changed

FILES = ("converter_int8", "converter_uint8", "quantizer", "tfmot")
PIXELS = np.random.default_rng(1).integers(0, 256, (4, *make.IMAGE)).astype(np.uint8)
RUNTIMES = ("xnnpack", "builtin", "reference", "arm_xnnpack")


def path_of(name):
    return make.FOLDER / f"{name}.tflite"


def compared(path, **options):
    options = {"runtimes": RUNTIMES, "progress": False, **options}
    return compare_operators(path, options.pop("images", PIXELS), **options)


def written(tmp_path, name, change):
    path = tmp_path / "changed.tflite"
    path.write_bytes(changed(path_of(name).read_bytes(), change))
    return path


@pytest.mark.parametrize("name", FILES)
def test_runtimes_compute_the_operators_of_other_tools_by_their_rules(name, tmp_path):
    found = compared(path_of(name))
    for runtime in ("xnnpack", "builtin", "reference"):
        own = found.total(runtime).own
        assert own.compared > 10_000
        assert own.differing == 0
    assert found.is_explained
    kinds = [one.kind for one in found.simulated]
    assert {"PAD", "CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "CONCATENATION"} < set(kinds)
    assert {"AVERAGE_POOL_2D", "MEAN", "FULLY_CONNECTED"} < set(kinds)
    # The same rules, of XNNPACK on Arm, but for MEAN and MUL.
    assert {one.kind for one in found.operators if one.differs("arm_xnnpack")} <= {"MEAN"}
    assert found.first_differing("xnnpack") is None
    assert found.first_differing("builtin") is not None
    assert "the first operator that differs is" in repr(found)
    # A row has an operator and a runtime, or an operator that is not compared.
    rows, silent = found.to_rows(), len(found.operators) - len(found.simulated)
    assert len(rows) == len(RUNTIMES) * len(found.simulated) + silent
    totals = [found.total(runtime).own.compared for runtime in RUNTIMES]
    assert sum(row["compared"] or 0 for row in rows) == sum(totals)
    found.write_csv(tmp_path / "operators.csv")
    assert len((tmp_path / "operators.csv").read_text().splitlines()) == len(rows) + 1
    # Parts that are float are named with their work.
    floats = [one for one in found.operators if one.kind == "TRANSPOSE_CONV" and one.reason]
    adds = [3 * 3 * 3 * 3 * 8 * 16] * (name == "tfmot")
    assert [(one.reason, one.multiply_adds) for one in floats] == [("it is float", n) for n in adds]
    share = 1.0 - sum(adds) / sum(one.multiply_adds for one in found.operators)
    assert found.multiply_adds_simulated == pytest.approx(share)


def test_what_is_not_simulated_spoils_nothing_behind_it(monkeypatch):
    monkeypatch.setattr(Computed, "reads", {*Computed.reads} - {"RELU"})
    found = compared(path_of("converter_int8"))
    by_kind = {one.kind: one for one in found.operators}
    assert by_kind["RELU"].reason == "not an operator of sat-tf"
    assert not by_kind["RELU"].counts
    assert by_kind["MEAN"].counts["xnnpack"].own.compared == 8 * len(PIXELS)
    assert by_kind["SHAPE"].reason == "it makes no codes"
    said = str(found)
    assert "Not simulated: 1 RELU: not an operator of sat-tf" in said
    assert "100.0 % of the multiply-adds" in said
    assert not re.search("proved|proven|certif|exact", said)


def test_the_first_operator_that_differs_is_marked(monkeypatch):
    usual = Requantize.simulate

    def other(self, graph, *inputs):
        made = usual(self, graph, *inputs)
        return np.where(made == np.max(made, initial=-128), made - 1, made)

    monkeypatch.setattr(Requantize, "simulate", other)
    found = compared(path_of("quantizer"), runtimes=())
    assert [one.kind for one in found.operators if one.differs("xnnpack")] == ["QUANTIZE"]
    first = found.first_differing("xnnpack")
    assert first.counts["xnnpack"].own.largest == 1.0
    assert not found.is_explained
    assert f"the first operator that differs is {first.number} QUANTIZE" in str(found)
    assert re.search(r"QUANTIZE.* by 1, first", str(found))


def test_names_of_tensors_need_not_differ(tmp_path):
    def rename(model, graph):
        for index, tensor in enumerate(graph.tensors):
            tensor.name = (b"", b"same", b"a\x00b")[index % 3]

    paths = written(tmp_path, "tfmot", rename), path_of("tfmot")
    found, usual = (compared(path).total("builtin") for path in paths)
    assert found == usual


def test_values_and_codes_are_taken_as_they_are():
    file = read_any_file(path_of("tfmot"))
    codes = file.graph.images[0].codes
    values = (PIXELS.astype(np.float32) - 128 - codes.zero_point) * codes.scale
    assert compared(file, images=values).to_rows() == compared(file).to_rows()
    stored = (PIXELS.astype(np.int32) - 128).astype(np.int8)
    path = path_of("converter_int8")
    assert compared(path, images=stored).to_rows() == compared(path).to_rows()


def test_outputs_may_have_other_lengths(tmp_path):
    def with_a_shape(model, graph):
        kinds = [model.operatorCodes[op.opcodeIndex].builtinCode for op in graph.operators]
        shape = graph.operators[kinds.index(tfl.BuiltinOperator.SHAPE)]
        graph.outputs = [*graph.outputs, shape.outputs[0]]

    found = compared(written(tmp_path, "converter_int8", with_a_shape))
    assert found.outputs["builtin"].compared == (4 + 4) * len(PIXELS)


def _with_two_inputs(tmp_path):
    path, shape = tmp_path / "two.tflite", (1, 4, 4, 2)
    given, made = [Grid(shape, 0.1), Grid(shape, 0.05, 3)], [Grid(shape, 0.12)]
    path.write_bytes(file_of("ADD", given, made, version=2))
    return path


def test_several_inputs_have_images_each(tmp_path):
    path = _with_two_inputs(tmp_path)
    first, second = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 4, 2)).astype(np.uint8)
    found = compared(path, images=[first, second])
    assert found.is_explained
    assert found.total("xnnpack").own.compared == 3 * 32
    codes = (second.astype(np.int32) - 128).astype(np.int8)
    assert compared(path, images=[first, codes]).to_rows() == found.to_rows()


def test_the_command_draws_images_for_several_inputs(tmp_path):
    path = str(_with_two_inputs(tmp_path))
    said = told_without_tensorflow("verify", path, "--num_images", "2", status=0, cwd=tmp_path)
    assert "1 of 1 operators simulated, on 2 images (random pixels, seed 0)" in said
    np.save(tmp_path / "given.npy", np.zeros((2, 4, 4, 2), np.uint8))
    words = ("--images", str(tmp_path / "given.npy"))
    said = told_without_tensorflow("verify", path, *words, status=2, cwd=tmp_path)
    assert "received images for a file with 2 inputs, expected none" in said


def test_the_first_of_several_graphs_is_compared_and_the_others_are_named(tmp_path):
    def several(model, graph):
        other = copy.deepcopy(graph)
        other.name = b"initialize"
        signature = copy.deepcopy(model.signatureDefs[0])
        signature.signatureKey, signature.subgraphIndex = b"other", 2
        model.signatureDefs.append(signature)
        call = with_options(add_operator(model, "CALL_ONCE"), "CALL_ONCE", initSubgraphIndex=1)
        # Asked for the values of a resource, LiteRT ends the process.
        made = np.array([len(graph.tensors)], np.int32)
        handle = add_operator(model, "VAR_HANDLE", outputs=made)
        with_options(handle, "VAR_HANDLE", container=b"state", sharedName=b"state")
        kind, shape = tfl.TensorType.RESOURCE, np.empty(0, np.int32)
        graph.tensors.append(table("Tensor", type=kind, shape=shape))  # which has no name
        model.subgraphs.extend([table("SubGraph", tensors=[], operators=[]), other])
        graph.operators[:0] = [call, handle]

    path = written(tmp_path, "converter_int8", several)
    found, usual = compared(path), compared(path_of("converter_int8"))
    assert [one.kind for one in found.operators[:2]] == ["CALL_ONCE", "VAR_HANDLE"]
    assert {one.reason for one in found.operators[:2]} == {"it makes no codes"}
    assert found.total("builtin") == usual.total("builtin")
    said = " ".join(str(found).split())
    assert "Not compared: graph 1 with 0 operators; only" in said
    assert f"graph 2 initialize with {len(usual.operators)} operators" in said


def test_the_command_compares_operators_where_another_tool_wrote_the_file(tmp_path):
    path = str(path_of("converter_int8"))
    words = ("verify", path, "--num_images", "2")
    said = told_without_tensorflow(*words, "--out", str(tmp_path / "out"), status=0, cwd=tmp_path)
    assert "operators simulated" in said
    assert "on 2 images (random pixels, seed 0)" in said
    assert sorted(one.name for one in tmp_path.rglob("*.*")) == ["operators.csv", "operators.html"]
    said = told_without_tensorflow(*words, "--kit", "kit.zip", status=2, cwd=tmp_path)
    assert "received --kit for a file that sat_tf.export_tflite did not write" in said
    assert not list(tmp_path.rglob("*.zip"))


@pytest.mark.thorough
def test_operators_of_the_converter_on_16_bits_are_those_that_are_simulated(tmp_path):
    keras.utils.set_random_seed(1)
    image = tensor = keras.Input((8, 8, 3))
    for filters in (6, 4):
        tensor = keras.layers.Conv2D(filters, 3, bias_initializer="uniform")(tensor)
        tensor = keras.layers.BatchNormalization(beta_initializer="uniform")(tensor)
        tensor = keras.layers.ReLU()(tensor)
    tensor = keras.layers.Add()([keras.layers.MaxPooling2D(1)(tensor), tensor])
    tensor = keras.layers.GlobalAveragePooling2D()(keras.layers.AveragePooling2D(2)(tensor))
    outputs = keras.layers.Dense(3, bias_initializer="uniform")(tensor)
    converter = tf.lite.TFLiteConverter.from_keras_model(keras.Model(image, outputs))
    draw = np.random.default_rng(2)
    real = draw.uniform(-1.0, 1.0, (20, 1, 8, 8, 3)).astype(np.float32)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([each] for each in real)
    int16 = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    converter.target_spec.supported_ops = [int16]
    converter.inference_input_type = converter.inference_output_type = tf.int16
    path = tmp_path / "int16.tflite"
    path.write_bytes(converter.convert())
    images = draw.integers(-32768, 32768, (3, 8, 8, 3)).astype(np.int16)
    found = compared(path, images=images)
    kinds = {one.kind for one in found.simulated}
    assert {"CONV_2D", "ADD", "AVERAGE_POOL_2D", "MEAN", "FULLY_CONNECTED"} <= kinds
    for runtime in ("xnnpack", "builtin", "reference"):
        own = found.total(runtime).own
        assert own.compared > 500
        assert own.differing == 0
