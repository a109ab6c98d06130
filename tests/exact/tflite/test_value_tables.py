import shutil
import subprocess
import zipfile

import numpy as np
import pytest

import sat_tf
from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.device.kit import write_kit
from sat_tf.exact.litert.runtime import MicroRuntime, Runtime, expanded
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.linear import linear_operations
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite import value_tables
from sat_tf.exact.tflite.c_source import array_source, header_source
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.exact.tflite.value_tables import DECODE, WrongTablesError, decoded, encoded
from sat_tf.planning.file_size import file_bytes
from sat_tf.qat.policy import BitPolicy
from tests import reference
from tests.export import zoo
from tests.export.damage import changed
from tests.export.zoo import Specimen, images_for

POLICY = BitPolicy.mobile(3, first_last_weight_bits=None, target="micro")


@pytest.fixture
def any_size(monkeypatch):
    """Encodes kernels that take fewer bytes as they are, too."""
    monkeypatch.setattr(value_tables, "_OTHER_BYTES", -(2**40))


def test_indices_and_tables_are_those_of_a_hand_table(any_size):
    kernel = np.array([[5, 5, -3, 7], [1, 0, 0, 1]], np.int8)
    found = encoded(kernel, 2, 0)
    # Rows have the values -3 5 7 and 0 1: the indices are 1 1 0 2 and 1 0 0 1, of two bits.
    assert found.indices.tolist() == [0b01_01_00_10, 0b01_00_00_01]
    facts = [0, 1, 0, 0, 1, 2, 3, *[0] * 9]
    assert found.tables.view(np.int8).tolist() == [*facts, -3, 5, 7, 0, 1, 1]
    # The same on the last axis, and for one scale.
    transposed = encoded(kernel.T, 2, 1)
    assert transposed.indices.tolist() == [0b01_01_01_00, 0b00_00_10_01]
    assert encoded(kernel, 1, 0).bits == 3


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize(("axis", "num_scales"), [(0, 5), (3, 5), (0, 1)])
def test_every_width_gives_back_the_kernel(bits, axis, num_scales, any_size):
    rng = np.random.default_rng(bits)
    shape = [5, 3, 7, 5]
    channels = [rng.choice(np.arange(-128, 128), 2**bits, replace=False) for _ in range(num_scales)]
    others = (*shape[:axis], *shape[axis + 1 :])
    rows = [rng.choice(values, others) for values in channels * (5 // num_scales)]
    kernel = np.stack(rows, axis).astype(np.int8)
    found = encoded(kernel, num_scales, axis)
    again, width = decoded(found.indices, found.tables, kernel.shape, num_scales, axis)
    np.testing.assert_array_equal(again, kernel)
    assert width == found.bits == bits
    by_hand = reference.expanded_table(
        found.indices, found.tables, kernel.shape, axis if num_scales > 1 else None
    )
    np.testing.assert_array_equal(by_hand, kernel)


def test_a_kernel_that_takes_more_bytes_or_has_too_many_values_is_not_encoded(any_size):
    assert encoded(np.arange(-64, 65).astype(np.int8), 1, 0) is None
    assert encoded(np.arange(-64, 64).astype(np.int8), 1, 0).bits == 7


def test_small_kernels_stay_as_they_are():
    assert encoded(np.ones((4, 3, 3, 8), np.int8), 4, 0) is None
    assert encoded(np.ones((4, 3, 3, 80), np.int8), 4, 0).bits == 1


def _facts(bits=2, length=3, kind=0, version=1, count=6):
    return np.array([kind, version, 0, 0, 1, bits, length, *[0] * 9, *range(count)], np.uint8)


WRONG = {
    "fewer than one table of 3 for each of 2 scales": _facts(count=3),
    "fewer than one table of 0": _facts(length=0, count=1),
    "of kind 1": _facts(kind=1),
    r"versions \[2, 1\]": _facts(version=2),
    "0 bits": _facts(bits=0),
    "1 bytes for 4 indices of 3 bits": _facts(bits=3),
    "the index 2 into tables of 2 values": _facts(length=2),
    "has 10 bytes": _facts()[:10],
}


@pytest.mark.parametrize("message", WRONG)
def test_tables_that_kernels_misread_are_refused(message):
    with pytest.raises(WrongTablesError, match=message):
        decoded(np.array([0b00_01_10_00], np.uint8), WRONG[message], (2, 2), 2, 0)


def test_a_scale_for_each_index_of_a_middle_axis_is_refused():
    with pytest.raises(WrongTablesError, match="2 scales on axis 1 of the shape"):
        decoded(np.zeros(1, np.uint8), _facts(), (1, 2, 2), 2, 1)


# -- in files --------------------------------------------------------------------------------------


def _families():
    inner = "block conv 24 | block depthwise 5 | block Conv2DTranspose 24 3 2 padding=same"
    return zoo.chain((6, 6, 8), f"{inner} | block conv 32 1 | GlobalAveragePooling2D | Dense 20")


@pytest.fixture(scope="module")
def tabled(tmp_path_factory):
    """A model with all kinds of kernels, its file of tables, and its plain file."""
    model, folder = Specimen(_families, POLICY).quantized(), tmp_path_factory.mktemp("tables")
    paths = [folder / "table.tflite", folder / "plain.tflite"]
    reports = [
        sat_tf.export_tflite(model, path, pack=pack)
        for path, pack in zip(paths, ("table", "none"), strict=True)
    ]
    return model, *paths, reports[0]


def _per_tensor(model, graph):
    """Leaves the first kernel one table, as if its channels shared it."""
    (tensor, *_) = [t for t in graph.tensors if t.name.endswith(b"/tables")]
    data = model.buffers[tensor.buffer].data
    model.buffers[tensor.buffer].data = data[: 16 + data[6]]


@pytest.mark.thorough
def test_a_file_of_tables_is_the_plain_one_for_all_but_microcontrollers(tabled):
    model, path, plain, report = tabled
    content = path.read_bytes()
    kernels = [linear_operations(read_graph(p.read_bytes(), "a").operations) for p in (path, plain)]
    packed = [of_table.index_bits for of_table in kernels[0]]
    assert packed == [3, 0, 3, 0, 0] != [kernel.index_bits for kernel in kernels[1]]
    assert (report.operators[DECODE], report.runs_from) == (2, "")
    assert len(content) < len(plain.read_bytes())
    images = images_for(model, 3)
    outputs = [Runtime(p.read_bytes(), keep_tensors=False).run(images) for p in (path, plain)]
    np.testing.assert_array_equal(*outputs)
    assert DECODE.encode() not in plain.read_bytes()
    assert expanded(plain.read_bytes()) == plain.read_bytes()
    contents = read_contents(content, "a")
    assert not TARGETS["micro"].cpu_fallback(contents)
    left, _ = map(str, TARGETS["litert"].cpu_fallback(contents))
    assert left.startswith("CONV_2D re_lu")
    assert ": LiteRT's CPU kernels cannot expand its kernel by TFLM_DECODE" in left


@pytest.mark.thorough
def test_indices_begin_where_words_do(tabled):
    content = tabled[1].read_bytes()
    contents = read_contents(content, "a")
    parts = [t.data for t in contents.tensors if t.name.endswith(("/indices", "/tables"))]
    assert len(parts) == 4
    assert all(content.index(part.tobytes()) % 16 == 0 for part in parts if part.size > 16)


@pytest.mark.thorough
def test_the_form_that_kernels_misread_is_refused_by_whoever_reads_the_file(tabled, tmp_path):
    path = tmp_path / "per_tensor.tflite"
    path.write_bytes(changed(tabled[1].read_bytes(), _per_tensor))
    with pytest.raises(ValueError, match=r"fewer than one table of 8 .* export the model again"):
        read_subject(path)
    with pytest.raises(ValueError, match="expected one table of values for each scale"):
        sat_tf.verify_tflite(tabled[0], path, images_for(tabled[0], 2))


def _of_float(model, graph):
    graph.tensors[_decoder(model, graph).outputs[0]].type = 0


def _of_several(model, graph):
    _decoder(model, graph).inputs = np.array([0], np.int32)


def _of_nothing(model, graph):
    operator = _decoder(model, graph)
    operator.inputs = np.array([operator.inputs[0], -1], np.int32)


def _of_a_sum(model, graph):
    operator = _decoder(model, graph)
    made = graph.operators[0].outputs[0]
    operator.inputs = np.array([operator.inputs[0], made], np.int32)


def _of_negative_sizes(model, graph):
    tensor = graph.tensors[_decoder(model, graph).outputs[0]]
    tensor.shape = np.array([-24, 3, 3, 8], np.int32)


def _decoder(model, graph):
    names = [code.customCode for code in model.operatorCodes]
    return next(op for op in graph.operators if names[op.opcodeIndex] == DECODE.encode())


DAMAGES = {
    _of_float: "makes something other than an int8 tensor",
    _of_several: r"reads the tensors \[0\]",
    _of_nothing: "reads the tensors",
    _of_a_sum: "reads tensors that are no constants",
    _of_negative_sizes: "makes a tensor of the shape",
}


@pytest.mark.thorough
@pytest.mark.parametrize("damage", DAMAGES)
def test_operators_that_no_kernel_runs_are_refused(tabled, damage, tmp_path):
    path = tmp_path / "damaged.tflite"
    path.write_bytes(changed(tabled[1].read_bytes(), damage))
    with pytest.raises(ValueError, match=DAMAGES[damage]):
        read_subject(path)


@pytest.mark.thorough
def test_a_target_without_tables_and_a_model_without_small_kernels_are_refused(tabled, tmp_path):
    with pytest.raises(ValueError, match="LiteRT's CPU kernels, which has no operator that expand"):
        sat_tf.export_tflite(tabled[0], tmp_path / "a.tflite", pack="table", target="litert")
    small = Specimen(lambda: zoo.chain((6, 6, 3), "block conv 4 | Flatten | Dense 3"), POLICY)
    with pytest.raises(ValueError, match=r"(?s)tables take no fewer bytes.*received no kernel"):
        sat_tf.export_tflite(small.quantized(), tmp_path / "a.tflite", pack="table")


def test_planning_refuses_what_depends_on_the_values_of_weights():
    with pytest.raises(ValueError, match="whose bytes depend on the values of weights"):
        file_bytes(zoo.chain((6, 6, 3), "conv 4"), POLICY, pack="table")


# -- in TFLite Micro -------------------------------------------------------------------------------

NEEDS_MICRO = "TFLite Micro is an extra: pip install 'sat-tf[micro]'"


@pytest.fixture
def installed():
    pytest.importorskip("tflite_micro", reason=NEEDS_MICRO)


def _codes(path, images):
    runtime = MicroRuntime(path.read_bytes(), keep_tensors=True)
    runtime.run(images)
    return runtime.tensors(runtime._made.values())


@pytest.mark.thorough
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 7])
def test_microcontrollers_have_the_codes_of_the_plain_file(installed, any_size, bits, tmp_path):
    policy = BitPolicy.mobile(bits, first_last_weight_bits=None, target="micro")
    model = Specimen(_families, policy).quantized()
    codes = []
    for pack in ("table", "none"):
        path = tmp_path / f"{pack}.tflite"
        report = sat_tf.export_tflite(model, path, pack=pack)
        codes.append(_codes(path, images_for(model, 4)))
    assert report.arena_bytes > 10_000
    for name, of_plain in codes[1].items():
        np.testing.assert_array_equal(codes[0][name], of_plain)


