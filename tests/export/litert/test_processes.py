import os
import signal
import subprocess
import sys
import types

import pytest

from sat_tf.export.litert import processes
from sat_tf.export.litert.runtime import RUNTIMES
from tests.export.damage import changed

HEAVY = "print(sorted({'tensorflow', 'tf_keras', 'matplotlib'} & set(sys.modules)))"


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


@pytest.mark.parametrize(
    "module", ["litert.processes", "litert.workers", "evaluate", "file_verification"]
)
def test_processes_that_run_files_load_no_tensorflow(module, tmp_path):
    # Python would find modules of the working directory first.
    (tmp_path / "numpy.py").write_text("raise ImportError")
    code = f"import sys; import sat_tf.export.{module}; {HEAVY}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=processes.child_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


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
    monkeypatch.setattr(
        processes, "child_command", lambda module, *words: [sys.executable, "-c", code, *words]
    )
    assert processes.refusals(b"", ["one", "two", "three"]) == {
        "one": None,
        "two": "it ends the process with SIGABRT",
        "three": None,
    }


def test_a_file_that_takes_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS", 0.1)
    monkeypatch.setattr(
        processes, "child_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    assert processes.refusals(b"", ["one"]) == {"one": "it took more than 0.1 s"}


@pytest.mark.skipif(not os.path.exists("/proc"), reason="memory is limited on Linux")
def test_memory_that_a_damaged_file_asks_for_is_refused(small_file):
    def enormous(model, graph):
        graph.tensors[graph.inputs[0]].shape = [1, 2**15, 2**15, 3]

    found = processes.refusals(changed(small_file.read_bytes(), enormous), ["builtin"])
    assert found["builtin"] is not None


@pytest.fixture
def _unknown(monkeypatch):
    monkeypatch.setattr(processes, "_found", [])


def _says(monkeypatch, words: bytes) -> None:
    answer = types.SimpleNamespace(stderr=words)
    monkeypatch.setattr(processes.subprocess, "run", lambda *_, **__: answer)


@pytest.mark.usefixtures("_unknown")
@pytest.mark.parametrize(
    ("words", "delegate"),
    [
        (b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n", "XNNPACK"),
        (b"INFO: Created TensorFlow Lite YNNPACK delegate for CPU.\n", "YNNPACK"),
        (b"", "none"),
    ],
)
def test_the_delegate_is_what_litert_says_it_has_created(monkeypatch, words, delegate):
    _says(monkeypatch, words)
    assert processes.this_machine(b"").delegate == delegate


@pytest.mark.usefixtures("_unknown")
def test_litert_is_asked_once_a_process(monkeypatch):
    _says(monkeypatch, b"Created TensorFlow Lite XNNPACK delegate")
    processes.this_machine(b"")
    _says(monkeypatch, b"")
    assert processes.this_machine(b"").delegate == "XNNPACK"


@pytest.mark.usefixtures("_unknown")
def test_a_process_that_takes_too_long_has_no_delegate(monkeypatch):
    def run(*_, **__):
        raise subprocess.TimeoutExpired("litert", 1)

    monkeypatch.setattr(processes.subprocess, "run", run)
    assert processes.this_machine(b"").delegate == "none"
