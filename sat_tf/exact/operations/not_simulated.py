"""Operators of files whose arithmetic is unknown, including those of layers left float."""

import dataclasses
from typing import NoReturn

import numpy as np

from sat_tf.exact.operations.operation import SELECTED, Basis, Made, Operation, Portability
from sat_tf.exact.tflite.contents import NotUnderstoodError, StoredOperator
from sat_tf.exact.tflite.operator_view import OperatorView, Progress
from sat_tf.exact.tflite.tensors import Tensor, Tensors
from sat_tf.exact.tflite.writer import Writer

# The text between the name of a float layer's output and the numbers of its other tensors.
INNER_NAME = "/island_"
# Every processor makes the same values with these operators.
_SELECTING = (
    *("CAST", "CONCATENATION", "EMBEDDING_LOOKUP", "EQUAL", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
    *("NOT_EQUAL", "ONE_HOT", "PACK", "PAD", "PADV2", "RESHAPE", "REVERSE_V2", "SELECT"),
    *("SELECT_V2", "SHAPE", "SLICE", "SPLIT", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE"),
    "UNPACK",
)


@dataclasses.dataclass(frozen=True)
class NotSimulated(Operation):
    """An operator of a file whose arithmetic is unknown; only runtimes run it."""

    kind: str  # The operator's name.

    is_simulated = False

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind,)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> NoReturn:
        """Raises ValueError: its arithmetic is unknown."""
        raise ValueError(
            f"{self.output}: received a graph with an operator that the simulator does not know, "
            "expected its result to be given; simulate the graph of the Keras model instead."
        )

    def write(self, writer: Writer) -> None:
        self.simulate(writer.graph)


@dataclasses.dataclass(frozen=True)
class FloatLayerOperator(NotSimulated):
    """An operator of a layer that is left float."""

    layer: str  # The layer that it is part of.

    def portability(self, graph: Tensors) -> Portability:
        if self.kind in _SELECTING:
            return Portability(Basis.RULE, SELECTED)
        return super().portability(graph)

    @property
    def float_layer(self) -> str:
        return self.layer

    @property
    def operators(self) -> tuple[str, ...]:
        return (f"float {self.layer}",)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """Reads any operator without integers."""
        stored, progress = operator.stored, operator.progress
        layer = layer_of(stored, progress)
        if layer is None:
            raise NotUnderstoodError(f"{operator.name}: it belongs to no layer that is left float")
        inputs = [
            tensor for tensor in stored.inputs if tensor is not None and tensor.values is None
        ]
        where = f"{operator.name} {operator.output.name}"
        if any(tensor.scales.size for tensor in (*stored.outputs, *inputs)):
            raise NotUnderstoodError(f"{where}: it is left float, and has codes")
        if any(tensor.name not in progress.known for tensor in inputs):
            raise NotUnderstoodError(f"{where}: its tensors are not in order")
        names = tuple(tensor.name for tensor in inputs)
        # It may make several tensors; each is an operation here.
        *first_outputs, last_output = stored.outputs
        for output in stored.outputs:
            if output.name in progress.known:
                raise NotUnderstoodError(f"{where}: its tensors are not in order")
        for output in first_outputs:
            progress.operations.append(cls(names, output.name, operator.name, layer))
            progress.tensors[output.name] = Tensor(output.name, output.shape[1:], None)
        return cls(names, last_output.name, operator.name, layer), None


def layer_of(operator: StoredOperator, progress: Progress) -> str | None:
    """Returns the layer left float to which an operator belongs, if any."""
    names = {tensor.name.rsplit(INNER_NAME, 1)[0] for tensor in operator.outputs}
    is_float_layer = len(names) == 1 and names <= progress.float_layers.keys()
    return progress.float_layers[next(iter(names))] if is_float_layer else None
