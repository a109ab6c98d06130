import numpy as np
import pytest
import tensorflow as tf

from sat_tf.training.batches import held_out_batches, shifted, training_batches
from tests.training.small import small_images

IMAGES = small_images(train=70, test=300)


def epoch(dataset):
    return [(pixels.numpy(), labels.numpy()) for pixels, labels in dataset]


def make(**options):
    settings = {"batch_size": 16, "shift_pixels": 2, "seed": 5, **options}
    return training_batches(IMAGES, **settings)


def test_the_same_seed_gives_the_same_batches_epoch_after_epoch():
    first, second = make(), make()
    for _ in range(2):
        for one, other in zip(epoch(first), epoch(second), strict=True):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])


def test_every_epoch_and_every_seed_has_its_own_order():
    dataset = make(shift_pixels=0)
    labels = [
        np.concatenate([labels for _, labels in epoch(source)])
        for source in (dataset, dataset, make(shift_pixels=0, seed=6))
    ]
    assert not np.array_equal(labels[0], labels[1])
    assert not np.array_equal(labels[0], labels[2])


def test_batches_are_full_and_an_epoch_sees_no_image_twice():
    batches = epoch(make(shift_pixels=0))
    assert [pixels.shape for pixels, _ in batches] == [(16, 8, 8, 3)] * 4
    seen = np.concatenate([pixels for pixels, _ in batches]).reshape(64, -1)
    assert len(np.unique(seen, axis=0)) == 64


def test_images_stay_with_their_labels():
    known = {
        image.tobytes(): label
        for image, label in zip(IMAGES.train_images, IMAGES.train_labels, strict=True)
    }
    for pixels, labels in epoch(make(shift_pixels=0)):
        assert pixels.dtype == np.float32
        found = [known[image.tobytes()] for image in pixels.astype(np.uint8)]
        np.testing.assert_array_equal(found, labels)


def test_held_out_images_come_in_their_order_and_all_of_them():
    batches = epoch(held_out_batches(IMAGES))
    assert [len(labels) for _, labels in batches] == [256, 44]
    pixels = np.concatenate([pixels for pixels, _ in batches])
    np.testing.assert_array_equal(pixels, IMAGES.test_images.astype(np.float32))
    labels = np.concatenate([labels for _, labels in batches])
    np.testing.assert_array_equal(labels, IMAGES.test_labels)


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_shift_moves_a_whole_image_by_at_most_so_many_pixels_and_lets_black_in(most):
    image = np.arange(1, 49, dtype=np.uint8).reshape(1, 4, 4, 3)
    count = 400
    moved = shifted(tf.constant(np.repeat(image, count, axis=0)), most, tf.constant([1, 2]))
    padded = np.pad(image[0], [(most, most), (most, most), (0, 0)])
    possible = {
        padded[row : row + 4, column : column + 4].tobytes()
        for row in range(2 * most + 1)
        for column in range(2 * most + 1)
    }
    # Every shift is equally likely: 400 draws miss one of 49 with a probability of 1 %; the seed
    # is fixed.
    assert {one.tobytes() for one in moved.numpy()} == possible


def test_the_shifts_follow_from_their_seed():
    images = tf.constant(IMAGES.train_images)
    one, again = (shifted(images, 2, tf.constant([1, 2])) for _ in range(2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, shifted(images, 2, tf.constant([1, 3])))
