"""A bar that shows how much is done, on terminals and in notebooks, of what takes a while."""

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from markupsafe import Markup
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sat_tf.presentation.console import make_console

Advance = Callable[[int], None]

# What takes less has no bar.
_SECONDS_WITHOUT = 2.0
_SECONDS_BETWEEN_PICTURES = 0.2


def no_bar(count: int) -> None:
    """Advances nothing."""


@contextlib.contextmanager
def image_bar(title: str, total: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """A function to call with the number of images that have been done.

    The bar appears after two seconds, on terminals, where it is drawn on standard error, and in
    notebooks; it disappears at the end.

    Args:
        title: what is done.
        total: how many images there are; None if unknown.
        shown: whether there is a bar at all.
    """
    kind = _kind_of_bar() if shown else None
    if kind is None:
        yield no_bar
        return
    bar = _LateBar(lambda done: kind(title, total, done))
    try:
        yield bar.advance
    finally:
        bar.close()


class _Bar(Protocol):
    def show(self, done: int) -> None: ...

    def close(self) -> None: ...


def _kind_of_bar() -> Callable[[str, int | None, int], _Bar] | None:
    """What draws a bar here; None where nobody would see it."""
    if _in_a_notebook():
        return _NotebookBar
    return _TerminalBar if Console(stderr=True).is_terminal else None


def _in_a_notebook() -> bool:
    # Not imported for this: in a notebook it is there.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _LateBar:
    """A bar that appears once it has waited; several threads may advance it.

    Args:
        make: of the number that is done by then.
    """

    def __init__(self, make: Callable[[int], _Bar]) -> None:
        self._make = make
        self._bar: _Bar | None = None
        self._done = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def advance(self, count: int) -> None:
        """Counts, and shows it."""
        with self._lock:
            self._done += count
            if self._bar is not None:
                self._bar.show(self._done)
            elif time.monotonic() - self._start >= _SECONDS_WITHOUT:
                self._bar = self._make(self._done)

    def close(self) -> None:
        """Removes the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()


class _TerminalBar:
    def __init__(self, title: str, total: int | None, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=make_console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(title, total=total, completed=done)
        self._progress.start()

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def close(self) -> None:
        self._progress.stop()


class _NotebookBar:
    # HTML's own bar: those of rich and tqdm need ipywidgets, which many notebooks do not have.

    def __init__(self, title: str, total: int | None, done: int) -> None:
        self._title, self._total, self._first = title, total, done
        self._start = self._last = time.monotonic()
        # Here, because outside notebooks it need not be installed.
        from IPython.display import HTML, display

        self._html = HTML
        self._handle: Any = display(HTML(self._picture(done)), display_id=True)

    def show(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_PICTURES:
            self._last = now
            self._handle.update(self._html(self._picture(done)))

    def close(self) -> None:
        self._handle.update(self._html(""))

    def _picture(self, done: int) -> Markup:
        if self._total is None:
            return Markup("<progress></progress> {}: {:,}").format(self._title, done)
        words = f"{self._title}: {done:,} of {self._total:,}"
        gained = done - self._first
        if gained > 0:
            seconds = (time.monotonic() - self._start) * (self._total - done) / gained
            words += f", left {datetime.timedelta(seconds=round(seconds))}"
        bar = Markup('<progress value="{}" max="{}"></progress> {}')
        return bar.format(done, self._total, words)
