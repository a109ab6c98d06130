"""The command `sat-tf`."""

import atexit
import contextlib
import errno
import functools
import gc
import importlib
import logging
import pathlib
import shutil
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from sat_tf.commands.parser import Parser
from sat_tf.files import temporary_folder
from sat_tf.interruption import ending_of, interrupt_lost_in
from sat_tf.messages import (
    ReadingError,
    RunError,
    did_you_mean,
    in_one_line,
    missing_package,
    say,
    shown,
)
from sat_tf.messages.terminal import make_console
from sat_tf.version import __version__

_FAILED = 1
_BAD_INPUT = 2
# Rich would take 80 columns, and break words to fit them. No table is wider than this.
_WIDTH_WITHOUT_TERMINAL = 2000

# The commands of a first hour, in its order, and those of research; a module beside this has each.
_FIRST = {
    "quantize": "turn a trained model and a folder of pictures into a certified TFLite file",
    "explain": "show how a model will be quantized and exported, layer by layer",
    "verify": "compare a TFLite file with its model, code by code",
    "evaluate": "print the top-1 and top-5 of a TFLite file on labelled images",
    "train": "train a float and a quantized model, export and verify",
    "export": "write a quantized model as a TFLite file",
}
_OF_RESEARCH = {
    "audit": "say whether a model can be trained well, layer by layer",
    "sensitivity": "show which layers of a float model lose most when quantized",
    "allocate": "choose the bits of each layer: the least loss within a budget",
}
COMMANDS = {**_FIRST, **_OF_RESEARCH}
# Commands that are scripts of the repository now. In a clone they work for one more minor release.
_MOVED = {"paper": "benchmarks.paper"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    It is 0 when all went well, 1 where the outcome is bad, such as a red headline, 2 if the input
    is invalid or a run failed, 130 after Ctrl-C, and 143 after SIGTERM with nothing to save.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        warnings.showwarning = _show_warning
        log = logging.getLogger("sat_tf")
        log.addHandler(_Once())
        log.propagate = False  # TensorFlow's handler would write it again
    # Python ends by looking for garbage among all objects, which with TensorFlow takes seconds.
    atexit.register(gc.freeze)
    return report_errors(lambda: _run(words))


def _run(words: Sequence[str]) -> bool | None:
    """Runs the command that the words of a command line ask for."""
    description = (
        "Low-bit quantization-aware training for Keras, with a certified TFLite export.\n"
        "`sat-tf COMMAND --help` explains a command.\n"
    )
    for title, group in (("commands", _FIRST), ("research", _OF_RESEARCH)):
        lines = "\n".join(f"    {name:13}{about}" for name, about in group.items())
        description += f"\n{title}:\n{lines}\n"
    top = Parser(prog="sat-tf", usage="sat-tf COMMAND ...", description=description)
    top.add_argument("--version", action="version", version=f"sat-tf {__version__}")
    # Messages name files: text after a line break would be a message of its own. A setting
    # may be a whole file: --set "policy=$(cat policy.yaml)".
    for before, word in zip(["", *words], words, strict=False):
        if "\n" in (word.partition("=")[0] if before == "--set" else word):
            raise RunError(
                f"received {in_one_line(word)}, expected words without line breaks; rename the "
                "file, or write the value in one line."
            )
    name = words[0] if words and not words[0].startswith("-") else None
    if name is None:
        top.parse_args(words)
        top.error(f"received no COMMAND, expected one of {', '.join(COMMANDS)}")
    if name in _MOVED:
        return _run_moved(name, words[1:])
    if name not in COMMANDS:
        top.error(f"{name!r} is no command. {did_you_mean(name, COMMANDS)}")
    parser = command_parser(name)
    parsed = parser.parse_args(words[1:])
    console = make_console()
    if not console.is_terminal:  # every row of a table stays on one line, whatever COLUMNS says
        console = make_console(width=_WIDTH_WITHOUT_TERMINAL)
    former = tempfile.tempdir
    with contextlib.ExitStack() as stack:
        # Keras and TensorFlow leave temporary files behind where they are interrupted: these go
        # with the command. Whoever needs one says that there is no room.
        with contextlib.suppress(OSError):
            tempfile.tempdir = stack.enter_context(temporary_folder())
        try:
            outcome: bool | None = parsed.command(parsed, console)
        finally:
            tempfile.tempdir = former
    return outcome


def _run_moved(name: str, words: Sequence[str]) -> bool | None:
    """Runs a command that is a script now, where the package is part of a clone that has it."""
    clone, script = pathlib.Path(__file__).parents[2], f"{_MOVED[name]}.__main__"
    if not clone.joinpath(*script.split(".")).with_suffix(".py").is_file():
        raise RunError(
            f"sat-tf {name}: received a command that is a script of the repository now, expected "
            f"one of {', '.join(COMMANDS)}; clone the repository, and run python -m {_MOVED[name]} "
            "there."
        )
    _show_warning(f"sat-tf {name} will be removed; run python -m {_MOVED[name]}, in a clone")
    sys.path.insert(0, str(clone))
    outcome: bool | None = importlib.import_module(script).main(words)
    return outcome


def command_parser(name: str) -> Parser:
    """The parser of one of `COMMANDS`, which sets `command` to the function that runs it."""
    command = importlib.import_module(f"sat_tf.commands.{name}")
    description = command.DESCRIPTION
    if "\n" not in description:  # argparse would break the lines of lists too
        description = textwrap.fill(description, max(shutil.get_terminal_size().columns - 2, 20))
    parser = Parser(prog=f"sat-tf {name}", description=description, epilog=command.EXAMPLES)
    command.add_arguments(parser)
    parser.set_defaults(command=command.run)
    return parser


def _show_warning(message: Warning | str, *where: Any, **further: Any) -> None:
    """Prints a warning of a library as a line, without the code that it points at."""
    console = make_console(stderr=True)
    say(console, f"warning: {shown(message)}", style="yellow")


_show_once = functools.cache(_show_warning)


class _Once(logging.Handler):
    """Shows what sat-tf logs the first time in a command."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints a record."""
        _show_once(record.getMessage())


def report_errors(command: Callable[[], bool | None]) -> int:
    """Runs a command; prints errors that the user can fix, without a traceback."""
    errors = make_console(stderr=True)
    try:
        return _FAILED if command() is False else 0
    except KeyboardInterrupt as error:
        interrupt = error
    except Exception as error:
        if lost := interrupt_lost_in(error):
            interrupt = lost
        elif sentence := _sentence(error):
            say(errors, f"error: {sentence}", style="red")
            return _BAD_INPUT
        else:
            raise
    word, status = ending_of(interrupt)
    say(errors, str(interrupt) or f"{word}; the files written so far are whole", style="red")
    return status


def _sentence(error: Exception) -> str | None:
    """Says what is wrong, with the fix, where the user can mend it; None of a defect."""
    if isinstance(error, RunError | ReadingError):
        return shown(error)
    if isinstance(error, OSError):  # a full disk, or a folder that vanished
        name = error.filename or f"a file, perhaps a temporary one in {_temporary_folder()}"
        if error.errno == errno.ENAMETOOLONG:
            return shown(f"{name}: received a path that is too long; choose a shorter one.")
        return shown(
            f"{name}: cannot be read or written ({error.strerror or error}), expected a disk with "
            "room and permission; free some space, or name another folder; TMPDIR names that of "
            "temporary files."
        )
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error)
    tensorflow = sys.modules.get("tensorflow")  # not imported only for this check
    exhausted = tensorflow and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    if isinstance(error, MemoryError) or exhausted:
        return "out of memory; use a smaller model, smaller or fewer images, or a smaller batch."
    return None


def _temporary_folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # there is none
        return "TMPDIR"
