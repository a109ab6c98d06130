"""The command `sat-tf`."""

import argparse
import atexit
import gc
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from rich.console import Console

from sat_tf.commands import (
    allocate,
    audit,
    evaluate,
    explain,
    export,
    paper,
    quantize,
    sensitivity,
    train,
    verify,
)
from sat_tf.commands.options import Parser, with_negative_ranges
from sat_tf.data.source import ReadingError
from sat_tf.messages import RunError, say, shown
from sat_tf.presentation.console import make_console
from sat_tf.version import __version__

_FAILED = 1
_BAD_INPUT = 2
_INTERRUPTED = 130
# Rich would take 80 columns, and break words to fit them. No table is wider than this.
_WIDTH_WITHOUT_TERMINAL = 2000

_COMMANDS: dict[str, ModuleType] = {
    "quantize": quantize,
    "train": train,
    "evaluate": evaluate,
    "export": export,
    "verify": verify,
    "audit": audit,
    "explain": explain,
    "sensitivity": sensitivity,
    "allocate": allocate,
    "paper": paper,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: words of the command line after the program's name; by default those given.

    Returns:
        The exit status: 0 when all went well, 1 where LiteRT and the model differ, a strict audit
        finds a broken rule, or a model cannot be quantized as asked, 2 if the input is invalid
        or a run failed, 130 after Ctrl-C.
    """
    words = with_negative_ranges(sys.argv[1:] if arguments is None else arguments)
    parsed = _parser().parse_args(words)
    if arguments is None:
        warnings.showwarning = _show_warning
    # Python ends by looking for garbage among all objects, which with TensorFlow takes seconds.
    atexit.register(gc.freeze)
    return report_errors(lambda: parsed.command(parsed, _output()))


def _show_warning(message: Warning | str, *where: Any, **further: Any) -> None:
    """A warning of a library as a line for who does not see the code that it points at."""
    console = make_console(stderr=True)
    say(console, f"warning: {shown(message)}", style="yellow")


def _output() -> Console:
    """Standard output; in a file or a pipe every row of a table stays on one line."""
    console = make_console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return make_console(width=_WIDTH_WITHOUT_TERMINAL)


def report_errors(command: Callable[[], bool | None]) -> int:
    """Runs a command; prints errors that the user can fix, without a traceback.

    Args:
        command: returns False if it found a difference or a broken rule.

    Returns:
        The exit status; see `main`.
    """
    errors = make_console(stderr=True)
    try:
        return _FAILED if command() is False else 0
    # An OSError is a full disk, or a folder that vanished.
    except (RunError, ReadingError, OSError) as error:
        say(errors, f"error: {shown(error)}", style="red")
        return _BAD_INPUT
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        errors.print(
            "error: out of memory; use a smaller model, smaller or fewer images, or a smaller "
            "batch.",
            style="red",
            soft_wrap=True,
        )
        return _BAD_INPUT
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "interrupted; the files written so far are whole"
        say(errors, said, style="red")
        return _INTERRUPTED


def _is_out_of_memory(error: Exception) -> bool:
    tensorflow = sys.modules.get("tensorflow")  # not imported only for this check
    exhausted = tensorflow is not None and tensorflow.errors.ResourceExhaustedError
    return isinstance(error, MemoryError) or bool(exhausted and isinstance(error, exhausted))


def _parser() -> Parser:
    parser = Parser(
        prog="sat-tf",
        description="Low-bit quantization-aware training for Keras, with a certified TFLite export."
        " `sat-tf COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"sat-tf {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    for name, command in _COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(command=command.run)
    return parser
