import numpy as np
import pytest

from sat_tf.training.models.blocks import make_divisible


@pytest.mark.parametrize(
    ("channels", "rounded"),
    [
        (1, 8),
        (8, 8),
        (11.2, 16),  # 8 would lose more than a tenth.
        (12, 16),
        (11.9, 16),
        (24 * 0.35, 8),
        (67, 64),
        (68, 72),
        (1280 * 1.4, 1792),
    ],
)
def test_channels_become_multiples_of_8(channels, rounded):
    assert make_divisible(channels) == rounded


@pytest.mark.parametrize("divisor", [1, 4, 8, 16])
def test_rounding_never_loses_more_than_a_tenth(divisor):
    channels = np.linspace(0.5, 2000, 4001)
    rounded = np.array([make_divisible(value, divisor) for value in channels])
    assert (rounded % divisor == 0).all()
    assert (rounded >= 0.9 * channels).all()
    assert (rounded <= np.maximum(divisor, channels + divisor)).all()
