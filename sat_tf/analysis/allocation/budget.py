"""The words of users on a choice of bits: its budget, and their own tables of costs and times."""

import csv
import dataclasses
import io
import math
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sat_tf.arguments import is_integer, is_number
from sat_tf.bounded_file import read_text
from sat_tf.messages import MOST_OF_A_FILE, ProblemsError, did_you_mean, first_ones

Choice = tuple[int | None, int | None]  # weight bits and activation bits; None is float

_LONGEST_TABLE = 2**22
_LARGEST = 1e300  # so that sums of many are finite
_BITS = ("weight_bits", "activation_bits")


@dataclasses.dataclass(frozen=True)
class Limit:
    """A quantity that can be limited.

    Attributes:
        title: for readers.
        meaning: one sentence for errors and help.
        form: how values are shown.
    """

    title: str
    meaning: str
    form: str = ",.0f"


LIMITS: dict[str, Limit] = {
    "bytes": Limit("file bytes", "bytes of the .tflite file that `export_tflite` writes"),
    "ideal_bytes": Limit(
        "ideal bytes",
        "n · bits / 8 summed over all quantized kernels, as papers count: no file is that small",
    ),
    "bit_operations": Limit(
        "bit operations", "multiply-adds of one image · weight bits · activation bits"
    ),
    "milliseconds": Limit(
        "milliseconds", "of one image, by the `latency` table or the compiler of the `npu`", ".4g"
    ),
    "compiled_bytes": Limit(
        "compiled bytes", "bytes of the file for the `npu`, with weights as its compiler packs them"
    ),
    "average_weight_bits": Limit("mean weight bits", "mean bits over all quantized weights", ".3f"),
    "average_activation_bits": Limit(
        "mean activation bits",
        "mean bits over all values that linear layers read, without images and streams",
        ".3f",
    ),
}
# Short for several limits of the same value.
SHORT = {"average_bits": ("average_weight_bits", "average_activation_bits")}
NAMES = (*LIMITS, *SHORT)
# Some limits need a table; this says where it comes from.
TABLES = {
    "milliseconds": (
        "received no `latency`, expected a table with the milliseconds of each layer, or the `npu` "
        "whose compiler estimates them; measure them on the device, or leave this limit out."
    ),
    "compiled_bytes": (
        "received no `npu`, expected the Ethos-U whose compiler counts them; name its "
        "configuration, such as 'ethos-u55-128', or leave this limit out."
    ),
}


@dataclasses.dataclass(frozen=True)
class Share:
    """A limit as a share of what the most bits need.

    Attributes:
        share: above 0; 0.5 is half.
    """

    share: float

    def __str__(self) -> str:
        return f"{100 * self.share:g}%"


def read_budget(budget: Any, known: Collection[str] = ()) -> dict[str, float | Share]:
    """The limits that a budget sets, by the names of `LIMITS`.

    Args:
        budget: {limit: a number, or a share such as "60%" of what the most bits need}.
        known: the limits of `TABLES` for which there is a table.

    Raises:
        ValueError: it is empty, has unknown names, or values that are no positive numbers; lists
            all of them.

    >>> read_budget({"bytes": "60%", "average_bits": 4})["average_weight_bits"]
    4.0
    >>> read_budget({"byte": 4, "bit_operations": -1})
    Traceback (most recent call last):
      ...
    sat_tf.messages.ProblemsError: budget: 2 problems
      - 'byte' is not a limit. Did you mean bytes?
      - bit_operations=-1: expected a number above 0, or a share such as '60%'.
    """
    if not isinstance(budget, Mapping) or not budget:
        raise ValueError(
            f"budget={budget!r}: expected a mapping with at least one limit of {', '.join(NAMES)}; "
            "write budget={'bytes': 500_000}, or {'average_bits': 4}."
        )
    limits: dict[str, float | Share] = {}
    problems: list[str] = []
    for name, value in budget.items():
        if name not in NAMES:
            problems.append(f"{name!r} is not a limit. {did_you_mean(str(name), NAMES)}")
            continue
        limit = _read(value)
        if limit is None:
            problems.append(
                f"{name}={value!r}: expected a number above 0, or a share such as '60%'."
            )
            continue
        if name in TABLES and name not in known:
            problems.append(f"{name}={value!r}: {TABLES[name]}")
        for each in SHORT.get(name, (name,)):
            if each in limits:
                by = [one for one in budget if each in SHORT.get(one, (one,))]
                problems.append(
                    f"{each}: received two limits, by {' and '.join(by)}, "
                    "expected one; leave one out."
                )
            limits[each] = limit
    if problems:
        raise ProblemsError("budget", problems)
    return limits


def _read(value: Any) -> float | Share | None:
    if isinstance(value, str):
        try:
            share = float(value.removesuffix("%")) / 100.0 if value.endswith("%") else math.nan
        except ValueError:
            share = math.nan
        return Share(share) if math.isfinite(share) and share > 0.0 else None
    if not is_number(value) or not math.isfinite(float(value)) or float(value) <= 0.0:
        return None
    return float(value)


def shown(name: str, value: float | None, missing: str = "-") -> str:
    """A value of a limit as readers see it.

    >>> shown("bytes", 123456.0), shown("average_weight_bits", 3.5), shown("bytes", None)
    ('123,456', '3.500', '-')
    """
    return missing if value is None else format(value, LIMITS[name].form)


