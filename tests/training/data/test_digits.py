import numpy as np
import pytest
import sklearn.datasets
from PIL import Image

from sat_tf.training.data.digits import load_digits


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.fixture(scope="module")
def scans():
    return sklearn.datasets.load_digits()


def _rows(images):
    return {image.tobytes() for image in images}


def test_digits_are_colour_images_of_ten_classes(digits):
    assert digits.name == "digits"
    assert digits.num_classes == 10
    assert digits.image_size == 32
    assert digits.train_images.shape == (1438, 32, 32, 3)
    assert digits.test_images.shape == (359, 32, 32, 3)


def test_digits_held_out_images_never_appear_in_training(digits):
    assert not _rows(digits.train_images) & _rows(digits.test_images)
    # No two scans are equal, so all of them are in one part or the other.
    assert len(_rows(digits.train_images) | _rows(digits.test_images)) == 1797


@pytest.mark.parametrize("test_fraction", [0.1, 0.2, 0.5])
def test_every_class_is_held_out_by_the_same_share(test_fraction, scans):
    digits = load_digits(8, test_fraction=test_fraction)
    held_out = np.bincount(digits.test_labels)
    # A share of a whole number of images is off by at most half an image.
    np.testing.assert_allclose(held_out, test_fraction * np.bincount(scans.target), atol=0.5)


@pytest.mark.parametrize("test_fraction", [1e-9, 1 - 1e-9])
def test_no_share_empties_a_class_in_either_part(test_fraction):
    digits = load_digits(8, test_fraction=test_fraction)
    smaller = min(
        np.bincount(digits.train_labels).tolist(), np.bincount(digits.test_labels).tolist()
    )
    assert smaller == [1] * 10


def test_the_seed_alone_chooses_the_held_out_images(digits):
    again, other = load_digits(seed=0), load_digits(seed=1)
    np.testing.assert_array_equal(again.test_images, digits.test_images)
    np.testing.assert_array_equal(again.train_labels, digits.train_labels)
    assert _rows(other.test_images) != _rows(digits.test_images)


def test_the_split_is_the_same_at_every_image_size(digits):
    small = load_digits(8)
    np.testing.assert_array_equal(small.train_labels, digits.train_labels)
    np.testing.assert_array_equal(small.test_labels, digits.test_labels)


def test_images_keep_their_labels(scans):
    digits = load_digits(8)
    label_of = {
        np.rint(scan * 255 / 16).astype(np.uint8).tobytes(): label
        for scan, label in zip(scans.images, scans.target, strict=True)
    }
    for images, labels in (
        (digits.train_images, digits.train_labels),
        (digits.test_images, digits.test_labels),
    ):
        for image, label in zip(images, labels, strict=True):
            assert label_of[image[:, :, 0].tobytes()] == label


def test_the_three_channels_are_equal(digits):
    assert (digits.train_images == digits.train_images[..., :1]).all()


def test_the_darkest_and_brightest_scanned_values_are_0_and_255():
    images = load_digits(8).train_images
    assert images.min() == 0
    assert images.max() == 255


@pytest.mark.thorough
@pytest.mark.parametrize("image_size", [16, 24, 32, 64])
def test_enlarging_is_the_bilinear_one_of_pillow(image_size, scans):
    digits = load_digits(image_size)
    in_order = np.sort(_flat(digits.train_images, digits.test_images), axis=0)
    by_pillow = np.sort(
        np.stack(
            [
                np.asarray(
                    Image.fromarray((scan * 255 / 16).astype(np.float32)).resize(
                        (image_size, image_size), Image.Resampling.BILINEAR
                    )
                ).ravel()
                for scan in scans.images
            ]
        ),
        axis=0,
    )
    # Half a level by rounding to integers, and a little for Pillow's 32-bit sums.
    assert abs(in_order - by_pillow).max() <= 0.5 + 1e-3


def _flat(*parts):
    return np.concatenate(parts)[..., 0].reshape(1797, -1).astype(np.float64)
