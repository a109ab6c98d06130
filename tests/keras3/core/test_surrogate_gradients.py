import numpy as np
import pytest
from keras import ops

from sat_tf.core.surrogate_table import SURROGATES
from sat_tf.keras3.core.surrogate_gradients import passed_back
from tests import reference
from tests.keras3.gradients import to_numpy


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("intervals", [1, 6, 255])
def test_a_surrogate_is_that_of_the_reference(name, share, intervals):
    row = SURROGATES[name]
    strength = None
    if row.strength is not None:
        strength = row.lowest + share * (row.highest - row.lowest)
    errors = np.float32((np.arange(100) + 0.5) / 100 - 0.5)
    for sign in (1.0, -1.0):
        upstream = np.full(errors.shape, sign, np.float32)
        tensors = [ops.convert_to_tensor(each) for each in (upstream, errors)]
        found = to_numpy(passed_back(*tensors, intervals, name, strength))
        expected = reference.passed_back(upstream, errors, intervals, name, strength)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["ewgs", "dsq"])
def test_errors_beyond_a_half_count_as_a_half_and_nan_as_none(name):
    upstream = ops.ones(4)
    found, expected = (
        to_numpy(passed_back(upstream, ops.convert_to_tensor(np.float32(errors)), 3, name, 0.2))
        for errors in ([0.7, -9.0, np.inf, np.nan], [0.5, -0.5, 0.5, 0.0])
    )
    np.testing.assert_array_equal(found, expected)
