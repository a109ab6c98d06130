"""Tables, one list of columns for the terminal, HTML, Markdown and CSV; and the pages around them.

Pages are self-contained HTML from templates; they load nothing, and run nothing except a zoom. A
template lies next to the module that fills it, and is named by its path inside the package. It
extends "messages/page.html" and fills the blocks `style` and `body`; its values are plain text
and are escaped, unless they are `Markup`: a table, a chart, another template. Control characters in
values are shown as text, as on a terminal: some reverse the direction of the text after them.
"""

import abc
import csv
import dataclasses
import functools
import io
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

import jinja2
import rich.table
from markupsafe import Markup, escape
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.text import Text

from sat_tf.files import write_text
from sat_tf.messages import in_one_line, no_such, printable, say
from sat_tf.messages.terminal import FittingTable, make_console

if TYPE_CHECKING:
    import pandas

_Row = TypeVar("_Row")
_PACKAGE = pathlib.Path(__file__).parent.parent

# How words are marked, on a terminal and in HTML.
_STYLES = {"good": "green", "watch": "yellow", "bad": "red", "soft": "cyan"}


class Marked(NamedTuple):
    """Words with a style."""

    words: str  # Plain text.
    # "good", "watch" and "bad" are coloured; on pages only, "name" is bold and "code" monospaced.
    # Others are CSS classes of a page.
    kind: str


# The contents of a cell: plain text, or `Markup`, which is for pages only.
Cell = str | Marked | Markup


def digits(form: str, missing: str = "") -> Callable[[Any], str]:
    """A function that formats numbers, and shows None as `missing`."""
    return lambda value: missing if value is None else format(value, form)


