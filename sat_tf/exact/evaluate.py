"""Top-1 and top-5 of a file over a data set, on all cores."""

import collections
import concurrent.futures
import dataclasses
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from sat_tf.exact.certificate.output_comparison import label_problems
from sat_tf.exact.certificate.proof import read_tflite
from sat_tf.exact.litert.processes import refusals, usable_cores
from sat_tf.exact.litert.runtime import Interface, Runtime
from sat_tf.exact.operations.graph import Graph, batches, outputs_of, simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.top_k import top_hits
from sat_tf.messages import ProblemsError
from sat_tf.messages.progress_bar import image_bar
from sat_tf.messages.validation import Positive, check

_Result = TypeVar("_Result")
_MOST_AT_ONCE = 16

_Processes = Annotated[
    int | None, Field(ge=1, description="a positive integer, or None for one a core")
]
_Top = Annotated[
    Sequence[Positive],
    Field(min_length=1, description="one or more integers above 0; pass for example (1, 5)"),
]

Batch = tuple[np.ndarray, np.ndarray]
# The interface of a model, and the function that computes its outputs for a batch of images.
Loaded = tuple[Interface, Callable[[np.ndarray], np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """The share of a data set's images that are classified correctly."""

    num_images: int  # The number of images.
    top: dict[int, float]  # Share of images whose label is among the k largest outputs, by k.
    not_finite: int  # Images with an output that is NaN or infinite; they count as wrong.
    seconds: float  # The time it took.
    processes: int  # The number of threads that took part.


def evaluate_tflite(
    path: str | os.PathLike[str],
    images: Any,
    labels: Any = None,
    *,
    top: Iterable[int] = (1, 5),
    processes: int | None = None,
    progress: bool = True,
) -> Accuracy:
    """Measures top-k of a TFLite file in LiteRT with XNNPACK, in threads with an interpreter each.

    Args:
        path: a TFLite file with one input of images and one output of classes.
        images: (n, ...) as the file takes them, uint8 for files of sat-tf; or, without `labels`,
            batches of images and labels, such as a `tf.data.Dataset` of them.
        labels: class numbers (n,).
        top: the values of k; equal outputs are in the order of their classes.
        processes: the number of threads; by default one for each core.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.

    Raises:
        ValueError: no file that LiteRT runs, or bad images or labels; lists every problem with its
            fix.
    """
    load = _in_litert(read_tflite(path), str(path))
    return _evaluate(str(path), load, images, labels, top, processes, progress)


def evaluate_simulator(
    graph: Graph | str | os.PathLike[str],
    images: Any,
    labels: Any = None,
    *,
    top: Iterable[int] = (1, 5),
    processes: int | None = None,
    progress: bool = True,
) -> Accuracy:
    """Measures top-k of the integer simulation of a file, as `evaluate_tflite` does of the file.

    The graph may be the path of a file that sat-tf wrote; the images are uint8.
    """
    name = graph.name if isinstance(graph, Graph) else str(graph)
    graph = graph if isinstance(graph, Graph) else read_graph(read_tflite(graph), name)
    load = functools.partial(_simulated, graph)
    return _evaluate(name, load, images, labels, top, processes, progress)


def file_interface(path: str | os.PathLike[str]) -> Interface:
    """Returns the input and the output of a file."""
    return _explained(str(path), _in_litert(read_tflite(path), str(path)))[0]


def _in_litert(content: bytes, name: str) -> Callable[[], Loaded]:
    """Returns a function that loads a file, once a separate process has run the file."""
    if reason := refusals(content, ["xnnpack"])["xnnpack"]:
        raise _refusal(name, reason)

    def load() -> Loaded:
        runtime = Runtime(content, keep_tensors=False)
        return runtime.interface, runtime.run

    return load


def _simulated(graph: Graph) -> Loaded:
    graph.expect_one_of_each("evaluate")
    outputs, image = int(np.prod(graph.tensors[graph.output].shape)), graph.images[0]

    def run(images: np.ndarray) -> np.ndarray:
        pieces = [outputs_of(simulate(graph, batch), graph) for batch in batches(images, graph)]
        return np.concatenate(pieces)

    return Interface(image.shape, np.dtype(image.type), outputs), run


def _labelled_batches(
    images: Any, labels: Any, *, workers: int
) -> tuple[Iterator[Batch], int | None]:
    """Returns small batches of images and labels, and the number of images where it is known."""
    total = None
    if labels is not None:
        images, labels = np.asarray(images), np.asarray(labels)
        if images.shape[:1] != labels.shape:
            raise ValueError(
                f"labels: received shape {labels.shape} for images of shape {images.shape}, "
                "expected one class number an image."
            )
        images, total = [(images, labels)], len(images)
    elif isinstance(images, np.ndarray) or not isinstance(images, Iterable):
        raise ValueError(
            f"labels: received None beside images of type {type(images).__name__}, expected "
            "class numbers, or batches of images and labels; pass labels too."
        )

    def pieces() -> Iterator[Batch]:
        for batch in images:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise ValueError(
                    f"images: received a batch of type {type(batch).__name__}, expected a pair "
                    "of images and labels; use dataset.batch(...) with both, or pass labels too."
                )
            pixels, numbers = map(np.asarray, batch)
            size = min(max(-(-len(pixels) // workers), 1), _MOST_AT_ONCE)
            for start in range(0, len(pixels), size):
                yield pixels[start : start + size], numbers[start : start + size]

    return pieces(), total


def _evaluate(
    name: str,
    load: Callable[[], Loaded],
    images: Any,
    labels: Any,
    top: Iterable[int],
    processes: int | None,
    progress: bool,
) -> Accuracy:
    start, top = time.perf_counter(), tuple(top)
    check("evaluation", top=(top, _Top), processes=(processes, _Processes))
    count = processes or usable_cores()
    source, total = _labelled_batches(images, labels, workers=count)
    if total is not None:
        count = max(1, min(count, total))

    def pieces(interface: Interface) -> Iterator[Batch]:
        if max(top) > interface.num_outputs:
            raise ValueError(
                f"top: received {max(top)}, expected at most the {interface.num_outputs} "
                f"outputs of {name}; ask for fewer."
            )
        for images, labels in source:
            problems = label_problems(labels, images.shape[:1], interface.num_outputs)
            if (images.dtype, images.shape[1:]) != (interface.input_type, interface.input_shape):
                sizes = ", ".join(map(str, interface.input_shape))
                problems.append(
                    f"images: received {images.dtype} {images.shape}, expected "
                    f"{interface.input_type} (n, {sizes}) as the file takes them; resize or cast "
                    "them."
                )
            if problems:
                raise ProblemsError("evaluation", problems)
            yield images, labels

    num_images, not_finite, hits = 0, 0, dict.fromkeys(top, 0)
    for outputs, numbers in _outputs(name, load, pieces, count, total, progress):
        rows = outputs.reshape(len(outputs), -1)
        num_images += len(numbers)
        not_finite += int(np.count_nonzero(~np.all(np.isfinite(rows), axis=1)))
        for k in hits:
            hits[k] += top_hits(rows, numbers, k)
    if not num_images:
        raise ValueError("images: received none, expected at least one.")
    return Accuracy(
        num_images=num_images,
        top={k: right / num_images for k, right in hits.items()},
        not_finite=not_finite,
        seconds=time.perf_counter() - start,
        processes=count,
    )


def _outputs(
    name: str,
    load: Callable[[], Loaded],
    pieces: Callable[[Interface], Iterator[Batch]],
    count: int,
    total: int | None,
    progress: bool,
) -> Iterator[Batch]:
    """Runs batches through a model that each thread loads; gives outputs and numbers in order."""
    interface, _ = _explained(name, load)
    thread_local = threading.local()

    def run(images: np.ndarray) -> np.ndarray:
        if not hasattr(thread_local, "run"):
            _, thread_local.run = _explained(name, load)
        return np.asarray(_explained(name, lambda: thread_local.run(images)))

    waiting = collections.deque[tuple[concurrent.futures.Future[np.ndarray], np.ndarray]]()
    with (
        image_bar(os.path.basename(name), total, shown=progress) as advance,
        concurrent.futures.ThreadPoolExecutor(count) as pool,
    ):

        def first() -> Batch:
            job, numbers = waiting.popleft()
            outputs = job.result()
            advance(len(numbers))
            return outputs, numbers

        try:
            for images, numbers in pieces(interface):
                waiting.append((pool.submit(run, images), numbers))
                # One batch waits for each thread that runs one; no more are read ahead.
                if len(waiting) == 2 * count:
                    yield first()
            while waiting:
                yield first()
        finally:
            pool.shutdown(cancel_futures=True)


def _explained(name: str, action: Callable[[], _Result]) -> _Result:
    try:
        return action()
    except (ValueError, MemoryError) as error:
        reason = error.__cause__ or error
        raise _refusal(name, str(reason) or type(reason).__name__) from error


def _refusal(name: str, reason: str) -> ValueError:
    return ValueError(
        f"{name}: received a file that does not run ({reason}), expected one that "
        "sat_tf.export_tflite wrote; export the model again."
    )
