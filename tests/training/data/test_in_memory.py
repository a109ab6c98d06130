"""Sets that are held in memory, and the cache of those that are drawn."""

import functools
import pathlib
import subprocess
import sys
import unittest.mock
import warnings

import numpy as np
import pytest
import sklearn.datasets
import tensorflow as tf
from PIL import Image

from sat_tf.training import data
from sat_tf.training.data.batches import ArraySource, shifted
from sat_tf.training.data.digits import load_digits
from sat_tf.training.data.source import ImageSet, Shard, cache_folder, load_or_make
from tests.training.data import contract
from tests.training.data.contract import pieces

# -- arrays as a source ----------------------------------------------------------------------------


PIXELS = np.random.RandomState(0).randint(0, 256, (115, 8, 8, 3)).astype(np.uint8)
LABELS = np.arange(70, dtype=np.int32)
PARTS = {"train_images": PIXELS[:70], "test_images": PIXELS[70:]}
# A class may lack images.
IMAGES = ImageSet(
    name="noise", num_classes=100, train_labels=LABELS, test_labels=LABELS[:45], **PARTS
)


PLAIN = ArraySource(IMAGES)
SHIFTED = ArraySource(IMAGES, shift_pixels=2)


labels_of = functools.partial(contract.labels_of, batch_size=16, seed=5)


@pytest.mark.essential
def test_the_same_seed_gives_the_same_batches():
    first, second = (SHIFTED.training_batches(batch_size=16, seed=5) for _ in range(2))
    np.testing.assert_equal(pieces(first, 10), pieces(second, 10))
    # A dataset that is read again starts again.
    np.testing.assert_equal(pieces(first, 5), pieces(second, 5))


def test_every_epoch_and_every_seed_has_its_own_order():
    labels = labels_of(PLAIN, 8)
    assert not np.array_equal(labels[:64], labels[64:])
    assert not np.array_equal(labels[:64], labels_of(PLAIN, 4, seed=6))


@pytest.mark.essential
def test_an_epoch_sees_no_image_twice_with_its_label_and_drops_others_each_time():
    batches = pieces(PLAIN.training_batches(batch_size=16, seed=5), 12)
    for images, labels in batches:
        np.testing.assert_array_equal(images, IMAGES.train_images[labels])
    epochs = np.concatenate([labels for _, labels in batches]).reshape(3, 64)
    assert [len(np.unique(labels)) for labels in epochs] == [64] * 3
    assert len({tuple(sorted(labels)) for labels in epochs}) == 3


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [pytest.param(13, marks=pytest.mark.slow), 16])
def test_a_run_resumes_exactly_at_any_epoch(batch_size):
    contract.assert_resumes_exactly(SHIFTED, batch_size=batch_size, epochs=[1, 2])


@pytest.mark.parametrize(
    "batch_size", [4, 13, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 15, 16))]
)
def test_workers_and_replicas_together_get_the_batches_of_one_process(batch_size):
    contract.assert_workers_share_batches(SHIFTED, batch_size=batch_size, steps=7)


@pytest.mark.parametrize("batch_size", [7, 9, 16, 64])
def test_held_out_images_come_in_order_and_the_last_batch_is_filled_up(batch_size):
    images, labels = contract.assert_held_out_is_padded(SHIFTED, batch_size=batch_size)
    np.testing.assert_array_equal(images, IMAGES.test_images)
    np.testing.assert_array_equal(labels, IMAGES.test_labels)


def test_shapes_are_static_but_for_the_size_of_pieces_of_different_sizes():
    contract.assert_shapes_are_static(SHIFTED, batch_size=16)
    two, second_of_two = Shard(replicas=2), Shard(worker=1, workers=2, replicas=2)
    for shard, batch_size, piece in ((two, 16, 8), (second_of_two, 10, 2), (two, 15, None)):
        dataset = SHIFTED.training_batches(batch_size=batch_size, seed=0, shard=shard)
        assert dataset.element_spec[0].shape.as_list() == [piece, 8, 8, 3]


