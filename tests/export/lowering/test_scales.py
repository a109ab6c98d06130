import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sat_tf.export.lowering import scales
from sat_tf.export.lowering.scales import (
    Channel,
    floor_scales,
    round_biases,
    settle,
    settle_constants,
)
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import Linear, requantization_multipliers
from sat_tf.export.operations.windows import LinearKind
from sat_tf.export.tflite.tensors import Codes, Tensor


def _graph(kernel, weight_scales, bias, *, source=0.5, output=0.25) -> Graph:
    """One 1x1 convolution."""
    kernel = np.asarray(kernel, np.int32).reshape(len(kernel), 1, 1, -1)
    linear = Linear(
        ("x",),
        "y",
        kind=LinearKind.CONVOLUTION,
        kernel=kernel,
        scales=np.asarray(weight_scales, np.float64),
        bias=np.asarray(bias, np.float64),
        center=np.zeros(len(kernel)),
        spread=np.full(len(kernel), np.inf),
    )
    tensors = {
        "x": Tensor("x", (2, 2, kernel.shape[-1]), Codes(np.float32(source), 0)),
        "y": Tensor("y", (2, 2, len(kernel)), Codes(np.float32(output), 0)),
    }
    return Graph("net", tensors, (linear,), (2, 2, 1), np.float32(1.0), "image", "y")


def _only(graph: Graph) -> Linear:
    (linear,) = graph.operations
    assert isinstance(linear, Linear)
    return linear


def test_upscaling_keeps_the_weights():
    before = _only(_graph([[3, -15], [1, 0], [0, 0]], [0.1, 0.2, 0.3], [0, 0, 0]))
    after = _only(scales.upscale(_graph([[3, -15], [1, 0], [0, 0]], [0.1, 0.2, 0.3], [0, 0, 0])))
    np.testing.assert_array_equal(after.kernel.reshape(3, 2), [[24, -120], [127, 0], [0, 0]])
    np.testing.assert_allclose(
        after.kernel * after.along_channels(after.scales),
        before.kernel * before.along_channels(before.scales),
        rtol=1e-15,
    )


def test_one_scale_for_all_channels_stays_one_scale():
    after = _only(scales.upscale(_graph([[3, -15], [1, 0]], [0.1, 0.1], [0, 0])))
    np.testing.assert_array_equal(after.kernel.reshape(2, 2), [[24, -120], [8, 0]])
    assert after.scales[0] == after.scales[1]


def test_a_layer_of_a_large_network_has_one_factor_so_that_its_bytes_have_few_values():
    codes = np.tile([[3, -15], [1, 0]], (2**18, 1))
    weight_scales = np.linspace(0.1, 0.2, len(codes))
    after = _only(scales.upscale(_graph(codes, weight_scales, np.zeros(len(codes)))))
    assert set(np.unique(after.kernel)) == {-120, 0, 8, 24}


def test_upscaling_leaves_room_in_int32():
    wide = np.where(np.arange(100_000) % 2, 1, -1)[np.newaxis]
    after = _only(scales.upscale(_graph(wide, [0.1], [0.0])))
    # 100 000 codes of 83 meet inputs of at most 128.
    assert np.max(after.kernel) == 2**30 // (100_000 * 128) == 83


def test_a_dead_channel_gets_a_step_that_its_bias_fits():
    graph = scales.round_biases(scales.floor_scales(_graph([[5], [5]], [1e-12, 0.1], [1.0, 1.0])))
    linear = _only(graph)
    np.testing.assert_array_equal(linear.kernel.ravel(), [0, 5])
    real = linear.bias * 0.5 * linear.scales.astype(np.float64)
    np.testing.assert_allclose(real, [1.0, 1.0], atol=0.025)
    assert np.max(np.abs(linear.bias)) <= 2**30


def test_biases_become_integers_of_input_scale_times_weight_scale():
    linear = _only(scales.round_biases(_graph([[1], [1]], [0.5, 0.25], [1.1, -1.1])))
    np.testing.assert_array_equal(linear.bias, [4, -9])
    assert linear.scales.dtype == np.float32


@pytest.mark.parametrize("weight_scale", [128.0, 1e4, 1e30])
@pytest.mark.parametrize("lowest_and_highest", [(-128, 127), (0, 255), (-255, 0), (-10, 245)])
def test_multipliers_beyond_255_give_the_codes_of_255(weight_scale, lowest_and_highest):
    graph = scales.round_biases(_graph([[1]], [weight_scale], [3 * 0.5 * weight_scale]))
    linear, multipliers = _only(graph), requantization_multipliers(graph, _only(graph))
    assert multipliers == pytest.approx(255.0)
    assert linear.bias == 3
    sums = np.arange(-300, 301).astype(np.float64)
    trained = np.clip(np.rint(weight_scale * 0.5 / 0.25 * sums), *lowest_and_highest)
    np.testing.assert_array_equal(
        np.clip(np.rint(multipliers * sums), *lowest_and_highest), trained
    )


@pytest.mark.parametrize(("bias", "expected"), [(-5e10, -131), (5e10, 131), (-5e7, -1_000_000)])
def test_a_bias_whose_products_overflow_becomes_the_smallest_that_saturates(bias, expected):
    linear = _only(scales.round_biases(_graph([[1]], [100.0], [bias])))  # in units of 50
    assert linear.bias == expected
    # Inputs of at most 128, and 200 output codes each.
    assert abs(200 * (abs(expected) - 128)) > 255


