"""Every operation of the table answers everything, and another one needs no more than its row."""

import contextlib
import dataclasses
import inspect

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.certificate.comparison import RuntimeCounter
from sat_tf.exact.litert.runtime import RUNTIMES
from sat_tf.exact.operations import conversions, graph_file, windows
from sat_tf.exact.operations.graph import Graph, batches, simulate
from sat_tf.exact.operations.graph_file import FloatLayerOperator, read_graph, serialize
from sat_tf.exact.operations.linear import Linear, weight_counts
from sat_tf.exact.operations.native import FIXED_GRIDS, NATIVE, Lookup, RowLookup, Softmax
from sat_tf.exact.operations.operation import Constant, Operation, stored_codes
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.pools import AveragePool, MaxPool, Mean, ResizeBilinear
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.exact.operations.tabled import Computed, Moved, Reshape, joined, moved, sloped
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.contents import NotUnderstoodError, read_contents
from sat_tf.exact.tflite.tensors import Codes, Tensor, Window
from sat_tf.exact.tflite.writer import Operator
from sat_tf.export.converter_route import ON_REALS, keras_of_graph
from sat_tf.export.lowering.float_layer import FloatLayer, run_converter
from tests.exact.foreign import make
from tests.exact.foreign.one_operator import chained

SHAPE = (4, 4, 4)
SCALE = np.float32(1.0 / 64.0)
CODES = Codes(SCALE, 0)
NONNEGATIVE = Codes(SCALE, -128)
_X, _Y = ("x",), ("y",)
_WINDOW, _DILATED = Window((2, 2), "SAME"), Window((1, 1), "SAME", (2, 2))


def _linear(kind: LinearKind, kernel: np.ndarray, **settings) -> Linear:
    channels = kernel.shape[-1] if kind is LinearKind.DEPTHWISE else len(kernel)
    scales, bias = np.linspace(0.01, 0.02, channels).astype(np.float32), np.arange(channels)
    return Linear(_X, "y", kind=kind, kernel=kernel, scales=scales, bias=bias, **settings)


def _lstm() -> Lstm:
    """Three units with four inputs, on the codes of `CODES` throughout."""
    kernels = np.arange(-24, 24).reshape(12, 4), np.arange(-18, 18).reshape(12, 3)
    scales = np.repeat(np.float32([0.01, 0.02, 0.03, 0.04]), 3), np.full(12, np.float32(0.05))
    bias, grids = np.arange(12) * 10, dict.fromkeys(("hidden", "state", "made"), CODES)
    return Lstm(("steps",), "y", kernels, scales, bias, cell_bits=2, clip=0, **grids)


