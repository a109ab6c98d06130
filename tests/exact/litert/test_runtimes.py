import dataclasses
import os
import signal
import stat
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest

import sat_tf
from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.litert import processes
from sat_tf.exact.litert import runtime as tools
from sat_tf.exact.litert.runtime import RUNTIMES, TOSA, MicroRuntime, check_loading, loaded
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.operations.operation import Constant
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operator_comparison import compare_operators
from sat_tf.exact.tflite.tensors import Tensor
from sat_tf.export import export as file
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from tests.export import zoo
from tests.export.damage import changed
from tests.export.layer_models import MODELS
from tests.export.proofs import own_count, proved
from tests.export.zoo import quantized

HEAVY = "print({'tensorflow', 'tf_keras', 'matplotlib', 'tflite_micro'} & set(sys.modules))"


@pytest.mark.parametrize(
    ("status", "errors", "expected"),
    [
        (-signal.SIGABRT, b"", "it ends the process with SIGABRT"),
        (-signal.SIGSEGV, b"noise", "it ends the process with SIGSEGV"),
        (-250, b"", "it ends the process with signal 250"),
        (1, b"first\nlast\n", "its process ended with status 1: last"),
        (0, b"", "its process ended with status 0: no message"),
    ],
)
def test_endings_are_put_into_words(status, errors, expected):
    assert processes.describe_ending(status, errors) == expected


def test_processes_that_run_files_load_no_tensorflow(tmp_path):
    # Python would find modules of the working directory first.
    (tmp_path / "numpy.py").write_text("raise ImportError")
    code = f"import sys, sat_tf.exact.evaluate, sat_tf.exact.operator_comparison; {HEAVY}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=processes.child_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


@pytest.mark.thorough
def test_every_runtime_runs_a_whole_file(small_file):
    assert processes.refusals(small_file.read_bytes(), RUNTIMES) == dict.fromkeys(RUNTIMES)


def test_a_truncated_file_is_refused_with_the_reason_of_litert(small_file):
    found = processes.refusals(small_file.read_bytes()[:500], ["xnnpack", "builtin"])
    assert list(found) == ["xnnpack", "builtin"]
    assert all("not a valid Flatbuffer" in reason for reason in found.values())


def test_a_file_that_ends_the_process_ends_no_other(small_file):
    def without_zero_points(model, graph):
        for tensor in graph.tensors:
            if tensor.quantization is not None:
                tensor.quantization.zeroPoint = []

    found = processes.refusals(changed(small_file.read_bytes(), without_zero_points), ["xnnpack"])
    assert found["xnnpack"] is not None


def test_the_signal_is_named_and_the_other_runtimes_are_tried(monkeypatch):
    # Answers for the first runtime, and dies in the second.
    code = (
        "import json, os, sys; names = sys.argv[1:];"
        "print(json.dumps({'runtime': names[0], 'refusal': None}), flush=True);"
        f"len(names) > 1 and os.kill(os.getpid(), {int(signal.SIGABRT)})"
    )
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(processes, "child_command", lambda words: [*command, *words])
    assert processes.refusals(b"", ["one", "two", "three"]) == {
        "one": None,
        "two": "it ends the process with SIGABRT",
        "three": None,
    }


def test_a_file_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(processes, "child_command", lambda *_: command)
    assert processes.refusals(b"", ["one"]) == {"one": "it took more than 0.1 s"}


@pytest.mark.skipif(not os.path.exists("/proc"), reason="memory is limited on Linux")
def test_memory_that_a_damaged_file_asks_for_is_refused(small_file):
    def enormous(model, graph):
        graph.tensors[graph.inputs[0]].shape = [1, 2**15, 2**15, 3]

    found = processes.refusals(changed(small_file.read_bytes(), enormous), ["builtin"])
    assert found["builtin"] is not None


