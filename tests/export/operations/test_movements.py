import numpy as np
import pytest
import tensorflow as tf

from sat_tf.export.converter_route import ON_REALS
from sat_tf.export.operations.movements import Moved, moved

STORED = np.random.default_rng(0).integers(-128, 128, (2, 4, 6, 8)).astype(np.int32)


def result(name, values, *arguments):
    operation = moved(name, "x", "y", values.shape[1:], *arguments)
    return operation.simulate(None, values)


MOVEMENTS = [
    ("STRIDED_SLICE", ((1, None, 2), (None, -1, None), (None, None, None))),
    ("TRANSPOSE", (3, 1, 2)),
    ("DEPTH_TO_SPACE", 2),
    ("SPACE_TO_DEPTH", 2),
    ("GATHER", (7, 0, 0), 2),
    ("GATHER", (3, 1), 0),
    ("REDUCE_MAX",),
    ("RESIZE_NEAREST_NEIGHBOR", (8, 18)),
]


@pytest.mark.parametrize("movement", MOVEMENTS, ids=lambda movement: movement[0])
def test_arrays_and_tensors_are_moved_alike(movement):
    name, *arguments = movement
    operation = moved(name, "x", "y", STORED.shape[1:], *arguments)
    expected = ON_REALS[Moved](operation, None, tf.constant(STORED, tf.float32)).numpy()
    np.testing.assert_array_equal(result(name, STORED, *arguments), expected)
    assert result(name, STORED[:0], *arguments).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("before", [1, 2, 3, 7, 10, 32])
def test_the_nearest_pixel_is_that_of_tensorflow_for_every_size(before):
    pixels = np.arange(before, dtype=np.int32).reshape(1, before, 1, 1)
    for after in range(1, 70):
        expected = tf.image.resize(pixels, (after, 1), "nearest").numpy()
        np.testing.assert_array_equal(
            result("RESIZE_NEAREST_NEIGHBOR", pixels, (after, 1)), expected
        )


def test_blocks_are_moved_back():
    forth = result("SPACE_TO_DEPTH", STORED, 2)
    np.testing.assert_array_equal(result("DEPTH_TO_SPACE", forth, 2), STORED)


def test_pixels_are_shuffled_as_sub_pixel_convolution_wants_them():
    channels = np.arange(8).reshape(1, 1, 1, 8)
    made = result("DEPTH_TO_SPACE", channels, 2)
    np.testing.assert_array_equal(made[0, ..., 0], [[0, 2], [4, 6]])
    np.testing.assert_array_equal(made[0, ..., 1], [[1, 3], [5, 7]])
