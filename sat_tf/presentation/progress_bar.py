"""A bar that shows how many images are done."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]


@contextlib.contextmanager
def image_bar(title: str, total: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """A function to call with the number of images that have been done.

    The bar is drawn on standard error, on terminals only, and disappears at the end.

    Args:
        title: what is done.
        total: how many images there are; None if unknown.
        shown: whether there is a bar at all.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    disabled = not (shown and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=disabled) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)
