"""Layers that are left float, between what is dequantized and quantized again."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import numpy as np
import tensorflow as tf

from sat_tf.exact.operations.operation import SELECTED, Basis, Operation, Portability
from sat_tf.exact.operations.tabled import write_reshape
from sat_tf.exact.tflite.tensors import Tensors
from sat_tf.exact.tflite.writer import Writer
from sat_tf.export.lowering.converter import float_operators, splice
from sat_tf.graph.layer_kinds import KINDS
from sat_tf.graph.network import Node, call_in_inference

# Operators and constants of most layers add so many bytes to a file, beside their weights.
_BYTES_OF_OPERATORS = 400
_BYTES_OF_A_WEIGHT = 4


@dataclasses.dataclass(frozen=True)
class FloatCall:
    """The call of a Keras layer that is left float."""

    name: str  # Of the layer, and of the call where there are several.
    node: Node  # The call.
    layer: Any  # What is called: the user's layer, or a copy that computes in float32.
    reads: tuple[str, ...]  # Names of tensors of the operation, and of calls before it.


@dataclasses.dataclass(frozen=True)
class FloatLayer(Operation):
    """A Keras layer that is left float: it reads and makes float tensors.

    Layers in front of it are part of it where what they make is no float32, but integers, truth
    values or complex numbers: these reach it exactly as they are.
    """

    calls: tuple[FloatCall, ...]  # That of the layer at the end.

    @property
    def float_layer(self) -> str:
        """The name of the layer, and of the call where there are several, behind those in front."""
        return " + ".join(call.name for call in self.calls)

    @property
    def operators(self) -> tuple[str, ...]:
        """The layers' classes: TensorFlow's converter chooses their operators."""
        return (f"float {' + '.join(type(layer).__name__ for layer in self.layers)}",)

    def title(self, graph: Tensors) -> str:
        return self.operators[0]

    def renamed(self, names: Mapping[str, str]) -> Self:
        """See `Operation`: calls read the tensors by their names, and each other."""
        tensors = {name: new for name, new in names.items() if name in self.inputs}
        calls = tuple(
            dataclasses.replace(call, reads=tuple(tensors.get(name, name) for name in call.reads))
            for call in self.calls
        )
        return dataclasses.replace(super().renamed(names), calls=calls)

    @property
    def layers(self) -> list[Any]:
        """The layers that it calls, in order."""
        return [call.layer for call in self.calls]

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        """An estimate: the converter chooses what the file holds."""
        weights = sum(int(layer.count_params()) for layer in self.layers)
        return _BYTES_OF_OPERATORS + _BYTES_OF_A_WEIGHT * weights

    def signature(self, graph: Tensors) -> list[tuple[tuple[int, ...], str]]:
        """Shape, without the batch dimension, and type of each tensor that it reads."""
        kept = {image.name: (image.shape, image.type) for image in graph.images}
        return [kept.get(name) or (graph.tensors[name].shape, "float32") for name in self.inputs]

    def portability(self, graph: Tensors) -> Portability:
        """See `Operation`: what is looked up by ids is copied."""
        kinds = [KINDS.get(type(layer)) for layer in self.layers]
        copies = all(kind is not None and kind.reads_ids for kind in kinds)
        return Portability(Basis.RULE, SELECTED) if copies else super().portability(graph)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """The layers themselves, in Keras."""
        return np.asarray(self.function()(*inputs), np.float32)

    def write(self, writer: Writer) -> None:
        """The operators that TensorFlow's converter makes of the layers."""
        content = float_operators(self.function(), self.layers, self.signature(writer.graph))
        inputs = [writer.indices[name] for name in self.inputs]
        output = writer.indices[self.output]
        result = splice(content, writer.model, writer.subgraph, inputs, output, writer.unused)
        if result != output:  # a layer that does nothing in inference, such as noise
            write_reshape(writer, result, self.output)

    def function(self) -> Callable[..., Any]:
        """The function of tensors that the layers compute, in inference and to float32."""

        def function(*sources: Any) -> Any:
            made = dict(zip(self.inputs, sources, strict=True))
            for call in self.calls:
                read = [made[name] for name in call.reads]
                made[call.name] = call_in_inference(call.node, call.layer, read)
            return tf.cast(made[self.calls[-1].name], tf.float32)

        return function


def float_layers(operations: Iterable[Operation]) -> list[FloatLayer]:
    """The layers left float among some operations, in their order."""
    return [operation for operation in operations if isinstance(operation, FloatLayer)]
