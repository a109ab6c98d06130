"""Workers: processes with one thread each that run images through a file, or its simulation."""

import abc
import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np

from sat_tf.export.certificate.inputs import batches, label_problems
from sat_tf.export.litert.processes import child_command, child_environment, describe_ending
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.simulator import simulate
from sat_tf.messages import list_problems


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a task takes and gives.

    Attributes:
        input_shape: of an image.
        input_type: of its values.
        num_outputs: values it gives for an image.
    """

    input_shape: tuple[int, ...]
    input_type: np.dtype
    num_outputs: int


class Task(abc.ABC):
    """A way from images to outputs; it is sent to workers as it is, and started there."""

    @abc.abstractmethod
    def start(self) -> Interface:
        """Gets ready.

        Raises:
            ValueError: it cannot.
        """

    @abc.abstractmethod
    def run(self, images: np.ndarray) -> np.ndarray:
        """The outputs for a batch, (n, ...).

        Raises:
            ValueError: it cannot.
        """


class TfliteTask(Task):
    """A file in LiteRT.

    Args:
        content: the file.
        runtime: a name of `RUNTIMES`.
    """

    def __init__(self, content: bytes, runtime: str) -> None:
        self._content = content
        self._name = runtime
        self._runtime: Runtime | None = None

    def start(self) -> Interface:
        """Loads the file."""
        runtime = self._runtime = Runtime(self._content, self._name, keep_tensors=False)
        if runtime.num_inputs_and_outputs != (1, 1):
            raise ValueError(
                f"received a file with {runtime.num_inputs_and_outputs[0]} inputs and "
                f"{runtime.num_inputs_and_outputs[1]} outputs, expected one of each, of images and "
                "of classes; keep one in keras.Model(inputs, outputs)."
            )
        return Interface(runtime.input_shape, runtime.input_type, runtime.num_outputs)

    def run(self, images: np.ndarray) -> np.ndarray:
        """Runs it."""
        if self._runtime is None:
            raise TypeError("the task has not been started")
        return self._runtime.run(images)


class SimulatorTask(Task):
    """A graph in the integer simulation.

    Args:
        graph: of a file.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def start(self) -> Interface:
        """Nothing to load."""
        self._graph.expect_one_of_each("evaluate")
        outputs = int(np.prod(self._graph.tensors[self._graph.output].shape))
        image = self._graph.images[0]
        return Interface(image.shape, np.dtype(image.type), outputs)

    def run(self, images: np.ndarray) -> np.ndarray:
        """Simulates it."""
        output = self._graph.output
        pieces = [simulate(self._graph, batch)[output] for batch in batches(images, self._graph)]
        return np.concatenate(pieces)


_MOST_AT_ONCE = 16

Batch = tuple[np.ndarray, np.ndarray]


def labelled_batches(
    images: Any, labels: Any, *, workers: int
) -> tuple[Iterator[Batch], int | None]:
    """Small batches of images and labels, and how many images there are, where that is known.

    Args:
        images: (n, ...), or batches of images and labels.
        labels: (n,), or None beside batches.
        workers: how many take them.

    Raises:
        ValueError: they are no pairs; also while batches are taken.
    """
    if labels is None:
        if isinstance(images, np.ndarray) or not isinstance(images, Iterable):
            raise ValueError(
                f"labels: received None beside images of type {type(images).__name__}, expected "
                "class numbers, or batches of images and labels; pass labels too."
            )
        return (piece for batch in images for piece in _pieces(*_pair(batch), workers)), None
    arrays = np.asarray(images), np.asarray(labels)
    if arrays[0].shape[:1] != arrays[1].shape:
        raise ValueError(
            f"labels: received shape {arrays[1].shape} for images of shape {arrays[0].shape}, "
            "expected one class number an image."
        )
    return _pieces(*arrays, workers), len(arrays[0])


def _pair(batch: Any) -> Batch:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"images: received a batch of type {type(batch).__name__}, expected a pair of images "
            "and labels; use dataset.batch(...) with both, or pass labels too."
        )
    return np.asarray(batch[0]), np.asarray(batch[1])


def _pieces(images: np.ndarray, labels: np.ndarray, workers: int) -> Iterator[Batch]:
    size = min(max(-(-len(images) // workers), 1), _MOST_AT_ONCE)
    for start in range(0, len(images), size):
        yield images[start : start + size], labels[start : start + size]


def checked_batch(batch: Batch, interface: Interface) -> Batch:
    """The batch, if it is one for a task.

    Raises:
        ValueError: it is none; lists every problem.
    """
    images, labels = batch
    problems = label_problems(images, labels, interface.num_outputs)
    if (images.dtype, images.shape[1:]) != (interface.input_type, interface.input_shape):
        sizes = ", ".join(map(str, interface.input_shape))
        problems.append(
            f"images: received {images.dtype} {images.shape}, expected {interface.input_type} "
            f"(n, {sizes}) as the file takes them; resize or cast them."
        )
    if problems:
        raise ValueError(list_problems("evaluation", problems))
    return batch


class SharedBatches:
    """An iterator that several threads take from.

    Args:
        batches: what they take.
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._lock = threading.Lock()
        self._stopped = False

    def take(self) -> Batch | None:
        """The next batch; None after the last one."""
        with self._lock:
            if self._stopped:
                return None
            try:
                return next(self._batches, None)
            except BaseException:
                self._stopped = True
                raise

    def stop(self) -> None:
        """Lets no thread take any more."""
        with self._lock:
            self._stopped = True


# Of the words a worker answers with.
_DONE, _REFUSED = "done", "refused"
_SECONDS_TO_END = 10


class Worker:
    """A process that has started a task; to be used in a `with` statement.

    Args:
        task: what it runs.

    Raises:
        ValueError: the task cannot start, or it ends the process.
    """

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
        """The outputs for a batch, (n, ...).

        Raises:
            ValueError: the task refuses them, or they end the process.
        """
        return np.asarray(self._ask(images))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            raise ValueError(self._ending()) from error
        if word == _REFUSED:
            raise ValueError(answer)
        return answer

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        self._errors.seek(0)
        status = self._process.poll()
        return describe_ending(-1 if status is None else status, self._errors.read())

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
    # Whatever else is printed does not get between the answers.
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
