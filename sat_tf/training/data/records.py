"""Batches of pictures in record files, which can only be read from their beginning."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sat_tf.messages import ReadingError
from sat_tf.pictures.folder_tree import printable
from sat_tf.pictures.pictures import JPEG
from sat_tf.preprocessing import AS_IN_IMAGENET
from sat_tf.training.data.batch_order import RANDOM, checked_order
from sat_tf.training.data.decoding import Encoded, Pictures, PictureSource
from sat_tf.training.data.source import NO_LABEL, Shard, expect_images

# Text that TensorFlow adds around its messages.
_AROUND = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*", re.DOTALL)
# How many pictures are sampled to find the format of most.
_SAMPLED_FOR_FORMAT = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFiles(Pictures):
    """One split of a set: files of records, and how to read them.

    Attributes:
        names: of the files, for messages.
        counts: how many records each has; none is empty, so that they can be sharded fairly.
        read: gives the dataset of the records of a file, by its number (a scalar, int64); a record
            is a tuple of tensors. Records that cannot be read are one empty string.
        parse: takes a record and gives the bytes of its picture and its label, int64.
        num_classes: labels are below it.
        paths: of the files, to check that they exist; empty if the builder opens them.
        are_jpegs: whether most pictures are JPEGs; others are then read slowly.
        fix_of_features: the fix if a record lacks the picture or the label.
        fix_of_labels: the fix if a label is out of range.

    A row has the number of the file, that of the record in it, and its content.
    """

    numbers: ClassVar[int] = 2

    names: Sequence[str]
    counts: Sequence[int]
    read: Callable[[tf.Tensor], tf.data.Dataset]
    parse: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    num_classes: int
    paths: Sequence[str] = ()
    are_jpegs: bool = True
    fix_of_features: str
    fix_of_labels: str

    @property
    def count(self) -> int:
        """How many records there are in all files."""
        return sum(self.counts)

    def is_there(self, *row: tf.Tensor) -> tf.Tensor:
        """Whether there is such a file."""
        return row[0] >= 0

    def in_graph(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The bytes and the label of a record; `encoded` explains a label that is out of range."""
        picture, label = self.parse(*row[self.numbers :])
        tf.debugging.Assert((label >= 0) & (label < self.num_classes), [label])
        return picture, tf.cast(label, tf.int32)

    def expect_readable(self, file: int) -> None:
        """Tries to open a file.

        Raises:
            ReadingError: it cannot be opened.
        """
        if not self.paths:
            return
        path = self.paths[file]
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ReadingError(
                f"{printable(path)}: received a file that cannot be opened ({error.strerror}); "
                "expected the one found at the start; restore it."
            ) from error

    def following(self, *row: Any) -> Iterator[Encoded]:
        """All pictures: from one on, wrapping around in its file, then those of the next files.

        Raises:
            ReadingError: a file cannot be opened, or as in `encoded`.
        """
        file, record, *content = int(row[0]), int(row[1]), *row[2:]
        yield self.encoded(file, record, content)
        for number in range(file, file + len(self.names)):
            place = number % len(self.names)
            self.expect_readable(place)
            records = self.read(tf.constant(place, tf.int64)).enumerate()
            if place == file:
                records = records.skip(record + 1).concatenate(records.take(record))
            for index, found in records:
                yield self.encoded(place, int(index), found)

    def encoded(self, file: int, record: int, content: Sequence[Any]) -> Encoded:
        """The picture in a record of tensors or arrays.

        Raises:
            ReadingError: it lacks the picture or the label, or the label is out of range.
        """
        name = f"{self.names[file]}, record {record}"
        tensors = [tf.convert_to_tensor(part) for part in content]
        if len(tensors) == 1 and not tensors[0].numpy():
            return Encoded(name, _refuse, NO_LABEL)
        try:
            # Some formats give Python lists and scalars, others arrays and tensors.
            picture, label = (tf.convert_to_tensor(found) for found in self.parse(*tensors))
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # What TensorFlow says of a damaged record quotes its bytes, which need not be text.
            if isinstance(error, UnicodeDecodeError):
                message = error.object.decode(errors="replace")
            else:
                message = error.message
            reason = _AROUND.sub("", message)
            raise ReadingError(
                f"{name}: received a record without the picture or the label ({reason}); "
                f"expected both; {self.fix_of_features}."
            ) from error
        if not 0 <= int(label) < self.num_classes:
            raise ReadingError(
                f"{name}: received the label {int(label)}, expected 0 to {self.num_classes - 1}; "
                f"{self.fix_of_labels}."
            )
        return Encoded(name, lambda: bytes(picture.numpy()), int(label))


