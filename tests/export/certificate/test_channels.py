"""Outputs that are values: each channel has a unit of its own."""

import numpy as np
import pytest

from sat_tf.export.certificate.outputs import FEWEST_VALUES, MOST_ERROR, compared_channels

RNG = np.random.default_rng(0)
_START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _draws_do_not_depend_on_other_tests():
    RNG.bit_generator.state = _START


def _on_one_grid(values):
    """Values as a file has them whose output has one scale of 256 codes."""
    step = np.ptp(values) / 255
    return np.round(values / step) * step


def _detector(unit):
    """Boxes of 16 cells in some unit, and a score from 0 to 1 beside them."""
    boxes = RNG.uniform(0, unit, (200, 4, 4, 4))
    scores = RNG.beta(0.2, 0.8, (200, 4, 4, 1))
    return np.concatenate([boxes, scores], axis=-1)


@pytest.mark.parametrize("unit", [320, 1920])
def test_scores_beside_boxes_in_pixels_are_lost(unit):
    values = _detector(unit)
    found = compared_channels(_on_one_grid(values), values)
    assert (found.is_bad, found.off, found.channels[0].channel) == (True, 1, 4)
    assert found.fewest_values.channel == 4
    assert found.fewest_values.values <= 3
    assert "left of 3,200 in channel 4; 1 channel is off" in str(found)


def test_scores_beside_boxes_of_their_size_are_kept():
    values = _detector(1.0)
    found = compared_channels(_on_one_grid(values), values)
    assert (found.is_bad, found.off, found.num_channels) == (False, 0, 5)
    assert found.channels[0].error < 0.01


def test_the_error_is_in_standard_deviations_of_its_channel():
    values = RNG.normal(0, [[100.0, 1.0]], (5000, 2))
    found = compared_channels(values + np.array([1.0, 0.3]), values)
    worst, other = found.channels
    assert (worst.channel, other.channel) == (1, 0)
    assert worst.error == pytest.approx(0.3, rel=0.05)
    assert other.error == pytest.approx(0.01, rel=0.05)
    assert found.is_bad == (worst.error > MOST_ERROR)


def test_a_single_number_is_one_channel():
    ages = RNG.normal(40, 10, (64,))
    found = compared_channels(ages + 1.0, ages)
    assert str(found) == "0.11 standard deviations, 64 different values left of 64"
    assert not found.is_bad


def test_the_quiet_pixels_at_a_border_are_counted_and_not_judged():
    spreads = np.geomspace(0.02, 5.0, 64)
    values = RNG.normal(0, spreads, (500, 64))
    noisy = values + RNG.normal(0, 0.06, values.shape)
    found = compared_channels(noisy, values)
    assert (found.is_bad, found.off) == (False, 0)
    assert found.quiet > 10
    assert "; not judged, as they hardly vary: " in str(found)
    broken = noisy.copy()
    broken[:, 60] = 0.0
    assert compared_channels(broken, values).off == 1


def test_a_score_beside_boxes_in_pixels_is_judged():
    score = RNG.integers(0, 2, 400) * RNG.uniform(0.9, 1.0, 400)
    values = np.stack([*RNG.normal(16, 3.2, (2, 400)), np.full(400, 200.0), score], axis=1)
    found = compared_channels(np.round(values / 0.8) * 0.8, values)
    assert (found.is_bad, found.off, found.quiet) == (True, 1, 0)


def test_noise_that_drowns_many_channels_is_judged():
    spreads = np.linspace(5.0, 12.0, 64)
    values = RNG.normal(0, spreads, (500, 64))
    found = compared_channels(values + RNG.normal(0, 2.0, values.shape), values)
    assert (found.is_bad, found.quiet) == (True, 0)
    assert 20 < found.off < 40


def test_few_values_are_left_where_there_were_many():
    scores = RNG.uniform(0, 1, (100, 1))
    for kept in (FEWEST_VALUES - 1, FEWEST_VALUES):
        grid = np.round(scores * (kept - 1)) / (kept - 1)
        assert compared_channels(grid, scores).is_bad == (kept < FEWEST_VALUES)
    # The float model has no more: a step, or a count.
    counts = RNG.integers(0, 4, (100, 1)).astype(np.float32)
    assert not compared_channels(counts, counts).is_bad


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_a_constant_channel_is_measured_by_the_whole_output(value):
    values = np.stack([RNG.normal(0, 2, 100), np.full(100, value)], axis=1)
    found = compared_channels(values + np.array([0.0, 0.02]), values)
    assert not found.is_bad
    assert compared_channels(values + np.array([0.0, 9.0]), values).is_bad
    assert not compared_channels(values[:, 1:], values[:, 1:]).is_bad
    assert compared_channels(values[:, 1:] + 1, values[:, 1:]).is_bad


def test_a_nan_is_off():
    values = RNG.normal(0, 1, (10, 2))
    broken = values.copy()
    broken[3, 1] = np.nan
    found = compared_channels(broken, values)
    assert (found.off, found.channels[0].channel, found.channels[0].error) == (1, 1, np.inf)


def test_the_worst_of_many_channels_are_kept():
    values = RNG.normal(0, 1, (50, 100))
    found = compared_channels(values + np.linspace(0, 0.2, 100), values)
    assert (len(found.channels), found.num_channels) == (16, 100)
    assert found.channels[0].error == max(one.error for one in found.channels)