def percent(decimals: int = 2, unit: str = " %", missing: str = "") -> Callable[[Any], str]:
    """A function that formats shares in percent, and shows None as `missing`."""
    return lambda share: missing if share is None else f"{100 * share:.{decimals}f}{unit}"


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign; that of 0 is a plus."""
    return f"{round(100 * share, 2) + 0.0:+.2f}"


def plain(value: Any) -> Cell:
    """A value as it is; None is left empty."""
    if isinstance(value, str | Marked):
        return value
    return "" if value is None else str(value)


def render(template: str, **values: Any) -> Markup:
    """A template with its values filled in: a page, or a value for another template."""
    return Markup(_environment().get_template(template).render(values))


@functools.cache
def _environment() -> jinja2.Environment:
    def shown(value: Any) -> Any:
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return printable(value) if is_text else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PACKAGE),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"breakable": _breakable, "form": format}
    return environment


@dataclasses.dataclass(frozen=True)
class Column(Generic[_Row]):
    """A column of a table."""

    title: str  # Plain text.
    value: Callable[[_Row], Any]  # Gives the value of a row.
    show: Callable[[Any], Cell] = plain  # Formats that value for readers.
    _: dataclasses.KW_ONLY
    number: bool = False  # Whether cells are aligned to the right.
    wrap: str = ""  # On a terminal "never" keeps up to 24 letters of a name together.
    least_width: int = 0  # Terminals with fewer columns of letters leave it out.

    def cell(self, row: _Row) -> Cell:
        """The shown value of a row."""
        return self.show(self.value(row))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table(Generic[_Row]):
    """Rows under columns."""

    columns: Sequence[Column[_Row]]  # The columns, in order.
    rows: Sequence[_Row]  # The rows, in order.
    # The style of a whole row, as in `Marked`; "" for none.
    kind: Callable[[_Row], str] = lambda row: ""
    totals: Sequence[Cell] = ()  # Cells of a separate last row; () for none.

    def cells(self) -> list[list[Cell]]:
        """The shown values, row by row."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def without_empty(self, empty: str = "-") -> "Table[_Row]":
        """The table without columns whose cells are all empty."""
        if not self.rows:
            return self
        columns = [
            column
            for column, cells in zip(self.columns, zip(*self.cells(), strict=True), strict=True)
            if set(cells) != {empty}
        ]
        return dataclasses.replace(self, columns=columns)

    def for_width(self, width: int) -> "Table[_Row]":
        """The table without the columns that a terminal of this width leaves out."""
        places = [place for place, column in enumerate(self.columns) if column.least_width <= width]
        columns = [self.columns[place] for place in places]
        totals = [self.totals[place] for place in places if self.totals]
        return dataclasses.replace(self, columns=columns, totals=totals)

    def to_rich(self, **options: Any) -> rich.table.Table:
        """The table for a terminal."""
        table = FittingTable(**options)
        for column in self.columns:
            table.add_column(
                column.title,
                justify="right" if column.number else "left",
                no_wrap=column.wrap == "never",
            )
        for row, cells in zip(self.rows, self.cells(), strict=True):
            table.add_row(*map(marked_text, cells), style=_STYLES.get(self.kind(row)))
        if self.totals:
            table.add_section()
            table.add_row(*map(marked_text, self.totals))
        return table

    def to_html(self, label: str) -> Markup:
        """The table for a page; it scrolls by itself if it is wider than the page."""
        rows = list(zip(map(self.kind, self.rows), self.cells(), strict=True))
        if self.totals:
            rows.append(("", list(self.totals)))
        return render(
            "messages/table.html",
            heads=[(column.title, column.number) for column in self.columns],
            rows=rows,
            label=label,
            zip=zip,
        )

    def to_markdown(self) -> str:
        """The table in Markdown."""

        def shown(cell: Cell) -> str:
            if not isinstance(cell, Marked):
                return cell
            return f"`{cell.words}`" if cell.kind == "code" else cell.words

        lines = [
            [column.title for column in self.columns],
            ["---:" if column.number else "---" for column in self.columns],
            *(map(shown, cells) for cells in self.cells()),
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def marked_text(cell: Cell) -> Text:
    """The contents of a cell, for a terminal, where no cell has several lines."""
    if isinstance(cell, Marked):
        return Text(in_one_line(cell.words), _STYLES.get(cell.kind, ""))
    return Text(in_one_line(cell))


def _breakable(name: str) -> Markup:
    """A name that may be broken into lines after its words, and not in the middle of one."""
    return Markup(re.sub("([_/])", r"\1<wbr>", str(escape(printable(name)))))


# A spreadsheet computes text that begins like this, unless an apostrophe precedes it.
_FORMULA = re.compile(r"\s*[=+\-@]\s*\S")


def write_table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A header line, and a line for each row, with six digits of floats and no formula."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_as_text, row) for row in (columns, *rows))
    return text.getvalue()


def _as_text(value: Any) -> Any:
    """A value as a cell of a CSV file shows it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str):
        return value
    text = printable(value)
    is_number = re.fullmatch(r"\s*[+-]?([\d.]+(e[+-]?\d+)?|inf|nan)\s*", text, re.IGNORECASE)
    return f"'{text}" if _FORMULA.match(text) and not is_number else text


class Displayed(abc.ABC):
    """A result as the value of an expression: a line in the interpreter, tables in notebooks.

    Dataclasses need `repr=False`: otherwise their own representation hides this one.
    """

    @abc.abstractmethod
    def _headline(self) -> Cell:
        """The most important finding, in a line of plain text."""

    @abc.abstractmethod
    def _tables(self) -> Mapping[str, Table[Any]]:
        """The tables, by their titles; those without rows are left out."""

    def _notes(self) -> Sequence[Cell]:
        """Sentences below the tables; empty ones are left out."""
        return ()

    if not TYPE_CHECKING:  # so that a wrong name stays an error for type checkers

        def __getattr__(self, name: str) -> NoReturn:
            """Says what to use in place of a name of earlier versions."""
            owner = type(self).__name__
            raise AttributeError(no_such(f"{owner} has no {name!r}", f"{owner}.{name}"))

    def __repr__(self) -> str:
        headline = self._headline()
        words = headline.words if isinstance(headline, Marked) else headline
        return f"<{type(self).__name__}: {words}>"

    def _repr_html_(self) -> str:
        """The line and the tables, for a notebook."""
        tables = {title: table for title, table in self._tables().items() if table.rows}
        return str(
            render(
                "messages/notebook.html",
                headline=self._headline(),
                tables={title: table.to_html(title) for title, table in tables.items()},
                notes=[note for note in self._notes() if note],
            )
        )


class RowTable(Displayed):
    """A result that is also printed as tables, and exported as rows."""

    COLUMNS: ClassVar[tuple[str, ...]]  # The keys of the rows, in order.
    # The default width of `table`, in letters: as wide as needed.
    _width: ClassVar[int] = 120
    _page: ClassVar[str]  # The template of its page, where it has one.

    @abc.abstractmethod
    def to_rows(self) -> list[dict[str, Any]]:
        """The rows, all with the same keys."""

    def print_to(self, console: Console) -> None:
        """Prints the tables, and below them the most important finding and the sentences."""
        self.print_tables(console)
        for line in (self._headline(), *self._notes()):
            say(console, marked_text(line))

    def print_tables(self, console: Console) -> None:
        """Prints the tables that have rows, without the columns for which there is no room."""
        style: dict[str, Any] = {"box": SIMPLE_HEAD, "collapse_padding": True, "pad_edge": False}
        for title, table in self._tables().items():
            if table.rows:
                fitting = table.for_width(console.width)
                console.print(fitting.to_rich(title=title, title_justify="left", **style))

    def table(self, width: int | None = None) -> str:
        """The result as text for a terminal of a width, by default as wide as needed."""
        text = io.StringIO()
        self.print_to(make_console(file=text, width=width or self._width))
        return text.getvalue()

    def __str__(self) -> str:
        return self.table()

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a data frame of pandas: NaN or None for unknown values."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ImportError(
                "to_frame: received an environment without pandas, expected it: pip install "
                "pandas; to_rows() and write_csv() do without."
            ) from error

        return pandas.DataFrame(self.to_rows(), columns=list(self.COLUMNS))

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Writes the finding, the tables and the sentences as one file of HTML, without scripts."""
        write_text(path, render(self._page, result=self, shown=Markup(self._repr_html_())))

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows: None is left empty, and floats have six digits."""
        rows = ([row[name] for name in self.COLUMNS] for row in self.to_rows())
        write_text(path, write_table(self.COLUMNS, rows))
