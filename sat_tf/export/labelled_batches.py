"""Images with labels, cut into batches that several workers take."""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sat_tf.export.inputs import label_problems
from sat_tf.export.tasks import Interface
from sat_tf.messages import list_problems

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
