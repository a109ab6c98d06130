"""Batches of a data set, the same ones for the same seed."""

import tensorflow as tf

from sat_tf.data import ImageSet

_HELD_OUT_BATCH_SIZE = 256


def training_batches(
    images: ImageSet, *, batch_size: int, shift_pixels: int, seed: int
) -> tf.data.Dataset:
    """One epoch of training batches; each pass over it has another order and other shifts.

    The images left over after the last full batch are dropped, others each time.

    Args:
        images: the data set.
        batch_size: images a batch, over all replicas; at most the number of training images.
        shift_pixels: every image moves by up to so many pixels in either direction, each time by
            another amount; black comes in at the border.
        seed: of the order and the shifts.

    Returns:
        Pairs of images (batch_size, height, width, 3), float32 in [0, 255], and labels
        (batch_size,), int32.
    """
    count = len(images.train_labels)
    order = tf.data.Dataset.range(count).shuffle(count, seed=seed)
    # A seed for every batch from a stream of its own: the shifts then do not depend on which
    # thread comes first.
    seeds = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).batch(2)
    with tf.device("CPU"):
        pixels = tf.constant(images.train_images)
        labels = tf.constant(images.train_labels)

    def batch(members: tf.Tensor, batch_seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = tf.gather(pixels, members)
        if shift_pixels:
            chosen = shifted(chosen, shift_pixels, batch_seed)
        return tf.cast(chosen, tf.float32), tf.gather(labels, members)

    indices = order.batch(batch_size, drop_remainder=True)
    dataset = tf.data.Dataset.zip((indices, seeds)).map(batch, num_parallel_calls=2)
    return _sharded_by_data(dataset).prefetch(2)


def held_out_batches(images: ImageSet) -> tf.data.Dataset:
    """The held-out images in their order, as pairs like those of `training_batches`."""
    pairs = tf.data.Dataset.from_tensor_slices((images.test_images, images.test_labels))
    dataset = pairs.batch(_HELD_OUT_BATCH_SIZE).map(
        lambda pixels, labels: (tf.cast(pixels, tf.float32), labels)
    )
    return _sharded_by_data(dataset).prefetch(2)


def shifted(images: tf.Tensor, most: int, seed: tf.Tensor) -> tf.Tensor:
    """Moves every image by a random whole number of pixels; black comes in at the border.

    Args:
        images: (batch, height, width, channels), any type.
        most: the largest shift in either direction, 0 or more.
        seed: (2,), integers; the same seed gives the same shifts.
    """
    size = tf.shape(images)
    margins = [[0, 0], [most, most], [most, most], [0, 0]]
    padded = tf.pad(images, margins)
    corners = tf.random.stateless_uniform((size[0], 2), seed, 0, 2 * most + 1, tf.int32)
    rows = corners[:, :1] + tf.range(size[1])[None]
    columns = corners[:, 1:] + tf.range(size[2])[None]
    moved = tf.gather(padded, rows, axis=1, batch_dims=1)
    return tf.gather(moved, columns, axis=2, batch_dims=1)


def _sharded_by_data(dataset: tf.data.Dataset) -> tf.data.Dataset:
    # There are no files that several workers could share out among them.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)
