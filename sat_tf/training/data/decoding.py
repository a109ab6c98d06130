"""Decoding on a fast path, with a slow path for the few pictures that it refuses."""

import abc
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sat_tf.messages import ReadingError
from sat_tf.pictures.pictures import (
    DECODER,
    JPEG,
    expect_pixels,
    expect_whole,
    image_of,
    orientation_of,
    pixels_of,
)
from sat_tf.preprocessing import Preprocessing
from sat_tf.training.data.batch_order import RANDOM, as_given
from sat_tf.training.data.crops import (
    INCEPTION,
    MOST_ON_THE_FAST_PATH,
    TrainingCrops,
    training_crop,
    training_crop_of_jpeg,
    training_crop_of_pixels,
    turned,
)
from sat_tf.training.data.source import NO_LABEL, FirstError, ImageSource

# Both make an image and a label from one row. The slow one takes arrays instead of tensors.
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

    The fast path is in the graph and runs in parallel. If it fails, for whatever reason, only that
    picture is decoded again, by the slow path in Python.

    Args:
        pieces: a dataset of tuples of tensors with one row for each picture.
        fast: makes an image (image_size, image_size, 3), uint8, and a label, int32, from a row.
        slow: the same from arrays; its errors end the iteration.
        image_size: height and width of the images.
        first_error: keeps the error that the slow path raises.
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

    # There is nothing for AutoGraph to convert here or below, and it would take longer than all
    # else before the first picture.
    @tf.autograph.experimental.do_not_convert
    def piece(*rows: tf.Tensor) -> tf.data.Dataset:
        count = tf.shape(rows[0], tf.int64)[0]
        # An error would end the whole piece; `ignore_errors` drops its picture instead, and the
        # numbers tell which one is missing.
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

    # Pieces of different sizes have to keep their order, or batches would have other sizes.
    keeps_order = deterministic or size is None
    # Enough pieces at a time that the last pictures of one do not leave cores idle.
    at_once = 2 if size is None else 2 + 2 * cores // size
    return pieces.interleave(
        piece, cycle_length=at_once, num_parallel_calls=at_once, deterministic=keeps_order
    )


_LOG = logging.getLogger(__name__)

# Small sets may have this many corrupt pictures, even if their share of the set is larger.
ALWAYS_ALLOWED = 5
_SAMPLED_AT_ONCE = 64


def decode_slowly(encoded: bytes, *, turns: bool = False) -> npt.NDArray[np.uint8]:
    """The pixels of a picture to train on: JPEGs by TensorFlow, other formats by Pillow.

    The fast path reads JPEGs with libjpeg's faster transform, which Pillow does not offer: by
    Pillow their pixels would be others than those of the fast path. What is measured with has other
    pixels; see `sat_tf.pictures.pictures`.

    Transparency is dropped, animations give their first frame, 16-bit values lose their lower half,
    and 32-bit values are refused.

    Args:
        encoded: the bytes of the file.
        turns: whether the picture is turned by its EXIF orientation.

    Returns:
        (height, width, 3), uint8.

    Raises:
        ValueError: it cannot be decoded, or as `expect_whole`.
    """
    if encoded.startswith(JPEG):
        expect_whole(encoded)
        try:
            pixels = tf.io.decode_image(encoded, channels=3, expand_animations=False).numpy()
            return turned(pixels, orientation_of(encoded)) if turns else pixels
        except tf.errors.OpError:  # of a kind that Pillow alone may know
            pass
    return np.asarray(image_of(encoded, "RGB", turns=turns), np.uint8)


class NoGoodPictureError(ReadingError):
    """No picture of several can be decoded."""


class Encoded(NamedTuple):
    """A picture that has not been decoded.

    Attributes:
        name: for messages.
        read: gives its bytes.
        label: number of its class.
    """

    name: str
    read: Callable[[], bytes]
    label: int