@pytest.mark.parametrize(
    ("answer", "delegate"),
    [
        (b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n", "XNNPACK"),
        (b"INFO: Created TensorFlow Lite YNNPACK delegate for CPU.\n", "YNNPACK"),
        (b"", "none"),
        (subprocess.TimeoutExpired("litert", 1), "none"),
    ],
)
def test_the_delegate_is_what_litert_says_when_asked_once(monkeypatch, answer, delegate):
    is_said = isinstance(answer, bytes)
    asked = mock.Mock(side_effect=[types.SimpleNamespace(stderr=answer) if is_said else answer])
    monkeypatch.setattr(processes, "_found", [])
    monkeypatch.setattr(processes.subprocess, "run", asked)
    assert [processes.this_machine(b"").delegate for _ in range(2)] == [delegate] * 2


@pytest.fixture(scope="module")
def model():
    return quantized("bottleneck")


@pytest.fixture(scope="module")
def graph(model) -> Graph:
    return deployed_graph(Network(model))


def _with_nan_output(graph: Graph) -> Graph:
    shape = graph.tensors[graph.output].shape
    nan = Constant(np.float32([np.nan]))
    product = Pair((graph.output,), "nan", Pointwise.PRODUCT, nan)
    tensors = {**graph.tensors, "nan": Tensor("nan", shape, None)}
    operations = (*graph.operations, product)
    return dataclasses.replace(graph, tensors=tensors, operations=operations, output="nan")


def test_a_file_that_does_not_run_is_not_handed_over(model, graph, tmp_path, monkeypatch):
    check_loading(serialize(graph, {}))
    monkeypatch.setattr(file, "file_graph", lambda *_: _with_nan_output(graph))
    (tmp_path / "model.tflite").write_bytes(b"older")
    with pytest.raises(ValueError, match=r"output for a black image is not finite"):
        sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"older"]


NEEDS_MICRO = "TFLite Micro is an extra: pip install 'sat-tf[micro]'"


@pytest.fixture
def installed():
    pytest.importorskip("tflite_micro", reason=NEEDS_MICRO)


@pytest.fixture(scope="module")
def plain_file(small, tmp_path_factory):
    """The file of the small model, without kernels of 4 bits."""
    path = tmp_path_factory.mktemp("micro") / "model.tflite"
    sat_tf.export_tflite(small, path, pack="none")
    return path


def test_a_file_is_compared_tensor_by_tensor(installed, small, plain_file, small_images):
    found = sat_tf.verify_tflite(small, plain_file, small_images, runtimes=["reference", "micro"])
    counts = found.runtimes["micro"]
    assert (counts.own_differing, counts.outputs_differing, counts.delegation) == (0, 0, None)
    assert counts.own_compared > 0
    assert counts.codes_compared == found.codes_compared
    assert found.versions["tflite-micro"]


@pytest.mark.parametrize("name", zoo.EACH)
def test_models_of_the_zoo_have_the_codes_of_the_kernels(installed, name, path):
    model = zoo.quantized(name)
    sat_tf.export_tflite(model, path, float_head=zoo.ZOO[name].float_head, pack="none")
    content = path.read_bytes()
    assert own_count(content, zoo.images_for(model, 4), "micro")[1] == 0


def test_several_images_are_run_one_by_one(installed, plain_file, small_images):
    content = plain_file.read_bytes()
    together = MicroRuntime(content, keep_tensors=True)
    outputs = together.run(small_images[:3])
    (name, *_) = together._made.values()
    kept = together.tensors([name])[name]
    assert len(outputs) == len(kept) == 3
    alone = MicroRuntime(content, keep_tensors=False)
    np.testing.assert_array_equal(outputs[2:], alone.run(small_images[2:3]))


def test_an_arena_that_is_too_small_grows(installed, plain_file, small_images, monkeypatch):
    monkeypatch.setattr("sat_tf.exact.litert.runtime._SMALLEST_ARENA_BYTES", 2**14)
    monkeypatch.setattr("sat_tf.exact.litert.runtime._BYTES_PER_VALUE", 0)
    runtime = MicroRuntime(plain_file.read_bytes(), keep_tensors=True)
    assert np.all(np.isfinite(runtime.run(small_images[:1])))


def test_what_it_refuses_is_named_and_not_printed(installed, path, capfd):
    model = MODELS["floats"].quantized()
    sat_tf.export_tflite(model, path, pack="none")
    images = zoo.images_for(model, 1)
    found = sat_tf.verify_tflite(model, path, images, runtimes=["micro"])
    assert "Didn't find op for builtin opcode" in found.refused["micro"]
    assert "micro" not in found.runtimes
    assert "Didn't find op" not in capfd.readouterr().err


def test_a_product_with_4_bits_is_refused_with_the_reason(installed, small, path):
    sat_tf.export_tflite(small, path, pack="auto")
    reason = processes.refusals(path.read_bytes(), ["micro"])["micro"]
    assert "fully_connected_common.cc" in reason
    assert "kTfLiteInt4" in reason
    assert processes.refusals(path.read_bytes()[:500], ["micro"])["micro"]


# -- TOSA's reference model; without its tools, scripts that print the same take their place -------

HERE = pytest.mark.skipif(not is_installed(TOSA), reason="TOSA's tools are not on PATH")

