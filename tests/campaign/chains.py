"""Chains of commands on a tiny model, undisturbed, and what has to be true of the files they leave.

A chain that was disturbed has to come to the same files as one that was left alone.
"""

import csv
import dataclasses
import functools
import io
import json
import pathlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from typing import Any

import h5py
import yaml
from PIL import Image

from tests.campaign import moments
from tests.campaign.cases import FindingError, expect_success
from tests.campaign.originals import original
from tests.campaign.processes import Ended, server

_QUANTIZE = ("quantize", "float.keras", "--input_range", "0,255", "--out", "done", "--images")
_VERIFY = ("verify", "own.tflite", "--images", "pictures", "--out", "proof", "--runtime", "xnnpack")
_PROVE = ("verify", "model.tflite", "--images", "pictures")
_PAGES = ("--out", "plan.html", "--out", "plan.csv", "--out", "plan.json")

# The chains by what they do; the files of the first command are in `done`.
CHAINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "calibrated": (
        (*_QUANTIZE, "pictures", "--bits", "8"),
        ("export", "done/quantized.keras", "--out", "own.tflite"),
        ("verify", "done/quantized.keras", *_VERIFY[1:]),
    ),
    "run": (
        (*_QUANTIZE, "classes", "--bits", "8"),
        ("export", "done", "--out", "own.tflite"),
        _VERIFY,
    ),
    "taught": (
        (*_QUANTIZE, "classes", "--bits", "4", "--epochs", "1", "--learning_rate", "0.01"),
        ("verify", "done"),
    ),
    "train": (
        ("train", "--config", "run.yaml", "--out", "done"),
        ("export", "done"),
        ("verify", "done"),
    ),
    "export": (
        ("export", "quantized.keras", "--out", "own.tflite"),
        ("export", "quantized.keras", "--out", "own.tflite", "--float_head"),
        _VERIFY,
    ),
    "proof": (
        (*_PROVE, "--out", "proof", "--kit", "kit.zip"),
        (*_PROVE, "--out", "again", "--certificate", "proof/certificate.json"),
        ("explain", "float.keras", "--input_range", "0,255", *_PAGES),
    ),
}
_INPUTS = ("float.keras", "quantized.keras", "model.tflite", "run.yaml", "classes", "pictures")
# A command of a chain computes for some seconds; on a busy machine these are minutes.
MOST_SECONDS, WALL_SECONDS = 90, 900


@functools.cache
def _kept_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="sat-tf-campaign-")


def begin(folder: pathlib.Path, name: str = "", done: int = 0) -> pathlib.Path:
    """Makes the working directory of a chain, `case` in a folder, with so many commands done."""
    place = folder / "case"
    if done:
        shutil.copytree(reference(name).commands[done - 1].left, place, symlinks=True)
        return place
    place.mkdir(parents=True)
    for source in map(original, _INPUTS):
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / source.name)
    return place


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """A command of a chain that was left alone.

    Attributes:
        seconds: of the processor that it took.
        events: that it counted.
        left: a copy of the working directory as it was behind it.
    """

    seconds: float
    events: tuple[str, ...]
    left: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Reference:
    """A chain that was left alone: its working directory with its files, and its commands."""

    place: pathlib.Path
    commands: tuple[Undisturbed, ...]


@functools.cache
def reference(name: str) -> Reference:
    """The chain of this name, left alone; it runs once in a process."""
    place = begin(pathlib.Path(_kept_folder().name, name))
    commands = []
    for words in CHAINS[name]:
        ended = run(words, place)
        if ended.status:
            raise RuntimeError(f"{' '.join(words)}: {ended.err}")
        left = place.with_name(f"behind {len(commands)}")
        shutil.copytree(place, left, symlinks=True)
        commands.append(Undisturbed(ended.seconds, tuple(events_of(place)), left))
    return Reference(place, tuple(commands))


def run(words: Sequence[str], place: pathlib.Path, moment: dict[str, Any] | None = None) -> Ended:
    """Runs a command of a chain in its working directory; see `moments.run`."""
    is_light = words[0] == "verify" and words[1].endswith(".tflite")
    return server("light" if is_light else "tensorflow").call(
        f"{moments.__name__}:run", words, moment, cwd=place, seconds=WALL_SECONDS
    )


