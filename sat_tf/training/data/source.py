"""A data set as training needs it: a source of batches, or all of its images in memory."""

import abc
import dataclasses
import os
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sat_tf.arguments import is_integer
from sat_tf.exact.tflite.preprocessing import COVERING, Preprocessing
from sat_tf.messages import ProblemsError, ReadingError
from sat_tf.validation import Count, Seed, find_problems, up_to

_MOST_CLASSES = 1_000_000  # The models of `sat_tf.training.models` have no more.

# The values that data sets take.
ImageSize = Annotated[int, up_to(4096, "pass 224")]  # Beyond every published model.
NumClasses = Annotated[int, up_to(_MOST_CLASSES, "count the classes")]
# TensorFlow reserves the places of a shuffle buffer at once.
BufferSize = Annotated[int, up_to(10_000_000, "pass 10000")]
FirstLabel = Annotated[
    int,
    Field(
        ge=-_MOST_CLASSES,
        le=_MOST_CLASSES,
        description=f"an integer from {-_MOST_CLASSES:,} to {_MOST_CLASSES:,}; pass 0 or 1",
    ),
]
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

        >>> Shard(worker=0, workers=2, replicas=1).pieces(33)
        [(0, 17)]
        >>> Shard(worker=1, workers=2, replicas=2).pieces(10)
        [(6, 2), (8, 2)]
        """
        count = self.workers * self.replicas
        size, longer = divmod(batch_size, count)
        numbers = range(self.worker * self.replicas, (self.worker + 1) * self.replicas)
        return [
            (number * size + min(number, longer), size + (number < longer)) for number in numbers
        ]

    def span(self, batch_size: int) -> tuple[int, int]:
        """First image and number of images of this process in a global batch."""
        pieces = self.pieces(batch_size)
        return pieces[0][0], sum(size for _, size in pieces)


# The label of images that only pad the last held-out batch; losses and metrics ignore them.
NO_LABEL = -1


class Order(NamedTuple):
    """The global batches that are asked for, and the place of this process in each of them."""

    batch_size: int  # Images of a global batch.
    shard: Shard  # Of this process.
    seed: int = 0  # Of the order and the distortions.
    first_epoch: int = 0  # Where to start.

    @property
    def span(self) -> tuple[int, int]:
        """First image and number of images of this process in a global batch."""
        return self.shard.span(self.batch_size)

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

    name: str  # Of the set.
    image_size: int  # Height and width of the images that a model sees, in pixels.
    num_classes: int  # Number of classes.
    num_train: int  # Number of training images.
    num_test: int  # Number of held-out images.
    # Names of the classes, by label; None where they are unknown.
    class_names: tuple[str, ...] | None = None
    # How a picture becomes an image like the held-out ones.
    preprocessing: Preprocessing = COVERING
    decoder: str = ""  # What makes those of files, in words; "" of a set that is none of files.
    notes: tuple[str, ...] = ()  # What to tell those who train on it.

    @property
    def reading_error(self) -> ReadingError | None:
        """The first error of reading, for which TensorFlow has raised its own."""
        return None

    def training_batches(
        self, *, batch_size: int, seed: int, first_epoch: int = 0, shard: Shard | None = None
    ) -> Any:
        """The endless training batches from a given epoch on.

        A batch depends on the seed, its epoch and its step alone: a source that starts at epoch 3
        continues exactly like one that has reached it. Every epoch has another order and other
        distortions, and num_train // batch_size steps; the remainder is dropped. The batch size is
        that of all replicas of all processes.

        They are a `tf.data.Dataset` of images (piece, image_size, image_size, 3), uint8, and labels
        (piece,), int32: one element for each replica of this process, in turns, cut by
        `Shard.pieces`. Shapes are static.
        """
        order = Order(batch_size, shard or Shard(), seed, first_epoch)
        return self._training_batches(self._checked(order, self.num_train))

    def held_out_batches(self, *, batch_size: int = 256, shard: Shard | None = None) -> Any:
        """Every held-out image once, in order, as uint8 images and labels like the training's.

        The last batch is padded with black images whose label is `NO_LABEL`, so that all batches
        and all pieces have static shapes, and every process has the same number of them.
        """
        return self._held_out_batches(self._checked(Order(batch_size, shard or Shard()), None))

    def _checked(self, order: Order, most: int | None) -> Order:
        """The order, unless some of its values are invalid."""
        pieces = order.shard.workers * order.shard.replicas
        expected = f"an integer of at least {pieces}, an image for each replica of each process"
        size = Annotated[int, Field(ge=pieces, description=f"{expected}; raise it")]
        own = {"batch_size": (order.batch_size, size)}
        problems = find_problems(
            **own, seed=(order.seed, Seed), first_epoch=(order.first_epoch, Count)
        )
        if most is not None and not find_problems(**own):
            expected = f"at most {most}, the number of training images; lower it"
            fitting = Annotated[int, Field(le=most, description=expected)]
            problems += find_problems(batch_size=(order.batch_size, fitting))
        if problems:
            raise ProblemsError(self.name, problems)
        return order

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
    def held_out_sample(self, most: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """At most `most` held-out images, spread evenly over the set, and their labels."""


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

    name: str  # Of the set, in tables and file names.
    train_images: npt.NDArray[np.uint8]  # (train, image_size, image_size, 3), uint8.
    train_labels: npt.NDArray[np.int32]  # (train,), int32, in [0, num_classes).
    test_images: npt.NDArray[np.uint8]  # (test, image_size, image_size, 3), uint8.
    test_labels: npt.NDArray[np.int32]  # (test,), int32, in [0, num_classes).
    num_classes: int  # Number of classes, at least 1. A class may lack images in either split.
    # Names of the classes, by label; None where they have none.
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        problems = []
        if not (isinstance(self.name, str) and self.name):
            problems.append(f"name: received {self.name!r}; expected a word; name the set")
        if not is_integer(self.num_classes, lowest=1):
            problems.append(
                f"num_classes: received {self.num_classes!r}; expected a positive integer; "
                "count the classes"
            )
        elif self.class_names is not None and len(self.class_names) != self.num_classes:
            problems.append(
                f"class_names: received {len(self.class_names)}; expected {self.num_classes}, one "
                "for each class; leave them out where they are unknown"
            )
        for split in ("train", "test"):
            problems += self._problems(split)
        if not problems and self.train_images.shape[1:] != self.test_images.shape[1:]:
            problems.append(
                f"test_images: received images {self.test_images.shape[1:]}; expected "
                f"{self.train_images.shape[1:]} as in train_images; resize one of them"
            )
        if problems:
            raise ProblemsError("ImageSet", (f"{problem}." for problem in problems))

    @property
    def image_size(self) -> int:
        """Height and width of every image in pixels."""
        return int(self.train_images.shape[1])

    def _problems(self, split: str) -> Iterator[str]:
        """Says what is wrong with the images and labels of a split."""
        images, labels = getattr(self, f"{split}_images"), getattr(self, f"{split}_labels")
        (image_shape, images_are), (shape, labels_are) = (
            (array.shape, str(array.dtype))
            if isinstance(array, np.ndarray)
            else (None, type(array).__name__)
            for array in (images, labels)
        )
        if images_are != "uint8":
            yield (
                f"{split}_images: received {images_are}; expected a uint8 array; "
                "scale the values to 0..255, round and cast them"
            )
        if image_shape is not None and not (
            len(image_shape) == 4
            and min(image_shape) > 0
            and image_shape[1] == image_shape[2]
            and image_shape[3] == 3
        ):
            yield (
                f"{split}_images: received shape {image_shape}; expected (images, size, size, 3), "
                "all of them above 0; crop to squares and repeat a single channel three times"
            )
        if labels_are != "int32":
            yield (
                f"{split}_labels: received {labels_are}; expected an int32 array; "
                "cast class numbers with .astype('int32')"
            )
        if shape is not None and (len(shape) != 1 or (image_shape and shape != image_shape[:1])):
            count = image_shape[0] if image_shape else "images"
            yield (
                f"{split}_labels: received shape {shape}; expected ({count},); "
                "give one class number for each image"
            )
        # Labels of another type have been reported above, and may not be comparable with a number.
        if labels_are == "int32" and labels.size and is_integer(self.num_classes, lowest=1):
            smallest, largest = int(labels.min()), int(labels.max())
            if smallest < 0 or largest >= self.num_classes:
                yield (
                    f"{split}_labels: received labels {smallest} to {largest}; expected 0 to "
                    f"{int(self.num_classes) - 1}; number the classes from 0 or raise num_classes"
                )
