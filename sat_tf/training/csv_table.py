"""Tables of numbers as CSV text, written and read back; what is None is left empty."""

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sat_tf.training.errors import RunError

_Row = TypeVar("_Row")


def write_table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header line, and a line for each row; six digits of every number that is no integer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(f"{value:.6g}" if isinstance(value, float) else value for value in row)
    return text.getvalue()


def read_table(
    text: str, read: Callable[[dict[str, str]], _Row], *, name: str, columns: Sequence[str]
) -> list[_Row]:
    """The rows that `write_table` wrote, to the digits that it keeps.

    Args:
        text: the table.
        read: makes a row of its values by column.
        name: what to call the table in errors.
        columns: what it should have.

    Raises:
        RunError: it is no such table.
    """
    try:
        lines = list(csv.DictReader(io.StringIO(text), strict=True))
        for values in lines:
            if None in values or None in values.values():
                raise ValueError(
                    f"a line with {'more' if None in values else 'less'} than its columns"
                )
        return [read(values) for values in lines]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunError(
            f"{name}: received a file that cannot be read ({error!r}), expected the columns "
            f"{', '.join(columns)}; it comes from another version, or was changed by hand."
        ) from error


def numbers(
    values: Mapping[str, str], columns: Iterable[str], integers: Collection[str]
) -> dict[str, Any]:
    """The numbers of some columns; what is empty is left out."""
    return {
        name: int(values[name]) if name in integers else float(values[name])
        for name in columns
        if values[name]
    }
