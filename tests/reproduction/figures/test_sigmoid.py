import numpy as np
import pytest

from sat_tf.reproduction.figures import sigmoid
from tests.reproduction.figures.small import nothing


def test_values_worked_by_hand():
    table = sigmoid.measure(0, nothing)
    at = {round(x, 6): pair for x, *pair in table.rows}
    assert at[0.0] == [0.5, 0.25]
    # 1 / (1 + 1/e) and its product with what is left.
    assert at[1.0] == pytest.approx([0.731059, 0.196612], abs=1e-6)
    assert at[-1.0] == pytest.approx([0.268941, 0.196612], abs=1e-6)


def test_the_derivative_is_the_slope():
    table = sigmoid.measure(0, nothing)
    slope = np.gradient(table["sigmoid"], table["x"])[1:-1]
    # Central differences over 0.05 are off by 0.05² / 6 of the third derivative, which is ≤ 1/8.
    np.testing.assert_allclose(table["derivative"][1:-1], slope, atol=1e-4)
    (claim,) = sigmoid.compare(table)
    assert claim.holds
