"""A figure: its numbers, its picture, the comparison with the paper, and its files."""

import csv
import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from sat_tf.atomic_file import written_whole
from sat_tf.messages import RunError
from sat_tf.presentation import palette
from sat_tf.presentation.tables import Column, Marked, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Value: TypeAlias = float | int | str


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Named columns and rows of numbers and words.

    Attributes:
        columns: names, with the unit if there is one.
        rows: one value for each column.

    >>> table = Numbers(("bits", "ratio"), ((1, 2.5), (2, 1.25)))
    >>> table["ratio"].tolist(), table.where(bits=2).rows
    ([2.5, 1.25], ((2, 1.25),))
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    def __getitem__(self, column: str) -> npt.NDArray[np.float64]:
        """The numbers of a column, (rows,)."""
        return np.array([float(value) for value in self.values(column)])

    def values(self, column: str) -> list[Value]:
        """The values of a column, row by row."""
        place = self.columns.index(column)
        return [row[place] for row in self.rows]

    def distinct(self, column: str) -> list[Value]:
        """The distinct values of a column, in order of appearance."""
        return list(dict.fromkeys(self.values(column)))

    def where(self, **wanted: Value) -> "Numbers":
        """The rows that have these values in these columns."""
        places = {self.columns.index(column): value for column, value in wanted.items()}
        return Numbers(
            self.columns,
            tuple(row for row in self.rows if all(row[at] == v for at, v in places.items())),
        )

    def row(self, **wanted: Value) -> dict[str, float]:
        """The numbers of the only row with these values, by column; words are left out."""
        (found,) = self.where(**wanted).rows
        named = zip(self.columns, found, strict=True)
        return {name: float(value) for name, value in named if not isinstance(value, str)}

    def to_csv(self) -> str:
        """A header line and a line for each row; six digits of every float."""
        return write_table(self.columns, self.rows)

    @classmethod
    def from_csv(cls, text: str, columns: Sequence[str]) -> "Numbers":
        """The table that `to_csv` wrote, to the digits that it keeps.

        Raises:
            ValueError: it has other columns, or is damaged.
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
    """A word as a number, if it is a finite one.

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


# Called with the share of the work done since the last call.
Advance: TypeAlias = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A statement of the paper beside our measurement.

    Attributes:
        about: their subject, in plain text.
        paper: the printed number or words.
        ours: the measured value, with its spread if it is random.
        holds: whether they agree.
        reason: by which measure; empty if that is obvious.
    """

    about: str
    paper: str
    ours: str
    holds: bool
    reason: str = ""


def _agreement(comparison: Comparison) -> Marked:
    return Marked("✓ agrees", "good") if comparison.holds else Marked("✗ differs", "bad")


# The columns of every table of comparisons.
COMPARED: list[Column[Comparison]] = [
    Column("", lambda found: found.about),
    Column("paper", lambda found: found.paper),
    Column("here", lambda found: found.ours),
    Column("", _agreement),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of the table of figures.

    Attributes:
        name: for users, and of its files.
        place: in the paper.
        title: one line.
        caption: what is drawn, and how it was computed.
        seconds: the approximate time of the numbers on two cores, for the bar.
        columns: of its table.
        measure: computes the numbers from a seed.
        draw: draws them.
        compare: compares them with the paper.
    """

    name: str
    place: str
    title: str
    caption: str
    seconds: float
    columns: tuple[str, ...]
    measure: Callable[[int, Advance], Numbers]
    draw: Callable[[Numbers], "Picture"]
    compare: Callable[[Numbers], list[Comparison]]


PICTURES = (".png", ".svg")
INDEX = "index.html"


def write_figure(folder: pathlib.Path, figure: Figure, table: Numbers) -> None:
    """Writes the numbers of a figure, and its pictures beside them.

    Raises:
        RunError: a file cannot be written.
    """
    with palette.styled():
        picture = figure.draw(table)
        for suffix in PICTURES:
            _write_picture(folder / f"{figure.name}{suffix}", picture)
    write_text(folder / f"{figure.name}.csv", table.to_csv())


def read_numbers(folder: pathlib.Path, figure: Figure) -> Numbers | None:
    """The numbers of a figure in a folder; None if any of its files is missing.

    Raises:
        RunError: the file holds something else.
    """
    files = [folder / f"{figure.name}{suffix}" for suffix in (".csv", *PICTURES)]
    if not all(file.is_file() for file in files):
        return None
    try:
        return Numbers.from_csv(files[0].read_text(encoding="utf-8"), figure.columns)
    except ValueError as error:
        raise RunError(
            f"{files[0]}: received a file that cannot be read ({error}); it comes from another "
            f"version, or was changed by hand: remove it, or create it again with `sat-tf figures "
            f"{figure.name} --out {folder}`."
        ) from error


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a file.

    Raises:
        RunError: it cannot be written.
    """
    try:
        with written_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except ValueError as error:
        raise RunError(str(error)) from error


def _write_picture(path: pathlib.Path, picture: "Picture") -> None:
    try:
        with written_whole(path) as temporary:
            palette.save(picture, temporary)
    except ValueError as error:
        raise RunError(str(error)) from error
