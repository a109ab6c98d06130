"""Files of one operator between inputs and outputs of int8 codes, as other tools write them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels.kernel_sets import builtin_of_this_machine
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations.conversions import ShiftImage
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import read_foreign
from sat_tf.exact.tflite import writer
from sat_tf.exact.tflite.tensors import Image, Tensor
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
    is_variable: bool = False


def constant(values, scale=None, zero_point=0, axis=0):
    """A constant of codes, or of int32 numbers where it has no scale."""
    array = np.asarray(values, np.int32 if scale is None else np.int8)
    kind = "INT32" if scale is None else "INT8"
    return Grid(array.shape, scale, zero_point, array, kind, axis)


# The schema's names of options that are not those of their operator.
_OPTIONS = {
    **dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "MEAN", "SUM"), "Reducer"),
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D"), "Pool2D"),
    "BATCH_MATMUL": "BatchMatMul",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}


def table(schema, /, **fields):
    """A table of the schema."""
    made = getattr(tfl, f"{schema}T")()
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def add_operator(model, name, version=1, **fields):
    """An operator of a model, of which other fields than options are given; it has none of them."""
    number = getattr(tfl.BuiltinOperator, name)
    code = table("OperatorCode", builtinCode=number, version=version)
    code.deprecatedBuiltinCode = min(number, 127)
    model.operatorCodes.append(code)
    return table("Operator", opcodeIndex=len(model.operatorCodes) - 1, **fields)


def with_options(operator, name, **options):
    """The operator with builtin options."""
    schema = f"{_OPTIONS.get(name, name.title().replace('_', ''))}Options"
    operator.builtinOptionsType = getattr(tfl.BuiltinOptions, schema)
    operator.builtinOptions = table(schema, **options)
    return operator


def file_of(name, given, made, *, version=1, intermediates=(), **options):
    """A file whose inputs are those of `given` without values; None is a tensor left out."""
    present = [grid for grid in given if grid is not None]
    graph = table("SubGraph", tensors=[])
    model = table("Model", version=3, buffers=[tfl.BufferT()], operatorCodes=[], subgraphs=[graph])
    for index, grid in enumerate((*present, *made, *intermediates)):
        kind = getattr(tfl.TensorType, grid.type)
        shape = np.array(grid.shape, np.int32)
        tensor = table("Tensor", name=f"t{index}", type=kind, shape=shape)
        tensor.isVariable = grid.is_variable
        if grid.scale is not None:
            scale = np.atleast_1d(np.asarray(grid.scale, np.float32))
            points = np.full(scale.size, grid.zero_point, np.int64)
            grids = {"scale": scale, "zeroPoint": points, "quantizedDimension": grid.axis}
            tensor.quantization = table("QuantizationParameters", **grids)
        if grid.values is not None:
            tensor.buffer = len(model.buffers)
            data = np.frombuffer(grid.values.tobytes(), np.uint8)
            model.buffers.append(table("Buffer", data=data))
        graph.tensors.append(tensor)
    places = np.arange(len(graph.tensors), dtype=np.int32)
    ends = [len(present), len(present) + len(made)]
    places, graph.outputs, between = np.split(places, ends)
    inputs = np.full(len(given), -1, np.int32)
    inputs[[grid is not None for grid in given]] = places
    operator = add_operator(model, name, version, inputs=inputs, outputs=graph.outputs)
    if intermediates:
        operator.intermediates = between
    graph.operators = [with_options(operator, name, **options) if options else operator]
    asked = [grid.values is None and not grid.is_variable for grid in present]
    graph.inputs = places[asked]
    return writer.file_of(model)


def chained(shape, codes, *rows):
    """A graph of pixels, their codes "x", and rows: an operation, what it makes, and its grid."""
    rows = [(ShiftImage(("image",), "x"), shape, codes), *rows]
    operations = tuple(operation for operation, _, _ in rows)
    tensors = {one.output: Tensor(one.output, shape, grid) for one, shape, grid in rows}
    image = Image("image", shape, codes.scale, codes.zero_point + 128)
    return Graph("net", tensors, operations, (image,), operations[-1].output)


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
                arrays = [kept[places[one]] for one in operation.inputs]
                read = [one if one.dtype.kind == "f" else one.astype(np.int32) for one in arrays]
                made = operation.simulate(file.graph.on(rules), *read)
                found = kept[places[operation.output]]
                if operation.reshapes:
                    made = made.reshape(found.shape)
                np.testing.assert_array_equal(found, made, err_msg=f"{name} {runtime_name}")
    assert "xnnpack" in compared or file.graph.ends_process(builtin_of_this_machine())
    return file.graph
