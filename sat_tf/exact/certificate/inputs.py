"""The images that a file is run on: their origin, checks, random ones; and the ranges of inputs."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sat_tf.exact.certificate.outputs import as_array
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.tflite.tensors import Image, Pixels, arrays_of


@dataclasses.dataclass(frozen=True)
class ImagesFrom:
    """The origin of the images of a verification."""

    description: str  # In words.
    # With which `random_images` draws them; None where they are not random.
    seed: int | None = None
    # Of a folder of pictures, the paths of those that were taken, in order, with their SHA-256.
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    # How many were asked for; None where it does not decide which are taken, or is not known.
    asked: int | None = None
    decoder: str = ""  # What made pixels of pictures, in words; "" of other images.

    @classmethod
    def held_out(cls, data: str, asked: int, decoder: str = "") -> "ImagesFrom":
        """The held-out images of a data set, spread evenly over it."""
        return cls(f"held-out images of {data}", asked=asked, decoder=decoder)


GIVEN = ImagesFrom("given by the caller")
_MOST_RANDOM_BYTES = 2**32


def random_images(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Pixels that are drawn independently: noise reaches more codes than pictures do."""
    # RandomState, because its streams are the ones NumPy promises never to change.
    random = np.random.RandomState(seed)
    if count * math.prod(shape) > _MOST_RANDOM_BYTES:
        raise ValueError(
            f"received {count:,} random images, expected fewer, which fit into memory; draw fewer."
        )
    images = np.empty((count, *shape), np.uint8)
    for index in range(count):
        images[index] = random.randint(0, 256, shape)
    return images


_AS_KERAS_TAKES_THEM = "pass the arrays that the Keras model takes, as float32"


def image_problems(
    images: np.ndarray,
    shape: tuple[int, ...] | None,
    kind: str = "uint8",
    *,
    kept: bool = False,
    name: str = "images",
) -> list[str]:
    """Why these do not fit an input: one that is `kept` as it is, for layers left float, or not."""
    problems, is_real = [], images.dtype.kind == "f"
    is_finite = not is_real or bool(np.all(np.isfinite(images)))
    if kept and (images.dtype.kind not in "biuf" or not is_finite):
        problems.append(f"received {images.dtype} values, expected finite ones of {kind}.")
    elif kept:
        with np.errstate(invalid="ignore"):
            is_held = np.dtype(kind).kind == "f" or np.array_equal(images.astype(kind), images)
        if not is_held:
            problems.append(
                f"received {images.dtype} values that {kind} does not hold, expected the ones that "
                f"the Keras model takes, such as ids; pass them as {kind}."
            )
    elif images.dtype != kind and (kind == "uint8" or not is_real):
        expected = {
            "uint8": "uint8 pixels from 0 to 255; pass the images as they were before any scaling",
            "int8": f"real values or the int8 codes of them; {_AS_KERAS_TAKES_THEM}",
        }.get(kind, f"real values; {_AS_KERAS_TAKES_THEM}")
        problems.append(f"received {images.dtype}, expected {expected}.")
    elif not is_finite:
        problems.append("received values that are NaN or infinite, expected finite ones.")
    if shape is not None and (images.ndim != len(shape) + 1 or images.shape[1:] != shape):
        sizes = ", ".join(str(size) for size in shape)
        problems.append(
            f"received shape {images.shape}, expected (n, {sizes}); resize them, and add "
            "the batch dimension to a single one."
        )
    elif not images.size:
        problems.append("received none, expected at least one.")
    return [f"{name}: {problem}" for problem in problems]


def images_hash(images: Pixels) -> str:
    """SHA-256 of all pixels; of several inputs, one after the other."""
    digest = hashlib.sha256()
    for array in arrays_of(images):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def checked_images(images: Any, inputs: Sequence[Image]) -> tuple[Pixels, list[str]]:
    """Images as an array, of several inputs one for each, and what is wrong with them."""
    if len(inputs) == 1:
        array, problems = as_array(images, "images")
        (only,) = inputs
        return array, problems or image_problems(array, only.shape, only.type, kept=only.is_kept)
    if not isinstance(images, list | tuple) or len(images) != len(inputs):
        count = len(images) if isinstance(images, list | tuple) else 1
        return np.empty(0), [
            f"images: received {count} array{'s' if count != 1 else ''} for {len(inputs)} inputs, "
            "expected a list with one for each, in the order of the model's inputs."
        ]
    arrays, problems = [], []
    for index, image in enumerate(inputs):
        name = f"images[{index}]"
        array, of_input = as_array(images[index], name)
        problems += of_input or image_problems(
            array, image.shape, image.type, kept=image.is_kept, name=name
        )
        arrays.append(array)
    if not problems and len({len(array) for array in arrays}) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        problems.append(f"images: received {counts} of them, expected as many for each input.")
    return tuple(arrays), problems


def taken_by(graph: Graph, images: Pixels) -> Pixels:
    """Values of the inputs as the file of a graph takes them."""
    arrays = [
        image.taken(array) for image, array in zip(graph.images, arrays_of(images), strict=True)
    ]
    return tuple(arrays) if isinstance(images, tuple) else arrays[0]


# -- the ranges of image inputs --------------------------------------------------------------------

# Accuracy is clearly above that of one class for all, by so many standard errors and images.
_CLEAR_ERRORS, _FEWEST_IMAGES = 3.0, 8


@dataclasses.dataclass(frozen=True)
class CheckedRange:
    """The range of an image input."""

    input: str  # Its name.
    range: str  # The real values of the pixels 0 and 255.
    # What tells that the model was trained with it, in words; "" where nothing does.
    checked_by: str = ""
    problem: str = ""  # Why it is certainly another one; "" where it may be right.


def checked_by_accuracy(
    ranges: Sequence[CheckedRange], labels: Sequence[np.ndarray | None], top1: Sequence[float]
) -> list[CheckedRange]:
    """The ranges, of which an only one is checked by accuracy clearly above that of guessing."""
    labelled = [classes[classes >= 0] for classes in labels if classes is not None]
    if len(ranges) != 1 or ranges[0].checked_by or ranges[0].problem:
        return list(ranges)
    for of_output, share in zip(labelled, top1, strict=True):
        count = max(of_output.size, 1)
        guessed = np.max(np.bincount(of_output.reshape(-1).astype(np.int64)), initial=0) / count
        margin = max(_FEWEST_IMAGES / count, _CLEAR_ERRORS * np.sqrt(guessed / count))
        if share > guessed + margin:
            how = f"accuracy, {100 * share:.1f} % where one class for all has {100 * guessed:.1f} %"
            return [dataclasses.replace(ranges[0], checked_by=how)]
    return list(ranges)
