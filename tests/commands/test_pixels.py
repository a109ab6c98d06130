import numpy as np
import pytest
from PIL import Image

from sat_tf.commands.images import ImageOptions, add_image_arguments, image_options
from sat_tf.commands.parser import Parser
from sat_tf.export.certificate.inputs import random_images
from sat_tf.export.tflite.metadata import Metadata
from sat_tf.messages import RunError


def test_without_a_name_pixels_are_random_and_can_be_drawn_again():
    found = ImageOptions(num_images=3).load((4, 4, 3), 10)
    assert found.labels is None
    assert np.array_equal(found.images, random_images((4, 4, 3), 3, found.source.seed))


def test_a_folder_tells_its_classes_and_what_it_left_out(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        image = Image.fromarray(np.zeros((4, 4, 3), np.uint8))
        image.save(tmp_path / "photos" / name / "a.png")
    for index in range(7):
        (tmp_path / "photos" / "dog" / f"{index}.jpg").touch()
    found = ImageOptions(images=str(tmp_path / "photos")).load((4, 4, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert "folder photos" in found.source.description
    assert found.notes[0].startswith("7 files are no pictures, or not whole, or too large: ")
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


def test_numbers_of_images_are_above_0(capsys):
    parser = Parser()
    add_image_arguments(parser, default="none", usual="all")
    assert image_options(parser.parse_args(["--num_images", "7"])).num_images == 7
    with pytest.raises(SystemExit):
        parser.parse_args(["--num_images", "0"])
    assert "'0': expected a positive integer" in capsys.readouterr().err


def test_classes_are_numbered_by_the_names_in_the_file(tmp_path):
    for name in ("bee", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name / "1.png")
    wanted, shape = ImageOptions(str(tmp_path)), (8, 8, 3)
    found = wanted.load(shape, 4, Metadata(labels=("ant", "bee", "cat", "dog")))
    assert found.labels.tolist() == [1, 3]
    assert found.notes == ("2 classes, numbered by the names in the file",)
    others = wanted.load(shape, 2, Metadata(labels=("Hund", "Biene")))
    assert others.labels.tolist() == [0, 1]
    assert "none of which is one of the file's (Hund...)" in others.notes[0]
    with pytest.raises(RunError, match=r"received the classes dog, expected those of the file"):
        wanted.load(shape, 2, Metadata(labels=("ant", "bee")))


def test_of_a_divided_folder_the_held_out_pictures_are_taken(tmp_path):
    for name in ("train/cat/1.png", "train/ox/2.png", "val/cat/3.png", "val/ox/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / name)
    found = ImageOptions(str(tmp_path)).load((8, 8, 3), 2)
    assert found.labels.tolist() == [0, 1]
    assert found.notes[1] == f"{tmp_path} is divided: the pictures are those of val"
