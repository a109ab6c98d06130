"""A builder of TFLite flatbuffers: tensor by tensor, and operator by operator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.tflite.input_range import KEPT_TYPES
from sat_tf.exact.tflite.tensors import Activation, Codes, Storage, Tensors, Window, free_name
from sat_tf.exact.tflite.value_tables import DECODE, Encoded
from sat_tf.version import __version__

_FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_BITS_PER_BYTE = 8
_ALIGNMENT = 16

_INT32 = np.dtype(np.int32)
# The versions that read int16, of the operators for which these are later ones than for int8.
_OF_INT16 = {
    **dict.fromkeys(("LOGISTIC", "TANH", "SOFTMAX", "MEAN", "REDUCE_MAX", "CONCATENATION"), 3),
    "CONV_2D": 4,
    "DEPTHWISE_CONV_2D": 5,
    "FULLY_CONNECTED": 7,
    "ADD": 3,
    "SUB": 5,
    "MUL": 4,
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "DEQUANTIZE"), 3),
    **dict.fromkeys(("MAXIMUM", "MINIMUM", "PAD", "GATHER", "RESIZE_NEAREST_NEIGHBOR"), 4),
    "TRANSPOSE": 5,
}
_BYTE = tfl.TensorType.UINT8
_TYPES = {np.dtype(name): getattr(tfl.TensorType, name.upper()) for name in KEPT_TYPES}


class Operator(NamedTuple):
    """One operator of the schema, as sat-tf writes it."""

    name: str  # The name in `BuiltinOperator`.
    # The version that reads the types of sat-tf's files; older runtimes then refuse a file instead
    # of misreading it.
    version: int
    options: str  # The schema's name of its builtin options; "" where it has none.
    custom: str | None = None  # The name of an operator outside the schema.


_DECODE = Operator("CUSTOM", 1, "", DECODE)


def _table(table_type: type, **fields: Any) -> Any:
    """Returns a table of the schema with these fields."""
    table = table_type()
    for name, value in fields.items():
        setattr(table, name, value)
    return table


class Writer:
    """A file with one graph, to which operations add constants and operators."""

    def __init__(self, graph: Tensors, *, resizable: bool = False) -> None:
        self.graph, self.resizable = graph, resizable
        self.subgraph = _table(tfl.SubGraphT, name="main", tensors=[], operators=[])
        self.model = _table(tfl.ModelT, version=_SCHEMA_VERSION, subgraphs=[self.subgraph])
        self.model.description = f"sat-tf {__version__}"
        self.model.buffers = [tfl.BufferT()]  # buffer 0 stands for "no data"
        self.model.operatorCodes = []
        self.indices: dict[int | str, int] = {}
        self._kernel_buffers: dict[bytes, int] = {}
        self._integers: dict[tuple[Any, ...], int] = {}
        self._names = {*(image.name for image in graph.images), *graph.tensors}
        for image in graph.images:
            codes = None
            if image.scale is not None and image.type != "float32":
                codes = Codes(image.scale, image.zero_point, bits=image.bits)
            self._activation(image.name, image.shape, np.dtype(image.type), codes)

    # -- tensors ---------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Adds the tensor that the next operation makes."""
        tensor = self.graph.tensors[name]
        dtype = np.dtype(np.float32) if tensor.codes is None else tensor.codes.dtype
        self._activation(tensor.name, tensor.shape, dtype, tensor.codes)

    def between(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype = _INT32,
        codes: Codes | None = None,
    ) -> int:
        """Adds a tensor that no other operation reads; returns its index."""
        name = self.unused(name)
        self._activation(name, shape, dtype, codes)
        return self.indices[name]

    def constant(
        self, name: str, values: np.ndarray, scales: Any = None, zero_point: int = 0
    ) -> int:
        """Adds a constant tensor, with one scale for all its values or one for each.

        Integers without a scale, such as shapes and the ends of slices, are in the file once.
        """
        key, quantization = (values.shape, values.tobytes()), None
        is_shared = values.dtype == _INT32 and scales is None
        if is_shared and key in self._integers:
            return self._integers[key]
        if scales is not None:
            quantization = _quantization(np.atleast_1d(scales), zero_point, 0)
        buffer = self._buffer(np.frombuffer(values.tobytes(), np.uint8))
        index = self._constant(name, values.shape, _TYPES[values.dtype], buffer, quantization)
        if is_shared:
            self._integers[key] = index
        return index

    def kernel(
        self,
        name: str,
        codes: np.ndarray,
        storage: Storage,
        scales: Any,
        axis: int,
        encoded: Encoded | None = None,
    ) -> int:
        """Adds the kernel of a linear layer, with a scale for each index of `axis`, or for all.

        An operator makes an `encoded` one; it has to come before the operator that reads it.
        """
        dtype, quantization = getattr(tfl.TensorType, storage.name), _quantization(scales, 0, axis)
        if encoded is None:
            buffer = self._shared_buffer(packed_bytes(codes, storage))
            return self._constant(name, codes.shape, dtype, buffer, quantization)
        constants = {"indices": encoded.indices, "tables": encoded.tables}
        inputs = [
            self._constant(f"{name}/{role}", data.shape, _BYTE, self._shared_buffer(data), None)
            for role, data in constants.items()
        ]
        index = self._constant(name, codes.shape, dtype, 0, quantization)
        self.operator(_DECODE, inputs, index)
        return index

    def _shared_buffer(self, data: np.ndarray) -> int:
        """Returns the buffer with this data: the file holds weights with several uses once."""
        content = data.tobytes()
        if content not in self._kernel_buffers:
            self._kernel_buffers[content] = self._buffer(data)
        return self._kernel_buffers[content]

    def float_constant_of(self, name: str, shape: tuple[int, ...]) -> int:
        """Adds a float tensor that an operator makes from a constant; returns its index."""
        return self._constant(name, shape, tfl.TensorType.FLOAT32, 0, None)

    def state(self, name: str, shape: tuple[int, ...], dtype: type, grid: Codes) -> int:
        """Adds a variable tensor, which an operator keeps from step to step; returns its index."""
        index = self.between(name, shape, np.dtype(dtype), grid)
        self.subgraph.tensors[index].isVariable = True
        return index

    def unused(self, name: str) -> str:
        """Returns a name that no other tensor has: LiteRT finds tensors by their names."""
        name = free_name(name, self._names)
        self._names.add(name)
        return name

    # -- operators -------------------------------------------------------------------------------

    def operator(
        self, kind: Operator, inputs: Iterable[int | str], output: int | str, **options: Any
    ) -> Any:
        """Adds an operator, in which -1 stands for an input that is left out; returns it."""
        places = [self.indices.get(tensor, tensor) for tensor in inputs]
        version, types = kind.version, [self.subgraph.tensors[place].type for place in places]
        if tfl.TensorType.INT16 in types:
            version = max(version, _OF_INT16.get(kind.name, version))
        operator = _table(
            tfl.OperatorT,
            opcodeIndex=self._code(kind.name, version, kind.custom),
            inputs=places,
            outputs=[self.indices.get(output, output)],
        )
        if kind.options:
            operator.builtinOptionsType = getattr(tfl.BuiltinOptions, kind.options)
            operator.builtinOptions = _table(getattr(tfl, f"{kind.options}T"), **options)
        elif options:
            raise TypeError(f"{kind.name}: received {', '.join(options)}, expected no options")
        self.subgraph.operators.append(operator)
        return operator

    def finish(
        self,
        outputs: Sequence[str],
        metadata: Mapping[str, bytes],
        keys: tuple[Sequence[str], Sequence[str]] = ((), ()),
    ) -> bytes:
        """Returns the file; without keys, its signature has the names of tensors."""
        images = [image.name for image in self.graph.images]
        self.subgraph.inputs = [self.indices[name] for name in images]
        self.subgraph.outputs = [self.indices[name] for name in outputs]
        self.model.metadata = [
            _table(tfl.MetadataT, name=name, buffer=self._buffer(np.frombuffer(data, np.uint8)))
            for name, data in metadata.items()
        ]
        signature = _table(tfl.SignatureDefT, signatureKey="serving_default", subgraphIndex=0)
        signature.inputs, signature.outputs = (
            [
                _table(tfl.TensorMapT, name=name, tensorIndex=self.indices[tensor])
                for name, tensor in dict(zip(names or tensors, tensors, strict=True)).items()
            ]
            for names, tensors in zip(keys, (images, outputs), strict=True)
        )
        self.model.signatureDefs = [signature]
        return file_of(self.model)

    def _constant(
        self, name: str, shape: tuple[int, ...], tensor_type: int, buffer: int, quantization: Any
    ) -> int:
        fields = {"shape": list(shape), "type": tensor_type, "buffer": buffer}
        tensor = _table(tfl.TensorT, name=self.unused(name), quantization=quantization, **fields)
        self.subgraph.tensors.append(tensor)
        return len(self.subgraph.tensors) - 1

    def _activation(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, codes: Codes | None
    ) -> None:
        tensor = _table(tfl.TensorT, name=name, shape=[1, *shape], type=_TYPES[dtype])
        if self.resizable:
            tensor.shapeSignature = [-1, *shape]
        if codes is not None:
            tensor.quantization = _quantization(np.atleast_1d(codes.scale), codes.zero_point, 0)
        self.subgraph.tensors.append(tensor)
        self.indices[name] = len(self.subgraph.tensors) - 1

    def _buffer(self, data: np.ndarray) -> int:
        self.model.buffers.append(_table(tfl.BufferT, data=data))
        return len(self.model.buffers) - 1

    def _code(self, name: str, version: int, custom: str | None) -> int:
        builtin, codes = getattr(tfl.BuiltinOperator, name), self.model.operatorCodes
        for index, code in enumerate(codes):
            if (code.builtinCode, code.version, code.customCode) == (builtin, version, custom):
                return index
        code = _table(tfl.OperatorCodeT, builtinCode=builtin, version=version)
        code.deprecatedBuiltinCode = min(builtin, 127)
        code.customCode = custom
        codes.append(code)
        return len(codes) - 1


