"""Writes a graph as a TFLite flatbuffer, with nothing between its integers and the file's."""

import functools
from collections.abc import Mapping
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.converter.float_layers import float_operators, splice
from sat_tf.export.lowering.packing import packed_bytes
from sat_tf.export.operations import graph as ir
from sat_tf.export.operations.graph import Activation, Codes, Graph, LinearKind, Storage, Window
from sat_tf.export.operations.lookup import FIRST, Lookup
from sat_tf.export.operations.movements import Movement
from sat_tf.export.operations.operator_table import (
    FULLY_CONNECTED_PER_CHANNEL,
    OPERATORS,
    PACKED,
    TRANSPOSED_AND_FUSED,
)
from sat_tf.export.operations.pairs import Pair
from sat_tf.version import __version__

_FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3

_TYPES = {
    np.dtype(np.int8): tfl.TensorType.INT8,
    np.dtype(np.uint8): tfl.TensorType.UINT8,
    np.dtype(np.int32): tfl.TensorType.INT32,
    np.dtype(np.float32): tfl.TensorType.FLOAT32,
}
_STORAGE_TYPES = {
    Storage.INT8: tfl.TensorType.INT8,
    Storage.INT4: tfl.TensorType.INT4,
    Storage.INT2: tfl.TensorType.INT2,
}


def serialize(graph: Graph, metadata: Mapping[str, bytes], *, resizable: bool = False) -> bytes:
    """The file of a deployed graph.

    Args:
        graph: a graph from `deployed_graph`.
        metadata: what the file says of itself, by the names of its entries.
        resizable: say that the batch size, 1, is free.

    Returns:
        A TFLite flatbuffer whose inputs are the graph's images and whose output is float32.
    """
    return _Writer(graph, resizable).finish(metadata)


