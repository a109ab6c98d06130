"""Hostile texts of users: tables of costs and times, names of classes, and policies.

What is read from an accepted table, or written into a file, is what stands in the text.
"""

import csv
import io
import math
import os
import pathlib
import random
import zipfile
from collections.abc import Sequence

from tests.campaign.cases import Case
from tests.campaign.mutation import HOSTILE_NUMBERS, HOSTILE_TEXTS, damaged
from tests.campaign.originals import original

_MARK = "\ufeff"
_LAYERS = ("conv", "head")  # of float.keras
_ALLOCATE = ("allocate", "float.keras", "--bits", "4,8", "--input_range", "0,255")
_INNER = ("--policy", "first_last_weight_bits=null")


def make(rng: random.Random) -> Case:
    """A hostile text, and a command that reads it."""
    return rng.choice((_table, _table, _labels, _policy))(rng)


# -- tables ----------------------------------------------------------------------------------------


def _table(rng: random.Random) -> Case:
    column, budget = rng.choice(
        (("cost", "average_weight_bits=6"), ("milliseconds", "milliseconds=20"))
    )
    header = ["layer", "weight_bits", "activation_bits", column]
    rows = [[layer, str(bits), "", str(8 / bits)] for layer in _LAYERS for bits in (4, 8)]
    if rng.random() < 0.3:
        header, rows = ["layer", column], [[layer, "1.5"] for layer in _LAYERS]
    for _ in range(rng.choice((0, 1, 1, 2))):
        _change(header, rows, rng)
    text = _as_text([header, *rows], rng)
    name = "table.csv"
    _write(name, text.encode("utf-8", "surrogatepass"), rng)
    words = [*_ALLOCATE, *_INNER, "--budget", budget, "--cost"]
    words += [name] if column == "cost" else ["costs.csv", "--latency", name]
    costs = [["layer", "cost"], *([layer, "1"] for layer in _LAYERS)]
    pathlib.Path("costs.csv").write_text(_as_text(costs), "utf-8")
    _copy("float.keras")
    about = [name, "cost: ", "latency: ", "budget: "]  # arguments of sat_tf.allocate
    return Case(words, about, check=lambda status: _other_table(name, column), most_seconds=20)


def _change(header: list[str], rows: list[list[str]], rng: random.Random) -> None:
    row = rng.choice(rows) if rows else header
    place = rng.randrange(len(row)) if row else 0
    kind = rng.randrange(8)
    if kind == 0 and row:
        row[place] = rng.choice(HOSTILE_TEXTS)
    elif kind == 1 and row:
        row[-1] = str(rng.choice(HOSTILE_NUMBERS))
    elif kind == 2:
        row.append(rng.choice(("", "5", "x")))
    elif kind == 3:
        del row[place:]
    elif kind == 4:
        rows.append(list(row))
    elif kind == 5:
        header[rng.randrange(len(header))] = rng.choice(("cost", "layer", "note", "Layer", ""))
    elif kind == 6:
        rows *= rng.choice((0, 2, 2000))
    else:
        rows.insert(0, [])


def _as_text(rows: Sequence[Sequence[str]], rng: random.Random | None = None) -> str:
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(rows)
    if rng is None:
        return made.getvalue()
    if rng.random() < 0.1:  # decimal commas that nobody has quoted
        return made.getvalue().replace(".", ",")
    text = rng.choice(("", "", "", _MARK)) + made.getvalue()
    return text.replace("\n", rng.choice(("\n", "\n", "\n", "\r\n", "\r", "\n\n")))


def _other_table(name: str, column: str) -> str | None:
    """Says where the table that was read has another number than the text; None where nowhere."""
    from sat_tf.analysis.allocation.budget import read_csv

    found = read_csv(name, column)
    text = pathlib.Path(name).read_bytes().decode("utf-8-sig")
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline=None)) if row]
    for row in rows:
        known = dict(zip(header, row, strict=False))
        bits = tuple(
            int(known[key])
            for key in ("weight_bits", "activation_bits")
            if known.get(key, "").strip()
        )
        of_layer = found[known["layer"].strip()]
        value = of_layer[bits if len(bits) > 1 else bits[0]] if bits else of_layer
        if len(row) > len(header) or not math.isclose(value, float(known[column])):
            return f"{row} was read as {value}"
    return None


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