class _SharingBuilder(flatbuffers.Builder):
    """A builder that writes equal zero points of channels once, as tables hold offsets to vectors.

    TFLite asks for a zero point of eight bytes with every scale, and those of channels are 0.
    Single zero points, scales and data are not shared, so that the length of a file does not depend
    on its numbers.
    """

    def __init__(self, initial_size: int, *, aligns: bool) -> None:
        super().__init__(initial_size)
        self._zero_points: dict[bytes, int] = {}
        self._aligns = aligns  # Whether bytes of constants begin at multiples of 16.

    def CreateNumpyVector(self, x: np.ndarray) -> int:  # noqa: N802
        """Returns the offset of a vector with these numbers; see `flatbuffers.Builder`."""
        if self._aligns and x.dtype == np.uint8:
            self.Prep(_ALIGNMENT, x.size)
        if x.dtype != np.int64 or x.size == 1:
            return int(super().CreateNumpyVector(x))
        content = x.tobytes()
        if content not in self._zero_points:
            self._zero_points[content] = super().CreateNumpyVector(x)
        return self._zero_points[content]


def file_of(model: Any) -> bytes:
    """Returns the file of a `ModelT` of the schema."""
    # DECODE reads indices in words of 8 bytes, which some processors load only where aligned.
    aligns = any(code.customCode in (DECODE, DECODE.encode()) for code in model.operatorCodes)
    builder = _SharingBuilder(1 << 20, aligns=aligns)
    builder.Finish(model.Pack(builder), file_identifier=_FILE_IDENTIFIER)
    return bytes(builder.Output())


