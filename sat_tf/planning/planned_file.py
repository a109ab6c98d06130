"""A file before there is a model to write: the operators of the real one, and other numbers."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from sat_tf.export.export import file_content
from sat_tf.export.lowering.packing import FileSettings, is_trained
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import Linear, linear_operations, map_linear
from sat_tf.export.targets.table import TARGETS, Elsewhere
from sat_tf.export.tflite.contents import read_contents


def planned_content(
    graph: Graph, places: Mapping[str, Sequence[int]], settings: FileSettings
) -> bytes:
    """The file, with codes of the right number and size in it."""
    numbers = {
        graph.operations[index].output: number
        for number, indices in enumerate(places.values())
        for index in indices
    }
    filled = map_linear(graph.operations, lambda one: _filled(one, numbers.get(one.output)))
    graph = settings.ended(dataclasses.replace(graph, operations=filled))
    return file_content(graph, settings.of_graph(graph))


def names_in_file(graph: Graph, settings: FileSettings) -> dict[str, str]:
    """Returns the names in the file of tensors that have others in the graph."""
    return {former: name for name, former in settings.ended(graph).former_names.items()}


def planned_elsewhere(graph: Graph, settings: FileSettings) -> tuple[list[Elsewhere], int]:
    """The operators of the planned file that its target leaves to the CPU, and how many it has."""
    trained = [one.output for one in linear_operations(graph.operations) if is_trained(one)]
    outputs = [operation.output for operation in graph.operations]
    places = {output: [outputs.index(output)] for output in trained}
    contents = read_contents(planned_content(graph, places, settings), graph.name)
    return TARGETS[settings.target].elsewhere(contents), len(contents.operators)


def _filled(operation: Linear, number: int | None) -> Linear:
    """The operation with a kernel that no other layer has: a file holds equal ones once."""
    bias = np.zeros(np.shape(operation.bias))
    if number is None:
        return dataclasses.replace(operation, bias=bias)
    kernel = np.zeros(operation.kernel.shape, np.int8)
    # The number in base 2, a byte a digit: -1 has all its bits set in every storage, so that bytes
    # of different storages differ too.
    digits = np.array([int(digit) for digit in f"{number:b}"][::-1])
    codes = np.repeat(-digits, 8 // operation.storage.value)[: kernel.size]
    kernel.reshape(-1)[: len(codes)] = codes
    return dataclasses.replace(operation, kernel=kernel, bias=bias)
