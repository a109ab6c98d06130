"""Tables of plain values: as CSV text, written and read back, and as data frames."""

import abc
import csv
import io
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sat_tf.atomic_file import written_whole
from sat_tf.messages import RunError

if TYPE_CHECKING:
    import pandas

_Row = TypeVar("_Row")
# Of the name of a column that is none.
_SHOWN = 40


def write_table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header line, and a line for each row; six digits of every number that is no integer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row)
    return text.getvalue()


def read_table(
    text: str,
    read: Callable[[dict[str, str]], _Row],
    *,
    name: str,
    columns: Sequence[str],
    more: str | None = None,
) -> list[_Row]:
    """The rows that `write_table` wrote, to the digits that it keeps; none of an empty text.

    Args:
        text: the table.
        read: makes a row of its values by column.
        name: what to call the table in errors.
        columns: what it should have.
        more: what the names of further columns begin with; None where there are none.

    Raises:
        RunError: it is no such table.
    """
    if not text:
        return []
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        if strange := _strange_column(reader.fieldnames or (), columns, more):
            raise ValueError(f"its first line has {strange}")
        if not text.endswith("\n"):
            raise ValueError("its last line breaks off")
        lines = list(reader)
        for values in lines:
            if None in values or None in values.values():
                raise ValueError(
                    f"a line with {'more' if None in values else 'less'} than its columns"
                )
        return [read(values) for values in lines]
    except (TypeError, ValueError, csv.Error) as error:
        raise RunError(
            f"{name}: received a file that cannot be read ({error}), expected the columns "
            f"{', '.join(columns)}; it comes from another version, or was changed by hand."
        ) from error


def _strange_column(found: Sequence[str], columns: Sequence[str], more: str | None) -> str | None:
    """The first column that is not the one in its place; None where all of them are."""
    for name, wanted in itertools.zip_longest(found, columns):
        if name is None:
            return f"no column {wanted}"
        if name != wanted and not (wanted is None and more and name.startswith(more)):
            return f"the column {name[:_SHOWN]!r}"
    return None


def numbers(
    values: Mapping[str, str], columns: Iterable[str], integers: Collection[str]
) -> dict[str, Any]:
    """The numbers of some columns; what is empty is left out."""
    return {
        name: int(values[name]) if name in integers else float(values[name])
        for name in columns
        if values[name]
    }


class RowTable(abc.ABC):
    """A result with a row for each thing that it tells of."""

    @abc.abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """The rows, all with the same keys."""

    @abc.abstractmethod
    def _columns(self) -> tuple[str, ...]:
        """The keys, in order."""

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a data frame: NaN or None where something is not known."""
        import pandas

        return pandas.DataFrame(self.to_rows(), columns=list(self._columns()))

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows; the file appears whole, or not at all.

        What is None is left empty, and numbers have six digits.

        Raises:
            ValueError: the path cannot be written.
        """
        with (
            written_whole(path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, list(self._columns()), lineterminator="\n")
            writer.writeheader()
            for row in self.to_rows():
                writer.writerow({name: csv_value(value) for name, value in row.items()})


def csv_value(value: Any) -> Any:
    """A value as it stands in the file."""
    return f"{value:.6g}" if isinstance(value, float) else value
