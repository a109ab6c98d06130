"""Workers: processes with one thread each that run images through a task, such as a file."""

import abc
import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any, Self

import numpy as np

from sat_tf.export.litert.processes import child_command, child_environment, describe_ending
from sat_tf.export.litert.runtime import Interface, Runtime


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

    def __init__(self, content: bytes, runtime: str) -> None:
        self._content = content
        self._name = runtime
        self._runtime: Runtime | None = None

    def start(self) -> Interface:
        """Loads the file."""
        self._runtime = Runtime(self._content, self._name, keep_tensors=False)
        return self._runtime.interface

    def run(self, images: np.ndarray) -> np.ndarray:
        """Runs it."""
        if self._runtime is None:
            raise TypeError("the task has not been started")
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
            child_command("sat_tf.export.litert.workers"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
        )
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
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise TypeError("the process has no pipes")
        try:
            pickle.dump(question, stdin, pickle.HIGHEST_PROTOCOL)
            stdin.flush()
            word, answer = pickle.load(stdout)
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
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._errors.close()


def _main() -> None:
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
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        _main()