_KERNEL = np.arange(-72, 72).reshape(4, 3, 3, 4)
_MAP = np.arange(-32, 32, dtype=np.int8).reshape(1, *SHAPE)
# Moves that layers become, with their arguments and the shape that they make of (4, 4, 4).
MOVED = [
    ("STRIDED_SLICE", (((1, 3, 1), (0, 4, 2), (0, None, 1)),), (2, 2, 4)),
    ("STRIDED_SLICE", (((1, None, 2), (None, -1, None), (None, None, None)),), (2, 3, 4)),
    ("TRANSPOSE", ((3, 1, 2),), SHAPE),
    ("RESIZE_NEAREST_NEIGHBOR", ((8, 2),), (8, 2, 4)),
    ("DEPTH_TO_SPACE", (2,), (8, 8, 1)),
    ("SPACE_TO_DEPTH", (2,), (2, 2, 16)),
    ("GATHER", ((3, 0), 2), (4, 4, 2)),
    ("GATHER", ((3, 1), 0), (2, 4, 4)),
    ("REDUCE_MAX", (), (4, 4, 1)),
    ("PAD", (((1, 0), (0, 2), (0, 0)),), (5, 6, 4)),
]
# One operation and the shape that it makes of (4, 4, 4), all of codes.
ON_CODES: list[tuple[Operation, tuple[int, ...]]] = [
    (_linear(LinearKind.CONVOLUTION, _KERNEL, window=_WINDOW), (2, 2, 4)),
    (_linear(LinearKind.DEPTHWISE, _KERNEL[0], window=_WINDOW), (2, 2, 4)),
    (_linear(LinearKind.TRANSPOSED, _KERNEL, window=_WINDOW), (8, 8, 4)),
    (_linear(LinearKind.TRANSPOSED, _KERNEL, window=Window((3, 2), more=(2, 1))), (14, 10, 4)),
    (_linear(LinearKind.CONVOLUTION, _KERNEL, window=_DILATED), SHAPE),
    (Pair(_X, "y", Pointwise.SUM, Constant(_MAP, CODES)), SHAPE),
    *((Pair(("x", "x"), "y", kind), SHAPE) for kind in Pointwise),
    (Mean(_X, "y"), (4,)),
    (MaxPool(_X, "y", (2, 2), _WINDOW), (2, 2, 4)),
    (AveragePool(_X, "y", (3, 3), _WINDOW), (2, 2, 4)),
    (ResizeBilinear(_X, "y", (7, 8)), (7, 8, 4)),
    (joined(("x", "x"), "y", 2), (4, 4, 8)),
    *((moved(name, "x", "y", SHAPE, *arguments), shape) for name, arguments, shape in MOVED),
    (Reshape(_X, "y"), (16, 4)),
    (conversions.Requantize(_X, "y"), SHAPE),
    (Lookup(_X, "y", np.arange(127, -129, -1).astype(np.int8)), SHAPE),
    (sloped("x", "y", np.int8([[[-127, -3, 5, 64]]]), SCALE), SHAPE),
]
# Functions of one value by operators of their own, which fix the grid of some.
_SETTINGS = {"alpha": 0.25, "approximate": True}
NATIVES = [
    Computed(_X, "y", name, options={option: _SETTINGS[option] for option in row.options})
    for name, row in NATIVE.items()
]
# These make or read float values.
ON_FLOATS: list[Operation] = [
    *(Pair(("real",), "z", kind, Constant(np.float32([0.5]))) for kind in Pointwise),
    Softmax(("real",), "z"),
]


def graph_of(
    operation: Operation, shape: tuple[int, ...], codes: Codes = CODES, read: Codes = CODES
) -> Graph:
    """Pixels, an operation of their codes, and its result in float."""
    end = conversions.Dequantize(_Y, "out"), shape, None
    return chained(SHAPE, read, (operation, shape, codes), end)


def _of_native(native: Computed) -> Graph:
    """The graph of a function; kernels of RSQRT refuse negative values."""
    read = NONNEGATIVE if native.name == "RSQRT" else CODES
    return graph_of(native, SHAPE, FIXED_GRIDS.get(native.name, CODES), read)


def float_graph_of(operation: Operation) -> Graph:
    """Pixels, their real values, an operation of these, and its codes."""
    reals = (conversions.Dequantize(_X, "real"), SHAPE, None), (operation, SHAPE, None)
    ends = (
        (conversions.Quantize(("z",), "y"), SHAPE, CODES),
        (conversions.Dequantize(_Y, "out"), SHAPE, None),
    )
    return chained(SHAPE, CODES, *reals, *ends)


def graph_of_rows() -> Graph:
    """Pixels, ids from 0 to 3.98 of which the fraction is cut off, and rows of a table."""
    table = np.int8([[-127, 3], [0, 127], [5, -6], [64, 1]])
    steps = (
        (conversions.Dequantize(_X, "real"), SHAPE, None),
        (Pair(("real",), "numbers", Pointwise.SUM, Constant(np.float32([2.0]))), SHAPE, None),
        (RowLookup(("numbers",), "y", table, "float32"), (*SHAPE, 2), CODES),
        (conversions.Dequantize(_Y, "out"), (*SHAPE, 2), None),
    )
    return chained(SHAPE, CODES, *steps)


GRAPHS = [
    *(graph_of(*row) for row in ON_CODES),
    *map(_of_native, NATIVES),
    *map(float_graph_of, ON_FLOATS),
    chained(
        SHAPE,
        CODES,
        (Reshape(_X, "steps"), (16, 4), CODES),
        (_lstm(), (16, 3), CODES),
        (conversions.Dequantize(_Y, "out"), (16, 3), None),
    ),
    # Pixels, and their codes as uint8.
    chained(SHAPE, CODES, (conversions.ShiftOutput(_X, "y"), SHAPE, CODES.unsigned())),
    graph_of_rows(),
]


