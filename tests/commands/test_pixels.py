import argparse

import numpy as np
import pytest
from PIL import Image

from sat_tf.commands.pixels import ImageOptions, add_image_arguments, image_options
from sat_tf.export.certificate.inputs import random_images
from sat_tf.messages import RunError


def test_without_a_name_pixels_are_random_and_can_be_drawn_again():
    found = ImageOptions(num_images=3).load((4, 4, 3), 10)
    assert found.labels is None
    assert np.array_equal(found.images, random_images((4, 4, 3), 3, found.source.seed))


def test_a_data_set_is_made_in_the_size_of_the_input_where_it_can_be():
    found = ImageOptions(dataset="digits", num_images=20).load((16, 16, 3), 10)
    assert found.images.shape == (20, 16, 16, 3)
    assert len(np.unique(found.labels)) > 1
    assert found.source.description == "held-out images of digits"
    assert found.source.seed is None


@pytest.mark.parametrize("shape", [(17, 17, 3), (16, 24, 3), (20, 20, 1)])
def test_a_data_set_of_another_size_is_resized(shape):
    found = ImageOptions(dataset="digits", num_images=5).load(shape, 10)
    assert found.images.shape == (5, *shape)
    assert found.images.dtype == np.uint8


def test_a_folder_tells_its_classes_and_what_it_left_out(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
        image.save(tmp_path / "photos" / name / "a.png")
    for index in range(7):
        (tmp_path / "photos" / "dog" / f"note{index}").touch()
    found = ImageOptions(images=str(tmp_path / "photos")).load((4, 4, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert "folder photos" in found.source.description
    assert found.notes[0].startswith("7 files are not pictures: ")
    assert found.notes[0].endswith(" and 2 more")
    assert found.notes[1].startswith("2 classes")


def test_of_an_array_all_images_are_taken_or_so_many(tmp_path):
    path = tmp_path / "pixels.npy"
    np.save(path, np.arange(9, dtype=np.uint8).reshape(9, 1))
    assert len(ImageOptions(images=str(path)).load((1,), 2).images) == 9
    assert ImageOptions(images=str(path), num_images=3).load((1,), 2).images.tolist() == [
        [0],
        [4],
        [8],
    ]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (
            ImageOptions(images=".", dataset="digits"),
            "received --images and --dataset, expected one",
        ),
        (ImageOptions(images="nowhere"), "nowhere: not found; expected a folder of pictures"),
        (ImageOptions(dataset="glyph"), "received 'glyph', .* Did you mean glyphs"),
    ],
)
def test_what_is_wrong_with_names_is_said_before_anything_is_read(wanted, expected):
    with pytest.raises(RunError, match=expected):
        wanted.check()


def test_numbers_of_images_are_above_0(capsys):
    parser = argparse.ArgumentParser()
    add_image_arguments(parser, default="none", usual="all")
    assert image_options(parser.parse_args(["--num_images", "7"])).num_images == 7
    with pytest.raises(SystemExit):
        parser.parse_args(["--num_images", "0"])
    assert "'0': expected an integer above 0" in capsys.readouterr().err
