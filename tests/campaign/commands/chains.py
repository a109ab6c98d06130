"""Chains of commands on a tiny model, undisturbed, and what has to be true of the files they leave.

A chain that was disturbed has to come to the same files as one that was left alone.
"""

import csv
import dataclasses
import functools
import io
import json
import os
import pathlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import yaml
from PIL import Image

from tests.campaign.commands import moments
from tests.campaign.processes import Ended, server

_CONFIG = """
name: tiny
data: {name: folder, options: {data_dir: classes, image_size: 8, resize_ratio: 1.0}}
model:
  name: resnet18
  options: {width_multiplier: 0.1, stage_blocks: [1], stem_kernel_size: 3, stem_stride: 1}
stages:
  float: {epochs: 2, batch_size: 8, base_learning_rate: 0.1, warmup_epochs: 0}
  quantized: {epochs: 2, warmup_epochs: 0}
calibration: {num_images: 64}
export: {verify_images: 4}
"""
_QUANTIZE = ("quantize", "float.keras", "--input_range", "0,255", "--out", "done", "--images")
_VERIFY = ("verify", "own.tflite", "--images", "pictures", "--out", "proof", "--runtime", "xnnpack")
_PROVE = ("verify", "given.tflite", "--images", "pictures")

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
        ("train", "--config", "tiny.yaml", "--out", "done"),
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
    ),
}


def write_inputs() -> None:
    """Writes what the chains start from into the working directory."""
    import sat_tf
    from tests.training.small import small_float_model, small_images, small_quantized_model

    small_float_model().save("float.keras")
    small_quantized_model().save("quantized.keras")
    sat_tf.export_tflite(small_quantized_model(), "given.tflite")
    pathlib.Path("tiny.yaml").write_text(_CONFIG, encoding="utf-8")
    images = small_images(train=36)
    for index, label in enumerate(images.train_labels):
        for folder in (f"classes/class_{label}", *(["pictures"] if index < 12 else [])):
            pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
            picture = np.kron(images.train_images[index], np.ones((2, 2, 1), np.uint8))
            Image.fromarray(picture).save(f"{folder}/{index:02}.png")


_INPUTS = ("float.keras", "quantized.keras", "given.tflite", "tiny.yaml", "classes", "pictures")


@functools.cache
def _kept_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="sat-tf-campaign-")


@functools.cache
def _inputs() -> pathlib.Path:
    folder = pathlib.Path(_kept_folder().name, "inputs", "case")
    folder.mkdir(parents=True)
    ended = server("tensorflow").call(f"{__name__}:write_inputs", cwd=folder)
    if ended.status:
        raise RuntimeError(ended.err)
    return folder


def begin(folder: pathlib.Path, name: str = "", done: int = 0) -> pathlib.Path:
    """Makes the working directory of a chain, `case` in a folder, with so many commands done."""
    place = folder / "case"
    if done:
        shutil.copytree(reference(name).commands[done - 1].left, place, symlinks=True)
        return place
    place.mkdir(parents=True)
    for name in _INPUTS:
        source = _inputs() / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
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
        events = (place.parent / moments.LOG).read_text().splitlines()
        left = place.with_name(f"behind {len(commands)}")
        shutil.copytree(place, left, symlinks=True)
        commands.append(Undisturbed(ended.seconds, tuple(events), left))
    return Reference(place, tuple(commands))


def run(words: Sequence[str], place: pathlib.Path, moment: dict[str, Any] | None = None) -> Ended:
    """Runs a command of a chain in its working directory; see `moments.run`."""
    is_light = words[0] == "verify" and words[1].endswith(".tflite")
    return server("light" if is_light else "tensorflow").call(
        f"{moments.__name__}:run", words, moment, cwd=place, seconds=_WALL_SECONDS
    )


# A command of a chain computes for some seconds; on a busy machine these are minutes.
MOST_SECONDS, _WALL_SECONDS = 90, 900


# -- what has to be true ---------------------------------------------------------------------------

_OWN_TEMPORARY = re.compile(r"\.?sat_tf-[0-9a-f]{8}-\d+-\d+-")
# Their names are made by TensorFlow, or they hold no data of their own.
_NOT_READ = re.compile(r"\.lock$|tfevents|(^|/)ckpt-")
# These differ between any two runs: times, and what is made of times.
_TIMES = {"seconds", "started", "created", "date", "time", "reconstruction_seconds"}


