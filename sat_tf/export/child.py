"""Processes that run files, without TensorFlow, so that a file that ends one ends no other."""

import os
import pathlib
import signal
import sys

import sat_tf


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package as a process of its own."""
    # -P: modules come from where this process has them, not from the working directory.
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment of such a process: one thread, and the package where it is here."""
    package = str(pathlib.Path(sat_tf.__file__).parents[1])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def describe_ending(status: int, errors: bytes) -> str:
    """Why such a process ended, in words.

    Args:
        status: its return code; negative where a signal ended it.
        errors: what it has written to its standard error.

    >>> describe_ending(-11, b"")
    'it ends the process with SIGSEGV'
    """
    if status >= 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}: {lines[-1] if lines else 'no message'}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"it ends the process with {name}"
