"""Tables: a list of columns becomes one for a terminal, one in HTML, one in Markdown, and CSV."""

import abc
import csv
import dataclasses
import io
import itertools
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import rich.table
from markupsafe import Markup
from rich.text import Text

from sat_tf.atomic_file import written_whole
from sat_tf.messages import RunError
from sat_tf.presentation.page import render

if TYPE_CHECKING:
    import pandas

_Row = TypeVar("_Row")
# Of the name of a column that is none.
_SHOWN = 40

# How words are marked, on a terminal and in HTML.
_STYLES = {"good": "green", "watch": "yellow", "bad": "red", "soft": "cyan"}


class Marked(NamedTuple):
    """Words that look different from others.

    Attributes:
        words: in plain text.
        kind: "good", "watch" and "bad" are coloured; "name" is bold and "code" a typeface of its
            own on pages, and neither anything on a terminal. Others are classes of a page.
    """

    words: str
    kind: str


# What stands in a cell, in plain text unless it is made of HTML: such cells are for pages alone.
Cell = str | Marked | Markup


def digits(form: str, missing: str = "") -> Callable[[Any], str]:
    """Writes numbers in a format, and what is None as something else.

    >>> digits(".3g")(0.12345), digits(",")(1234), digits("", "-")(None)
    ('0.123', '1,234', '-')
    """
    return lambda value: missing if value is None else format(value, form)


def percent(decimals: int = 2, unit: str = " %", missing: str = "") -> Callable[[Any], str]:
    """Writes shares in percent, and what is None as something else.

    >>> percent()(0.5), percent(1, unit="")(0.5), percent(missing="-")(None)
    ('50.00 %', '50.0', '-')
    """
    return lambda share: missing if share is None else f"{100 * share:.{decimals}f}{unit}"


def plain(value: Any) -> Cell:
    """A value as it is; what is None is left empty."""
    if isinstance(value, str | Marked):
        return value
    return "" if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Column(Generic[_Row]):
    """A column of a table.

    Attributes:
        title: in plain text.
        value: of a row: what the data frame has, and CSV with six digits.
        show: that value for people.
        unit: of what is shown, behind the title.
        number: it is aligned to the right.
        wrap: whether long words go on in a new line on a terminal: "never" keeps a cell in one
            line, "fold" breaks words too.
    """

    title: str
    value: Callable[[_Row], Any]
    show: Callable[[Any], Cell] = plain
    _: dataclasses.KW_ONLY
    unit: str = ""
    number: bool = False
    wrap: str = ""

    @property
    def head(self) -> str:
        """The title with the unit."""
        return f"{self.title} {self.unit}" if self.unit else self.title

    def cell(self, row: _Row) -> Cell:
        """What people see of a row."""
        return self.show(self.value(row))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(Generic[_Row]):
    """Rows under columns.

    Attributes:
        columns: in order.
        rows: in order.
        kind: how a whole row is marked, as in `Marked`; "" where it is not.
        totals: cells of a last row, apart from the others; () for none.
    """

    columns: Sequence[Column[_Row]]
    rows: Sequence[_Row]
    kind: Callable[[_Row], str] = lambda row: ""
    totals: Sequence[Cell] = ()

    def cells(self) -> list[list[Cell]]:
        """What people see, row by row."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def without_empty(self, empty: str = "-") -> "Table[_Row]":
        """The same without the columns in which nothing else stands."""
        columns = [
            column
            for column, cells in zip(self.columns, zip(*self.cells(), strict=True), strict=True)
            if set(cells) != {empty}
        ]
        return dataclasses.replace(self, columns=columns)

    def to_rich(self, **options: Any) -> rich.table.Table:
        """The table for a terminal.

        Args:
            **options: of `rich.table.Table`.
        """
        table = rich.table.Table(**options)
        for column in self.columns:
            table.add_column(
                column.head,
                justify="right" if column.number else "left",
                no_wrap=column.wrap == "never",
                overflow="fold" if column.wrap == "fold" else "ellipsis",
            )
        for row, cells in zip(self.rows, self.cells(), strict=True):
            table.add_row(*map(marked_text, cells), style=_STYLES.get(self.kind(row)))
        if self.totals:
            table.add_section()
            table.add_row(*map(marked_text, self.totals))
        return table

    def to_html(self, label: str) -> Markup:
        """The table for a page; it scrolls by itself where it is wider than the page.

        Args:
            label: what it shows, for who cannot see it.
        """
        rows = list(zip(map(self.kind, self.rows), self.cells(), strict=True))
        if self.totals:
            rows.append(("", list(self.totals)))
        return render(
            "presentation/table.html", columns=self.columns, rows=rows, label=label, zip=zip
        )

    def to_markdown(self) -> str:
        """The table in Markdown."""
        lines = [
            [column.head for column in self.columns],
            ["---:" if column.number else "---" for column in self.columns],
            *([_markdown(cell) for cell in cells] for cells in self.cells()),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def to_csv(self) -> str:
        """The values as CSV text; what is None is left empty, and numbers have six digits."""
        return write_table(
            [column.title for column in self.columns],
            ([column.value(row) for column in self.columns] for row in self.rows),
        )

    def to_frame(self) -> "pandas.DataFrame":
        """The values as a data frame: NaN or None where something is not known."""
        import pandas

        return pandas.DataFrame(
            [{column.title: column.value(row) for column in self.columns} for row in self.rows],
            columns=[column.title for column in self.columns],
        )


def marked_text(cell: Cell) -> Text:
    """What stands in a cell, for a terminal."""
    return Text(cell.words, _STYLES.get(cell.kind, "")) if isinstance(cell, Marked) else Text(cell)


def _markdown(cell: Cell) -> str:
    if not isinstance(cell, Marked):
        return cell
    return f"`{cell.words}`" if cell.kind == "code" else cell.words


def write_table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header line, and a line for each row; six digits of every float."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(map(csv_value, row))
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
        RunError: it has other columns, or is damaged.
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

    def _values(self) -> Table[dict[str, Any]]:
        columns: list[Column[dict[str, Any]]] = [
            Column(name, operator.itemgetter(name)) for name in self._columns()
        ]
        return Table(columns=columns, rows=self.to_rows())

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a data frame: NaN or None where something is not known."""
        return self._values().to_frame()

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows; the file appears whole, or not at all.

        What is None is left empty, and numbers have six digits.

        Raises:
            ValueError: the path cannot be written.
        """
        with written_whole(path) as temporary:
            temporary.write_text(self._values().to_csv(), encoding="utf-8", newline="")


def csv_value(value: Any) -> Any:
    """A value as it stands in the file."""
    return f"{value:.6g}" if isinstance(value, float) else value
