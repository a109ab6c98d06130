from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.exact.kernels import fixed_point, kernel_sets, xnnpack
from sat_tf.exact.kernels.fixed_point import Multipliers
from sat_tf.exact.operations.operation import stored_codes
from sat_tf.exact.tflite.tensors import Codes
from tests.export import reference

SUMS = st.integers(-(2**22), 2**22)
MULTIPLIERS = st.floats(2.0**-32, 255.0)


def test_rules_differ_in_ties():
    # 0.25 is 2^30 · 2^-1: halves first, rounded up, and halved again. 1.5 is 3 · 2^29 · 2.
    values = np.array([-3, -2, -1, 1, 2, 3, 5, -1, 3, -3, 7])
    multipliers = fixed_point.fixed_point(np.array([0.25] * 7 + [0.5, 1.5, 1.5, 1.0]))
    expected = {
        fixed_point.rounded_twice_up: [0, 0, 0, 1, 1, 1, 2, 0, 5, -4, 7],
        fixed_point.rounded_twice_away: [-1, -1, 0, 1, 1, 1, 2, 0, 5, -4, 7],
        fixed_point.rounded_once: [-1, 0, 0, 0, 1, 1, 1, 0, 5, -4, 7],
        fixed_point.rounded_before_shifts: [0, 0, 0, 1, 1, 1, 2, 0, 4, -4, 8],
    }
    assert {rule: rule(values, multipliers).tolist() for rule in expected} == expected
    assert xnnpack.requantized(values[:7], np.float32(0.25)).tolist() == [-1, 0, 0, 0, 0, 1, 1]


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
        *blocks, last = fixed_point.summed_in_blocks(several, inputs, output).reshape(-1).tolist()
        assert last == found
        assert all(abs(block - found) <= 1 for block in blocks)


# What a mean is made of: a sum of codes, and the grids of both tensors.
MEANS = {
    "total": st.integers(-(2**20), 2**20),
    "count": st.integers(1, 4096),
    "scales": st.tuples(st.floats(2.0**-10, 4.0, width=32), st.floats(2.0**-10, 4.0, width=32)),
    "zeros": st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
}


def test_a_product_of_two_tensors_has_its_multiplier_in_float32_but_in_micro():
    scales = np.float32(0.1), np.float32(0.3), np.float32(0.7)
    exact = float(scales[0]) * float(scales[1]) / float(scales[2])
    of_micro = kernel_sets.MICRO.product(np.array([1 << 20]), scales[:2], scales[2]).item()
    assert of_micro == round(exact * (1 << 20))
    assert xnnpack.product_multiplier(*scales) == float(scales[0] * scales[1] / scales[2])
    assert xnnpack.product_multiplier(*scales) != exact


def test_the_zero_points_of_a_mean_that_keeps_its_dimensions_are_one_integer():
    # (2 · 4 - 4 · 3) / 4 · 0.5: the sum 8 alone is 1, the zero point 3 alone 1.5, rounded to 2.
    scales = np.float32(0.5), np.float32(1.0)
    found = fixed_point.mean_in_blocks(np.array([[8]]), 4, scales, (3, 10))
    assert found.item() == 1 + 10 - 2
    plain = fixed_point.mean(np.array([[8]]), 4, scales, (3, 10))
    assert plain.item() == 10 - 1  # -0.5, away from zero


def test_values_behind_the_last_block_round_ties_away_from_zero():
    # -3 · 0.25 is -1 / 2 behind the first rounding.
    found = fixed_point.requantized_in_blocks(np.full((1, 11), -3), fixed_point.fixed_point(0.25))
    assert found.tolist() == [[0] * 8 + [-1] * 3]
    values = np.full((1, 9), 0.5, np.float32)
    assert fixed_point.quantized_in_blocks(values, np.float32(1.0)).tolist() == [[0] * 8 + [1]]


# The shapes of two summands, and how far a stretch goes, in which one may have only one value.
STRETCHES = """
5 5                  5 several
2,3,4 2,3,4         24 several
2,3,4 1,1,4          4 several
1,1,4 2,3,4          4 several
2,3,4 4              4 several
2,3,4 2,3,1          4 one
2,3,4 2,1,1         12 one
2,3,4 1,1,1         24 one
2,3,1 2,1,1          3 one
2,5,3,1,4 2,1,3,6,4  4 several
1,2,1,2,1,2 2,1,2,1,2,1 0 several
"""  # Six stretches: the kernel without vectors.


@pytest.mark.parametrize("row", STRETCHES.strip().splitlines())
def test_stretches_end_where_a_summand_repeats(row):
    *shapes, length, values = row.split()
    first, second = (tuple(map(int, shape.split(","))) for shape in shapes)
    assert fixed_point.stretch(first, second) == (int(length), values == "one")


_SCALE = np.float32(1.0)


