"""Encoded pictures, decoded in the graph and cut at random, and named where that fails."""

import dataclasses
import io
import math
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import ExifTags, Image

from sat_tf.exact.litert.processes import usable_cores
from sat_tf.exact.tflite.preprocessing import Preprocessing
from sat_tf.files import read_bytes
from sat_tf.messages import ReadingError, in_one_line
from sat_tf.messages.validation import Positive, check
from sat_tf.pictures import DECODER, Pictures, image_of, pixels_of, spread_evenly
from sat_tf.training.data.batches import (
    RANDOM,
    as_given,
    held_out_numbers,
    held_out_pieces,
    shuffled_spans,
)
from sat_tf.training.data.source import ImageSource, Order

WIDEST_ASPECT, TRIES = 4 / 3, 10
# The factors by which libjpeg can reduce a picture, by averaging, while decoding it.
_REDUCTIONS = (1, 2, 4, 8)
# Pillow also refuses larger pictures, in case they are there to fill the memory.
_MOST_PIXELS = 178_956_970


class TrainingCrops(NamedTuple):
    """How training varies a picture."""

    smallest_area: float = 0.08  # The least share of the picture's area in a crop.
    mirrors: bool = True  # Whether every other crop is mirrored.


# The random-resized crop of the Inception and ResNet papers.
INCEPTION = TrainingCrops()


