import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from sat_tf.data import crops
from sat_tf.preprocessing import RESIZED_AND_CROPPED
from tests.data.photographs import encoded, photograph

SIZES = [(375, 500), (500, 333), (200, 300), (100, 90), (64, 300), (224, 224), (700, 900)]


def pillow_centre(pixels, image_size):
    """Resize of the shorter side to 256/224 and centre crop, as torchvision does it with Pillow."""
    height, width = pixels.shape[:2]
    shorter = round(image_size * 256 / 224)
    size = [side * shorter // min(height, width) for side in (height, width)]
    resized = Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR)
    top, left = (round((side - image_size) / 2) for side in size)
    return np.asarray(resized)[top : top + image_size, left : left + image_size].astype(int)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("image_size", [224, 64])
def test_held_out_crops_are_those_of_pillow(size, image_size):
    pixels = photograph(*size)
    found = crops.held_out_crop_of_pixels(tf.constant(pixels), image_size).numpy().astype(int)
    # Pillow rounds twice, after columns and after rows, with weights of 22 bits.
    assert np.abs(found - pillow_centre(pixels, image_size)).max() <= 1


@pytest.mark.parametrize("size", [*SIZES, (61, 977), (4000, 32)])
def test_both_formulas_of_the_geometry_are_one(size):
    for image_size in (32, 96, 224):
        shape = tf.constant([*size, 3])
        factors, corner = crops._held_out_geometry(shape, image_size, RESIZED_AND_CROPPED)
        resized = [round(float(factor) * side) for factor, side in zip(factors, size, strict=True)]
        expected = RESIZED_AND_CROPPED.geometry(size, (image_size, image_size))
        assert (tuple(resized), tuple(map(int, corner))) == expected


@pytest.mark.parametrize("size", SIZES)
def test_decoding_only_the_centre_changes_no_pixel(size):
    jpeg = encoded(photograph(*size))
    decoded = tf.io.decode_jpeg(jpeg, channels=3, dct_method="INTEGER_ACCURATE")
    whole = crops.held_out_crop_of_pixels(decoded, 64)
    np.testing.assert_array_equal(crops.held_out_crop(tf.constant(jpeg), 64), whole)


def test_the_shorter_side_of_the_default_size_is_256():
    # A ramp along the columns: the first column of the crop is 16 of 256 columns in.
    pixels = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 256, 0).repeat(3, 2)
    found = crops.held_out_crop_of_pixels(tf.constant(pixels), 224).numpy()
    np.testing.assert_array_equal(found[0, :, 0], np.arange(16, 240))


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


def test_a_jpeg_that_breaks_off_is_refused_whatever_the_crop():
    jpeg = encoded(photograph(400, 400))
    for number in range(20):
        with pytest.raises(tf.errors.InvalidArgumentError):
            crops.training_crop(tf.constant(jpeg[:-200]), [number, 0], 16)
    with pytest.raises(tf.errors.InvalidArgumentError):
        crops.held_out_crop(tf.constant(jpeg[:-200]), 16)


def test_large_crops_of_any_format_are_averaged():
    # Stripes of one pixel; without averaging most crops would show black and white.
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[:, ::2] = 255
    for number in range(10):
        seed = tf.constant([number, 0], tf.int64)
        crop = crops.training_crop_of_pixels(tf.constant(pixels), seed, 16).numpy()
        # The rest of a crop that is no multiple of 8 shifts squares by a stripe at most.
        assert np.abs(crop.astype(int) - 128).max() <= 32


def test_a_file_of_another_kind_never_reaches_libjpeg(capfd):
    png = tf.constant(encoded(photograph(20, 20), "PNG") + b"\xff\xd9")
    for crop in (
        tf.function(lambda encoded: crops.training_crop_of_jpeg(encoded, [0, 0], 16)),
        tf.function(lambda encoded: crops.held_out_crop_of_jpeg(encoded, 16)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="a JPEG without its ends"):
            crop(png)
    assert "Not a JPEG" not in capfd.readouterr().err
