"""Stopping a run on request: what a signal asks for, and the exception that ends the run."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


class Stopped(BaseException):
    """A run has been asked to stop; what it has finished is saved.

    Like KeyboardInterrupt it is not an error, and no `except Exception` catches it.

    Attributes:
        by_keyboard: it was Ctrl-C, and not SIGTERM.
        is_saved: everything is saved; otherwise what was under way, such as a calibration, begins
            again.
    """

    def __init__(self, *, by_keyboard: bool = False, is_saved: bool = False) -> None:
        super().__init__()
        self.by_keyboard = by_keyboard
        self.is_saved = is_saved


class Interruption:
    """Whether the process has been asked to stop.

    Outside `deferred` the request takes effect at once, as `Stopped`: what takes long saves itself.
    A second Ctrl-C does not wait for anything.
    """

    def __init__(self) -> None:
        self.requested = False
        self._by_keyboard = False
        self._deferred = False

    @contextlib.contextmanager
    def catching_signals(self) -> Iterator["Interruption"]:
        """Takes SIGTERM and Ctrl-C for requests to stop, until the block ends."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Signals reach the main thread alone.
            return
        before = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """In the block, a request waits; after it, it takes effect."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        if self.requested:
            raise self.stopped()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        by_keyboard = number == signal.SIGINT
        if by_keyboard and self._by_keyboard:
            raise KeyboardInterrupt
        self.requested = True
        self._by_keyboard |= by_keyboard
        if not self._deferred:
            raise Stopped(by_keyboard=self._by_keyboard)
        if by_keyboard:
            print("\nStopping after this step, to save; Ctrl-C again aborts.", file=sys.stderr)

    def stopped(self) -> Stopped:
        """The exception that ends a run once it has saved itself."""
        return Stopped(by_keyboard=self._by_keyboard, is_saved=True)
