import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core import on_tensorflow
from tests.core.execution import MODES


def _run(function, arguments, mode):
    return MODES[mode](function)(*map(tf.constant, arguments)).numpy()


@pytest.mark.parametrize("mode", MODES)
def test_what_is_inside_is_kept_with_both_ends_and_nothing_of_nan(mode):
    x = np.float32([-np.inf, -1.0, np.nextafter(-1.0, 0), 0.0, 2.0, 2.0000002, np.inf, np.nan])
    values = np.arange(1.0, 9.0, dtype=np.float32)
    found = _run(on_tensorflow.keep_inside, [values, x, np.float32(-1.0), np.float32(2.0)], mode)
    np.testing.assert_array_equal(found, [0, 2, 3, 4, 5, 0, 0, 0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (32, 48, 48, 24), (0,)])
def test_a_dot_product_is_the_sum_in_float64_to_the_precision_of_float32(shape, mode):
    draw = np.random.default_rng(4)
    a, b = (draw.normal(0.0, 1.0, shape).astype(np.float32) for _ in range(2))
    products = a.astype(np.float64) * b
    found = _run(on_tensorflow.dot, [a, b], mode)
    assert found.shape == ()
    # One rounding of the largest sum there is.
    assert found == pytest.approx(np.sum(products), abs=2.0**-24 * np.sum(np.abs(products)))


def test_the_largest_number_below_another_one_is_next_to_it():
    for number in np.float32([1e-30, 0.3, 1.0, 2.0**0.5, 7.0, 1e30]):
        below = np.float32(number) * np.float32(on_tensorflow.JUST_BELOW_ONE)
        assert np.nextafter(number, np.float32(0)) >= below >= number * np.float32(1 - 2.0**-22)
