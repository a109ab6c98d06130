"""A terminal: consoles that never obey what they show, and tables that fit, heads and all."""

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import rich.table
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment

from sat_tf.messages import printable

# A name may be broken into lines of so many letters, and of no fewer.
_LEAST_NAME = 24
_ANY_WIDTH = 100_000


def make_console(**options: Any) -> Console:
    """A console on which control characters are text."""
    console = Console(**options)
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
    """A table that is never cut: heads wrap between words, names fold, numbers stay whole.

    Where even so not all columns have room beside each other, those that are left follow in a
    table below, behind the first column again.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the table, or the tables that it is divided into."""
        whole = options.update(width=_ANY_WIDTH)
        sizes = [_Sizes.of(column, console, whole) for column in self.columns]
        following = list(range(1, len(self.columns)))
        for number in range(len(self.columns)):
            for count in range(len(following), -1, -1):
                chosen = [0, *following[:count]]
                part = copy.copy(self)  # whose cells wrap where their widths ask for it
                part.columns = [
                    dataclasses.replace(
                        self.columns[place], _index=index, width=1, no_wrap=False, overflow="fold"
                    )
                    for index, place in enumerate(chosen)
                ]
                own = [sizes[place] for place in chosen]
                # The frame and the padding: the columns have the width 1.
                framed = rich.table.Table.__rich_measure__(part, console, whole).maximum
                room = options.max_width - (framed - len(part.columns))
                if count <= 1 or sum(size.least for size in own) <= room:
                    break
            for column, width in zip(part.columns, _divided(room, own), strict=True):
                column.width = width
            following = following[count:]
            part.title = None if number else self.title
            part.caption = None if following else self.caption
            yield from rich.table.Table.__rich_console__(part, console, options)
            if not following:
                break


class _Sizes(NamedTuple):
    """How wide a column can be."""

    least: int  # Without a word or a number that is cut.
    whole: int  # Without a line that is wrapped.

    @classmethod
    def of(cls, column: rich.table.Column, console: Console, options: ConsoleOptions) -> "_Sizes":
        """The sizes of a column of texts."""
        head = Measurement.get(console, options, column.header)
        cells = [Measurement.get(console, options, cell) for cell in column.cells]
        longest = max((cell.maximum for cell in cells), default=0)
        word = max((cell.minimum for cell in cells), default=0)
        if column.justify == "right":
            least = longest
        else:
            least = min(longest if column.no_wrap else word, _LEAST_NAME)
        return cls(max(head.minimum, least), max(head.maximum, longest))


def _divided(room: int, sizes: Sequence[_Sizes]) -> list[int]:
    """The widths of columns: as they are whole, the least wanting first, as far as there is room.

    >>> _divided(40, [_Sizes(10, 40), _Sizes(5, 8)]), _divided(10, [_Sizes(10, 40), _Sizes(5, 8)])
    ([32, 8], [5, 5])
    """
    widths = [size.least for size in sizes]
    spare = room - sum(widths)
    wanting = sorted(range(len(sizes)), key=lambda place: sizes[place].whole - widths[place])
    for left, place in enumerate(wanting):
        more = min(sizes[place].whole - widths[place], spare // (len(wanting) - left))
        widths[place] += max(more, 0)
        spare -= max(more, 0)
    # A terminal that is too narrow for words breaks them.
    while sum(widths) > max(room, len(widths)):
        widths[widths.index(max(widths))] -= 1
    return widths
