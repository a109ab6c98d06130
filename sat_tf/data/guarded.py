"""Decoding on a fast path, with a slow one for the few pictures that it refuses."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sat_tf.data.reading import FirstError

# Of one picture: image and label. The slow one is given arrays, and no tensors.
Fast = Callable[..., tuple[tf.Tensor, tf.Tensor]]
Slow = Callable[..., tuple[npt.NDArray[np.uint8], int]]


def decoded(
    pieces: tf.data.Dataset,
    fast: Fast,
    slow: Slow,
    *,
    image_size: int,
    first_error: FirstError,
    deterministic: bool = True,
) -> tf.data.Dataset:
    """Decodes every picture of every piece, on all cores.

    The fast path is part of the graph and runs in parallel. Where it fails, whatever the reason,
    nothing else of the piece is lost: the slow path makes that picture, in Python.

    Args:
        pieces: a dataset of tuples of tensors with one row for each picture.
        fast: makes an image (image_size, image_size, 3), uint8, and a label, int32, from a row.
        slow: the same from arrays; what it raises ends the iteration.
        image_size: height and width of the images.
        first_error: keeps what the slow path raises.
        deterministic: whether pieces, and the pictures in each, keep their order.

    Returns:
        A dataset of images (piece, image_size, image_size, 3) and labels (piece,), with as many
        rows as the pieces have.
    """
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    size = tf.nest.flatten(pieces.element_spec)[0].shape[0]
    shapes = ((size, image_size, image_size, 3), (size,))
    nothing = (
        tf.zeros((0,), tf.int64),
        tf.zeros((0, image_size, image_size, 3), tf.uint8),
        tf.zeros((0,), tf.int32),
    )

    def slowly(numbers: Any, images: Any, labels: Any, *rows: Any) -> tuple[Any, Any]:
        count = len(rows[0])
        all_images = np.empty((count, image_size, image_size, 3), np.uint8)
        all_labels = np.empty(count, np.int32)
        all_images[numbers], all_labels[numbers] = images, labels
        for number in sorted(set(range(count)) - set(numbers.tolist())):
            with first_error.kept():
                all_images[number], all_labels[number] = slow(*(row[number] for row in rows))
        return all_images, all_labels

    # There is nothing for AutoGraph to convert here, nor in what is called: it takes longer than
    # everything else that comes before the first picture.
    @tf.autograph.experimental.do_not_convert
    def piece(*rows: tf.Tensor) -> tf.data.Dataset:
        count = tf.shape(rows[0], tf.int64)[0]
        # An error ends a dataset's element, and a piece with it; `ignore_errors` takes its picture
        # out instead, and the numbers then tell which one is missing.
        numbered = tf.data.Dataset.from_tensor_slices((tf.range(count), rows)).map(
            lambda number, row: (number, *fast(*row)),
            num_parallel_calls=cores,
            deterministic=deterministic,
        )
        good = numbered.ignore_errors().batch(count)
        whole = good.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)
        return whole.map(lambda *found: filled(rows, count, *found))

    def filled(
        rows: tuple[tf.Tensor, ...],
        count: tf.Tensor,
        numbers: tf.Tensor,
        images: tf.Tensor,
        labels: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        found = tf.cond(
            tf.shape(numbers, tf.int64)[0] == count,
            lambda: (images, labels),
            lambda: tuple(
                tf.numpy_function(slowly, (numbers, images, labels, *rows), (tf.uint8, tf.int32))
            ),
        )
        return tuple(
            tf.ensure_shape(tensor, shape) for tensor, shape in zip(found, shapes, strict=True)
        )

    # Pieces of different sizes have to keep their places, or batches would have other sizes.
    keeps_order = deterministic or size is None
    # Enough pieces at a time that the last pictures of one do not leave cores without work.
    at_once = 2 if size is None else 2 + 2 * cores // size
    return pieces.interleave(
        piece, cycle_length=at_once, num_parallel_calls=at_once, deterministic=keeps_order
    )
