"""Hides messages that libraries in C++ print though nothing is wrong.

Such lines go straight to the standard error of the process, some of them while a library is
imported. Here another process reads them, and passes on unknown ones: the process outlives a
crash, whose last words must not be lost. It runs this file alone, without the package.
"""

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
from typing import BinaryIO

_NOISE = re.compile(
    rb"INFO: "  # LiteRT: delegates that it has created
    rb"|WARNING: All log messages before absl::InitializeLog"
    # TensorFlow's notes and warnings, as absl writes them and as it did itself.
    rb"|[IW]\d{4} [\d.:]+ "
    rb"|\d{4}-\d\d-\d\d [\d.:]+: [IW] "
    rb"|To enable the following instructions: "
    # TensorFlow calls these errors on machines without a GPU or AVX-512, or with two copies of a
    # library.
    rb"|(E\d{4} |\d{4}-\d\d-\d\d [\d.:]+: E ).*"
    rb"(cuInit|Unable to register cu\w+ factory|computation placer already registered"
    rb"|oneDNN supports DT_UINT8 only)"
    # Messages of libjpeg and libpng, on pictures that they still read, or that sat-tf names.
    rb"|Corrupt JPEG data: |Improper call to JPEG library |Premature end of (JPEG|input) file"
    rb"|Not a JPEG file: |Invalid (SOS parameters|JPEG file structure)|Unsupported (JPEG|marker) "
    rb"|Inconsistent progression sequence |Unknown Adobe color transform |Empty input file"
    rb"|Warning: unknown JFIF revision |Bogus |libpng (warning|error): "
)


def is_noise(line: bytes) -> bool:
    """Whether a line on standard error says nothing that a user has to know."""
    return _NOISE.match(line) is not None


def pass_on(lines: BinaryIO, to: BinaryIO) -> None:
    """Copies lines that are not noise, each as soon as it is whole, until there are no more."""
    for line in iter(lines.readline, b""):
        if not is_noise(line):
            to.write(line)
            to.flush()


_SECONDS_TO_END = 1.0


def hide_noise() -> None:
    """Passes what C++ writes to standard error through `pass_on` from now on.

    Text that Python writes to `sys.stderr` goes where it went. Nothing is done where that is not
    the standard error of the process, as in tests and notebooks.
    """
    from sat_tf.messages import is_standard_error

    stream = sys.stderr
    if not is_standard_error(stream):
        return
    stream.flush()
    # Ctrl-C does not reach another session, in which Python may not have begun to ignore it.
    reader = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    descriptor = os.dup(2)
    sys.stderr = open(descriptor, "w", buffering=1, encoding=stream.encoding, errors=stream.errors)  # noqa: SIM115
    if reader.stdin is not None:
        os.dup2(reader.stdin.fileno(), 2)
        reader.stdin.close()
    atexit.register(_end, reader, descriptor)


def _end(reader: "subprocess.Popen[bytes]", descriptor: int) -> None:
    """Waits until all lines are passed on, so that none comes after the command's end."""
    os.dup2(descriptor, 2)
    # Another process that still writes keeps it reading.
    with contextlib.suppress(subprocess.TimeoutExpired):
        reader.wait(_SECONDS_TO_END)


if __name__ == "__main__":
    # A signal that stops a group of processes is for the command, whose last words are read first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pass_on(sys.stdin.buffer, sys.stderr.buffer)
