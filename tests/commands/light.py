"""Commands in a process without TensorFlow, which the tests' own loaded long ago.

One such process has imported the command line. Each command runs in a fork of it, as a new Python
would take seconds to come as far.
"""

import dataclasses
import functools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_HEAVY = {"tensorflow", "tf_keras", "matplotlib", "sklearn", "pandas"}

_SERVER = """
import importlib, json, os, sys
from sat_tf.commands import main

for name in main.COMMANDS:
    main.command_parser(name)

class Missing:
    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def without(packages):
    for name in list(sys.modules):
        if name.split(".")[0] in (*packages, "sat_tf"):
            del sys.modules[name]
    sys.meta_path.insert(0, Missing(packages))

def run(asked):
    if asked["without"]:
        without(asked["without"])
    os.chdir(asked["cwd"])
    for number, name in enumerate(("in", "out", "err")):
        flags = os.O_RDONLY if name == "in" else os.O_WRONLY
        os.dup2(os.open(asked[name], flags), number)
    sys.stdin = open(os.devnull)
    try:
        status = importlib.import_module("sat_tf.commands.main").main(asked["arguments"])
    except SystemExit as end:
        status = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    with open(asked["loaded"], "w") as file:
        json.dump(sorted(sys.modules), file)
    return status

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = 70
        try:
            status = run(json.loads(line))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Told:
    """The words and exit status of a command that ran, and the heavy libraries it loaded."""

    status: int
    out: str
    err: str
    loaded: frozenset[str]


@functools.cache
def _server() -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_alone(
    *arguments: object, cwd: pathlib.Path | None = None, without: Sequence[str] = ()
) -> Told:
    """Runs `sat-tf` with these arguments.

    Args:
        *arguments: of `sat-tf`.
        cwd: working directory, by default the present one.
        without: packages that are as if they were not installed.
    """
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: pathlib.Path(folder, name) for name in ("in", "out", "err", "loaded")}
        for path in paths.values():
            path.touch()
        asked = {"arguments": [*map(str, arguments)], "cwd": str(cwd or pathlib.Path.cwd())}
        asked["without"] = [*without]
        server.stdin.write(json.dumps({**asked, **{k: str(v) for k, v in paths.items()}}) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        out, err, loaded = (paths[name].read_text("utf-8") for name in ("out", "err", "loaded"))
    return Told(status, out, err, frozenset(_HEAVY & set(json.loads(loaded or "[]"))))


def told_without_tensorflow(
    *arguments: str, status: int, cwd: pathlib.Path | None = None, plots: bool = False
) -> str:
    """Returns what a command prints that ends with this status and loads nothing heavy.

    Args:
        arguments: of `sat-tf`.
        status: the one expected.
        cwd: working directory.
        plots: whether matplotlib may be loaded.
    """
    told = run_alone(*arguments, cwd=cwd)
    assert told.status == status, told.err
    assert "Traceback" not in told.err
    assert told.loaded <= ({"matplotlib"} if plots else set())
    return told.out + told.err
