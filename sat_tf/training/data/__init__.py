"""Image data sets, and a table to get them by name: in memory, or as sources of batches."""

import inspect
from collections.abc import Callable
from typing import Any, cast

from sat_tf.exact.tflite.preprocessing import Preprocessing
from sat_tf.messages.validation import call_by_name
from sat_tf.training.data.digits import load_digits
from sat_tf.training.data.folders import load_folder_tree, load_tfds, load_tfrecords
from sat_tf.training.data.source import ImageSet, ImageSource

__all__ = ["DATA_SETS", "is_in_memory", "load", "source"]
__all__ += ["ImageSet", "ImageSource", "Preprocessing"]
__all__ += ["load_digits", "load_folder_tree", "load_tfds", "load_tfrecords"]

# Sets that fit into memory are an `ImageSet`, others a source of batches; the return type of each
# function says which. A script may add a set of its own.
DATA_SETS: dict[str, Callable[..., ImageSet | ImageSource]] = {
    "digits": load_digits,
    "folder": load_folder_tree,
    "tfds": load_tfds,
    "tfrecords": load_tfrecords,
}


def is_in_memory(name: str) -> bool:
    """Whether a set of `DATA_SETS` is held in memory, so that `load` gives it."""
    return inspect.signature(DATA_SETS[name]).return_annotation is ImageSet


def source(name: str, *, shift_pixels: int = 0, **options: Any) -> ImageSource:
    """The batches of a data set, by its name.

    Args:
        name: a key of `DATA_SETS`.
        shift_pixels: for sets held in memory, by how many pixels training shifts an image at most;
            the others take random crops.
        **options: what the set's function takes; its defaults hold for the rest.

    Raises:
        ValueError: the set or some option is unknown, an option is out of its range, or the images
            cannot be found.

    Example:
        >>> source("digits", image_size=8).num_test
        359
    """
    # `call_by_name` reports an unknown set.
    if shift_pixels and name in DATA_SETS and not is_in_memory(name):
        raise ValueError(
            f"shift_pixels: received {shift_pixels} for {name}; expected 0: it takes random crops, "
            "and only sets held in memory are shifted; leave it out."
        )
    data_set = call_by_name("data set", DATA_SETS, name, options)
    if isinstance(data_set, ImageSource):
        return data_set
    # Imported here: naming a data set needs no TensorFlow.
    from sat_tf.training.data.batches import ArraySource

    return ArraySource(data_set, shift_pixels=shift_pixels)


def load(name: str, **options: Any) -> ImageSet:
    """Loads a data set that is held in memory, by its name; the options are those of its function.

    Raises:
        ValueError: the set or some option is unknown, an option is out of its range, or the set is
            not held in memory.

    Example:
        >>> load("digits", image_size=8).test_images.shape
        (359, 8, 8, 3)
        >>> load("digit")
        Traceback (most recent call last):
        ValueError: 'digit': expected the name of a data set. Did you mean digits?
    """
    if name in DATA_SETS and not is_in_memory(name):
        held = ", ".join(key for key in DATA_SETS if is_in_memory(key))
        raise ValueError(
            f"data set: received {name!r}, which is not held in memory; expected one of {held}; "
            "use sat_tf.training.data.source."
        )
    return cast(ImageSet, call_by_name("data set", DATA_SETS, name, options))
