"""A data set held in memory, as a source of batches."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from pydantic import Field

from sat_tf.pictures import spread_evenly
from sat_tf.training.data.batch_order import (
    RANDOM,
    as_given,
    held_out_numbers,
    held_out_pieces,
    shuffled_spans,
)
from sat_tf.training.data.source import ImageSet, ImageSource, Order
from sat_tf.validation import check

# Makes the draws of the shifts independent of those of the order, which have the same seed.
_SHIFTS = 1


class ArraySource(ImageSource):
    """Batches of an `ImageSet`.

    Training images are shifted by at most `shift_pixels` in either direction, differently in each
    epoch; the border is filled with black.
    """

    def __init__(self, images: ImageSet, *, shift_pixels: int = 0) -> None:
        expected = f"an integer from 0 (none) to below {images.image_size}, the image's size"
        pixels = Annotated[int, Field(ge=0, lt=images.image_size, description=expected)]
        check(images.name, shift_pixels=(shift_pixels, pixels))
        self.images = images
        self.shift_pixels = shift_pixels
        self.name = images.name
        self.image_size = images.image_size
        self.num_classes = images.num_classes
        self.class_names = images.class_names
        self.num_train = len(images.train_labels)
        self.num_test = len(images.test_labels)

    def _training_batches(self, order: Order) -> tf.data.Dataset:
        with tf.device("CPU"):
            pixels = tf.constant(self.images.train_images)
            labels = tf.constant(self.images.train_labels)

        def batch(epoch: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            chosen = tf.gather(pixels, indices)
            if self.shift_pixels:
                # A corner for every image of the set, so that its shift does not depend on its
                # batch. Drawing all of them is faster than drawing each of a batch by itself.
                corners = tf.random.stateless_uniform(
                    (self.num_train, 2),
                    tf.random.experimental.stateless_fold_in(
                        tf.stack([order.seed, epoch]), _SHIFTS, alg=RANDOM
                    ),
                    0,
                    2 * self.shift_pixels + 1,
                    tf.int32,
                    alg=RANDOM,
                )
                chosen = shifted(chosen, self.shift_pixels, tf.gather(corners, indices))
            return chosen, tf.gather(labels, indices)

        spans = shuffled_spans(self.num_train, order)
        batches = spans.map(batch, num_parallel_calls=2)
        return as_given(order.in_pieces(batches))

    def _held_out_batches(self, order: Order) -> tf.data.Dataset:
        with tf.device("CPU"):
            pixels = tf.constant(self.images.test_images)
            labels = tf.constant(self.images.test_labels)

        numbers = held_out_numbers(self.num_test, order)
        images = numbers.map(lambda number: (pixels[number], labels[number]))
        return as_given(held_out_pieces(images, self.num_test, order))

    def training_sample(self, count: int, *, seed: int) -> npt.NDArray[np.uint8]:
        # RandomState, because NumPy guarantees that its streams never change.
        chosen = np.random.RandomState(seed).permutation(self.num_train)[:count]
        return self.images.train_images[chosen]

    def held_out_sample(self, most: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        chosen = spread_evenly(self.num_test, most)
        return self.images.test_images[chosen], self.images.test_labels[chosen]


def shifted(images: tf.Tensor, most: int, corners: tf.Tensor) -> tf.Tensor:
    """Shifts every image by a whole number of pixels; the border is filled with black.

    The corners (batch, 2), integers in [0, 2 * most], are where in the image with its border the
    moved one begins; `most`, the largest shift, leaves it where it is.
    """
    size = tf.shape(images)
    margins = [[0, 0], [most, most], [most, most], [0, 0]]
    padded = tf.pad(images, margins)
    rows = corners[:, :1] + tf.range(size[1])[None]
    columns = corners[:, 1:] + tf.range(size[2])[None]
    moved = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.ensure_shape(tf.gather(moved, columns, axis=2, batch_dims=1), images.shape)
