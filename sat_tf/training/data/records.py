"""Batches of pictures in record files, which can only be read from their beginning."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from sat_tf.messages import ReadingError
from sat_tf.pictures import printable, spread_evenly
from sat_tf.training.data.batch_order import RANDOM
from sat_tf.training.data.decoding import EncodedPictures, tensorflow_reason
from sat_tf.training.data.source import Order

# Stands for a record that cannot be read.
_MISSING = b""
# Files read at a time, interleaved.
FILES_AT_ONCE = 16
# More buckets than a set has pictures, so that nearly every one has crops of its own.
_BUCKETS = 2**62
# The order of a sample is that of an epoch before the first.
_SAMPLE = -1


class Share(NamedTuple):
    """The pictures that one process reads: some of every `of` pictures."""

    first: int = 0  # The first of them.
    size: int = 1  # How many.
    of: int = 1  # Of how many.

    def bounds(self, count: int) -> tuple[int, int]:
        """Returns the first picture and the end of the share of so many.

        >>> Share(0, 17, 33).bounds(100), Share(17, 16, 33).bounds(100)
        ((0, 51), (51, 100))
        """
        return count * self.first // self.of, count * (self.first + self.size) // self.of


# Gives the rows of a share: in the order of the files, or shuffled by a seed, file by file.
Read = Callable[[Share, tf.Tensor | None], tf.data.Dataset]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFiles(EncodedPictures):
    """The pictures of one split in record files; a row is the name and the content of a record.

    Every epoch, the files are shuffled, interleaved and drawn from a shuffle buffer. Each of
    several workers reads a share of its own, so that an epoch has no picture twice; the images of a
    batch depend on the number of workers.
    """

    count: int  # How many pictures it has.
    rows: Read  # Gives the name and the content of each record; see `Read`.
    # Takes the content and gives the bytes of the picture and its label, int64.
    parse: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    num_classes: int  # Labels are below it.
    shuffle_buffer: int  # Size of the shuffle buffer, in encoded pictures.
    fix_of_features: str  # The fix if a record lacks the picture or the label.
    fix_of_labels: str  # The fix if a label is out of range.

    def training_rows(self, order: Order) -> tf.data.Dataset:
        first, size = order.span
        steps = self.count // order.batch_size

        @tf.autograph.experimental.do_not_convert
        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            share = Share(first, size, order.batch_size)
            rows = self._shuffled(share, order.seed, epoch, self.shuffle_buffer)
            return (
                rows.take(steps * size)
                .map(lambda *row: (epoch, *row))
                .batch(size, drop_remainder=True)
            )

        return tf.data.Dataset.range(order.first_epoch, tf.int64.max).flat_map(of_epoch)

    def held_out_rows(self, order: Order) -> tf.data.Dataset:
        return self.rows(Share(*order.span, order.batch_size), None)

    def drawn_rows(self, count: int, seed: int) -> tf.data.Dataset:
        buffer = max(self.shuffle_buffer, count)
        # Inside a function, as `_shuffled` requires.
        epochs = tf.data.Dataset.range(_SAMPLE, _SAMPLE + 1)
        return epochs.flat_map(lambda e: self._shuffled(Share(), seed, e, buffer)).take(count)

    def spread_rows(self, most: int) -> tf.data.Dataset:
        chosen = np.zeros(self.count, bool)
        chosen[spread_evenly(self.count, most)] = True
        marks = tf.data.Dataset.from_tensor_slices(chosen)
        rows = tf.data.Dataset.zip((marks, self.rows(Share(), None)))
        return rows.filter(lambda is_chosen, _: is_chosen).map(lambda _, row: row)

    def _shuffled(self, share: Share, seed: int, epoch: tf.Tensor, buffer: int) -> tf.data.Dataset:
        """Shuffles a share by seed and epoch alone; to be called in a function being traced."""
        # `shuffle` mixes its seed with the global one, on which nothing here may depend. This sets
        # only that of the function being traced.
        tf.compat.v1.set_random_seed(1)
        seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
        draws = tf.random.stateless_uniform((2,), seeds, 1, tf.int32.max, tf.int32, alg=RANDOM)
        of_files, of_records = tf.unstack(tf.cast(draws, tf.int64))
        rows = self.rows(share, of_files)
        return rows.shuffle(buffer, seed=of_records, reshuffle_each_iteration=False)

    def number(self, *row: tf.Tensor) -> tf.Tensor:
        return tf.strings.to_hash_bucket_fast(row[0], _BUCKETS)

    def read(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        picture, label = self.parse(*row[1:])
        tf.debugging.Assert((label >= 0) & (label < self.num_classes), [label])
        return picture, tf.cast(label, tf.int32)

    def name(self, *row: Any) -> str:
        return printable(row[0])

    def expect_readable(self, *row: Any) -> None:
        name = self.name(*row)
        if row[1] == _MISSING:
            raise ReadingError(
                f"{name}: received a file that is damaged here or before it, or has gone; expected "
                "the one found at the start; write it again."
            )
        try:
            _, label = self.parse(*map(tf.convert_to_tensor, row[1:]))
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            raise ReadingError(
                f"{name}: received a record without the picture or the label "
                f"({tensorflow_reason(error)}); expected both; {self.fix_of_features}."
            ) from error
        if not 0 <= int(label) < self.num_classes:
            raise ReadingError(
                f"{name}: received the label {int(label)}, expected 0 to {self.num_classes - 1}; "
                f"{self.fix_of_labels}."
            )


def rows_of_files(paths: Sequence[pathlib.Path], counts: Sequence[int]) -> Read:
    """Returns how the records of TFRecord files are read, one serialized example a row.

    A share is that part of all records, in the order of the files: a process reads few files that
    others read as well.
    """
    ends = np.cumsum(counts)
    names = [printable(path.name) for path in paths]

    def of_file(path: tf.Tensor, name: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> Any:
        # Of a file that has gone, `ignore_errors` would try forever to read the first record.
        there = tf.numpy_function(
            lambda path: np.array([path][: os.path.isfile(path)], object), (path,), tf.string
        )
        records = tf.data.TFRecordDataset(tf.ensure_shape(there, (None,))).ignore_errors()
        # A wrong checksum ends the file. What is missing is empty, and thereby named.
        missing = tf.data.Dataset.from_tensors(_MISSING).repeat()
        records = records.concatenate(missing).skip(skip).take(take)
        numbers = tf.strings.as_string(tf.range(skip, skip + take))
        rows = tf.data.Dataset.from_tensor_slices(tf.strings.join([name, ", record ", numbers]))
        return tf.data.Dataset.zip((rows, records))

    def read(share: Share, seed: tf.Tensor | None) -> tf.data.Dataset:
        bounds = share.bounds(int(ends[-1]))
        firsts, lasts = np.clip(bounds, (ends - counts)[:, None], ends[:, None]).T
        chosen = np.flatnonzero(lasts > firsts)
        # Paths are bytes, because names need not be UTF-8.
        spans = (
            [bytes(paths[int(file)]) for file in chosen],
            [names[int(file)] for file in chosen],
            (firsts - ends + counts)[chosen],
            (lasts - firsts)[chosen],
        )
        files = tf.data.Dataset.from_tensor_slices(spans)
        if seed is not None:
            files = files.shuffle(len(chosen), seed=seed, reshuffle_each_iteration=False)
        at_once = 1 if seed is None else FILES_AT_ONCE
        return files.interleave(of_file, at_once, num_parallel_calls=tf.data.AUTOTUNE)

    return read
