"""The contents of a TFLite file: tensors, constants, operators; their differences; its size."""

import collections
import contextlib
import dataclasses
import functools
import gzip
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.tflite.value_tables import DECODE, WrongTablesError, unfold


def names_of(enumeration: type) -> dict[int, str]:
    """Returns the names of an enumeration of the schema, by value."""
    return {value: name for name, value in vars(enumeration).items() if not name.startswith("_")}


OPERATORS = names_of(tfl.BuiltinOperator)
TYPES = names_of(tfl.TensorType)

_NUMBERS = ("INT32", "INT64", "BOOL")
_TYPES_OF_CONSTANTS = ("INT8", "UINT8", "INT16", "FLOAT32", *_NUMBERS)
# A valid file holds once everything it unpacks to, except zero points, which tensors share: eight
# bytes for each scale of four. Small files may share more.
_LARGEST_RATIO = 4
# The same for kernels with indices of one bit; each use of a shared one is expanded by itself.
_LARGEST_EXPANSION = 16
_ALWAYS_UNPACKED_BYTES = 2**18
# Ten times the number of tables in the largest networks for images.
_MOST_TABLES = 2**17
# Far above those of networks; the time that LiteRT takes to prepare them grows with their square.
_MOST_OPERATORS = 10_000
_TABLE_BYTES = 8
_OFFSET_BYTES = 4
# More values than LiteRT itself takes in a tensor on a phone.
_MOST_VALUES = 2**28
# Types of integers that share a byte, the first one in the lowest bits.
_PACKED_BITS = {"INT4": 4, "INT2": 2}

# Operators whose second input is a kernel, and one whose constant matrices all are.
_WITH_KERNEL = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED")
_WITH_MATRICES = "UNIDIRECTIONAL_SEQUENCE_LSTM"


class NotUnderstoodError(ValueError):
    """The error of an intact flatbuffer with contents that the reader does not know."""


class _TooMuchError(Exception):
    """A flatbuffer unpacks to more than a file of its size, or any network, can hold."""


@contextlib.contextmanager
def unpacked(content: bytes, name: str) -> Iterator[Any]:
    """Yields the flatbuffer as objects; any error of a damaged one in the block is one ValueError.

    The tables are unpacked one by one, and their bytes counted: reading stops where a small file
    unpacks to a huge one because its tables share others. Kernels that are tables of values are
    expanded, and the operators that do so are left out.
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
            f"{name}: received a TFLite file of {len(content):,} bytes that unpacks to more than a "
            f"file of its size can hold, or to more than {_MOST_OPERATORS:,} operators, expected "
            "one that sat_tf.export_tflite wrote; export the model again."
        ) from error
    except WrongTablesError as error:
        raise ValueError(
            f"{name}: received a TFLite file in which a {DECODE} {error}, expected one table of "
            "values for each scale of a kernel; export the model again with pack='table'."
        ) from error
    except NotUnderstoodError:
        raise
    except Exception as error:  # A damaged flatbuffer raises from anywhere, with many types.
        raise problem from error


class _Budget:
    """The bytes and the tables that may still be unpacked."""

    def __init__(self, content: bytes) -> None:
        self._left = _LARGEST_RATIO * len(content) + _ALWAYS_UNPACKED_BYTES
        self._tables = 0

    def spend(self, value: Any) -> Any:
        """Counts an unpacked value, and returns it."""
        self._left -= _bytes_of(value)
        self._tables += 1
        if self._left < 0 or self._tables > _MOST_TABLES:
            raise _TooMuchError
        return value


def _bytes_of(value: Any) -> int:
    """Returns the bytes of an unpacked table in a file that holds all its parts once."""
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
    """Unpacks the parts of the schema's `ModelT` that are read here."""
    budget, root, model = _Budget(content), tfl.Model.GetRootAs(content, 0), tfl.ModelT()
    model.version = root.Version()
    # These tables hold no vectors of tables, so that each unpacks in the time that its bytes take.
    model.operatorCodes = _vector(root, "operatorCodes", tfl.OperatorCodeT.InitFromObj, budget)
    model.buffers = _vector(root, "buffers", tfl.BufferT.InitFromObj, budget)
    model.metadata = _vector(root, "metadata", tfl.MetadataT.InitFromObj, budget)
    for buffer in model.buffers:
        # Other tools put large buffers after the flatbuffer, at an offset; 0 and 1 are no offsets.
        if buffer.offset > 1:
            whole = np.frombuffer(content, np.uint8)
            _within(buffer.offset + buffer.size - 1, whole.size)
            buffer.data = whole[buffer.offset : buffer.offset + buffer.size]
            budget.spend(buffer)
    model.signatureDefs = []
    for index in range(root.SignatureDefsLength()):
        packed, signature = root.SignatureDefs(index), tfl.SignatureDefT()
        signature.signatureKey = budget.spend(packed.SignatureKey())
        # The entries are counted one by one, as all may be the same one.
        signature.inputs = _vector(packed, "inputs", tfl.TensorMapT.InitFromObj, budget)
        signature.outputs = _vector(packed, "outputs", tfl.TensorMapT.InitFromObj, budget)
        model.signatureDefs.append(signature)
    model.subgraphs = []
    for index in range(root.SubgraphsLength()):
        packed, graph = root.Subgraphs(index), tfl.SubGraphT()
        graph.name = packed.Name()
        graph.inputs = None if packed.InputsIsNone() else packed.InputsAsNumpy()
        graph.outputs = None if packed.OutputsIsNone() else packed.OutputsAsNumpy()
        budget.spend(graph)
        if packed.OperatorsLength() > _MOST_OPERATORS:
            raise _TooMuchError
        graph.tensors = _vector(packed, "tensors", _tensor_table, budget)
        graph.operators = _vector(packed, "operators", tfl.OperatorT.InitFromObj, budget)
        model.subgraphs.append(graph)
    bytes_left = _LARGEST_EXPANSION * len(content) + _ALWAYS_UNPACKED_BYTES
    for num_bytes in unfold(model):
        bytes_left -= num_bytes
        if bytes_left < 0:
            raise _TooMuchError
    return model


