import numpy as np
import pytest
from PIL import Image

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models


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
    (data / "val" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8), "white").save(data / "val" / "cat" / "white.png")
    assert _same(sat_tf.calibrate(_quantized(), data), sat_tf.calibrate(_quantized(), expected))
