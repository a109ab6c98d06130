"""Tables of the user's own: what a choice of bits costs each layer, or how long it takes.

A table has a number for each layer and each choice of bits. Its keys are (weight bits, activation
bits), or weight bits alone where the number is the same for all activation bits; one number instead
of a mapping is the same for every choice.
"""

import csv
import dataclasses
import io
import math
import numbers
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sat_tf.arguments import is_integer
from sat_tf.messages import did_you_mean, first_ones, list_problems

Choice = tuple[int | None, int | None]
# {layer: number}, {layer: {(weight bits, activation bits): number}}, or {layer: {weight bits: ...}}
LayerTable = Mapping[str, Any]

_LONGEST_TABLE = 2**24


@dataclasses.dataclass(frozen=True)
class Wanted:
    """The choices whose numbers a table has to give for one layer.

    Attributes:
        layer: its name.
        choices: its pairs of bits; None is float.
        optional: the table may leave the layer out, which then has 0.
    """

    layer: str
    choices: Sequence[Choice]
    optional: bool = False


def read_values(table: Any, wanted: Sequence[Wanted], *, name: str, unit: str) -> list[list[float]]:
    """The numbers of each layer's choices.

    Args:
        table: see `LayerTable`.
        wanted: the layers, with their choices.
        name: of the argument, for errors.
        unit: of the numbers, for errors.

    Raises:
        ValueError: layers that are unknown or missing, choices that are missing, numbers that are
            NaN, infinite or negative; lists all of them.

    >>> layers = [Wanted("conv", [(4, 8), (8, 8)]), Wanted("dense", [(8, 8)])]
    >>> table = {"conv": {4: 0.5, (8, 8): 0.1}, "dense": 0.25}
    >>> read_values(table, layers, name="latency", unit="milliseconds")
    [[0.5, 0.1], [0.25]]
    """
    if not isinstance(table, Mapping):
        raise ValueError(
            f"{name}: received {type(table).__name__}, expected a mapping from layers to numbers "
            f"({unit}), or to mappings from (weight bits, activation bits) to numbers."
        )
    known = [layer.layer for layer in wanted]
    problems = [
        f"{given!r} is not a quantized linear layer of the model. {did_you_mean(str(given), known)}"
        for given in table
        if given not in known
    ]
    values: list[list[float]] = []
    for layer in wanted:
        found, wrong = _of_layer(table, layer, unit)
        values.append(found)
        problems += wrong
    if problems:
        raise ValueError(list_problems(name, problems))
    return values


def _of_layer(table: LayerTable, layer: Wanted, unit: str) -> tuple[list[float], list[str]]:
    """The numbers of one layer, and what is wrong with them."""
    zeros = [0.0] * len(layer.choices)
    if layer.layer not in table:
        if layer.optional:
            return zeros, []
        return zeros, [f"{layer.layer}: received nothing, expected its {unit}."]
    given = table[layer.layer]
    if not isinstance(given, Mapping):
        wrong = _wrong(given)
        return (zeros, [f"{layer.layer}: {wrong}."]) if wrong else ([float(given)] * len(zeros), [])
    problems = [
        f"{layer.layer}[{key!r}]: expected (weight bits, activation bits), or weight bits; write "
        f"{{(4, 8): ...}} or {{4: ...}}."
        for key in given
        if not _is_key(key)
    ]
    problems += [
        f"{layer.layer}[{key!r}]: {wrong}."
        for key, value in given.items()
        if _is_key(key) and (wrong := _wrong(value))
    ]
    missing = [choice for choice in layer.choices if _find(given, choice) is None]
    if missing:
        problems.append(
            f"{layer.layer}: received no number for {first_ones(missing, 4)}, expected one for "
            "each choice of bits; add them, or allow fewer bits."
        )
    if problems:
        return zeros, problems
    return [float(_find(given, choice) or 0.0) for choice in layer.choices], []


def _is_key(key: Any) -> bool:
    if isinstance(key, tuple):
        return len(key) == 2 and all(one is None or _is_bits(one) for one in key)
    return key is None or _is_bits(key)


def _is_bits(value: Any) -> bool:
    return is_integer(value, lowest=1, limit=9)


def _find(given: Mapping[Any, Any], choice: Choice) -> Any:
    return given[choice] if choice in given else given.get(choice[0])


def _wrong(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return f"received {value!r}, expected a number of 0 or more"
    if not math.isfinite(float(value)) or float(value) < 0.0:
        return f"received {float(value):g}, expected a finite number of 0 or more"
    return None


def read_csv(path: str | os.PathLike[str], column: str) -> dict[str, Any]:
    """A table from a CSV file with the columns layer, weight_bits, activation_bits and one more.

    Bits that are left empty stand for all of them.

    Args:
        path: of the file.
        column: the name of the fourth column, such as "cost".

    Raises:
        ValueError: it cannot be read, lacks a column, or has lines that say no number; lists all of
            them, by their lines.
    """
    path = pathlib.Path(path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(_LONGEST_TABLE)
        lines = list(csv.DictReader(io.StringIO(text), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"{path}: {reason}; expected a CSV file with {_columns(column)}."
        ) from error
    if not lines or not {"layer", column} <= set(lines[0]):
        header = next(iter(text.splitlines()), "")[:80]
        raise ValueError(
            f"{path}: received the header {header!r}, expected {_columns(column)} and a line for "
            "each layer or choice."
        )
    return _table(path, column, lines)


def _columns(column: str) -> str:
    return f"the columns layer, weight_bits, activation_bits and {column}"


def _table(path: pathlib.Path, column: str, lines: Iterable[dict[str, str]]) -> dict[str, Any]:
    problems: list[str] = []
    table: dict[str, Any] = {}
    for number, line in enumerate(lines, start=2):
        layer, where = (line["layer"] or "").strip(), f"line {number}"
        try:
            value = float(line[column] or "")
            bits = [
                None if not (text := (line.get(name) or "").strip()) else int(text)
                for name in ("weight_bits", "activation_bits")
            ]
        except ValueError as error:
            problems.append(f"{where}: {error}; expected numbers.")
            continue
        if bits[0] is None and bits[1] is not None:
            problems.append(f"{where}: received activation_bits alone, expected weight_bits too.")
            continue
        key: Any = bits[0] if bits[1] is None else (bits[0], bits[1])
        rows = table.setdefault(layer, {})
        if key in rows or None in rows or (key is None and rows):
            problems.append(f"{where}: {layer} is said twice for the same bits; leave one out.")
        rows[key] = value
    if problems:
        raise ValueError(list_problems(str(path), problems))
    return {layer: rows.get(None, rows) for layer, rows in table.items()}