@pytest.mark.thorough
@pytest.mark.parametrize("name", zoo.EACH)
def test_tables_of_any_network_have_the_codes_of_the_plain_file(
    installed, any_size, name, tmp_path
):
    model, codes = zoo.quantized(name), []
    settings = {"float_head": zoo.ZOO[name].float_head, "target": "micro"}
    for pack in ("table", "none"):
        path = tmp_path / f"{pack}.tflite"
        sat_tf.export_tflite(model, path, pack=pack, **settings)
        codes.append(_codes(path, images_for(model, 2)))
    for tensor, of_plain in codes[1].items():
        np.testing.assert_array_equal(codes[0][tensor], of_plain)


@pytest.mark.thorough
def test_a_certificate_of_tables_is_of_microcontrollers_too(installed, tabled):
    found = sat_tf.verify_tflite(tabled[0], tabled[1], images_for(tabled[0], 4))
    assert found.runtimes["micro"].own_differing == 0
    assert found.runtimes["micro"].own_compared > 0


@pytest.mark.thorough
def test_microcontrollers_misread_one_table_for_several_scales(installed, tabled, tmp_path):
    path = tmp_path / "per_tensor.tflite"
    content, images = tabled[1].read_bytes(), images_for(tabled[0], 2)
    path.write_bytes(changed(content, _per_tensor))
    import tflite_micro.python.tflite_micro.runtime as micro

    interpreters = [
        micro.Interpreter.from_bytes(each, arena_size=2**20)
        for each in (content, path.read_bytes())
    ]
    outputs = []
    for interpreter in interpreters:
        interpreter.set_input(images[:1], 0)
        interpreter.invoke()
        outputs.append(np.array(interpreter.get_output(0)))
    assert np.any(outputs[0] != outputs[1])