def test_float_layers_are_left_alone():
    graph = _graph([[3]], [0.1], [0.05])
    real = dataclasses.replace(_only(graph), real=True)
    graph = dataclasses.replace(graph, operations=(real,))
    assert _only(scales.round_biases(scales.upscale(graph))) is real


def _codes(channel: Channel, multiplier: float, bias: int, sums: np.ndarray) -> np.ndarray:
    return channel.code(np.float32(multiplier) * (sums + bias))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    multiplier=st.floats(0.13, 200.0),
    constant=st.floats(-300.0, 300.0),
    usual=st.integers(-20, 20),
    ends=st.sampled_from([(0, 15), (0, 3), (-7, 7), (-128, 127), (0, 255), (0, 1)]),
)
def test_the_code_at_the_operating_point_is_the_trained_one(multiplier, constant, usual, ends):
    gap = 8
    assume(abs(constant - np.floor(constant) - 0.5) > 1e-3)  # a tie has no right answer
    bias = constant - multiplier * usual * gap
    channel = Channel(multiplier, bias, usual * gap, 0.0, gap, *ends)
    found, bias = settle(channel)
    assert found > 0
    assert _codes(channel, found, bias, np.array(usual * gap)) == channel.code(np.array(constant))


def test_a_binary_channel_stays_one():
    # Any other sum than 0 clips, before and after: the channel's function is kept whole.
    channel = Channel(2.37, 3.296, usual=0, spread=0.0, gap=8, lowest=0, highest=15)
    found, bias = settle(channel)
    sums = 8 * np.arange(-20, 21)
    trained = channel.code(channel.multiplier * sums + channel.bias)
    np.testing.assert_array_equal(_codes(channel, found, bias, sums), trained)
    assert np.rint(3.296 / 2.37) * 2.37 == pytest.approx(2.37)  # what rounding alone makes of it


@pytest.mark.parametrize("constant", [0.75, 40.4, 100.6])
def test_a_channel_that_varies_keeps_its_slope(constant):
    # Its constant exactly would need another slope, and be wrong far from there by many codes.
    channel = Channel(2.8, constant, usual=0, spread=np.inf, gap=1, lowest=-217, highest=255)
    found, bias = settle(channel)
    sums = np.arange(-100, 101)
    trained = channel.code(channel.multiplier * sums + channel.bias)
    assert np.max(np.abs(_codes(channel, found, bias, sums) - trained)) <= 2  # half a unit is 1.4


def test_a_bias_that_is_an_integer_already_is_left_alone():
    assert settle(Channel(0.5, 4.0, usual=0, spread=0.0, gap=8, lowest=0, highest=15)) == (0.5, 8)


def test_a_channel_without_weights_gives_its_constant_however_coarse_its_scale():
    graph = _graph(np.zeros((3, 2)), [7.0, 1e-9, 1e20], [0.74, -5.0, 30.0])
    for stage in (settle_constants, floor_scales, round_biases):
        graph = stage(graph)
    settled = _only(graph)
    codes = np.rint(requantization_multipliers(graph, settled) * settled.bias)
    np.testing.assert_array_equal(codes, [3, -20, 120])


@pytest.mark.parametrize("seed", range(4))
def test_no_factor_of_single_codes_makes_more_of_them_others_than_the_largest_one(seed):
    draw, size = np.random.default_rng(seed), 16
    # Many results are half way between two codes.
    weights, constants = draw.integers(1, 5, size) / 2, draw.integers(-200, 200, size) / 4
    graph = _graph(np.ones((size, 1)), weights, constants, source=1.0, output=1.0)
    kernel, image = np.ones((1, 1, size), np.int32), Tensor("x", (2, 2, size), graph.codes("x"))
    changes = {"kind": LinearKind.DEPTHWISE, "kernel": kernel}
    operation = dataclasses.replace(_only(graph), **changes)
    graph = dataclasses.replace(
        graph, tensors={**graph.tensors, "x": image}, operations=(operation,)
    )
    factors = _only(scales.upscale(graph)).kernel.reshape(-1)
    codes = np.arange(-128, 128)[:, np.newaxis]
    exact = np.clip(np.floor(codes * weights + constants + 0.5), -128, 127)

    def others(factors):
        steps = np.rint(constants * factors / weights)
        made = np.clip(np.rint((codes * factors + steps) * (weights / factors)), -128, 127)
        return np.count_nonzero(made != exact, axis=0)

    assert np.min(factors) >= 64
    assert np.all(others(factors) <= others(127))


def test_the_factor_of_preprocessing_makes_its_constant_an_integer():
    # x / 127.5 - 1 on codes of 1/127: with the factor 127, -1 is half an integer.
    kernel, scale = np.ones((1, 1, 1, 1), np.int32), np.array([1 / 127.5])
    graph = _graph(kernel, scale, np.array([-1.0]), source=1.0, output=1 / 127)
    operation = dataclasses.replace(_only(graph), kind=LinearKind.DEPTHWISE)
    changed = scales.upscale(dataclasses.replace(graph, operations=(operation,)))
    factor = int(_only(changed).kernel.item())
    bias = -127.5 * factor
    assert factor >= 64
    assert bias == round(bias)
