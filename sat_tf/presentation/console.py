"""Consoles that show what files and callers name, and never obey it."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from sat_tf.messages import printable


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
