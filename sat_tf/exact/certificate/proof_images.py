"""The images of a verification: their origin, checks, random ones; and the ranges of inputs."""

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sat_tf.exact.certificate.output_comparison import as_array
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.tflite.tensors import CODE_TYPES, Image, Pixels, arrays_of


@dataclasses.dataclass(frozen=True)
class ImagesFrom:
    """The origin of the images of a verification."""

    description: str  # The origin in words.
    # The seed with which `random_images` draws them; None where they are not random.
    seed: int | None = None
    # The paths of the pictures that were taken from a folder, in order, with their SHA-256.
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    # The number asked for; None where it does not decide which are taken, or is not known.
    asked: int | None = None
    decoder: str = ""  # The decoder of the pictures, in words; "" for other images.

    @classmethod
    def held_out(cls, data: str, asked: int, decoder: str = "") -> "ImagesFrom":
        """Returns the origin of held-out images that are spread evenly over a data set."""
        return cls(f"held-out images of {data}", asked=asked, decoder=decoder)


GIVEN = ImagesFrom("given by the caller")
_MOST_RANDOM_BYTES = 2**32


def random_images(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Returns independently drawn pixels: noise reaches more codes than pictures do."""
    # NumPy promises never to change the streams of RandomState.
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
    """Returns why images do not fit an input; `kept` inputs go to layers left float as they are."""
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
            **{
                codes: f"real values or the {codes} codes of them; {_AS_KERAS_TAKES_THEM}"
                for codes in CODE_TYPES
            },
        }.get(kind, f"real values; {_AS_KERAS_TAKES_THEM}")
        problems.append(f"received {images.dtype}, expected {expected}.")
    elif not is_finite:
        problems.append("received values that are NaN or infinite, expected finite ones.")
    if shape is not None and (images.ndim != len(shape) + 1 or images.shape[1:] != shape):
        sizes = ", ".join(map(str, shape))
        problems.append(
            f"received shape {images.shape}, expected (n, {sizes}); resize them, and add "
            "the batch dimension to a single one."
        )
    elif not images.size:
        problems.append("received none, expected at least one.")
    return [f"{name}: {problem}" for problem in problems]


def images_hash(images: Pixels) -> str:
    """Returns the SHA-256 of all pixels, with several inputs one after the other."""
    digest = hashlib.sha256()
    for array in arrays_of(images):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def checked_images(images: Any, inputs: Sequence[Image]) -> tuple[Pixels, list[str]]:
    """Returns images as an array, or one for each of several inputs, and their problems."""
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
        name, kept = f"images[{index}]", image.is_kept
        array, wrong = as_array(images[index], name)
        problems += wrong or image_problems(array, image.shape, image.type, kept=kept, name=name)
        arrays.append(array)
    if not problems and len({len(array) for array in arrays}) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        problems.append(f"images: received {counts} of them, expected as many for each input.")
    return tuple(arrays), problems


def taken_by(graph: Graph, images: Pixels) -> Pixels:
    """Returns the values of the inputs as the file of a graph takes them."""
    pairs = zip(graph.images, arrays_of(images), strict=True)
    arrays = [image.taken(array) for image, array in pairs]
    return tuple(arrays) if isinstance(images, tuple) else arrays[0]


# -- the ranges of image inputs --------------------------------------------------------------------

# The standard errors, and images, by which accuracy is clearly above that of one class for all.
_CLEAR_ERRORS, _FEWEST_IMAGES = 3.0, 8


@dataclasses.dataclass(frozen=True)
class CheckedRange:
    """The range of an image input."""

    input: str  # The input's name.
    range: str  # The real values of the pixels 0 and 255.
    # The evidence that the model was trained with this range, in words; "" without any.
    checked_by: str = ""
    problem: str = ""  # Why the range is certainly wrong; "" where it may be right.


def checked_by_accuracy(
    ranges: Sequence[CheckedRange], labels: Sequence[np.ndarray | None], top1: Iterable[float]
) -> list[CheckedRange]:
    """Returns the ranges; a single one is checked by accuracy clearly above that of guessing."""
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
