"""The numbers behind a picture: a table that is a CSV file, too."""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Value: TypeAlias = float | int | str


@dataclasses.dataclass(frozen=True)
class Table:
    """Named columns and rows of numbers and words.

    Attributes:
        columns: names, with the unit where there is one.
        rows: one value for each column.

    >>> table = Table(("bits", "ratio"), ((1, 2.5), (2, 1.25)))
    >>> table["ratio"].tolist(), table.where(bits=2).rows
    ([2.5, 1.25], ((2, 1.25),))
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __getitem__(self, column: str) -> npt.NDArray[np.float64]:
        """The numbers of a column, (rows,)."""
        return np.array([float(value) for value in self.values(column)])

    def values(self, column: str) -> list[Value]:
        """What a column holds, row by row."""
        place = self.columns.index(column)
        return [row[place] for row in self.rows]

    def distinct(self, column: str) -> list[Value]:
        """What a column holds, each value once, in the order in which they come."""
        return list(dict.fromkeys(self.values(column)))

    def where(self, **wanted: Value) -> "Table":
        """The rows that have these values in these columns."""
        places = {self.columns.index(column): value for column, value in wanted.items()}
        return Table(
            self.columns,
            tuple(row for row in self.rows if all(row[at] == v for at, v in places.items())),
        )

    def row(self, **wanted: Value) -> dict[str, float]:
        """The numbers of the only row with these values, by column; words are left out."""
        (found,) = self.where(**wanted).rows
        named = zip(self.columns, found, strict=True)
        return {name: float(value) for name, value in named if not isinstance(value, str)}

    def to_csv(self) -> str:
        """A header line and a line for each row; six digits of every number that is no integer."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow(f"{v:.6g}" if isinstance(v, float) else v for v in row)
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str, columns: Sequence[str]) -> "Table":
        """The table that `to_csv` wrote, to the digits that it keeps.

        Raises:
            ValueError: it is no table with these columns.
        """
        try:
            lines = list(csv.reader(io.StringIO(text), strict=True))
        except csv.Error:
            lines = []
        whole = all(len(line) == len(columns) for line in lines)
        if len(lines) < 2 or lines[0] != list(columns) or not whole:
            raise ValueError(f"expected rows of {', '.join(columns)}")
        return cls(tuple(columns), tuple(tuple(map(_value, row)) for row in lines[1:]))


def _value(word: str) -> Value:
    """A number where a word is one.

    >>> _value("12"), _value("1.5"), _value("dorefa")
    (12, 1.5, 'dorefa')
    """
    for kind in (int, float):
        try:
            number = kind(word)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    return word
