"""The images of a training, cut at random, and those that it is measured by, as batches."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from PIL import Image

AT_ONCE = 64  # Images that are measured by.
# A cut has such a share of a picture's area at least, and such a ratio of sides at most. Nothing is
# mirrored: how the float model was trained is not known, and letters have a left and a right.
_SMALLEST_AREA, _WIDEST_ASPECT = 0.6, 4 / 3
_CHANNELS_OF_PICTURES = (1, 3)

# A sequence reads a picture of any size when it is asked for one; one that raises ValueError or
# OSError is passed over for the next.
Images = Sequence[np.ndarray] | np.ndarray
Feed = Callable[[np.ndarray], np.ndarray]  # Makes of pixels what a model is fed.


@dataclasses.dataclass(eq=False)
class TrainingBatches:
    """The training batches of one epoch, in an order and with cuts that its number decides."""

    images: Images
    labels: np.ndarray
    shape: tuple[int, ...]  # Of the images that the model takes.
    feed: Feed
    batch_size: int  # What is left over is dropped.
    seed: int  # Of all that is drawn.

    def __post_init__(self) -> None:
        self.steps = len(self.images) // self.batch_size
        self.passed_over: set[int] = set()
        self.begin(0)
        self.dataset = _dataset(self._batch, self.steps, self.shape)

    def begin(self, epoch: int) -> None:
        """Makes what is read next an epoch."""
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
        raise ValueError(f"no image of the training can be read ({failure})")


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
    spans = [slice(start, start + AT_ONCE) for start in range(0, len(images), AT_ONCE)]
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
