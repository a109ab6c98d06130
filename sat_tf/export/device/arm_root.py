"""The Arm root: a small Debian system for Arm with Python, NumPy and LiteRT, in the user's cache.

Nothing is installed: packages are downloaded and unpacked into a folder, which takes no rights and
leaves the machine as it is.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from sat_tf.export.device.emulator import (
    PROCESSORS,
    emulator_in,
    lay_out,
    run_python,
    system_emulator,
)
from sat_tf.presentation.progress_bar import image_bar

# apt-get finds what these need.
_PACKAGES = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libgomp1", "zlib1g")
_QEMU_PACKAGES = ("qemu-user-static", "qemu-user")
_NUMPY = "numpy==2.2.*"
_PLATFORMS = tuple(
    f"{name}_aarch64"
    for name in ("manylinux_2_28", "manylinux_2_27", "manylinux2014", "manylinux_2_17")
)
# What neither Python's start nor LiteRT's interpreter reads.
_SPARED = (
    *("root/usr/share", "root/usr/include", "root/usr/lib/dpkg", "root/var", "root/usr/sbin"),
    *(f"root/usr/lib/python3.*/{name}" for name in ("test", "idlelib", "lib2to3", "turtledemo")),
    *("site/numpy/**/tests", "site/numpy/f2py", "site/ai_edge_litert/libLiteRtWebGpu*"),
    *(f"site/ai_edge_litert/{name}" for name in ("aot", "vendors", "tools")),
    *("site/ai_edge_litert/_pywrap_litert_converter.so", "site/ai_edge_litert/pywrap_genai*"),
)
# At the most, while qemu for all processors is unpacked.
_NEEDED_BYTES = 800_000_000
_SECONDS = 900
_TRIAL_SECONDS = 300
_A_DAY = 86_400
_TRIAL = "import numpy, ai_edge_litert.interpreter, platform; print(platform.machine())"
_RECORD = "root.json"

OFFER = (
    "or check on the machine itself: sat-tf verify model.tflite --images photos/ --kit kit.zip "
    "writes what to run there"
)


@dataclasses.dataclass(frozen=True)
class ArmRoot:
    """An Arm root that has been made.

    Attributes:
        folder: with all of it.
        emulator: qemu.
        litert: version of ai-edge-litert in it.
        python: version of Python in it.
        bytes: that it takes on the disk.
    """

    folder: pathlib.Path
    emulator: pathlib.Path
    litert: str
    python: str
    bytes: int


def root_folder() -> pathlib.Path:
    """Where the Arm root is, or will be: sat-tf/arm in $XDG_CACHE_HOME, by default ~/.cache."""
    named = os.environ.get("XDG_CACHE_HOME")
    # A relative one is invalid, and to be ignored.
    cache = (
        pathlib.Path(named) if named and os.path.isabs(named) else pathlib.Path.home() / ".cache"
    )
    return cache / "sat-tf" / "arm"


def find_root() -> ArmRoot:
    """The Arm root in the cache, and the emulator for it.

    Raises:
        ValueError: there is none, or it is damaged, or it has another LiteRT than this Python, or
            this system is not Linux.
    """
    _expect_linux()
    folder, litert = root_folder(), metadata.version("ai-edge-litert")
    record = folder / _RECORD
    if not record.is_file():
        emulator = "" if system_emulator() else "no qemu-aarch64 on this machine, and "
        raise ValueError(
            f"Arm: received {emulator}no Arm root in {folder}, expected both; make what is missing "
            f"with sat-tf arm_root, {OFFER}."
        )
    try:
        values = json.loads(record.read_text(encoding="utf-8"))
        found = ArmRoot(
            folder=folder,
            emulator=system_emulator() or emulator_in(folder / "emulator") or pathlib.Path(),
            litert=str(values["litert"]),
            python=str(values["python"]),
            bytes=int(values["bytes"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{record}: received a damaged record ({error!r}), expected that of an Arm root; make "
            f"it again with sat-tf arm_root --again, {OFFER}."
        ) from error
    if not found.emulator.is_file():
        raise ValueError(
            f"{folder}: received an Arm root without an emulator, expected qemu-aarch64 in it or "
            f"on this machine; get it with sat-tf arm_root --again, {OFFER}."
        )
    if found.litert != litert:
        raise ValueError(
            f"{folder}: received an Arm root with ai-edge-litert {found.litert}, expected the "
            f"{litert} of this Python; make it anew with sat-tf arm_root, {OFFER}."
        )
    return found


def make_root(*, progress: bool = False) -> ArmRoot:
    """Makes the Arm root, in place of an older one; it is there whole, or not at all.

    Debian's packages come from the sources that this machine has, the wheels from those of pip.

    Args:
        progress: show a bar.

    Raises:
        ValueError: this system is not Linux, a tool, the network or room on the disk is missing, or
            what was made does not run; says which, and what to do.
    """
    _expect_linux()
    _expect_tools()
    folder = root_folder()
    with _in_words(), _made_aside(folder) as aside:
        _expect_room(aside)
        steps: list[Callable[[], None]] = [
            lambda: _update(aside),
            lambda: _unpack_system(aside),
            lambda: _unpack_wheels(aside),
            lambda: _unpack_emulator(aside),
            lambda: _finish(aside),
        ]
        with image_bar("making the Arm root", len(steps), shown=progress) as advance:
            for step in steps:
                step()
                advance(1)
    return find_root()


def _expect_linux() -> None:
    if platform.system() != "Linux":
        raise ValueError(
            f"Arm: received an emulated processor to run on {platform.system() or 'this system'}, "
            "expected Linux, whose programs are all that qemu runs this way; use Linux, in a "
            f"container or a virtual machine, {OFFER}."
        )


def _expect_tools() -> None:
    missing = [name for name in ("apt-get", "dpkg-deb", "dpkg") if not shutil.which(name)]
    if missing:
        raise ValueError(
            f"Arm root: received a machine without {' and '.join(missing)}, expected Debian or one "
            f"of its relatives, whose packages it is made of; make it on one, {OFFER}."
        )


def _expect_room(folder: pathlib.Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _NEEDED_BYTES:
        raise ValueError(
            f"{folder.parent}: received {free / 1e6:,.0f} MB of free space, expected "
            f"{_NEEDED_BYTES / 1e6:,.0f} MB while the Arm root is made; free some, or name another "
            f"place in XDG_CACHE_HOME, {OFFER}."
        )


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"Arm root: received {error.strerror or error} for {error.filename or 'a file'}, "
            f"expected a cache that can be written, {root_folder().parent}; free some space, or "
            f"name another place in XDG_CACHE_HOME, {OFFER}."
        ) from error


@contextlib.contextmanager
def _made_aside(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """A new folder beside `folder`, which becomes it if the block succeeds."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(".arm_*"):
        # Of a run that was killed; one that may be going on is left alone.
        if time.time() - left.stat().st_mtime > _A_DAY:
            shutil.rmtree(left, ignore_errors=True)
    aside = folder.with_name(f".arm_{uuid.uuid4().hex}")
    old = aside.with_name(f"{aside.name}_old")
    aside.mkdir()
    try:
        yield aside
        if folder.exists():
            folder.rename(old)
        aside.rename(folder)
    finally:
        for left in (aside, old):
            shutil.rmtree(left, ignore_errors=True)