class _Writer:
    def __init__(self, graph: Graph, resizable: bool) -> None:
        self.graph, self.resizable = graph, resizable
        self.subgraph = tfl.SubGraphT()
        self.subgraph.tensors = []
        self.subgraph.operators = []
        self.model = tfl.ModelT()
        self.model.buffers = [tfl.BufferT()]  # buffer 0 stands for "no data"
        self.model.operatorCodes = []
        self.indices: dict[str, int] = {}
        self.kernel_buffers: dict[bytes, int] = {}
        self.names = {*(image.name for image in graph.images), *graph.tensors}
        for image in graph.images:
            kind = np.dtype(image.type)
            codes = None if kind == np.float32 else Codes(image.scale, image.zero_point)
            self._activation(image.name, image.shape, kind, codes)

    def finish(self, metadata: Mapping[str, bytes]) -> bytes:
        for operation in self.graph.operations:
            tensor = self.graph.tensors[operation.output]
            dtype = np.dtype(np.float32 if tensor.codes is None else np.int8)
            self._activation(tensor.name, tensor.shape, dtype, tensor.codes)
            _write(operation, self)
        self.subgraph.inputs = [self.indices[image.name] for image in self.graph.images]
        self.subgraph.outputs = [self.indices[name] for name in self.graph.outputs]
        self.subgraph.name = "main"
        self.model.version = _SCHEMA_VERSION
        self.model.description = f"sat-tf {__version__}"
        self.model.subgraphs = [self.subgraph]
        self.model.metadata = [self._metadata(name, data) for name, data in metadata.items()]
        self.model.signatureDefs = [self._signature()]
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(self.model.Pack(builder), file_identifier=_FILE_IDENTIFIER)
        return bytes(builder.Output())

    def operator(
        self, name: str, operation: ir.Operation, constants: Any = (), **options: Any
    ) -> None:
        """Adds an operator that reads the inputs of `operation` and then `constants`."""
        self.add_operator(
            name,
            [*(self.indices[tensor] for tensor in operation.inputs), *constants],
            self.indices[operation.output],
            **options,
        )

    def add_operator(
        self, name: str, inputs: list[int], output: int, version: int | None = None, **options: Any
    ) -> None:
        operator = tfl.OperatorT()
        operator.opcodeIndex = self._code(name, version or OPERATORS[name].version)
        operator.inputs, operator.outputs = inputs, [output]
        kind = OPERATORS[name].options
        operator.builtinOptionsType = getattr(tfl.BuiltinOptions, kind)
        operator.builtinOptions = getattr(tfl, f"{kind}T")()
        for option, value in options.items():
            setattr(operator.builtinOptions, option, value)
        self.subgraph.operators.append(operator)

    def places(self, name: str, shape: tuple[int, ...]) -> int:
        """Adds a tensor of int32 that no other operation reads; returns its index."""
        name = self.unused(name)
        self._activation(name, shape, np.dtype(np.int32), None)
        return self.indices[name]

    def constant(
        self, name: str, values: np.ndarray, scales: Any = None, zero_point: int = 0
    ) -> int:
        """Adds a constant tensor, with a scale for all its values or one for each of them."""
        data = np.frombuffer(values.tobytes(), np.uint8)
        quantization = None
        if scales is not None:
            quantization = _quantization(np.atleast_1d(scales), zero_point, 0)
        buffer = self._buffer(data)
        return self._constant(name, values.shape, _TYPES[values.dtype], buffer, quantization)

    def kernel(self, name: str, codes: np.ndarray, storage: Storage, scales: Any, axis: int) -> int:
        """Adds the kernel of a linear layer, with a scale for each index of `axis`, or for all."""
        data, quantization = packed_bytes(codes, storage), _quantization(scales, 0, axis)
        # Weights with several uses are in the file once.
        content = data.tobytes()
        if content not in self.kernel_buffers:
            self.kernel_buffers[content] = self._buffer(data)
        buffer = self.kernel_buffers[content]
        return self._constant(name, codes.shape, _STORAGE_TYPES[storage], buffer, quantization)

    def _constant(
        self, name: str, shape: tuple[int, ...], kind: int, buffer: int, quantization: Any
    ) -> int:
        tensor = tfl.TensorT()
        tensor.name, tensor.shape, tensor.type = self.unused(name), list(shape), kind
        tensor.buffer, tensor.quantization = buffer, quantization
        self.subgraph.tensors.append(tensor)
        return len(self.subgraph.tensors) - 1

    def _activation(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, codes: Codes | None
    ) -> None:
        tensor = tfl.TensorT()
        tensor.name, tensor.shape = name, [1, *shape]
        if self.resizable:
            tensor.shapeSignature = [-1, *shape]
        tensor.type = _TYPES[dtype]
        if codes is not None:
            tensor.quantization = _quantization(np.atleast_1d(codes.scale), codes.zero_point, 0)
        self.subgraph.tensors.append(tensor)
        self.indices[name] = len(self.subgraph.tensors) - 1

    def unused(self, name: str) -> str:
        """A name for a constant that no other tensor has: LiteRT finds tensors by their names."""
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def _buffer(self, data: np.ndarray) -> int:
        buffer = tfl.BufferT()
        buffer.data = data
        self.model.buffers.append(buffer)
        return len(self.model.buffers) - 1

    def _metadata(self, name: str, data: bytes) -> Any:
        entry = tfl.MetadataT()
        entry.name, entry.buffer = name, self._buffer(np.frombuffer(data, np.uint8))
        return entry

    def _code(self, name: str, version: int) -> int:
        builtin = getattr(tfl.BuiltinOperator, name)
        for index, code in enumerate(self.model.operatorCodes):
            if (code.builtinCode, code.version) == (builtin, version):
                return index
        code = tfl.OperatorCodeT()
        code.builtinCode, code.version = builtin, version
        code.deprecatedBuiltinCode = min(builtin, 127)
        self.model.operatorCodes.append(code)
        return len(self.model.operatorCodes) - 1

    def _signature(self) -> Any:
        signature = tfl.SignatureDefT()
        signature.signatureKey = "serving_default"
        signature.subgraphIndex = 0
        images = [image.name for image in self.graph.images]
        for role, names in (("inputs", images), ("outputs", dict.fromkeys(self.graph.outputs))):
            setattr(signature, role, [self._entry(name) for name in names])
        return signature

    def _entry(self, name: str) -> Any:
        entry = tfl.TensorMapT()
        entry.name, entry.tensorIndex = name, self.indices[name]
        return entry


def _quantization(scales: np.ndarray, zero_point: int, axis: int) -> Any:
    quantization = tfl.QuantizationParametersT()
    quantization.scale = scales.astype(np.float32)
    quantization.zeroPoint = np.full(scales.size, zero_point, np.int64)
    quantization.quantizedDimension = axis
    return quantization


