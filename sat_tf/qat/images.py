"""The images that a network is run on: gathered, checked, and read a batch at a time."""

import dataclasses
import itertools
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from PIL import Image

from sat_tf.arguments import is_integer
from sat_tf.exact.tflite.input_range import PIXELS
from sat_tf.graph.network import Network
from sat_tf.messages import first_ones, reason_of
from sat_tf.messages.progress_bar import Advance
from sat_tf.pictures import open_pictures
from sat_tf.qat.inputs import input_ranges

# Rows that are collected are in memory up to this size, and in a file above it.
MOST_BYTES_IN_MEMORY = 2**26
BATCH_SIZE = 64
# Statistics need the whole tensor of a batch: where it would have more bytes, a batch has half as
# many images, which is enough to measure the 7x7 pixels of a channel that networks end with.
_LARGEST_TENSOR_BYTES = 2**27


class FileArray:
    """An array that is in a temporary file above 64 MiB, but for the rows that are asked for.

    A memory map would not do: all rows that were ever read count as memory of the process. Where
    its shape has no rows yet, they are appended.
    """

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
        # It goes with the array.
        self._file = tempfile.SpooledTemporaryFile(MOST_BYTES_IN_MEMORY)  # noqa: SIM115

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Reads some rows: those of a slice without a stride, or of an array of their places."""
        if not isinstance(rows, slice):
            return np.concatenate([self[:0], *(self[row : row + 1] for row in rows.tolist())])
        start, stop, _ = rows.indices(len(self))
        shape = (max(stop - start, 0), *self.shape[1:])
        self._go_to(start)
        content = self._file.read(math.prod(shape) * self.dtype.itemsize)
        return np.frombuffer(content, self.dtype).reshape(shape)

    def _go_to(self, row: int) -> None:
        self._file.seek(row * math.prod(self.shape[1:]) * self.dtype.itemsize)

    def __setitem__(self, rows: slice, values: np.ndarray) -> None:
        """Writes rows from where a slice begins on."""
        self._go_to(rows.indices(len(self))[0])
        try:
            self._file.write(np.ascontiguousarray(values, self.dtype).data)
            self._file.flush()
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: a temporary file of images or layers in "
                f"{tempfile.gettempdir()}; free some space there, let TMPDIR name another folder, "
                "or use fewer images.",
            ) from error

    def append(self, values: np.ndarray) -> None:
        """Puts rows after the last one."""
        end = len(self)
        self.shape = (end + len(values), *self.shape[1:])
        self[end:] = values


# The rows of all images.
Rows = np.ndarray | FileArray
# An array for each input.
Images = tuple[Rows, ...]
# An array of one batch for each input.
Batch = tuple[np.ndarray, ...]


class _Collected:
    """The rows of batches one after the other; a single array is the user's own, and no copy."""

    rows: Rows | None = None

    def add(self, rows: np.ndarray) -> None:
        if self.rows is None:
            self.rows = rows
            return
        dtype = np.result_type(self.rows.dtype, rows.dtype)
        if isinstance(self.rows, np.ndarray) or self.rows.dtype != dtype:
            before, self.rows = self.rows, FileArray((0, *rows.shape[1:]), dtype)
            for start in range(0, len(before), BATCH_SIZE):
                self.rows.append(before[start : start + BATCH_SIZE])
        self.rows.append(rows)


class Batches:
    """Batches of all images, or those at the chosen places, each read when it is asked for.

    A last batch of less than half the size is part of the one before.
    """

    def __init__(
        self,
        images: Images,
        chosen: np.ndarray | None = None,
        *,
        size: int = BATCH_SIZE,
        advance: Advance = lambda count: None,
    ) -> None:
        self._images, self._chosen, self._advance = images, chosen, advance
        count = len(images[0]) if chosen is None else len(chosen)
        starts = list(range(0, count, size))
        if len(starts) > 1 and count - starts[-1] < size // 2:
            del starts[-1]
        self._spans = list(zip(starts, [*starts[1:], count], strict=True))
        self.num_images = count

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, place: int) -> Batch:
        rows: Any = slice(*self._spans[place])
        rows = rows if self._chosen is None else self._chosen[rows]
        return tuple(array[rows] for array in self._images)

    def __iter__(self) -> Iterator[Batch]:
        for place in range(len(self)):
            images = self[place]
            yield images
            self._advance(len(images[0]))


