"""The order of images, how batches are cut for replicas, and those of a data set held in memory."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from pydantic import Field

from sat_tf.exact.tflite.input_range import PIXELS, InputRange
from sat_tf.messages.validation import check
from sat_tf.pictures import spread_evenly
from sat_tf.training.data.source import NO_LABEL, ImageSet, ImageSource, Order

# The algorithm is named, because TensorFlow's default depends on the hardware.
RANDOM = "philox"
# This makes the draws of shifts independent of those of the order, which have the same seed.
_SHIFTS = 1
_CHANNELS = 3


def shuffled_spans(count: int, order: Order) -> tf.data.Dataset:
    """Returns the numbers of this process's images in each batch, by seed and epoch alone."""
    begin, size = order.span

    @tf.autograph.experimental.do_not_convert
    def epoch_spans(epoch: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([order.seed, epoch]), alg=RANDOM
        )
        steps = tf.data.Dataset.range(count // order.batch_size)
        return steps.map(
            lambda step: (
                epoch,
                tf.ensure_shape(numbers[step * order.batch_size + begin :][:size], (size,)),
            )
        )

    return tf.data.Dataset.range(order.first_epoch, tf.int64.max).flat_map(epoch_spans)


def held_out_numbers(count: int, order: Order) -> tf.data.Dataset:
    """Returns the numbers of this process's held-out images, in order; scalars, int64."""
    begin, size = order.span
    numbers = tf.data.Dataset.range(count)
    if size == order.batch_size:
        return numbers
    return numbers.filter(
        lambda number: (
            (number % order.batch_size >= begin) & (number % order.batch_size < begin + size)
        )
    )


def held_out_pieces(images: tf.data.Dataset, count: int, order: Order) -> tf.data.Dataset:
    """Returns batches of held-out images in pieces, the last batch filled up with black ones."""
    pixels, label = images.element_spec
    black = tf.zeros(pixels.shape, pixels.dtype), tf.constant(NO_LABEL, label.dtype)
    _, size = order.span
    filled = images.concatenate(tf.data.Dataset.from_tensors(black).repeat())
    steps = -(-count // order.batch_size)
    return order.in_pieces(filled.take(steps * size).batch(size, drop_remainder=True))


def fed(batches: tf.data.Dataset, input_range: InputRange) -> tf.data.Dataset:
    """Returns batches of images as float32 values of a range; pixels, where models take them."""
    if input_range == PIXELS:
        return batches
    every = np.repeat(np.arange(256, dtype=np.uint8)[:, None], _CHANNELS, axis=1)
    # The channels of a pixel are adjacent.
    values = input_range.fed(every).reshape(-1)

    def real(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if input_range.reversed_channels:
            images = images[..., ::-1]
        numbers = tf.cast(images, tf.int32) * _CHANNELS + tf.range(_CHANNELS)
        return tf.gather(tf.constant(values), numbers), labels

    return batches.map(real)


def as_given(dataset: tf.data.Dataset, *, deterministic: bool = True) -> tf.data.Dataset:
    """Returns the dataset with options that keep strategies from sharding it again."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = deterministic
    return dataset.with_options(options).prefetch(2)


class ArraySource(ImageSource):
    """Batches of an `ImageSet`, shifted by at most `shift_pixels` either way to train on."""

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
            images = tf.gather(pixels, indices)
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
                images = shifted(images, self.shift_pixels, tf.gather(corners, indices))
            return images, tf.gather(labels, indices)

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
        indices = np.random.RandomState(seed).permutation(self.num_train)[:count]
        return self.images.train_images[indices]

    def held_out_sample(self, limit: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        indices = spread_evenly(self.num_test, limit)
        return self.images.test_images[indices], self.images.test_labels[indices]


def shifted(images: tf.Tensor, limit: int, corners: tf.Tensor) -> tf.Tensor:
    """Shifts images by `limit` minus the corners (batch, 2) in [0, 2 * limit]; lets black in."""
    size = tf.shape(images)
    margins = [[0, 0], [limit, limit], [limit, limit], [0, 0]]
    padded = tf.pad(images, margins)
    rows = corners[:, :1] + tf.range(size[1])[None]
    columns = corners[:, 1:] + tf.range(size[2])[None]
    moved = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.ensure_shape(tf.gather(moved, columns, axis=2, batch_dims=1), images.shape)
