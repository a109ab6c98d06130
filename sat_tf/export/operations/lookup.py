"""Functions of one value on codes: 256 integers in a table."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.operations.builder import Draft, GraphBuilder, Shape
from sat_tf.export.operations.float_layer import FloatCall, FloatLayer
from sat_tf.export.operations.operation import Made, Operation
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Operator, Writer

# The offset from a stored integer to its place in the table.
_FIRST = 128
_CAST = Operator("CAST", 1, "CastOptions")
_ADD = Operator("ADD", 1, "AddOptions")  # of int32
_GATHER = Operator("GATHER", 2, "GatherOptions")


class _Places(NamedTuple):
    """The codes that an int32 tensor is made of, and what was added to them."""

    source: str
    added: int


@dataclasses.dataclass(frozen=True)
class Lookup(Operation):
    """stored = table[stored of the input + 128]: exact in every runtime, whatever the function."""

    table: np.ndarray  # Int8, 256 stored integers.

    reads = ("CAST", "ADD", "GATHER")
    num_constants = 2  # the table and a number
    same_because = "it looks codes up in a table"

    @property
    def operators(self) -> tuple[str, ...]:
        return _CAST.name, _ADD.name, _GATHER.name

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (stored,) = inputs
        return np.asarray(self.table.astype(np.int32)[stored + _FIRST])

    def write(self, writer: Writer) -> None:
        """Integers can be places in a table once they are int32."""
        name, shape = self.output, writer.tensors[self.output].shape
        codes = writer.codes(name)
        table = writer.constant(f"{name}/table", self.table, codes.scale, codes.zero_point)
        first = writer.constant(f"{name}/first", np.array(_FIRST, np.int32))
        number, place = (writer.between(f"{name}/{part}", shape) for part in ("number", "place"))
        types = {"inDataType": tfl.TensorType.INT8, "outDataType": tfl.TensorType.INT32}
        writer.operator(_CAST, self.inputs, number, **types)
        writer.operator(_ADD, [number, first], place)
        writer.operator(_GATHER, [table, place], name, axis=0)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Every CAST, additions to what they make, and gathering from a constant."""
        if operator.name == "ADD":
            first = operator.stored.inputs[0]
            found = operator.progress.pending.get(first.name) if first else None
            return isinstance(found, _Places)
        return operator.name == "CAST" or operator.is_constant(0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        pending = operator.progress.pending
        if operator.name == "CAST":
            if operator.source_codes() is None or operator.output.type != "INT32":
                raise NotUnderstoodError("it does not make int32 of codes")
            pending[operator.output.name] = _Places(operator.source(), 0)
            return None
        if operator.name == "ADD":
            source, added = pending[operator.tensor(0).name]
            added += int(operator.constant(1, "INT32"))
            pending[operator.output.name] = _Places(source, added)
            return None
        table, codes = operator.constant(0, "INT8"), operator.codes()
        found = pending.get(operator.tensor(1).name)
        source, added = found if isinstance(found, _Places) else ("", 0)
        if table.shape != (2 * _FIRST,) or added != _FIRST or codes is None:
            raise NotUnderstoodError("it does not look up each code in a table of 256")
        codes = Codes(codes.scale, codes.zero_point, int(np.min(table)), int(np.max(table)))
        return cls((source,), operator.output.name, table), codes

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return int(self.table.nbytes)


def table_of(
    function: Callable[[np.ndarray], np.ndarray], source: Codes, output: Codes
) -> np.ndarray:
    """The table of a function of real values, rounded half up as the quantizers do, and clipped.

    >>> codes = Codes(np.float32(0.5), 0)
    >>> table_of(np.abs, codes, codes)[[0, 127, 128, 130]].tolist()
    [127, 1, 0, 2]
    """
    stored = np.arange(-_FIRST, _FIRST)
    real = ((stored - source.zero_point) * np.float32(source.real_scale)).astype(np.float32)
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
        table = table_of(self.function, source, codes)
        return builder.add(Lookup(self.inputs, name, table), shape, codes)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        source = builder.dequantized(self.inputs[0])
        return builder.add(FloatLayer((source,), name, (self.call(source),)), shape, None)
