"""What a deployed graph has in the place of each Keras layer."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from sat_tf.export.graph import Graph, Operation


@dataclasses.dataclass(frozen=True)
class Part:
    """What the deployed graph has in the place of one Keras layer.

    Attributes:
        sources: the tensors it reads.
        operations: what it computes from them, in order; none where the layer changes nothing.
        tensor: the one with the layer's output, or None where the layer has none, because it is
            folded into what stands behind it.
    """

    sources: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    tensor: str | None = None


def parts_of(graph: Graph) -> dict[str, Part]:
    """What the graph has in the place of each layer that has an output there, by its name."""
    makers = {operation.output: operation for operation in graph.operations}
    known = {image.name for image in graph.images}
    parts: dict[str, Part] = {}
    for name, tensor in graph.layer_outputs.items():
        operations = list(_needed(tensor, makers, known))
        made = {operation.output for operation in operations}
        read = {tensor, *(source for op in operations for source in op.inputs)} - made
        parts[name] = Part(tuple(sorted(read)), tuple(operations), tensor)
    return parts


def _needed(tensor: str, makers: dict[str, Operation], known: set[str]) -> Iterator[Operation]:
    """The operations that lead from what is known to a tensor, which is then known as well."""
    if tensor not in known:
        for source in makers[tensor].inputs:
            yield from _needed(source, makers, known)
        known.add(tensor)
        yield makers[tensor]


def check_same_operations(name: str, old: Graph, new: Graph) -> None:
    """Raises an error where a file would no longer have the operations it had.

    Args:
        name: of the model.
        old: its deployed graph as it was.
        new: its deployed graph as it is.

    Raises:
        ValueError: naming the tensors whose operations have changed.
    """
    before, after = _outline(old), _outline(new)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    if changed:
        raise ValueError(
            f"model {name!r}: received variables with which the file has other operations than "
            f"before ({', '.join(changed)}), expected the same ones; call deployed_model again on "
            "its `quantized`."
        )


def _outline(graph: Graph) -> dict[str, Any]:
    """All of the operations but their numbers, by the tensors that they make."""

    def settings(operation: Operation) -> list[Any]:
        values = [getattr(operation, field.name) for field in dataclasses.fields(operation)]
        return [np.shape(value) if isinstance(value, np.ndarray) else value for value in values]

    return {
        operation.output: (
            type(operation),
            settings(operation),
            graph.tensors[operation.output].shape,
            graph.is_float(operation),
        )
        for operation in graph.operations
    }