def _name(graph: Graph) -> str:
    operation = next(op for op in graph.operations if op.output in ("y", "z"))
    return f"{type(operation).__name__}-{'-'.join(operation.operators)}"


def _pixels(count: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE)).astype(np.uint8)


def _differing(graph: Graph, runtime: str, pixels: np.ndarray) -> dict[str, int]:
    """How many codes differ, by tensor."""
    counter = RuntimeCounter(graph, serialize(graph, {}), runtime)
    for batch in batches(pixels, graph):
        counter.run(batch)
        counter.count(simulate(graph, batch))
    return {name: count.codes_differing for name, count in counter._tensors.items()}


def test_every_operation_of_the_table_has_an_example_here():
    operations = [operation for graph in GRAPHS for operation in graph.operations]
    assert {*map(type, operations)} == {kind for kind in graph_file.OPERATIONS if kind.writes}
    moved_names = {operation.name for operation in operations if isinstance(operation, Moved)}
    assert moved_names == set(Moved.writes)


@pytest.mark.parametrize("kind", graph_file.OPERATIONS, ids=lambda kind: kind.__name__)
def test_every_operation_is_whole(kind):
    assert not inspect.isabstract(kind)
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert set(kind.writes) <= set(kind.reads)


@pytest.mark.parametrize("graph", GRAPHS, ids=_name)
def test_every_operation_gives_one_result_in_numpy_and_litert(graph):
    for count in (0, 8):
        for name, array in simulate(graph, _pixels(count)).items():
            assert array.shape == (count, *graph.tensors[name].shape)
    expected = dict.fromkeys(graph.integer_tensors, 0)
    assert _differing(graph, "xnnpack", _pixels()) == expected


def test_every_operation_that_layers_become_has_a_row_on_real_values():
    read_alone = {FloatLayerOperator, conversions.Requantize, conversions.ShiftOutput, Lstm}
    assert set(ON_REALS) - {FloatLayer} == set(graph_file.OPERATIONS) - read_alone


@pytest.mark.parametrize("graph", GRAPHS, ids=_name)
def test_every_row_on_real_values_is_at_most_a_code_from_the_simulation(graph):
    if not {type(operation) for operation in graph.operations} <= set(ON_REALS):
        pytest.skip("no layer becomes it")
    codes = _pixels().astype(np.float32) - 128.0
    real = (codes - graph.codes("x").zero_point) * SCALE
    made, expected = keras_of_graph(graph)(real).numpy(), simulate(graph, _pixels())["out"]
    scale = float(graph.codes("y").scale)
    np.testing.assert_allclose(made, expected, rtol=0, atol=1.001 * scale)
    # Halves, a quarter of the means of four, and what kernels round in between, become either code.
    assert np.mean(np.abs(made - expected) > 0.001 * scale) < 0.3


@pytest.mark.parametrize("graph", GRAPHS, ids=_name)
def test_every_operation_is_read_back_as_it_was_written_and_told_in_words_and_bytes(graph):
    content, operations = serialize(graph, {}), graph.operations
    found = read_graph(content, "net")
    assert [type(op) for op in found.operations] == [type(op) for op in operations]
    assert serialize(found, {}) == content
    names = [name for operation in operations for name in operation.operators]
    assert names == [operator.name for operator in read_contents(content, "net").operators]
    printed = str(graph)
    for operation in operations:
        assert operation.title(graph) in printed
        assert operation.output in printed
        own, shared = (operation.constant_bytes(shares_kernel=each) for each in (False, True))
        assert own >= shared
    assert f"{len(operations)} operations, {len(graph.integer_tensors)} integer" in printed
    adds = sum(operation.multiply_adds(graph) for operation in operations)
    assert f"{adds:,} multiply-adds an image" in printed


