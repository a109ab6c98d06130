import dataclasses
import os
import signal
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest

import sat_tf
from sat_tf.exact.litert import processes
from sat_tf.exact.litert.runtime import RUNTIMES, MicroRuntime, check_loading
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.operations.operation import Constant
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.tflite.tensors import Tensor
from sat_tf.export import export as file
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from tests.export import zoo
from tests.export.damage import changed
from tests.export.layer_models import MODELS
from tests.export.proofs import own_count
from tests.export.zoo import quantized

HEAVY = "print({'tensorflow', 'tf_keras', 'matplotlib', 'tflite_micro'} & set(sys.modules))"


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


def test_a_file_is_tried_in_every_runtime_and_refused_with_the_reason_of_litert(small_file):
    def without_zero_points(model, graph):
        for tensor in graph.tensors:
            if tensor.quantization is not None:
                tensor.quantization.zeroPoint = []

    content = small_file.read_bytes()
    assert processes.refusals(content, RUNTIMES) == dict.fromkeys(RUNTIMES)
    found = processes.refusals(content[:500], ["xnnpack", "builtin"])
    assert list(found) == ["xnnpack", "builtin"]
    assert all("not a valid Flatbuffer" in reason for reason in found.values())
    # It ends the process that tries it, and no other.
    found = processes.refusals(changed(content, without_zero_points), ["xnnpack"])
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


def test_a_file_that_does_not_run_is_not_handed_over(path, monkeypatch):
    model = quantized("bottleneck")
    graph = deployed_graph(Network(model))
    check_loading(serialize(graph, {}))
    nan = Constant(np.float32([np.nan]))
    product = Pair((graph.output,), "nan", Pointwise.PRODUCT, nan)
    tensors = {**graph.tensors, "nan": Tensor("nan", graph.tensors[graph.output].shape, None)}
    operations = (*graph.operations, product)
    broken = dataclasses.replace(graph, tensors=tensors, operations=operations, output="nan")
    monkeypatch.setattr(file, "file_graph", lambda *_: broken)
    path.write_bytes(b"older")
    with pytest.raises(ValueError, match=r"output for a black image is not finite"):
        sat_tf.export_tflite(model, path)
    assert [path.read_bytes() for path in path.parent.iterdir()] == [b"older"]


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
