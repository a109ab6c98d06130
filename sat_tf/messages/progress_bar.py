"""The progress of long work: a bar, or a line a minute where there is no terminal."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sat_tf.messages import printable

Advance = Callable[[int], None]

_SECONDS_WITHOUT = 2.0
_SECONDS_BETWEEN_LINES = 60.0
_COUNT = "{desc}{postfix}: {n_fmt} done after {elapsed}"
_LINE = "{desc}{postfix}: {n_fmt} of {total_fmt} done after {elapsed}, about {remaining} left"


class Progress:
    """The progress of some work, which any thread may report."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar  # of tqdm; None draws nothing
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Advances by `count`."""
        with self._lock:
            if self._bar is not None:
                self._bar.update(count)

    def skip(self, count: int) -> None:
        """Advances by the work of an earlier process, which says nothing about the pace."""
        with self._lock:
            if self._bar is not None:
                self._bar.initial += count
                self._bar.update(count)

    def at(self, place: str) -> None:
        """Names the current place in the work, such as "block 3 of 12"."""
        with self._lock:
            if self._bar is not None:
                self._bar.set_postfix_str(printable(place), refresh=False)


class _Log:
    """Standard error, written in whole lines; its reader may have gone."""

    def write(self, text: str) -> None:
        """Writes a text, unless it is the blanks that wipe a bar."""
        if line := text.strip():
            with contextlib.suppress(OSError, ValueError):
                print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Does nothing, because lines are written at once."""


@contextlib.contextmanager
def image_bar(title: str, total: int | None, *, shown: bool = True) -> Iterator[Progress]:
    """Yields a `Progress`, to be called by any thread with the number of images it has done.

    Terminals and notebooks get a bar after two seconds, pipes and logs a line a minute.
    """
    if not shown:
        yield Progress()
        return
    with warnings.catch_warnings():
        # A notebook without ipywidgets gets the bar of a terminal; tqdm remarks on it.
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm
    options: dict[str, Any] = {"delay": _SECONDS_WITHOUT, "leave": False}
    # Only the kernel of a notebook loads this module; its standard error is no terminal.
    if not (sys.stderr.isatty() or "ipykernel.kernelapp" in sys.modules):
        seconds = _SECONDS_BETWEEN_LINES
        options = {"delay": seconds, "mininterval": seconds, "maxinterval": seconds}
        options |= {"bar_format": _COUNT if total is None else _LINE, "file": _Log()}
    with tqdm(desc=printable(title), total=total, unit="", **options) as bar:
        yield Progress(bar)
