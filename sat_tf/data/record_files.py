"""Files of records, which can only be read from their beginning."""

import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from sat_tf.data.crops import JPEG
from sat_tf.data.odd_pictures import Encoded
from sat_tf.data.reading import ReadingError
from sat_tf.data.source import NO_LABEL

# What TensorFlow puts around its messages.
_AROUND = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*", re.DOTALL)
# Pictures by which the kind of most is told.
_LOOKED_AT = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFiles:
    """One part of a set: files of records, and how to read them.

    Attributes:
        names: of the files, for messages.
        counts: how many records each has; none is empty, so that dealing them out is fair.
        read: gives the dataset of the records of a file, by its number (a scalar, int64); a record
            is a tuple of tensors. Records that cannot be read are one empty string.
        parse: takes a record and gives the bytes of its picture and its label, int64.
        num_classes: labels are below it.
        paths: of the files, to try whether they are there; none where others open them.
        are_jpegs: whether most pictures are JPEGs; others then are read, but slowly.
        fix_of_features: what to do where a record lacks the picture or the label.
        fix_of_labels: what to do where a label is out of range.
    """

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
                f"{_printable(path)}: received a file that cannot be opened ({error.strerror}); "
                "expected the one that was there at the start; bring it back."
            ) from error

    def following(self, file: int, record: int, content: tuple[Any, ...]) -> Iterator[Encoded]:
        """All pictures: from one on and round its file to it, and then those of the next files.

        Args:
            file: number of the first one's file.
            record: number of the first one in it.
            content: of its record.

        Raises:
            ReadingError: a file cannot be opened, or as in `encoded`.
        """
        yield self.encoded(file, record, content)
        for number in range(file, file + len(self.names)):
            place = number % len(self.names)
            self.expect_readable(place)
            records = self.read(tf.constant(place, tf.int64)).enumerate()
            if place == file:
                records = records.skip(record + 1).concatenate(records.take(record))
            for index, found in records:
                yield self.encoded(place, int(index), found)

    def encoded(self, file: int, record: int, content: tuple[Any, ...]) -> Encoded:
        """The picture in a record, which may be made of tensors or of arrays.

        Raises:
            ReadingError: it lacks the picture or the label, or the label is out of range.
        """
        name = f"{self.names[file]}, record {record}"
        tensors = [tf.convert_to_tensor(part) for part in content]
        if len(tensors) == 1 and not tensors[0].numpy():
            return Encoded(name, _refuse, NO_LABEL)
        try:
            # Lists and scalars of Python come from some formats, arrays and tensors from others.
            picture, label = (tf.convert_to_tensor(found) for found in self.parse(*tensors))
        except tf.errors.OpError as error:
            reason = _AROUND.sub("", error.message)
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
    """TFRecord files, or spans of them, as one part of a set.

    From where a file is damaged on, its records are empty strings: there are always as many as
    were counted.

    Args:
        paths: of the files.
        counts: how many records of each belong to the part; files with none are left out.
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
        # As bytes, because names need not be UTF-8.
        files = tf.constant([os.fsencode(path) for path in kept], tf.string)
        spans = tf.constant([begins[number] if begins else 0 for number in filled], tf.int64)
        lengths = tf.constant(sizes, tf.int64)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(tf.gather(files, file)).skip(tf.gather(spans, file))
        missing = tf.data.Dataset.from_tensors(tf.constant(b"")).repeat()
        # A wrong checksum ends the file. `ignore_errors` would try for ever to open a file that is
        # not there, which is why `expect_readable` comes before.
        whole = records.ignore_errors().concatenate(missing).take(tf.gather(lengths, file))
        return whole.map(lambda serialized: (serialized,))

    part = RecordFiles(
        names=[_printable(pathlib.Path(path).name) for path in kept],
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
    """Whether most pictures are JPEGs, by the first ones; records that are wrong have no say."""
    found = []
    for record, content in enumerate(part.read(tf.constant(0, tf.int64)).take(_LOOKED_AT)):
        try:
            found.append(part.encoded(0, record, content).read().startswith(JPEG))
        except ValueError:
            continue
    return 2 * sum(found) >= len(found)


def _refuse() -> bytes:
    raise ValueError("its file is damaged here or before it")


def _printable(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")