@pytest.mark.thorough
@pytest.mark.parametrize("output_type", ["float32", "int8"])
def test_a_kit_has_the_outputs_of_microcontrollers(installed, tabled, output_type, tmp_path):
    path, images = tmp_path / "model.tflite", images_for(tabled[0], 5)
    sat_tf.export_tflite(tabled[0], path, pack="table", output_type=output_type)
    write_kit(path, images, tmp_path / "kit.zip")
    with zipfile.ZipFile(tmp_path / "kit.zip") as kit:
        header, content = kit.read("board.h").decode(), kit.read("model.tflite")
    assert content == expanded(path.read_bytes())
    micro = MicroRuntime(path.read_bytes(), keep_tensors=False)
    for number in range(4):
        _, (output,) = micro.compute([images[number : number + 1]])
        row = "".join(f"0x{byte:02x}, " for byte in output.tobytes()[:16])
        assert row.strip() in header
    assert "kInput0[kExamples][288]" in header


# -- in programs -----------------------------------------------------------------------------------


def test_an_array_and_its_header_are_compiled(tmp_path):
    compiler = shutil.which("g++") or pytest.skip("there is no g++")
    stub = tmp_path / "tensorflow/lite/micro/micro_mutable_op_resolver.h"
    stub.parent.mkdir(parents=True)
    names = ("Conv2D", "PadV2", "Decode", "UnidirectionalSequenceLSTM", "Relu6")
    calls = "".join(f"TfLiteStatus Add{name}() {{ return kTfLiteOk; }}\n" for name in names)
    stub.write_text(
        "enum TfLiteStatus { kTfLiteOk, kTfLiteError };\nnamespace tflite {\n"
        f"template <unsigned n> struct MicroMutableOpResolver {{\n{calls}}};\n}}\n"
    )
    operators = ["CONV_2D", "PADV2", DECODE, "UNIDIRECTIONAL_SEQUENCE_LSTM", "RELU6"]
    content = bytes(range(40))
    (tmp_path / "model.cc").write_text(array_source(content))
    (tmp_path / "model.h").write_text(header_source("net", 40, operators, 4096, "x86_64"))
    main = (
        '#include <cstdio>\n#include "model.h"\nint main() {\n  ModelOperators all;\n'
        '  printf("%d %d %d %d", kModelBytes, kModel[39], kArenaBytes, RegisterModelOperators(all)'
        ");\n}\n"
    )
    (tmp_path / "main.cc").write_text(main)
    words = [compiler, "-std=c++17", "-I.", "main.cc", "model.cc", "-o", "program"]
    subprocess.run(words, cwd=tmp_path, check=True)
    done = subprocess.run(["./program"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "40 39 4096 0"
    assert "kArenaBytes" not in header_source("net", 40, operators, None, "x86_64")
