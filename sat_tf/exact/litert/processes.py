"""Processes in which files run, so that one that crashes its own crashes no other; the machine.

A `Worker` has one thread, and runs images through a task, such as a file.
"""

import abc
import contextlib
import dataclasses
import json
import os
import pathlib
import pickle
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import IO, Any, Self, cast

import numpy as np

from sat_tf.exact.litert.runtime import Interface, Runtime, loaded


def child_command(*words: str) -> list[str]:
    """The command of a process that tries a file, "try" and runtimes, or of a `Worker`, "work"."""
    # -P: modules come from where this process has them, not from the working directory.
    return [sys.executable, "-P", "-m", "sat_tf.exact.litert.processes", *words]


def child_environment() -> dict[str, str]:
    """The environment of such a process: one thread, and the package where it is here."""
    package = str(pathlib.Path(__file__).parents[3])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def describe_ending(status: int, errors: bytes) -> str:
    """Why such a process ended, in words.

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


# -- workers ---------------------------------------------------------------------------------------


class Task(abc.ABC):
    """Computes outputs from images; it is sent to workers as it is, and started there."""

    @abc.abstractmethod
    def start(self) -> Interface:
        """Gets ready."""

    @abc.abstractmethod
    def run(self, images: np.ndarray) -> np.ndarray:
        """The outputs for a batch, (n, ...)."""


class TfliteTask(Task):
    """A file in LiteRT."""

    _runtime: Runtime  # Once it is started.

    def __init__(self, content: bytes, runtime: str) -> None:
        self._content = content
        self._name = runtime

    def start(self) -> Interface:
        """Loads the file."""
        self._runtime = Runtime(self._content, self._name, keep_tensors=False)
        return self._runtime.interface

    def run(self, images: np.ndarray) -> np.ndarray:
        """Runs it."""
        return self._runtime.run(images)


# How the answers of a worker start.
_DONE, _REFUSED = "done", "refused"
_SECONDS_TO_END = 10


class Worker:
    """A process that has started a task; to be used in a `with` statement."""

    def __init__(self, task: Task) -> None:
        # Closed with the process.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            child_command("work"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )
        self._questions = cast(IO[bytes], self._process.stdin)
        self._answers = cast(IO[bytes], self._process.stdout)
        try:
            self.interface: Interface = self._ask(task)
        except BaseException:
            self._end()
            raise

    def run(self, images: np.ndarray) -> np.ndarray:
        """The outputs for a batch, (n, ...)."""
        return np.asarray(self._ask(images))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _ask(self, question: Any) -> Any:
        try:
            pickle.dump(question, self._questions, pickle.HIGHEST_PROTOCOL)
            self._questions.flush()
            word, answer = pickle.load(self._answers)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
            self._errors.seek(0)
            status = self._process.poll()
            ending = describe_ending(-1 if status is None else status, self._errors.read())
            raise ValueError(ending) from error
        if word == _REFUSED:
            raise ValueError(answer)
        return answer

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._questions, self._answers):
            with contextlib.suppress(OSError):
                pipe.close()
        self._errors.close()


# -- whether a file runs ---------------------------------------------------------------------------

# A network of a billion products takes the reference kernels some seconds an image.
_SECONDS = 300
_LARGEST_MEMORY_BYTES = 8 * 2**30


def refusals(content: bytes, runtimes: Iterable[str]) -> dict[str, str | None]:
    """Why each runtime does not run a file; None where it does.

    The runtimes load the file, make room for two images and run one of zeros, with and without
    keeping every tensor.
    """
    waiting = list(runtimes)
    answers: dict[str, str | None] = {}
    while waiting:
        try:
            done = trial(content, waiting, _SECONDS)
            output, reason = done.stdout, describe_ending(done.returncode, done.stderr)
        except subprocess.TimeoutExpired as expired:
            output, reason = expired.stdout or b"", f"it took more than {_SECONDS} s"
        for line in output.decode(errors="replace").splitlines():
            # A line that is incomplete, or not one of the answers, is skipped.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                answer = json.loads(line)
                answers[answer["runtime"]] = answer["refusal"]
        waiting = [name for name in waiting if name not in answers]
        if waiting:
            # The process ended in the first one that has not answered.
            answers[waiting.pop(0)] = reason
    return answers


def trial(
    content: bytes, runtimes: list[str], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """A process that tries a file in runtimes, once it has ended; see `refusals`."""
    return subprocess.run(
        child_command("try", *runtimes),
        input=content,
        capture_output=True,
        env=child_environment(),
        timeout=seconds,
        check=False,
    )


# -- the machine -----------------------------------------------------------------------------------

# The instructions that XNNPACK has int8 kernels for, as Linux names them.
_INSTRUCTION_SETS = (
    *("ssse3", "sse4_1", "avx", "fma", "avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni"),
    *("avx_vnni", "amx_int8", "asimd", "neon", "asimdhp", "asimdrdm", "asimddp", "i8mm", "sve"),
    *("sve2", "sme", "sme2"),
)
KNOWN_DELEGATE = "XNNPACK"
NO_DELEGATE = "none"
_CREATED = re.compile(r"Created TensorFlow Lite (.+?) delegate")
_SECONDS_TO_SPEAK = 60
# The delegate that this process has found: a build of LiteRT has the same one for all files.
_found: list[str] = []


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine."""

    architecture: str  # As Python names it, such as x86_64 or aarch64.
    # Those for int8 kernels that its processor says it has; empty where the system does not tell.
    instruction_sets: list[str]
    delegate: str  # What LiteRT says it has created by itself, or "none".

    @property
    def doubt(self) -> str | None:
        """A warning; None where the delegate is the one that the proof is about."""
        if self.delegate == KNOWN_DELEGATE:
            return None
        if self.delegate == NO_DELEGATE:
            return (
                "LiteRT has created no delegate here, so that its builtin kernels run the file, "
                "which round otherwise than XNNPACK"
            )
        return (
            f"LiteRT runs the file with the delegate {self.delegate}, whose rounding is not known "
            "to this version of sat-tf: what is said of other processors is said of XNNPACK"
        )


