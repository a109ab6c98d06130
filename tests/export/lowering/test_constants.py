import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

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
    linear = Linear(
        ("x",),
        "y",
        kind=LinearKind.CONVOLUTION,
        kernel=np.zeros((3, 1, 1, 2), np.int32),
        scales=np.array([7.0, 1e-9, 1e20]),
        bias=np.array([0.74, -5.0, 30.0]),
        center=np.zeros(3),
        spread=np.full(3, np.inf),
    )
    tensors = {
        "x": Tensor("x", (2, 2, 2), Codes(np.float32(0.5), 0)),
        "y": Tensor("y", (2, 2, 3), Codes(np.float32(0.25), 0)),
    }
    graph = Graph("net", tensors, (linear,), (2, 2, 1), np.float32(1.0), "image", "y")
    for stage in (settle_constants, floor_scales, round_biases):
        graph = stage(graph)
    (settled,) = graph.operations
    assert isinstance(settled, Linear)
    codes = np.rint(requantization_multipliers(graph, settled) * settled.bias)
    np.testing.assert_array_equal(codes, [3, -20, 120])
