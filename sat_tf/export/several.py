"""Models with several inputs or outputs: their images, and their outputs as one array."""

from collections.abc import Mapping

import numpy as np

from sat_tf.export.graph import Graph

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


def by_name(images: Pixels, graph: Graph) -> dict[str, np.ndarray]:
    """The images by the names of the inputs of a graph."""
    arrays = arrays_of(images)
    return {image.name: array for image, array in zip(graph.images, arrays, strict=True)}


def joined(outputs: list[np.ndarray]) -> np.ndarray:
    """All outputs of a model as one array: that of the only one, or all values of each image."""
    if len(outputs) == 1:
        return outputs[0]
    return np.concatenate([output.reshape(len(output), -1) for output in outputs], axis=1)


def outputs_of(tensors: Mapping[str, np.ndarray], graph: Graph) -> np.ndarray:
    """The outputs of a graph among its tensors, as one array."""
    return joined([tensors[name] for name in graph.outputs])