def images_at_once(network: Network) -> int:
    """How many images are in a batch: 64, or 32 where a tensor of 64 takes more than 128 MiB."""
    # Sizes that are not known yet do not count.
    sizes = [math.prod(size or 0 for size in node.shape) for node in network]
    is_large = 4 * max(sizes, default=0) * BATCH_SIZE > _LARGEST_TENSOR_BYTES
    return BATCH_SIZE // 2 if is_large else BATCH_SIZE


def holds_numbers(array: np.ndarray) -> bool:
    """Whether an array is of real numbers: not of bool, complex numbers, texts, times, objects."""
    return array.dtype != bool and np.can_cast(array.dtype, np.float32, "same_kind")


def elements_of(dataset: Iterable[Any]) -> Iterator[Any]:
    """The elements of a data set; an error says why it fails while it is read."""
    try:
        yield from dataset
    except tf.errors.OpError as error:
        raise ValueError(
            f"dataset: received one that fails while it is read ({reason_of(error)}), expected "
            "images; mend it, or leave out the elements at which it fails."
        ) from error


def expect_num_images(num_images: Any, *, fewest: int = 1) -> None:
    """Raises ValueError unless it is a number of images that a caller may ask for."""
    if not is_integer(num_images, lowest=fewest):
        raise ValueError(
            f"num_images={num_images!r}: expected an integer of at least {fewest}; 64 or more give "
            "reliable results."
        )


def gather(dataset: Any, num_images: int, network: Network) -> Images:
    """The images of a data set, at most `num_images`, an array for each input; uint8 is scaled."""
    if isinstance(dataset, str | os.PathLike):
        dataset = _pictures(pathlib.Path(dataset), num_images, network)
    arrays = np.ndarray | tf.Tensor
    is_list_of_inputs = (
        isinstance(dataset, list)
        and len(dataset) == len(network.inputs) > 1
        and all(isinstance(array, arrays) for array in dataset)
    )
    if is_list_of_inputs or isinstance(dataset, arrays | tuple | Mapping):
        dataset = [dataset]  # one batch, of images or of (images, labels)
    expect_num_images(num_images)
    if not isinstance(dataset, Iterable):
        raise ValueError(
            f"dataset: received {type(dataset).__name__}, expected images (n, h, w, c) or batches "
            "of them; pass an array, a tf.data.Dataset, or the path of a folder of pictures."
        )
    collected = [_Collected() for _ in network.inputs]
    ranges = input_ranges(network)
    count = 0
    for element in elements_of(dataset):
        batch = [array[: num_images - count] for array in _checked_batch(element, network)]
        for name, all_rows, rows in zip(network.inputs, collected, batch, strict=True):
            fed_range = ranges.get(name, PIXELS)
            is_scaled = rows.dtype == np.uint8 and fed_range != PIXELS
            for array in fed_batches(rows, fed_range.fed) if is_scaled else (rows,):
                all_rows.add(array)
        count += len(batch[0])
        if count >= num_images:
            break
    if not count:
        raise ValueError("dataset: received no images, expected 64 or more.")
    return tuple(all_rows.rows for all_rows in collected if all_rows.rows is not None)