def tfrecord_files(
    paths: Sequence[str],
    counts: Sequence[int],
    parse: Callable[..., tuple[tf.Tensor, tf.Tensor]],
    *,
    num_classes: int,
    fix_of_features: str,
    fix_of_labels: str,
    begins: Sequence[int] | None = None,
) -> RecordFiles:
    """TFRecord files, or spans of them, as one split of a set.

    After a damaged record, all further records of its file are empty strings, so that there are
    always as many as were counted.

    Args:
        paths: of the files.
        counts: how many records of each belong to the split; files with none are left out.
        parse: see `RecordFiles`.
        num_classes: see `RecordFiles`.
        fix_of_features: see `RecordFiles`.
        fix_of_labels: see `RecordFiles`.
        begins: the first record of each; by default 0.
    """
    filled = [number for number, count in enumerate(counts) if count]
    kept = [paths[number] for number in filled]
    sizes = [int(counts[number]) for number in filled]
    with tf.device("CPU"):
        # Paths are bytes, because names need not be UTF-8.
        files = tf.constant([os.fsencode(path) for path in kept], tf.string)
        spans = tf.constant([begins[number] if begins else 0 for number in filled], tf.int64)
        lengths = tf.constant(sizes, tf.int64)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(tf.gather(files, file)).skip(tf.gather(spans, file))
        missing = tf.data.Dataset.from_tensors(tf.constant(b"")).repeat()
        # A wrong checksum ends the file. `ignore_errors` would try forever to open a missing file,
        # which is why `expect_readable` comes before.
        whole = records.ignore_errors().concatenate(missing).take(tf.gather(lengths, file))
        return whole.map(lambda serialized: (serialized,))

    part = RecordFiles(
        names=[printable(pathlib.Path(path).name) for path in kept],
        counts=sizes,
        read=read,
        parse=parse,
        num_classes=num_classes,
        paths=kept,
        fix_of_features=fix_of_features,
        fix_of_labels=fix_of_labels,
    )
    return dataclasses.replace(part, are_jpegs=_are_jpegs(part)) if kept else part


def _are_jpegs(part: RecordFiles) -> bool:
    """Whether most pictures are JPEGs, by the first ones; invalid records do not count."""
    found = []
    for record, content in enumerate(part.read(tf.constant(0, tf.int64)).take(_SAMPLED_FOR_FORMAT)):
        try:
            found.append(part.encoded(0, record, content).read().startswith(JPEG))
        except ValueError:
            continue
    return 2 * sum(found) >= len(found)


def _refuse() -> bytes:
    raise ValueError("its file is damaged here or before it")


# A worker may have more pictures than its share of an epoch by this part of the share.
_UNEVEN = 0.01


