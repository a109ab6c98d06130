"""The Arm system: a small Debian for Arm with Python, NumPy and LiteRT, in the user's cache.

    python -m tests.arm.system            # makes it, unless one that fits is there
    python -m tests.arm.system --again

Nothing is installed: Debian's packages, wheels, and qemu where this machine has none, are
downloaded (55 MB, and 63 MB for qemu) and unpacked into sat-tf/arm in $XDG_CACHE_HOME, by default
~/.cache, which takes no rights. It needs Debian or a relative of it, and a network; without the
system, tests on emulated Arm processors are skipped.
"""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib import metadata

from sat_tf.exact.device.kit import DeviceCheck, read_device_certificate, write_kit
from sat_tf.exact.litert.processes import describe_ending
from tests.exact.device.kits import certificate_in

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
        lines = f"BogoMIPS\t: 50.00\nFeatures\t: {self.features}\nCPU implementer\t: 0x41\n"
        lines += f"CPU architecture\t: 8\nCPU variant\t: 0x1\nCPU part\t: {self.part}\n"
        lines += "CPU revision\t: 1\n"
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


def run_python(emulator, folder, processor, *arguments, seconds, working) -> str:
    """Runs Python on an emulated processor, and returns what it prints.

    It is to end in time and with 0 or 1.
    """
    own = folder / "processors" / processor.name
    python = next(iter(sorted((own / "usr" / "bin").glob("python3.*"))), own / "usr/bin/python3")
    environment = {"PYTHONHOME": str(own / "usr"), "PYTHONPATH": str(folder / "site")}
    environment |= {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"LC_ALL": "C.UTF-8", "PATH": os.defpath}
    command = [str(emulator), "-cpu", processor.qemu, "-L", str(own), str(python), *arguments]
    settings = {"env": environment, "cwd": working, "timeout": seconds, "check": False}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, **settings)
    if done.returncode not in (0, 1) or (done.returncode and b"Traceback" in done.stderr):
        raise ValueError(describe_ending(done.returncode, done.stderr))
    return done.stdout.decode(errors="replace")


def check_on_arm(subject, images, system, processors=PROCESSORS) -> list[DeviceCheck]:
    """Runs a file on emulated Arm processors, and compares every code: a check for each."""
    work = sum(operation.multiply_adds(subject.graph) for operation in subject.graph.operations)
    seconds = _SECONDS_TO_START + len(images) * work / _MULTIPLY_ADDS_PER_SECOND
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        kit = write_kit(subject, images, folder / "kit.zip", codes=True)
        for processor in processors:
            working = folder / processor.name
            working.mkdir()
            words = (system.emulator, system.folder, processor, str(kit.path))
            run_python(*words, seconds=seconds, working=working)
            certificate = read_device_certificate(certificate_in(working))
            assert certificate.kit.seal == kit.seal
            found.append(dataclasses.replace(certificate.check, processor=processor.title))
    return found


# apt-get finds what these need.
_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libgomp1", "zlib1g")
_QEMU_PACKAGES = ("qemu-user-static", "qemu-user")
_NUMPY = "numpy==2.2.*"
_PLATFORMS = [f"manylinux{name}_aarch64" for name in ("_2_28", "_2_27", "2014", "_2_17")]
_SECONDS = 900
_TRIAL_SECONDS = 300
_TRIAL = "import numpy, ai_edge_litert.interpreter, platform; print(platform.machine())"
_RECORD, _MAKE = "root.json", "make it with python -m tests.arm.system"


@dataclasses.dataclass(frozen=True)
class ArmSystem:
    """An Arm system that has been made, with the versions of LiteRT and Python in it."""

    folder: pathlib.Path
    emulator: pathlib.Path
    litert: str
    python: str


def system_folder() -> pathlib.Path:
    """The folder of the Arm system: sat-tf/arm in $XDG_CACHE_HOME, by default ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is invalid, and to be ignored.
    cache = named if os.path.isabs(named) else "~/.cache"
    return pathlib.Path(cache).expanduser() / "sat-tf" / "arm"


def find_system() -> ArmSystem:
    """Finds the Arm system of this Python's LiteRT in the cache, and the emulator for it."""
    folder, litert = system_folder(), metadata.version("ai-edge-litert")
    try:
        values = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        emulator = system_emulator() or emulator_in(folder / "emulator")
        found = ArmSystem(folder, emulator, values["litert"], values["python"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder}: received no Arm system ({error!r}); {_MAKE}") from error
    if found.emulator is None or found.litert != litert:
        received = f"the emulator {found.emulator} and ai-edge-litert {found.litert}"
        raise ValueError(f"{folder}: received {received}, expected one, and {litert}; {_MAKE}")
    return found


def make_system() -> ArmSystem:
    """Makes the Arm system, in place of an older one; it is there whole, or not at all.

    Debian's packages come from the sources that this machine has, the wheels from those of pip.
    """
    folder = system_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".arm_", dir=folder.parent) as name:
        aside = pathlib.Path(name) / "arm"
        aside.mkdir()
        for step in (_unpack_system, _unpack_wheels, _unpack_emulator, _finish):
            step(aside)
        if folder.exists():
            folder.rename(pathlib.Path(name) / "older")
        aside.rename(folder)
    return find_system()


