"""Handwritten digits that ship with scikit-learn: ten classes, nothing to download."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sat_tf.messages.validation import Seed, checked
from sat_tf.training.data.source import ImageSet

NUM_CLASSES = 10
_SCANNED_SIZE = 8
_LARGEST_SIZE = 512
_SCANNED_MAX = 16
_SIZES = f"a positive multiple of 8 up to {_LARGEST_SIZE}; pass 32"
_ImageSize = Annotated[
    int, Field(ge=1, le=_LARGEST_SIZE, multiple_of=_SCANNED_SIZE, description=_SIZES)
]
_Share = Annotated[float, Field(gt=0, lt=1, description="above 0 and below 1; pass 0.2")]


@checked
def load_digits(
    image_size: _ImageSize = 32, *, test_fraction: _Share = 0.2, seed: Seed = 0
) -> ImageSet:
    """Loads the 1797 scanned digits, enlarged to colour images.

    The scans hold 8x8 values of 0 to 16; they are enlarged bilinearly, scaled to 0..255 and
    repeated in three equal channels. Both splits keep the order of the scans, in which the classes
    alternate.

    Args:
        image_size: height and width in pixels, a positive multiple of 8. 8 keeps the scans' pixels.
        test_fraction: share of each class that is held out, above 0 and below 1; at least one image
            of each class goes to either split.
        seed: chooses the held-out images, in [0, 2**32).

    Raises:
        ValueError: an argument is out of its range; lists all such arguments.

    Example:
        >>> digits = load_digits(16)
        >>> digits.train_images.shape, digits.test_images.shape
        ((1438, 16, 16, 3), (359, 16, 16, 3))
    """
    # Imported here because scikit-learn takes seconds to load.
    import sklearn.datasets

    scans = sklearn.datasets.load_digits()
    images = _enlarge(scans.images.astype(np.int64), image_size)
    labels = scans.target.astype(np.int32)
    is_test = np.zeros(labels.shape, np.bool_)
    for label in range(NUM_CLASSES):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(test_fraction * len(members))), len(members) - 1)
        # RandomState, because NumPy guarantees that its streams never change.
        order = np.random.RandomState([seed, label]).permutation(len(members))
        is_test[members[order[:count]]] = True
    return ImageSet(
        name="digits",
        train_images=images[~is_test],
        train_labels=labels[~is_test],
        test_images=images[is_test],
        test_labels=labels[is_test],
        num_classes=NUM_CLASSES,
        class_names=tuple(map(str, range(NUM_CLASSES))),
    )


def _enlarge(scans: npt.NDArray[np.int64], image_size: int) -> npt.NDArray[np.uint8]:
    """(images, 8, 8) values of 0..16 to (images, image_size, image_size, 3) values of 0..255."""
    # Integers throughout, and all images in one matrix product: the pixels are the same on every
    # machine and with every version of every library, which Pillow's or a floating-point resize
    # would not guarantee. Pixel centres lie at half-integers, and the outermost pixels continue
    # beyond the border; a scanned pixel is `unit` wide in the units of positions and weights.
    factor = image_size // _SCANNED_SIZE
    unit = 2 * factor
    places = unit * np.arange(_SCANNED_SIZE)
    positions = (2 * np.arange(image_size) + 1 - factor).clip(0, places[-1])
    weights = np.maximum(unit - abs(positions[:, None] - places), 0)
    sums = np.einsum("yr,nrc,xc->nyx", weights, scans, weights, optimize=True)
    full = _SCANNED_MAX * unit * unit
    # The nearest integer, ties up.
    values = (2 * 255 * sums + full) // (2 * full)
    return np.repeat(values.astype(np.uint8)[..., None], 3, axis=-1)
