"""Files of one operator between inputs and outputs of int8 codes, as other tools write them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels.kernel_sets import builtin_of_this_machine
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import read_foreign
from sat_tf.exact.tflite import writer
from tests.export.proofs import KERNELS

# TFLite Micro puts an integer around an image that it has never set, and LiteRT's reference kernel
# of sums takes int8 codes for uint8. The builtin kernels multiply a code and the zero point by the
# scale each, so that the last bit of their difference is another one.
WRONG = {"SPACE_TO_BATCH_ND": ["micro"], "SUM": ["reference"], "DEQUANTIZE": ["builtin"]}


class Grid(NamedTuple):
    """A tensor of codes."""

    shape: tuple[int, ...]  # With the batch.
    # The scale of a code, or one for each index of an axis; None for numbers and real values.
    scale: float | Sequence[float] | None = 0.05
    zero_point: int = 0
    values: np.ndarray | None = None  # A constant's.
    type: str = "INT8"
    axis: int = 0  # The axis of several scales.


def constant(values, scale=None, zero_point=0, axis=0):
    """A constant of codes, or of int32 numbers where it has no scale."""
    array = np.asarray(values, np.int32 if scale is None else np.int8)
    kind = "INT32" if scale is None else "INT8"
    return Grid(array.shape, scale, zero_point, array, kind, axis)


def file_of(name, given, made, *, version=1, options="", **settings):
    """A file whose inputs are those of `given` without values."""
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
            tensor.quantization.scale = np.atleast_1d(np.asarray(grid.scale, np.float32))
            count = tensor.quantization.scale.size
            tensor.quantization.zeroPoint = np.full(count, grid.zero_point, np.int64)
            tensor.quantization.quantizedDimension = grid.axis
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
    inputs = [index for index, grid in enumerate(given) if grid.values is None]
    graph.inputs = np.array(inputs, np.int32)
    graph.outputs = operator.outputs
    model.subgraphs = [graph]
    return writer.file_of(model)


def assert_as_in_litert(content: bytes, images: list[tuple[np.ndarray, ...]]) -> Graph:
    """The graph of a file, after every runtime here has made what it simulates."""
    file = read_foreign(content, "one")
    assert dict(file.reasons) == {}
    name = file.contents.operators[0].name
    places = {tensor.name: index for index, tensor in enumerate(file.contents.tensors)}
    compared = []
    for runtime_name, kernels in KERNELS.items():
        if runtime_name in WRONG.get(name, ()) or not is_installed(runtime_name):
            continue
        if file.graph.ends_process(kernels):
            continue
        try:
            runtime = loaded(content, runtime_name, keep_tensors=True)
            runtime.run(images[0])
        except ValueError as error:
            # Some runtimes have no kernel of an operator, and TFLite Micro not in every form.
            assert runtime_name == "micro" or "find op for builtin" in str(error), error  # noqa: PT017
            continue
        is_left = runtime_name == "xnnpack" and 0 not in runtime.delegated
        rules = builtin_of_this_machine() if is_left else kernels
        if is_left and file.graph.ends_process(rules):
            continue
        compared.append(runtime_name)
        for arrays in images:
            runtime.run(arrays)
            kept = runtime.kept(places.values())
            kept |= zip((places[one.name] for one in file.contents.inputs), arrays, strict=True)
            for operation in file.graph.operations:
                read = [kept[places[one]].astype(np.int32) for one in operation.inputs]
                made = operation.simulate(file.graph.on(rules), *read)
                found = kept[places[operation.output]]
                if operation.reshapes:
                    made = made.reshape(found.shape)
                np.testing.assert_array_equal(found, made, err_msg=f"{name} {runtime_name}")
    assert "xnnpack" in compared or file.graph.ends_process(builtin_of_this_machine())
    return file.graph
