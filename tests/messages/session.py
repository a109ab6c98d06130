"""The table of messages: calls as a user types them, and the whole message that answers each.

Every `.txt` file of this folder is a session, run from top to bottom in an empty folder. A row is a
line of Python behind `>>> `, or of the shell behind `$ `, and the message below it. A statement
without a message prepares those that follow, or shows what nothing is wrong with. A row is added by
writing its call alone; then

    python -m tests.messages.session              # writes the messages of all sessions anew
    python -m tests.messages.session policy core  # of these two

and the difference in the files shows what users will read.
"""

import contextlib
import io
import os
import pathlib
import re
import shlex
import sys
import tempfile
import warnings
from typing import Any, NamedTuple
from unittest import mock

import tf_keras as keras

import tests.conftest  # noqa: F401 -- it makes the devices, before anything computes
from sat_tf.commands import main

FOLDER = pathlib.Path(__file__).parent
SESSIONS = sorted(path.stem for path in FOLDER.glob("*.txt"))
_CALLS = (">>> ", "$ ")
_HASH = re.compile(r"\b[0-9a-f]{12}\b")
_CONTINUED = "... "


class Row(NamedTuple):
    """A call and its message, with the comment above them; "" where there is none."""

    call: str
    message: str
    comment: str = ""

    def __str__(self) -> str:
        comment = f"\n{self.comment}\n" if self.comment else ""
        return f"{comment}{self.call}\n" + (f"{self.message}\n\n" if self.message else "")


def read(name: str) -> list[Row]:
    """Returns the rows of a session."""
    rows: list[Row] = []
    comment = ""
    for line in (FOLDER / f"{name}.txt").read_text("utf-8").splitlines():
        if line.startswith("# "):
            comment += f"{line}\n"
        elif line.startswith(_CALLS):
            rows.append(Row(line, "", comment.rstrip()))
            comment = ""
        elif line.startswith(_CONTINUED) and not rows[-1].message:
            rows[-1] = rows[-1]._replace(call=f"{rows[-1].call}\n{line}")
        elif rows:
            rows[-1] = rows[-1]._replace(message=f"{rows[-1].message}\n{line}")
    return [row._replace(message=row.message.strip()) for row in rows]


def _answer_of_command(words: list[str]) -> str:
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        try:
            status: Any = main.main(words)
        except SystemExit as ended:
            status = ended.code
    # The options, which --help lists, are left out.
    text = re.sub(
        r"^usage: (.*?) \[.*?(?=^sat-tf)", r"usage: \1 ...\n", written.getvalue(), flags=re.M | re.S
    )
    return f"{text.rstrip()}\nexit status {status}"


def _answer(call: str, names: dict[str, Any]) -> str:
    """The message of a call; "" of one that nothing is wrong with."""
    if call.startswith("$ "):
        return _answer_of_command(shlex.split(call)[2:])
    code = "\n".join(line[len(_CONTINUED) :] for line in call.splitlines())
    try:
        exec(compile(code, "session", "exec"), names)
    except (NameError, SyntaxError, ModuleNotFoundError):  # mistakes of the session itself
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run(name: str) -> list[Row]:
    """Returns the rows of a session with the messages that its calls have now."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    names: dict[str, Any] = {"__name__": "session"}
    terminal = mock.patch.dict(os.environ, COLUMNS="100")  # it breaks no lines of messages
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        terminal,
        warnings.catch_warnings(action="ignore"),
    ):
        folder = os.getcwd()
        rows = [row._replace(message=_answer(row.call, names)) for row in read(name)]
    # Trained weights, and with them the hash of a file, differ from processor to processor.
    said = [_HASH.sub("HASH", row.message.replace(folder, "FOLDER")).rstrip() for row in rows]
    return [row._replace(message=message) for row, message in zip(rows, said, strict=True)]


def write() -> None:
    """Writes the messages of sessions anew."""
    for name in sys.argv[1:] or SESSIONS:
        text = re.sub("\n{3,}", "\n\n", "".join(map(str, run(name)))).strip()
        (FOLDER / f"{name}.txt").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    write()
