"""What a TFLite flatbuffer holds: its tensors, constants and operators, unpacked."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl


def names_of(enumeration: type) -> dict[int, str]:
    """The names of an enumeration of the schema, by value."""
    return {value: name for name, value in vars(enumeration).items() if not name.startswith("_")}


OPERATORS = names_of(tfl.BuiltinOperator)
TYPES = names_of(tfl.TensorType)

_DTYPES: dict[str, np.dtype] = {
    "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FLOAT32": np.dtype(np.float32),
}
# Integers that share a byte, the first one in the lowest bits.
_PACKED_BITS = {"INT4": 4, "INT2": 2}


class NotUnderstoodError(ValueError):
    """A flatbuffer is whole, but holds what the reader has no word for."""


@contextlib.contextmanager
def unpacked(content: bytes, name: str) -> Iterator[Any]:
    """The flatbuffer as objects; whatever a damaged one raises in the block is one error.

    Args:
        content: the file.
        name: what errors call it.

    Raises:
        ValueError: it is no TFLite file.
    """
    problem = ValueError(
        f"{name}: received a file that is not a TFLite flatbuffer ({len(content)} bytes), expected "
        "one written by sat_tf.export_tflite; export the model again."
    )
    if len(content) < 8 or content[4:8] != b"TFL3":
        raise problem
    try:
        yield tfl.ModelT.InitFromPackedBuf(content, 0)
    except NotUnderstoodError:
        raise
    except Exception as error:  # A damaged flatbuffer raises from anywhere, with many types.
        raise problem from error


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        name: its name.
        type: of its values, as the schema calls it.
        shape: with the batch dimension.
        steps: one for all values, or one for each index of `axis`; empty where it is not quantized.
        zero_points: as many.
        axis: see `steps`.
        values: of a constant; None for what operators make.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    steps: np.ndarray
    zero_points: np.ndarray
    axis: int
    values: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class StoredOperator:
    """An operator of a file.

    Attributes:
        name: as the schema calls it.
        inputs: the tensors it reads; None for one that is left out.
        outputs: those it makes.
        options: its builtin options, an object of the schema; None where it has none.
    """

    name: str
    inputs: tuple[StoredTensor | None, ...]
    outputs: tuple[StoredTensor, ...]
    options: Any


@dataclasses.dataclass(frozen=True)
class Contents:
    """The only graph of a file.

    Attributes:
        operators: in order.
        inputs: the tensors that a caller gives.
        outputs: those a caller gets.
    """

    operators: tuple[StoredOperator, ...]
    inputs: tuple[StoredTensor, ...]
    outputs: tuple[StoredTensor, ...]


def read_contents(model: Any) -> Contents:
    """The graph of an unpacked flatbuffer.

    Raises:
        NotUnderstoodError: it has several graphs, or constants of an unknown type.
    """
    if len(model.subgraphs) != 1:
        raise NotUnderstoodError(f"it has {len(model.subgraphs)} graphs, expected one")
    (subgraph,) = model.subgraphs
    tensors = [_tensor(model, tensor) for tensor in subgraph.tensors]

    def chosen(indices: Any) -> tuple[StoredTensor, ...]:
        return tuple(tensors[_within(index, len(tensors))] for index in indices)

    operators = []
    for operator in subgraph.operators:
        code = model.operatorCodes[_within(operator.opcodeIndex, len(model.operatorCodes))]
        inputs = [None if index == -1 else chosen([index])[0] for index in operator.inputs]
        operators.append(
            StoredOperator(
                name=OPERATORS[max(code.builtinCode, code.deprecatedBuiltinCode)],
                inputs=tuple(inputs),
                outputs=chosen(operator.outputs),
                options=operator.builtinOptions,
            )
        )
    return Contents(tuple(operators), chosen(subgraph.inputs), chosen(subgraph.outputs))


def _within(index: int, count: int) -> int:
    """The index; Python itself would count negative ones from the end."""
    if not 0 <= index < count:
        raise IndexError(f"{index}, expected 0 to {count - 1}")
    return int(index)


def _tensor(model: Any, tensor: Any) -> StoredTensor:
    shape = () if tensor.shape is None else tuple(int(size) for size in tensor.shape)
    data = model.buffers[_within(tensor.buffer, len(model.buffers))].data
    name, kind = tensor.name.decode(), TYPES[tensor.type]
    if not name.isprintable():  # LiteRT ends a name at a zero
        raise NotUnderstoodError(f"a tensor has the name {name!r}")
    quantization = tensor.quantization
    steps = np.empty(0, np.float32)
    if quantization is not None and quantization.scale is not None:
        steps = np.asarray(quantization.scale, np.float32)
    points = np.zeros(steps.size, np.int64)
    if steps.size and quantization.zeroPoint is not None:
        points = np.broadcast_to(np.asarray(quantization.zeroPoint, np.int64), steps.shape)
    return StoredTensor(
        name=name,
        type=kind,
        shape=shape,
        steps=steps,
        zero_points=points,
        axis=int(quantization.quantizedDimension) if steps.size else 0,
        values=_values(name, kind, shape, bytes(data)) if data is not None and len(data) else None,
    )


def _values(name: str, kind: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    if kind in _PACKED_BITS:
        return _separated(data, _PACKED_BITS[kind], shape)
    if kind not in _DTYPES:
        raise NotUnderstoodError(f"the constant {name} is of type {kind}")
    return np.frombuffer(data, _DTYPES[kind]).reshape(shape)


def _separated(data: bytes, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Two's complement integers of a few bits, of which several share a byte."""
    packed = np.frombuffer(data, np.uint8)
    pieces = np.stack([packed >> shift for shift in range(0, 8, bits)], axis=-1)
    lowest_bits = pieces.reshape(-1)[: int(np.prod(shape))] << (8 - bits)
    return (lowest_bits.astype(np.uint8).view(np.int8) >> (8 - bits)).reshape(shape)
