import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.export.kernels import fixed_point, vectors, xnnpack
from sat_tf.export.kernels.fixed_point import Multipliers
from tests.export import reference

SUMS = st.integers(-(2**22), 2**22)
MULTIPLIERS = st.floats(2.0**-32, 255.0)


# 0.25 is 2^30 · 2^-1: halves first, rounded up, and halved again. 1.5 is 3 · 2^29 · 2.
@pytest.mark.parametrize(
    ("value", "multiplier", "up", "away", "once", "before"),
    [
        (-3, 0.25, 0, -1, -1, 0),
        (-2, 0.25, 0, -1, 0, 0),
        (-1, 0.25, 0, 0, 0, 0),
        (1, 0.25, 1, 1, 0, 1),
        (2, 0.25, 1, 1, 1, 1),
        (3, 0.25, 1, 1, 1, 1),
        (5, 0.25, 2, 2, 1, 2),
        (-1, 0.5, 0, 0, 0, 0),
        (3, 1.5, 5, 5, 5, 4),
        (-3, 1.5, -4, -4, -4, -4),
        (7, 1.0, 7, 7, 7, 8),
    ],
)
def test_rules_differ_in_ties(value, multiplier, up, away, once, before):
    given_values = np.array([value]), fixed_point.fixed_point(multiplier)
    assert fixed_point.rounded_twice_up(*given_values).item() == up
    assert fixed_point.rounded_twice_away(*given_values).item() == away
    assert fixed_point.rounded_once(*given_values).item() == once
    assert fixed_point.rounded_before_shifts(*given_values).item() == before


def test_xnnpack_rounds_otherwise_than_all_of_them():
    sums = np.array([-3, -2, -1, 0, 1, 2, 3, 5])
    once = xnnpack.requantized(sums, np.array([0.25], np.float32))
    assert once.tolist() == [-1, 0, 0, 0, 0, 0, 1, 1]


@given(multiplier=st.floats(1e-12, 1e6))
def test_multipliers_are_those_of_whole_numbers(multiplier):
    found = fixed_point.fixed_point(multiplier)
    expected = reference.fixed_point(multiplier)
    if expected[1] < -31:  # LiteRT takes it for 0
        expected = 0, 0
    assert (found.mantissas.item(), found.exponents.item()) == expected


@settings(deadline=None, derandomize=True, max_examples=300)
@given(total=SUMS, multiplier=MULTIPLIERS)
def test_rules_are_those_of_whole_numbers(total, multiplier):
    values, multipliers = np.array([[total]]), fixed_point.fixed_point(np.array([multiplier]))
    up = reference.scaled_twice(total, multiplier, reference.half_up)
    away = reference.scaled_twice(total, multiplier, reference.half_away)
    assert fixed_point.rounded_twice_up(values, multipliers).item() == up
    assert fixed_point.rounded_twice_away(values, multipliers).item() == away
    once = reference.scaled_once(total, multiplier)
    assert fixed_point.rounded_once(values, multipliers).item() == once
    # They are two neighbours at most: a rounding moves what the next one rounds by a half.
    assert abs(up - away) <= 1
    assert abs(up - once) <= 1


@settings(deadline=None, derandomize=True, max_examples=300)
@given(total=SUMS, multiplier=MULTIPLIERS)
def test_shifts_behind_a_product_keep_what_it_has_lost(total, multiplier):
    mantissa, exponent = reference.fixed_point(multiplier)
    found = fixed_point.rounded_before_shifts(
        np.array([total]), Multipliers(np.array(mantissa), np.array(exponent))
    ).item()
    if exponent > 0:
        assert found == reference.scaled_once(total, mantissa / 2**31) * 2**exponent
    else:
        assert found == reference.scaled_twice(total, multiplier, reference.half_up)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    codes=st.lists(st.integers(-255, 255), min_size=2, max_size=2),
    scales=st.lists(st.floats(2.0**-8, 2.0**4, width=32), min_size=2, max_size=2),
    ratio=st.floats(0.5, 8.0, width=32),
    sign=st.sampled_from([1, -1]),
)
def test_sums_and_differences_are_those_of_whole_numbers(codes, scales, ratio, sign):
    output = np.float32(max(scales) * ratio)
    arrays, inputs = [np.array([code]) for code in codes], [np.float32(scale) for scale in scales]
    found = fixed_point.summed(arrays, inputs, output, difference=sign < 0).item()
    assert found == reference.builtin_sum(codes, scales, float(output), sign)
    # Vectors differ from it in the last of 20 more bits, so that it is a code next to it at most.
    if sign > 0:
        several = [np.full((1, 17), code) for code in codes]
        *blocks, last = vectors.sum_of(several, inputs, output).reshape(-1).tolist()
        assert last == found
        assert all(abs(block - found) <= 1 for block in blocks)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    total=st.integers(-(2**20), 2**20),
    count=st.integers(1, 4096),
    scales=st.tuples(st.floats(2.0**-10, 4.0, width=32), st.floats(2.0**-10, 4.0, width=32)),
    zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
)
def test_means_are_those_of_whole_numbers(total, count, scales, zeros):
    given_scales = np.float32(scales[0]), np.float32(scales[1])
    found = fixed_point.mean(np.array([total]), count, given_scales, zeros).item()
    assert found == reference.builtin_mean(total, count, scales, zeros)


def test_a_product_of_two_tensors_has_its_multiplier_in_float32_but_in_micro():
    scales = np.float32(0.1), np.float32(0.3), np.float32(0.7)
    exact = float(scales[0]) * float(scales[1]) / float(scales[2])
    assert fixed_point.multiplier_in_float64(*scales) == exact
    assert xnnpack.product_multiplier(*scales) == float(scales[0] * scales[1] / scales[2])
    assert xnnpack.product_multiplier(*scales) != exact
