import numpy as np
import pytest

from sat_tf.core.grid_table import GRIDS
from sat_tf.reproduction.figures import quantized_deviation
from sat_tf.reproduction.figures.variances import gaussian, quantization_ratios
from tests import reference
from tests.reproduction.figures.small import nothing, tables


def test_a_ratio_worked_by_hand():
    # Ŵ = ±1 and ±0.25 / 1, nearly: at 1 bit Q = ±1, mean squares 1 and (1 + 0.25²) / 2.
    latent = np.arctanh(np.array([0.5, -0.5, 0.125, -0.125])).astype(np.float32)
    expected = np.sqrt(1.0 / ((1.0 + 0.0625) / 2.0))
    assert quantization_ratios(latent, 1, "dorefa") == pytest.approx((expected, expected))
    # With floor both ±0.25 and -1 go down at 2 bits: Q = 0.5, -1, 0, -0.5.
    values = np.array([0.5, -1.0, 0.0, -0.5])
    clamped = np.array([1.0, -1.0, 0.25, -0.25])
    deviation, rms = quantization_ratios(latent, 2, "modified")
    assert deviation == pytest.approx(values.std() / clamped.std())
    assert rms == pytest.approx(np.sqrt(np.mean(values**2) / np.mean(clamped**2)))


@pytest.mark.thorough
def test_ratios_are_those_of_float64():
    table = quantized_deviation.measure(5, nothing, channels=(24,), samples=3)
    assert len(table.rows) == sum(9 - row.fewest_bits for row in GRIDS.values())
    draws = [gaussian((24, 24), 1.0 / 24, 5, 24, sample) for sample in range(3)]
    for grid, found in GRIDS.items():
        for bits in range(found.fewest_bits, 9):
            ratios, squares = [], []
            for latent in draws:
                quantized = reference.quantize_weights(latent, bits, grid)
                clamped = reference.clamp(latent)
                ratios.append(quantized.std() / clamped.std())
                squares.append(np.sqrt(np.mean(quantized**2) / np.mean(clamped**2)))
            row = table.row(grid=grid, channels=24, bits=bits)
            # A weight near a tie may go the other way in float32: one of 576 by one step, which is
            # 1 part in 576 · 2^b of the mean square, times the 5 by which Ŵ is below 1.
            tolerance = 5.0 / (576 * 2**bits)
            assert row["std_ratio"] == pytest.approx(np.mean(ratios), rel=tolerance)
            assert row["rms_ratio"] == pytest.approx(np.mean(squares), rel=tolerance)


def test_all_grids_see_the_same_weights_and_many_bits_change_nothing():
    table = tables()["figure_s3"]
    at_8_bits = table.where(bits=8, channels=16)["std_ratio"]
    np.testing.assert_allclose(at_8_bits, 1.0, atol=5e-3)
    assert {claim.about for claim in quantized_deviation.compare(table)} == {
        "more than 3 bits",
        "1 or 2 bits",
        "different channel numbers",
    }


@pytest.mark.thorough
def test_what_the_paper_says_of_bits_shows_and_of_channels_does_not():
    # As in the paper, layers of 16 to a few hundred channels.
    table = quantized_deviation.measure(0, nothing, channels=(16, 256), samples=2)
    verdicts = {claim.about: claim.holds for claim in quantized_deviation.compare(table)}
    assert verdicts == {
        "more than 3 bits": True,
        "1 or 2 bits": True,
        "different channel numbers": False,
    }