def _unpack(package: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpacks one of Debian's packages."""
    words = ["dpkg-deb", "-x", str(package), str(folder)]
    needs = "a whole package and room on the disk"
    _run(words, f"unpacking {package.name}", folder, needs=needs)


def _run(
    words: Sequence[str],
    doing: str,
    folder: pathlib.Path,
    *,
    needs: str = "a network and sources of packages for Arm",
) -> None:
    """Runs a tool; raises with the first error that it names where it fails."""
    quiet = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **quiet},
            cwd=folder,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise ValueError(
            f"Arm root: {doing} took more than {_SECONDS} s; try again with a faster network, "
            f"{OFFER}."
        ) from expired
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        errors = [line for line in said if line.startswith(("E:", "Err:", "ERROR:"))] or said
        raise ValueError(
            f"Arm root: {doing} failed ({errors[0] if errors else f'status {done.returncode}'}), "
            f"expected {needs}; try again with both, {OFFER}."
        )


def _apt(folder: pathlib.Path, *words: str) -> list[str]:
    """apt-get with lists, a cache and installed packages, none, of its own."""
    here = _architecture()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": f"arm64,{here}",
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
    return [
        "apt-get",
        "--quiet",
        *(f"-o{name}={value}" for name, value in settings.items()),
        *words,
    ]


def _architecture() -> str:
    """What Debian calls this machine."""
    done = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "amd64"


def _update(folder: pathlib.Path) -> None:
    (folder / "apt" / "lists" / "partial").mkdir(parents=True)
    (folder / "apt" / "cache" / "archives" / "partial").mkdir(parents=True)
    (folder / "apt" / "status").touch()
    _run(_apt(folder, "update"), "reading the lists of Debian's packages", folder)


def _unpack_system(folder: pathlib.Path) -> None:
    wanted = ("install", "--yes", "--download-only", "--no-install-recommends", *_PACKAGES)
    _run(_apt(folder, *wanted), "downloading Debian's packages", folder)
    root = folder / "root"
    root.mkdir()
    for package in sorted((folder / "apt" / "cache" / "archives").glob("*.deb")):
        _unpack(package, root)
    if not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")


def _python_in(folder: pathlib.Path) -> str:
    """The version of the Python in a root, such as "3.11"."""
    found = sorted((folder / "root" / "usr" / "bin").glob("python3.*"))
    if not found:
        raise ValueError(
            f"Arm root: received packages without Python 3 ({', '.join(_PACKAGES)}), expected "
            f"Debian's; use its sources, {OFFER}."
        )
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
        for file in sorted(place.glob("*.deb")):
            _unpack(file, place)
        if found := emulator_in(place):
            kept = folder / "emulator" / "usr" / "bin"
            kept.mkdir(parents=True)
            found.rename(kept / found.name)
            return
    raise ValueError(
        f"Arm root: received {' and '.join(_QEMU_PACKAGES)} without qemu-aarch64, expected it in "
        f"one of them; install it yourself, {OFFER}."
    )


def _finish(folder: pathlib.Path) -> None:
    """Leaves out what nobody reads, tries it on every processor, and records it."""
    python = _python_in(folder)
    for name in ("apt", "wheels", "qemu"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for pattern in _SPARED:
        for found in folder.glob(pattern):
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink(missing_ok=True)
    emulator = system_emulator() or emulator_in(folder / "emulator") or pathlib.Path()
    for processor in PROCESSORS:
        lay_out(folder, processor)
        try:
            said = run_python(
                *(emulator, folder, processor, "-c", _TRIAL),
                seconds=_TRIAL_SECONDS,
                working=folder,
            )
        except ValueError as error:
            raise ValueError(
                f"Arm root: {processor.title}: {error}; expected Python with LiteRT to start under "
                f"{emulator.name}; use a newer one, {OFFER}."
            ) from error
        if said.split() != ["aarch64"]:
            raise ValueError(
                f"Arm root: {processor.title}: received {said[:80]!r}, expected Python to start "
                f"under {emulator.name} and say aarch64; use another qemu, {OFFER}."
            )
    record = {
        "litert": metadata.version("ai-edge-litert"),
        "python": python,
        "bytes": sum(
            path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        ),
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
