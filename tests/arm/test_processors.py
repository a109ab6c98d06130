"""Emulated processors: with stand-ins for the emulator and, where they are there, in earnest."""

import json
import sys

import pytest

from sat_tf.export.certificate.proof import read_subject
from tests.arm import system
from tests.arm.processors import PROCESSORS, check_on_arm, lay_out, run_python
from tests.arm.system import find_system

# The emulator is given -cpu NAME -L ROOT PYTHON SCRIPT.
NATIVELY = f'exec env -i "{sys.executable}" -I "$6"'


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes an Arm system whose emulator is a shell script."""

    def make(script, **record):
        cache = tmp_path / "cache"
        folder = cache / "sat-tf" / "arm"
        (folder / "root" / "usr" / "bin").mkdir(parents=True)
        (folder / "root" / "usr" / "bin" / "python3.11").touch()
        for processor in PROCESSORS:
            lay_out(folder, processor)
        emulator = folder / "emulator" / "usr" / "bin" / "qemu-aarch64-static"
        emulator.parent.mkdir(parents=True)
        emulator.write_text(f"#!/bin/sh\n{script}\n")
        emulator.chmod(0o755)
        litert = system.metadata.version("ai-edge-litert")
        (folder / "root.json").write_text(
            json.dumps({"litert": litert, "python": "3.11", **record})
        )
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        monkeypatch.setattr(system, "system_emulator", lambda: None)
        return folder

    return make


def test_every_processor_is_told_with_what_it_computed(stand_in, small_file, few_images):
    stand_in(NATIVELY)
    found = check_on_arm(read_subject(small_file), few_images, find_system())
    assert [device.processor for device in found] == [one.title for one in PROCESSORS]
    assert all(device.is_exact for device in found)
    assert {device.codes_differing for device in found} == {0}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("kill -SEGV $$", "it ends the process with SIGSEGV"),
        ("echo 'no such processor' >&2; exit 3", "ended with status 3: no such processor"),
        ("echo '%$!' > certificate_x.json", "is not JSON"),
        ("echo 'Traceback: no numpy' >&2; exit 1", "status 1: Traceback: no numpy"),
        ("", "Cortex-A53 has written no certificate"),
    ],
)
def test_an_emulator_that_fails_is_one_message(script, expected, stand_in, small_file, few_images):
    stand_in(script)
    with pytest.raises(ValueError, match=expected):
        check_on_arm(read_subject(small_file), few_images, find_system())


def test_one_that_hangs_is_ended(stand_in, tmp_path):
    folder = stand_in("exec sleep 60")
    emulator = folder / "emulator" / "usr" / "bin" / "qemu-aarch64-static"
    with pytest.raises(ValueError, match="it took more than 0 s"):
        run_python(emulator, folder, PROCESSORS[0], "-V", seconds=0.2, working=tmp_path)


def test_a_system_that_does_not_fit_is_told_why(stand_in):
    folder = stand_in("", litert="1.0.0")
    with pytest.raises(ValueError, match=r"ai-edge-litert 1.0.0, expected qemu-aarch64 and"):
        find_system()
    (folder / "root.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no Arm system there .*python -m tests\.arm\.system"):
        find_system()


def test_a_system_without_its_emulator_is_told(stand_in):
    folder = stand_in("")
    (folder / "emulator" / "usr" / "bin" / "qemu-aarch64-static").unlink()
    with pytest.raises(ValueError, match="the emulator None"):
        find_system()


def test_processors_share_all_but_their_cpuinfo(stand_in):
    folder = stand_in("")
    texts = set()
    for processor in PROCESSORS:
        own = folder / "processors" / processor.name
        assert (own / "usr" / "bin" / "python3.11").samefile(folder / "root/usr/bin/python3.11")
        texts.add((own / "proc" / "cpuinfo").read_text())
    assert len(texts) == len(PROCESSORS)
    assert all(text.count("processor\t:") == 2 for text in texts)


@pytest.mark.thorough
def test_emulated_arm_processors_compute_every_code(small_file, few_images, arm_system):
    found = check_on_arm(read_subject(small_file), few_images, arm_system)
    assert [device.kernels for device in found] == ["NEON", "dot product", "matrix (i8mm)"]
    assert {device.machine for device in found} == {"aarch64"}
    assert {device.delegate for device in found} == {"XNNPACK"}
    assert {(device.codes_differing, device.outputs_differing) for device in found} == {(0, 0)}
