"""The bits of channels: by hand, by brute force, and at all means."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.core import l1
from sat_tf.quantizers.channel_bits import least_error_bits
from tests import reference


def _draw(shape=(3, 3, 4, 5), seed=0, deviations=None):
    draw = np.random.default_rng(seed)
    deviations = draw.uniform(0.05, 1.0, shape[-1]) if deviations is None else deviations
    return (draw.standard_t(4, shape) * deviations).astype(np.float32)


# From 2 bits on, with a mean of 3: each channel may have one bit more, or one of them two.
#               2    3    4     drops
#   first       9    2    0     7, 2
#   second      5    4    3.9   1, 0.1
# 4 and 2 bits leave 5, 3 and 3 bits 6, 2 and 4 bits 12.9.
def test_bits_worked_by_hand():
    errors = np.array([[9.0, 2.0, 0.0], [5.0, 4.0, 3.9]])
    assert least_error_bits(errors, lowest=2, mean=3).tolist() == [4, 2]
    assert least_error_bits(errors, lowest=2, mean=2).tolist() == [2, 2]
    assert least_error_bits(errors, lowest=2, mean=4).tolist() == [4, 4]


# The first bit of the first channel gains nothing, the first two gain 9: where errors are not
# convex, taking the largest drop each time (4, then 0.5) would leave 9.5 instead of 5.
def test_errors_that_are_not_convex_are_solved_exactly():
    errors = np.array([[9.0, 9.0, 0.0], [5.0, 1.0, 0.5]])
    assert least_error_bits(errors, lowest=2, mean=3).tolist() == [4, 2]


# The error of one channel rises with the first bit; the other cannot take both bits.
def test_the_mean_is_kept_where_more_bits_are_worse():
    errors = np.array([[1.0, 3.0, 4.0], [1.0, 2.0, 9.0]])
    assert least_error_bits(errors, lowest=1, mean=2).tolist() == [3, 1]


@given(
    st.integers(1, 4).flatmap(
        lambda columns: st.lists(
            st.lists(st.integers(0, 9), min_size=columns, max_size=columns), min_size=1, max_size=5
        )
    ),
    st.sampled_from(["as drawn", "falling", "convex"]),
    st.integers(1, 4),
)
def test_no_other_bits_with_that_mean_have_a_smaller_error(rows, kind, lowest):
    errors = np.array(rows, np.float64)
    if kind != "as drawn":
        errors = -np.sort(-errors, axis=1)
    if kind == "convex":
        errors = np.cumsum(errors[:, ::-1], axis=1)[:, ::-1]
    channels, columns = errors.shape
    for more in range(columns):
        found = least_error_bits(errors, lowest, lowest + more) - lowest
        assert found.sum() == channels * more
        best = min(
            sum(row[own] for row, own in zip(errors, chosen, strict=True))
            for chosen in itertools.product(range(columns), repeat=channels)
            if sum(chosen) == channels * more
        )
        assert errors[np.arange(channels), found].sum() == pytest.approx(best)


@pytest.mark.parametrize("mean", range(1, 9))
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 3, 4, 5), (3,)), ((3, 3, 5, 2), (2, 3)), ((6, 3), (1,)), ((7, 1), (1,))],
)
def test_the_error_is_that_of_the_reference(shape, axes, mean):
    kernel = _draw(shape)
    errors = l1.squared_errors(kernel, 1, 8, channel_axes=axes).numpy()
    expected, least = reference.channel_bits(kernel, 1, 8, mean, "auto", axes)
    np.testing.assert_allclose(errors, expected, rtol=1e-3, atol=1e-6)
    bits = least_error_bits(errors, 1, mean)
    assert bits.mean() == mean
    assert errors[np.arange(len(bits)), bits - 1].sum() == pytest.approx(least, rel=1e-4)


def test_equal_channels_have_equal_bits():
    errors = np.tile([4.0, 2.0, 1.0, 0.5], (6, 1))
    for mean in range(2, 6):
        assert least_error_bits(errors, 2, mean).tolist() == [mean] * 6
    assert least_error_bits(np.zeros((6, 4)), 2, 3).tolist() == [3] * 6


def test_larger_channels_have_no_fewer_bits():
    kernel = _draw((3, 3, 16, 1)) * np.geomspace(0.01, 1.0, 8, dtype=np.float32)
    errors = l1.squared_errors(kernel, 2, 8, channel_axes=(3,)).numpy()
    bits = least_error_bits(errors, 2, 4)
    assert bits.tolist() == sorted(bits)
    assert bits[0] < bits[-1]


def test_weights_that_are_not_finite_have_no_part():
    kernel = _draw()
    expected = l1.squared_errors(kernel[:2], 2, 8, channel_axes=(3,)).numpy()
    kernel[2] = np.nan
    found = l1.squared_errors(kernel, 2, 8, channel_axes=(3,)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    kernel[2] = np.inf
    assert np.isfinite(l1.squared_errors(kernel, 2, 8, channel_axes=(3,))).all()


@pytest.mark.parametrize("mean", [1, 5])
def test_a_mean_that_no_bits_have_is_refused(mean):
    with pytest.raises(ValueError, match=f"mean={mean}: received errors at 2 to 4 bits"):
        least_error_bits(np.ones((2, 3)), lowest=2, mean=mean)
