"""Hostile texts of users: names of classes, and policies.

What is written into a file is what stands in the text.
"""

import io
import os
import pathlib
import random
import zipfile

from tests.campaign.cases import Case
from tests.campaign.mutation import HOSTILE_NUMBERS, HOSTILE_TEXTS, damaged
from tests.campaign.originals import original

_MARK = "\ufeff"


def make(rng: random.Random) -> Case:
    """A hostile text, and a command that reads it."""
    return rng.choice((_labels, _policy))(rng)


# -- names of classes ------------------------------------------------------------------------------


def _labels(rng: random.Random) -> Case:
    names = ["cat", "dog", "cow"]
    for _ in range(rng.choice((0, 1, 1, 2))):
        place = rng.randrange(len(names))
        kind = rng.randrange(4)
        if kind == 0:
            names[place] = rng.choice(HOSTILE_TEXTS)
        elif kind == 1:
            names[place] += rng.choice(("\x0c", "\x1c", "\x85", "\u2028", " ", "\t", "\r"))
        elif kind == 2:
            names[place:place] = names[:4] * rng.choice((1, 1000, 30_000))
        elif len(names) > 1:
            del names[place]
    text = rng.choice(("", "", _MARK)) + rng.choice(("\n", "\n", "\r\n")).join(names)
    name = "labels.txt"
    _write(name, (text + rng.choice(("", "\n"))).encode("utf-8", "surrogatepass"), rng)
    _copy("quantized.keras")
    words = ["export", "quantized.keras", "--out", "own.tflite", "--labels", name]
    return Case(
        words,
        [name, "labels: "],
        ["own.tflite"],
        lambda status: _other_labels(name),
        most_seconds=20,
    )


def _other_labels(name: str) -> str | None:
    with zipfile.ZipFile("own.tflite") as archive:
        written = archive.read("labels.txt").decode().removesuffix("\n").split("\n")
    text = io.StringIO(pathlib.Path(name).read_bytes().decode("utf-8-sig"), newline=None).read()
    expected = text.removesuffix("\n").split("\n")
    return None if written == expected else f"{expected} were written as {written}"


# -- policies --------------------------------------------------------------------------------------


def _policy(rng: random.Random) -> Case:
    text = original("policy.yaml").read_text()
    key = rng.choice(("weight_bits", "input_range", "overrides", "weight_grid", "latent_start"))
    kind = rng.randrange(4)
    if kind == 0:
        text += f"{key}: {rng.choice(HOSTILE_NUMBERS)!r}\n"
    elif kind == 1:
        text += f"input_range: [{rng.choice(HOSTILE_NUMBERS)!r}, {rng.choice(HOSTILE_NUMBERS)!r}]\n"
    elif kind == 2:
        text += f"{key}: {rng.choice(HOSTILE_TEXTS)}\n"
    else:
        text = damaged(text.encode(), rng).decode("utf-8", "replace")
    name = "policy.yaml"
    _write(name, text.encode("utf-8", "surrogatepass"), rng)
    _copy("float.keras")
    return Case(["explain", "float.keras", "--policy", name], [name, "--policy"], most_seconds=20)


def _copy(name: str) -> None:
    pathlib.Path(name).write_bytes(original(name).read_bytes())


def _write(name: str, content: bytes, rng: random.Random) -> None:
    """Writes a file, or puts what is none in its place."""
    kind = rng.random()
    if kind < 0.05:
        pathlib.Path(name).symlink_to(rng.choice(("/dev/zero", "/dev/full", name, "none")))
    elif kind < 0.08:
        os.mkfifo(name)
    elif kind < 0.1:
        pathlib.Path(name).mkdir()
    else:
        pathlib.Path(name).write_bytes(damaged(content, rng) if kind < 0.25 else content)