def problems_of_files(place: pathlib.Path) -> list[str]:
    """The files in a folder that are not whole, with what is wrong with each.

    Temporary files, which a killed process leaves, are passed over: they have names of their own.
    """
    problems = []
    for path in _files(place):
        name = str(path.relative_to(place))
        try:
            _read(path)
        except Exception as error:
            problems.append(f"{name}: {type(error).__name__} {error}"[:200])
    return problems


def left_over(folder: pathlib.Path) -> list[str]:
    """Temporary files of sat-tf, and checkpoints of a run that is done, in a folder or below it."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if _OWN_TEMPORARY.match(path.name) or ("ckpt-" in path.name and "temp" in path.name)
    ]


def differences(place: pathlib.Path, expected: pathlib.Path) -> list[str]:
    """The differences of the files of a chain at its end from those that it should come to."""
    found, wanted = _by_name(place), _by_name(expected)
    problems = [f"{name} is missing" for name in sorted(set(wanted) - set(found))]
    problems += [f"{name} is new" for name in sorted(set(found) - set(wanted))]
    for name in sorted(set(found) & set(wanted)):
        one, other = _read(found[name]), _read(wanted[name])
        if not _equal(one, other):
            problems.append(f"{name} is another: {_first_difference(one, other)}"[:300])
    return problems


def _by_name(place: pathlib.Path) -> dict[str, pathlib.Path]:
    """The files that a chain has to come to; what it has moved aside does not count."""
    return {
        name: path
        for path in _files(place)
        if not re.match(r"done/earlier-\d+/", name := str(path.relative_to(place)))
    }


def _files(place: pathlib.Path) -> list[pathlib.Path]:
    return [
        path
        for path in sorted(place.rglob("*"))
        if path.is_file()
        and not _OWN_TEMPORARY.match(path.name)
        and not _NOT_READ.search(str(path.relative_to(place)))
    ]


def _read(path: pathlib.Path) -> Any:
    """The contents of a file, without times; raises an error where it is not whole."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return _without_times(json.loads(content))
    if path.suffix == ".yaml":
        return yaml.safe_load(content)
    if path.suffix == ".keras":
        return _of_keras(content)
    if path.suffix == ".zip":
        return _of_kit(content)
    if path.suffix == ".tflite":
        if content[4:8] != b"TFL3":
            raise ValueError("it does not begin as a TFLite file does")
        return content
    text = None if path.suffix == ".png" else content.decode("utf-8")
    if path.suffix == ".csv":
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        if not text.endswith("\n") or any(None in row or None in row.values() for row in rows):
            raise ValueError("its last line is cut off")
        return _without_times(rows)
    if path.suffix == ".html":
        if not text.rstrip().endswith("</html>"):
            raise ValueError("its end is missing")
        return None
    if path.suffix == ".png":
        with Image.open(io.BytesIO(content)) as image:
            image.load()
        return None
    return text


def _of_keras(content: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"{damaged} is damaged")
        weights: dict[str, Any] = {}
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
            file.visititems(
                lambda name, item: (
                    weights.__setitem__(name, item[()].tobytes())
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
        return {"config": json.loads(archive.read("config.json")), "weights": weights}


def _of_kit(content: bytes) -> list[str]:
    """The names in a proof kit, whose members carry no times of ours but in their headers."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"{damaged} is damaged")
        return archive.namelist()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if key not in _TIMES}
    if isinstance(value, list):
        return [_without_times(one) for one in value]
    return value


def _equal(one: Any, other: Any) -> bool:
    return json.dumps(one, default=repr) == json.dumps(other, default=repr)


def _first_difference(one: Any, other: Any, at: str = "") -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if not _equal(one.get(key), other.get(key)):
                return _first_difference(one.get(key), other.get(key), f"{at}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            if not _equal(left, right):
                return _first_difference(left, right, f"{at}[{index}]")
    return f"{at}: {str(one)[:80]} instead of {str(other)[:80]}"


def temporary_files(place: pathlib.Path) -> list[str]:
    """The names that are left in the folder of temporary files."""
    folder = place.with_name("tmp")
    return sorted(os.listdir(folder)) if folder.is_dir() else []
