"""Batches of images for one input or several, and their outputs as one array."""

import numpy as np

# One array, or one for each input in the order of the model's.
Pixels = np.ndarray | tuple[np.ndarray, ...]


def arrays_of(images: Pixels) -> tuple[np.ndarray, ...]:
    """The images of each input."""
    return images if isinstance(images, tuple) else (images,)


def number_of(images: Pixels) -> int:
    """How many images each input gets."""
    return len(arrays_of(images)[0])


def some_of(images: Pixels, start: int, stop: int) -> Pixels:
    """A batch of them."""
    if isinstance(images, tuple):
        return tuple(array[start:stop] for array in images)
    return images[start:stop]


def joined(outputs: list[np.ndarray]) -> np.ndarray:
    """All outputs of a model as one array: that of the only one, or all values of each image.

    Outputs of other lengths, such as a shape, are all of one image.

    >>> joined([np.zeros((2, 3)), np.zeros((2, 4, 5))]).shape
    (2, 23)
    >>> joined([np.zeros((1, 3)), np.zeros(4), np.zeros(())]).shape
    (1, 8)
    """
    if len(outputs) == 1:
        return outputs[0]
    lengths = {output.shape[:1] for output in outputs}
    count = len(outputs[0]) if len(lengths) == 1 and outputs[0].ndim else 1
    return np.concatenate([output.reshape(count, -1) for output in outputs], axis=1)
