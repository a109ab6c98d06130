import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from sat_tf.pictures import open_pictures
from sat_tf.preprocessing import AS_IN_IMAGENET, RESIZED_AND_CROPPED
from sat_tf.training.data import crops
from sat_tf.training.data.crops import jpeg_may_be_turned, whole_picture
from sat_tf.training.data.folders import load_folder_tree
from tests.training.data.photographs import encoded, photograph

KINDS = ["JPEG", "PNG", "WEBP", "TIFF"]
PHOTOGRAPH = photograph(70, 96)


def with_orientation(number, kind="JPEG", endian=None, pixels=PHOTOGRAPH):
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x010F] = "a maker"
    if endian is not None:
        exif.endian = endian
    exif[0x0112] = number
    options = {"lossless": True} if kind == "WEBP" else {}
    return encoded(image, kind, exif=exif.tobytes(), **options)


def by_pillow(content):
    with Image.open(io.BytesIO(content)) as opened:
        return np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_turned_as_pillow_turns_them(number, kind):
    content = with_orientation(number, kind)
    np.testing.assert_array_equal(whole_picture(content, turns=True), by_pillow(content))
    if kind != "TIFF":  # whose pixels Pillow turns when it reads them
        assert whole_picture(content, turns=False).shape == PHOTOGRAPH.shape


@pytest.mark.parametrize("endian", ["<", ">"])
def test_only_files_with_an_orientation_are_looked_into(endian):
    for number in range(1, 9):
        content = tf.constant(with_orientation(number, "JPEG", endian))
        assert bool(jpeg_may_be_turned(content)) == (number > 1)
    assert not jpeg_may_be_turned(tf.constant(encoded(PHOTOGRAPH)))


def test_exif_data_behind_a_long_colour_profile_are_found():
    image = Image.fromarray(PHOTOGRAPH)
    exif = image.getexif()
    exif[0x0112] = 6
    jpeg = encoded(image, exif=exif, icc_profile=bytes(3000))
    # Pillow writes EXIF first; other programs the profile.
    begin, profile = jpeg.index(b"\xff\xe1"), jpeg.index(b"\xff\xe2")
    end = profile + 2 + int.from_bytes(jpeg[profile + 2 : profile + 4], "big")
    other = jpeg[:begin] + jpeg[profile:end] + jpeg[begin:profile] + jpeg[end:]
    assert other.index(b"Exif") > 3000
    assert jpeg_may_be_turned(tf.constant(other))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_training_crops_of_turned_pictures_are_those_of_the_upright_ones(kind):
    content = with_orientation(6, kind)
    upright = tf.constant(by_pillow(content))
    for number in range(4):
        seed = tf.constant([number, 0], tf.int64)
        np.testing.assert_array_equal(
            crops.training_crop(tf.constant(content), seed, 32, turns=True),
            crops.training_crop_of_pixels(upright, seed, 32),
        )


@pytest.mark.thorough
def test_a_folder_honours_the_orientation_and_training_and_files_see_the_same(tmp_path):
    for part in ("train", "val"):
        for number in range(1, 9):
            for kind in ("JPEG", "TIFF"):
                path = tmp_path / part / "cat" / f"{number}.{kind.lower()}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(with_orientation(number, kind))
    source = load_folder_tree(tmp_path, image_size=32)
    assert source.preprocessing == RESIZED_AND_CROPPED
    found, _ = source.held_out_sample(16)
    shape = (32, 32, 3)
    as_files = open_pictures(tmp_path, shape, RESIZED_AND_CROPPED).held_out.images()[0]
    np.testing.assert_array_equal(found, as_files)
    ignored = open_pictures(tmp_path, shape, AS_IN_IMAGENET).held_out.images()[0]
    assert np.abs(found.astype(int) - ignored).max() > 30
    # The corners of the random crops of a turned picture come from it as well.
    (images, _) = next(iter(source.training_batches(batch_size=16, seed=0)))
    assert images.shape == (16, 32, 32, 3)
