import itertools

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.export.kernels.kernel_sets import X86
from sat_tf.export.operations import windows
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import Linear, weight_counts
from sat_tf.export.operations.pairs import Pair
from sat_tf.export.operations.pointwise import Pointwise, WithConstant, on_codes
from sat_tf.export.operations.pools import MaxPool, Mean
from sat_tf.export.operations.windows import LinearKind
from sat_tf.export.tflite.tensors import Codes, Tensor, Window
from tests.export import reference

_SCALE = np.float32(1.0)


@pytest.mark.parametrize(
    ("size", "strides", "padding", "dilation"),
    [
        *itertools.product([1, 3], [(1, 1), (2, 2), (3, 1)], ["SAME", "VALID"], [(1, 1)]),
        (3, (1, 1), "SAME", (2, 2)),
        (2, (2, 2), "SAME", (1, 1)),
        (5, (4, 4), "SAME", (1, 1)),
    ],
)
def test_convolution_sums_are_those_of_the_definition(size, strides, padding, dilation):
    rng = np.random.default_rng(0)
    stored = rng.integers(-128, 128, (2, 7, 6, 3)).astype(np.int32)
    kernel = rng.integers(-127, 128, (4, size, size, 3)).astype(np.int32)
    window = Window(strides, padding, dilation)
    sums = windows.sums(stored, -128, kernel, LinearKind.CONVOLUTION, window)
    expected = reference.convolution(stored, -128, kernel, strides, padding, dilation)
    np.testing.assert_array_equal(sums, expected)


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_sums_are_those_of_the_definition(multiplier, padding, stride):
    rng = np.random.default_rng(1)
    stored = rng.integers(-128, 128, (2, 6, 5, 3)).astype(np.int32)
    kernel = rng.integers(-127, 128, (3, 3, 3 * multiplier)).astype(np.int32)
    window = Window((stride, stride), padding)
    sums = windows.sums(stored, 112, kernel, LinearKind.DEPTHWISE, window)
    expected = reference.depthwise(stored, 112, kernel, (stride, stride), padding)
    np.testing.assert_array_equal(sums, expected)