def training_crop(
    encoded: tf.Tensor,
    seed: tf.Tensor,
    image_size: int,
    *,
    is_turned: tf.Tensor | None = None,
    crops: TrainingCrops = INCEPTION,
) -> tf.Tensor:
    """Returns the random crop of a picture that a seed gives, two integers: resized, or mirrored.

    An upright JPEG is decoded only as far as the crop needs, everything else whole, by Pillow.
    Crops at least twice as large as the result are reduced by averaging, which libjpeg does while
    it decodes; bilinear interpolation does the remaining factor below 2, at which it skips no
    pixels. A filter with antialiasing would take longer than everything else together.

    `is_turned` is `is_turned_jpeg` of the picture; with None, EXIF orientation is ignored.
    """

    # One node in the graph of most JPEGs, where every node of a branch that is not taken costs
    # time: together a quarter of a crop.
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def crop_by_pillow(encoded: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        pixels = tf.numpy_function(
            lambda content: whole_picture(content, is_turned is not None), [encoded], tf.uint8
        )
        pixels = tf.ensure_shape(pixels, (None, None, 3))
        return training_crop_of_pixels(pixels, seed, image_size, crops)

    is_upright_jpeg = tf.io.is_jpeg(encoded)
    if is_turned is not None:
        is_upright_jpeg &= ~is_turned
    return tf.cond(
        is_upright_jpeg,
        lambda: _crop_of_jpeg(encoded, seed, image_size, crops),
        lambda: crop_by_pillow(encoded, seed),
    )


def is_turned_jpeg(content: bytes) -> bool:
    """Returns whether a picture is a JPEG whose EXIF or XMP data turn it."""
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as picture:
            return picture.getexif().get(ExifTags.Base.Orientation) in range(2, 9)
    except Exception:  # another format, or a damaged file, whose decoder says what is wrong
        return False


def whole_picture(encoded: Any, turns: bool) -> np.ndarray:
    """Returns the pixels of a picture, (height, width, 3), uint8, decoded by Pillow."""
    return np.asarray(image_of(bytes_of(encoded), "RGB", turns=turns), np.uint8)


def bytes_of(value: Any) -> bytes:
    """Returns what TensorFlow hands over: bytes in a graph; outside of one, an array of them."""
    return value if isinstance(value, bytes) else bytes(value.item())


def training_crop_of_pixels(
    pixels: tf.Tensor, seed: tf.Tensor, image_size: int, crops: TrainingCrops = INCEPTION
) -> tf.Tensor:
    """Returns the crop of `training_crop` from a decoded picture (height, width, 3), uint8."""
    window, is_mirrored = _training_window(tf.shape(pixels), seed, crops)
    top, left, height, width = tf.unstack(window)
    crop = pixels[top : top + height, left : left + width]

    def reduced(ratio: int) -> tf.Tensor:
        # Last rows and columns that do not fill a square are dropped, as for JPEGs.
        return tf.nn.avg_pool2d(tf.cast(crop, tf.float32)[None], ratio, ratio, "VALID")[0]

    return _finished(window, reduced, is_mirrored, image_size)


def _crop_of_jpeg(
    encoded: tf.Tensor, seed: tf.Tensor, image_size: int, crops: TrainingCrops
) -> tf.Tensor:
    shape = tf.io.extract_jpeg_shape(encoded)
    pixels = tf.reduce_prod(tf.cast(shape[:2], tf.int64))
    # The raw operation, without the branch that `tf.debugging.Assert` adds.
    check = tf.raw_ops.Assert(condition=pixels <= _MOST_PIXELS, data=["a JPEG of too many pixels"])
    with tf.control_dependencies([] if check is None else [check]):
        window, is_mirrored = _training_window(shape, seed, crops)

    def reduced(ratio: int) -> tf.Tensor:
        return tf.raw_ops.DecodeAndCropJpeg(
            contents=encoded, crop_window=window // ratio, channels=3, ratio=ratio
        )

    return _finished(window, reduced, is_mirrored, image_size)


def _training_window(
    shape: tf.Tensor, seed: tf.Tensor, crops: TrainingCrops
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns top, left, height and width of a random crop, and whether to mirror it."""
    # All draws are made at once: an operation costs as much as its arithmetic.
    draws = tf.random.stateless_uniform((2 * TRIES + 3,), seed, alg=RANDOM)
    sides = tf.cast(shape[:2], tf.float32)
    area = sides[0] * sides[1] * (crops.smallest_area + (1 - crops.smallest_area) * draws[:TRIES])
    aspect = tf.exp(math.log(WIDEST_ASPECT) * (2 * draws[TRIES : 2 * TRIES] - 1))
    sizes = tf.round(tf.stack([tf.sqrt(area / aspect), tf.sqrt(area * aspect)], axis=1))
    fits = tf.reduce_all((sizes >= 1) & (sizes <= sides), axis=1)
    # If no try fits, the crop is as much of the centre as the aspects allow.
    centre = tf.minimum(sides, tf.round(sides[::-1] * WIDEST_ASPECT))
    any_fits = tf.reduce_any(fits)
    size = tf.where(any_fits, sizes[tf.argmax(fits)], centre)
    room = sides - size
    begin = tf.where(
        any_fits,
        tf.minimum(tf.floor(draws[2 * TRIES : 2 * TRIES + 2] * (room + 1)), room),
        tf.floor(room / 2),
    )
    share = 0.5 if crops.mirrors else 0.0
    return tf.cast(tf.concat([begin, size], 0), tf.int32), draws[-1] < share


def _finished(
    window: tf.Tensor, reduced: Any, is_mirrored: tf.Tensor, image_size: int
) -> tf.Tensor:
    """Returns a crop that `reduced` gives by its ratio, resized and mirrored."""
    # How often the crop can be halved without getting smaller than the result.
    limits = [image_size * ratio for ratio in _REDUCTIONS[1:]]
    halvings = tf.reduce_sum(tf.cast(tf.minimum(window[2], window[3]) >= limits, tf.int32))
    crop = tf.switch_case(halvings, [lambda ratio=ratio: reduced(ratio) for ratio in _REDUCTIONS])
    # Only the float32 kernel is vectorised: half the time for the same values.
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.cast(crop, tf.float32)[None],
        size=(image_size, image_size),
        half_pixel_centers=True,
    )[0]
    pixels = tf.ensure_shape(tf.cast(tf.round(resized), tf.uint8), (image_size, image_size, 3))
    # `reverse` moves whole pixels; slices with a negative step move bytes, in 20 times the time.
    return tf.cond(is_mirrored, lambda: tf.reverse(pixels, [1]), lambda: pixels)


# -- pictures in files and in records --------------------------------------------------------------


_HELD_OUT_AT_ONCE = 32
# Text that TensorFlow adds around its messages.
_AROUND = re.compile(r"\{\{.*?\}\} ?| ?\[Op:.*|\n.*", re.DOTALL)


class PictureFiles:
    """The pictures of a split in files, each identified by a row of tensors: its number."""

    def __init__(self, split: Pictures) -> None:
        self.count = len(split)
        self._names = [os.path.join(split.folder, name) for name in split.names]
        with tf.device("CPU"):
            self._labels = tf.constant(split.labels, tf.int32)

    def training_rows(self, order: Order) -> tf.data.Dataset:
        """Returns the epoch and the row of each picture of this process, batch after batch."""
        spans = shuffled_spans(self.count, order)
        return spans.map(lambda epoch, numbers: (tf.fill(tf.shape(numbers), epoch), numbers))

    def held_out_rows(self, order: Order) -> tf.data.Dataset:
        """Returns the rows of this process in order, one by one."""
        return held_out_numbers(self.count, order)

    def drawn_rows(self, count: int, seed: int) -> tf.data.Dataset:
        """Returns the rows of `count` pictures, or all there are, drawn at random."""
        # RandomState, because NumPy guarantees that its streams never change.
        rows = np.random.RandomState(seed).permutation(self.count)[:count]
        return tf.data.Dataset.from_tensor_slices(rows)

    def spread_rows(self, limit: int) -> tf.data.Dataset:
        """Returns the rows of at most `limit` pictures, spread evenly."""
        return tf.data.Dataset.from_tensor_slices(spread_evenly(self.count, limit))

    def number(self, *row: tf.Tensor) -> tf.Tensor:
        """Returns an integer that identifies a picture, int64."""
        return row[0]

    def read(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Returns a picture's bytes, its label, int32, and `is_turned_jpeg`, in the graph.

        The last one is None where orientations are ignored.
        """

        # TensorFlow's own reader would make room for whatever size a file says it has. Another
        # call of Python for the orientation would take a tenth of the time of a crop.
        def content_of(number: Any) -> tuple[bytes, bool]:
            content = read_bytes(self._names[number])
            return content, is_turned_jpeg(content)

        facts = tf.numpy_function(content_of, [row[0]], (tf.string, tf.bool))
        content, is_turned = (tf.ensure_shape(fact, ()) for fact in facts)
        return content, self._labels[row[0]], is_turned

    def name(self, *row: Any) -> str:
        """Returns the name of a picture, for messages, by a row of arrays."""
        return in_one_line(self._names[row[0]])

    def expect_readable(self, *row: Any) -> None:
        """Raises ReadingError where a picture cannot be read, whatever its pixels."""
        try:
            read_bytes(self._names[row[0]])
        except OSError as error:
            raise ReadingError(
                f"{self.name(*row)}: received a file that cannot be opened ({error.strerror}); "
                "expected the one found at the start; restore it."
            ) from error


_MISSING = b""  # Stands for a record that cannot be read.
FILES_AT_ONCE = 16  # How many files are interleaved.


class Share(NamedTuple):
    """The pictures that one process reads: `size` of every `of` pictures, from `first` on."""

    first: int = 0
    size: int = 1
    of: int = 1

    def bounds(self, count: int) -> tuple[int, int]:
        """Returns the first picture and the end of the share of `count` pictures."""
        return count * self.first // self.of, count * (self.first + self.size) // self.of


# Gives the rows of a share: in the order of the files, or shuffled by a seed, file by file.
Read = Callable[[Share, tf.Tensor | None], tf.data.Dataset]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordFiles:
    """The pictures of a split in record files; a row is the name and the content of a record.

    Every epoch, files are shuffled, interleaved and drawn from a shuffle buffer. Each worker reads
    a share of its own, so that an epoch has no picture twice.
    """

    count: int  # The number of pictures.
    rows: Read  # Gives the name and the content of each record; see `Read`.
    # Takes the content and gives the bytes of the picture and its label, int64.
    parse: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    num_classes: int  # Labels are below it.
    shuffle_buffer: int  # Size of the shuffle buffer, in encoded pictures.

    def training_rows(self, order: Order) -> tf.data.Dataset:
        start, size = order.span
        steps = self.count // order.batch_size

        @tf.autograph.experimental.do_not_convert
        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            share = Share(start, size, order.batch_size)
            rows = self._shuffled(share, order.seed, epoch, self.shuffle_buffer).take(steps * size)
            return rows.map(lambda *row: (epoch, *row)).batch(size, drop_remainder=True)

        return tf.data.Dataset.range(order.first_epoch, tf.int64.max).flat_map(of_epoch)

    def held_out_rows(self, order: Order) -> tf.data.Dataset:
        return self.rows(Share(*order.span, order.batch_size), None)

    def drawn_rows(self, count: int, seed: int) -> tf.data.Dataset:
        buffer = max(self.shuffle_buffer, count)
        # This is the order of an epoch before the first, in a function, as `_shuffled` requires.
        epochs = tf.data.Dataset.range(-1, 0)
        return epochs.flat_map(lambda e: self._shuffled(Share(), seed, e, buffer)).take(count)

    def spread_rows(self, limit: int) -> tf.data.Dataset:
        mask = np.zeros(self.count, bool)
        mask[spread_evenly(self.count, limit)] = True
        marks = tf.data.Dataset.from_tensor_slices(mask)
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
        # The buckets outnumber the pictures, so that nearly every picture has crops of its own.
        return tf.strings.to_hash_bucket_fast(row[0], 2**62)

    def read(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        picture, label = self.parse(*row[1:])
        tf.debugging.Assert((label >= 0) & (label < self.num_classes), [label])
        return picture, tf.cast(label, tf.int32), None

    def name(self, *row: Any) -> str:
        return in_one_line(os.fsdecode(row[0]))

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
                f"({tensorflow_reason(error)}); expected both; correct the names of its features."
            ) from error
        if not 0 <= int(label) < self.num_classes:
            raise ReadingError(
                f"{name}: received the label {int(label)}, expected 0 to {self.num_classes - 1}; "
                "correct first_label or num_classes, or choose another split."
            )


def rows_of_files(paths: Sequence[pathlib.Path], counts: Sequence[int]) -> Read:
    """Returns the reader of the records of TFRecord files: one serialized example a row.

    A share is that part of all records, in the order of the files: a process reads few files that
    others read as well.
    """
    ends = np.cumsum(counts)
    names = [in_one_line(path.name) for path in paths]

    def of_file(path: tf.Tensor, name: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> Any:
        # `ignore_errors` would try forever to read the first record of a file that has gone.
        present_path = tf.numpy_function(
            lambda path: np.array([path][: os.path.isfile(path)], object), (path,), tf.string
        )
        records = tf.data.TFRecordDataset(tf.ensure_shape(present_path, (None,))).ignore_errors()
        # A wrong checksum ends the file. Missing records are empty, and thereby reported.
        missing = tf.data.Dataset.from_tensors(_MISSING).repeat()
        records = records.concatenate(missing).skip(skip).take(take)
        numbers = tf.strings.as_string(tf.range(skip, skip + take))
        rows = tf.data.Dataset.from_tensor_slices(tf.strings.join([name, ", record ", numbers]))
        return tf.data.Dataset.zip((rows, records))

    def read(share: Share, seed: tf.Tensor | None) -> tf.data.Dataset:
        bounds = share.bounds(int(ends[-1]))
        firsts, lasts = np.clip(bounds, (ends - counts)[:, None], ends[:, None]).T
        file_indices = np.flatnonzero(lasts > firsts)
        # Paths are bytes, because names need not be UTF-8.
        spans = (
            [bytes(paths[int(file)]) for file in file_indices],
            [names[int(file)] for file in file_indices],
            (firsts - ends + counts)[file_indices],
            (lasts - firsts)[file_indices],
        )
        files = tf.data.Dataset.from_tensor_slices(spans)
        if seed is not None:
            files = files.shuffle(len(file_indices), seed=seed, reshuffle_each_iteration=False)
        at_once = 1 if seed is None else FILES_AT_ONCE
        return files.interleave(of_file, at_once, num_parallel_calls=tf.data.AUTOTUNE)

    return read


# A split, whose pictures are identified, read and named by their rows.
EncodedPictures = PictureFiles | RecordFiles


@dataclasses.dataclass(eq=False, kw_only=True)
class PictureSource(ImageSource):
    """A source of encoded pictures, from which batches are decoded on all cores.

    Pictures to train on are decoded and cropped by TensorFlow, in the graph; those to measure,
    calibrate and verify with by Pillow, as in every other command.
    """

    train: EncodedPictures
    held_out: EncodedPictures
    name: str
    image_size: int
    num_classes: int
    # `field()` keeps the class attributes of `ImageSource` from being the defaults.
    class_names: tuple[str, ...] | None = dataclasses.field()
    preprocessing: Preprocessing = dataclasses.field()
    notes: tuple[str, ...] = ()
    deterministic: bool  # Whether pictures keep their order.
    crops: TrainingCrops = INCEPTION  # How training varies the pictures.
    decoder = DECODER

    def __post_init__(self) -> None:
        self.num_train, self.num_test = self.train.count, self.held_out.count

    def _training_batches(self, order: Order) -> tf.data.Dataset:
        def labelled_image(epoch: tf.Tensor, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label, is_turned = self.train.read(*row)
            # The crop of a picture does not depend on its batch.
            seed_of_epoch = tf.stack([tf.constant(order.seed, tf.int64), epoch])
            number = self.train.number(*row)
            key = tf.random.experimental.stateless_fold_in(seed_of_epoch, number, alg=RANDOM)
            return training_crop(
                encoded, key, self.image_size, is_turned=is_turned, crops=self.crops
            ), label

        pieces = order.in_pieces(self.train.training_rows(order))
        batches = self._images(pieces, labelled_image, self.train, has_epochs=True)
        return as_given(batches, deterministic=self.deterministic)

    def _held_out_batches(self, order: Order) -> tf.data.Dataset:
        images = self._prepared(self.held_out, self.held_out.held_out_rows(order))
        pieces = held_out_pieces(images, self.num_test, order)
        return as_given(pieces, deterministic=self.deterministic)

    def training_sample(self, count: int, *, seed: int) -> npt.NDArray[np.uint8]:
        check(self.name, count=(count, Positive))
        return self._sample(self.train, self.train.drawn_rows(count, seed))[0]

    def held_out_sample(self, limit: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        check(self.name, count=(limit, Positive))
        return self._sample(self.held_out, self.held_out.spread_rows(limit))

    def _sample(self, pictures: EncodedPictures, rows: tf.data.Dataset) -> Any:
        try:
            images, labels = zip(*self._prepared(pictures, rows).as_numpy_iterator(), strict=True)
        except tf.errors.OpError as error:
            raise self.reading_error or ReadingError(
                f"{self.name}: received files that cannot be read ({tensorflow_reason(error)}); "
                "expected those found at the start; restore them."
            ) from None
        return np.stack(images), np.array(labels, np.int32)

    def _prepared(self, pictures: EncodedPictures, rows: tf.data.Dataset) -> tf.data.Dataset:
        """Returns pictures prepared like the held-out ones, and their labels."""
        shape = (self.image_size, self.image_size, 3)

        def labelled_image(*row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded, label, _ = pictures.read(*row)
            # Pillow decodes and resizes without the lock of the interpreter, on all cores.
            pixels = tf.numpy_function(
                lambda content: pixels_of(bytes_of(content), shape, self.preprocessing),
                [encoded],
                tf.uint8,
            )
            return tf.ensure_shape(pixels, shape), label

        return self._images(rows.batch(_HELD_OUT_AT_ONCE), labelled_image, pictures).unbatch()

    def _images(
        self,
        pieces: tf.data.Dataset,
        labelled_image: Callable[..., tuple[tf.Tensor, tf.Tensor]],
        pictures: EncodedPictures,
        *,
        has_epochs: bool = False,
    ) -> tf.data.Dataset:
        """Decodes every picture of every piece, on all cores.

        An error in the graph cannot say which picture it is about: those of a piece that fails are
        decoded once more, one after another, until one fails and is named.
        """
        cores = usable_cores()
        size = tf.nest.flatten(pieces.element_spec)[0].shape[0]
        shape = (size, self.image_size, self.image_size, 3)

        def raise_error(*rows: Any) -> Any:
            try:
                for row in zip(*rows, strict=True):
                    bare_row = row[1:] if has_epochs else row
                    pictures.expect_readable(*bare_row)
                    try:
                        encoded, *_ = pictures.read(*map(tf.convert_to_tensor, bare_row))
                        whole_picture(encoded.numpy(), turns=False)  # which gives the better reason
                        labelled_image(*map(tf.convert_to_tensor, row))
                    except (tf.errors.OpError, ValueError) as error:
                        raise ReadingError(
                            f"{pictures.name(*bare_row)}: received a picture that cannot be read "
                            f"({tensorflow_reason(error)}); expected a whole JPEG, PNG or other "
                            "file that Pillow reads; mend or delete it."
                        ) from None
                raise ReadingError(f"{self.name}: received a picture that can be read only now.")
            except ReadingError as error:
                self.reading_error = self.reading_error or error
                raise

        # There is nothing for AutoGraph to convert here, and converting would take longer than
        # everything else before the first picture.
        @tf.autograph.experimental.do_not_convert
        def piece(*rows: tf.Tensor) -> tf.data.Dataset:
            images = tf.data.Dataset.from_tensor_slices(rows).map(
                labelled_image, num_parallel_calls=cores, deterministic=self.deterministic
            )
            # Once a picture has failed, the others of the piece are too few for a batch.
            batch = images.batch(tf.shape(rows[0], tf.int64)[0], drop_remainder=True)
            failed = tf.data.Dataset.from_tensors(rows).map(
                lambda *rows: tuple(tf.numpy_function(raise_error, rows, (tf.uint8, tf.int32)))
            )
            return batch.ignore_errors().concatenate(failed).take(1)

        # Enough pieces at a time that the last pictures of one do not leave cores idle.
        at_once = 2 if size is None else 2 + 2 * cores // size
        batches = pieces.interleave(
            piece,
            cycle_length=at_once,
            num_parallel_calls=at_once,
            # Pieces of different sizes have to keep their order, or batches would have other sizes.
            deterministic=self.deterministic or size is None,
        )
        return batches.map(
            lambda images, labels: (
                tf.ensure_shape(images, shape),
                tf.ensure_shape(labels, (size,)),
            )
        )


def tensorflow_reason(error: Exception) -> str:
    """Returns in a line what TensorFlow says of an error, which may quote bytes of a file."""
    if isinstance(error, UnicodeDecodeError):
        return error.object.decode(errors="replace")
    return _AROUND.sub("", error.message if isinstance(error, tf.errors.OpError) else str(error))
