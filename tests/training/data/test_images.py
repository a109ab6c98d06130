import dataclasses

import numpy as np
import pytest

from sat_tf.messages import problems_of
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


def test_a_set_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ImageSet(**_arrays()).num_classes = 4


def test_a_class_may_lack_images():
    assert ImageSet(**_arrays(num_classes=100)).num_classes == 100


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("name", "", "expected a word"),
        ("num_classes", 0, "expected a positive integer"),
        ("num_classes", 3.0, "expected a positive integer"),
        ("train_images", np.zeros((5, 4, 4, 3), np.float32), "expected a uint8 array"),
        ("train_images", [[0]], "received list; expected a uint8 array"),
        ("train_images", np.zeros((5, 4, 4, 1), np.uint8), "expected (images, size, size, 3)"),
        ("train_images", np.zeros((5, 4, 6, 3), np.uint8), "expected (images, size, size, 3)"),
        ("train_images", np.zeros((0, 4, 4, 3), np.uint8), "expected (images, size, size, 3)"),
        ("test_images", np.zeros((2, 8, 8, 3), np.uint8), "expected (4, 4, 3) as in train_images"),
        ("test_labels", np.array([2, 0]), "received int64; expected an int32 array"),
        ("test_labels", np.array([2], np.int32), "received shape (1,); expected (2,)"),
        ("test_labels", np.array([[2], [0]], np.int32), "received shape (2, 1); expected (2,)"),
        ("train_labels", np.array([0, 1, 3, 0, 1], np.int32), "labels 0 to 3; expected 0 to 2"),
        ("train_labels", np.array([0, 1, -1, 0, 1], np.int32), "labels -1 to 1; expected 0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(argument, value, expected):
    with pytest.raises(ValueError, match=f"{argument}: received ") as error:
        ImageSet(**_arrays(**{argument: value}))
    assert expected in str(error.value)


def test_one_error_lists_everything_that_is_wrong():
    with pytest.raises(ValueError, match="ImageSet: ") as error:
        ImageSet(
            name="",
            train_images=np.zeros((5, 4, 4), np.float32),
            train_labels=None,
            test_images=None,
            test_labels=np.zeros(2),
            num_classes=-1,
        )
    named = [line.split(":")[0] for line in problems_of(error.value)]
    assert named == [
        "name",
        "num_classes",
        "train_images",
        "train_images",
        "train_labels",
        "test_images",
        "test_labels",
    ]
