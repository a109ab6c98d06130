import functools
import os

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from sat_tf.messages import ReadingError
from sat_tf.training import data
from sat_tf.training.data.folders import load_folder_tree, median_side, read_tree
from sat_tf.training.data.source import Shard
from tests.training.data import contract
from tests.training.data.contract import pieces
from tests.training.data.photographs import corrupt_files, encoded, odd_files, photograph

CLASSES = ("ant", "bee", "cat")
CORRUPT = corrupt_files()


def make_tree(root, train=7, held_out=5):
    """Photographs of different sizes, each like no other."""
    number = 0
    for split, count in (("train", train), ("val", held_out)):
        for name in CLASSES:
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = photograph(48 + number % 5, 64 - number % 7, seed=number)
                (root / split / name / f"{index:03}.JPEG").write_bytes(encoded(pixels))
                number += 1
    return root


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return make_tree(tmp_path_factory.mktemp("photographs"))


@pytest.fixture(scope="module")
def source(tree):
    return data.source("folder", data_dir=tree, image_size=32)


@pytest.fixture
def own_tree(tmp_path):
    """One that a test may damage."""
    return make_tree(tmp_path / "photographs")


labels_of = functools.partial(contract.labels_of, batch_size=7)


def test_it_tells_what_it_holds(source):
    assert (source.image_size, source.num_classes) == (32, 3)
    assert (source.num_train, source.num_test) == (21, 15)
    assert source.class_names == CLASSES


@pytest.mark.slow
def test_a_run_resumes_exactly_at_any_epoch(source):
    contract.assert_resumes_exactly(source, batch_size=5, epochs=[1, 2])


@pytest.mark.slow
def test_workers_and_replicas_together_get_the_batches_of_one_process(source):
    # Pieces of 3 and 2, and 2 and 2.
    contract.assert_workers_share_batches(source, batch_size=9, steps=4)
    contract.assert_workers_share_held_out(source, batch_size=9)


@pytest.mark.thorough
def test_an_epoch_sees_every_picture_once_in_another_order_each_time(source):
    epochs = labels_of(source, 6).reshape(2, 21)
    for labels in epochs:
        assert np.bincount(labels).tolist() == [7, 7, 7]
    assert not np.array_equal(*epochs)
    assert not np.array_equal(epochs[0], labels_of(source, 3, seed=1))


def test_every_epoch_has_other_crops(source):
    batches = pieces(source.training_batches(batch_size=21, seed=0), 2)
    found = {image.tobytes() for images, _ in batches for image in images}
    assert len(found) == 42


def test_shapes_are_static(source):
    contract.assert_shapes_are_static(source, batch_size=7)


@pytest.mark.thorough
def test_held_out_images_come_in_order_and_the_last_batch_is_filled_up(source, tree):
    images, labels = contract.assert_held_out_is_padded(source, batch_size=4)
    assert labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    again, same = source.held_out_sample(100)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, same)
    assert source.held_out_sample(3)[1].tolist() == [0, 1, 2]


@pytest.mark.thorough
def test_a_sample_of_training_images_is_drawn_by_its_seed(source):
    contract.assert_sample_is_drawn_by_its_seed(source)


@pytest.mark.thorough
def test_odd_pictures_are_trained_and_measured_with(own_tree):
    files = odd_files()
    for number, content in enumerate(files.values()):
        (own_tree / "train" / "bee" / f"odd{number}.JPEG").write_bytes(content)
        (own_tree / "val" / "bee" / f"odd{number}.JPEG").write_bytes(content)
    source = data.source("folder", data_dir=own_tree, image_size=32)
    labels = labels_of(source, 1, batch_size=21 + len(files))
    assert np.bincount(labels).tolist() == [7, 7 + len(files), 7]
    held_out = source.held_out_sample(1000)[1]
    assert np.bincount(held_out).tolist() == [5, 5 + len(files), 5]


def test_the_order_is_open_only_where_that_is_asked_for(tree, source):
    free = data.source("folder", data_dir=tree, image_size=32, deterministic=False)
    batches = free.training_batches(batch_size=7, seed=0)
    assert batches.options().deterministic is False
    assert [len(labels) for _, labels in pieces(batches, 3)] == [7] * 3
    assert source.training_batches(batch_size=7, seed=0).options().deterministic is True


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["empty", "text", "half", "half_png"])
def test_a_corrupt_picture_is_named_wherever_it_is_read(name, own_tree):
    for part in ("train", "val"):
        (own_tree / part / "bee" / "001.JPEG").write_bytes(CORRUPT[name])
    # Of whole pictures, so that every crop meets what is missing.
    options = {"data_dir": own_tree, "image_size": 32, "smallest_area": 1}
    for part, read in (
        ("train", lambda source: labels_of(source, 3)),
        ("val", lambda source: pieces(source.held_out_batches(batch_size=7))),
    ):
        source = data.source("folder", **options)
        with pytest.raises(tf.errors.OpError):
            read(source)
        said = str(source.reading_error)
        assert f"{part}/bee/001.JPEG: received a picture that cannot be read" in said
        assert said.endswith("mend or delete it.")
        assert "\n" not in said
    for sample in (lambda: source.training_sample(21, seed=0), lambda: source.held_out_sample(15)):
        with pytest.raises(ReadingError, match=r"bee/001\.JPEG: received a picture that cannot"):
            sample()