def _placement(window: Window) -> dict[str, Any]:
    return {
        "padding": getattr(tfl.Padding, window.padding),
        "strideH": window.strides[0],
        "strideW": window.strides[1],
    }


def _dilation(window: Window) -> dict[str, Any]:
    return {"dilationHFactor": window.dilation[0], "dilationWFactor": window.dilation[1]}


def _fused(codes: Codes | None) -> Any:
    activation = codes.activation if codes else Activation.NONE
    return getattr(tfl.ActivationFunctionType, activation.value)


@functools.singledispatch
def _write(operation: ir.Operation, writer: _Writer) -> None:
    raise TypeError(f"{type(operation).__name__}: not an operation of the writer.")


@_write.register
def _(operation: ir.Linear, writer: _Writer) -> None:
    kernel, storage = operation.kernel, operation.storage
    scales = operation.scales.astype(np.float32)
    if operation.kind is LinearKind.DEPTHWISE:
        kernel = kernel[np.newaxis]
    dense = operation.kind is LinearKind.FULLY_CONNECTED
    # XNNPACK takes matrices of 2 bits only with a scale for each row.
    if dense and storage is not Storage.INT2 and np.all(scales == scales[0]):
        scales = scales[:1]
    axis = operation.channel_axis + (operation.kind is LinearKind.DEPTHWISE)
    weights = writer.kernel(f"{operation.output}/kernel", kernel, storage, scales, axis)
    options: dict[str, Any] = {} if storage is Storage.INT8 else {"version": PACKED[operation.kind]}
    if operation.real:
        bias = writer.constant(f"{operation.output}/bias", operation.bias.astype(np.float32))
        weights = _dequantized(writer, weights, f"{operation.output}/real_kernel", kernel.shape)
    else:
        source, output = (
            writer.graph.codes(name) for name in (operation.inputs[0], operation.output)
        )
        bias_scales = (source.scale * scales).astype(np.float32)
        bias = writer.constant(
            f"{operation.output}/bias", operation.bias.astype(np.int32), bias_scales
        )
        options["fusedActivationFunction"] = _fused(output)
    if operation.kind is LinearKind.TRANSPOSED:
        options |= _placement(operation.window)
        _write_transposed(writer, operation, [weights, bias], options)
        return
    if dense:
        if scales.size > 1 and not operation.real:
            options["version"] = FULLY_CONNECTED_PER_CHANNEL
    else:
        options |= {**_placement(operation.window), **_dilation(operation.window)}
    if operation.kind is LinearKind.DEPTHWISE:
        inputs = writer.graph.tensors[operation.inputs[0]].shape[-1]
        options["depthMultiplier"] = kernel.shape[-1] // inputs
    writer.operator(operation.kind.value, operation, [weights, bias], **options)


def _write_transposed(
    writer: _Writer, operation: ir.Linear, constants: list[int], options: dict[str, Any]
) -> None:
    """The operator reads the shape of its output first, and its input third."""
    shape = np.array([1, *writer.graph.tensors[operation.output].shape], np.int32)
    size = writer.constant(f"{operation.output}/shape", shape)
    if options.get("fusedActivationFunction"):
        options["version"] = TRANSPOSED_AND_FUSED
    weights, bias = constants
    inputs = [size, weights, writer.indices[operation.inputs[0]], bias]
    writer.add_operator("TRANSPOSE_CONV", inputs, writer.indices[operation.output], **options)


def _dequantized(writer: _Writer, weights: int, name: str, shape: tuple[int, ...]) -> int:
    tensor = tfl.TensorT()
    tensor.name, tensor.shape = writer.unused(name), list(shape)
    tensor.type = tfl.TensorType.FLOAT32
    writer.subgraph.tensors.append(tensor)
    index = len(writer.subgraph.tensors) - 1
    writer.add_operator("DEQUANTIZE", [weights], index)
    return index


@_write.register
def _(operation: ir.Add | Pair, writer: _Writer) -> None:
    picks = isinstance(operation, Pair) and operation.kind.keeps_grid
    fused = _fused(writer.graph.tensors[operation.output].codes)
    options = {} if picks else {"fusedActivationFunction": fused}
    writer.operator(
        "ADD" if isinstance(operation, ir.Add) else operation.kind.value, operation, **options
    )


