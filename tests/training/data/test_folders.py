"""Folders of classes: pictures, how they are cut and turned."""

import functools
import io
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from sat_tf.exact.tflite.preprocessing import AS_IN_IMAGENET, RESIZED_AND_CROPPED
from sat_tf.messages import ReadingError
from sat_tf.pictures import open_pictures
from sat_tf.training import data
from sat_tf.training.data import decoding
from sat_tf.training.data.decoding import is_turned_jpeg, whole_picture
from sat_tf.training.data.folders import load_folder_tree, median_side
from sat_tf.training.data.source import Shard
from tests.training.data import contract
from tests.training.data.contract import pieces
from tests.training.data.photographs import corrupt_files, encoded, odd_files, photograph
from tests.training.small import write_pictures

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
def test_a_run_resumes_exactly_and_workers_together_get_the_batches_of_one_process(source):
    contract.assert_resumes_exactly(source, batch_size=5, epochs=[1, 2])
    # Pieces of 3 and 2, and 2 and 2.
    contract.assert_workers_share_batches(source, batch_size=9, steps=4)


@pytest.mark.thorough
def test_an_epoch_sees_every_picture_once_in_another_order_and_other_crops_each_time(source):
    batches = pieces(source.training_batches(batch_size=7, seed=0), 6)
    epochs = np.concatenate([labels for _, labels in batches]).reshape(2, 21)
    assert [np.bincount(labels).tolist() for labels in epochs] == [[7, 7, 7]] * 2
    assert not np.array_equal(*epochs)
    assert not np.array_equal(epochs[0], labels_of(source, 3, seed=1))
    assert len({image.tobytes() for images, _ in batches for image in images}) == 42


@pytest.mark.thorough
def test_shapes_are_static_and_a_sample_of_training_images_is_drawn_by_its_seed(source):
    contract.assert_shapes_are_static(source, batch_size=7)
    contract.assert_sample_is_drawn_by_its_seed(source)


@pytest.mark.thorough
def test_held_out_images_come_in_order_and_the_last_batch_is_filled_up(source, tree):
    images, labels = contract.assert_held_out_is_padded(source, batch_size=4)
    assert labels.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    again, same = source.held_out_sample(100)
    np.testing.assert_array_equal(images, again)
    np.testing.assert_array_equal(labels, same)
    assert source.held_out_sample(3)[1].tolist() == [0, 1, 2]


@pytest.mark.thorough
def test_odd_pictures_are_trained_and_measured_with(own_tree):
    files = odd_files()
    for number, content in enumerate(files.values()):
        for part in ("train", "val"):
            (own_tree / part / "bee" / f"odd{number}.JPEG").write_bytes(content)
    source = data.source("folder", data_dir=own_tree, image_size=32)
    labels = labels_of(source, 1, batch_size=21 + len(files))
    assert np.bincount(labels).tolist() == [7, 7 + len(files), 7]
    assert np.bincount(source.held_out_sample(1000)[1]).tolist() == [5, 5 + len(files), 5]


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


@pytest.mark.parametrize("bytes_in_all", [None, 2**40])
def test_a_picture_that_has_gone_or_is_beyond_all_memory_is_named(own_tree, bytes_in_all):
    source = data.source("folder", data_dir=own_tree, image_size=32)
    path = own_tree / "val" / "ant" / "003.JPEG"
    path.unlink()
    if bytes_in_all is not None:
        path.touch()
        os.truncate(path, bytes_in_all)
    with pytest.raises(ReadingError, match=r"ant/003\.JPEG: received a file that cannot be opened"):
        source.held_out_sample(15)


def test_names_that_are_not_in_utf_8_are_read(own_tree):
    folder = os.fsencode(own_tree / "val" / "ant")
    os.rename(os.path.join(folder, b"000.JPEG"), os.path.join(folder, b"caf\xe9.JPEG"))
    source = data.source("folder", data_dir=own_tree, image_size=32)
    assert source.held_out_sample(15)[1].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    with open(os.path.join(folder, b"caf\xe9.JPEG"), "wb"):
        pass
    with pytest.raises(ReadingError, match=r"ant/caf\\udce9\.JPEG: received a picture"):
        source.held_out_sample(15)


@pytest.mark.thorough
def test_pieces_of_different_sizes_keep_their_places(own_tree):
    # A picture that takes long to decode would otherwise let the next piece pass.
    (own_tree / "val" / "ant" / "000.JPEG").write_bytes(encoded(photograph(2000, 2000), "PNG"))
    source = data.source("folder", data_dir=own_tree, image_size=32, deterministic=False)
    batches = source.held_out_batches(batch_size=5, shard=Shard(replicas=2))
    assert [len(labels) for _, labels in pieces(batches)] == [3, 2] * 3


def test_a_picture_of_the_size_of_the_input_can_be_kept_whole(tmp_path):
    pixels = np.stack([photograph(32, 32, seed=number) for number in range(3)])
    for split in ("train", "val"):
        write_pictures(tmp_path / split, pixels, range(3))
    whole = data.source("folder", data_dir=tmp_path, image_size=32, resize_ratio=1)
    images, labels = whole.held_out_sample(3)
    np.testing.assert_array_equal(images, pixels[labels])
    assert whole.preprocessing.resize_ratio == 1
    cropped, _ = data.source("folder", data_dir=tmp_path, image_size=32).held_out_sample(3)
    assert not np.array_equal(cropped, images)


