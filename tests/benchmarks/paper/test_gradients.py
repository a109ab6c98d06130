import numpy as np
import pytest

from benchmarks.paper import gradients
from tests import reference


def test_values_of_the_sigmoid_worked_by_hand():
    at = {round(x, 6): pair for x, *pair in gradients.sigmoid().to_numpy()}
    assert at[0.0] == [0.5, 0.25]
    # 1 / (1 + 1/e) and its product with what is left.
    assert at[1.0] == pytest.approx([0.731059, 0.196612], abs=1e-6)
    assert at[-1.0] == pytest.approx([0.268941, 0.196612], abs=1e-6)


def test_the_derivative_is_the_slope():
    table = gradients.sigmoid()
    slope = np.gradient(table["sigmoid"], table["x"])[1:-1]
    # Central differences over 0.05 are off by 0.05² / 6 of the third derivative, which is ≤ 1/8.
    np.testing.assert_allclose(table["derivative"][1:-1], slope, atol=1e-4)
    (found,) = gradients.compare_sigmoid(table)
    assert found.holds


def test_gradients_of_a_level_worked_by_hand():
    # 2 bits, α = 3: codes 0 to 3. 0.4 -> 0, 0.6 -> 1, 2.9 -> 3, and what is clipped.
    x = np.array([-1.0, 0.4, 0.6, 2.9, 3.5])
    expected = [0.0, -0.4 / 3, 0.4 / 3, 0.1 / 3, 1.0]
    found = gradients.level_gradients(x, 3.0, 2, "calibrated")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    found = gradients.level_gradients(x, 3.0, 2, "pact")
    np.testing.assert_array_equal(found, [0.0, 0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
@pytest.mark.parametrize(("bits", "level"), [(2, 1.0), (4, 1.0), (5, 2.75)])
def test_gradients_of_a_level_are_those_of_float64(bits, level, gradient):
    x = level * (np.arange(-20, 150) + 0.37) / 100.0
    found = gradients.level_gradients(x, level, bits, gradient)
    one = np.ones(1)
    expected = [
        reference.activation_gradients(x[[place]], level, bits, one, gradient)[1]
        for place in range(x.size)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_the_paper_says_of_the_gradient_shows():
    table = gradients.level_gradient()
    assert list(table["bits"].unique()) == [2, 3, 4]
    assert all(found.holds for found in gradients.compare_level_gradient(table))
