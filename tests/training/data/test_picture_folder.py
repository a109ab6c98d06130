import os
import socket

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from sat_tf.pictures.picture_folder import load_folder, resized
from sat_tf.pictures.pictures import eight_bits
from sat_tf.training.data.crops import whole_picture
from tests.training.data.photographs import tiff_of_12_bits

SHAPE = (6, 8, 3)


def picture(value: int, shape=SHAPE) -> np.ndarray:
    return np.full(shape, value, np.uint8)


def save(path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_a_flat_folder_has_no_labels_and_the_order_of_its_names(tmp_path):
    for name, value in (("b.png", 2), ("a.png", 1), ("c.bmp", 3)):
        save(tmp_path / name, picture(value))
    found = load_folder(tmp_path, SHAPE)
    assert found.images[:, 0, 0, 0].tolist() == [1, 2, 3]
    assert (found.labels, found.class_names, found.unreadable) == (None, (), ())


def test_folders_are_classes_in_the_order_of_their_names(tmp_path):
    for name, value in (("dog/1.png", 10), ("ant/1.png", 20), ("cat/2.png", 31), ("cat/1.png", 30)):
        save(tmp_path / name, picture(value))
    (tmp_path / "empty").mkdir()
    found = load_folder(str(tmp_path), SHAPE)
    assert found.class_names == ("ant", "cat", "dog", "empty")
    assert found.labels.tolist() == [0, 1, 1, 2]
    assert found.images[:, 0, 0, 0].tolist() == [20, 30, 31, 10]


def test_a_picture_of_the_size_of_the_input_keeps_its_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, SHAPE).astype(np.uint8)
    save(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(load_folder(tmp_path, SHAPE).images, pixels[np.newaxis])


def test_what_is_too_wide_is_cut_off_on_both_sides(tmp_path):
    pixels = np.zeros((6, 24, 3), np.uint8)
    pixels[:, 8:16] = 200
    save(tmp_path / "a.png", pixels)
    assert np.all(load_folder(tmp_path, SHAPE).images == 200)


def test_larger_pictures_are_scaled_until_they_just_cover_the_input(tmp_path):
    save(tmp_path / "a.png", np.repeat(np.repeat(picture(7), 5, 0), 9, 1))
    found = load_folder(tmp_path, SHAPE).images
    assert found.shape == (1, *SHAPE)
    assert np.all(found == 7)


def test_pictures_are_turned_as_their_exif_data_says(tmp_path):
    pixels = np.zeros((8, 6, 3), np.uint8)
    pixels[0] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned clockwise: the first row becomes the last column
    image.save(tmp_path / "a.png", exif=exif)
    found = load_folder(tmp_path, SHAPE).images[0]
    assert np.all(found[:, -1] == 255)
    assert np.all(found[:, 0] == 0)


def test_grey_inputs_take_grey_pictures(tmp_path):
    save(tmp_path / "a.png", picture(9))
    assert np.all(load_folder(tmp_path, (6, 8, 1)).images == 9)


def test_files_that_are_no_pictures_are_named_and_left_out(tmp_path):
    save(tmp_path / "cat" / "a.png", picture(1))
    save(tmp_path / "dog" / "z.png", picture(2))
    (tmp_path / "dog" / "notes.txt").write_text("no picture")
    whole = (tmp_path / "dog" / "z.png").read_bytes()
    (tmp_path / "dog" / "half.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "dog" / ".hidden").touch()
    found = load_folder(tmp_path, SHAPE)
    assert found.labels.tolist() == [0, 1]
    assert [name.rsplit("/", 1)[1] for name in found.unreadable] == ["half.png", "notes.txt"]


def test_at_most_so_many_are_read_and_spread_evenly(tmp_path):
    for index in range(9):
        save(tmp_path / f"{index}.png", picture(index))
    assert load_folder(tmp_path, SHAPE, most=3).images[:, 0, 0, 0].tolist() == [0, 4, 8]


def test_folders_that_hold_no_pictures_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"received a folder of pictures with none, expected"):
        load_folder(tmp_path, SHAPE)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"with 1 unreadable files, expected at least one JPEG"):
        load_folder(tmp_path, SHAPE)
    with pytest.raises(ValueError, match=r"not a folder, expected one of pictures"):
        load_folder(tmp_path / "notes.txt", SHAPE)
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog.jpg").touch()
    with pytest.raises(ValueError, match=r"1 folders and 1 files \(dog.jpg\), expected folders"):
        load_folder(tmp_path, SHAPE)


def test_other_files_beside_folders_of_classes_are_passed_over(tmp_path):
    save(tmp_path / "cat" / "1.png", np.zeros((4, 4, 3), np.uint8))
    (tmp_path / "Thumbs.db").touch()
    assert load_folder(tmp_path, SHAPE).class_names == ("cat",)


