"""The contents of a TFLite flatbuffer: tensors, constants and operators, unpacked."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
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
# A valid file holds all that it unpacks to once; a little of it may be shared.
_LARGEST_RATIO = 2
_ALWAYS_UNPACKED_BYTES = 2**12
# Ten times those of the largest networks for images.
_MOST_TABLES = 2**17
_TABLE_BYTES = 8
_OFFSET_BYTES = 4
# The vectors of tables in a model, by their attribute: none of these tables holds a vector of
# tables itself, so that each takes no longer than its bytes do.
_MODEL_VECTORS = {
    "operatorCodes": tfl.OperatorCodeT,
    "buffers": tfl.BufferT,
    "metadata": tfl.MetadataT,
}
# More values than LiteRT itself takes in a tensor of a phone.
_MOST_VALUES = 2**28
# Integers that share a byte, the first one in the lowest bits.
_PACKED_BITS = {"INT4": 4, "INT2": 2}


class NotUnderstoodError(ValueError):
    """A flatbuffer is intact, but holds what the reader does not know."""


class _TooMuchError(Exception):
    """A flatbuffer unpacks to more than a file of its size can hold."""


@contextlib.contextmanager
def unpacked(content: bytes, name: str) -> Iterator[Any]:
    """The flatbuffer as objects; whatever a damaged one raises in the block is one error.

    Its tables are unpacked one by one, and their bytes counted: this stops where a small file
    unpacks to a huge one, because its tables share others.

    Args:
        content: the file.
        name: what errors call it.

    Raises:
        ValueError: it is not a TFLite file.
    """
    problem = ValueError(
        f"{name}: received a file that is not a TFLite flatbuffer ({len(content)} bytes), expected "
        "one written by sat_tf.export_tflite; export the model again."
    )
    if len(content) < 8 or content[4:8] != b"TFL3":
        raise problem
    try:
        yield _unpacked_model(content)
    except _TooMuchError as error:
        raise ValueError(
            f"{name}: received a TFLite file that {error}, expected one that sat_tf.export_tflite "
            "wrote; export the model again."
        ) from error
    except NotUnderstoodError:
        raise
    except Exception as error:  # A damaged flatbuffer raises from anywhere, with many types.
        raise problem from error


class _Budget:
    """The bytes and the tables that may still be unpacked."""

    def __init__(self, content: bytes) -> None:
        self._size = len(content)
        self._left = _LARGEST_RATIO * self._size + _ALWAYS_UNPACKED_BYTES
        self._tables = 0

    def spend(self, value: Any) -> Any:
        """The value, which has been unpacked.

        Raises:
            _TooMuchError: it is one too many.
        """
        self._left -= _bytes_of(value)
        self._tables += 1
        if self._left < 0:
            raise _TooMuchError(
                f"has {self._size:,} bytes and unpacks to more than {_LARGEST_RATIO} times as "
                "many, because its tables share others"
            )
        if self._tables > _MOST_TABLES:
            raise _TooMuchError(f"has more than {_MOST_TABLES:,} tensors, operators and buffers")
        return value


def _bytes_of(value: Any) -> int:
    """The bytes of an unpacked table in a file that holds all its parts once."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list):
        return sum(_OFFSET_BYTES + _bytes_of(inner) for inner in value)
    if hasattr(value, "__dict__"):
        return _TABLE_BYTES + sum(_bytes_of(inner) for inner in vars(value).values())
    return 0


def _unpacked_model(content: bytes) -> Any:
    """The parts of the schema's `ModelT` that are read here."""
    budget, root, model = _Budget(content), tfl.Model.GetRootAs(content, 0), tfl.ModelT()
    model.version = root.Version()
    for attribute, kind in _MODEL_VECTORS.items():
        setattr(model, attribute, _vector(root, attribute, kind.InitFromObj, budget))
    model.signatureDefs = [
        _signature(root.SignatureDefs(index), budget) for index in range(root.SignatureDefsLength())
    ]
    model.subgraphs = []
    for index in range(root.SubgraphsLength()):
        packed, graph = root.Subgraphs(index), tfl.SubGraphT()
        graph.name = packed.Name()
        graph.inputs = None if packed.InputsIsNone() else packed.InputsAsNumpy()
        graph.outputs = None if packed.OutputsIsNone() else packed.OutputsAsNumpy()
        budget.spend(graph)
        graph.tensors = _vector(packed, "tensors", _tensor_table, budget)
        graph.operators = _vector(packed, "operators", tfl.OperatorT.InitFromObj, budget)
        model.subgraphs.append(graph)
    return model


def _vector(table: Any, attribute: str, unpack: Callable[[Any], Any], budget: _Budget) -> list[Any]:
    """A vector of tables, each unpacked and then counted."""
    name = attribute[0].upper() + attribute[1:]
    count, at = getattr(table, f"{name}Length"), getattr(table, name)
    return [budget.spend(unpack(at(index))) for index in range(count())]


