"""The removal of reshapes that undo each other: on microcontrollers each copies a tensor.

Convolutions and pools of files take images, so that a layer of sequences becomes one of images with
one row, between two reshapes. A tensor that only such layers read stays an image.
"""

import dataclasses
from collections.abc import Collection

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.tabled import Reshape
from sat_tf.exact.tflite.tensors import Tensor, free_name


def without_copies(graph: Graph, layer_names: Collection[str]) -> Graph:
    """Returns the graph without reshapes that others undo.

    `layer_names` are the names of Keras' tensors: an image has that of the sequence it replaces.
    """
    # A sum of images may need a reshape where only operations on sequences read it.
    graphs = [_Images(graph, layer_names, lifts=lifts).graph for lifts in (True, False)]
    return min(graphs, key=lambda candidate: len(candidate.operations))


class _Images:
    """The operations of a graph, in which a tensor may replace another one with its values."""

    def __init__(self, graph: Graph, layer_names: Collection[str], *, lifts: bool) -> None:
        self._before, self._tensors = graph, dict(graph.tensors)
        self._shapes = {image.name: image.shape for image in graph.images}
        self._shapes |= {name: tensor.shape for name, tensor in graph.tensors.items()}
        self._operations: list[Operation] = []
        # The tensor with the same values in another shape, and the tensors reshaped from it.
        self._sources: dict[str, str] = {}
        self._made: dict[tuple[str, tuple[int, ...]], str] = {}
        for operation in graph.operations:
            if operation.reshapes:
                (source,) = operation.inputs
                self._sources[operation.output] = self._sources.get(source, source)
            elif not (lifts and self._lift(operation)):
                names = {name: self._read(name) for name in operation.inputs}
                self._operations.append(operation.renamed(names))
        outputs = [self._read(name) for name in graph.outputs]
        self.graph = self._named(outputs, layer_names)

    def _lift(self, operation: Operation) -> bool:
        """Adds an operation on sequences as one on images; returns whether it did."""
        sources = [self._sources.get(name, "") for name in operation.inputs]
        pairs = zip(sources, operation.inputs, strict=True)
        if not all(s and self._shapes[s] == (1, *self._shapes[name]) for s, name in pairs):
            return False
        on_rows = operation.on_rows
        if on_rows is None:
            return False
        tensor = self._tensors[operation.output]
        name = free_name(f"{tensor.name}_image", self._shapes)
        self._tensors[name] = Tensor(name, (1, *tensor.shape), tensor.codes)
        self._shapes[name] = (1, *tensor.shape)
        self._sources[tensor.name] = name
        names = dict(zip(operation.inputs, sources, strict=True))
        self._operations.append(on_rows.renamed({**names, tensor.name: name}))
        return True

    def _read(self, name: str) -> str:
        """Returns a tensor of the same values and shape; adds the reshape that makes it."""
        source = self._sources.get(name, name)
        if self._shapes[source] == self._shapes[name]:
            return source
        if (source, self._shapes[name]) not in self._made:
            self._made[source, self._shapes[name]] = name
            self._operations.append(Reshape((source,), name))
        return self._made[source, self._shapes[name]]

    def _named(self, outputs: list[str], layer_names: Collection[str]) -> Graph:
        """Returns the graph, with the names of layers for images whose sequences are gone."""
        tensor_names = {operation.output for operation in self._operations}
        names: dict[str, str] = {}
        for name, source in self._sources.items():
            is_free = name in layer_names and name not in tensor_names and source not in layer_names
            if is_free and source in tensor_names:
                names.setdefault(source, name)

        def new(name: str) -> str:
            return names.get(name, name)

        def standing_for(name: str) -> str:
            return new(name if name in tensor_names else self._sources.get(name, name))

        tensors = [
            dataclasses.replace(self._tensors[operation.output], name=new(operation.output))
            for operation in self._operations
        ]
        graph = self._before
        ends = dict(zip(graph.outputs, outputs, strict=True))
        return dataclasses.replace(
            graph,
            tensors={tensor.name: tensor for tensor in tensors},
            operations=tuple(operation.renamed(names) for operation in self._operations),
            output=new(outputs[0]),
            more_outputs=tuple(map(new, outputs[1:])),
            layer_outputs={key: standing_for(name) for key, name in graph.layer_outputs.items()},
            states={new(ends[name]): of_input for name, of_input in graph.states.items()},
        )
