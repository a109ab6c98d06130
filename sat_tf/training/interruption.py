"""Stopping a run on request: SIGTERM, and the exception that ends it with everything saved."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stopped(BaseException):
    """A run has been asked to stop, and everything it needs to resume is saved.

    Like KeyboardInterrupt it is not an error, and no `except Exception` catches it.
    """


class Interruption:
    """Whether the process has been asked to stop.

    Outside `deferred` the request takes effect at once, as `Stopped`: nothing can be lost there.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    @contextlib.contextmanager
    def catching_sigterm(self) -> Iterator["Interruption"]:
        """Takes SIGTERM for a request to stop, until the block ends."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Signals reach the main thread alone.
            return
        before = signal.signal(signal.SIGTERM, self._receive)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """In the block, a request waits; after it, it takes effect."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self._stop_if_requested()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.requested = True
        if not self._deferred:
            self._stop_if_requested()

    def _stop_if_requested(self) -> None:
        if self.requested:
            raise Stopped
