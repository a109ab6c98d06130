import numpy as np
import pytest

from sat_tf.reproduction.figures import clamp_variance
from sat_tf.reproduction.figures.variances import clamping_ratio, gaussian
from tests import reference
from tests.reproduction.figures.small import nothing


def test_a_ratio_worked_by_hand():
    # The largest becomes 1: of W = ±0.5 and 0, mean squares are 2/3 and 0.25 · 2/3.
    assert clamping_ratio(np.array([0.5, -0.5, 0.0], np.float32)) == pytest.approx(4.0)
    # tanh(1) / tanh(2) = 0.79003; (1 + 0.62415) / (4 + 1).
    ratio = clamping_ratio(np.array([2.0, -1.0], np.float32))
    assert ratio == pytest.approx((1.0 + (0.761594 / 0.964028) ** 2) / 5.0, rel=1e-5)


def test_ratios_are_those_of_float64():
    table = clamp_variance.measure(3, nothing, neurons=(16, 37, 64), samples=5)
    assert table.columns == clamp_variance.COLUMNS
    for size in (16, 37, 64):
        ratios = []
        for sample in range(5):
            weights = gaussian((size, size), 1.0 / size, 3, size, sample).astype(np.float64)
            ratios.append(np.mean(reference.clamp(weights) ** 2) / np.mean(weights**2))
        row = table.row(neurons=size)
        # The product computes in float32: sums of a few thousand squares.
        assert row["ratio_mean"] == pytest.approx(np.mean(ratios), rel=1e-5)
        assert row["ratio_std"] == pytest.approx(np.std(ratios, ddof=1), rel=1e-4)
        assert row["ratio_min"] == pytest.approx(np.min(ratios), rel=1e-5)
        assert row["ratio_max"] == pytest.approx(np.max(ratios), rel=1e-5)


def test_weights_have_the_variance_asked_for_and_follow_the_seed():
    weights = gaussian((500, 500), 1.0 / 500, 0, 1)
    # Standard error of a variance: sqrt(2 / 250 000) = 0.3 %.
    assert np.var(weights, dtype=np.float64) == pytest.approx(1.0 / 500, rel=0.012)
    np.testing.assert_array_equal(weights, gaussian((500, 500), 1.0 / 500, 0, 1))
    assert not np.array_equal(weights, gaussian((500, 500), 1.0 / 500, 0, 2))


def test_the_ratio_grows_with_the_layer_and_reaches_tens():
    table = clamp_variance.measure(0, nothing, neurons=(16, 128, 1000), samples=4)
    mean = table["ratio_mean"]
    assert mean[0] < mean[1] < mean[2]
    about_tens, at_1000 = clamp_variance.compare(table)
    assert about_tens.holds
    assert at_1000.paper.startswith("50 ")
    # Of a million normal numbers the largest is 4.9 ± 0.25 in magnitude: 1000 / 4.9² = 42.
    assert 32.0 < mean[2] < 50.0


def test_all_the_work_is_told():
    shares = []
    clamp_variance.measure(0, shares.append, neurons=(4, 8), samples=2)
    assert sum(shares) == pytest.approx(1.0)