class CorruptPictures:
    """Counts pictures that cannot be decoded, and logs each of them once.

    Args:
        subject: name of the data set, for messages.
        count: how many pictures it has.
        max_corrupt: largest share of them that may be corrupt; 0 allows none. Otherwise 5 pictures
            are always allowed.
    """

    def __init__(self, subject: str, count: int, max_corrupt: float) -> None:
        self._subject = subject
        self._count = count
        self._max_corrupt = max_corrupt
        self._most = max(int(max_corrupt * count), ALWAYS_ALLOWED) if max_corrupt else 0
        self._names: dict[str, str] = {}
        self._error: str | None = None
        self._lock = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The corrupt pictures found so far, in order."""
        return tuple(self._names)

    def add(self, name: str, reason: str) -> None:
        """Counts a picture.

        Raises:
            ReadingError: there are too many; always with the first message, because other threads
                continue for a while.
        """
        with self._lock:
            if self._error is None and name not in self._names:
                self._names[name] = reason
                _LOG.warning(
                    "%s: corrupt picture %s: %s; skipped (%d so far)",
                    self._subject,
                    name,
                    reason,
                    len(self._names),
                )
                if len(self._names) > self._most:
                    self._error = self._too_many()
            if self._error is not None:
                raise ReadingError(self._error)

    def all_are_corrupt(self) -> str:
        """The message if all requested pictures are corrupt."""
        return (
            f"{self._subject}: received {len(self._names)} corrupt pictures and no good one, "
            f"expected at least one; {self._last_ones()}; repair or replace them."
        )

    def _too_many(self) -> str:
        allowed = f"max_corrupt={self._max_corrupt}"
        if self._max_corrupt:
            allowed = f"{ALWAYS_ALLOWED}, or a share of {allowed} where that is more"
        return (
            f"{self._subject}: received {len(self._names)} corrupt pictures, expected at most "
            f"{self._most} of {self._count} ({allowed}); {self._last_ones()}; repair or "
            "delete them, or raise max_corrupt."
        )

    def _last_ones(self) -> str:
        named = "; ".join(f"{name}: {why}" for name, why in list(self._names.items())[-3:])
        return f"the last ones are {named}"


def first_good(
    pictures: Iterable[Encoded],
    corrupt: CorruptPictures,
    decode: Callable[[bytes], npt.NDArray[np.uint8]],
) -> tuple[npt.NDArray[np.uint8], int]:
    """The pixels and the label of the first picture that can be decoded.

    Args:
        pictures: in the order in which to try them.
        corrupt: counts those before it.
        decode: gives the pixels of a picture; raises ValueError where there are none.

    Raises:
        ReadingError: there are too many corrupt pictures.
        NoGoodPictureError: none can be decoded.
    """
    for picture in pictures:
        try:
            return decode(picture.read()), picture.label
        except (ValueError, OSError) as error:
            corrupt.add(picture.name, str(error))
    raise NoGoodPictureError(corrupt.all_are_corrupt())


class Pictures(abc.ABC):
    """Encoded pictures with labels: one split of a set, each picture named by a row of tensors.

    Attributes:
        are_jpegs: whether most pictures are JPEGs; others are then read slowly.
        numbers: how many scalars of a row say which picture it is; contents follow them.
    """

    are_jpegs: bool
    numbers: ClassVar[int]

    @abc.abstractmethod
    def is_there(self, *row: tf.Tensor) -> tf.Tensor:
        """Whether a row is a picture; others pad the last batch."""

    @abc.abstractmethod
    def in_graph(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The bytes of a picture, and its label, int32; fails where `following` tells why."""

    @abc.abstractmethod
    def following(self, *row: Any) -> Iterator[Encoded]:
        """All pictures, from one on and wrapping around.

        Raises:
            ReadingError: some cannot be read, whatever their pixels.
        """


