"""Clipping to a level, and to ranges that are not symmetric."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import asymmetric, pact
from sat_tf.core.gradients import CLIPPING_GRADIENTS
from tests import reference
from tests.core.execution import (
    MODES,
    array,
    differentiated,
    draw,
    large_draw,
    tensor,
    value_and_gradients,
)

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
activations = functools.partial(draw, (4, 6, 6, 8), deviation=2.0)


@functools.cache
def _differentiated(kind, bits, gradient, mode):
    return differentiated(lambda x, level: QUANTIZERS[kind](x, level, bits, gradient), mode)


def clipped(kind, x, level, bits, gradient="calibrated", upstream=None, mode="eager"):
    return _differentiated(kind, bits, gradient, mode)([x, np.float32(level)], upstream)


# α = 3 at 2 bits: step 1. The upstream gradient is 1 everywhere.
#   x           -1    0   0.25   0.5  1.25   2.5     3    7
#   q            0    0     0     1     1     3     3    3     (ties at 0.5 and 2.5 go up)
#   dq/dx        0    0     1     1     1     1     0    0
#   dq/dα        0    0  -1/12   1/6 -1/12   1/6     1    1     (q/3 - x/3 below α)
@pytest.mark.parametrize("mode", MODES)
def test_a_2_bit_activation_worked_by_hand(mode):
    x = np.array([-1, 0, 0.25, 0.5, 1.25, 2.5, 3, 7], np.float32)
    value, inside, level_gradient = clipped("activation", x, 3.0, 2, mode=mode)
    assert value.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert inside.tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert level_gradient == pytest.approx(2 - 1 / 12 + 1 / 6 - 1 / 12 + 1 / 6, abs=1e-6)
    _, inside, level_gradient = clipped("activation", x, 3.0, 2, "pact", mode=mode)
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
    value, inside, level_gradient = clipped("stream", x, 3.0, 3, upstream=upstream, mode=mode)
    assert value.tolist() == [-3, -3, -2, 0, 0, 1, 2, 3, 3]
    assert inside.tolist() == [0, 0, 3, 4, 5, 6, 7, 0, 0]
    expected = -1 - 2 + (3 + 4 + 6) / 6 + 7 / 12 + 8 + 9
    assert level_gradient == pytest.approx(expected, abs=1e-5)
    _, _, level_gradient = clipped("stream", x, 3.0, 3, "pact", upstream, mode)
    assert level_gradient == pytest.approx(-1 - 2 + 8 + 9, abs=1e-5)


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(
    ("kind", "bits", "mode"),
    [(*row, "eager") for row in ROWS]
    + [(*row, mode) for row in FEW_ROWS for mode in MODES if mode != "eager"],
)
def test_values_and_gradients_are_those_of_the_reference(kind, bits, mode, gradient):
    x, upstream, level = activations(), activations(seed=1), 2.7
    if mode == "eager":
        _, x, upstream = large_draw(bits)
    x.flat[0] = 0.0
    value, inside, level_gradient = clipped(kind, x, level, bits, gradient, upstream, mode)
    assert value.flat[0] == 0.0  # exactly
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
    _, inside, level_gradient = clipped(kind, x, level, bits, gradient, upstream)
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
        value, inside, level_gradient = clipped(kind, x, level, 4, gradient, mode=mode)
        assert not value[:2].any()
        if kind == "activation":
            assert inside.tolist() == [0, 0, 0, 1, 1, 0, 0]
            assert level_gradient == pytest.approx(2.0, abs=1e-5)
        else:
            assert inside.tolist() == [1, 1, 1, 1, 1, 0, 0] * 2
            assert level_gradient == pytest.approx(0.0, abs=1e-5)


def test_a_large_tensor_does_not_lose_the_gradient_of_the_level():
    # At 8 bits the terms nearly cancel: the sum is a thousandth of its parts.
    x, upstream = draw((8, 56, 56, 32), 0, 2.0), draw((8, 56, 56, 32), 1, 2.0)
    _, _, level_gradient = clipped("activation", x, 2.7, 8, upstream=upstream)
    level = float(np.float32(2.7))
    _, expected = reference.activation_gradients(x, level, 8, upstream)
    # The clipped part alone has a standard deviation of 270, and this is a ten-thousandth of it.
    assert level_gradient == pytest.approx(expected, abs=0.03)


# -- ranges that are not symmetric -----------------------------------------------------------------


RANGES = [(-0.2785, 0.0), (-1.0, 0.0), (0.0, 0.1), (-0.375, 0.2), (0.0, 0.0)]

_values = functools.partial(draw, 4000, deviation=2.0)


def _offset(x, level, bits, upstream=None, mode="eager", gradient="calibrated", **settings):
    def function(x, level):
        return asymmetric.quantize_offset(x, level, bits, gradient, **settings)

    return value_and_gradients(function, [x, np.float32(level)], upstream, mode)


@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("lowest", "share"), RANGES)
def test_values_and_gradients_are_those_of_the_formula(bits, gradient, lowest, share):
    x, upstream = _values(seed=1), _values(seed=2)
    settings = {"lowest": lowest, "share": share}
    value, by_x, by_level = _offset(x, 2.7, bits, upstream, gradient=gradient, **settings)
    expected = reference.quantize_offset(x, 2.7, bits, lowest, share)
    step = ((1.0 + share) * 2.7 - lowest) / (2**bits - 1)
    # float32 against float64: values next to a tie may be rounded to the other side.
    assert np.mean(np.abs(value - expected) > 1e-5) < 1e-3
    assert np.max(np.abs(value - expected)) < 1.001 * step
    assert 0.0 in value
    wanted = reference.offset_gradients(x, 2.7, bits, upstream, lowest, share, gradient)
    np.testing.assert_array_equal(by_x, wanted[0].astype(np.float32))
    # One value next to a tie may have the next code; sums of 4000 float32 are that exact.
    one_code = float(np.max(np.abs(upstream))) * (1.0 + share) / (2**bits - 1)
    assert float(by_level) == pytest.approx(wanted[1], rel=1e-4, abs=one_code + 1e-4)


@pytest.mark.parametrize(("bits", "below"), [(2, 1), (4, 3), (6, 11), (8, 43)])
@pytest.mark.parametrize("mode", MODES)
def test_half_a_code_below_zero_counts_as_one_at_every_level(bits, below, mode):
    # A slope of 0.2 needs a/6 codes below zero: 0.5, 2.5, 10.5 and 42.5.
    for level in np.random.default_rng(0).uniform(0.5, 8.0, 6).astype(np.float32):
        found = _offset(np.float32([-99.0, 99.0]), level, bits, mode=mode, share=0.2)[0]
        lowest, highest = found / (1.2 * level / (2**bits - 1))
        np.testing.assert_allclose([-lowest, highest], [below, 2**bits - 1 - below], rtol=1e-5)


# α = 6, ℓ = 1 at 3 bits: the scale is 1, and there is one code below zero.
#   x      -9   -1  -0.5  0.5  2.75   6    9
#   q      -1   -1    0    1    3     6    6
#   dq/dx   0    0    1    1    1     0    0
#   dq/ds  -1   -1   0.5  0.5  0.25   6    6      dα = ds / 7
@pytest.mark.parametrize("mode", MODES)
def test_a_3_bit_offset_worked_by_hand(mode):
    x = np.float32([-9, -1, -0.5, 0.5, 2.75, 6, 9])
    value, dx, dlevel = _offset(x, 6.0, 3, mode=mode, lowest=-1.0)
    assert value.tolist() == [-1, -1, 0, 1, 3, 6, 6]
    assert dx.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert dlevel == pytest.approx((-1 - 1 + 0.5 + 0.5 + 0.25 + 6 + 6) / 7, abs=1e-6)
    _, _, dlevel = _offset(x, 6.0, 3, mode=mode, lowest=-1.0, gradient="pact")
    assert dlevel == pytest.approx((-1 - 1 + 6 + 6) / 7, abs=1e-6)


SKEWS = [-1.0, -0.6, -0.05, 0.0, 0.05, 0.6, 0.97, 1.0]


def _skewed(x, level, skew, bits, upstream=None, mode="eager", gradient="calibrated", **settings):
    def function(x, level, skew):
        return asymmetric.quantize_skewed(x, level, skew, bits, gradient, **settings)

    inputs = [x, np.float32(level), np.float32(skew)]
    return value_and_gradients(function, inputs, upstream, mode)


# α = 6 and κ = 5/6 at 3 bits: from -1 to 6 with a scale of 1.
#   x      -9   -1  -0.5  0.5  2.75   6    9
#   q      -1   -1    0    1    3     6    6
#   dq/dl   1    1  -1/14 -1/14 -1/28 0    0      dκ = 6 dl
#   6 dα   -1   -1   0.5  0.5  0.25   6    6
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_skewed_range_worked_by_hand_and_its_mirror(mode, sign):
    x = np.float32([-9, -1, -0.75, 0.75, 2.75, 6, 9])
    value, dx, dlevel, dskew = _skewed(sign * x, 6.0, sign * 5 / 6, 3, mode=mode)
    np.testing.assert_allclose(sign * value, [-1, -1, -1, 1, 3, 6, 6], rtol=1e-6)
    assert dx.tolist() == [0, 0, 1, 1, 1, 0, 0]
    within = -0.25 + 0.25 + 0.25
    assert dlevel == pytest.approx(sign * (-1 - 1 + within + 6 + 6) / 6, abs=1e-6)
    assert dskew == pytest.approx(6 * (2 - within / 7), abs=1e-5)
    *_, dlevel, dskew = _skewed(sign * x, 6.0, sign * 5 / 6, 3, mode=mode, gradient="pact")
    assert [float(dlevel), float(dskew)] == pytest.approx([sign * 10 / 6, 12], abs=1e-5)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
def test_skewed_values_and_the_gradients_of_both_ends_are_those_of_the_formula(bits, gradient):
    x, upstream = _values(seed=1), _values(seed=2)
    for skew in np.float32(SKEWS):
        found = _skewed(x, 2.7, skew, bits, upstream, gradient=gradient)
        step, lowest, highest = reference.skewed_grid(np.float32(2.7), bits, float(skew))
        expected = reference.quantize_skewed(x, np.float32(2.7), bits, float(skew))
        # float32 against float64: values next to a tie may be rounded to the other side.
        assert np.mean(np.abs(found[0] - expected) > 1e-5) < 1e-3
        codes = found[0] / step
        assert np.max(np.abs(codes - np.rint(codes))) < 1e-3
        assert [*np.rint([codes.min(), codes.max()])] == [lowest, highest]
        assert 0.0 in found[0]
        wanted = reference.skewed_gradients(
            x, np.float32(2.7), bits, upstream, float(skew), gradient
        )
        np.testing.assert_array_equal(found[1], wanted[0].astype(np.float32))
        # One value next to a tie may have the next code; sums of 4000 float32 are that exact.
        one_code = 2.0 * float(np.max(np.abs(upstream))) / (2**bits - 2)
        np.testing.assert_allclose(found[2:], wanted[1:], rtol=1e-4, atol=2.7 * one_code + 1e-3)


@pytest.mark.parametrize(("bits", "mode"), [*((b, "eager") for b in range(2, 9)), (8, "xla")])
def test_a_range_without_skew_is_the_narrow_grid_bit_for_bit(bits, mode):
    x, upstream = _values(), _values(seed=1)
    *found, by_skew = _skewed(x, 2.5, 0.0, bits, upstream, mode)
    expected = value_and_gradients(
        lambda x, level: pact.quantize_stream(x, level, bits), [x, np.float32(2.5)], upstream, mode
    )
    for own, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(own, wanted)
    assert by_skew == 0.0


@pytest.mark.parametrize("run", [_offset, lambda x, level, *rest: _skewed(x, level, 1.0, *rest)])
def test_without_a_negative_part_it_is_the_activation_of_the_paper(run):
    x, upstream = _values(), _values(seed=1)
    value, dx, by_level, *_ = run(x, 2.5, 4, upstream)
    expected, *wanted = clipped("activation", x, 2.5, 4, upstream=upstream)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_array_equal(dx, wanted[0])
    assert by_level == pytest.approx(wanted[1], rel=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_an_observed_range_rounds_ties_to_even_and_passes_the_gradient_inside(mode):
    # The scale is 1, and real 0 is stored as -127.
    x = np.float32([-9.0, -1.0, 0.5, 1.5, 254.0, 300.0, np.inf, np.nan])

    def function(x):
        ends = [tensor(np.float32(end)) for end in (-1.0, 254.0)]
        return asymmetric.quantize_observed(x, *ends)

    value, dx = value_and_gradients(function, [x], mode=mode)
    np.testing.assert_array_equal(value, [-1.0, -1.0, 0.0, 2.0, 254.0, 254.0, 254.0, np.nan])
    assert dx.tolist() == [0, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("x", "ends"),
    [([-3.0, 0.0, 1e9], (0.0, 0.0)), ([0.0, 2.0, 255.0], (1.0, 255.0))],
    ids=["none", "without zero"],
)
def test_without_a_range_a_tensor_passes_as_it_is_and_every_range_is_made_to_hold_zero(x, ends):
    value, dx = value_and_gradients(
        lambda x: asymmetric.quantize_observed(x, *map(np.float32, ends)), [np.float32(x)]
    )
    assert value.tolist() == np.float32(x).tolist()
    assert dx.tolist() == [1, 1, 1]
