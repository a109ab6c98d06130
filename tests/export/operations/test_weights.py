import numpy as np

from sat_tf.export.operations.linear import Linear, LinearKind, weight_counts


def test_weights_are_counted_without_the_factor_of_their_channel():
    kernel = np.array([[-24, 8, 8], [0, 0, 0], [3, -5, 7]])
    linear = Linear(
        ("x",), "y", LinearKind.FULLY_CONNECTED, kernel, *(np.zeros(3) for _ in range(4))
    )
    assert weight_counts(linear) == {-5: 1, -3: 1, 0: 3, 1: 2, 3: 1, 7: 1}
