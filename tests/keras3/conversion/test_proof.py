import numpy as np

from sat_tf.keras3.conversion.proof import _are_ties, difference


def test_differences_are_parts_of_the_largest_value():
    assert difference(np.float32([1.0, -4.0]), np.float32([1.5, -4.0])) == 0.125
    assert difference(np.zeros(2), np.zeros(2)) == 0.0
    assert difference(np.zeros(2), np.ones(2)) == np.inf


def test_infinities_and_nan_are_equal_to_themselves_only():
    odd = np.array([np.inf, np.nan, 1.0])
    assert difference(odd, odd) == 0.0
    assert difference(odd, np.array([-np.inf, np.nan, 1.0])) == np.inf
    assert difference(odd, np.array([np.inf, 0.0, 1.0])) == np.inf
    assert difference(odd, np.array([np.inf, np.nan, 1.5])) == 0.5


def test_other_shapes_are_infinitely_far_apart():
    assert difference(np.zeros((2, 1)), np.zeros((1, 2))) == np.inf


def test_ties_are_halfway_between_two_codes_as_closely_as_the_largest_value_is_rounded():
    steps = np.array([-13.5, -13.5 + 1e-5, -13.4, 0.5, 1.0, 2.49, 100.5 - 9e-4, 127.0])
    assert _are_ties(steps * 0.25, 0.25).tolist() == [
        True,
        True,
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_equal_sums_may_all_be_ties():
    assert np.all(_are_ties(np.full(1728, -13.5 * 0.108, np.float32), 0.108))