@settings(deadline=None, derandomize=True)
@given(
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from(["SAME", "VALID"]),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    more=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    zero_point=st.sampled_from([-128, 0, 112]),
    seed=st.integers(0, 2**32 - 1),
)
def test_transposed_sums_of_any_output_are_those_of_the_definition(
    strides, padding, size, more, zero_point, seed
):
    rng = np.random.default_rng(seed)
    more = tuple(min(one, stride - 1) for one, stride in zip(more, strides, strict=True))
    layer = keras.layers.Conv2DTranspose(2, size, strides, padding.lower(), output_padding=more)
    made = layer.compute_output_shape((None, 3, 4, 2))[1:3]
    read = [-(-one // stride) for one, stride in zip(made, strides, strict=True)]
    if padding == "SAME" and read != [3, 4]:  # no convolution is the transpose of it
        return
    usual = windows.transposed_size((3, 4), size, Window(strides, padding))
    rows, columns = (one - other for one, other in zip(made, usual, strict=True))
    window = Window(strides, padding, more=(rows, columns))
    kernel = rng.integers(-127, 128, (2, *size, 2)).astype(np.int32)
    stored = rng.integers(-128, 128, (2, 3, 4, 2)).astype(np.int32)
    found = windows.sums(stored, zero_point, kernel, LinearKind.TRANSPOSED, window)
    expected = reference.transposed(stored, zero_point, kernel, strides, padding, made)
    np.testing.assert_array_equal(found, expected)


def test_sums_beyond_float32_are_exact():
    stored = np.full((1, 4096), 127, np.int32)
    kernel = np.full((1, 4096), 127, np.int32)
    kernel[0, 0] = 126
    sums = windows.sums(stored, -128, kernel, LinearKind.FULLY_CONNECTED, Window())
    assert int(sums[0, 0]) == 255 * (127 * 4095 + 126)


def test_sums_of_two_tensors_round_ties_up():
    half = Codes(np.float32(0.5), 0)
    found = on_codes(
        Pointwise.SUM,
        (np.array([-3, -1, 1, 3]), np.array([0, 0, 0, 0])),
        (half, half),
        Codes(_SCALE, 0),
        X86,
    )
    np.testing.assert_array_equal(found, [-1, 0, 1, 2])


@settings(deadline=None, derandomize=True)
@given(
    scales=st.tuples(*[st.floats(1e-3, 1.0)] * 3),
    shape=st.sampled_from([(3, 4, 5), (1, 4, 5), (3, 1, 1), (1, 1, 5)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums_with_a_map_round_like_those_of_two_tensors(scales, shape, seed):
    rng = np.random.default_rng(seed)
    source, known, output = (Codes(np.float32(scale), 0) for scale in scales)
    tensors = {
        name: Tensor(name, (3, 4, 5), codes)
        for name, codes in (("x", source), ("c", known), ("y", output))
    }
    constant = rng.integers(-127, 128, shape).astype(np.int32)
    stored = rng.integers(-128, 128, (8, 3, 4, 5)).astype(np.int32)
    graph = Graph("", tensors, (), (), "y")
    codes = constant.astype(np.int8)[np.newaxis]
    found = WithConstant(("x",), "y", Pointwise.SUM, codes, known).simulate(graph, stored)
    full = np.broadcast_to(constant, stored.shape)
    expected = Pair(("x", "c"), "y", Pointwise.SUM).simulate(graph, stored, full)
    np.testing.assert_array_equal(found, expected)


@settings(deadline=None, derandomize=True)
@given(
    scales=st.tuples(*[st.floats(0.0625, 2.0, width=32)] * 3),
    values=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
)
def test_a_sum_is_within_one_code_of_the_real_sum(scales, values):
    first, second, output = (Codes(np.float32(scale), 3) for scale in scales)
    arrays = np.array(values[0]), np.array(values[1])
    found = on_codes(Pointwise.SUM, arrays, (first, second), output, X86).item()
    real = (values[0] - 3) * scales[0] + (values[1] - 3) * scales[1]
    # Half a code of rounding, and multipliers of 20 bits on at most 2^8 codes.
    exact = min(max(real / scales[2], -131), 124)
    assert abs(found - 3 - exact) <= 0.5 + 2 * 2**8 * max(scales[:2]) / scales[2] * 2.0**-20


def _mean(stored, source, output, *, keep_dims):
    tensors = {name: Tensor(name, (), codes) for name, codes in (("x", source), ("y", output))}
    graph = Graph("", tensors, (), (), "y")
    return Mean(("x",), "y", keep_dims=keep_dims).simulate(graph, stored)


def test_the_mean_of_one_value_on_its_own_scale_is_the_value():
    codes = Codes(np.float32(0.1), 112, lowest=112)
    stored = np.arange(112, 128, dtype=np.int32).reshape(1, 1, 1, 16)
    found = _mean(stored, codes, codes, keep_dims=False)
    np.testing.assert_array_equal(found, stored[:, 0, 0])


def test_a_mean_changes_scales_and_zero_points():
    source, output = Codes(np.float32(0.5), -128), Codes(np.float32(0.25), 112)
    stored = np.array([-128, -126, -124, -122], np.int32).reshape(1, 2, 2, 1)
    found = _mean(stored, source, output, keep_dims=True)
    assert found.shape == (1, 1, 1, 1)
    assert found.item() == 112 + 6  # 3 codes of 0.5 are 1.5


def test_max_pooling_never_takes_the_padding():
    stored = np.full((1, 3, 3, 1), -120, np.int32)
    operation = MaxPool(("x",), "y", (2, 2), Window((2, 2), "SAME"))
    graph = Graph("", {"y": Tensor("y", (2, 2, 1), Codes(np.float32(1.0), 0))}, (), (), "y")
    found = operation.simulate(graph, stored)
    np.testing.assert_array_equal(found, np.full((1, 2, 2, 1), -120))


def test_weights_are_counted_without_the_factor_of_their_channel():
    kernel = np.array([[-24, 8, 8], [0, 0, 0], [3, -5, 7]])
    linear = Linear(
        ("x",), "y", LinearKind.FULLY_CONNECTED, kernel, *(np.zeros(3) for _ in range(4))
    )
    assert weight_counts(linear) == {-5: 1, -3: 1, 0: 3, 1: 2, 3: 1, 7: 1}