def _pictures(path: pathlib.Path, num_images: int, network: Network) -> Iterator[np.ndarray]:
    """Batches of pictures of a folder, spread evenly over it, as a model with one input is fed."""
    if len(network.inputs) > 1:
        raise ValueError(
            f"dataset: received the folder {path} for a model with {len(network.inputs)} inputs, "
            "expected images for each of them; pass a list or a dictionary of arrays."
        )
    (name,) = network.inputs
    shape = network[name].shape
    sizes = tuple(size for size in shape if size is not None)
    if len(sizes) < len(shape):
        raise ValueError(
            f"dataset: received the folder {path} for a model of images of any size, expected one "
            f"of a fixed size, not {shape}; pass an array (n, rows, columns, channels)."
        )
    if not path.expanduser().is_dir():
        raise ValueError(f"{path}: not a folder, expected one of pictures.")
    images, _ = open_pictures(path, sizes).sample(num_images).images()
    return fed_batches(images, input_ranges(network).get(name, PIXELS).fed)


def fed_batches(
    pixels: np.ndarray, feed: Callable[[np.ndarray], np.ndarray], *, batch_size: int = BATCH_SIZE
) -> Iterator[np.ndarray]:
    """Feeds pixels to a model, a batch at a time."""
    starts = range(0, len(pixels), batch_size)
    return (feed(pixels[start : start + batch_size]) for start in starts)