def test_a_picture_that_has_gone_is_named(own_tree):
    source = data.source("folder", data_dir=own_tree, image_size=32)
    (own_tree / "val" / "ant" / "003.JPEG").unlink()
    with pytest.raises(ReadingError, match=r"ant/003\.JPEG: received a file that cannot be opened"):
        source.held_out_sample(15)


def test_names_that_are_not_in_utf_8_are_read(own_tree):
    folder = os.fsencode(own_tree / "val" / "ant")
    os.rename(os.path.join(folder, b"000.JPEG"), os.path.join(folder, b"caf\xe9.JPEG"))
    source = data.source("folder", data_dir=own_tree, image_size=32)
    assert source.held_out_sample(15)[1].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    with open(os.path.join(folder, b"caf\xe9.JPEG"), "wb"):
        pass
    with pytest.raises(ReadingError, match=r"ant/caf\\xe9\.JPEG: received a picture"):
        source.held_out_sample(15)


@pytest.mark.thorough
def test_pieces_of_different_sizes_keep_their_places(own_tree):
    # A picture that takes long to decode would otherwise let the next piece pass.
    (own_tree / "val" / "ant" / "000.JPEG").write_bytes(encoded(photograph(2000, 2000), "PNG"))
    source = data.source("folder", data_dir=own_tree, image_size=32, deterministic=False)
    batches = source.held_out_batches(batch_size=5, shard=Shard(replicas=2))
    assert [len(labels) for _, labels in pieces(batches)] == [3, 2] * 3


def test_a_picture_of_the_size_of_the_input_can_be_kept_whole(tmp_path):
    pixels = {}
    for split in ("train", "val"):
        for number, name in enumerate(CLASSES):
            picture = photograph(32, 32, seed=number)
            (tmp_path / split / name).mkdir(parents=True)
            tf.io.write_file(str(tmp_path / split / name / "0.png"), tf.io.encode_png(picture))
            pixels[number] = picture
    whole = data.source("folder", data_dir=tmp_path, image_size=32, resize_ratio=1)
    images, labels = whole.held_out_sample(3)
    for image, label in zip(images, labels, strict=True):
        np.testing.assert_array_equal(image, pixels[label])
    assert whole.preprocessing.resize_ratio == 1
    cropped, _ = data.source("folder", data_dir=tmp_path, image_size=32).held_out_sample(3)
    assert not np.array_equal(cropped, images)


@pytest.mark.thorough
def test_training_can_take_whole_pictures_and_mirror_none(tmp_path):
    left = np.zeros((24, 32, 3), np.uint8)
    left[:, :16] = 255  # mirrored, it would be bright on the right
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
            tf.io.write_file(str(tmp_path / split / name / "0.png"), tf.io.encode_png(left))
    options = {"data_dir": tmp_path, "image_size": 16}
    kept = data.source("folder", **options, smallest_area=1, mirrored=False)
    usual = data.source("folder", **options, smallest_area=1)

    def bright_on_the_left(source):
        batches = source.training_batches(batch_size=2, seed=0).take(16)
        images = np.concatenate([images for images, _ in batches.as_numpy_iterator()])
        return float(np.mean(images[:, :, 0, 0] > images[:, :, -1, 0]))

    assert bright_on_the_left(kept) == 1.0
    assert 0.2 < bright_on_the_left(usual) < 0.8


def test_small_pictures_are_remarked_upon(tmp_path):
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (2, 2 + number)).save(tmp_path / part / "cat" / f"{number}.png")
    assert median_side(read_tree(tmp_path)[0].paths) == 2
    (note,) = load_folder_tree(tmp_path, image_size=32).notes
    assert "a shorter side of at most 2 pixels, and are enlarged to 32" in note
    assert load_folder_tree(tmp_path, image_size=4).notes == ()


def test_pictures_that_cannot_be_read_have_no_size(tmp_path):
    (tmp_path / "1.png").touch()
    os.mkfifo(tmp_path / "2.png")
    assert median_side([str(tmp_path / "1.png"), str(tmp_path / "2.png")]) is None
