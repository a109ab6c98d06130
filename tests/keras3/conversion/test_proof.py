import numpy as np

from sat_tf.keras3.conversion.proof import difference


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