def events_of(place: pathlib.Path) -> list[str]:
    """The events that the last command in a working directory has counted."""
    return place.with_name(moments.LOG).read_text().splitlines()


# -- what has to be true ---------------------------------------------------------------------------

_OWN_TEMPORARY = re.compile(r"\.?sat_tf-[0-9a-f]{8}-\d+-")
# Their names are made by TensorFlow, or they hold no data of their own.
_NOT_READ = re.compile(r"\.lock$|tfevents|(^|/)ckpt-")
# These differ between any two runs: times, and what is made of times.
_TIMES = {"seconds", "started", "created", "date", "time", "reconstruction_seconds"}


def expect_whole_files(place: pathlib.Path) -> None:
    """Raises the finding of a file in a folder that is not whole.

    Temporary files, which a killed process leaves, are passed over: they have names of their own.
    """
    for path in _files(place).values():
        try:
            _read(path)
        except Exception as error:
            raise FindingError("left-over", f"{path} is not whole: {error}") from error


def expect_nothing_left(folder: pathlib.Path) -> None:
    """Raises the finding of temporary files, or of checkpoints of a run that is done."""
    left = [
        path.name
        for path in folder.rglob("*")
        if _OWN_TEMPORARY.match(path.name) or ("ckpt-" in path.name and "temp" in path.name)
    ]
    if left:
        raise FindingError("left-over", ", ".join(left[:5]))


def expect_the_end(place: pathlib.Path, name: str, commands: Sequence[Sequence[str]]) -> None:
    """Goes on with some commands of a chain; raises the finding of other files in the end."""
    for words in commands:
        expect_success(run(words, place), most_seconds=MOST_SECONDS)
    found, wanted = _files(place), _files(reference(name).place)
    if names := set(found) ^ set(wanted):
        raise FindingError("wrong", f"missing or new: {', '.join(sorted(names)[:5])}")
    for path, other in ((found[path], wanted[path]) for path in found):
        one, expected = (json.dumps(_read(path), default=repr) for path in (path, other))
        if one != expected:
            pairs = enumerate(zip(one, expected, strict=False))
            start = max(0, next((at for at, (a, b) in pairs if a != b), 0) - 60)
            said = f"{one[start : start + 120]} instead of {expected[start : start + 120]}"
            raise FindingError("wrong", f"{path}: {said}")


def _files(place: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files that a chain has to come to; what it has moved aside does not count."""
    found = {str(path.relative_to(place)): path for path in sorted(place.rglob("*"))}
    return {
        name: path
        for name, path in found.items()
        if path.is_file()
        and not _OWN_TEMPORARY.match(path.name)
        and not _NOT_READ.search(name)
        and not re.match(r"done/earlier-\d+/", name)
    }


def _read(path: pathlib.Path) -> Any:
    """The contents of a file, without times; raises an error where it is not whole."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return _without_times(json.loads(content))
    if path.suffix == ".yaml":
        return yaml.safe_load(content)
    if path.suffix in (".keras", ".zip", ".npz"):
        return _in_archive(content)
    if path.suffix == ".tflite":
        if content[4:8] != b"TFL3":
            raise ValueError("it does not begin as a TFLite file does")
        return content
    if path.suffix in (".png", ".jpg"):
        with Image.open(io.BytesIO(content)) as image:
            image.load()
        return None
    text = content.decode("utf-8")
    if path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        if not text.endswith("\n") or any(None in row or None in row.values() for row in rows):
            raise ValueError("its last line is cut off")
        return _without_times(rows)
    if path.suffix == ".html":
        if not text.rstrip().endswith("</html>"):
            raise ValueError("its end is missing")
        return None
    return text


def _in_archive(content: bytes) -> list[Any]:
    """The names of the members, and the configuration and the weights where it is a model."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"{damaged} is damaged")
        found: list[Any] = [archive.namelist()]
        if "model.weights.h5" not in found[0]:
            return found
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
            names: list[str] = []
            file.visit(names.append)
            found += [
                [name, file[name][()].tobytes()] for name in names if hasattr(file[name], "shape")
            ]
        return [*found, json.loads(archive.read("config.json"))]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if key not in _TIMES}
    if isinstance(value, list):
        return [_without_times(one) for one in value]
    return value
