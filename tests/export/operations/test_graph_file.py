import contextlib
import copy
import dataclasses

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

import sat_tf
from sat_tf.exact.operations.builder import Draft, GraphBuilder, Rectified
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.exact.operations.linear import (
    Linear,
    channel_mean,
    existing,
    identity,
    map_linear,
    window_mean,
)
from sat_tf.exact.operations.pairs import (
    AddConstant,
    Concatenate,
    MeanOfTensors,
    OnOneGrid,
    Pair,
    Part,
)
from sat_tf.exact.operations.pointwise import Pointwise
from sat_tf.exact.operations.pools import AveragePool, Mean
from sat_tf.exact.operations.quantize import ShiftImage
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.tensors import Codes, Image, Window, dequantized, range_codes
from sat_tf.export.lowering.pipeline import deployed_graph
from tests.export.damage import changed
from tests.export.zoo import ZOO


def test_random_damage_is_a_value_error_or_a_graph(small_file):
    rng, content = np.random.default_rng(11), small_file.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read_graph(bytes(damaged[: rng.integers(1, 2 * len(content))]), "damaged")


def test_a_graph_prints_every_operation_and_the_sums_of_all():
    graph = deployed_graph(ZOO["bottleneck"].quantized())
    printed = str(graph)
    for operation in graph.operations:
        assert operation.output in printed
    assert f"{len(graph.operations)} operations, {len(graph.integer_tensors)} integer" in printed
    adds = sum(operation.multiply_adds(graph) for operation in graph.operations)
    assert f"{adds:,} multiply-adds an image" in printed


def _reshape(model, graph):
    kinds = [model.operatorCodes[one.opcodeIndex].builtinCode for one in graph.operators]
    return graph.operators[kinds.index(tfl.BuiltinOperator.RESHAPE)]


def another_shape(model, graph):
    shape = graph.tensors[_reshape(model, graph).inputs[1]]
    model.buffers[shape.buffer].data = np.array([-1, 9, 14], np.int32).view(np.uint8)
    shape.shape = [3]


def backward_in_the_batch(model, graph):
    """Puts a slice behind the RESHAPE that has the images of a batch in reverse."""
    reshape = _reshape(model, graph)
    code = copy.deepcopy(model.operatorCodes[reshape.opcodeIndex])
    code.builtinCode = code.deprecatedBuiltinCode = tfl.BuiltinOperator.STRIDED_SLICE
    model.operatorCodes.append(code)
    bounds = []
    for values in ([0, 0], [0, 0], [-1, 1]):
        model.buffers.append(tfl.BufferT())
        model.buffers[-1].data = np.array(values, np.int32).view(np.uint8)
        tensor = copy.deepcopy(graph.tensors[reshape.inputs[1]])
        tensor.name, tensor.shape = f"bounds {len(graph.tensors)}".encode(), [2]
        tensor.buffer = len(model.buffers) - 1
        bounds.append(len(graph.tensors))
        graph.tensors.append(tensor)
    (source,) = reshape.outputs
    sliced = copy.deepcopy(graph.tensors[source])
    sliced.name = b"sliced"
    reader = graph.operators[graph.operators.index(reshape) + 1]
    reader.inputs = [len(graph.tensors), *list(reader.inputs)[1:]]
    operator = copy.deepcopy(reshape)
    operator.opcodeIndex = len(model.operatorCodes) - 1
    operator.inputs, operator.outputs = [source, *bounds], [len(graph.tensors)]
    operator.builtinOptionsType = tfl.BuiltinOptions.StridedSliceOptions
    operator.builtinOptions = tfl.StridedSliceOptionsT()
    operator.builtinOptions.beginMask = operator.builtinOptions.endMask = 3
    graph.tensors.append(sliced)
    graph.operators.insert(graph.operators.index(reshape) + 1, operator)


def made_shape(model, graph):
    operator = _reshape(model, graph)
    operator.inputs = [operator.inputs[0], graph.inputs[0]]


def shape_of_the_options(model, graph):
    operator = _reshape(model, graph)
    operator.inputs = operator.inputs[:1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (another_shape, r"RESHAPE .*: it is given the shape \[-1, 9, 14\], and makes \(1, 126\)"),
        (made_shape, r"RESHAPE .*: its input \w+ is not a constant of type INT32"),
        (shape_of_the_options, None),
        (backward_in_the_batch, r"STRIDED_SLICE .*: it moves values from one image to another"),
    ],
)
def test_a_shape_has_to_be_what_kernels_are_given(change, expected, tmp_path):
    image = keras.Input((6, 7, 3), name="image")
    model = keras.Model(image, keras.layers.Dense(5)(keras.layers.Flatten()(image)))
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8)), path)
    content = changed(path.read_bytes(), change)
    if expected is None:
        assert str(read_graph(content, "one")) == str(read_graph(path.read_bytes(), "one"))
        return
    with pytest.raises(ValueError, match=expected):
        read_graph(content, "changed.tflite")


