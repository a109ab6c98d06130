"""How much is done of what takes a while: a bar, or a line a minute where there is no terminal."""

import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sat_tf.messages import printable

Advance = Callable[[int], None]

_SECONDS_WITHOUT = 2.0
_SECONDS_BETWEEN_LINES = 60.0


def no_bar(count: int) -> None:
    """Advances nothing."""


class Progress:
    """What is done of some work, told by any thread."""

    def __init__(self, title: str, total: int | None, bar: Any = None) -> None:
        self.title, self.total = printable(title), total
        self.place = ""
        self._bar = bar  # of tqdm; None draws nothing
        self._begin = time.monotonic()
        self._done = self._earlier = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Advances by so much."""
        with self._lock:
            self._done += count
            self._show(count)

    def skip(self, count: int) -> None:
        """Advances by what an earlier process has done, which says nothing of the pace."""
        with self._lock:
            self._earlier += count
            self._done += count
            self._show(count, earlier=count)

    def at(self, place: str) -> None:
        """Says where in the work it is, such as "block 3 of 12"."""
        with self._lock:
            self.place = printable(place)
            self._show(0)

    def line(self) -> str:
        """What is done and what is left, in words."""
        with self._lock:
            seconds = time.monotonic() - self._begin
            title = f"{self.title}, {self.place}" if self.place else self.title
            own = self._done - self._earlier
            if self.total is None:
                return f"{title}: {self._done:,} done in {_duration(seconds)}"
            share = min(self._done / max(self.total, 1), 1.0)
            line = f"{title}: {100 * share:.0f} % done after {_duration(seconds)}"
            if own <= 0:
                return line
            left = seconds * max(self.total - self._done, 0) / own
            return f"{line}, about {_duration(left)} left"

    def _show(self, count: int, *, earlier: int = 0) -> None:
        """Draws what has changed."""
        if self._bar is None:
            return
        self._bar.initial += earlier
        if self._bar.postfix != (self.place or None):
            self._bar.set_postfix_str(self.place, refresh=False)
        self._bar.update(count)


def _duration(seconds: float) -> str:
    """A time in words.

    >>> _duration(8.2), _duration(100), _duration(5000)
    ('8 s', '2 min', '1 h 23 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


@contextlib.contextmanager
def image_bar(title: str, total: int | None, *, shown: bool = True) -> Iterator[Progress]:
    """What to call with the number of images that have been done, by any thread.

    On terminals, where it is drawn on standard error, and in notebooks a bar appears after two
    seconds; it disappears at the end. Elsewhere, as in a pipe or a log, standard error gets a line
    a minute.
    """
    # Only the kernel of a notebook loads this module; its standard error is no terminal.
    in_a_notebook = "ipykernel.kernelapp" in sys.modules
    if not shown:
        yield Progress(title, total)
    elif in_a_notebook or sys.stderr.isatty():
        with warnings.catch_warnings():
            # A notebook without ipywidgets gets the bar of a terminal; tqdm remarks on it.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
        with tqdm(
            desc=printable(title), total=total, unit="", delay=_SECONDS_WITHOUT, leave=False
        ) as bar:
            yield Progress(title, total, bar)
    else:
        progress, is_done = Progress(title, total), threading.Event()

        def tell() -> None:  # also while nothing advances
            while not is_done.wait(_SECONDS_BETWEEN_LINES):
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    print(progress.line(), file=sys.stderr, flush=True)

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield progress
        finally:
            is_done.set()
            teller.join()