@_write.register
def _(operation: ir.AddConstant, writer: _Writer) -> None:
    fused = _fused(writer.graph.tensors[operation.output].codes)
    codes = operation.constant.astype(np.int8)[np.newaxis]
    constant = writer.constant(f"{operation.output}/constant", codes, operation.scale)
    writer.operator("ADD", operation, [constant], fusedActivationFunction=fused)


@_write.register
def _(operation: Movement, writer: _Writer) -> None:
    shape = writer.graph.tensors[operation.inputs[0]].shape
    constants = [
        writer.constant(f"{operation.output}/{name}", np.ascontiguousarray(values))
        for name, values in operation.constants(shape).items()
    ]
    writer.operator(operation.operator, operation, constants, **operation.options)


@_write.register
def _(operation: Lookup, writer: _Writer) -> None:
    """Integers can be places in a table once they are int32."""
    name, shape = operation.output, writer.graph.tensors[operation.output].shape
    codes = writer.graph.codes(name)
    table = writer.constant(f"{name}/table", operation.table, codes.scale, codes.zero_point)
    first = writer.constant(f"{name}/first", np.array(FIRST, np.int32))
    number, place = (writer.places(f"{name}/{part}", shape) for part in ("number", "place"))
    types = {"inDataType": tfl.TensorType.INT8, "outDataType": tfl.TensorType.INT32}
    writer.add_operator("CAST", [writer.indices[operation.inputs[0]]], number, **types)
    writer.add_operator("ADD", [number, first], place, version=1)
    writer.add_operator("GATHER", [table, place], writer.indices[name], axis=0)


@_write.register
def _(operation: ir.Mean, writer: _Writer) -> None:
    axes = writer.constant(f"{operation.output}/axes", np.array([1, 2], np.int32))
    writer.operator("MEAN", operation, [axes], keepDims=operation.keep_dims)


@_write.register
def _(operation: ir.Concatenate, writer: _Writer) -> None:
    writer.operator("CONCATENATION", operation, axis=operation.axis + 1)


@_write.register
def _(operation: ir.MaxPool | ir.AveragePool, writer: _Writer) -> None:
    largest = isinstance(operation, ir.MaxPool)
    writer.operator(
        "MAX_POOL_2D" if largest else "AVERAGE_POOL_2D",
        operation,
        filterHeight=operation.size[0],
        filterWidth=operation.size[1],
        **_placement(operation.window),
    )


@_write.register
def _(operation: ir.Pad, writer: _Writer) -> None:
    margins = np.array([(0, 0), *operation.margins], np.int32)
    writer.operator("PAD", operation, [writer.constant(f"{operation.output}/margins", margins)])


@_write.register
def _(operation: ir.Reshape, writer: _Writer) -> None:
    _write_reshape(writer, writer.indices[operation.inputs[0]], operation.output)


def _write_reshape(writer: _Writer, source: int, output: str) -> None:
    shape = np.array([-1, *writer.graph.tensors[output].shape], np.int32)
    constant = writer.constant(f"{output}/shape", shape)
    inputs, made = [source, constant], writer.indices[output]
    writer.add_operator("RESHAPE", inputs, made, newShape=list(shape))


@_write.register
def _(operation: ir.ShiftImage | ir.Quantize | ir.Dequantize, writer: _Writer) -> None:
    is_back = isinstance(operation, ir.Dequantize)
    writer.operator("DEQUANTIZE" if is_back else "QUANTIZE", operation)


@_write.register
def _(operation: ir.WithConstant, writer: _Writer) -> None:
    constant = writer.constant(f"{operation.output}/constant", operation.constant)
    writer.operator(operation.kind.value, operation, [constant])


@_write.register
def _(operation: ir.Island, writer: _Writer) -> None:
    shapes = [writer.graph.tensors[name].shape for name in operation.inputs]
    content = float_operators(operation.node, shapes)
    inputs = [writer.indices[name] for name in operation.inputs]
    output = writer.indices[operation.output]
    result = splice(content, writer.model, writer.subgraph, inputs, output, writer.unused)
    if result != output:  # a layer that does nothing in inference, such as noise
        _write_reshape(writer, result, operation.output)


@_write.register
def _(operation: ir.Softmax, writer: _Writer) -> None:
    writer.operator("SOFTMAX", operation, beta=1.0)
