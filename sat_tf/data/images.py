"""A labelled image data set held in memory."""

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from sat_tf.arguments import is_integer


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ImageSet:
    """Square colour images with class labels, split into training and held-out images.

    Attributes:
        name: of the set, in tables and file names.
        train_images: (train, image_size, image_size, 3), uint8.
        train_labels: (train,), int32, in [0, num_classes).
        test_images: (test, image_size, image_size, 3), uint8.
        test_labels: (test,), int32, in [0, num_classes).
        num_classes: number of classes, at least 1. A class may lack images in either split.
        class_names: names of the classes, by label; None where they have none.

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

    name: str
    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int32]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int32]
    num_classes: int
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
        for part in ("train", "test"):
            problems += self._image_problems(part)
            problems += self._label_problems(part)
        if not problems and self.train_images.shape[1:] != self.test_images.shape[1:]:
            problems.append(
                f"test_images: received images {self.test_images.shape[1:]}; expected "
                f"{self.train_images.shape[1:]} as in train_images; resize one of them"
            )
        if problems:
            lines = [f"  {problem}." for problem in problems]
            raise ValueError("\n".join(["ImageSet does not accept these arguments:", *lines]))

    @property
    def image_size(self) -> int:
        """Height and width of every image in pixels."""
        return int(self.train_images.shape[1])

    def _image_problems(self, part: str) -> list[str]:
        images = getattr(self, f"{part}_images")
        shape, dtype = _shape(images), _dtype(images)
        problems = []
        if dtype != "uint8":
            problems.append(
                f"{part}_images: received {dtype}; expected a uint8 array; "
                "scale the values to 0..255, round and cast them"
            )
        if shape is not None and not (
            len(shape) == 4 and min(shape) > 0 and shape[1] == shape[2] and shape[3] == 3
        ):
            problems.append(
                f"{part}_images: received shape {shape}; expected (images, size, size, 3), all of "
                "them above 0; crop to squares and repeat a single channel three times"
            )
        return problems

    def _label_problems(self, part: str) -> list[str]:
        images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
        shape, dtype, image_shape = _shape(labels), _dtype(labels), _shape(images)
        problems = []
        if dtype != "int32":
            problems.append(
                f"{part}_labels: received {dtype}; expected an int32 array; "
                "cast class numbers with .astype('int32')"
            )
        if shape is not None and (len(shape) != 1 or (image_shape and shape != image_shape[:1])):
            count = image_shape[0] if image_shape else "images"
            problems.append(
                f"{part}_labels: received shape {shape}; expected ({count},); "
                "give one class number for each image"
            )
        # Labels of another type have been reported above, and may not be comparable with a number.
        if dtype == "int32" and labels.size and is_integer(self.num_classes, lowest=1):
            smallest, largest = int(labels.min()), int(labels.max())
            if smallest < 0 or largest >= self.num_classes:
                problems.append(
                    f"{part}_labels: received labels {smallest} to {largest}; expected 0 to "
                    f"{int(self.num_classes) - 1}; number the classes from 0 or raise num_classes"
                )
        return problems


def _shape(array: Any) -> tuple[int, ...] | None:
    return array.shape if isinstance(array, np.ndarray) else None


def _dtype(array: Any) -> str:
    return str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