SHAPE = (4, 4, 4)
IMAGES = (
    Image("one", SHAPE, np.float32(1 / 64), 128),
    Image("other", SHAPE, np.float32(1 / 50), 90),
)
X, Y = existing("x"), existing("y")
SUM = Pair(("x", "y"), "", Pointwise.SUM)
RNG = np.random.default_rng(0)


def _on_one_grid(operation) -> OnOneGrid:
    parts = Part(SUM, "sum", SHAPE), Part(X, "x", SHAPE)
    return OnOneGrid(("x", "y", "x"), parts, operation)


# Drafts by names, with the shape of what they make, and how many codes apart the two ways may be:
# half a code for each rounding.
DRAFTS: dict[str, tuple[Draft, tuple[int, ...], float]] = {
    "tensor": (X, SHAPE, 0.5),
    "requantization": (identity("x", 4), SHAPE, 0.5),
    "convolution": (
        Linear.of_codes(
            "x",
            LinearKind.CONVOLUTION,
            RNG.integers(-7, 8, (3, 3, 4, 2)),
            np.array([0.1, 0.2]),
            np.array([0.0, -1.0]),
            Window((1, 1), "SAME"),
        ),
        (4, 4, 2),
        0.5,
    ),
    "mean of channels": (channel_mean("x", 4), (4, 4, 1), 0.5),
    "mean of windows": (window_mean("x", 4, (2, 2), Window((2, 2))), (2, 2, 4), 0.5),
    "padded means": (AveragePool(("x",), "", (3, 3), Window((1, 1), "SAME")), SHAPE, 0.5),
    "mean": (Mean(("x",), ""), (4,), 0.5),
    "sum": (SUM, SHAPE, 0.5),
    "sum of three": (Pair(("x", "y", "x"), "", Pointwise.SUM), SHAPE, 1.0),
    "mean of tensors": (MeanOfTensors(("x", "y")), SHAPE, 1.0),
    "sum with a map": (
        AddConstant(("x",), RNG.integers(-9, 9, SHAPE), np.float32(0.05)),
        SHAPE,
        0.5,
    ),
    "difference": (Pair(("x", "y"), "", Pointwise.DIFFERENCE), SHAPE, 0.5),
    "product": (Pair(("x", "y"), "", Pointwise.PRODUCT), SHAPE, 0.5),
    "positive part": (Rectified(("x",), X), SHAPE, 0.5),
    "up to a ceiling": (
        Rectified(("x", "y"), Pair(("x", "y"), "", Pointwise.SUM), 1.0),
        SHAPE,
        0.5,
    ),
    "joined": (_on_one_grid(Concatenate((), "", 2)), (4, 4, 8), 0.5),
    "largest": (_on_one_grid(Pair((), "", Pointwise.MAXIMUM)), SHAPE, 0.5),
}


def _values(builder: GraphBuilder, output: str) -> np.ndarray:
    """The real values of a tensor for random images."""
    # In the file, biases are integers of input scale · scale; here they are, nearly.
    graph = Graph("net", builder.tensors, (), IMAGES, output)

    def rounded(linear: Linear) -> Linear:
        if linear.real:
            return linear
        units = float(graph.codes(linear.inputs[0]).scale) * linear.scales
        return dataclasses.replace(linear, bias=np.rint(linear.bias / units))

    graph = dataclasses.replace(graph, operations=map_linear(builder.operations, rounded))
    pixels = np.random.default_rng(1).integers(0, 256, (2, 8, *SHAPE), dtype=np.uint8)
    found = simulate(graph, tuple(pixels))[output]
    codes = graph.tensors[output].codes
    return found if codes is None else dequantized(found, codes)


def _builder() -> GraphBuilder:
    builder = GraphBuilder()
    for image, name in zip(IMAGES, "xy", strict=True):
        builder.add(ShiftImage((image.name,), name), SHAPE, image.codes)
    return builder


@pytest.mark.parametrize("name", DRAFTS)
def test_codes_and_floats_of_a_draft_are_the_same_values(name):
    draft, shape, codes_apart = DRAFTS[name]
    on_floats = _builder()
    real = _values(on_floats, draft.as_float(on_floats, "made", shape))
    on_codes = _builder()
    low, high = draft.worst_range(lambda read: on_codes.codes(read))
    assert low <= np.min(real) + 1e-5
    assert np.max(real) <= high + 1e-5
    grid: Codes = range_codes(low, high)
    made = _values(on_codes, on_codes.materialize(draft, grid, "made", shape))
    assert np.max(np.abs(made - real)) <= (codes_apart + 0.05) * float(grid.scale)
