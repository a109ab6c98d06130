from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.export.kernels import xnnpack
from sat_tf.export.kernels.xnnpack import fused_multiply_add
from sat_tf.export.operations.operation import stored_codes
from sat_tf.export.tflite.tensors import Codes
from tests.export import reference

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


def test_requantization_rounds_ties_to_even():
    found = xnnpack.requantized(np.array([-3, -1, 1, 3, 5]), np.float32([0.5]))
    np.testing.assert_array_equal(found, [-2, 0, 0, 2, 2])


def test_requantized_sums_are_clipped_where_the_codes_end():
    codes = Codes(_SCALE, 112, lowest=112)
    rounded = xnnpack.requantized(np.array([-900, 3, 900]), np.float32([1.0]))
    np.testing.assert_array_equal(stored_codes(rounded, codes), [112, 115, 127])


# Halves, and products whose fixed-point multiplier rounds down: 1/3 in float32 is above 1/3, and
# 31 bits hold it as it is, so that 1.5 · 1/3 is above a half, and -1.5 · 1/3 below minus a half.
@pytest.mark.parametrize(
    ("product", "multiplier", "on_x86", "on_arm"),
    [
        (1, 0.5, 0, 1),
        (3, 0.5, 2, 2),
        (5, 0.5, 2, 3),
        (-1, 0.5, 0, 0),
        (-3, 0.5, -2, -1),
        (-5, 0.5, -2, -2),
        (2, 0.25, 0, 1),
        (3, 1 / 3, 1, 1),
        (255, 4.0, 1020, 1020),
        (-255, 128.0, -32640, -32640),
    ],
)
def test_products_round_halves_to_even_on_x86_and_up_on_arm(product, multiplier, on_x86, on_arm):
    given_values = np.array([product]), np.float32(multiplier)
    assert xnnpack.requantized(*given_values).item() == on_x86
    assert xnnpack.product_in_fixed_point(*given_values).item() == on_arm


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
@given(
    total=st.integers(-(2**20), 2**20),
    count=st.integers(1, 4096),
    scales=st.tuples(st.floats(2.0**-10, 4.0, width=32), st.floats(2.0**-10, 4.0, width=32)),
    zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
)
def test_means_are_those_of_whole_numbers_with_and_without_fusing(total, count, scales, zeros):
    source, output = map(np.float32, scales)
    multiplier = xnnpack.mean_multiplier(source, output, count)
    given_values = np.array([total]), multiplier, count, zeros
    expected = (total, count, scales, zeros)
    assert xnnpack.mean_rounded_twice(*given_values).item() == reference.mean_on_x86(*expected)
    assert xnnpack.mean_fused(*given_values).item() == reference.mean_on_arm(*expected)


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
    rules = xnnpack.mean_rounded_twice, xnnpack.mean_fused
    once, fused = (np.clip(rule(sums, multiplier, count, zeros), *ends) for rule in rules)
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
    (found,) = fused_multiply_add(np.array([factor], np.float32), np.float32(other), summand)
    expected = np.float32(float(reference.float32(exact)))
    if abs(expected) > np.finfo(np.float32).tiny:
        assert found == expected
