"""Runs a graph in NumPy with the arithmetic of the file's kernels."""

from collections.abc import Collection, Mapping

import numpy as np

from sat_tf.export.operations.graph import Graph
from sat_tf.export.tflite.images import Pixels, arrays_of, joined, number_of, some_of
from sat_tf.export.tflite.tensors import dequantized

_VALUES_PER_BATCH = 2**24
_LARGEST_BATCH = 256


def by_name(images: Pixels, graph: Graph) -> dict[str, np.ndarray]:
    """The images by the names of the inputs of a graph."""
    arrays = arrays_of(images)
    return {image.name: array for image, array in zip(graph.images, arrays, strict=True)}


def outputs_of(tensors: Mapping[str, np.ndarray], graph: Graph) -> np.ndarray:
    """The outputs of a graph among its tensors, as one array of real values."""

    def real(name: str) -> np.ndarray:
        codes = graph.tensors[name].codes
        return tensors[name] if codes is None else dequantized(tensors[name], codes)

    return joined([real(name) for name in graph.outputs])


def simulate(
    graph: Graph, images: Pixels, given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Every tensor of a deployed graph for a batch of images.

    Args:
        graph: a graph from `deployed_graph`.
        images: uint8, (n, *graph.image_shape); a tuple of arrays for several inputs.
        given: tensors that the operations behind them read instead of those simulated here, such
            as a runtime's outputs of the layers that are left float.

    Returns:
        By tensor name: int32 arrays of stored integers in -128..127, of uint8 in 0..255, and
        float32 arrays for tensors that the graph keeps float. Integer tensors are exact.
    """
    given = {**by_name(images, graph), **(given or {})}
    tensors: dict[str, np.ndarray] = {}
    for operation in graph.operations:
        if not operation.is_simulated and operation.output in given:
            tensors[operation.output] = given[operation.output]
            continue
        inputs = [given[name] if name in given else tensors[name] for name in operation.inputs]
        tensors[operation.output] = operation.simulate(graph, *inputs)
    return tensors


def simulate_on(
    graph: Graph,
    images: Pixels,
    known: Mapping[str, np.ndarray],
    changing: Collection[str],
) -> dict[str, np.ndarray]:
    """`simulate` for other kernels, where the tensors of some are known.

    Args:
        graph: on the other kernels.
        images: the batch.
        known: every tensor of it on the kernels that are known.
        changing: the tensors whose operations compute other codes of the same inputs, or may. All
            others are the known ones until an input of theirs differs.
    """
    inputs = by_name(images, graph)
    tensors: dict[str, np.ndarray] = {}
    for operation in graph.operations:
        name, same = operation.output, known[operation.output]
        read = [inputs[one] if one in inputs else tensors[one] for one in operation.inputs]
        moved = any(one in tensors and tensors[one] is not known[one] for one in operation.inputs)
        if not operation.is_simulated or not (moved or name in changing):
            tensors[name] = same
            continue
        made = operation.simulate(graph, *read)
        tensors[name] = same if np.array_equal(made, same) else made
    return tensors


def batches(images: Pixels, graph: Graph) -> list[Pixels]:
    """The images in batches, so that the tensors of a graph fit into memory.

    One at a time where the file has TRANSPOSE_CONV, which holds the shape of its output, or the
    operators of a layer left float, which may.
    """
    largest = max(int(np.prod(tensor.shape)) for tensor in graph.tensors.values())
    size = int(np.clip(_VALUES_PER_BATCH // (4 * max(largest, 1)), 1, _LARGEST_BATCH))
    if graph.float_layers or any(one.takes_one_image for one in graph.operations):
        size = 1
    starts = range(0, number_of(images), size)
    return [some_of(images, start, start + size) for start in starts]