def this_machine(content: bytes) -> Machine:
    """The machine that this process runs on, and the delegate that LiteRT has for a file there.

    LiteRT names it on the standard error of a process of its own.
    """
    if not _found:
        delegate = NO_DELEGATE
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            errors = trial(content, ["xnnpack"], _SECONDS_TO_SPEAK).stderr
            if created := _CREATED.search(errors.decode(errors="replace")):
                delegate = created[1]
        _found.append(delegate)
    words: set[str] = set()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                words.update(values.split())
    instruction_sets = [name for name in _INSTRUCTION_SETS if name in words]
    return Machine(platform.machine(), instruction_sets, _found[0])


def _try_file(runtimes: list[str]) -> None:
    """Tries the file that comes in; prints an answer for each runtime."""
    # Sizes that a damaged file asks for are refused, and not taken from other processes. Not every
    # system has limits.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_LARGEST_MEMORY_BYTES, _LARGEST_MEMORY_BYTES))
    content = sys.stdin.buffer.read()
    for name in runtimes:
        refusal = None
        try:
            for keep_tensors in (False, True):
                loaded(content, name, keep_tensors=keep_tensors).rehearse()
        except (ValueError, MemoryError) as error:
            reason = error.__cause__ or error
            refusal = str(reason) or type(reason).__name__
        print(json.dumps({"runtime": name, "refusal": refusal}), flush=True)


def _work() -> None:
    """Starts the task that comes in, and then answers every batch."""
    # Anything else that is printed must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    questions = sys.stdin.buffer
    task: Task | None = None
    while True:
        try:
            question = pickle.load(questions)
        except EOFError:
            return
        try:
            if task is None:
                task = question
                answer = _DONE, task.start()
            else:
                answer = _DONE, task.run(question)
        except (ValueError, MemoryError) as error:
            answer = _REFUSED, str(error.__cause__ or error) or type(error).__name__
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    # What comes to the one is a file that nobody trusts; only the other reads pickles.
    if sys.argv[1] == "try":
        _try_file(sys.argv[2:])
    elif sys.argv[1] == "work":
        with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
            _work()
