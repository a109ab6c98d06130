import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import pact
from sat_tf.core.gradients import CLIPPING_GRADIENTS
from tests import reference
from tests.core.execution import MODES, array, differentiated, large_draw

# Half a unit in the last place of 1 in float32.
EPSILON = 2.0**-24
# Nearer than this to a tie, counted in codes, float32 may round either way: positions reach 255 and
# are off by a few units in the last place.
TIE = 256 * 4 * EPSILON
# A part of the clipping level: the step is rounded, and its product with a code.
ROUNDING = 3 * EPSILON

QUANTIZERS = {"activation": pact.quantize_activation, "stream": pact.quantize_stream}
REFERENCES = {
    "activation": (
        reference.quantize_activation,
        reference.activation_gradients,
        reference.activation_position,
    ),
    "stream": (reference.quantize_stream, reference.stream_gradients, reference.stream_position),
}
ROWS = [("activation", bits) for bits in range(1, 9)] + [("stream", b) for b in range(2, 9)]
FEW_ROWS = [("activation", 1), ("activation", 4), ("stream", 8)]

LEVELS = st.floats(2.0**-10, 2.0**13, width=32)
VALUES = hnp.arrays(
    np.float32, st.integers(1, 12), elements=st.floats(-2.0, 2.0, width=32, allow_subnormal=False)
)


def _draw(shape=(4, 6, 6, 8), seed=0, deviation=2.0):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float32)


@functools.cache
def _differentiated(kind, bits, gradient, mode):
    return differentiated(lambda x, level: QUANTIZERS[kind](x, level, bits, gradient), mode)


def _run(kind, x, level, bits, gradient="calibrated", upstream=None, mode="eager"):
    return _differentiated(kind, bits, gradient, mode)([x, np.float32(level)], upstream)


# α = 3 at 2 bits: step 1. The upstream gradient is 1 everywhere.
#   x           -1    0   0.25   0.5  1.25   2.5     3    7
#   q            0    0     0     1     1     3     3    3     (ties at 0.5 and 2.5 go up)
#   dq/dx        0    0     1     1     1     1     0    0
#   dq/dα        0    0  -1/12   1/6 -1/12   1/6     1    1     (q/3 - x/3 below α)
@pytest.mark.parametrize("mode", MODES)
def test_a_2_bit_activation_worked_by_hand(mode):
    x = np.array([-1, 0, 0.25, 0.5, 1.25, 2.5, 3, 7], np.float32)
    value, inside, level_gradient = _run("activation", x, 3.0, 2, mode=mode)
    assert value.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert level_gradient == pytest.approx(2 - 1 / 12 + 1 / 6 - 1 / 12 + 1 / 6, abs=1e-6)
    _, inside, level_gradient = _run("activation", x, 3.0, 2, "pact", mode=mode)
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert level_gradient == pytest.approx(2.0, abs=1e-6)


# r = 3 at 3 bits: six steps of 1.
#   x          -9   -3  -2.5  -0.5   0   0.5  1.75   3    9
#   q          -3   -3   -2     0    0    1    2     3    3     (ties go up)
#   dq/dx       0    0    1     1    1    1    1     0    0
#   dq/dr      -1   -1   1/6   1/6   0   1/6  1/12   1    1
@pytest.mark.parametrize("mode", MODES)
def test_a_3_bit_stream_worked_by_hand(mode):
    x = np.array([-9, -3, -2.5, -0.5, 0, 0.5, 1.75, 3, 9], np.float32)
    upstream = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], np.float32)
    value, inside, level_gradient = _run("stream", x, 3.0, 3, upstream=upstream, mode=mode)
    assert value.tolist() == [-3, -3, -2, 0, 0, 1, 2, 3, 3]
    assert inside.tolist() == [0, 0, 3, 4, 5, 6, 7, 0, 0]
    expected = -1 - 2 + (3 + 4 + 6) / 6 + 7 / 12 + 8 + 9
    assert level_gradient == pytest.approx(expected, abs=1e-5)
    _, _, level_gradient = _run("stream", x, 3.0, 3, "pact", upstream, mode)
    assert level_gradient == pytest.approx(-1 - 2 + 8 + 9, abs=1e-5)


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(
    ("kind", "bits", "mode"),
    [(*row, "eager") for row in ROWS]
    + [(*row, mode) for row in FEW_ROWS for mode in MODES if mode != "eager"],
)
def test_values_and_gradients_are_those_of_the_reference(kind, bits, mode, gradient):
    x, upstream, level = _draw(), _draw(seed=1), 2.7
    if mode == "eager":
        _, x, upstream = large_draw(bits)
    value, inside, level_gradient = _run(kind, x, level, bits, gradient, upstream, mode)
    quantize, gradients, position = REFERENCES[kind]
    level = float(np.float32(level))
    clear = reference.distance_from_tie(position(x, level, bits), "dorefa") > TIE
    expected = quantize(x, level, bits)[clear]
    np.testing.assert_allclose(value[clear], expected, rtol=0, atol=ROUNDING * level)
    expected, expected_level = gradients(x, level, bits, upstream, gradient)
    np.testing.assert_array_equal(inside, expected.astype(np.float32))
    # A sum of products, each off by a unit in its last place.
    assert abs(level_gradient - expected_level) <= 4 * EPSILON * np.abs(upstream).sum()


