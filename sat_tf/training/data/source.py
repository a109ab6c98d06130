"""A data set as training needs it: a source of batches, or all images in memory or in a cache."""

import abc
import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sat_tf.arguments import is_integer
from sat_tf.exact.tflite.preprocessing import COVERING, Preprocessing
from sat_tf.files import renamed_when_done
from sat_tf.messages import ProblemsError, ReadingError, kind_of
from sat_tf.messages.validation import Count, Seed, check, up_to

# The values that data sets take; `sat_tf.training.models` has the same bounds.
ImageSize = Annotated[int, up_to(4096, "pass 224")]
NumClasses = Annotated[int, up_to(1_000_000, "count the classes")]
# TensorFlow reserves the places of a shuffle buffer at once.
BufferSize = Annotated[int, up_to(10_000_000, "pass 10000")]
FirstLabel = Annotated[int, Field(ge=-(10**6), le=10**6, description="an integer, mostly 0 or 1")]
Area = Annotated[float, Field(gt=0, le=1, description="a number above 0, to 1; pass 0.08")]
Feature = Annotated[str, Field(description="the name of a feature")]
Folder = Annotated[str | os.PathLike[str], Field(description="the path of a folder")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The place of one process among those that train together.

    Every global batch is cut into one piece for each replica of each process, in order; if it
    cannot be cut evenly, the first pieces are one image longer.
    """

    worker: int = 0  # Number of this process, from 0.
    workers: int = 1  # How many processes there are.
    replicas: int = 1  # How many devices each of them has.

    def pieces(self, batch_size: int) -> list[tuple[int, int]]:
        """First image and number of images of each piece of this process, replica by replica.

        >>> Shard(worker=1, workers=2, replicas=2).pieces(10)
        [(6, 2), (8, 2)]
        """
        count = self.workers * self.replicas
        size, longer = divmod(batch_size, count)
        numbers = range(self.worker * self.replicas, (self.worker + 1) * self.replicas)
        return [
            (number * size + min(number, longer), size + (number < longer)) for number in numbers
        ]


# The label of images that only pad the last held-out batch; losses and metrics ignore them.
NO_LABEL = -1


class Order(NamedTuple):
    """The global batches that are asked for, and the place of this process in each of them."""

    batch_size: int  # Images of a global batch.
    shard: Shard  # The place of this process.
    seed: int = 0  # The seed of the order and the distortions.
    first_epoch: int = 0  # The epoch to start at.

    @property
    def span(self) -> tuple[int, int]:
        """First image and number of images of this process in a global batch."""
        pieces = self.shard.pieces(self.batch_size)
        return pieces[0][0], sum(size for _, size in pieces)

    def in_pieces(self, spans: Any) -> Any:
        """Cuts the images of this process into one element for each of its replicas.

        Shapes are static; if the replicas have different numbers of images, all but the first axis.
        """
        sizes = [size for _, size in self.shard.pieces(self.batch_size)]
        if len(sizes) == 1:
            return spans
        return spans.rebatch(sizes[0] if len(set(sizes)) == 1 else sizes, drop_remainder=True)


class ImageSource(abc.ABC):
    """An image data set that gives batches for training, and held-out ones to measure with.

    Images are square colour images, uint8 from the file to the device; labels are int32.
    """

    name: str  # The set's name.
    image_size: int  # Height and width of the images that a model sees, in pixels.
    num_classes: int  # Number of classes.
    num_train: int  # Number of training images.
    num_test: int  # Number of held-out images.
    # Names of the classes, by label; None where they are unknown.
    class_names: tuple[str, ...] | None = None
    # How a picture becomes an image like the held-out ones.
    preprocessing: Preprocessing = COVERING
    decoder: str = ""  # The decoder of picture files, in words; "" for a set without files.
    notes: tuple[str, ...] = ()  # Remarks for those who train on it.
    # The first error of reading, for which TensorFlow has raised its own.
    reading_error: ReadingError | None = None

    def training_batches(
        self, *, batch_size: int, seed: int, first_epoch: int = 0, shard: Shard | None = None
    ) -> Any:
        """The endless training batches from a given epoch on.

        A batch depends on the seed, its epoch and its step alone: a source that starts at epoch 3
        continues exactly like one that has reached it. Every epoch has another order and other
        distortions, and num_train // batch_size steps; the remainder is dropped. The batch size is
        that of all replicas of all processes.

        The result is a `tf.data.Dataset` of images (piece, image_size, image_size, 3), uint8, and
        labels (piece,), int32: one element for each replica of this process, in turns, cut by
        `Shard.pieces`. Shapes are static.
        """
        order = Order(batch_size, shard or Shard(), seed, first_epoch)
        self._check(order, self.num_train)
        return self._training_batches(order)

    def held_out_batches(self, *, batch_size: int = 256, shard: Shard | None = None) -> Any:
        """Every held-out image once, in order, as uint8 images and labels like the training's.

        The last batch is padded with black images whose label is `NO_LABEL`, so that all batches
        and all pieces have static shapes, and every process has the same number of them.
        """
        order = Order(batch_size, shard or Shard())
        self._check(order, None)
        return self._held_out_batches(order)

    def _check(self, order: Order, num_train: int | None) -> None:
        pieces = order.shard.workers * order.shard.replicas
        expected = f"an integer of at least {pieces}, an image for each replica of each process"
        if num_train is not None:
            expected += f", and at most {num_train}, the number of training images"
        size = Annotated[int, Field(ge=pieces, le=num_train, description=expected)]
        check(
            self.name,
            batch_size=(order.batch_size, size),
            seed=(order.seed, Seed),
            first_epoch=(order.first_epoch, Count),
        )

    @abc.abstractmethod
    def _training_batches(self, order: Order) -> Any:
        """See `training_batches`."""

    @abc.abstractmethod
    def _held_out_batches(self, order: Order) -> Any:
        """See `held_out_batches`."""

    @abc.abstractmethod
    def training_sample(self, count: int, *, seed: int) -> npt.NDArray[np.uint8]:
        """`count` training images, drawn at random, prepared like the held-out ones."""

    @abc.abstractmethod
    def held_out_sample(self, limit: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """At most `limit` held-out images, spread evenly over the set, and their labels."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """Square colour images with class labels, split into training and held-out images.

    Raises:
        ValueError: the arrays do not fit this description or each other; lists everything.

    Example:
        >>> images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4, dtype=np.int32)
        >>> ImageSet(
        ...     name="black", train_images=images[:3], train_labels=labels[:3],
        ...     test_images=images[3:], test_labels=labels[3:], num_classes=4,
        ... ).image_size
        8
    """

    name: str  # The set's name, in tables and file names.
    train_images: npt.NDArray[np.uint8]  # (train, image_size, image_size, 3), uint8.
    train_labels: npt.NDArray[np.int32]  # (train,), int32, in [0, num_classes).
    test_images: npt.NDArray[np.uint8]  # (test, image_size, image_size, 3), uint8.
    test_labels: npt.NDArray[np.int32]  # (test,), int32, in [0, num_classes).
    num_classes: int  # Number of classes, at least 1. A class may lack images in either split.
    # Names of the classes, by label; None where they have none.
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        problems = [problem for split in ("train", "test") for problem in self._problems(split)]
        if not (isinstance(self.name, str) and self.name):
            problems.append(f"name: received {self.name!r}, expected a word.")
        if not is_integer(self.num_classes, lowest=1):
            problems.append(f"num_classes: received {self.num_classes!r}, expected 1 or more.")
        elif self.class_names is not None and len(self.class_names) != self.num_classes:
            problems.append(
                f"class_names: received {len(self.class_names)}, expected {self.num_classes}, one "
                "for each class; leave them out where they are unknown."
            )
        if not problems and self.train_images.shape[1:] != self.test_images.shape[1:]:
            problems.append(
                f"test_images: received images {self.test_images.shape[1:]}, expected "
                f"{self.train_images.shape[1:]} as in train_images; resize one of them."
            )
        if problems:
            raise ProblemsError("ImageSet", problems)

    @property
    def image_size(self) -> int:
        """Height and width of every image in pixels."""
        return int(self.train_images.shape[1])

    def _problems(self, split: str) -> Iterator[str]:
        """Yields the problems of the images and labels of a split."""
        images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
        shape, labels_shape = (tuple(getattr(a, "shape", ())) for a in (images, labels))
        received, labels_received = (
            f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else kind_of(array)
            for array in (images, labels)
        )
        size = shape[1] if len(shape) == 4 else 0
        if not (received.startswith("uint8 ") and size and shape[2:] == (size, 3) and len(images)):
            yield (
                f"{split}_images: received {received}, expected uint8 (images, size, size, 3); "
                "crop to squares, scale the values to 0..255, round and cast them."
            )
        if not (labels_received.startswith("int32 ") and labels_shape == shape[:1]):
            yield (
                f"{split}_labels: received {labels_received}, expected int32 {shape[:1]}, a class "
                "number for each image; cast them with .astype('int32')."
            )
        elif is_integer(self.num_classes, lowest=1) and np.any(
            (labels < 0) | (labels >= self.num_classes)
        ):
            yield (
                f"{split}_labels: received labels {labels.min()} to {labels.max()}, expected 0 to "
                f"{self.num_classes - 1}; number the classes from 0 or raise num_classes."
            )


_CACHE_VARIABLE = "SAT_TF_CACHE"

Arrays = dict[str, npt.NDArray[Any]]


def cache_folder(folder: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The folder that cached files go to; it need not exist."""
    path = folder or os.environ.get(_CACHE_VARIABLE) or "~/.cache/sat_tf"
    return pathlib.Path(path).expanduser()


def load_or_make(
    path: pathlib.Path, make: Callable[[], Arrays], *, names: Collection[str]
) -> Arrays:
    """Reads arrays from a file; creates them, and writes them where that is possible.

    The name of the file has to change with everything that the arrays depend on.
    """
    if path.is_file():
        try:
            # The archive's checksums turn any changed byte of an array into an error here.
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in names}
        except Exception as error:  # A damaged archive raises from many places, with many types.
            warnings.warn(
                f"cached file {path}: received a damaged file ({type(error).__name__}: {error}); "
                "expected arrays; it is created again",
                stacklevel=2,
            )
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with renamed_when_done(path) as temporary, temporary.open("xb") as file:
            # mypy takes every keyword for the only option of savez.
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(
            f"cached file {path}: could not be written ({error}); the data is complete, but the "
            f"next run creates it again; pass a writable cache_dir or set {_CACHE_VARIABLE}",
            stacklevel=2,
        )
    return arrays
