"""How results look where they are the value of an expression: a line of text, tables in notebooks.

The interpreter shows `repr`, notebooks show `_repr_html_`. A class that is `Displayed` says what is
in them by the tables that it prints on terminals.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from sat_tf.presentation.page import render
from sat_tf.presentation.tables import Cell, Marked, Table


class Displayed(abc.ABC):
    """A result with a line for the interpreter, and tables for notebooks.

    The first of the bases; dataclasses need `repr=False`. Else the representation that dataclasses
    have by themselves hides this one.
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

    def __repr__(self) -> str:
        headline = self._headline()
        words = headline.words if isinstance(headline, Marked) else headline
        return f"<{type(self).__name__}: {words}>"

    def _repr_html_(self) -> str:
        """The line and the tables, for a notebook."""
        tables = {title: table for title, table in self._tables().items() if table.rows}
        return str(
            render(
                "presentation/notebook.html",
                headline=self._headline(),
                tables={title: table.to_html(title) for title, table in tables.items()},
                notes=[note for note in self._notes() if note],
            )
        )
