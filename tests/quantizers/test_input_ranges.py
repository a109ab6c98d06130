import dataclasses

import numpy as np
import pytest
import tf_keras as keras

from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import NAMED, PIXELS, InputRange, range_of

PIXEL_VALUES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_preprocessing_is_that_of_keras_applications(name):
    pictures = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    expected = keras.applications.imagenet_utils.preprocess_input(
        pictures.astype(np.float32), mode=name
    )
    np.testing.assert_allclose(NAMED[name].fed(pictures), expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "step", "zero_point"),
    [
        ((0, 255), 1.0, 0),
        ((0, 1), 1 / 255, 0),
        ((-1, 1), 2 / 255, 128),  # real 0 lies between the pixels 127 and 128
        ((-128, 127), 1.0, 128),
        ((10, 265), 1.0, 0),  # real 0 is no pixel
        ("caffe", 1.0, 115),
    ],
)
def test_the_grid_has_the_pixel_nearest_to_real_0(value, step, zero_point):
    grid = range_of(value).grid
    assert (pytest.approx(grid.scale), grid.zero_point) == (step, zero_point)


@pytest.mark.parametrize("value", [(0, 255), (-1, 1), (10, 265), "torch", "caffe"])
def test_what_is_fed_is_the_change_of_the_grid(value):
    found = range_of(value)
    pixels = np.stack([PIXEL_VALUES, PIXEL_VALUES[::-1], PIXEL_VALUES], axis=-1)
    grid, change = found.grid, found.change
    read = grid.scale * (pixels.astype(np.float64) - grid.zero_point)
    read = read[..., ::-1] if change.reverses else read
    np.testing.assert_allclose(change.ratio * read + change.shift, found.fed(pixels), atol=1e-4)


def test_ranges_with_a_pixel_for_0_change_nothing():
    alike = [(0, 255), (0, 1), (-128, 127), ((0, 0, 0), (1, 1, 1))]
    assert all(range_of(value).change.is_none for value in alike)
    assert not any(range_of(value).change.is_none for value in ((-1, 1), "torch", "caffe"))


def test_a_policy_keeps_one_spelling():
    assert BitPolicy(input_max=1.0) == BitPolicy(input_range=[0, 1])
    assert BitPolicy(input_range=[[0, 0], [1, 1]]) == BitPolicy(input_range=(0.0, 1.0))
    assert BitPolicy(input_range="tf").range_of("any") == InputRange((-1.0,), (1.0,))
    policy = BitPolicy(input_range={"photo": "caffe", "mask": [0, 1]})
    assert policy.range_of("mask") == range_of((0, 1))
    assert policy.range_of("another") == PIXELS
    assert BitPolicy(**policy.to_dict()) == policy
    assert policy.to_dict()["input_range"] == {"photo": "caffe", "mask": [0.0, 1.0]}
    assert isinstance(hash(policy), int)


def test_the_older_spelling_stands_for_the_range_from_0():
    policy = dataclasses.replace(BitPolicy(), input_max=2)
    assert policy.input_range == (0.0, 2.0)
    assert dataclasses.replace(policy, weight_bits=8).input_range == (0.0, 2.0)
    assert BitPolicy(input_max=1.0, input_range=(0, 1)).input_range == (0.0, 1.0)
