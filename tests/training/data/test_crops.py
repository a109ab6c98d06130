import numpy as np
import pytest
import tensorflow as tf

from sat_tf.training.data import crops
from tests.training.data.photographs import corrupt_files, encoded, photograph

CORRUPT = corrupt_files()


def coordinates(height, width):
    """A picture whose red is the row and whose green is the column, in 255ths of the sides."""
    rows = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    columns = np.linspace(0, 255, width)[None].repeat(height, 0)
    return np.stack([rows, columns, rows], axis=-1).round().astype(np.uint8)


def windows(height, width, count=400):
    """Height, width (as shares) and mirroring of random crops, measured in the pixels."""
    draw = tf.function(
        lambda seed: crops.training_crop_of_pixels(
            tf.constant(coordinates(height, width)), seed, 32
        )
    )
    found = []
    for number in range(count):
        crop = draw(tf.constant([number, 7], tf.int64)).numpy().astype(float)
        rows, columns = crop[-1, 0, 0] - crop[0, 0, 0], crop[0, -1, 1] - crop[0, 0, 1]
        # From the centre of the first pixel to that of the last one: 31 of 32 pixels.
        found.append((rows / 255 * 32 / 31, abs(columns) / 255 * 32 / 31, columns < 0))
    return np.array(found)


@pytest.mark.thorough
def test_random_crops_have_the_areas_and_aspects_of_the_recipe():
    rows, columns, mirrored = windows(300, 400).T
    area = rows * columns
    aspect = columns * 400 / (rows * 300)
    # The window's edges are whole pixels, and values whole 255ths: a few per cent on small crops.
    assert 0.07 < area.min() < 0.12
    assert 0.9 < area.max() <= 1.02
    assert 0.70 < aspect.min() < 0.78
    assert 1.28 < aspect.max() < 1.42
    # Areas are uniform, but large ones fit less often; 400 draws of a half are within 4 sd: 10 %.
    assert 0.4 < area.mean() < 0.6
    assert 0.4 < mirrored.mean() < 0.6


def test_a_picture_that_no_crop_fits_gives_its_centre():
    # The smallest crop of 8 % with the aspect 4/3 is wider than this picture.
    rows, columns, _ = windows(900, 30, count=20).T
    # Enlarged, the outermost pixels lie on the edges.
    np.testing.assert_allclose(columns, 32 / 31, atol=0.01)
    np.testing.assert_allclose(rows, 40 / 900, atol=0.02)


def test_the_same_seed_gives_the_same_crop():
    jpeg = tf.constant(encoded(photograph()))
    one, again, other = (crops.training_crop(jpeg, [1, seed], 32).numpy() for seed in (2, 2, 3))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_decoding_only_the_crop_changes_little():
    # Colour at the edge of the crop is interpolated without the pixels beyond it.
    pixels = photograph(120, 160)
    jpeg = encoded(pixels)
    decoded = tf.io.decode_jpeg(jpeg, channels=3)
    for number in range(20):
        seed = tf.constant([number, 0], tf.int64)
        found = crops.training_crop(tf.constant(jpeg), seed, 64).numpy().astype(int)
        whole = crops.training_crop_of_pixels(decoded, seed, 64).numpy()
        assert np.abs(found - whole).mean() < 1


def test_large_crops_are_reduced_without_moving():
    pixels = coordinates(640, 640)
    jpeg = tf.constant(encoded(pixels, subsampling=0))
    for number in range(20):
        seed = tf.constant([number, 0], tf.int64)
        found = crops.training_crop(jpeg, seed, 32).numpy().astype(int)
        whole = crops.training_crop_of_pixels(tf.constant(pixels), seed, 32).numpy()
        # The window is rounded to 8 of 640 pixels, which are 3 of 255 values, and JPEG loses some.
        assert np.abs(found - whole).max() <= 6


def test_large_crops_of_any_format_are_averaged():
    # Stripes of one pixel; without averaging most crops would show black and white.
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[:, ::2] = 255
    for number in range(10):
        seed = tf.constant([number, 0], tf.int64)
        crop = crops.training_crop_of_pixels(tf.constant(pixels), seed, 16).numpy()
        # The rest of a crop that is no multiple of 8 shifts squares by a stripe at most.
        assert np.abs(crop.astype(int) - 128).max() <= 32


@pytest.mark.parametrize("name", ["empty", "text", "half", "no_tables", "half_png"])
def test_corrupt_files_are_refused(name):
    # All of the picture, so that nothing of it is passed over.
    whole = crops.TrainingCrops(smallest_area=1.0)
    with pytest.raises(tf.errors.OpError):
        crops.training_crop(tf.constant(CORRUPT[name]), [0, 0], 16, crops=whole)
