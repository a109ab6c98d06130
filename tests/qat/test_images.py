import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from PIL import Image

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat import images
from sat_tf.qat.images import (
    Batches,
    FileArray,
    elements_of,
    fed_batches,
    gather,
    images_at_once,
    new_rows,
)
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models

# Seventy images of the size of the test models, with which rows can be told apart.
ROWS = np.arange(70 * 8 * 8 * 3, dtype=np.float32).reshape(70, 8, 8, 3)


@pytest.fixture
def small_memory(monkeypatch):
    """Anything but the smallest arrays goes to files."""
    monkeypatch.setattr(images, "MOST_BYTES_IN_MEMORY", 1000)


def _network():
    return Network(float_models.build("dropout"))


def test_arrays_above_the_bound_are_in_a_file(monkeypatch):
    monkeypatch.setattr(images, "MOST_BYTES_IN_MEMORY", 40)
    small, large = new_rows((10,), np.float32), new_rows((11,), np.float32)
    assert isinstance(small, np.ndarray)
    assert isinstance(large, FileArray)
    large[:] = np.arange(11)
    np.testing.assert_array_equal(large[:], np.arange(11, dtype=np.float32))
    assert (large.ndim, large.size, large.shape, len(large)) == (1, 11, (11,), 11)


def test_rows_of_a_file_are_those_of_the_array():
    file = FileArray((0, 8, 8, 3), np.float32)
    file.append(ROWS[:20])
    file.append(ROWS[20:])
    for rows in (slice(0, 64), slice(64, 200), slice(5, 5), slice(None), np.array([3, 69, 3, 0])):
        np.testing.assert_array_equal(file[rows], ROWS[rows])
    assert file[np.array([], int)].shape == (0, 8, 8, 3)
    file[8:10] = -ROWS[:2]
    np.testing.assert_array_equal(file[7:11], [ROWS[7], -ROWS[0], -ROWS[1], ROWS[10]])


@pytest.mark.usefixtures("small_memory")
def test_gathered_batches_are_the_same_in_a_file():
    batches = [ROWS[:30], ROWS[30:31], ROWS[31:]]
    (found,) = gather(iter(batches), 512, _network())
    assert isinstance(found, FileArray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:], ROWS)
    (few,) = gather(iter(batches), 40, _network())
    np.testing.assert_array_equal(few[:], ROWS[:40])


@pytest.mark.usefixtures("small_memory")
def test_batches_of_several_types_have_the_type_of_all():
    pixels = np.full((40, 8, 8, 3), 7, np.uint8)
    (found,) = gather([pixels, ROWS, pixels], 512, _network())
    np.testing.assert_array_equal(found[:], np.concatenate([pixels, ROWS, pixels]))


@pytest.mark.usefixtures("small_memory")
def test_an_array_of_images_is_not_copied():
    (found,) = gather(ROWS, 64, _network())
    assert np.shares_memory(found, ROWS)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(20, [20]), (64, [64]), (70, [70]), (96, [64, 32]), (129, [64, 65]), (168, [64, 64, 40])],
)
def test_a_last_batch_of_less_than_half_is_part_of_the_one_before(count, sizes):
    numbers = np.arange(count)
    batches = Batches((numbers,))
    assert (len(batches), batches.num_images) == (len(sizes), count)
    assert [len(batch[0]) for batch in batches] == sizes
    np.testing.assert_array_equal(np.concatenate([b[0] for b in batches]), numbers)


def test_batches_are_smaller_where_tensors_are_large():
    found = []
    for rows in (64, 65):
        image = keras.Input((rows, rows, 1))
        wide = keras.layers.Conv2D(128, 1, use_bias=False)(image)
        network = Network(keras.Model(image, keras.layers.GlobalAveragePooling2D()(wide)))
        found.append(images_at_once(network))
    assert found == [64, 32]
    sizes = [len(batch) for (batch,) in Batches((np.arange(79),), size=32)]
    assert sizes == [32, 47]


def test_batches_of_chosen_images_are_in_their_order():
    chosen = np.arange(70)[::-1]
    done = []
    (batch,) = Batches((ROWS, ROWS[:, 0]), chosen, advance=done.append)
    np.testing.assert_array_equal(batch[0], ROWS[chosen])
    np.testing.assert_array_equal(batch[1], ROWS[chosen, 0])
    assert done == [70]


def test_pixels_are_fed_batch_by_batch():
    pixels = np.arange(70, dtype=np.uint8)
    parts = list(fed_batches(pixels, lambda some: some / 2.0))
    assert [len(part) for part in parts] == [64, 6]
    np.testing.assert_array_equal(np.concatenate(parts), pixels / 2.0)


@pytest.fixture
def pictures(tmp_path):
    """Eighty pictures of the model's size, in two folders of classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (80, 8, 8, 3), np.uint8)
    for index, image in enumerate(pixels):
        folder = tmp_path / "photos" / ("cat", "dog")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{index:02}.png")
    return tmp_path / "photos"


def _in_order(folder):
    paths = sorted(folder.rglob("*.png"), key=lambda path: (path.parent.name, path.name))
    return np.stack([np.asarray(Image.open(path)) for path in paths])


def _quantized(**fields):
    model = float_models.build("mobile_block")
    return sat_tf.quantize_model(model, BitPolicy.mobile(4, **fields))


def _same(one, other):
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return all(np.array_equal(mine, yours) for mine, yours in pairs)


def test_a_folder_calibrates_as_its_pictures_do(pictures):
    of_folder = sat_tf.calibrate(_quantized(), str(pictures))
    of_array = sat_tf.calibrate(_quantized(), _in_order(pictures).astype(np.float32))
    assert _same(of_folder, of_array)


@pytest.mark.thorough
def test_pictures_of_a_folder_take_the_range_of_the_input(pictures):
    of_folder = sat_tf.calibrate(_quantized(input_range=(-1.0, 1.0)), pictures)
    fed = (_in_order(pictures) / 127.5 - 1.0).astype(np.float32)
    of_array = sat_tf.calibrate(_quantized(input_range=(-1.0, 1.0)), fed)
    for mine, yours in zip(of_folder.get_weights(), of_array.get_weights(), strict=True):
        np.testing.assert_allclose(mine, yours, rtol=1e-4, atol=1e-5)  # x / 127.5 - 1 rounds


@pytest.mark.thorough
def test_pictures_to_train_on_are_taken_where_there_are_others(pictures, tmp_path):
    expected = _in_order(pictures).astype(np.float32)
    data = tmp_path / "data"
    data.mkdir()
    pictures.rename(data / "train")
    for name in ("cat", "dog"):  # other classes than those of train would be refused
        (data / "val" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), "white").save(data / "val" / name / "white.png")
    assert _same(sat_tf.calibrate(_quantized(), data), sat_tf.calibrate(_quantized(), expected))


def test_a_data_set_that_fails_while_it_is_read_says_why():
    values = tf.data.Dataset.from_tensor_slices([1.0, np.nan])
    dataset = values.map(lambda one: tf.debugging.check_numerics(one, "odd one"))
    with pytest.raises(ValueError, match=r"(?s)fails while it is read \(.*odd one.*mend it"):
        list(elements_of(dataset))
