import functools

import numpy as np
import pytest

from sat_tf.core import asymmetric, pact
from tests import reference
from tests.core.execution import MODES, draw, tensor, value_and_gradients

RANGES = [(-0.2785, 0.0), (-1.0, 0.0), (0.0, 0.1), (-0.375, 0.2), (0.0, 0.0)]

_values = functools.partial(draw, 4000, deviation=2.0)


def _run(x, level, bits, upstream=None, mode="eager", gradient="calibrated", **settings):
    def function(x, level):
        return asymmetric.quantize_offset(x, level, bits, gradient, **settings)

    return value_and_gradients(function, [x, np.float32(level)], upstream, mode)


@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("lowest", "share"), RANGES)
def test_values_and_gradients_are_those_of_the_formula(bits, gradient, lowest, share):
    x, upstream = _values(seed=1), _values(seed=2)
    settings = {"lowest": lowest, "share": share}
    value, by_x, by_level = _run(x, 2.7, bits, upstream, gradient=gradient, **settings)
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
        found = _run(np.float32([-99.0, 99.0]), level, bits, mode=mode, share=0.2)[0]
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
    value, dx, dlevel = _run(x, 6.0, 3, mode=mode, lowest=-1.0)
    assert value.tolist() == [-1, -1, 0, 1, 3, 6, 6]
    assert dx.tolist() == [0, 0, 1, 1, 1, 0, 0]
    assert dlevel == pytest.approx((-1 - 1 + 0.5 + 0.5 + 0.25 + 6 + 6) / 7, abs=1e-6)
    _, _, dlevel = _run(x, 6.0, 3, mode=mode, lowest=-1.0, gradient="pact")
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


@pytest.mark.parametrize("run", [_run, lambda x, level, *rest: _skewed(x, level, 1.0, *rest)])
def test_without_a_negative_part_it_is_the_activation_of_the_paper(run):
    x, upstream = _values(), _values(seed=1)
    value, dx, by_level, *_ = run(x, 2.5, 4, upstream)
    expected, *wanted = value_and_gradients(
        lambda x, level: pact.quantize_activation(x, level, 4), [x, np.float32(2.5)], upstream
    )
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
