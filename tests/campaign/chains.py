"""Chains of commands on a tiny model: left alone, killed, asked to stop, or refused by a disk.

Whatever befalls a command, every file is whole; the chain that it belongs to then goes on, and
comes to the files of one that was left alone. Ctrl-C reaches all processes that a terminal has
started, SIGTERM the one that is named. A command that is stopped ends with the status that shells
know (130, 143), or, where a run has saved itself on SIGTERM, with 0, and says so once. A disk
refuses one event, all from there on, or any byte more: that is one error that names the file and
the fix. Neither leaves a temporary file. Four processes at once work in one folder, and in four.
"""

import concurrent.futures
import csv
import dataclasses
import functools
import io
import json
import pathlib
import random
import re
import shutil
import signal
import tempfile
import zipfile
from collections.abc import Sequence
from typing import Any

import h5py
import yaml
from PIL import Image

from tests.campaign import cases, moments
from tests.campaign.cases import CLEAR, SOUND, FindingError, Verdict, findings_of
from tests.campaign.moments import EVENTS, NAMES_CHANGE, REFUSALS, REMOVALS
from tests.campaign.originals import original
from tests.campaign.processes import Ended, Server, server

_QUANTIZE = ("quantize", "float.keras", "--input_range", "0,255", "--out", "done", "--images")
_VERIFY = ("verify", "own.tflite", "--images", "pictures", "--out", "proof", "--runtime", "xnnpack")
_PROVE = ("verify", "model.tflite", "--images", "pictures")
_PAGES = ("--out", "plan.html", "--out", "plan.csv")

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
        shutil.copytree(reference(name)[done - 1].left, place, symlinks=True)
        return place
    place.mkdir(parents=True)
    for source in map(original, _INPUTS):
        (shutil.copytree if source.is_dir() else shutil.copy)(source, place / source.name)
    return place


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """A command of a chain that was left alone."""

    seconds: float  # Of the processor.
    events: Sequence[str]
    left: pathlib.Path  # A copy of the working directory as it was behind it.


@functools.cache
def reference(name: str) -> Sequence[Undisturbed]:
    """The commands of the chain of this name, left alone; it runs once in a process."""
    place = begin(pathlib.Path(_kept_folder().name, name))
    commands = []
    for words in CHAINS[name]:
        ended = run(words, place)
        if ended.status:
            raise RuntimeError(f"{' '.join(words)}: {ended.err}")
        left = shutil.copytree(place, f"{place} {len(commands)}", symlinks=True)
        commands.append(Undisturbed(ended.seconds, events_of(place), pathlib.Path(left)))
    return commands


def run(words: Sequence[str], place: pathlib.Path, moment: dict[str, Any] | None = None) -> Ended:
    """Runs a command of a chain in its working directory; see `moments.run`."""
    is_light = words[0] == "verify" and words[1].endswith(".tflite")
    return server("light" if is_light else "tensorflow").call(
        f"{moments.__name__}:run", words, moment, cwd=place, seconds=WALL_SECONDS
    )


def events_of(place: pathlib.Path) -> list[str]:
    """The events that the last command in a working directory has counted."""
    return place.with_name(moments.LOG).read_text().splitlines()


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
        cases.expect_success(run(words, place), most_seconds=MOST_SECONDS)
    found, wanted = _files(place), _files(reference(name)[-1].left)
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


def _moment(rng: random.Random, what: str, command: Undisturbed) -> dict[str, Any]:
    """A time while a command runs, or one of its events."""
    events = NAMES_CHANGE if what == "kill" else EVENTS
    count = sum(event.split()[0] in events for event in command.events)
    if what not in REFUSALS and (not count or rng.random() < 0.5):
        return {"what": what, "seconds": rng.uniform(0, 0.9) * command.seconds}
    after = what == "kill" and rng.random() < 0.5
    return {"what": what, "events": events, "number": rng.randrange(count or 1), "after": after}


def play_kills(seed: int, folder: pathlib.Path) -> Verdict:
    """Kills the commands of a chain up to four times in a row, and lets it come to its end."""
    rng = random.Random(f"kills {seed}")
    name = sorted(CHAINS)[seed % len(CHAINS)]
    place, waiting, killed = begin(folder), list(range(len(CHAINS[name]))), 0
    with findings_of(name):
        for _ in range(4):
            while waiting:
                index = waiting[0]
                moment = _moment(rng, "kill", reference(name)[index])
                ended = run(CHAINS[name][index], place, moment)
                if ended.status == -signal.SIGKILL and not ended.is_late:
                    killed += 1
                    break
                # The moment comes when the command is over.
                cases.expect_success(ended, most_seconds=MOST_SECONDS)
                del waiting[0]
            expect_whole_files(place)
        expect_the_end(place, name, [CHAINS[name][index] for index in waiting])
        expect_nothing_left(folder)
    return Verdict(SOUND, f"{name}, killed {killed} times")


