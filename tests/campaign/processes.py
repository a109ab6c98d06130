"""The processes in which hostile cases run: forks of one that has imported what they need.

A server is a process of its own, which runs one call at a time in a fork of itself: with limits on
memory, time and the size of files, in a folder, and with a folder of its own for temporary files.
A new Python would take seconds to import TensorFlow; a fork takes milliseconds.
"""

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NoReturn

# Beyond what the server has mapped, and of a file that is written.
_MORE_MEMORY_BYTES, _LARGEST_FILE_BYTES = 3 * 2**30, 2**27
# A process that computes for so long is ended, and one that waits, perhaps for a busy machine.
_MOST_SECONDS, _WALL_SECONDS = 100, 300.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02
_RAISED = 70
# The folders of the stand-ins for processes that try files begin like this.
TRIAL = "trial-"


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int  # Of its exit; negative where a signal ended it.
    seconds: float  # Of the processor, with the processes that it has started.
    grown_bytes: int  # Memory at its peak beyond that of the server.
    is_late: bool  # Whether it was ended as it took too long.
    out: str
    err: str


class Server:
    """A process that has imported the command line, and forks for each call.

    It is called "light", or "tensorflow" where it has imported TensorFlow as well, or "commands"
    where it has imported nothing else.
    """

    def __init__(self, name: str) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaign.processes", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=pathlib.Path(__file__).parents[2],
            env={**os.environ, **threads, **quiet},
        )

    def call(
        self,
        function,
        *arguments,
        cwd,
        seconds=_WALL_SECONDS,
        forks=True,
        most_seconds=_MOST_SECONDS,
    ) -> Ended:
        """Calls a function in a fork; what that has started and left running is ended too.

        Args:
            function: its module and name, as in "sat_tf.commands.main:main"; it returns the exit
                status, or None for 0. JSON takes its arguments.
            cwd: working directory. What is printed goes into files beside it, and temporary files
                into the folder `tmp` there.
            most_seconds: of the processor, after which the system ends it.
            forks: whether trials of files in runtimes are forks, too. In a process of several
                threads these wait forever where another thread holds a lock.
        """
        asked = {"function": function, "arguments": arguments, "cwd": str(cwd)}
        asked |= {"seconds": seconds, "forks": forks, "most_seconds": most_seconds}
        stdin, stdout = self._process.stdin, self._process.stdout
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        if not (answer := stdout.readline()):
            raise RuntimeError(f"the server ended with status {self._process.wait()}")
        texts = (_beside(cwd, name).read_bytes().decode(errors="replace") for name in _STREAMS)
        return Ended(*json.loads(answer), *texts)

    def end(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@functools.cache
def server(name: str) -> Server:
    """The server of this name, which the first call starts."""
    return Server(name)


_STREAMS = ("out", "err")


def _beside(cwd: str | pathlib.Path, name: str) -> pathlib.Path:
    return pathlib.Path(cwd).with_name(name)


def _warm(name: str) -> None:
    from sat_tf.commands import main

    for command in main.COMMANDS:
        main.command_parser(command)
    if name == "commands":
        return
    # Modules that the first call of a command would import, none of which starts a thread.
    modules = [
        *("ai_edge_litert.interpreter", "sat_tf.export", "rich.table", "jinja2", "PIL.Image"),
        *("sat_tf.exact.litert.processes", "tests.campaign.kinds", "tests.campaign.tflite"),
        *("tests.campaign.files", "tests.campaign.pictures"),
    ]
    if name == "tensorflow":
        modules += ["tensorflow", "tf_keras", "keras", "h5py", "tensorflow_model_optimization"]
        modules += ["sat_tf.loading.load", "sat_tf.planning.explain", "sat_tf.training.audit.audit"]
        modules += ["sat_tf.training.loop.runner", "sat_tf.training.loop.start"]
    for module in modules:
        importlib.import_module(module)


def _serve(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _warm(name)
    for line in sys.stdin:
        asked = json.loads(line)
        before = _kilobytes("VmRSS")
        limit = 1024 * _kilobytes("VmSize") + _MORE_MEMORY_BYTES
        end = time.monotonic() + asked["seconds"]
        child = os.fork()
        if child == 0:
            _end_with(functools.partial(_run, asked, limit))
        status, used, is_late = _awaited(child, end)
        grown = 1024 * max(0, used.ru_maxrss - before)
        print(json.dumps([status, used.ru_utime + used.ru_stime, grown, is_late]), file=answers)
        answers.flush()


def _awaited(child: int, end: float) -> tuple[int, resource.struct_rusage, bool]:
    """The exit status of a child, what it used, and whether it was late."""
    pause, is_late = _FIRST_PAUSE, False
    while True:
        pid, status, used = os.wait4(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            is_late = True
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, 1.2 * pause)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what it has started and left
    return os.waitstatus_to_exitcode(status), used, is_late


def _kilobytes(name: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}")


def _end_with(work: Callable[[], int | None]) -> NoReturn:
    """Ends this process, a fork, with the status of some work."""
    status = _RAISED
    try:
        status = work() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _run(asked: dict[str, Any], limit: int) -> int | None:
    """Runs a call within limits."""
    os.setpgid(0, 0)
    # A shell that starts the campaign in the background lets it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE_BYTES, _LARGEST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (asked["most_seconds"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(asked["cwd"])
    temporary = _beside(asked["cwd"], "tmp")
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    _redirected(os.devnull, *(str(_beside(asked["cwd"], name)) for name in _STREAMS))
    if asked["forks"]:
        _fork_trials()
    module, _, name = asked["function"].partition(":")
    return getattr(importlib.import_module(module), name)(*asked["arguments"])


def _redirected(stdin: str, stdout: str, stderr: str) -> None:
    os.dup2(os.open(stdin, os.O_RDONLY), 0)
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _fork_trials() -> None:
    """Makes trials of files in runtimes forks, too, which otherwise are new Pythons."""
    from sat_tf.exact.litert import processes

    def trial(content, runtimes, seconds):
        # It is no temporary file of the command's.
        beside = pathlib.Path(tempfile.gettempdir()).parent
        folder = pathlib.Path(tempfile.mkdtemp(prefix=TRIAL, dir=beside))
        (folder / "in").write_bytes(content)

        def work() -> None:
            _redirected(*(str(folder / name) for name in ("in", "out", "err")))
            processes._try_file(runtimes)

        child = os.fork()
        if child == 0:
            _end_with(work)
        _, status = os.waitpid(child, 0)
        texts = [(folder / name).read_bytes() for name in _STREAMS]
        shutil.rmtree(folder)
        return subprocess.CompletedProcess([], os.waitstatus_to_exitcode(status), *texts)

    processes.trial = trial


if __name__ == "__main__":
    _serve(sys.argv[1])