def _run(words: Sequence[str], doing: str, folder: pathlib.Path) -> None:
    """Runs a tool; raises with the first error that it names where it fails."""
    quiet = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    settings = {"env": quiet, "cwd": folder, "timeout": _SECONDS, "check": False}
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, **settings)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        errors = [line for line in said if line.startswith(("E:", "Err:", "ERROR:"))] or said
        reason = errors[0] if errors else f"status {done.returncode}"
        raise ValueError(f"{doing} failed ({reason}), expected a network, and packages for Arm")


def _unpack(packages: pathlib.Path, folder: pathlib.Path) -> None:
    for package in sorted(packages.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(folder)], f"unpacking {package.name}", folder)


def _apt(folder: pathlib.Path, *words: str) -> list[str]:
    """apt-get with lists, a cache and installed packages, none, of its own."""
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": f"arm64,{_architecture()}",
        "APT::Update::Error-Mode": "any",
        "Dir::State": folder / "apt",
        "Dir::State::status": folder / "apt" / "status",
        "Dir::Cache": folder / "apt" / "cache",
        "Dir::Log": folder / "apt",
        "Debug::NoLocking": "1",
    }
    if os.geteuid() == 0:
        # The user that it becomes otherwise may not write into a cache of root's.
        settings["APT::Sandbox::User"] = "root"
    return ["apt-get", "--quiet", *(f"-o{key}={value}" for key, value in settings.items()), *words]


def _architecture() -> str:
    """Debian's name of this architecture."""
    words = ["dpkg", "--print-architecture"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip() or "amd64"


def _unpack_system(folder: pathlib.Path) -> None:
    for name in ("lists", "cache/archives"):
        (folder / "apt" / name / "partial").mkdir(parents=True)
    (folder / "apt" / "status").touch()
    _run(_apt(folder, "update"), "reading the lists of Debian's packages", folder)
    wanted = ("install", "--yes", "--download-only", "--no-install-recommends", *_PACKAGES)
    _run(_apt(folder, *wanted), "downloading Debian's packages", folder)
    root = folder / "root"
    root.mkdir()
    _unpack(folder / "apt" / "cache" / "archives", root)
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")


def _python_in(folder: pathlib.Path) -> str:
    """The version of the Python in a system, such as "3.11"."""
    found = sorted((folder / "root" / "usr" / "bin").glob("python3.*"))
    if not found:
        raise ValueError(f"received packages without Python 3 ({', '.join(_PACKAGES)})")
    return found[0].name.removeprefix("python")


def _unpack_wheels(folder: pathlib.Path) -> None:
    version, litert = _python_in(folder), metadata.version("ai-edge-litert")
    words = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input"]
    words += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", version]
    words += [word for name in _PLATFORMS for word in ("--platform", name)]
    words += ["--dest", str(folder / "wheels"), f"ai-edge-litert=={litert}", _NUMPY]
    _run(words, f"downloading ai-edge-litert {litert} and NumPy for Arm", folder)
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")


def _unpack_emulator(folder: pathlib.Path) -> None:
    """Debian's qemu, where this machine has none."""
    if system_emulator():
        return
    for package in _QEMU_PACKAGES:
        place = folder / "qemu" / package
        place.mkdir(parents=True)
        words = _apt(folder, "download", f"{package}:{_architecture()}")
        _run(words, f"downloading {package}", place)
        _unpack(place, place)
        if found := emulator_in(place):
            kept = folder / "emulator" / "usr" / "bin"
            kept.mkdir(parents=True)
            found.rename(kept / found.name)
            return
    raise ValueError(f"received {' and '.join(_QEMU_PACKAGES)} without qemu-aarch64")


def _finish(folder: pathlib.Path) -> None:
    """Leaves out what was downloaded, tries it on every processor, and records it."""
    python = _python_in(folder)
    for name in ("apt", "wheels", "qemu"):
        shutil.rmtree(folder / name, ignore_errors=True)
    emulator = system_emulator() or emulator_in(folder / "emulator") or pathlib.Path()
    for processor in PROCESSORS:
        lay_out(folder, processor)
        words = (emulator, folder, processor, "-c", _TRIAL)
        said = run_python(*words, seconds=_TRIAL_SECONDS, working=folder)
        if said.split() != ["aarch64"]:
            raise ValueError(f"{processor.title}: received {said[:80]!r}, expected aarch64")
    record = {"litert": metadata.version("ai-edge-litert"), "python": python}
    (folder / _RECORD).write_text(json.dumps(record) + "\n", encoding="utf-8")


def main(words: Sequence[str]) -> int:
    """Makes the system, unless one that fits is there."""
    try:
        found = find_system() if "--again" not in words else None
    except ValueError:
        found = None
    try:
        found = found or make_system()
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"The Arm system: {error}", file=sys.stderr)
        return 2
    versions = f"Python {found.python}, ai-edge-litert {found.litert}"
    print(f"The Arm system is in {found.folder}: {versions}, {found.emulator}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