def _are_even(counts: Sequence[int], batch_size: int, shard: Shard) -> bool:
    """Whether dealt files give all workers their share, whichever they get.

    >>> _are_even([100] * 3, 32, Shard(workers=2)), _are_even([100] * 300, 32, Shard(workers=2))
    (False, True)
    >>> _are_even([100] * 4, 33, Shard(workers=2))  # the first gets 17 of 33
    False
    """
    most = sum(sorted(counts, reverse=True)[: -(-len(counts) // shard.workers)])
    is_even = most * shard.workers <= (1.0 + _UNEVEN) * sum(counts)
    return shard.workers == 1 or (is_even and batch_size % (shard.workers * shard.replicas) == 0)


# Files read at a time, interleaved.
_FILES_AT_ONCE = 16
# Makes the draws of the records independent of those of the files, which have the same seed.
_RECORDS = 2


class RecordSource(PictureSource):
    """Batches of the pictures in record files.

    Every epoch, the files are shuffled, interleaved and drawn from a shuffle buffer. Several
    workers are dealt files of their own, if no worker can get more than a hundredth above its share
    of the pictures: it leaves these few out of the epoch, and another repeats as many. Otherwise
    each worker reads all files and takes its places of every batch, so that an epoch has no picture
    twice. In both cases the images of a batch also depend on the number of workers.

    A run that starts in the middle of an epoch reads that epoch from its beginning, but decodes
    only what is left of it.

    Args:
        name: of the set.
        train: the split to train on.
        held_out: the split to measure with.
        image_size: height and width of the images.
        shuffle_buffer: size of the shuffle buffer, in encoded pictures.
        max_corrupt: see `CorruptPictures`.
        deterministic: whether files and pictures keep their order.
        class_names: by label; None where they are unknown.
    """

    def __init__(
        self,
        *,
        name: str,
        train: RecordFiles,
        held_out: RecordFiles,
        image_size: int,
        shuffle_buffer: int,
        max_corrupt: float,
        deterministic: bool,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(
            name=name,
            image_size=image_size,
            num_classes=train.num_classes,
            num_train=train.count,
            num_test=held_out.count,
            max_corrupt=max_corrupt,
            deterministic=deterministic,
            preprocessing=AS_IN_IMAGENET,
        )
        self.class_names = class_names
        self._train = train
        self._held_out = held_out
        self._shuffle_buffer = shuffle_buffer

    def training_batches(
        self,
        *,
        batch_size: int,
        seed: int,
        first_epoch: int = 0,
        first_step: int = 0,
        shard: Shard | None = None,
    ) -> tf.data.Dataset:
        """The endless training batches from a given step on; see `ImageSource`."""
        order = checked_order(
            self.name,
            self.num_train,
            batch_size=batch_size,
            seed=seed,
            first_epoch=first_epoch,
            first_step=first_step,
            shard=shard,
        )
        _, shard, _, first_epoch, first_step = order
        steps = self.num_train // batch_size
        _, span = shard.span(batch_size)

        @tf.autograph.experimental.do_not_convert
        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
            files = tf.random.experimental.stateless_shuffle(
                tf.range(len(self._train.names), dtype=tf.int64), seeds, alg=RANDOM
            )
            draw = tf.random.stateless_uniform(
                (),
                tf.random.experimental.stateless_fold_in(seeds, _RECORDS, alg=RANDOM),
                1,
                tf.int32.max,
                tf.int32,
                alg=RANDOM,
            )
            records = _shuffled(
                self._records(self._train, files, shard, batch_size=batch_size),
                self._shuffle_buffer,
                tf.cast(draw, tf.int64),
            )
            first = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
            part = records.repeat().take(steps * span).skip(first * span)
            return part.map(lambda *row: (epoch, *row)).batch(span, drop_remainder=True)

        spans = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(of_epoch)
        return self._training(order.in_pieces(spans), self._train, seed)

    def held_out_batches(
        self, *, batch_size: int = 256, shard: Shard | None = None
    ) -> tf.data.Dataset:
        """Every held-out image once; see `ImageSource`.

        A single process gets them in the order of the files; several get their own files each. A
        corrupt picture is replaced by a black image with `NO_LABEL`.
        """
        order = checked_order(self.name, None, batch_size=batch_size, shard=shard)
        shard = order.shard
        steps = max(
            -(-self._shard_count(other) // other.span(batch_size)[1])
            for other in (dataclasses.replace(shard, worker=w) for w in range(shard.workers))
        )
        _, span = shard.span(batch_size)
        files = tf.range(len(self._held_out.names), dtype=tf.int64)
        records = self._records(self._held_out, files, shard, at_once=1)
        spans = records.concatenate(self._padding(records)).take(steps * span)
        spans = spans.batch(span, drop_remainder=True)
        return self._prepared(order.in_pieces(spans), self._held_out)

    def training_sample(self, count: int, *, seed: int) -> npt.NDArray[np.uint8]:
        """`count` training images, or all there are, prepared like the held-out ones.

        Drawn from the shuffle buffer over the files in a random order; no corrupt ones.
        """
        expect_images(self.name, count)
        random = np.random.RandomState(seed)
        files = random.permutation(len(self._train.names))
        draw = int(random.randint(1, 2**31 - 1))

        @tf.autograph.experimental.do_not_convert
        def shuffled(files: tf.Tensor) -> tf.data.Dataset:
            records = self._records(self._train, files, Shard())
            return _shuffled(records, max(self._shuffle_buffer, count), draw)

        # Inside a function, as `_shuffled` requires.
        records = tf.data.Dataset.from_tensors(tf.constant(files, tf.int64)).flat_map(shuffled)
        return self._sample(records, self._train, count)[0]

    def held_out_sample(self, most: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """At most `most` held-out images, spread evenly, and their labels; no corrupt ones."""
        expect_images(self.name, most)
        # The places are those of `spread_evenly`, marked in a stream.
        most = min(most, self.num_test)
        chosen = np.zeros(self.num_test, bool)
        chosen[np.linspace(0, self.num_test - 1, most).round().astype(int)] = True
        is_chosen = tf.data.Dataset.from_tensor_slices(chosen)
        files = tf.range(len(self._held_out.names), dtype=tf.int64)
        records = self._records(self._held_out, files, Shard(), at_once=1)
        marked = tf.data.Dataset.zip((is_chosen, records)).filter(lambda mark, _: mark)
        return self._sample(marked.map(lambda _, record: record), self._held_out, most)

    def _records(
        self,
        part: RecordFiles,
        files: tf.Tensor,
        shard: Shard,
        *,
        at_once: int = _FILES_AT_ONCE,
        batch_size: int | None = None,
    ) -> tf.data.Dataset:
        """The number of the file, the number in the file and the content of each record.

        Args:
            part: the split.
            files: the numbers of its files, in order.
            shard: of this process.
            at_once: files to interleave.
            batch_size: of the global batches, of which a process takes its places; None for shards
                of any size.
        """
        is_dealt = len(part.names) >= shard.workers
        if batch_size is not None:
            is_dealt = is_dealt and _are_even(part.counts, batch_size, shard)
        if is_dealt:
            files = files[shard.worker :: shard.workers]

        def expect_readable(file: np.int64) -> np.int64:
            with self._first_error.kept():
                part.expect_readable(int(file))
            return file

        def of_file(file: tf.Tensor) -> tf.data.Dataset:
            (file,) = tf.numpy_function(expect_readable, (file,), (tf.int64,))
            file = tf.ensure_shape(file, ())
            records = part.read(file).enumerate()
            return records.map(lambda number, content: (file, number, *content))

        records = tf.data.Dataset.from_tensor_slices(files).interleave(
            of_file,
            cycle_length=at_once,
            num_parallel_calls=tf.data.AUTOTUNE,
            # Workers that share the same records have to read them in the same order.
            deterministic=self._deterministic or not is_dealt,
        )
        if is_dealt:
            return records
        if batch_size is None:
            return records.shard(shard.workers, shard.worker)
        first, span = shard.span(batch_size)
        places = tf.data.Dataset.range(batch_size).repeat()
        own = tf.data.Dataset.zip((places, records)).filter(
            lambda place, _: (place >= first) & (place < first + span)
        )
        return own.map(lambda _, record: record)

    def _shard_count(self, shard: Shard) -> int:
        """The number of held-out images in a shard."""
        counts = self._held_out.counts
        if len(counts) >= shard.workers:
            return sum(counts[shard.worker :: shard.workers])
        return len(range(shard.worker, self._held_out.count, shard.workers))

    def _padding(self, records: tf.data.Dataset) -> tf.data.Dataset:
        """Endless records of a file that does not exist."""
        _, _, *content = records.element_spec
        nothing = (tf.zeros(spec.shape, spec.dtype) for spec in content)
        absent = tf.constant(-1, tf.int64)
        return tf.data.Dataset.from_tensors((absent, absent, *nothing)).repeat()


def _shuffled(records: tf.data.Dataset, buffer: int, seed: Any) -> tf.data.Dataset:
    """Shuffled by the seed alone; to be called in a function that is being traced."""
    # `shuffle` mixes its seed with the global one, on which nothing here may depend. This sets only
    # that of the function being traced.
    tf.compat.v1.set_random_seed(1)
    return records.shuffle(buffer, seed=seed, reshuffle_each_iteration=False)