@pytest.mark.thorough
@settings(max_examples=300)
@given(at=st.sampled_from(ROWS), relative=VALUES, level=LEVELS)
def test_quantized_values_are_the_nearest_of_the_grid(at, relative, level):
    kind, bits = at
    x = (relative * np.float32(level)).astype(np.float32)
    value = array(QUANTIZERS[kind](x, level, bits)).astype(np.float64)
    steps = 2**bits - 1 if kind == "activation" else (2**bits - 2) // 2
    codes = value * steps / float(np.float32(level))
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-4)
    lowest = 0 if kind == "activation" else -steps
    assert ((np.round(codes) >= lowest) & (np.round(codes) <= steps)).all()
    clipped = np.clip(x.astype(np.float64) / level * steps, lowest, steps)
    assert (np.abs(codes - clipped) <= 0.5 + 1e-4).all()
    again = array(QUANTIZERS[kind](value.astype(np.float32), level, bits))
    np.testing.assert_array_equal(again, value.astype(np.float32))
    in_order = value[np.argsort(x)]
    assert (np.diff(in_order) >= 0).all()


@pytest.mark.thorough
@settings(max_examples=300)
@given(
    at=st.sampled_from(ROWS),
    relative=VALUES,
    level=LEVELS,
    gradient=st.sampled_from(sorted(CLIPPING_GRADIENTS)),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_are_those_of_the_reference(at, relative, level, gradient, seed):
    kind, bits = at
    x = (relative * np.float32(level)).astype(np.float32)
    # To a thread that TensorFlow has set to flush them, subnormal numbers are zeros.
    x[np.abs(x) < np.finfo(np.float32).tiny] = 0.0
    upstream = np.random.default_rng(seed).normal(size=x.shape).astype(np.float32)
    _, gradients, position = REFERENCES[kind]
    level = float(np.float32(level))
    _, inside, level_gradient = _run(kind, x, level, bits, gradient, upstream)
    expected, expected_level = gradients(x, level, bits, upstream, gradient)
    np.testing.assert_array_equal(inside, expected.astype(np.float32))
    # At a tie q may be a step to either side.
    steps = 2**bits - 1 if kind == "activation" else (2**bits - 2) / 2
    tied = reference.distance_from_tie(position(x, level, bits), "dorefa") <= TIE
    room = 1e-5 * np.abs(upstream).sum() + np.abs(upstream[tied]).sum() / steps
    assert abs(level_gradient - expected_level) <= room


# The neighbours of 0 and α, where one bit decides; and α on every side of a power of two.
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", [1.0, 1.0000001, 1.9999999, 2.7, 8.0, 0.001, 1023.9999])
@pytest.mark.parametrize("kind", QUANTIZERS)
def test_the_gradient_ends_exactly_at_the_clipping_level(kind, level, mode):
    level = np.float32(level)
    below, above = np.nextafter(level, np.float32(0)), np.nextafter(level, np.float32(np.inf))
    tiny = np.float32(2.0**-126)
    x = np.array([0.0, -0.0, -tiny, tiny, below, level, above], np.float32)
    if kind == "stream":
        x = np.concatenate([x, -x])
    for gradient in CLIPPING_GRADIENTS:
        _, inside, level_gradient = _run(kind, x, level, 4, gradient, mode=mode)
        if kind == "activation":
            assert inside.tolist() == [0, 0, 0, 1, 1, 0, 0]
            assert level_gradient == pytest.approx(2.0, abs=1e-5)
        else:
            assert inside.tolist() == [1, 1, 1, 1, 1, 0, 0] * 2
            assert level_gradient == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_zero_is_exactly_zero(mode):
    for kind, bits in ROWS if mode == "eager" else FEW_ROWS:
        for level in (2.7, 0.333, 5.1234):
            value, _, _ = _run(kind, np.zeros(7, np.float32), level, bits, mode=mode)
            assert value.tolist() == [0.0] * 7


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (0, 4, 4, 3), (2, 0), (2, 3, 4, 5, 6)])
def test_tensors_have_any_shape(shape):
    x = np.full(shape, 1.25, np.float32)
    value, inside, level_gradient = _run("activation", x, 3.0, 2)
    assert value.shape == inside.shape == shape
    np.testing.assert_array_equal(value, np.ones(shape))
    assert level_gradient == pytest.approx(-x.size / 12, abs=1e-4)


def test_a_large_tensor_does_not_lose_the_gradient_of_the_level():
    # At 8 bits the terms nearly cancel: the sum is a thousandth of its parts.
    x, upstream = _draw((8, 56, 56, 32)), _draw((8, 56, 56, 32), seed=1)
    _, _, level_gradient = _run("activation", x, 2.7, 8, upstream=upstream)
    level = float(np.float32(2.7))
    _, expected = reference.activation_gradients(x, level, 8, upstream)
    # The clipped part alone has a standard deviation of 270, and this is a ten-thousandth of it.
    assert level_gradient == pytest.approx(expected, abs=0.03)