# As tosa-opt prints a program with constants left out; its two equal results are one output.
PROGRAM = """\
module attributes {tfl.description = "a file", tfl.schema_version = 3 : i32} {
  func.func @main(%arg0: tensor<1x6x5x3xi8>) -> (tensor<1x30x3xi8>, tensor<1x1x30x3xi8>) {
    %0 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<9xi8>}> : () -> tensor<9xi8>
    %47 = tosa.reshape %arg0, %1 : (tensor<1x6x5x3xi8>, !tosa.shape<4>) -> tensor<1x1x30x3xi8>
    return %44, %47, %48#1, %47 : tensor<1x30x3xi8>, tensor<4xi8>, tensor<4xi8>, tensor<4xi8>
  }
}
"""
REFUSED = """\
error: 'tosa.abs' op requires the same element type for all operands and results
note: see current operation: %27 = "tosa.abs"(%26)
Error: conversion failed
"""


FAILED = (
    "SubgraphTraverser::initializeGraph(): OpFactory could not allocate op RESHAPE input=(INT4 "
    "rank 2) -> (INT4 rank 4)SubgraphTraverser::initializeGraph(): Input: layer_27\n"
    "SubgraphTraverser::initializeGraph(): Unsupported operation type.\nGraph result: ERROR."
)


def test_the_outputs_of_a_program_are_its_results_without_equal_ones():
    assert tools.results_in(PROGRAM) == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (REFUSED, "'tosa.abs' op requires the same element type for all operands and results"),
        (FAILED, "OpFactory could not allocate op RESHAPE input=(INT4 rank 2) -> (INT4 rank 4)"),
        ("noise\nlast\n", "last"),
        ("", "it gives no reason"),
    ],
)
def test_the_reason_of_a_tool_is_its_first_error(errors, reason):
    assert tools.reason_in(errors) == reason


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A function that puts scripts in the place of the tools."""

    def write(**scripts):
        for name, script in zip(tools.TOSA_TOOLS, scripts.values(), strict=True):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("SAT_TF_TOSA", str(tmp_path))
    return write


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("tosa") / "model.tflite"
    sat_tf.export_tflite(zoo.quantized("bottleneck"), path, target="int8")
    return path.read_bytes()


PRINTS = 'while [ "$1" != -o ]; do shift; done; echo "return {} : x" > "$2"'


def test_what_the_converter_refuses_is_said_in_its_words(scripts, content):
    scripts(converter="echo 'a.mlir:1: error: no tfl.elu' >&2; exit 1", optimizer="", model="")
    with pytest.raises(ValueError, match=r"TOSA's reference model does not load \(tosa-converter"):
        loaded(content, TOSA, keep_tensors=False)


def test_a_model_that_hands_nothing_out_is_an_error(scripts, content):
    scripts(converter="true", optimizer=PRINTS.format("%1"), model="echo WARNING >&2")
    runtime = loaded(content, TOSA, keep_tensors=False)
    with pytest.raises(ValueError, match=r"does not run \(tosa_reference_model makes no dense"):
        runtime.rehearse()


def test_the_version_is_that_of_the_converter(scripts):
    scripts(converter="echo TOSA Converter version: 2026.02.0; echo more", optimizer="", model="")
    assert tools.tosa_version() == "2026.02.0"


@HERE
def test_every_tensor_of_a_file_is_handed_out(tmp_path):
    # Flattening one pixel, and a dense layer on a sequence, make tensors that are one in a program.
    model = zoo.quantized("dense_on_a_sequence")
    images, settings = zoo.images_for(model, 2), {"target": "int8"}
    path = tmp_path / "model.tflite"
    _, found = proved(model, path, images, settings, runtimes=[TOSA])
    assert found.refused == {}
    counts = found.runtimes[TOSA]
    assert (counts.own_differing, counts.outputs_differing) == (0, 0) < (counts.own_compared,)
    assert "tosa-converter-for-tflite" in found.versions


@HERE
@pytest.mark.parametrize("output_type", ["float32", "int8", "uint8"])
def test_outputs_have_the_type_of_the_file(output_type, tmp_path):
    path = tmp_path / "model.tflite"
    model = zoo.quantized("bottleneck")
    sat_tf.export_tflite(model, path, output_type=output_type, target="int8")
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 9, 3)).astype(np.uint8)
    runtimes = [loaded(path.read_bytes(), name, keep_tensors=True) for name in (TOSA, "reference")]
    computed, expected = (runtime.run(images) for runtime in runtimes)
    np.testing.assert_allclose(computed, expected, rtol=1e-6)


@HERE
def test_operators_are_compared_one_by_one(content, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 9, 3)).astype(np.uint8)
    found = compare_operators(path, images, runtimes=[TOSA], progress=False)
    assert {operator.counts[TOSA].own.differing for operator in found.operators} == {0}