def _signature(packed: Any, budget: _Budget) -> Any:
    """A `SignatureDefT`, whose entries are counted one by one: they may all be the same one."""
    signature = tfl.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = packed.SignatureKey(), packed.SubgraphIndex()
    budget.spend(signature)
    for attribute in ("inputs", "outputs"):
        entries = _vector(packed, attribute, tfl.TensorMapT.InitFromObj, budget)
        setattr(signature, attribute, entries)
    return signature


def signature_names(model: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys that the signature of an unpacked file has for its inputs, and for its outputs.

    They are in the order of the tensors. Either is empty where the signature has the names of the
    tensors, or not one name for each.
    """
    (subgraph,), signatures = model.subgraphs, model.signatureDefs
    found: list[tuple[str, ...]] = []
    for role in ("inputs", "outputs"):
        entries = getattr(signatures[0], role) if len(signatures) == 1 else []
        names = {int(entry.tensorIndex): entry.name.decode() for entry in entries}
        tensors = [int(index) for index in getattr(subgraph, role)]
        is_one_each = len(names) == len(entries) and {*tensors} == {*names}
        is_one_each = is_one_each and all(map(str.isprintable, names.values()))
        keys = tuple(names[index] for index in tensors) if is_one_each else ()
        own = tuple(subgraph.tensors[index].name.decode() for index in tensors)
        found.append(() if keys == own else keys)
    return found[0], found[1]


def _tensor_table(packed: Any) -> Any:
    """The parts of a `TensorT` that are read here, of which none is a vector of tables."""
    tensor = tfl.TensorT()
    tensor.name, tensor.type, tensor.buffer = packed.Name(), packed.Type(), packed.Buffer()
    tensor.shape = None if packed.ShapeIsNone() else packed.ShapeAsNumpy()
    if (quantization := packed.Quantization()) is not None:
        tensor.quantization = tfl.QuantizationParametersT.InitFromObj(quantization)
    return tensor


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        name: its name.
        type: of its values, as the schema calls it.
        shape: with the batch dimension.
        scales: one for all values, or one for each index of `axis`; empty if it is not quantized.
        zero_points: as many.
        axis: see `scales`.
        values: of a constant; None for what operators make.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    scales: np.ndarray
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
    constants = _Constants(model.buffers)
    tensors = [_tensor(constants, tensor) for tensor in subgraph.tensors]

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


class _Constants:
    """The values of constants; tensors that share a buffer share them.

    Args:
        buffers: of the file.
    """

    def __init__(self, buffers: list[Any]) -> None:
        self._buffers = buffers
        self._made: dict[Any, np.ndarray] = {}

    def values(self, number: int, name: str, kind: str, shape: tuple[int, ...]) -> Any:
        """The values of a tensor; None for what operators make."""
        data = self._buffers[_within(number, len(self._buffers))].data
        if data is None or not len(data):
            return None
        key = number, kind, shape
        if key not in self._made:
            self._made[key] = _values(name, kind, shape, np.asarray(data, np.uint8))
        return self._made[key]


def _tensor(constants: _Constants, tensor: Any) -> StoredTensor:
    shape = () if tensor.shape is None else tuple(int(size) for size in tensor.shape)
    if math.prod(shape) > _MOST_VALUES:
        raise NotUnderstoodError(f"a tensor has the shape {shape}, expected fewer values")
    name, kind = tensor.name.decode(), TYPES[tensor.type]
    if not name.isprintable():  # LiteRT ends a name at a zero
        raise NotUnderstoodError(f"a tensor has the name {name!r}")
    quantization = tensor.quantization
    scales = np.empty(0, np.float32)
    if quantization is not None and quantization.scale is not None:
        scales = np.asarray(quantization.scale, np.float32)
    points = np.zeros(scales.size, np.int64)
    if scales.size and quantization.zeroPoint is not None:
        points = np.broadcast_to(np.asarray(quantization.zeroPoint, np.int64), scales.shape)
    return StoredTensor(
        name=name,
        type=kind,
        shape=shape,
        scales=scales,
        zero_points=points,
        axis=int(quantization.quantizedDimension) if scales.size else 0,
        values=constants.values(tensor.buffer, name, kind, shape),
    )


def _values(name: str, kind: str, shape: tuple[int, ...], data: np.ndarray) -> np.ndarray:
    if kind in _PACKED_BITS:
        return _separated(data, _PACKED_BITS[kind], shape)
    if kind not in _DTYPES:
        raise NotUnderstoodError(f"the constant {name} is of type {kind}")
    return np.frombuffer(data, _DTYPES[kind]).reshape(shape)


def _separated(data: bytes | np.ndarray, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Two's complement integers of a few bits, of which several share a byte."""
    packed = np.frombuffer(data, np.uint8)
    pieces = np.stack([packed >> shift for shift in range(0, 8, bits)], axis=-1)
    lowest_bits = pieces.reshape(-1)[: int(np.prod(shape))] << (8 - bits)
    return (lowest_bits.astype(np.uint8).view(np.int8) >> (8 - bits)).reshape(shape)
