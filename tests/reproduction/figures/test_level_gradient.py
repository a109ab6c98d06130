import numpy as np
import pytest

from sat_tf.reproduction.figures import level_gradient
from tests import reference
from tests.reproduction.figures.small import tables


def test_gradients_worked_by_hand():
    # 2 bits, α = 3: codes 0 to 3. 0.4 -> 0, 0.6 -> 1, 2.9 -> 3, and what is clipped.
    x = np.array([-1.0, 0.4, 0.6, 2.9, 3.5])
    expected = [0.0, -0.4 / 3, 0.4 / 3, 0.1 / 3, 1.0]
    found = level_gradient.level_gradients(x, 3.0, 2, "calibrated")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    found = level_gradient.level_gradients(x, 3.0, 2, "pact")
    np.testing.assert_array_equal(found, [0.0, 0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
@pytest.mark.parametrize(("bits", "level"), [(2, 1.0), (4, 1.0), (5, 2.75)])
def test_gradients_are_those_of_float64(bits, level, gradient):
    x = level * (np.arange(-20, 150) + 0.37) / 100.0
    found = level_gradient.level_gradients(x, level, bits, gradient)
    one = np.ones(1)
    expected = [
        reference.activation_gradients(x[[place]], level, bits, one, gradient)[1]
        for place in range(x.size)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_the_paper_says_of_the_gradient_shows():
    table = tables()["equation13"]
    assert table.distinct("bits") == [2, 3, 4]
    assert all(claim.holds for claim in level_gradient.compare(table))
