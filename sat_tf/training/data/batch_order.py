"""The order of the training images, and how batches are cut for replicas."""

import tensorflow as tf

from sat_tf.training.data.source import NO_LABEL, Order

# The algorithm is named, because TensorFlow's default depends on the hardware.
RANDOM = "philox"


def shuffled_spans(count: int, order: Order) -> tf.data.Dataset:
    """Returns the numbers of this process's images in each batch, epoch after epoch.

    The order of an epoch depends on the seed and its number alone.
    """
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


def as_given(dataset: tf.data.Dataset, *, deterministic: bool = True) -> tf.data.Dataset:
    """Returns the dataset with options that keep strategies from sharding it again."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = deterministic
    return dataset.with_options(options).prefetch(2)
