"""Arm processors on another one: a proof kit runs in the Arm system, under qemu."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sat_tf.export.certificate.proof import Subject
from sat_tf.export.device.kit import write_kit
from sat_tf.export.device.report import DeviceCheck, read_device_certificate
from sat_tf.export.litert.processes import describe_ending

# Far beyond what was measured: 2 s to start, and half a billion multiply-adds a second.
_SECONDS_TO_START = 300
_MULTIPLY_ADDS_PER_SECOND = 2e7

# Its packages call it by these names.
_EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")


@dataclasses.dataclass(frozen=True)
class Processor:
    """A kind of Arm processor, which LiteRT has kernels of its own for.

    Attributes:
        qemu: what qemu calls it.
        part: its number in /proc/cpuinfo, as its features are those there.
    """

    name: str
    title: str
    qemu: str
    part: str
    features: str

    @property
    def cpuinfo(self) -> str:
        """The /proc/cpuinfo of two of them, without which LiteRT ends with SIGSEGV."""
        fields = {
            "BogoMIPS": "50.00",
            "Features": self.features,
            "CPU implementer": "0x41",
            "CPU architecture": "8",
            "CPU variant": "0x1",
            "CPU part": self.part,
            "CPU revision": "1",
        }
        lines = "".join(f"{name}\t: {value}\n" for name, value in fields.items())
        return "".join(f"processor\t: {number}\n{lines}\n" for number in range(2))


_NEON = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
_DOT = f"{_NEON} atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp"
_MATRIX = f"{_DOT} jscvt fcma sha3 sm3 sm4 sha512 asimdfhm dit uscat ilrcpc flagm i8mm bf16"
# They are ordered from the slowest kernels to the fastest that qemu can run.
PROCESSORS = (
    Processor("neon", "Cortex-A53", "cortex-a53", "0xd03", _NEON),
    Processor("dot", "Cortex-A76", "cortex-a76", "0xd0b", _DOT),
    # No processor is like this; scalable vectors would have other kernels chosen.
    Processor("matrix", "Armv8.6 with i8mm", "max,sve=off,sme=off", "0xd0b", _MATRIX),
)


def system_emulator() -> pathlib.Path | None:
    """The qemu that is installed, if one is."""
    found = next(filter(None, map(shutil.which, _EMULATORS)), None)
    return None if found is None else pathlib.Path(found)


def emulator_in(folder: pathlib.Path) -> pathlib.Path | None:
    """The qemu among the files of an unpacked package, if it is there."""
    places = [folder / "usr" / "bin" / name for name in _EMULATORS]
    return next((place for place in places if place.is_file()), None)


def lay_out(folder: pathlib.Path, processor: Processor) -> pathlib.Path:
    """Makes the folder that qemu takes for the root of a processor; returns it.

    It shares all but /proc/cpuinfo with the others: qemu looks into this folder first.
    """
    own = folder / "processors" / processor.name
    own.mkdir(parents=True)
    for shared in sorted((folder / "root").iterdir()):
        (own / shared.name).symlink_to(pathlib.Path("..", "..", "root", shared.name))
    cores = own / "sys" / "devices" / "system" / "cpu"
    for place in (own / "proc", cores):
        place.mkdir(parents=True)
    (own / "proc" / "cpuinfo").write_text(processor.cpuinfo)
    for name in ("possible", "present"):
        (cores / name).write_text("0-1\n")
    return own


def run_python(
    emulator: pathlib.Path,
    folder: pathlib.Path,
    processor: Processor,
    *arguments: str,
    seconds: float,
    working: pathlib.Path,
    settings: Mapping[str, str] | None = None,
) -> str:
    """Runs Python on an emulated processor, and returns what it prints.

    It is to end in time and with 0 or 1. `settings` are variables beside its own.
    """
    own = folder / "processors" / processor.name
    python = next(iter(sorted((own / "usr" / "bin").glob("python3.*"))), own / "usr/bin/python3")
    environment = {
        "PYTHONHOME": str(own / "usr"),
        "PYTHONPATH": str(folder / "site"),
        "PYTHONNOUSERSITE": "1",
        "LC_ALL": "C.UTF-8",
        "PATH": os.defpath,
        **(settings or {}),
    }
    command = [str(emulator), "-cpu", processor.qemu, "-L", str(own), str(python), *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            cwd=working,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise ValueError(f"it took more than {seconds:.0f} s") from expired
    except OSError as error:
        raise ValueError(f"{emulator} does not start ({error.strerror})") from error
    if done.returncode not in (0, 1):
        raise ValueError(describe_ending(done.returncode, done.stderr))
    if done.returncode == 1 and b"Traceback" in done.stderr:
        raise ValueError(describe_ending(1, done.stderr))
    return done.stdout.decode(errors="replace")


def check_on_arm(
    subject: Subject,
    images: np.ndarray,
    system: Any,
    processors: Sequence[Processor] = PROCESSORS,
) -> list[DeviceCheck]:
    """Runs a file on emulated Arm processors, and compares every code: a check for each."""
    work = sum(operation.multiply_adds(subject.graph) for operation in subject.graph.operations)
    seconds = _SECONDS_TO_START + len(images) * work / _MULTIPLY_ADDS_PER_SECOND
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        kit = write_kit(subject, images, folder / "kit.zip", codes=True)
        with zipfile.ZipFile(kit.path) as archive:
            archive.extractall(folder / "kit")
        for processor in processors:
            working = folder / processor.name
            working.mkdir()
            run_python(
                *(system.emulator, system.folder, processor, str(folder / "kit" / "check.py")),
                seconds=seconds,
                working=working,
                settings={"PYTHONDONTWRITEBYTECODE": "1"},
            )
            written = next(iter(working.glob("certificate_*.json")), None)
            if written is None:
                raise ValueError(f"{processor.title} has written no certificate")
            certificate = read_device_certificate(written)
            if certificate.kit.seal != kit.seal:
                raise ValueError(f"{processor.title} has written the certificate of another kit")
            found.append(dataclasses.replace(certificate.check, processor=processor.title))
    return found
