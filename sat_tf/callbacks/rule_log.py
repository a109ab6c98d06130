"""The table that `TrainingRules` writes while a model trains."""

import csv
import io
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from sat_tf.analysis.audit_result import COLUMNS
from sat_tf.analysis.row_table import csv_value
from sat_tf.wholefile import check_writable, written_whole

_LEFT_OUT = ("remedies",)
RULE_COLUMNS = (
    "step",
    "row",
    "verdict",
    "name",
    *(name for name in COLUMNS if name not in ("row", "verdict", "name", *_LEFT_OUT)),
    "flipped",
    "moved",
)


class RuleLog:
    """Adds rows to a CSV file, all rows of a measurement at once.

    A file that is there goes on: its rows up to the step that training starts from are kept.

    Args:
        path: of the file.

    Raises:
        ValueError: it cannot be written, or is another table.
    """

    def __init__(self, path: str) -> None:
        self._path = check_writable(path)
        if self._path.exists():
            self._read()
        self._started = False

    def write(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds the rows of a step.

        Raises:
            ValueError: the file cannot be written.
        """
        if not self._started:
            self._start(step)
            self._started = True
        text = io.StringIO()
        writer = _writer(text)
        for row in rows:
            values = {"step": step, **row}
            writer.writerow({name: csv_value(values.get(name)) for name in RULE_COLUMNS})
        with self._path.open("a", newline="", encoding="utf-8") as file:
            file.write(text.getvalue())

    def _start(self, step: int) -> None:
        kept = [row for row in self._read() if int(row["step"]) < step]
        with (
            written_whole(self._path) as name,
            name.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = _writer(file)
            writer.writeheader()
            writer.writerows(kept)

    def _read(self) -> list[dict[str, str]]:
        if not pathlib.Path(self._path).exists():
            return []
        with self._path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        if rows and tuple(reader.fieldnames or ()) != RULE_COLUMNS:
            raise ValueError(
                f"{self._path}: received another table, expected one that TrainingRules has "
                "written; choose another name."
            )
        # The last line is torn where the process was killed while it wrote.
        return [row for row in rows if (row["step"] or "").isdecimal() and None not in row.values()]


def _writer(file: Any) -> csv.DictWriter:
    return csv.DictWriter(file, RULE_COLUMNS, lineterminator="\n")