def _checked_batch(element: Any, network: Network) -> Batch:
    """The images of one batch, for each input."""
    several = len(network.inputs) > 1
    # Batches are those of Keras: (images, labels), and a list or a dictionary of images.
    if isinstance(element, tuple) or (isinstance(element, list) and not several):
        element = element[0]
    is_named = isinstance(element, Mapping)
    images = network.in_order(element) if several or is_named else [element]
    arrays = [np.asarray(array) for array in images]
    if wrong := [str(array.dtype) for array in arrays if not holds_numbers(array)]:
        raise ValueError(
            f"dataset: received values of the type {first_ones(wrong)}, expected numbers; pass "
            "uint8 pixels, or float32 values."
        )
    for name, array in zip(network.inputs, arrays, strict=True):
        shape, where = network[name].shape, f" for {name}" if several else ""
        fits = array.ndim == len(shape) + 1 and all(
            size in (None, got) for size, got in zip(shape, array.shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(
                f"dataset: received a batch of shape {array.shape}{where}, expected (n, "
                f"{', '.join(str(size) for size in shape)}); batch and resize the images first."
            )
        ends = np.min(array, initial=0), np.max(array, initial=0)  # NaN where there is one
        if not np.all(np.isfinite(ends)):
            raise ValueError(
                f"dataset: received images with NaN or infinite values{where}, expected finite "
                "ones; check how they are read and scaled."
            )
    if len({len(array) for array in arrays}) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        raise ValueError(f"dataset: received {counts} images, expected as many for each input.")
    return tuple(arrays)


# -- in training ----------------------------------------------------------------------------------

# The smallest share of a picture's area in a cut, and the largest ratio of its sides. Nothing is
# mirrored: how the float model was trained is not known, and letters have a left and a right.
_SMALLEST_AREA, _WIDEST_ASPECT = 0.6, 4 / 3
_CHANNELS_OF_PICTURES = (1, 3)

# A sequence reads a picture of any size when it is asked for one; a picture that raises ValueError
# or OSError is passed over for the next.
TrainingImages = Sequence[np.ndarray] | np.ndarray
Feed = Callable[[np.ndarray], np.ndarray]  # Turns pixels into the values that a model is fed.


@dataclasses.dataclass(eq=False)
class TrainingBatches(keras.callbacks.Callback):
    """The training batches of one epoch, in an order and with cuts that its number decides."""

    images: TrainingImages
    labels: np.ndarray
    shape: tuple[int, ...]  # The shape of the images that the model takes.
    feed: Feed
    batch_size: int  # The number of images of a batch; those left over are dropped.
    seed: int  # The seed of the orders and of the cuts.

    def __post_init__(self) -> None:
        super().__init__()
        self.steps = len(self.images) // self.batch_size
        self.passed_over: set[int] = set()
        self.on_epoch_begin(0)
        self.dataset = _dataset(self._batch, self.steps, self.shape)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins an epoch, in an order of its own."""
        self._epoch = epoch
        self._order = np.random.default_rng((self.seed, epoch)).permutation(len(self.images))

    def _batch(self, step: np.int64) -> tuple[np.ndarray, np.ndarray]:
        places = self._order[step * self.batch_size :][: self.batch_size]
        images, labels = zip(*map(self._example, places), strict=True)
        return fed(np.stack(images), self.feed), np.stack(labels)

    def _example(self, place: np.int64) -> tuple[np.ndarray, np.int32]:
        """The image at a place, or the next one that can be read, and its label."""
        failure: Exception | None = None
        for number in itertools.chain(range(place, len(self.images)), range(place)):
            try:
                image = np.asarray(self.images[number])
            except (OSError, ValueError) as error:
                failure = failure or error
                self.passed_over.add(number)
                continue
            draw = np.random.default_rng((self.seed, self._epoch, int(place)))
            return cut(image, self.shape, draw), self.labels[number]
        raise ValueError(f"no training image can be read ({failure})")


def cut(image: np.ndarray, shape: tuple[int, ...], draw: np.random.Generator) -> np.ndarray:
    """A random part of a picture, resized to a shape; other values than pixels as they are."""
    if image.dtype != np.uint8 or len(shape) != 3 or shape[2] not in _CHANNELS_OF_PICTURES:
        return image
    height, width = image.shape[:2]
    area = draw.uniform(_SMALLEST_AREA, 1.0) * height * width
    aspect = shape[1] / shape[0] * _WIDEST_ASPECT ** draw.uniform(-1.0, 1.0)
    rows, columns = math.sqrt(area / aspect), math.sqrt(area * aspect)
    share = min(1.0, height / rows, width / columns)  # of a long picture there is less
    rows, columns = min(share * rows, height), min(share * columns, width)  # of rounding
    top, left = draw.uniform(0.0, height - rows), draw.uniform(0.0, width - columns)
    picture = Image.fromarray(image[..., 0] if shape[2] == 1 else image)
    box = (left, top, min(left + columns, width), min(top + rows, height))
    resized = picture.resize((shape[1], shape[0]), Image.Resampling.BILINEAR, box=box)
    return np.asarray(resized, np.uint8).reshape(shape)


def held_out_batches(
    images: np.ndarray,
    labels: np.ndarray | None,
    *,
    feed: Feed,
    teacher: Callable[[np.ndarray], tf.Tensor],
) -> tf.data.Dataset:
    """Batches of held-out images in order; without labels, their class is that of the teacher."""
    spans = [slice(start, start + BATCH_SIZE) for start in range(0, len(images), BATCH_SIZE)]
    if labels is None:
        answers = [teacher(fed(images[span], feed)).numpy() for span in spans]
        labels = np.argmax(np.concatenate(answers), axis=-1)
    classes = labels.astype(np.int32)
    return _dataset(
        lambda number: (fed(images[spans[number]], feed), classes[spans[number]]),
        len(spans),
        images.shape[1:],
    )


def fed(batch: np.ndarray, feed: Feed) -> np.ndarray:
    """Pixels as a model is fed them; other numbers as they are."""
    return np.asarray(feed(batch) if batch.dtype == np.uint8 else batch, np.float32)


def _dataset(
    batch: Callable[[np.int64], tuple[np.ndarray, np.ndarray]], count: int, shape: tuple[int, ...]
) -> tf.data.Dataset:
    """Batches that a function gives, of float32 images of a shape and int32 labels."""

    def read(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(batch, [number], (tf.float32, tf.int32))
        return tf.ensure_shape(images, (None, *shape)), tf.ensure_shape(labels, (None,))

    return tf.data.Dataset.range(count).map(read, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
