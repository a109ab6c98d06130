"""Rows of results: a table to read, and a CSV."""

import csv
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import rich.table

from sat_tf.atomic_file import written_whole


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


def write_csv(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes rows, all with the same keys; the file appears whole, or not at all."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
