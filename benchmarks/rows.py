"""Rows of results: a table to read, and a CSV."""

import csv
import os
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table

from sat_tf.files import written_whole


def as_table(rows: Sequence[Mapping[str, Any]], title: str, columns: Sequence[str] = ()) -> Any:
    """A table with a line for each row.

    Args:
        rows: all with the same keys.
        title: above the table.
        columns: the keys to show; all where none are named.
    """
    columns = columns or list(rows[0])
    table = rich.table.Table(*columns, title=title)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    return table


def read_csv(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of a CSV; none where there is no file yet."""
    path = pathlib.Path(path)
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def with_spread(values: Sequence[float]) -> str:
    """The mean, with the lowest and the highest: 82.3 (81.3 to 84.0); empty where there are none.

    >>> with_spread([81.3, 84.0, 81.6])
    '82.3 (81.3 to 84.0)'
    """
    if not values:
        return ""
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def write_csv(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes rows, all with the same keys; the file appears whole, or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
