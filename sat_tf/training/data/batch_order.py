"""The order of the training images, and how batches are cut for replicas."""

from typing import Annotated, NamedTuple

import tensorflow as tf
from pydantic import Field

from sat_tf.messages import ProblemsError
from sat_tf.training.data.source import NO_LABEL, Shard
from sat_tf.validation import Count, Seed, find_problems

# The algorithm is named, because TensorFlow's default depends on the hardware.
RANDOM = "philox"


class Order(NamedTuple):
    """The global batches that are asked for, and the place of this process in each of them."""

    batch_size: int  # Images of a global batch.
    shard: Shard  # Of this process.
    seed: int  # Of the order and the distortions.
    first_epoch: int  # Where to start.
    first_step: int  # Where to start in that epoch.

    @property
    def span(self) -> tuple[int, int]:
        """First image and number of images of this process in a global batch."""
        return self.shard.span(self.batch_size)

    def first_step_of(self, epoch: tf.Tensor) -> tf.Tensor:
        """Returns the step at which an epoch begins, int64."""
        return tf.where(epoch == self.first_epoch, tf.constant(self.first_step, tf.int64), 0)

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
    """Returns the order by the arguments of `ImageSource.training_batches` or `held_out_batches`.

    Args:
        owner: name of the data set, for the message.
        num_train: number of training images; None for the held-out ones.
        batch_size: images of a global batch.
        shard: of this process; by default everything, in one piece.
        seed: see `Order`.
        first_epoch: see `Order`.
        first_step: see `Order`; the number of steps of an epoch starts the next one.

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
    """Returns the numbers of this process's images in each batch, epoch after epoch.

    The order of an epoch depends on the seed and its number alone.

    Args:
        count: number of images; each comes at most once in an epoch.
        order: of the batches.

    Returns:
        An endless dataset of the epoch, int64, and image numbers (span,), int64.
    """
    begin, size = order.span

    @tf.autograph.experimental.do_not_convert
    def epoch_spans(epoch: tf.Tensor) -> tf.data.Dataset:
        numbers = tf.random.experimental.stateless_shuffle(
            tf.range(count, dtype=tf.int64), tf.stack([order.seed, epoch]), alg=RANDOM
        )
        steps = tf.data.Dataset.range(order.first_step_of(epoch), count // order.batch_size)
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
    """Returns batches of held-out images in pieces, the last batch filled up with black ones.

    Args:
        images: those of this process, and their labels.
        count: how many all processes have together.
        order: of the batches.
    """
    pixels, label = images.element_spec
    black = tf.zeros(pixels.shape, pixels.dtype), tf.constant(NO_LABEL, label.dtype)
    _, size = order.span
    filled = images.concatenate(tf.data.Dataset.from_tensors(black).repeat())
    steps = -(-count // order.batch_size)
    return order.in_pieces(filled.take(steps * size).batch(size, drop_remainder=True))


def as_given(dataset: tf.data.Dataset, *, deterministic: bool = True) -> tf.data.Dataset:
    """Returns the dataset with options that keep strategies from sharding it again.

    Args:
        dataset: of pieces.
        deterministic: whether elements keep their order.
    """
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.deterministic = deterministic
    return dataset.with_options(options).prefetch(2)
