import subprocess
import types

import pytest

from sat_tf.export.litert import processes as machine


@pytest.fixture
def _unknown(monkeypatch):
    monkeypatch.setattr(machine, "_found", [])


def _says(monkeypatch, words: bytes) -> None:
    answer = types.SimpleNamespace(stderr=words)
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: answer)


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
    assert machine.this_machine(b"").delegate == delegate


@pytest.mark.usefixtures("_unknown")
def test_litert_is_asked_once_a_process(monkeypatch):
    _says(monkeypatch, b"Created TensorFlow Lite XNNPACK delegate")
    machine.this_machine(b"")
    _says(monkeypatch, b"")
    assert machine.this_machine(b"").delegate == "XNNPACK"


@pytest.mark.usefixtures("_unknown")
def test_a_process_that_takes_too_long_has_no_delegate(monkeypatch):
    def run(*_, **__):
        raise subprocess.TimeoutExpired("litert", 1)

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.this_machine(b"").delegate == "none"
