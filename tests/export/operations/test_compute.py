import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.export.operations.add import AddConstant
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import WIDTHS, Linear
from sat_tf.export.operations.mean import Mean
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.pairs import Pair
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.operations.quantize import Dequantize, Quantize
from sat_tf.export.operations.windows import LinearKind, sums, transposed_size
from sat_tf.export.tflite.tensors import Codes, Tensor, Window
from tests.export import reference

L = keras.layers
SIGNED = Codes(np.float32(0.02), 0)
UNSIGNED = Codes(np.float32(0.01), -128)
FOUR_BITS = Codes(np.float32(0.3), 112, lowest=112)


def graph_of(operation: Operation, *inputs: Tensor, output: Tensor) -> Graph:
    tensors = {tensor.name: tensor for tensor in (*inputs, output)}
    return Graph("net", tensors, (operation,), (2, 2, 1), np.float32(1.0), "image", output.name)


def both(operation: Operation, graph: Graph, *stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The results of the simulator for stored integers, and of TensorFlow for their codes."""
    expected = operation.simulate(graph, *stored)
    codes = [
        tf.constant(values - graph.codes(name).zero_point, tf.float32)
        for name, values in zip(operation.inputs, stored, strict=True)
    ]
    constants = {name: tf.constant(value) for name, value in operation.numbers(graph).items()}
    # Traced, as in training: no compiler may round otherwise.
    computed = tf.function(lambda *inputs: operation.compute(graph, constants, *inputs))
    return expected, computed(*codes).numpy() + graph.codes(operation.output).zero_point


def linear_of(kind: LinearKind, kernel: np.ndarray, bias: np.ndarray, **settings) -> Linear:
    channels = bias.size
    return Linear(
        ("x",),
        "y",
        kind=kind,
        kernel=kernel.astype(np.int32),
        scales=np.full(channels, 1e-3, np.float32),
        bias=bias.astype(np.int64),
        center=np.zeros(channels),
        spread=np.full(channels, np.inf),
        **settings,
    )


def matrix(inputs: int, kernel: np.ndarray, bias: np.ndarray, source: Codes) -> tuple:
    operation = linear_of(LinearKind.FULLY_CONNECTED, kernel, bias)
    graph = graph_of(
        operation,
        Tensor("x", (inputs,), source),
        output=Tensor("y", (bias.size,), Codes(np.float32(50.0), 0)),
    )
    return operation, graph


def width(operation: Operation, graph: Graph) -> tuple[str, str]:
    return WIDTHS[int(operation.numbers(graph)["width"])]


def test_large_sums_of_eight_bits_are_computed_in_float64_and_are_exact():
    rng = np.random.default_rng(0)
    inputs = 4096
    kernel = rng.integers(100, 128, (3, inputs))
    operation, graph = matrix(inputs, kernel, np.array([1, -2, 3]), UNSIGNED)
    assert width(operation, graph) == ("float64", "float64")
    stored = rng.integers(100, 128, (500, inputs)).astype(np.int32)
    expected, computed = both(operation, graph, stored)
    np.testing.assert_array_equal(computed, expected)
    # float32 would not do: the sums are odd numbers beyond 2^24.
    exact = (stored + 128.0) @ kernel.T
    assert np.any(exact.astype(np.float32) != exact)


@pytest.mark.parametrize(
    ("largest", "bias", "expected"),
    [
        (2**24 - 255, 5, ("float32", "float32")),
        (2**24, 5, ("float64", "float64")),
        # Odd and beyond 2^24: float32 holds the sum, but not the bias.
        (2**20, 2**24 + 1, ("float32", "float64")),
        (2**20, 2**24 + 2, ("float32", "float32")),
    ],
)
def test_the_width_follows_from_the_largest_possible_sum_and_the_bias(largest, bias, expected):
    inputs = -(-largest // 255)
    kernel = np.ones((1, inputs), int)
    operation, graph = matrix(inputs, kernel, np.array([bias]), UNSIGNED)
    assert width(operation, graph) == expected


def test_codes_are_convolved_as_they_were_before_upscaling():
    kernel = 9 * np.array([[3, -15, 1], [5, 0, 0]])
    operation, graph = matrix(3, kernel, np.array([1, 2]), FOUR_BITS)
    constants = operation.numbers(graph)
    np.testing.assert_array_equal(constants["kernel"].T, [[3, -15, 1], [1, 0, 0]])
    np.testing.assert_array_equal(constants["factors"], [9, 45])
    # 127 times as many inputs fit float32 as after it.
    wide = 127 * np.ones((1, 2**17), int)
    operation, graph = matrix(2**17, wide, np.array([0]), FOUR_BITS)
    assert width(operation, graph) == ("float32", "float64")


@st.composite
def windows(draw):
    strides = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = (1, 1)
    if strides == (1, 1):
        dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    return Window(strides, draw(st.sampled_from(["SAME", "VALID"])), dilation)


@pytest.mark.thorough
@given(
    kind=st.sampled_from([LinearKind.CONVOLUTION, LinearKind.DEPTHWISE]),
    window=windows(),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    source=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    output=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 3),
    reach=st.sampled_from([10, 2**25, 2**30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_convolutions_give_the_integers_of_the_simulation(
    kind, window, size, source, output, channels, outputs, reach, seed
):
    rng = np.random.default_rng(seed)
    if kind is LinearKind.DEPTHWISE:
        outputs *= channels
        kernel = rng.integers(-127, 128, (*size, outputs))
    else:
        kernel = rng.integers(-127, 128, (outputs, *size, channels))
    operation = linear_of(kind, kernel, rng.integers(-reach, reach, outputs), window=window)
    stored = rng.integers(source.lowest, source.highest + 1, (2, 7, 8, channels)).astype(np.int32)
    shape = sums(stored, source.zero_point, operation.kernel, kind, window).shape[1:]
    graph = graph_of(
        operation,
        Tensor("x", (7, 8, channels), source),
        output=Tensor("y", shape, output),
    )
    expected, computed = both(operation, graph, stored)
    np.testing.assert_array_equal(computed, expected)


@pytest.mark.thorough
@given(
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["SAME", "VALID"]),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    more=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    source=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    seed=st.integers(0, 2**32 - 1),
)
def test_transposed_convolutions_of_any_output_give_the_integers_of_the_simulation(
    strides, padding, size, more, source, seed
):
    rng = np.random.default_rng(seed)
    layer = L.Conv2DTranspose(
        2,
        size,
        strides,
        padding.lower(),
        output_padding=[min(a, b - 1) for a, b in zip(more, strides, strict=True)],
    )
    made = layer.compute_output_shape((None, 3, 4, 2))[1:3]
    forward = [-(-out // by) for out, by in zip(made, strides, strict=True)]
    if padding == "SAME" and forward != [3, 4]:  # TensorFlow has no such transpose
        return
    window = Window(strides, padding)
    usual = transposed_size((3, 4), size, window)
    rows, columns = (a - b for a, b in zip(made, usual, strict=True))
    window = Window(strides, padding, more=(rows, columns))
    kernel = rng.integers(-127, 128, (2, *size, 2))
    operation = linear_of(LinearKind.TRANSPOSED, kernel, rng.integers(-99, 99, 2), window=window)
    stored = rng.integers(source.lowest, source.highest + 1, (2, 3, 4, 2)).astype(np.int32)
    target = Codes(np.float32(0.02), 0)
    graph = graph_of(operation, Tensor("x", (3, 4, 2), source), output=Tensor("y", (), target))
    expected, computed = both(operation, graph, stored)
    np.testing.assert_array_equal(computed, expected)
    # The definition: each pixel adds its multiple of the kernel, and SAME leaves out both ends.
    expected_sums = reference.transposed(stored, source.zero_point, kernel, strides, padding, made)
    found = sums(stored, source.zero_point, kernel, operation.kind, window)
    np.testing.assert_array_equal(found, expected_sums)


@pytest.mark.thorough
@given(
    scales=st.tuples(*[st.floats(1e-3, 1.0)] * 3),
    source=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    output=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    shape=st.sampled_from([(3, 4, 5), (1, 4, 5), (3, 1, 1), (1, 1, 5)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_with_a_map_round_like_those_of_two_tensors(scales, source, output, shape, seed):
    rng = np.random.default_rng(seed)
    codes = Codes(np.float32(scales[0]), source.zero_point, source.lowest)
    target = Codes(np.float32(scales[2]), output.zero_point, output.lowest)
    constant = rng.integers(-127, 128, shape).astype(np.int32)
    operation = AddConstant(("x",), "y", constant, np.asarray(scales[1], np.float32))
    tensors = Tensor("x", (3, 4, 5), codes), Tensor("y", (3, 4, 5), target)
    graph = graph_of(operation, tensors[0], output=tensors[1])
    stored = rng.integers(codes.lowest, 128, (8, 3, 4, 5)).astype(np.int32)
    expected, computed = both(operation, graph, stored)
    np.testing.assert_array_equal(computed, expected)
    pair = Pair(("x", "c"), "y", Pointwise.SUM)
    known = Tensor("c", (3, 4, 5), Codes(np.float32(scales[1]), 0))
    graph = graph_of(pair, tensors[0], known, output=tensors[1])
    full = np.broadcast_to(constant, (8, 3, 4, 5))
    np.testing.assert_array_equal(pair.simulate(graph, stored, full), expected)


@pytest.mark.thorough
@given(
    scales=st.tuples(*[st.floats(1e-3, 1.0)] * 3),
    sources=st.tuples(*[st.sampled_from([-128, 0, 112])] * 2),
    output=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_round_like_the_kernel(scales, sources, output, seed):
    rng = np.random.default_rng(seed)
    codes = [
        Codes(np.float32(scale), zero) for scale, zero in zip(scales[:2], sources, strict=True)
    ]
    target = Codes(np.float32(scales[2]), output.zero_point, output.lowest)
    operation = Pair(("a", "b"), "y", Pointwise.SUM)
    tensors = [Tensor(name, (64,), one) for name, one in zip("ab", codes, strict=True)]
    graph = graph_of(operation, *tensors, output=Tensor("y", (64,), target))
    stored = [rng.integers(-128, 128, (8, 64)).astype(np.int32) for _ in codes]
    expected, computed = both(operation, graph, *stored)
    np.testing.assert_array_equal(computed, expected)


def test_sums_with_ties_are_rounded_up():
    operation = Pair(("a", "b"), "y", Pointwise.SUM)
    half, one = Codes(np.float32(0.5), 0), Codes(np.float32(1.0), 0)
    tensors = [Tensor(name, (256,), half) for name in "ab"]
    graph = graph_of(operation, *tensors, output=Tensor("y", (256,), one))
    stored = np.arange(-128, 128, dtype=np.int32)[np.newaxis]
    expected, computed = both(operation, graph, stored, np.zeros_like(stored))
    np.testing.assert_array_equal(computed, expected)
    assert computed[0, 128 + 5] == 3  # 2.5


@pytest.mark.thorough
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    ratio=st.floats(0.05, 20.0),
    source=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    output=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]),
    keep_dims=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_means_round_like_the_kernel(size, ratio, source, output, keep_dims, seed):
    rng = np.random.default_rng(seed)
    target = Codes(
        np.float32(float(source.scale) / ratio), output.zero_point, output.lowest, output.highest
    )
    operation = Mean(("x",), "y", keep_dims)
    graph = graph_of(operation, Tensor("x", (*size, 5), source), output=Tensor("y", (5,), target))
    stored = rng.integers(source.lowest, source.highest + 1, (6, *size, 5)).astype(np.int32)
    expected, computed = both(operation, graph, stored)
    np.testing.assert_array_equal(computed, expected)


@given(seed=st.integers(0, 2**32 - 1), output=st.sampled_from([SIGNED, UNSIGNED, FOUR_BITS]))
def test_quantize_and_dequantize_round_like_the_runtime(seed, output):
    rng = np.random.default_rng(seed)
    operation = Quantize(("x",), "y")
    graph = graph_of(operation, Tensor("x", (99,), None), output=Tensor("y", (99,), output))
    real = (rng.normal(size=(4, 99)) * rng.choice([0.1, 1.0, 100.0])).astype(np.float32)
    expected = operation.simulate(graph, real)
    constants = operation.numbers(graph)
    computed = operation.compute(graph, constants, tf.constant(real)).numpy()
    np.testing.assert_array_equal(computed + output.zero_point, expected)
    back = Dequantize(("y",), "z")
    graph = graph_of(back, Tensor("y", (99,), output), output=Tensor("z", (99,), None))
    np.testing.assert_array_equal(
        back.compute(graph, back.numbers(graph), tf.constant(computed)),
        back.simulate(graph, expected),
    )
