"""Rows of an audit as CSV."""

import csv
import os
from collections.abc import Iterable, Mapping
from typing import Any

from sat_tf.analysis.audit_result import COLUMNS
from sat_tf.wholefile import written_whole


def write_rows(
    rows: Iterable[Mapping[str, Any]],
    path: str | os.PathLike[str],
    columns: Iterable[str] = COLUMNS,
) -> None:
    """Writes rows; what is None is left empty, and numbers have six digits.

    Raises:
        ValueError: the path cannot be written.
    """
    with (
        written_whole(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_value(value) for name, value in row.items()} for row in rows)


def csv_value(value: Any) -> Any:
    """A value as it stands in the file."""
    return f"{value:.6g}" if isinstance(value, float) else value