@dataclasses.dataclass(frozen=True)
class Positive(Operation):
    """Codes from 0 on, on a grid around 0: RELU by itself."""

    operator = Operator("RELU", 2, "")
    reads = ("RELU",)

    def simulate(self, graph, *inputs):
        (source,) = inputs
        return stored_codes(np.maximum(source, 0), graph.codes(self.output))

    def write(self, writer):
        writer.operator(self.operator, self.inputs, self.output)

    @classmethod
    def read(cls, operator):
        codes = operator.moved_codes()
        if codes is None or codes.zero_point:
            raise NotUnderstoodError("its codes are not around 0")
        return cls((operator.source(),), operator.output.name), codes


@pytest.fixture
def positive(monkeypatch) -> Graph:
    monkeypatch.setattr(graph_file, "OPERATIONS", [*graph_file.OPERATIONS, Positive])
    return graph_of(Positive(("x",), "y"), SHAPE)


def test_a_new_operation_needs_its_class_and_a_row(positive, monkeypatch):
    pixels = np.arange(256, dtype=np.uint8).reshape(4, *SHAPE)
    expected = simulate(positive, pixels)
    assert set(np.unique(expected["y"])) == set(range(128))
    for runtime in RUNTIMES:
        assert _differing(positive, runtime, pixels) == {"x": 0, "y": 0}
    content = serialize(positive, {})
    again = read_graph(content, "net")
    assert again.operations == positive.operations
    np.testing.assert_array_equal(simulate(again, pixels)["y"], expected["y"])
    assert "RELU" in str(positive)
    assert positive.operations[1].operators == ("RELU",)
    monkeypatch.setattr(graph_file, "OPERATIONS", graph_file.OPERATIONS[:-1])
    with pytest.raises(ValueError, match=r"operator 1, RELU .*: not an operator of sat-tf"):
        read_graph(content, "net")


def test_a_new_operation_is_converted_with_a_row_on_real_values(positive, monkeypatch):
    monkeypatch.setitem(ON_REALS, Positive, lambda op, graph, x: tf.nn.relu(x))
    converter = tf.lite.TFLiteConverter.from_keras_model(keras_of_graph(positive))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    model = tfl.ModelT.InitFromPackedBuf(run_converter(converter), 0)
    codes = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes]
    assert tfl.BuiltinOperator.RELU in codes


def test_sums_beyond_float32_are_exact():
    stored = np.full((1, 4096), 127, np.int32)
    kernel = np.full((1, 4096), 127, np.int32)
    kernel[0, 0] = 126
    sums = windows.sums(stored, -128, kernel, LinearKind.FULLY_CONNECTED, Window())
    assert int(sums[0, 0]) == 255 * (127 * 4095 + 126)


def test_weights_are_counted_without_the_factor_of_their_channel():
    kernel = np.array([[-24, 8, 8], [0, 0, 0], [3, -5, 7]])
    linear = Linear(("x",), "y", LinearKind.FULLY_CONNECTED, kernel, np.zeros(3), np.zeros(3))
    assert weight_counts(linear) == {-5: 1, -3: 1, 0: 3, 1: 2, 3: 1, 7: 1}


@pytest.mark.parametrize("before", [1, 2, 3, 7, 10, 32])
def test_the_nearest_pixel_is_that_of_tensorflow_for_every_size(before):
    pixels = np.arange(before, dtype=np.int32).reshape(1, before, 1, 1)
    for after in range(1, 70):
        graph = Graph("", {"y": Tensor("y", (after, 1, 1), CODES)}, (), (), "y")
        resized = moved("RESIZE_NEAREST_NEIGHBOR", "x", "y", (before, 1, 1), (after, 1))
        expected = tf.image.resize(pixels, (after, 1), "nearest").numpy()
        np.testing.assert_array_equal(resized.simulate(graph, pixels), expected)


@pytest.mark.parametrize("read", [read_graph, graph_file.read_foreign])
def test_random_damage_is_a_value_error_or_a_graph(read, small_file):
    path = small_file if read is read_graph else make.FOLDER / "tfmot.tflite"
    rng, content = np.random.default_rng(11), path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read(bytes(damaged[: rng.integers(1, 2 * len(content))]), "damaged")
