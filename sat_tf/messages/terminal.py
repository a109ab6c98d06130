"""A terminal: consoles that never obey what they show, and tables whose words stay whole."""

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import rich.table
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from sat_tf.messages import printable

# A name may be broken into lines of so many letters, and of no fewer.
_LEAST_NAME = 24
_ANY_WIDTH = 100_000


class _Console(Console):
    """A console whose lines may be longer than the terminal is wide, which wraps them."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **{"crop": False, **options})


def make_console(**options: Any) -> Console:
    """A console on which control characters are text."""
    console = _Console(**options)
    console.push_render_hook(_Printable())
    return console


class _Printable(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


class _Shown:
    """A renderable whose text shows its control characters."""

    def __init__(self, renderable: ConsoleRenderable) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for segment in console.render(self._renderable, options):
            # Rich marks its own ones, such as the moves of a progress bar.
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class FittingTable(rich.table.Table):
    """A table of whole words and numbers, wider than a terminal that has no room for them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the table; where columns wrap, those that want least are whole first."""
        unlimited, least, shortfalls = options.update(width=_ANY_WIDTH), [], []
        for column in self.columns:
            head = Measurement.get(console, unlimited, column.header)
            cells = [Measurement.get(console, unlimited, cell) for cell in column.cells]
            longest = max((cell.maximum for cell in cells), default=0)
            word = max((cell.minimum for cell in cells), default=0)
            name = min(longest if column.no_wrap else word, _LEAST_NAME)
            least.append(max(head.minimum, longest if column.justify == "right" else name))
            shortfalls.append(max(head.maximum, longest) - least[-1])
        table = copy.copy(self)
        table.columns = [
            dataclasses.replace(column, width=width, no_wrap=False, overflow="fold")
            for column, width in zip(self.columns, least, strict=True)
        ]
        spare = options.max_width - rich.table.Table.__rich_measure__(table, console, unlimited)[1]
        order = sorted(range(len(shortfalls)), key=shortfalls.__getitem__)
        for number, place in enumerate(order):
            extra = max(min(shortfalls[place], spare // (len(order) - number)), 0)
            table.columns[place].width = least[place] + extra
            spare -= extra
        whole = options.update(width=max(options.max_width, _ANY_WIDTH if spare < 0 else 0))
        yield from rich.table.Table.__rich_console__(table, console, whole)
