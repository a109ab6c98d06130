import numpy as np
import pytest
import tensorflow as tf

from sat_tf.export.converter_route import ON_REALS
from sat_tf.export.operations import movements
from sat_tf.export.operations.movements import Movement

STORED = np.random.default_rng(0).integers(-128, 128, (2, 4, 6, 8)).astype(np.int32)

MOVEMENTS: list[Movement] = [
    movements.StridedSlice(("x",), "y", ((1, None, 2), (None, -1, None), (None, None, None))),
    movements.Transpose(("x",), "y", (3, 1, 2)),
    movements.DepthToSpaceOp(("x",), "y", 2),
    movements.SpaceToDepthOp(("x",), "y", 2),
    movements.GatherOp(("x",), "y", (7, 0, 0), 2),
    movements.GatherOp(("x",), "y", (3, 1), 0),
    movements.ReduceMax(("x",), "y"),
    movements.Resize(("x",), "y", (8, 18)),
]


@pytest.mark.parametrize("movement", MOVEMENTS, ids=lambda movement: movement.operator.name)
def test_arrays_and_tensors_are_moved_alike(movement):
    expected = ON_REALS[type(movement)](movement, None, tf.constant(STORED, tf.float32)).numpy()
    np.testing.assert_array_equal(movement.on_array(STORED), expected)
    assert movement.on_array(STORED[:0]).shape == (0, *expected.shape[1:])


@pytest.mark.parametrize("before", [1, 2, 3, 7, 10, 32])
def test_the_nearest_pixel_is_that_of_tensorflow_for_every_size(before):
    pixels = np.arange(before, dtype=np.int32).reshape(1, before, 1, 1)
    for after in range(1, 70):
        movement = movements.Resize(("x",), "y", (after, 1))
        expected = tf.image.resize(pixels, (after, 1), "nearest").numpy()
        np.testing.assert_array_equal(movement.on_array(pixels), expected)


def test_blocks_are_moved_back():
    forth = movements.SpaceToDepthOp(("x",), "y", 2).on_array(STORED)
    np.testing.assert_array_equal(movements.DepthToSpaceOp(("x",), "y", 2).on_array(forth), STORED)


def test_pixels_are_shuffled_as_sub_pixel_convolution_wants_them():
    channels = np.arange(8).reshape(1, 1, 1, 8)
    made = movements.DepthToSpaceOp(("x",), "y", 2).on_array(channels)
    np.testing.assert_array_equal(made[0, ..., 0], [[0, 2], [4, 6]])
    np.testing.assert_array_equal(made[0, ..., 1], [[1, 3], [5, 7]])