def play_signals(seed: int, folder: pathlib.Path) -> Verdict:
    """Sends a signal to a command of the seed's chain."""
    return _disturbed(f"signals {seed}", seed, ("int", "term"), folder)


def play_disks(seed: int, folder: pathlib.Path) -> Verdict:
    """Refuses an event of a command of the seed's chain, or runs four chains at once."""
    if seed % 20 == 10:
        return _together(seed // 20, folder)
    return _disturbed(f"disks {seed}", seed, REFUSALS, folder)


def _disturbed(draw, seed, disturbances, folder) -> Verdict:
    rng = random.Random(draw)
    name, what = sorted(CHAINS)[seed % len(CHAINS)], rng.choice(disturbances)
    index = rng.randrange(len(CHAINS[name]))
    place, words = begin(folder, name, index), CHAINS[name][index]
    moment = _moment(rng, what, reference(name)[index])
    about = f"{name}, {words[0]}, {moment}"
    with findings_of(about):
        ended = run(words, place, moment)
        events = events_of(place)
        refused: list[str] = []
        if what in REFUSALS:
            cases.judge_command(ended, about=_ABOUT, most_seconds=MOST_SECONDS)
            refused = events[moment["number"] :][:1]
        else:
            cases.expect_an_end(ended, most_seconds=MOST_SECONDS)
            known = reference(name)[index].events
            goes_on = len(events) > moment.get("number", len(known)) + _FEW
            _expect_a_clean_stop(ended, what, goes_on=goes_on)
        expect_whole_files(place)
        # What could not be removed is left.
        if not any(event.startswith(REMOVALS) for event in refused):
            expect_nothing_left(folder)
        is_done = what in REFUSALS and not ended.status
        expect_the_end(place, name, CHAINS[name][index + is_done :])
    return Verdict(CLEAR if ended.status else SOUND, about)


# Errors name one of these.
_ABOUT = ("done", "own", "proof", "again", "kit.zip", "plan", "tmp", "case")
# One of these says that a command was stopped, once.
_SAID = re.compile(r"interrupted; |terminated; |Stopped as asked; ")
# Python looks for signals now and then: so many events may follow one.
_FEW = 5
_ENDINGS = {"int": (130,), "term": (143, 0)}


def _expect_a_clean_stop(ended: Ended, what: str, *, goes_on: bool) -> None:
    """Raises the finding of how a command has ended that was asked to stop.

    `goes_on` says whether, if it says nothing, it has gone on, and was not over before.
    """
    said = ended.out + ended.err
    count = len(_SAID.findall(said))
    if ended.status == 0 and not count and not goes_on and "Exception ignored" not in said:
        return
    if ended.status not in _ENDINGS[what] or count != 1 or "Exception ignored" in said:
        raise FindingError("unclear", f"status {ended.status}, {count} messages: {said[-1000:]}")
    if "error: " in said:
        raise FindingError("unclear", said[-1000:])


def _together(number: int, folder: pathlib.Path) -> Verdict:
    """Four processes run the same chain at once, in one folder or in four."""
    is_one, name = number % 2 == 0, sorted(CHAINS)[number // 2 % len(CHAINS)]
    folders = ["0"] if is_one else ["0", "1", "2", "3"]
    places = [begin(folder / at) for at in folders] * (4 if is_one else 1)
    about = f"{name}, four at once in {'one folder' if is_one else 'four'}"

    def work(index: int) -> list[Ended]:
        # Each prints into files beside a folder of its own.
        beside, place = folder / f"of {index}" / "case", str(places[index])
        beside.mkdir(parents=True)
        own = Server("tensorflow")
        try:
            calls = [("tests.campaign.cases:command", words, place) for words in CHAINS[name]]
            return [own.call(*call, cwd=beside, seconds=WALL_SECONDS) for call in calls]
        finally:
            own.end()

    with findings_of(about):
        reference(name)
        with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
            ends = [ended for all_of_one in pool.map(work, range(4)) for ended in all_of_one]
        for ended in ends:
            cases.judge_command(ended, about=_ABOUT, most_seconds=MOST_SECONDS)
            if not is_one:
                cases.expect_success(ended, most_seconds=MOST_SECONDS)
        for place in places[:1] if is_one else places:
            expect_whole_files(place)
            expect_the_end(place, name, CHAINS[name] if is_one else ())
    return Verdict(SOUND, about)
