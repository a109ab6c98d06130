"""Moments of a process at which it is killed, asked to stop, or refused.

A moment is a time, or an event: Python's names for what changes files are replaced in the process,
which counts files that are opened to be written, their writes, renames, unlinks, new folders, and
flushes to the disk, each where the system is asked.
"""

import atexit
import builtins
import contextlib
import errno
import io
import os
import pathlib
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.campaign.processes import TRIAL

EVENTS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")
# A process that is killed here may leave half a file, or one that another misses.
NAMES_CHANGE = ("fsync", "replace", "rename", "unlink")
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
# A disk that refuses one write, or all that write from there on, by an error that Python raises or
# by a limit that the system holds.
REFUSALS = ("full", "full from here", "read-only from here", "no byte more")
REMOVALS = ("unlink", "rmdir")
# This file beside the working directory has the events, one on each line.
LOG = "events"


def run(words: Sequence[str], moment: dict[str, Any] | None = None) -> int:
    """Runs `sat-tf` with some words to the end of the process, and counts its events.

    A moment has the arguments of `watched`; with `seconds` and `what`, a signal comes when the
    process and those it has started have computed for so long.
    """
    from sat_tf.__main__ import main

    here = pathlib.Path.cwd().parent
    moment = dict(moment or {})
    seconds = moment.pop("seconds", None)
    sys.argv = ["sat-tf", *words]
    with contextlib.ExitStack() as stack:
        if moment.get("what") == "no byte more":
            # The limit holds for what is printed into files, too.
            stack.enter_context(_printed_by_another())
        log = stack.enter_context((here / LOG).open("w", buffering=1))
        if seconds is not None:
            stack.enter_context(_signal_later(seconds, SIGNALS[moment.pop("what")]))
        stack.enter_context(watched(here, log, **moment))
        status = main()
        sys.stdout.flush()
        atexit._run_exitfuncs()
        return status


@contextlib.contextmanager
def _printed_by_another() -> Iterator[None]:
    relays = []
    for number in (1, 2):
        relay = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=number)
        os.dup2(relay.stdin.fileno(), number)
        relay.stdin.close()
        relays.append(relay)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number, relay in enumerate(relays, 1):
            os.dup2(nowhere, number)
            # Who still holds the pipe has no more to say.
            with contextlib.suppress(subprocess.TimeoutExpired):
                relay.wait(1)
            relay.kill()


@contextlib.contextmanager
def _signal_later(seconds: float, number: int) -> Iterator[None]:
    """Sends this process a signal after some time, as a terminal sends Ctrl-C to all it runs.

    It is time of the processor, so that a moment stays the same on a busy machine.
    """
    target = os.getpid()
    read, write = os.pipe()
    sender = os.fork()
    if sender == 0:
        os.setpgid(0, 0)
        os.close(write)
        until = _computed(target) + seconds
        with contextlib.suppress(OSError):  # it has ended
            while not select.select([read], [], [], _PAUSE_SECONDS)[0]:
                if _computed(target) >= until:
                    (os.killpg if number == signal.SIGINT else os.kill)(target, number)
                    break
        os._exit(0)
    os.close(read)
    try:
        yield
    finally:
        os.close(write)


_PAUSE_SECONDS = 0.01


def _computed(process: int) -> float:
    """The seconds of the processor that a process has used, with those that it has started."""
    folder = pathlib.Path("/proc", str(process))
    ticks = sum(map(int, _stat(folder)[11:15]))
    for child in (folder / "task" / str(process) / "children").read_text().split():
        with contextlib.suppress(OSError):
            ticks += sum(map(int, _stat(folder.with_name(child))[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(folder: pathlib.Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()


@contextlib.contextmanager
def watched(root, log=None, *, events=EVENTS, number=None, what="", after=False):
    """Counts events in the block, in the list that it gives, and lets something befall at one.

    Only files in `root` count; the events are written to `log` as well. `what` is one of `SIGNALS`
    or `REFUSALS`; it happens before the event of this number, counted from 0, or behind it.
    """
    found: list[str] = []
    refused, own = 0, os.getpid()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def happen(event: str, path: str) -> Callable[[], None] | None:
        nonlocal refused
        if os.getpid() != own or event not in events:
            return None
        if refused and event not in REMOVALS:  # or nothing could be said of what is left over
            raise OSError(refused, os.strerror(refused), path)
        here = len(found)
        found.append(f"{event} {path}")
        with contextlib.suppress(OSError):  # the disk is full
            print(found[-1].encode("unicode_escape").decode(), file=log) if log else None
        if here != number:
            return None
        if what in SIGNALS:
            send = os.killpg if what == "int" else os.kill
            if after:
                return lambda: send(own, SIGNALS[what])
            send(own, SIGNALS[what])
        elif what == "no byte more":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        else:
            code = errno.EROFS if what.startswith("read-only") else errno.ENOSPC
            refused = code if what.endswith("from here") else 0
            raise OSError(code, os.strerror(code), path)
        return None

    with _replaced(root, happen):
        try:
            yield found
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def _replaced(root: pathlib.Path, happen: Callable[[str, str], Any]) -> Iterator[None]:
    """Puts counting functions in the place of Python's own while the block lasts."""
    beginning = f"{root.resolve()}{os.sep}"

    def inside(path: Any) -> str | None:
        """The path of a file in the folder, as it is seen from there."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.path.abspath(os.fsdecode(path))
        counts = path.startswith(beginning) and not path.startswith(beginning + TRIAL)
        return path.removeprefix(beginning) if counts else None

    def counted(event: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *others: Any, **options: Any) -> Any:
            found = inside(others[0] if event in ("replace", "rename") else path)
            then = happen(event, found) if found is not None else None
            result = real(path, *others, **options)
            if then is not None:
                then()
            return result

        return call

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            then = happen("write", self.shown)
            done = super().write(data)
            if then is not None:
                then()
            return done

    real_open = io.open

    def opened(
        file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *more, **options
    ):  # `more` and `options` are closefd and opener
        writes = set(mode) & set("wax+") and not isinstance(file, int)
        found = inside(file) if writes else None
        if found is None:
            return real_open(file, mode, buffering, encoding, errors, newline, *more, **options)
        then = happen("open", found)
        raw = Raw(file, mode.replace("b", "").replace("t", ""), *more, **options)
        raw.shown = found
        if then is not None:
            then()
        if "b" in mode and buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

    kept = {event: getattr(os, event) for event in EVENTS[2:]}
    for event, real in kept.items():
        setattr(os, event, counted(event, real))
    builtins.open = io.open = opened
    try:
        yield
    finally:
        builtins.open = io.open = real_open
        for event, real in kept.items():
            setattr(os, event, real)