class PictureSource(ImageSource):
    """A source of encoded pictures, some of which may be corrupt.

    Pictures to train on are decoded and cropped by TensorFlow, in the graph; those to measure,
    calibrate and verify with by Pillow, as in every other command.

    Args:
        name: of the set.
        image_size: height and width of the images.
        num_classes: number of classes.
        num_train: number of training images.
        num_test: number of held-out images.
        max_corrupt: see `CorruptPictures`.
        deterministic: whether pictures keep their order.
        preprocessing: how pictures become the images to measure with.
        crops: how training varies them.
    """

    def __init__(
        self,
        *,
        name: str,
        image_size: int,
        num_classes: int,
        num_train: int,
        num_test: int,
        max_corrupt: float,
        deterministic: bool,
        preprocessing: Preprocessing,
        crops: TrainingCrops = INCEPTION,
    ) -> None:
        self.name, self.image_size, self.num_classes = name, image_size, num_classes
        self.num_train, self.num_test = num_train, num_test
        self.preprocessing, self.decoder = preprocessing, DECODER
        self.corrupt = CorruptPictures(name, num_train + num_test, max_corrupt)
        self._first_error = FirstError()
        self._deterministic = deterministic
        self._crops = crops

    @property
    def reading_error(self) -> ReadingError | None:
        """The first error of reading; see `ImageSource`."""
        return self._first_error.error

    def _batches(self, pieces: tf.data.Dataset, fast: Fast, slow: Slow) -> tf.data.Dataset:
        batches = decoded(
            pieces,
            fast,
            slow,
            image_size=self.image_size,
            first_error=self._first_error,
            deterministic=self._deterministic,
        )
        return as_given(batches, deterministic=self._deterministic)

    def _training(self, pieces: tf.data.Dataset, part: Pictures, seed: int) -> tf.data.Dataset:
        """Random crops of pictures, from pieces of the epoch and the rows of each."""
        crop_of = training_crop_of_jpeg if part.are_jpegs else training_crop
        turns = self.preprocessing.exif_orientation

        decode = functools.partial(decode_slowly, turns=turns)

        def seed_of(epoch: tf.Tensor, *row: tf.Tensor) -> tf.Tensor:
            # The crop of a picture does not depend on its batch.
            key = tf.stack([tf.constant(seed, tf.int64), epoch])
            for number in row[: part.numbers]:
                key = tf.random.experimental.stateless_fold_in(key, number, alg=RANDOM)
            return key

        def fast(epoch: tf.Tensor, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label = part.in_graph(*row)
            key = seed_of(epoch, *row)
            return crop_of(encoded, key, self.image_size, turns=turns, crops=self._crops), label

        def slow(epoch: np.int64, *row: Any) -> tuple[npt.NDArray[np.uint8], int]:
            pixels, label = first_good(part.following(*row), self.corrupt, decode)
            key = seed_of(epoch, *row)
            crop = training_crop_of_pixels(pixels, key, self.image_size, self._crops)
            return crop.numpy(), label

        return self._batches(pieces, fast, slow)

    def _prepared(self, pieces: tf.data.Dataset, part: Pictures) -> tf.data.Dataset:
        """Pictures prepared like the held-out ones, from pieces of rows.

        One that is not there, or corrupt, is black and has `NO_LABEL`.
        """
        shape = (self.image_size, self.image_size, 3)
        nothing = np.zeros(shape, np.uint8), NO_LABEL

        def decode(encoded: bytes) -> npt.NDArray[np.uint8]:
            return pixels_of(encoded, shape, self.preprocessing)

        def decode_at_once(encoded: bytes) -> npt.NDArray[np.uint8]:
            expect_pixels(encoded, MOST_ON_THE_FAST_PATH)
            return decode(encoded)

        def fast(*row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def picture() -> tuple[tf.Tensor, tf.Tensor]:
                encoded, label = part.in_graph(*row)
                # Pillow decodes and resizes without the lock of the interpreter, on all cores.
                pixels = tf.numpy_function(decode_at_once, [encoded], tf.uint8)
                return tf.ensure_shape(pixels, shape), label

            def black() -> tuple[tf.Tensor, tf.Tensor]:
                return tf.constant(nothing[0]), tf.constant(NO_LABEL)

            return tf.cond(part.is_there(*row), picture, black)

        def slow(*row: Any) -> tuple[npt.NDArray[np.uint8], int]:
            alone = next(part.following(*row))
            try:
                return first_good([alone], self.corrupt, decode)
            except NoGoodPictureError:
                return nothing

        return self._batches(pieces, fast, slow)

    def _sample(
        self, rows: tf.data.Dataset, part: Pictures, most: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """The first images of rows, prepared like the held-out ones, and their labels.

        Corrupt pictures are left out.
        """
        batches = self._prepared(rows.batch(min(_SAMPLED_AT_ONCE, most)), part)
        good = batches.unbatch().filter(lambda _, label: label != NO_LABEL).take(most)
        with self._first_error.raised():
            found = list(good.as_numpy_iterator())
        if not found:
            raise ReadingError(self.corrupt.all_are_corrupt())
        images, labels = zip(*found, strict=True)
        return np.stack(images), np.array(labels, np.int32)