@pytest.mark.thorough
def test_training_can_take_whole_pictures_and_mirror_none(tmp_path):
    pixels = np.zeros((2, 24, 32, 3), np.uint8)
    pixels[:, :, :16] = 255  # mirrored, they would be bright on the right
    for split in ("train", "val"):
        write_pictures(tmp_path / split, pixels, range(2))
    bright_on_the_left = []
    for options in ({"mirrored": False}, {}):
        options |= {"data_dir": tmp_path, "image_size": 16, "smallest_area": 1}
        source = data.source("folder", **options)
        batches = source.training_batches(batch_size=2, seed=0)
        images = np.concatenate([images for images, _ in pieces(batches, 16)])
        bright_on_the_left.append(np.mean(images[:, :, 0, 0] > images[:, :, -1, 0]))
    assert bright_on_the_left[0] == 1.0
    assert 0.2 < bright_on_the_left[1] < 0.8


def test_pictures_that_cannot_be_read_have_no_size(tmp_path):
    Image.new("RGB", (3, 2)).save(tmp_path / "0.png")
    (tmp_path / "1.png").touch()
    os.mkfifo(tmp_path / "2.png")
    assert median_side(open_pictures(tmp_path)) == 2
    (tmp_path / "0.png").unlink()
    assert median_side(open_pictures(tmp_path)) is None


# -- random crops ----------------------------------------------------------------------------------


def coordinates(height, width):
    """A picture whose red is the row and whose green is the column, in 255ths of the sides."""
    rows = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    columns = np.linspace(0, 255, width)[None].repeat(height, 0)
    return np.stack([rows, columns, rows], axis=-1).round().astype(np.uint8)


def windows(height, width, count=400):
    """Height, width (as shares) and mirroring of random crops, measured in the pixels."""
    pixels = tf.constant(coordinates(height, width))
    draw = tf.function(lambda seed: decoding.training_crop_of_pixels(pixels, seed, 32))
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
    one, again, other = (decoding.training_crop(jpeg, [1, seed], 32).numpy() for seed in (2, 2, 3))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("pixels", "subsampling", "size", "of", "below"),
    [
        # Colour at the edge of the crop is interpolated without the pixels beyond it.
        (photograph(120, 160), 2, 64, np.mean, 1),
        # The window is rounded to 8 of 640 pixels, which are 3 of 255 values, and JPEG loses some.
        (coordinates(640, 640), 0, 32, np.max, 7),
    ],
    ids=["decoded", "reduced"],
)
def test_decoding_only_the_crop_changes_little_and_moves_nothing(
    pixels, subsampling, size, of, below
):
    jpeg = tf.constant(encoded(pixels, subsampling=subsampling))
    pixels = tf.io.decode_jpeg(jpeg, channels=3)
    for number in range(20):
        seed = tf.constant([number, 0], tf.int64)
        found = decoding.training_crop(jpeg, seed, size).numpy().astype(int)
        assert (
            of(np.abs(found - decoding.training_crop_of_pixels(pixels, seed, size).numpy())) < below
        )


def test_large_crops_of_any_format_are_averaged():
    # Stripes of one pixel; without averaging most crops would show black and white.
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[:, ::2] = 255
    for number in range(10):
        seed = tf.constant([number, 0], tf.int64)
        crop = decoding.training_crop_of_pixels(tf.constant(pixels), seed, 16).numpy()
        # The rest of a crop that is no multiple of 8 shifts squares by a stripe at most.
        assert np.abs(crop.astype(int) - 128).max() <= 32


@pytest.mark.parametrize("name", ["empty", "text", "half", "no_tables", "half_png"])
def test_corrupt_files_are_refused(name):
    # All of the picture, so that nothing of it is passed over.
    whole = decoding.TrainingCrops(smallest_area=1.0)
    with pytest.raises(tf.errors.OpError):
        decoding.training_crop(tf.constant(CORRUPT[name]), [0, 0], 16, crops=whole)


def test_the_largest_picture_is_that_of_pillow():
    assert decoding._MOST_PIXELS == 2 * Image.MAX_IMAGE_PIXELS


# -- the orientation of a picture ------------------------------------------------------------------

PHOTOGRAPH = photograph(70, 96)


def with_orientation(number, kind="JPEG", endian=None):
    image = Image.fromarray(PHOTOGRAPH)
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
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_pictures_are_turned_as_pillow_turns_them(number, kind):
    content = with_orientation(number, kind)
    np.testing.assert_array_equal(whole_picture(content, turns=True), by_pillow(content))
    if kind != "TIFF":  # whose pixels Pillow turns when it reads them
        assert whole_picture(content, turns=False).shape == PHOTOGRAPH.shape


@pytest.mark.parametrize("endian", ["<", ">"])
def test_only_files_with_an_orientation_are_decoded_by_pillow(endian):
    for number in range(1, 9):
        assert is_turned_jpeg(with_orientation(number, "JPEG", endian)) == (number > 1)
    assert not is_turned_jpeg(encoded(PHOTOGRAPH))
    assert not any(map(is_turned_jpeg, CORRUPT.values()))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_training_crops_of_turned_pictures_are_those_of_the_upright_ones(kind):
    content = with_orientation(6, kind)
    is_turned = tf.constant(is_turned_jpeg(content))
    upright = tf.constant(by_pillow(content))
    for number in range(4):
        seed = tf.constant([number, 0], tf.int64)
        np.testing.assert_array_equal(
            decoding.training_crop(tf.constant(content), seed, 32, is_turned=is_turned),
            decoding.training_crop_of_pixels(upright, seed, 32),
        )


@pytest.mark.thorough
def test_a_folder_honours_the_orientation_and_training_and_files_see_the_same(tmp_path):
    for part in ("train", "val"):
        (tmp_path / part / "cat").mkdir(parents=True)
        for number, kind in itertools.product(range(1, 9), ("JPEG", "TIFF")):
            path = tmp_path / part / "cat" / f"{number}.{kind.lower()}"
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
