"""Emulated processors: with stand-ins for the emulator and, where they are there, in earnest."""

import json
import sys

import numpy as np
import pytest

from sat_tf.commands import main
from sat_tf.export.certificate.certificate import read_certificate
from sat_tf.export.device import arm_root
from sat_tf.export.device.arm_root import find_root
from sat_tf.export.device.emulator import PROCESSORS, lay_out, run_python
from sat_tf.export.device_verification import verify_on_arm

# What the emulator is given: -cpu NAME -L ROOT PYTHON SCRIPT.
NATIVELY = f'exec env -i "{sys.executable}" -I "$6"'


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes an Arm root whose emulator is a shell script."""

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
        litert = arm_root.metadata.version("ai-edge-litert")
        values = {"litert": litert, "python": "3.11", "bytes": 1, **record}
        (folder / "root.json").write_text(json.dumps(values))
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        for module in ("arm_root", "emulator"):
            monkeypatch.setattr(f"sat_tf.export.device.{module}.system_emulator", lambda: None)
        return folder

    return make


def test_every_processor_is_told_with_what_it_computed(stand_in, small_file, few_images):
    stand_in(NATIVELY)
    found = verify_on_arm(small_file, few_images)
    assert [device.processor for device in found] == [one.title for one in PROCESSORS]
    assert all(device.emulated and device.is_exact for device in found)
    assert {device.codes_differing for device in found} == {0}


def test_the_certificate_of_a_verification_tells_of_them(
    stand_in, small_file, few_images, tmp_path, capsys
):
    stand_in(NATIVELY)
    np.save(tmp_path / "images.npy", few_images)
    words = ["--images", str(tmp_path / "images.npy"), "--out", str(tmp_path / "proof")]
    assert main.main(["verify", str(small_file), "--arm", "--runtime", "xnnpack", *words]) == 0
    assert "Other machines" in capsys.readouterr().out
    found = read_certificate(tmp_path / "proof" / "certificate.json")
    assert [device.processor for device in found.devices] == [one.title for one in PROCESSORS]
    assert {device.codes_compared for device in found.devices} == {found.codes_compared}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("kill -SEGV $$", "it ends the process with SIGSEGV"),
        ("echo 'no such processor' >&2; exit 3", "ended with status 3: no such processor"),
        ("echo '%$!'", "it has written no certificate"),
        ("echo '%$!' > certificate_x.json", "is not JSON"),
        ("echo 'Traceback: no numpy' >&2; exit 1", "status 1: Traceback: no numpy"),
        ("", "it has written no certificate"),
    ],
)
def test_an_emulator_that_fails_is_one_message(
    script, expected, stand_in, small_file, few_images, tmp_path
):
    stand_in(script)
    with pytest.raises(ValueError, match=expected) as caught:
        verify_on_arm(small_file, few_images)
    said = str(caught.value)
    assert said.startswith("Cortex-A53, emulated by qemu-aarch64-static: ")
    assert "sat-tf arm_root --again" in said
    assert "--kit kit.zip" in said


def test_one_that_hangs_is_ended(stand_in, tmp_path):
    folder = stand_in("exec sleep 60")
    emulator = folder / "emulator" / "usr" / "bin" / "qemu-aarch64-static"
    with pytest.raises(ValueError, match="it took more than 0 s"):
        run_python(emulator, folder, PROCESSORS[0], "-V", seconds=0.2, working=tmp_path)


def test_without_a_root_the_kit_is_offered(tmp_path, monkeypatch, small_file, few_images):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(arm_root, "system_emulator", lambda: None)
    with pytest.raises(ValueError, match=r"no qemu-aarch64 .*no Arm root in .*sat-tf arm_root, or"):
        verify_on_arm(small_file, few_images)
    assert not list(tmp_path.iterdir())


def test_a_root_that_does_not_fit_is_told_why(stand_in):
    folder = stand_in("", litert="1.0.0")
    with pytest.raises(ValueError, match=r"an Arm root with ai-edge-litert 1.0.0, expected the"):
        find_root()
    (folder / "root.json").write_text("{}")
    with pytest.raises(ValueError, match=r"damaged record .*sat-tf arm_root --again"):
        find_root()


def test_a_root_without_its_emulator_is_told(stand_in):
    folder = stand_in("")
    (folder / "emulator" / "usr" / "bin" / "qemu-aarch64-static").unlink()
    with pytest.raises(ValueError, match="an Arm root without an emulator"):
        find_root()


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
def test_emulated_arm_processors_compute_every_code(small_file, few_images):
    try:
        find_root()
    except ValueError as error:
        pytest.skip(str(error))
    found = verify_on_arm(small_file, few_images)
    assert [device.kernels for device in found] == ["NEON", "dot product", "matrix (i8mm)"]
    assert {device.machine for device in found} == {"aarch64"}
    assert {device.delegate for device in found} == {"XNNPACK"}
    assert {(device.codes_differing, device.outputs_differing) for device in found} == {(0, 0)}
