import numpy as np

from sat_tf.training.data.source import ImageSet


def _arrays(**changes):
    arrays = {
        "name": "grey",
        "train_images": np.full((5, 4, 4, 3), 128, np.uint8),
        "train_labels": np.array([0, 1, 2, 0, 1], np.int32),
        "test_images": np.full((2, 4, 4, 3), 128, np.uint8),
        "test_labels": np.array([2, 0], np.int32),
        "num_classes": 3,
    }
    return arrays | changes


def test_a_set_knows_its_image_size():
    assert ImageSet(**_arrays()).image_size == 4


def test_a_class_may_lack_images():
    assert ImageSet(**_arrays(num_classes=100)).num_classes == 100
