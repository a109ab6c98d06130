"""Layers that are left float, between what is dequantized and what is quantized again."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sat_tf.export.operations.operation import Made, Operation, TfTensor
from sat_tf.export.operations.shapes import write_reshape
from sat_tf.export.tflite.contents import NotUnderstoodError, StoredOperator
from sat_tf.export.tflite.operator_view import OperatorView, Progress
from sat_tf.export.tflite.splice import INNER_NAME, splice
from sat_tf.export.tflite.tensors import Tensor, Tensors
from sat_tf.export.tflite.writer import Writer

if TYPE_CHECKING:
    from sat_tf.graph.network import Node


@dataclasses.dataclass(frozen=True)
class FloatLayer(Operation):
    """A Keras layer that is left float: it reads and makes float tensors.

    Attributes:
        node: the call of the layer.
        layer: what is called: the user's layer, or a copy that computes in float32.
    """

    node: "Node"
    layer: Any

    @property
    def float_layer(self) -> str:
        """The name of the layer, and of the call where there are several."""
        from sat_tf.qat.layout import call_name  # which loads TensorFlow

        return call_name(self.node)

    @property
    def operators(self) -> tuple[str, ...]:
        """The layer's class: TensorFlow's converter chooses its operators."""
        return (f"float {self._class_name}",)

    def title(self, graph: Tensors) -> str:
        """See `operators`."""
        del graph
        return f"float {self._class_name}"

    @property
    def _class_name(self) -> str:
        return type(self.layer).__name__

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """The layer itself, in Keras."""
        return np.asarray(self.keras_function(graph)(*inputs), np.float32)

    def write(self, writer: Writer) -> None:
        """The operators that TensorFlow's converter makes of the layer."""
        from sat_tf.export.converter.float_layers import float_operators

        shapes = [writer.tensors[name].shape for name in self.inputs]
        content = float_operators(self.node, self.layer, shapes)
        inputs = [writer.indices[name] for name in self.inputs]
        output = writer.indices[self.output]
        result = splice(content, writer.model, writer.subgraph, inputs, output, writer.unused)
        if result != output:  # a layer that does nothing in inference, such as noise
            write_reshape(writer, result, self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """Raises NotUnderstoodError: no layer can be created again from operators."""
        raise NotUnderstoodError(f"{operator.name}: it belongs to no layer that is left float")

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """The layer itself; the converter may quantize it too."""
        from sat_tf.graph.network import call_on_floats

        del graph
        return lambda *sources: call_on_floats(self.node, self.layer, list(sources))


@dataclasses.dataclass(frozen=True)
class FloatLayerOperator(Operation):
    """An operator of a file, of a layer that is left float; only LiteRT runs it.

    Attributes:
        layer: the layer that it is part of.
    """

    layer: str

    @property
    def float_layer(self) -> str:
        """See `Operation`."""
        return self.layer

    @property
    def operators(self) -> tuple[str, ...]:
        """See `Operation`."""
        return (f"float {self.layer}",)

    def _refuse(self) -> NoReturn:
        raise ValueError(
            f"{self.output}: received a graph with an operator that the simulator does not know, "
            "expected its result to be given; simulate the graph of the Keras model instead."
        )

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """Raises ValueError: its arithmetic is unknown."""
        self._refuse()

    def write(self, writer: Writer) -> None:
        """Raises ValueError: its arithmetic is unknown."""
        self._refuse()

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """Any operator without integers."""
        stored, progress = operator.stored, operator.progress
        layer = layer_of(stored, progress)
        if layer is None:
            raise NotUnderstoodError(f"{operator.name}: it belongs to no layer that is left float")
        given = [tensor for tensor in stored.inputs if tensor is not None and tensor.values is None]
        where = f"{operator.name} {operator.output.name}"
        if any(tensor.type in ("INT8", "UINT8") for tensor in (*stored.outputs, *given)):
            raise NotUnderstoodError(f"{where}: it is left float, and has codes")
        if any(tensor.name not in progress.known for tensor in given):
            raise NotUnderstoodError(f"{where}: its tensors are not in order")
        names = tuple(tensor.name for tensor in given)
        # It may make several tensors, each of which is an operation here.
        *others, last = stored.outputs
        for output in stored.outputs:
            if output.name in progress.known:
                raise NotUnderstoodError(f"{where}: its tensors are not in order")
        for output in others:
            progress.operations.append(cls(names, output.name, layer))
            progress.tensors[output.name] = Tensor(output.name, output.shape[1:], None)
        return cls(names, last.name, layer), None

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """Raises ValueError: its arithmetic is unknown."""
        self._refuse()


def layer_of(operator: StoredOperator, progress: Progress) -> str | None:
    """The layer left float that an operator belongs to, if any."""
    names = {tensor.name.rsplit(INNER_NAME, 1)[0] for tensor in operator.outputs}
    known = len(names) == 1 and names <= progress.float_layers.keys()
    return progress.float_layers[next(iter(names))] if known else None
