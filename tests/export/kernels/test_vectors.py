import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sat_tf.export.kernels import fixed_point, vectors


def test_channels_behind_the_last_block_round_ties_away_from_zero():
    # -3 · 0.25 is -1 / 2 behind the first rounding.
    found = vectors.requantized(np.full((1, 11), -3), fixed_point.fixed_point(0.25))
    assert found.tolist() == [[0] * 8 + [-1] * 3]


@given(length=st.integers(0, 100), size=st.integers(1, 16))
def test_blocks_are_full_and_the_rest_is_smaller_than_one(length, size):
    in_block = vectors.in_blocks(length, size)
    assert in_block.sum() % size == 0
    assert 0 <= length - in_block.sum() < size
    assert not np.any(np.diff(in_block.astype(int)) > 0)


def test_the_zero_points_of_a_mean_that_keeps_its_dimensions_are_one_integer():
    # (2 · 4 - 4 · 3) / 4 · 0.5: the sum 8 alone is 1, the zero point 3 alone 1.5, rounded to 2.
    found = vectors.mean_of_stored(np.array([[8]]), 4, (np.float32(0.5), np.float32(1.0)), (3, 10))
    assert found.item() == 1 + 10 - 2
    plain = fixed_point.mean(np.array([[8]]), 4, (np.float32(0.5), np.float32(1.0)), (3, 10))
    assert plain.item() == 10 - 1  # -0.5, away from zero


def test_values_behind_the_last_block_are_quantized_by_division():
    values = np.full((1, 9), 0.5, np.float32)
    assert vectors.quantized(values, np.float32(1.0)).tolist() == [[0] * 8 + [1]]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((5,), (5,), (5, False)),
        ((2, 3, 4), (2, 3, 4), (24, False)),
        ((2, 3, 4), (1, 1, 4), (4, False)),
        ((1, 1, 4), (2, 3, 4), (4, False)),
        ((2, 3, 4), (4,), (4, False)),
        ((2, 3, 4), (2, 3, 1), (4, True)),
        ((2, 3, 4), (2, 1, 1), (12, True)),
        ((2, 3, 4), (1, 1, 1), (24, True)),
        ((2, 3, 1), (2, 1, 1), (3, True)),
        ((2, 5, 3, 1, 4), (2, 1, 3, 6, 4), (4, False)),
        # Six stretches: the kernel without vectors.
        ((1, 2, 1, 2, 1, 2), (2, 1, 2, 1, 2, 1), (0, False)),
    ],
)
def test_stretches_end_where_a_summand_repeats(first, second, expected):
    assert vectors.stretch(first, second) == expected