@settings(deadline=None, derandomize=True)
@given(
    total=st.integers(-(2**31), 2**31 - 1),
    multiplier=st.floats(2.0**-32, 255.0, width=32),
    zero_point=st.integers(-128, 127),
)
def test_requantization_is_one_float32_product_rounded_to_even(total, multiplier, zero_point):
    rounded = xnnpack.requantized(np.array([[total]]), np.array([multiplier], np.float32))
    found = stored_codes(rounded, Codes(_SCALE, zero_point))
    assert found.item() == reference.requantized(total, multiplier, zero_point, -128, 127)


def test_products_round_halves_to_even_on_x86_and_up_on_arm():
    # Halves, and products whose fixed-point multiplier rounds down: 1/3 in float32 is above 1/3,
    # and 31 bits hold it as it is, so that 1.5 · 1/3 is above a half.
    products = np.array([1, 3, 5, -1, -3, -5, 2, 3, 255, -255])
    multipliers = np.float32([0.5] * 6 + [0.25, 1 / 3, 4.0, 128.0])
    on_x86 = xnnpack.requantized(products, multipliers)
    assert on_x86.tolist() == [0, 2, 2, 0, -2, -2, 0, 1, 1020, -32640]
    pairs = zip(products, multipliers, strict=True)
    on_arm = [xnnpack.product_in_fixed_point(one, multiplier).item() for one, multiplier in pairs]
    assert on_arm == [1, 2, 3, 0, -1, -2, 1, 1, 1020, -32640]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    product=st.integers(-65025, 65025),
    multiplier=st.floats(2.0**-16, 255.0, width=32, exclude_max=True),
)
def test_products_on_arm_are_those_of_whole_numbers(product, multiplier):
    found = xnnpack.product_in_fixed_point(np.array([product]), np.float32(multiplier)).item()
    expected = reference.product_on_arm(product, multiplier)
    # Beyond int32 they saturate, far beyond any code.
    assert found == expected or min(abs(found), abs(expected)) > 255


@settings(deadline=None, derandomize=True, max_examples=300)
@given(**MEANS)
def test_means_are_those_of_whole_numbers_with_and_without_fusing(total, count, scales, zeros):
    source, output = map(np.float32, scales)
    builtin = fixed_point.mean(np.array([total]), count, (source, output), zeros).item()
    assert builtin == reference.builtin_mean(total, count, scales, zeros)
    multiplier = xnnpack.mean_multiplier(source, output, count)
    given_values = np.array([total]), multiplier, count, zeros
    expected = (total, count, scales, zeros)
    by_x86, by_arm = xnnpack.multiply_add, xnnpack.fused_multiply_add
    assert xnnpack.mean(*given_values, by_x86).item() == reference.mean_on_x86(*expected)
    assert xnnpack.mean(*given_values, by_arm).item() == reference.mean_on_arm(*expected)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    side=st.integers(1, 40),
    ratio=st.one_of(st.floats(2.0**-12, 2.0**12), st.sampled_from([0.5, 1.0, 2.0**15])),
    scale=st.floats(2.0**-10, 4.0, width=32),
    zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
    lowest=st.sampled_from([-128, 0, 100]),
)
def test_rules_disagree_on_no_mean_but_those_near_halves(side, ratio, scale, zeros, lowest):
    count, ends = side * side, (lowest, 127)
    multiplier = xnnpack.mean_multiplier(np.float32(scale), np.float32(scale / ratio), count)
    sums = np.arange(-128 * count, 127 * count + 1)
    rules = xnnpack.multiply_add, xnnpack.fused_multiply_add
    once, fused = (
        np.clip(xnnpack.mean(sums, multiplier, count, zeros, rule), *ends) for rule in rules
    )
    near = xnnpack.sums_near_halves(multiplier, count, zeros, ends)
    assert set(sums[once != fused]) <= set(near)
    assert set(near) <= set(sums)


def test_sums_near_halves_are_few():
    # 300 x 300 stored integers have 22,950,001 sums; some 50 around each of 255 halves are near.
    near = xnnpack.sums_near_halves(np.float32(1 / 90_000), 90_000, (-128, -128), (-128, 127))
    assert near.size < 30_000


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    factor=st.floats(-1e6, 1e6, width=32),
    other=st.floats(-4.0, 4.0, width=32),
    summand=st.floats(-1e6, 1e6, width=32),
)
def test_a_fused_multiply_add_is_rounded_once(factor, other, summand):
    exact = Fraction(factor) * Fraction(other) + Fraction(summand)
    (found,) = xnnpack.fused_multiply_add(
        np.array([factor], np.float32), np.float32(other), summand
    )
    expected = np.float32(float(reference.float32(exact)))
    if abs(expected) > np.finfo(np.float32).tiny:
        assert found == expected