def packed_bytes(codes: np.ndarray, storage: Storage) -> np.ndarray:
    """Packs codes into bytes: the first in the lowest bits of a byte, zeros at the end."""
    if storage is Storage.INT8:
        return np.frombuffer(codes.astype(np.int8).tobytes(), np.uint8)
    per_byte = _BITS_PER_BYTE // storage.value
    # Each code is two's complement in one byte; only the low bits are kept.
    flat = codes.astype(np.int8).reshape(-1).view(np.uint8) & np.uint8(2**storage.value - 1)
    groups = np.pad(flat, (0, -flat.size % per_byte)).reshape(-1, per_byte)
    shifts = storage.value * np.arange(per_byte, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(groups << shifts, axis=1), np.uint8)


def placement_options(window: Window) -> dict[str, Any]:
    """Returns padding and strides as builtin options."""
    padding, (rows, columns) = getattr(tfl.Padding, window.padding), window.strides
    return {"padding": padding, "strideH": rows, "strideW": columns}


def fused_activation(codes: Codes | None) -> dict[str, Any]:
    """Returns the activation that clips to the output's codes, as a builtin option."""
    activation = codes.activation if codes else Activation.NONE
    return {"fusedActivationFunction": getattr(tfl.ActivationFunctionType, activation.value)}


def _quantization(scales: np.ndarray, zero_point: int, axis: int) -> Any:
    return _table(
        tfl.QuantizationParametersT,
        scale=scales.astype(np.float32),
        zeroPoint=np.full(scales.size, zero_point, np.int64),
        quantizedDimension=axis,
    )
