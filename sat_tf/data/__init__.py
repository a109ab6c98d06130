"""Image data sets held in memory, and a table to load them by name."""

import types
from collections.abc import Callable, Mapping
from typing import Any

from sat_tf.arguments import call_by_name
from sat_tf.data.digits import load_digits
from sat_tf.data.glyphs import load_glyphs
from sat_tf.data.images import ImageSet

__all__ = ["DATA_SETS", "ImageSet", "load", "load_digits", "load_glyphs"]

DATA_SETS: Mapping[str, Callable[..., ImageSet]] = types.MappingProxyType(
    {
        "digits": load_digits,
        "glyphs": load_glyphs,
    }
)


def load(name: str, **options: Any) -> ImageSet:
    """Loads a data set by its name.

    Args:
        name: a key of `DATA_SETS`.
        **options: what the set's function takes; its defaults hold for the rest.

    Returns:
        The images and labels to train on, and those held out.

    Raises:
        ValueError: the set or some option is unknown, or an option is out of its range.

    Example:
        >>> load("digits", image_size=8).test_images.shape
        (359, 8, 8, 3)
        >>> load("digit")
        Traceback (most recent call last):
        ValueError: unknown data set 'digit'; did you mean 'digits'? \
Expected one of: digits, glyphs.
    """
    return call_by_name("data set", DATA_SETS, name, options)