def test_a_shift_depends_on_seed_epoch_and_image_alone():
    by_size = []
    for batch_size in (10, 35):
        batches = pieces(SHIFTED.training_batches(batch_size=batch_size, seed=5), 70 // batch_size)
        images, labels = (np.concatenate(tensors) for tensors in zip(*batches, strict=True))
        by_size.append(images[np.argsort(labels)])
    np.testing.assert_array_equal(*by_size)
    assert not np.array_equal(by_size[0], IMAGES.train_images)


def test_samples_are_without_shifts_drawn_by_a_seed_or_spread_evenly_over_held_out_images():
    contract.assert_sample_is_drawn_by_its_seed(SHIFTED)
    sample = SHIFTED.training_sample(20, seed=1)
    known = {image.tobytes() for image in IMAGES.train_images}
    assert len({image.tobytes() for image in sample} & known) == 20
    images, labels = SHIFTED.held_out_sample(3)
    assert labels.tolist() == [0, 22, 44]
    np.testing.assert_array_equal(images, IMAGES.test_images[labels])
    assert len(SHIFTED.held_out_sample(1000)[1]) == 45


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_shift_moves_a_whole_image_and_lets_black_in(most):
    image = np.arange(1, 49, dtype=np.uint8).reshape(1, 4, 4, 3)
    corners = np.stack(np.meshgrid(*[range(2 * most + 1)] * 2, indexing="ij"), -1).reshape(-1, 2)
    images = tf.constant(np.repeat(image, len(corners), axis=0))
    moved = shifted(images, most, tf.constant(corners, tf.int32)).numpy()
    padded = np.pad(image[0], [(most, most), (most, most), (0, 0)])
    for (row, column), one in zip(corners, moved, strict=True):
        np.testing.assert_array_equal(one, padded[row : row + 4, column : column + 4])


def test_every_shift_is_equally_likely():
    # 700 draws of 25 shifts: each is expected 28 times, and 4 standard deviations are 21.
    dots, labels = np.zeros((700, 5, 5, 3), np.uint8), np.zeros(700, np.int32)
    dots[:, 2, 2] = 255
    parts = {"train_images": dots, "train_labels": labels}
    parts |= {"test_images": dots[:1], "test_labels": labels[:1]}
    source = ArraySource(ImageSet(name="dot", num_classes=1, **parts), shift_pixels=2)
    ((pixels, _),) = pieces(source.training_batches(batch_size=700, seed=1), 1)
    counts = (pixels[..., 0] == 255).sum(axis=0)
    assert counts.sum() == 700
    assert counts.min() > 28 - 21
    assert counts.max() < 28 + 21


# -- digits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scans():
    return sklearn.datasets.load_digits()


def _rows(images):
    return {image.tobytes() for image in images}


@pytest.mark.parametrize("test_fraction", [0.1, 0.2, 0.5, 1e-9, 1 - 1e-9])
def test_every_class_is_held_out_by_the_same_share_which_empties_neither_part(test_fraction, scans):
    digits = load_digits(8, test_fraction=test_fraction)
    counts = np.bincount(scans.target)
    shares = np.clip(test_fraction * counts, 1, counts - 1)
    # A share of a whole number of images is off by at most half an image.
    np.testing.assert_allclose(np.bincount(digits.test_labels), shares, atol=0.5)
    np.testing.assert_allclose(np.bincount(digits.train_labels), counts - shares, atol=0.5)


def test_the_seed_alone_chooses_the_held_out_images_which_never_appear_in_training():
    digits, again, other = load_digits(), load_digits(seed=0), load_digits(seed=1)
    assert not _rows(digits.train_images) & _rows(digits.test_images)
    # No two scans are equal, so all of them are in one part or the other.
    assert len(_rows(digits.train_images) | _rows(digits.test_images)) == 1797
    np.testing.assert_array_equal(again.test_images, digits.test_images)
    assert _rows(other.test_images) != _rows(digits.test_images)
    for same in (again, load_digits(8)):
        np.testing.assert_array_equal(same.train_labels, digits.train_labels)
        np.testing.assert_array_equal(same.test_labels, digits.test_labels)


def test_images_keep_their_labels(scans):
    digits = load_digits(8)
    grey = np.rint(scans.images * 255 / 16).astype(np.uint8)
    label_of = dict(zip(map(bytes, grey), scans.target, strict=True))
    for images, labels in (
        (digits.train_images, digits.train_labels),
        (digits.test_images, digits.test_labels),
    ):
        assert [label_of[image[:, :, 0].tobytes()] for image in images] == labels.tolist()


@pytest.mark.thorough
@pytest.mark.parametrize("image_size", [16, 24, 32, 64])
def test_enlarging_is_the_bilinear_one_of_pillow(image_size, scans):
    digits, size = load_digits(image_size), (image_size, image_size)
    found = np.concatenate([digits.train_images, digits.test_images])[..., 0].astype(np.float64)
    pictures = [Image.fromarray((scan * 255 / 16).astype(np.float32)) for scan in scans.images]
    expected = np.stack([picture.resize(size, Image.Resampling.BILINEAR) for picture in pictures])
    # Half a level by rounding to integers, and a little for Pillow's 32-bit sums.
    assert abs(np.sort(found, axis=0) - np.sort(expected, axis=0)).max() <= 0.5 + 1e-3


ARRAYS = {"codes": np.arange(10_000, dtype=np.int32), "picture": np.full((50, 50), 7, np.uint8)}


@pytest.fixture
def make():
    return unittest.mock.Mock(side_effect=lambda: dict(ARRAYS))


def _load(path, make):
    arrays = load_or_make(path, make, names=tuple(ARRAYS))
    np.testing.assert_equal(arrays, ARRAYS)
    assert [arrays[name].dtype for name in ARRAYS] == [array.dtype for array in ARRAYS.values()]


@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, -1])
def test_arrays_are_made_once_and_again_where_their_file_is_truncated(tmp_path, make, kept):
    path = tmp_path / "new" / "folder" / "arrays.npz"
    for _ in range(2):
        _load(path, make)
        assert make.call_count == 1
    assert list(path.parent.iterdir()) == [path]
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.warns(UserWarning, match="received a damaged file"):
        _load(path, make)
    _load(path, make)
    assert make.call_count == 2


