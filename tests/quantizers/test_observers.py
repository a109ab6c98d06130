import numpy as np
import pytest

from sat_tf.quantizers.observers import expected_largest
from tests import reference


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([-3.0], 0.0),
        ([], 0.0),
        ([np.nan, np.inf, 2.0], 2.0),
        ([6.0] * 50 + [1.0] * 50, 6.0),  # all of the tenth end at one bound
        ([1.0] * 9 + [2.0], 2.0 + np.log(30.0)),  # one value is 1 above the tenth's threshold
        ([*range(20)], 19.0 + 1.5 * np.log(30.0)),  # 18 and 19 are 1.5 above 17, in the mean
    ],
)
def test_the_largest_value_that_is_expected_worked_by_hand(values, expected):
    assert expected_largest(np.array(values)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("count", [1, 7, 64, 513])
@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "random"])
def test_it_is_that_of_the_reference(count, draw):
    values = getattr(np.random.default_rng(count), draw)(size=count)
    expected = reference.expected_largest(values)
    assert expected_largest(values.astype(np.float32)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("draw", "share"), [("normal", 1e-3), ("laplace", 2e-3), ("random", 1e-5)])
def test_few_held_out_values_are_larger(draw, share):
    rng = np.random.default_rng(0)
    seen, others = getattr(rng, draw)(size=(100, 512)), getattr(rng, draw)(size=100_000)
    beyond = [np.mean(others > expected_largest(values)) for values in seen]
    assert np.mean(beyond) < share
    # With the largest of the calibration images it would be one in 513 by definition.
    assert np.mean([np.mean(others > values.max()) for values in seen]) > np.mean(beyond)
