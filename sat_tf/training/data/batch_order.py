"""The order of the training images, and how batches are cut for replicas."""

from typing import Annotated, NamedTuple

import tensorflow as tf
from pydantic import Field

from sat_tf.messages import ProblemsError
from sat_tf.training.data.source import Shard
from sat_tf.validation import Count, Seed, find_problems

# The algorithm is named, because TensorFlow's default depends on the hardware.
RANDOM = "philox"


class Order(NamedTuple):
    """The global batches that are asked for, and the place of this process in each of them."""

    batch_size: int
    shard: Shard
    seed: int
    first_epoch: int
    first_step: int

    def in_pieces(self, spans: tf.data.Dataset) -> tf.data.Dataset:
        """Cuts the images of this process into one element for each of its replicas.

        Args:
            spans: of tensors whose first axis is the images of this process.

        Returns:
            A dataset whose shapes are static; if the replicas of this process have different
            numbers of images, all axes except the first.
        """
        sizes = [size for _, size in self.shard.pieces(self.batch_size)]
        if len(sizes) == 1:
            return spans
        return spans.rebatch(sizes[0] if len(set(sizes)) == 1 else sizes, drop_remainder=True)


def checked_order(
    owner: str,
    num_train: int | None,
    *,
    batch_size: int,
    shard: Shard | None = None,
    seed: int = 0,
    first_epoch: int = 0,
    first_step: int = 0,
) -> Order:
    """The order by the arguments of `ImageSource.training_batches`, or of `held_out_batches`.

    Args:
        owner: name of the data set, for the message.
        num_train: number of training images; None for the held-out ones.
        batch_size: images of a global batch.
        shard: of this process; by default everything, in one piece.
        seed: of the order and the distortions.
        first_epoch: where to start.
        first_step: where to start in that epoch; the number of its steps starts the next one.

    Raises:
        ValueError: an argument is out of its range; lists all such arguments.
    """
    shard = shard or Shard()
    pieces = shard.workers * shard.replicas
    expected = f"an integer of at least {pieces}, an image for each replica of each process"
    size = Annotated[int, Field(ge=pieces, description=f"{expected}; raise it")]
    problems = find_problems(
        batch_size=(batch_size, size), seed=(seed, Seed), first_epoch=(first_epoch, Count)
    )
    if num_train is not None and not find_problems(batch_size=(batch_size, size)):
        steps = num_train // batch_size
        expected = f"at most {num_train}, the number of training images; lower it"
        fitting = Annotated[int, Field(le=num_train, description=expected)]
        expected = f"an integer from 0 to {steps}, the number of steps of an epoch; start at a "
        step = Annotated[int, Field(ge=0, le=steps, description=f"{expected}later epoch")]
        problems += find_problems(batch_size=(batch_size, fitting), first_step=(first_step, step))
    if problems:
        raise ProblemsError(owner, problems)
    return Order(batch_size, shard, seed, first_epoch, first_step)


def shuffled_spans(count: int, order: Order) -> tf.data.Dataset:
    """Numbers of this process's images in each batch, epoch after epoch.

    The order of an epoch depends on the seed and its number alone.

    Args:
        count: number of images; each comes at most once in an epoch.
        order: of the batches.

    Returns:
        An endless dataset of the epoch, int64, and image numbers (span,), int64.
    """
    batch_size, shard, seed, first_epoch, first_step = order
    steps = count // batch_size
    begin, size = shard.span(batch_size)

    @tf.autograph.experimental.do_not_convert
    def epoch_spans(epoch: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([seed, epoch]), alg=RANDOM
        )
        first = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
        return tf.data.Dataset.range(first, steps).map(
            lambda step: (
                epoch,
                tf.ensure_shape(numbers[step * batch_size + begin :][:size], (size,)),
            )
        )

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_spans)


def held_out_spans(count: int, order: Order) -> tf.data.Dataset:
    """Numbers of this process's held-out images in each batch, in order.

    Returns:
        A dataset of numbers (span,), int64; those from `count` on pad the last batch.
    """
    begin, size = order.shard.span(order.batch_size)
    padded = -(-count // order.batch_size) * order.batch_size
    return tf.data.Dataset.range(begin, padded, order.batch_size).map(
        lambda first: first + tf.range(size, dtype=tf.int64)
    )


def as_given(dataset: tf.data.Dataset, *, deterministic: bool = True) -> tf.data.Dataset:
    """The dataset with options that keep strategies from sharding it again.

    Args:
        dataset: of pieces.
        deterministic: whether elements keep their order.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = deterministic
    return dataset.with_options(options).prefetch(2)
