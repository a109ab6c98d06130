"""Images and labels to run a file on: checks, random images, and batches."""

import hashlib
import math
from typing import Any

import numpy as np

from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.certificate.outputs import as_array
from sat_tf.export.operations.graph import Graph
from sat_tf.export.tflite.images import Pixels, arrays_of

GIVEN = ImagesFrom("given by the caller")
_MOST_RANDOM_BYTES = 2**32


def random_images(shape: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Pixels that are drawn independently: noise reaches more codes than pictures do."""
    # RandomState, because its streams are the ones NumPy promises never to change.
    random = np.random.RandomState(seed)
    problem = ValueError(
        f"received {count:,} random images, expected fewer, which fit into memory; draw fewer."
    )
    if count * math.prod(shape) > _MOST_RANDOM_BYTES:
        raise problem
    try:
        images = np.empty((count, *shape), np.uint8)
    except (MemoryError, ValueError) as error:
        raise problem from error
    for index in range(count):
        images[index] = random.randint(0, 256, shape)
    return images


def image_problems(
    images: np.ndarray,
    shape: tuple[int, ...] | None,
    kind: str = "uint8",
    *,
    kept: bool = False,
    name: str = "images",
) -> list[str]:
    """Why these do not fit an input: one that is `kept` as it is, for layers left float, or not."""
    problems, real = [], np.issubdtype(images.dtype, np.floating)
    if kept and (images.dtype.kind not in "biuf" or not np.all(np.isfinite(images))):
        problems.append(f"received {images.dtype} values, expected finite ones of {kind}.")
    elif kept:
        with np.errstate(invalid="ignore"):
            is_held = np.dtype(kind).kind == "f" or np.array_equal(images.astype(kind), images)
        if not is_held:
            problems.append(
                f"received {images.dtype} values that {kind} does not hold, expected the ones that "
                f"the Keras model takes, such as ids; pass them as {kind}."
            )
    elif kind == "uint8" and images.dtype != np.uint8:
        problems.append(
            f"received {images.dtype}, expected uint8 pixels from 0 to 255; pass the images "
            "as they were before any scaling."
        )
    elif kind != "uint8" and not real and not (kind == "int8" and images.dtype == np.int8):
        codes = " or the int8 codes of them" if kind == "int8" else ""
        problems.append(
            f"received {images.dtype}, expected real values{codes}; pass the arrays that "
            "the Keras model takes, as float32."
        )
    elif kind != "uint8" and real and not np.all(np.isfinite(images)):
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


def checked_images(
    images: Any, shapes: list[tuple[int, ...]], kinds: list[str], kept: list[bool]
) -> tuple[Pixels, list[str]]:
    """Images as an array, of several inputs one for each, and what is wrong with them."""
    if len(shapes) == 1:
        array, problems = as_array(images, "images")
        return array, problems or image_problems(array, shapes[0], kinds[0], kept=kept[0])
    if not isinstance(images, list | tuple) or len(images) != len(shapes):
        count = len(images) if isinstance(images, list | tuple) else 1
        return np.empty(0), [
            f"images: received {count} array{'s' if count != 1 else ''} for {len(shapes)} inputs, "
            "expected a list with one for each, in the order of the model's inputs."
        ]
    arrays, problems = [], []
    expected = zip(images, shapes, kinds, kept, strict=True)
    for index, (given, shape, kind, is_kept) in enumerate(expected):
        name = f"images[{index}]"
        array, of_input = as_array(given, name)
        problems += of_input or image_problems(array, shape, kind, kept=is_kept, name=name)
        arrays.append(array)
    if not problems and len({len(array) for array in arrays}) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        problems.append(f"images: received {counts} of them, expected as many for each input.")
    return tuple(arrays), problems


def taken_by(graph: Graph, images: Pixels) -> Pixels:
    """Values of the inputs as the file of a graph takes them."""
    arrays = [one.taken(array) for one, array in zip(graph.images, arrays_of(images), strict=True)]
    return tuple(arrays) if isinstance(images, tuple) else arrays[0]