def test_no_flipped_byte_anywhere_gives_wrong_arrays(tmp_path, make):
    path = tmp_path / "arrays.npz"
    _load(path, make)
    whole = path.read_bytes()
    positions = np.random.RandomState(0).randint(0, len(whole), 100)
    for position in (*range(0, 60, 3), *positions, *range(len(whole) - 60, len(whole), 3)):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        # Some bytes mean nothing, the time of writing for one: reading them wrongly is no damage.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _load(path, make)


def test_a_file_of_something_else_or_in_a_folder_that_cannot_be_written_is_made_again(
    tmp_path, make
):
    path, file = tmp_path / "arrays.npz", tmp_path / "file"
    np.savez(path, other=np.zeros(3))
    with pytest.warns(UserWarning, match="KeyError"):
        _load(path, make)
    file.write_text("not a folder")
    for _ in range(2):
        with pytest.warns(UserWarning, match="pass a writable cache_dir or set SAT_TF_CACHE"):
            _load(file / "arrays.npz", make)
    assert make.call_count == 3
    assert file.read_text() == "not a folder"


def test_a_stopped_run_leaves_nothing_behind(tmp_path, make, monkeypatch):
    def stop(file, **arrays):
        file.write(b"half an archi")
        raise KeyboardInterrupt

    path = tmp_path / "arrays.npz"
    monkeypatch.setattr(np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        _load(path, make)
    assert list(tmp_path.iterdir()) == []


def test_the_argument_wins_over_the_environment_and_that_over_the_home(monkeypatch):
    monkeypatch.setenv("SAT_TF_CACHE", "~/elsewhere")
    assert cache_folder("/somewhere") == pathlib.Path("/somewhere")
    assert cache_folder() == pathlib.Path.home() / "elsewhere"
    for change in (
        lambda: monkeypatch.setenv("SAT_TF_CACHE", ""),
        lambda: monkeypatch.delenv("SAT_TF_CACHE"),
    ):
        change()
        assert cache_folder() == pathlib.Path.home() / ".cache" / "sat_tf"


def test_a_set_in_memory_is_a_source_with_shifts():
    source = data.source("digits", image_size=8, shift_pixels=1)
    assert (source.name, source.image_size, source.shift_pixels) == ("digits", 8, 1)
    images = load_digits(8).test_images
    np.testing.assert_array_equal(source.held_out_sample(10_000)[0], images)
    np.testing.assert_array_equal(data.load("digits", image_size=8).test_images, images)


def test_naming_the_data_sets_loads_no_library_but_numpy_and_pillow():
    package = pathlib.Path(data.__file__).parents[1]
    # An empty package of the same name in front, so that this is about the data sets alone.
    program = f"""
import sys, types
heavy = {{"tensorflow", "tf_keras", "sklearn", "matplotlib", "rich"}}
sys.modules["sat_tf"] = types.ModuleType("sat_tf")
sys.modules["sat_tf"].__path__ = [{str(package)!r}]
import sat_tf.training.data
print(*sorted(heavy & set(sys.modules)))
"""
    assert subprocess.check_output([sys.executable, "-c", program]).split() == []