def read_values(
    table: Any,
    choices: Mapping[str, Sequence[Choice]],
    *,
    name: str,
    unit: str,
    optional: Collection[str] = (),
) -> list[list[float]]:
    """The numbers of each layer's choices.

    A table has a number for each layer and each choice of bits. Its keys are (weight bits,
    activation bits), or weight bits alone where the number is the same for all activation bits; one
    number instead of a mapping is the same for every choice.

    Args:
        table: see above.
        choices: of each layer, its pairs of bits; None is float.
        name: of the argument, for errors.
        unit: of the numbers, for errors.
        optional: layers that the table may leave out, which then have 0.

    Raises:
        ValueError: layers that are unknown or missing, choices that are missing, numbers that are
            NaN, infinite or negative; lists all of them.

    >>> layers = {"conv": [(4, 8), (8, 8)], "dense": [(8, 8)]}
    >>> table = {"conv": {4: 0.5, (8, 8): 0.1}, "dense": 0.25}
    >>> read_values(table, layers, name="latency", unit="milliseconds")
    [[0.5, 0.1], [0.25]]
    """
    if not isinstance(table, Mapping):
        raise ValueError(
            f"{name}: received {type(table).__name__}, expected a mapping from layers to numbers "
            f"({unit}), or to mappings from (weight bits, activation bits) to numbers."
        )
    problems = [
        f"{given!r} is not a quantized linear layer of the model. "
        f"{did_you_mean(str(given), choices)}"
        for given in table
        if given not in choices
    ]
    values: list[list[float]] = []
    for layer, pairs in choices.items():
        if layer in table:
            found, wrong = _of_layer(layer, table[layer], pairs)
        else:
            found, wrong = [0.0] * len(pairs), [f"{layer}: received nothing, expected its {unit}."]
        values.append(found)
        problems += [] if layer in optional and layer not in table else wrong
    if problems:
        raise ProblemsError(name, problems)
    return values


def _of_layer(layer: str, given: Any, choices: Sequence[Choice]) -> tuple[list[float], list[str]]:
    """The numbers of one layer, and what is wrong with them."""
    zeros = [0.0] * len(choices)
    if not isinstance(given, Mapping):
        wrong = _wrong(given)
        return (zeros, [f"{layer}: {wrong}."]) if wrong else ([float(given)] * len(zeros), [])
    problems = []
    for key, value in given.items():
        bits = key if isinstance(key, tuple) and len(key) == 2 else (key,)
        if not all(one is None or is_integer(one, lowest=1, limit=9) for one in bits):
            problems.append(
                f"{layer}[{key!r}]: expected (weight bits, activation bits), or weight bits; write "
                "{(4, 8): ...} or {4: ...}."
            )
        elif wrong := _wrong(value):
            problems.append(f"{layer}[{key!r}]: {wrong}.")
    missing = [choice for choice in choices if _find(given, choice) is None]
    if missing:
        problems.append(
            f"{layer}: received no number for {first_ones(missing, 4)}, expected one for each "
            "choice of bits; add them, or allow fewer bits."
        )
    if problems:
        return zeros, problems
    return [float(_find(given, choice) or 0.0) for choice in choices], []


def _find(given: Mapping[Any, Any], choice: Choice) -> Any:
    return given[choice] if choice in given else given.get(choice[0])


def _wrong(value: Any) -> str | None:
    if not is_number(value):
        return f"received {value!r}, expected a number of 0 or more"
    if not 0.0 <= float(value) <= _LARGEST:
        return f"received {float(value):g}, expected a finite number of 0 or more"
    return None


def read_csv(path: str | os.PathLike[str], column: str) -> dict[str, Any]:
    """The table in a CSV file with the columns layer, weight_bits, activation_bits and one more.

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
        lines = csv.reader(io.StringIO(read_text(path, _LONGEST_TABLE)), strict=True)
        header = [name.strip() for name in next(lines, [])]
        needed, known = {"layer", column}, {"layer", column, *_BITS}
        is_fit = len(set(header)) == len(header) and needed <= set(header) <= known
        table = _table(path, column, header, lines) if is_fit else {}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"{path}: {reason}; expected a CSV file with {_columns(column)}."
        ) from error
    if not table:
        received = ",".join(header)[:80]
        raise ValueError(
            f"{path}: received the header {received!r}, expected {_columns(column)} and a line for "
            "each layer or choice."
        )
    return table


def _columns(column: str) -> str:
    return f"the columns layer, weight_bits, activation_bits and {column}"


def _table(
    path: pathlib.Path, column: str, header: Sequence[str], lines: Iterable[Sequence[str]]
) -> dict[str, Any]:
    problems: list[str] = []
    table: dict[str, Any] = {}
    for number, fields in enumerate(lines, start=2):
        if not fields:
            continue
        where = f"line {number}"
        if len(fields) > len(header):
            problems.append(
                f"{where}: received {len(fields)} fields, expected {len(header)}; write 1.5 "
                "instead of 1,5."
            )
            continue
        line = dict(zip(header, fields, strict=False))
        layer = line["layer"].strip()
        try:
            value = float(line.get(column, ""))
            bits = [
                None if not (text := (line.get(name) or "").strip()) else int(text)
                for name in _BITS
            ]
        except ValueError as error:
            problems.append(f"{where}: {error}; expected numbers.")
            continue
        if problem := _wrong(value):
            problems.append(f"{where}: {problem}.")
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
        raise ProblemsError(str(path), problems, most=MOST_OF_A_FILE)
    return {layer: rows.get(None, rows) for layer, rows in table.items()}
