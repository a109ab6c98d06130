"""Files of one operator between an input and outputs of int8 codes, as other tools write them."""

from typing import NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl


class Grid(NamedTuple):
    """A tensor of codes.

    Attributes:
        shape: with the batch.
        scale: of a code.
        zero_point: the stored integer of 0.
        values: of a constant; its scales are per tensor.
        type: of the values.
    """

    shape: tuple[int, ...]
    scale: float | None = 0.05
    zero_point: int = 0
    values: np.ndarray | None = None
    type: str = "INT8"


def constant(values, scale=None, zero_point=0):
    """A constant of codes, or of int32 numbers where it has no scale."""
    array = np.asarray(values, np.int32 if scale is None else np.int8)
    return Grid(array.shape, scale, zero_point, array, "INT32" if scale is None else "INT8")


def file_of(name, given, made, *, version=1, options="", **settings):
    """A file whose input is the first of `given` without values."""
    model = tfl.ModelT()
    model.version, model.buffers = 3, [tfl.BufferT()]
    code = tfl.OperatorCodeT()
    code.builtinCode, code.version = getattr(tfl.BuiltinOperator, name), version
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    model.operatorCodes = [code]
    graph = tfl.SubGraphT()
    graph.tensors = []
    for index, grid in enumerate((*given, *made)):
        tensor = tfl.TensorT()
        tensor.name, tensor.shape = f"t{index}".encode(), np.array(grid.shape, np.int32)
        tensor.type = getattr(tfl.TensorType, grid.type)
        if grid.scale is not None:
            tensor.quantization = tfl.QuantizationParametersT()
            tensor.quantization.scale = np.array([grid.scale], np.float32)
            tensor.quantization.zeroPoint = np.array([grid.zero_point], np.int64)
        if grid.values is not None:
            buffer = tfl.BufferT()
            buffer.data = np.frombuffer(grid.values.tobytes(), np.uint8)
            tensor.buffer = len(model.buffers)
            model.buffers.append(buffer)
        graph.tensors.append(tensor)
    operator = tfl.OperatorT()
    operator.inputs = np.arange(len(given), dtype=np.int32)
    operator.outputs = np.arange(len(given), len(given) + len(made), dtype=np.int32)
    if options:
        operator.builtinOptionsType = getattr(tfl.BuiltinOptions, options)
        operator.builtinOptions = getattr(tfl, f"{options}T")()
        for setting, value in settings.items():
            setattr(operator.builtinOptions, setting, value)
    graph.operators = [operator]
    graph.inputs = np.array(
        [index for index, grid in enumerate(given) if grid.values is None], np.int32
    )
    graph.outputs = operator.outputs
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
