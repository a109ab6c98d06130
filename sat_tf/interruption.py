"""Ctrl-C and SIGTERM, which end a command."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM has ended a command that has nothing to save, as Ctrl-C would have."""


def ending_of(interrupt: KeyboardInterrupt) -> tuple[str, int]:
    """The word for the signal that has ended a command, and the exit status."""
    return ("terminated", 143) if isinstance(interrupt, Terminated) else ("interrupted", 130)


_A_MOMENT_SECONDS = 0.01
_received: list[KeyboardInterrupt] = []


def end_on_signals() -> None:
    """Makes SIGTERM end this process as Ctrl-C does: open files are closed, or removed.

    Python drops exceptions in a finalizer, and goes on: the signal is then sent again.
    """
    before = sys.unraisablehook
    is_sending = is_due = False

    def receive(number: int, frame: FrameType | None) -> None:
        nonlocal is_due
        if is_sending:  # on a busy computer it may come this early, and would be dropped, too
            is_due = True
            return
        _received.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        raise _received[-1]

    def again(dropped: "sys.UnraisableHookArgs") -> None:
        nonlocal is_sending, is_due
        if issubclass(dropped.exc_type, Exception | SystemExit | GeneratorExit):
            before(dropped)
            return
        is_terminated = issubclass(dropped.exc_type, Terminated)
        number = signal.SIGTERM if is_terminated else signal.SIGINT
        is_sending = is_due = True
        while is_due:
            is_due = False
            threading.Timer(_A_MOMENT_SECONDS, _send_to_main_thread, [number]).start()
        is_sending = False

    signal.signal(signal.SIGTERM, receive)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as by nohup
        signal.signal(signal.SIGINT, receive)
    sys.unraisablehook = again


def interrupt_lost_in(error: Exception) -> KeyboardInterrupt | None:
    """Returns the signal that an error stands for; None if the error is one of its own.

    A function in C that overlooks the exception of a signal fails with CPython's SystemError.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, SystemError):
        cause = cause.__cause__ or cause.__context__
    return _received[-1] if cause is not None and _received else None


def _send_to_main_thread(number: int) -> None:
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)  # this ends its waiting, too
    else:
        signal.raise_signal(number)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C end the process in the block, which has nothing to save.

    While the block waits in C++, Python would hear of neither.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignores SIGTERM and Ctrl-C between the last word of a command and its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