@pytest.mark.parametrize("shape", [(12,), (6, 8), (6, 8, 2), ()])
def test_inputs_that_take_no_pictures_are_named(shape, tmp_path):
    with pytest.raises(ValueError, match=r"expected one of rows, columns and 1 or 3 channels"):
        load_folder(tmp_path, shape)
    with pytest.raises(ValueError, match=r"expected one of rows, columns and 1 or 3 channels"):
        resized(np.zeros((1, 6, 8, 3), np.uint8), shape)


def test_arrays_are_resized_as_pictures_are(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 20, 20, 3)).astype(np.uint8)
    for index, pixels in enumerate(images):
        save(tmp_path / f"{index}.png", pixels)
    np.testing.assert_array_equal(resized(images, SHAPE), load_folder(tmp_path, SHAPE).images)
    assert resized(images, (20, 20, 3)) is images


# v >> 8, as TensorFlow's own decoder of PNG files does.
SIXTEEN = np.array([[0, 255, 256, 511, 4096, 32768, 65279, 65535]] * 6, np.uint16)


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.pgm"])
def test_of_16_bits_the_upper_8_are_taken(name, tmp_path):
    if name == "a.pgm":
        (tmp_path / name).write_bytes(b"P5 8 6 65535\n" + SIXTEEN.astype(">u2").tobytes())
    else:
        save(tmp_path / name, SIXTEEN)
    found = load_folder(tmp_path, SHAPE).images[0]
    assert found[0].tolist() == [[value] * 3 for value in (0, 0, 1, 1, 16, 128, 254, 255)]
    np.testing.assert_array_equal(load_folder(tmp_path, (6, 8, 1)).images[0], found[..., :1])


def test_16_bits_are_read_as_tensorflow_reads_them(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (6, 8)).astype(np.uint16)
    save(tmp_path / "a.png", values)
    expected = tf.io.decode_png((tmp_path / "a.png").read_bytes(), channels=3).numpy()
    np.testing.assert_array_equal(load_folder(tmp_path, SHAPE).images[0], expected)


def test_16_bit_pictures_are_turned_as_well(tmp_path):
    image = Image.fromarray(SIXTEEN.T.copy())
    exif = image.getexif()
    exif[0x0112] = 8  # to be turned counterclockwise
    image.save(tmp_path / "a.png", exif=exif)
    found = load_folder(tmp_path, SHAPE).images[0]
    assert found[0, :, 0].tolist() == [0, 0, 1, 1, 16, 128, 254, 255]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_pictures_of_32_bits_are_named_and_left_out(kind, tmp_path):
    save(tmp_path / "good.png", picture(1))
    save(tmp_path / "wide.tiff", SIXTEEN.astype(kind))
    found = load_folder(tmp_path, SHAPE)
    assert [name.rsplit("/", 1)[1] for name in found.unreadable] == ["wide.tiff"]


@pytest.mark.parametrize("largest", [1.0, 255.0, 65535.0])
def test_pixels_that_are_floats_are_refused(largest, tmp_path):
    # A PFM file, whose format Pillow calls that of PGM files of 16 bits.
    values = (SIXTEEN / 65535.0 * largest).astype("<f4")
    content = b"Pf\n8 6\n-1.0\n" + values.tobytes()
    save(tmp_path / "good.png", picture(1))
    (tmp_path / "float.pfm").write_bytes(content)
    found = load_folder(tmp_path, SHAPE)
    assert [name.rsplit("/", 1)[1] for name in found.unreadable] == ["float.pfm"]
    with pytest.raises(ValueError, match="it cannot be decoded"):
        whole_picture(content, turns=False)
    with pytest.raises(ValueError, match=r"its values are of 32 bits \(mode F\)"):
        eight_bits(Image.open(tmp_path / "float.pfm"))


def test_of_12_bits_the_upper_8_are_taken(tmp_path):
    values = np.array([[0, 15, 16, 31, 256, 2048, 4079, 4095]] * 6, np.uint16)
    (tmp_path / "a.tiff").write_bytes(tiff_of_12_bits(values))
    found = load_folder(tmp_path, SHAPE).images[0]
    assert found[0].tolist() == [[value] * 3 for value in (0, 0, 1, 1, 16, 128, 254, 255)]
    np.testing.assert_array_equal(
        whole_picture((tmp_path / "a.tiff").read_bytes(), turns=False), found
    )


def test_pipes_sockets_and_links_to_nothing_are_named_and_left_out(tmp_path):
    save(tmp_path / "good.png", picture(1))
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(tmp_path / "socket.png"))
        found = load_folder(tmp_path, SHAPE)
    assert len(found.images) == 1
    names = [name.rsplit("/", 1)[1] for name in found.unreadable]
    assert names == ["device.png", "gone.png", "pipe.png", "socket.png"]