def _vector(table: Any, attribute: str, unpack: Callable[[Any], Any], budget: _Budget) -> list[Any]:
    """Unpacks a vector of tables, and counts each."""
    name = attribute[0].upper() + attribute[1:]
    count, at = getattr(table, f"{name}Length"), getattr(table, name)
    return [budget.spend(unpack(at(index))) for index in range(count())]


def signature_names(model: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the signature's keys of inputs and outputs, in order; () if tensors have them."""
    (subgraph,), signatures = model.subgraphs, model.signatureDefs

    def keys_of(role: str) -> tuple[str, ...]:
        entries = getattr(signatures[0], role) if len(signatures) == 1 else []
        names = {int(entry.tensorIndex): entry.name.decode() for entry in entries}
        tensors = [int(index) for index in getattr(subgraph, role)]
        is_one_each = len(names) == len(entries) and {*tensors} == {*names}
        is_one_each = is_one_each and all(map(str.isprintable, names.values()))
        keys = tuple(names[index] for index in tensors) if is_one_each else ()
        tensor_names = tuple(subgraph.tensors[index].name.decode() for index in tensors)
        return () if keys == tensor_names else keys

    return keys_of("inputs"), keys_of("outputs")


def _tensor_table(packed: Any) -> Any:
    """Unpacks the parts of a `TensorT` that are read here; they hold no vector of tables."""
    tensor = tfl.TensorT()
    tensor.name, tensor.type, tensor.buffer = packed.Name(), packed.Type(), packed.Buffer()
    tensor.shape = None if packed.ShapeIsNone() else packed.ShapeAsNumpy()
    tensor.isVariable = packed.IsVariable()
    if not packed.ShapeSignatureIsNone():
        tensor.shapeSignature = packed.ShapeSignatureAsNumpy()
    if (quantization := packed.Quantization()) is not None:
        tensor.quantization = tfl.QuantizationParametersT.InitFromObj(quantization)
    return tensor


@dataclasses.dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor of a file, with everything that decides computations on it."""

    name: str  # The tensor's name.
    type: str  # The schema's name of its values' type.
    shape: tuple[int, ...]  # Its sizes, with the batch dimension.
    # One scale for all values, or for each index of `axis`; empty if it is not quantized.
    scales: np.ndarray
    zero_points: np.ndarray  # The zero points, as many as scales.
    axis: int  # The axis of several `scales`.
    data: np.ndarray | None  # The bytes of a constant; None for other tensors.
    is_variable: bool = False  # Whether it is a state, which runtimes keep from run to run.
    # The bits of an index, for a kernel that the file holds as tables of values; 0 for any other.
    index_bits: int = 0

    @functools.cached_property
    def values(self) -> np.ndarray | None:
        """The values of a constant; None for other tensors."""
        if self.data is None:
            return None
        if self.type in _PACKED_BITS:
            return _separated(self.data, _PACKED_BITS[self.type], self.shape)
        if self.type not in _TYPES_OF_CONSTANTS:
            raise NotUnderstoodError(f"the constant {self.name} is of type {self.type}")
        return np.frombuffer(self.data, np.dtype(self.type.lower())).reshape(self.shape)

    @property
    def holds_numbers(self) -> bool:
        """Whether its values are places, sizes or truths: neither codes nor real values."""
        return self.type in _NUMBERS

    def difference(self, other: "StoredTensor") -> str | None:
        """Returns the name of the first attribute that differs from another tensor's, if any."""
        names = [field.name for field in dataclasses.fields(self)]
        differing = (n for n in names if not np.array_equal(getattr(self, n), getattr(other, n)))
        return next(differing, None)


@dataclasses.dataclass(frozen=True, eq=False)
class StoredOperator:
    """An operator of a file."""

    name: str  # The operator's name in the schema.
    inputs: tuple[StoredTensor | None, ...]  # Tensors it reads; None for ones that are left out.
    outputs: tuple[StoredTensor, ...]  # The tensors it makes.
    options: Any  # Its builtin options, an object of the schema; None where it has none.
    custom: str = ""  # The name of an operator outside the schema; "" for any other.
    # Tensors without values, whose grids say how it computes.
    intermediates: tuple[StoredTensor, ...] = ()

    @property
    def reads(self) -> tuple[StoredTensor, ...]:
        """The tensors it reads, without the ones that are left out."""
        return tuple(tensor for tensor in self.inputs if tensor is not None)

    @property
    def multiply_adds(self) -> int:
        """The number of products of weights and inputs for one image, as far as shapes tell."""
        if self.name == _WITH_MATRICES and self.outputs:
            constants = (tensor.shape for tensor in self.reads if tensor.data is not None)
            num_weights = sum(math.prod(shape) for shape in constants if len(shape) == 2)
            return math.prod(self.outputs[0].shape[:-1]) * num_weights
        if self.name not in _WITH_KERNEL or len(self.reads) < 2:
            return 0
        # Each pixel made, or read by a transposed convolution, meets the whole kernel.
        is_transposed = self.name == "TRANSPOSE_CONV" and len(self.reads) > 2
        tensors = self.reads[2:] if is_transposed else self.outputs
        return math.prod(tensors[0].shape[:-1] + self.reads[1].shape) if tensors else 0

    @property
    def settings(self) -> str:
        """Its builtin options in words."""

        def plain(value: Any) -> Any:
            return value.tolist() if isinstance(value, np.ndarray) else str(value)

        options = vars(self.options) if self.options is not None else {}
        return json.dumps(options, sort_keys=True, default=plain)

    def difference(self, other: "StoredOperator") -> str | None:
        """Describes how another operator in its place differs; None where it is the same."""
        where = f"{self.name} {self.outputs[0].name}"
        if (self.name, self.settings) != (other.name, other.settings):
            return f"{where}: {other.name} {other.settings}, expected {self.name} {self.settings}"
        pairs = zip(self.reads + self.outputs, other.reads + other.outputs, strict=False)
        for tensor, other_tensor in pairs:
            if attribute := tensor.difference(other_tensor):
                return f"{where}: the {attribute} of {tensor.name} is not the model's"
        counts = [(len(operator.reads), len(operator.outputs)) for operator in (self, other)]
        return f"{where}: reads other tensors" if counts[0] != counts[1] else None


# The name of the entry in which a file says how it was made.
SETTINGS_NAME = "sat_tf"


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """The graph of a file, and its interface."""

    operators: tuple[StoredOperator, ...]  # In order.
    tensors: tuple[StoredTensor, ...] = ()  # The tensors of all operators.
    inputs: tuple[StoredTensor, ...] = ()  # The tensors that a caller gives.
    outputs: tuple[StoredTensor, ...] = ()  # The tensors that a caller gets.
    interface: str = ""  # Its inputs and outputs, as tensors and in its signatures, in words.
    # Its entry `SETTINGS_NAME`, which says how it was made; None without one.
    settings: dict[str, Any] | None = None
    # The graphs after the first, which the other fields describe: number, name and size, in words.
    more_graphs: tuple[str, ...] = ()

    @property
    def is_ours(self) -> bool:
        """Whether `sat_tf.export_tflite` wrote it, which every version of it says in the file."""
        return "float_head" in (self.settings or {})

    def operator_counts(self) -> dict[str, int]:
        """Counts the operators of each kind, and those that expand kernels."""
        names = [stored.name for stored in self.operators]
        names += [DECODE for tensor in self.tensors if tensor.index_bits]
        return dict(sorted(collections.Counter(names).items()))

    def float_operators(self) -> list[str]:
        """Lists the operators that read or make float tensors, each with the tensor it makes."""
        return [
            f"{op.name} {op.outputs[0].name if op.outputs else ''}".strip()
            for op in self.operators
            if any(tensor.type == "FLOAT32" for tensor in op.reads + op.outputs)
        ]


def read_contents(content: bytes, name: str) -> Contents:
    """Reads a TFLite file."""
    with unpacked(content, name) as model:
        return _contents_of(model)


def understood(model: Any) -> Contents:
    """Returns the contents of the unpacked flatbuffer of a file as sat-tf writes it."""
    if len(model.subgraphs) != 1:
        raise NotUnderstoodError(f"it has {len(model.subgraphs)} graphs, expected one")
    contents, names = _of_usual_sizes(model), set[str]()
    for tensor in contents.tensors:
        # LiteRT ends a name at a zero, and gives the values of tensors by their names.
        if not tensor.name.isprintable() or tensor.name in names:
            again = " of another" if tensor.name in names else ""
            raise NotUnderstoodError(f"a tensor has the name {tensor.name!r}{again}")
        names.add(tensor.name)
    return contents


def _of_usual_sizes(model: Any) -> Contents:
    contents = _contents_of(model)
    for shape in (tensor.shape for tensor in contents.tensors):
        if math.prod(shape) > _MOST_VALUES:
            raise NotUnderstoodError(f"a tensor has the shape {shape}, expected fewer values")
    return contents


def of_any_tool(model: Any) -> Contents:
    """Returns the contents of any tool's flatbuffer, with distinct names of tensors."""
    if not model.subgraphs:
        raise NotUnderstoodError("it has no graph")
    subgraph, names = model.subgraphs[0], set[str]()
    inputs = [] if subgraph.inputs is None else list(map(int, subgraph.inputs))
    if len(set(inputs)) < len(inputs):
        raise NotUnderstoodError(f"its inputs are the tensors {inputs}, with one of them twice")
    for index in inputs:
        tensor = subgraph.tensors[_within(index, len(subgraph.tensors))]
        sizes = [] if tensor.shapeSignature is None else list(map(int, tensor.shapeSignature))
        if -1 in sizes[1:]:
            raise NotUnderstoodError(f"it has an input of the shape {sizes}, with open sizes")
    for index, tensor in enumerate(subgraph.tensors):
        name = _text(tensor.name)
        if not name.isprintable() or not name:
            name = f"tensor {index}"
        elif name in names:
            name = f"{name} ({index})"
        names.add(name)
        tensor.name = name.encode()
    return _of_usual_sizes(model)


def _contents_of(model: Any) -> Contents:
    subgraph = model.subgraphs[0]
    tensors = tuple(_tensor(model, tensor) for tensor in subgraph.tensors)

    def chosen(indices: Any) -> tuple[StoredTensor, ...]:
        indices = () if indices is None else indices
        return tuple(tensors[_within(index, len(tensors))] for index in indices)

    operators = []
    for operator in subgraph.operators:
        code = model.operatorCodes[_within(operator.opcodeIndex, len(model.operatorCodes))]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        input_indices = () if operator.inputs is None else operator.inputs
        between = () if operator.intermediates is None else operator.intermediates
        inputs = [None if index == -1 else chosen([index])[0] for index in input_indices]
        operators.append(
            StoredOperator(
                name=OPERATORS.get(number, f"OPERATOR_{number}"),  # of a later schema
                inputs=tuple(inputs),
                outputs=chosen(operator.outputs),
                options=operator.builtinOptions,
                custom=_text(code.customCode),
                intermediates=chosen([index for index in between if index != -1]),
            )
        )
    ends = {role: chosen(getattr(subgraph, role)) for role in ("inputs", "outputs")}
    signatures = {
        _text(signature.signatureKey): {
            role: {_text(entry.name): int(entry.tensorIndex) for entry in getattr(signature, role)}
            for role in ends
        }
        for signature in model.signatureDefs
    }
    names = {role: [tensor.name for tensor in role_ends] for role, role_ends in ends.items()}
    more_graphs = []
    for index, graph in enumerate(model.subgraphs[1:], start=1):
        name = " ".join(f"graph {index} {_text(graph.name)}".split())
        more_graphs.append(f"{name} with {len(graph.operators)} operators")
    entries = (entry for entry in model.metadata if _text(entry.name) == SETTINGS_NAME)
    settings = next((bytes(model.buffers[entry.buffer].data) for entry in entries), None)
    return Contents(
        operators=tuple(operators),
        tensors=tensors,
        **ends,
        interface=json.dumps({**names, "signatures": signatures}),
        settings=None if settings is None else dict(json.loads(settings)),
        more_graphs=tuple(more_graphs),
    )


def _text(name: bytes | None) -> str:
    """Returns a name in a file, which may be missing, or not text."""
    return (name or b"").decode(errors="replace")


def _within(index: int, count: int) -> int:
    """Returns the index in range; Python itself would count negative ones from the end."""
    if not 0 <= index < count:
        raise IndexError(f"{index}, expected 0 to {count - 1}")
    return int(index)


def _tensor(model: Any, tensor: Any) -> StoredTensor:
    quantization = tensor.quantization
    scales = np.empty(0, np.float32)
    if quantization is not None and quantization.scale is not None:
        scales = np.asarray(quantization.scale, np.float32)
    points = np.zeros(scales.size, np.int64)
    if scales.size and quantization.zeroPoint is not None:
        points = np.broadcast_to(np.asarray(quantization.zeroPoint, np.int64), scales.shape)
    data = model.buffers[_within(tensor.buffer, len(model.buffers))].data
    return StoredTensor(
        name=_text(tensor.name),
        type=TYPES[tensor.type],
        shape=() if tensor.shape is None else tuple(int(size) for size in tensor.shape),
        scales=scales,
        zero_points=points,
        axis=int(quantization.quantizedDimension) if scales.size else 0,
        data=None if data is None or not len(data) else np.asarray(data, np.uint8),
        is_variable=bool(tensor.isVariable),
        index_bits=getattr(tensor, "index_bits", 0),
    )


def _separated(data: bytes | np.ndarray, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """Unpacks two's complement integers of a few bits, several of which share a byte."""
    packed = np.frombuffer(data, np.uint8)
    pieces = np.stack([packed >> shift for shift in range(0, 8, bits)], axis=-1)
    lowest_bits = pieces.reshape(-1)[: int(np.prod(shape))] << (8 - bits)
    return (lowest_bits.astype(np.uint8).view(np.int8) >> (8 - bits)).reshape(shape)


def differences(expected: Contents, found: Contents) -> list[str]:
    """Lists the differences of `found` from `expected`, in sentences."""
    counts = expected.operator_counts(), found.operator_counts()
    if counts[0] != counts[1]:
        wanted, received = (
            ", ".join(f"{number} {name}" for name, number in count.items()) for count in counts
        )
        return [f"its operators are {received}, expected {wanted}"]
    lines = []
    if expected.interface != found.interface:
        lines.append(f"its interface is {found.interface}, expected {expected.interface}")
    pairs = zip(expected.operators, found.operators, strict=True)
    return lines + [line for operator, stored in pairs if (line := operator.difference(stored))]


_PIECE = 2**24


def gzip_size(content: bytes) -> int:
    """Returns the number of bytes after gzip at its default level (6), with no time stamp.

    Large files are compressed in pieces, as many at a time as there are processors. The pieces
    together are a gzip file too, larger by some bytes in a million.
    """
    pieces = (content[start : start + _PIECE] for start in range(0, len(content), _PIECE))
    with ThreadPoolExecutor() as pool:
        return sum(pool.map(lambda piece: len(gzip.compress(piece, 6, mtime=0)), pieces))
