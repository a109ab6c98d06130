import numpy as np
import pytest

from sat_tf.export.certificate import inputs
from sat_tf.export.certificate.outputs import label_problems
from sat_tf.export.operations.graph import batches
from sat_tf.export.operations.graph_file import read_graph


def test_random_images_are_the_same_every_time():
    images = inputs.random_images((4, 4, 3), 3, 0)
    assert (images.shape, images.dtype) == ((3, 4, 4, 3), np.uint8)
    # RandomState promises its stream, so that certificates hold for years.
    assert images.reshape(-1)[:4].tolist() == [172, 47, 117, 192]


def test_more_random_images_begin_with_the_fewer():
    fewer, more = (inputs.random_images((5,), count, 3) for count in (2, 4))
    assert np.array_equal(more[:2], fewer)


def test_an_input_may_be_one_number():
    assert (
        inputs.random_images((), 2, 0).tolist() == inputs.random_images((1,), 2, 0)[:, 0].tolist()
    )


def test_a_hash_is_of_pixels_and_not_of_their_layout():
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    turned = np.asfortranarray(images)
    assert inputs.images_hash(turned) == inputs.images_hash(images)
    assert inputs.images_hash(images[::-1]) != inputs.images_hash(images)


def test_batches_are_the_images_in_order(small_file):
    graph = read_graph(small_file.read_bytes(), "file")
    images = inputs.random_images((8, 9, 3), 600, 0)
    found = batches(images, graph)
    assert len(found) > 1
    assert np.array_equal(np.concatenate(found), images)


@pytest.mark.parametrize("labels", [np.array([], int), np.array([3, 0])])
def test_labels_within_the_classes_are_no_problem(labels):
    assert label_problems(labels, labels.shape, 4) == []
