import functools

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.training.data.batches import ArraySource, shifted
from sat_tf.training.data.source import ImageSet, Shard
from tests.training.data import contract
from tests.training.data.contract import pieces


def noise(train, test):
    generator = np.random.RandomState(0)
    draw = {
        f"{part}_images": generator.randint(0, 256, (count, 8, 8, 3)).astype(np.uint8)
        for part, count in (("train", train), ("test", test))
    }
    return ImageSet(
        name="noise",
        train_labels=np.arange(train, dtype=np.int32),
        test_labels=np.arange(test, dtype=np.int32),
        num_classes=max(train, test) + 30,  # a class may lack images
        **draw,
    )


IMAGES = noise(train=70, test=45)
PLAIN = ArraySource(IMAGES)
SHIFTED = ArraySource(IMAGES, shift_pixels=2)


labels_of = functools.partial(contract.labels_of, batch_size=16, seed=5)


def test_it_tells_what_it_holds():
    assert (PLAIN.name, PLAIN.image_size, PLAIN.num_classes) == ("noise", 8, 100)
    assert IMAGES.image_size == 8
    assert (PLAIN.num_train, PLAIN.num_test) == (70, 45)


def test_the_same_seed_gives_the_same_batches():
    first, second = (SHIFTED.training_batches(batch_size=16, seed=5) for _ in range(2))
    contract.assert_same(pieces(first, 10), pieces(second, 10))
    # A dataset that is read again starts again.
    contract.assert_same(pieces(first, 5), pieces(second, 5))


def test_every_epoch_and_every_seed_has_its_own_order():
    labels = labels_of(PLAIN, 8)
    assert not np.array_equal(labels[:64], labels[64:])
    assert not np.array_equal(labels[:64], labels_of(PLAIN, 4, seed=6))


def test_an_epoch_sees_no_image_twice_and_drops_others_each_time():
    epochs = labels_of(PLAIN, 12).reshape(3, 64)
    assert [len(np.unique(labels)) for labels in epochs] == [64] * 3
    assert len({tuple(sorted(labels)) for labels in epochs}) == 3


def test_images_stay_with_their_labels():
    for images, labels in pieces(PLAIN.training_batches(batch_size=16, seed=5), 5):
        np.testing.assert_array_equal(images, IMAGES.train_images[labels])


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [pytest.param(13, marks=pytest.mark.slow), 16])
def test_a_run_resumes_exactly_at_any_epoch(batch_size):
    contract.assert_resumes_exactly(SHIFTED, batch_size=batch_size, epochs=[1, 2])


@pytest.mark.parametrize(
    "batch_size", [4, 13, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 15, 16))]
)
def test_workers_and_replicas_together_get_the_batches_of_one_process(batch_size):
    contract.assert_workers_share_batches(SHIFTED, batch_size=batch_size, steps=7)
    contract.assert_workers_share_held_out(SHIFTED, batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [7, 9, 16, 64])
def test_held_out_images_come_in_order_and_the_last_batch_is_filled_up(batch_size):
    images, labels = contract.assert_held_out_is_padded(SHIFTED, batch_size=batch_size)
    np.testing.assert_array_equal(images, IMAGES.test_images)
    np.testing.assert_array_equal(labels, IMAGES.test_labels)


def test_shapes_are_static():
    contract.assert_shapes_are_static(SHIFTED, batch_size=16)
    shards = [
        Shard(replicas=2),
        Shard(worker=1, workers=2, replicas=2),  # pieces of 2 and 2
    ]
    for shard, batch_size, piece in zip(shards, (16, 10), (8, 2), strict=True):
        dataset = SHIFTED.training_batches(batch_size=batch_size, seed=0, shard=shard)
        assert dataset.element_spec[0].shape == (piece, 8, 8, 3)


def test_only_the_size_of_pieces_of_different_sizes_is_open():
    dataset = SHIFTED.training_batches(batch_size=15, seed=0, shard=Shard(replicas=2))
    assert dataset.element_spec[0].shape.as_list() == [None, 8, 8, 3]


def test_a_shift_depends_on_seed_epoch_and_image_alone():
    by_size = []
    for batch_size in (10, 35):
        batches = pieces(SHIFTED.training_batches(batch_size=batch_size, seed=5), 70 // batch_size)
        images, labels = (np.concatenate(tensors) for tensors in zip(*batches, strict=True))
        by_size.append(images[np.argsort(labels)])
    np.testing.assert_array_equal(*by_size)
    assert not np.array_equal(by_size[0], IMAGES.train_images)


def test_a_sample_of_training_images_is_drawn_by_its_seed_without_shifts():
    contract.assert_sample_is_drawn_by_its_seed(SHIFTED)
    sample = SHIFTED.training_sample(20, seed=1)
    known = {image.tobytes() for image in IMAGES.train_images}
    assert len({image.tobytes() for image in sample} & known) == 20


def test_a_sample_of_held_out_images_is_spread_evenly():
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
    images = ImageSet(
        name="dot",
        train_images=np.pad(
            np.full((700, 1, 1, 3), 255, np.uint8), [(0, 0), (2, 2), (2, 2), (0, 0)]
        ),
        train_labels=np.zeros(700, np.int32),
        test_images=np.zeros((1, 5, 5, 3), np.uint8),
        test_labels=np.zeros(1, np.int32),
        num_classes=1,
    )
    source = ArraySource(images, shift_pixels=2)
    ((pixels, _),) = pieces(source.training_batches(batch_size=700, seed=1), 1)
    counts = (pixels[..., 0] == 255).sum(axis=0)
    assert counts.sum() == 700
    assert counts.min() > 28 - 21
    assert counts.max() < 28 + 21
