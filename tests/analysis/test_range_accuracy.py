import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.analysis.range_accuracy import found_range, range_accuracies
from sat_tf.quantizers.input_range import NAMED, PIXELS, range_of
from tests.training.small import (
    model_of_one_range,
    model_of_small_range,
    small_float_model,
    small_images,
)

IMAGES = small_images(train=1, test=128)
PIXEL_VALUES, LABELS = IMAGES.test_images, IMAGES.test_labels
UNIT = range_of((0, 1))


def _measured(model, given, pixels=PIXEL_VALUES, labels=LABELS):
    return range_accuracies(model, pixels, labels, given)


def test_the_range_that_a_model_was_trained_with_is_found():
    found = _measured(model_of_small_range(), PIXELS)
    assert found.fitting == UNIT
    assert found.setting == "[0, 1]"
    assert list(found.top1) == [PIXELS, UNIT, NAMED["tf"], NAMED["torch"], NAMED["caffe"]]
    assert (found.top1[PIXELS] < 0.4, found.top1[UNIT]) == (True, 1.0)


@pytest.mark.parametrize("trained", [PIXELS, UNIT, NAMED["tf"], NAMED["caffe"]], ids=str)
def test_the_one_range_in_which_a_model_is_right_is_found(trained):
    found = found_range("model", model_of_one_range(trained), PIXEL_VALUES, LABELS)
    assert (found.given, found.top1[trained]) == (trained, 1.0)
    assert sorted(found.top1.values())[-2] < 0.6


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (model_of_small_range(), UNIT),
        (model_of_small_range(inside=True), PIXELS),
        (small_float_model(), PIXELS),  # has learnt nothing
    ],
    ids=["its own", "a Rescaling inside", "random weights"],
)
def test_no_range_is_better_than_that_of_the_model(model, given):
    assert _measured(model, given).fitting is None


def test_of_one_frequent_class_and_of_few_pictures_nothing_is_said():
    labels = np.where(np.arange(len(LABELS)) < 100, 1, LABELS)
    image = keras.Input((8, 8, 3))
    model = keras.Model(image, keras.layers.Dense(3)(keras.layers.GlobalMaxPooling2D()(image)))
    # Class 1 wherever no pixel is above 3, else class 0.
    kernel = np.zeros((3, 3))
    kernel[0, 0] = 1.0
    model.set_weights([kernel, np.array([0.0, 3.0, 0.0])])
    found = _measured(model, PIXELS, labels=labels)
    assert found.top1[UNIT] > 0.7 > 0.2 > found.top1[PIXELS]
    assert found.fitting is None
    assert _measured(model_of_small_range(), PIXELS, PIXEL_VALUES[:4], LABELS[:4]).fitting is None


def test_what_is_no_classifier_or_has_its_range_inside_or_no_labels_is_not_measured():
    image = keras.Input((8, 8, 3))
    mask = keras.Model(image, keras.layers.Conv2D(2, 1)(image))
    quantized = sat_tf.quantize_model(small_float_model())
    assert _measured(mask, PIXELS) is None
    assert _measured(quantized, PIXELS) is None
    assert _measured(small_float_model(), PIXELS, labels=None) is None
    assert _measured(small_float_model(), PIXELS, labels=np.full(128, -1)) is None
