"""Layers that are left float, between what is dequantized and quantized again; functions."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from sat_tf.export.operations.builder import Draft, GraphBuilder, OperationDraft, Shape
from sat_tf.export.operations.movements import write_reshape
from sat_tf.export.operations.native import FIXED_GRIDS, NATIVE, STORED, Lookup, Native
from sat_tf.export.operations.operation import SELECTED, Basis, Made, Operation, Portability
from sat_tf.export.tflite.contents import NotUnderstoodError, StoredOperator
from sat_tf.export.tflite.operator_view import OperatorView, Progress
from sat_tf.export.tflite.tensors import Codes, Tensor, Tensors
from sat_tf.export.tflite.writer import INNER_NAME, Writer, splice

if TYPE_CHECKING:
    from sat_tf.graph.network import Node


# Operators and constants of most layers add so many bytes to a file, beside their weights.
_BYTES_OF_OPERATORS = 400
_BYTES_OF_A_WEIGHT = 4


@dataclasses.dataclass(frozen=True)
class FloatCall:
    """The call of a Keras layer that is left float."""

    name: str  # Of the layer, and of the call where there are several.
    node: "Node"  # The call.
    layer: Any  # What is called: the user's layer, or a copy that computes in float32.
    reads: tuple[str, ...]  # Names of tensors of the operation, and of calls before it.


@dataclasses.dataclass(frozen=True)
class FloatLayer(OperationDraft):
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
        from sat_tf.graph.layer_kinds import KINDS

        kinds = [KINDS.get(type(layer)) for layer in self.layers]
        copies = all(kind is not None and kind.reads_ids for kind in kinds)
        return Portability(Basis.RULE, SELECTED) if copies else super().portability(graph)

    def on_codes(
        self, inputs: tuple[str, ...], codes: Sequence[Codes]
    ) -> tuple[Operation, Codes] | None:
        """See `Operation`: a sigmoid or tanh, whose operator has a grid of its own."""
        from sat_tf.graph.layer_kinds import native_of

        native = native_of(self.layers[0]) if len(self.calls) == 1 else None
        if native is None or native.operator not in NATIVE.keys() & FIXED_GRIDS.keys():
            return None
        made = Native(inputs, self.output, native.operator, native.settings)
        return made, FIXED_GRIDS[native.operator]

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """The layers themselves, in Keras."""
        return np.asarray(self.function()(*inputs), np.float32)

    def write(self, writer: Writer) -> None:
        """The operators that TensorFlow's converter makes of the layers."""
        from sat_tf.export.litert.converter import float_operators

        content = float_operators(self.function(), self.layers, self.signature(writer.graph))
        inputs = [writer.indices[name] for name in self.inputs]
        output = writer.indices[self.output]
        result = splice(content, writer.model, writer.subgraph, inputs, output, writer.unused)
        if result != output:  # a layer that does nothing in inference, such as noise
            write_reshape(writer, result, self.output)

    def function(self) -> Callable[..., Any]:
        """The function of tensors that the layers compute, in inference and to float32."""
        import tensorflow as tf

        from sat_tf.graph.network import call_in_inference

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


def rounded_table(
    function: Callable[[np.ndarray], np.ndarray], source: Codes, output: Codes
) -> np.ndarray:
    """The table of a function of real values, rounded half up as the quantizers do, and clipped.

    >>> codes = Codes(np.float32(0.5), 0)
    >>> rounded_table(np.abs, codes, codes)[[0, 127, 128, 130]].tolist()
    [127, 1, 0, 2]
    """
    real = ((STORED - source.zero_point) * np.float32(source.real_scale)).astype(np.float32)
    made = np.asarray(function(real), np.float32) / np.float32(output.real_scale)
    rounded = np.floor(made + np.float32(0.5)) + output.zero_point
    return np.clip(rounded, output.lowest, output.highest).astype(np.int8)


@dataclasses.dataclass(frozen=True)
class ComputedFunction(Draft):
    """A function other than a rectifier: a table, or what TensorFlow's converter makes of it."""

    inputs: tuple[str, ...]  # The tensor that it reads.
    # The same on single values, where it works on each of them alone.
    function: Callable[[np.ndarray], np.ndarray] | None
    call: Callable[[str], FloatCall]  # The call of the layer itself on a float tensor.

    keeps_stream = True

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        source = builder.codes(self.inputs[0])
        if self.function is None or source is None:
            real = self.as_float(builder, builder.between(f"{name}_float"), shape)
            return builder.quantized(real, codes, name, shape)
        table = rounded_table(self.function, source, codes)
        return builder.add(Lookup(self.inputs, name, table), shape, codes)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        source = builder.dequantized(self.inputs[0])
        return builder.add(FloatLayer((source,), name, (self.call(source),)), shape, None)


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

    kind: str  # Its name.

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
        """Any operator without integers."""
        stored, progress = operator.stored, operator.progress
        layer = layer_of(stored, progress)
        if layer is None:
            raise NotUnderstoodError(f"{operator.name}: it belongs to no layer that is left float")
        given = [tensor for tensor in stored.inputs if tensor is not None and tensor.values is None]
        where = f"{operator.name} {operator.output.name}"
        if any(tensor.scales.size for tensor in (*stored.outputs, *given)):
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
            progress.operations.append(cls(names, output.name, operator.name, layer))
            progress.tensors[output.name] = Tensor(output.name, output.shape[1:], None)
        return cls(names, last.name, operator.name, layer), None


def layer_of(operator: StoredOperator, progress: Progress) -> str | None:
    """The layer left float that an operator belongs to, if any."""
    names = {tensor.name.rsplit(INNER_NAME, 1)[0] for tensor in operator.outputs}
    known = len(names) == 1 and names <= progress.float_layers.keys()
    return progress.float_layers[next(iter(names))] if known else None
