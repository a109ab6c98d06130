"""Borders of images in which no pixel stands for real 0: told with what they cost."""

import warnings

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.inputs import AnotherBorderWarning
from sat_tf.qat.policy import BitPolicy

L = keras.layers
PIXELS = np.repeat(np.random.default_rng(0).integers(0, 256, (64, 4, 4, 3), np.uint8), 3, axis=1)
PIXELS = np.repeat(PIXELS, 3, axis=2)


def _model(first):
    keras.utils.set_random_seed(1)
    image = keras.Input((12, 12, 3), name="image")
    hidden = L.Conv2D(4, 3, name="inner")(L.ReLU()(first(image)))
    return keras.Model(image, L.Dense(5, name="head")(L.Flatten()(hidden)))


FIRST = {
    "same": lambda: L.Conv2D(8, 3, 2, padding="same", name="first"),
    "depthwise": lambda: L.DepthwiseConv2D(5, padding="same", activation="relu", name="first"),
    "dilated": lambda: L.Conv2D(8, 3, dilation_rate=2, padding="same", name="first"),
    "padding": lambda: keras.Sequential([L.ZeroPadding2D(((1, 0), (2, 1))), L.Conv2D(8, 3)]),
}


@pytest.mark.parametrize("pixels", [(1, 2), (-5, -3), ((0, 1, -2), (1, 3, 5))], ids=str)
@pytest.mark.parametrize("first", FIRST)
def test_the_error_of_a_border_is_told_before_the_training(first, pixels):
    model = _model(FIRST[first]())
    policy = BitPolicy.mobile(8, input_range=pixels)
    with pytest.warns(AnotherBorderWarning, match="instead of 0.*standard deviations.*in front"):
        quantized = sat_tf.quantize_model(model, policy)
    (line,) = sat_tf.explain(model, policy).inputs
    told = float(line.split("outputs are off by ")[1].split(" standard")[0])
    images = policy.range_of("image").fed(PIXELS)
    sat_tf.calibrate(quantized, images, progress=False)
    expected, found = (np.asarray(one(images)) for one in (model, quantized))
    off = np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected)
    assert told == pytest.approx(off, rel=0.4)


@pytest.mark.parametrize(
    ("first", "pixels"),
    [("same", (0, 1)), ("same", (-1, 1)), ("same", (-0.4, 2.7)), ("valid", (1, 2))],
)
def test_a_border_that_is_0_or_that_nothing_pads_is_not_spoken_of(first, pixels):
    model = _model(L.Conv2D(8, 3, padding=first))
    policy = BitPolicy.mobile(8, input_range=pixels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnotherBorderWarning)
        sat_tf.quantize_model(model, policy)
    assert "instead of 0" not in sat_tf.explain(model, policy).inputs[0]


def test_zeros_that_are_other_pixels_in_each_channel_are_told_and_too_small_to_warn_of():
    model = _model(FIRST["same"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnotherBorderWarning)
        quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8, input_range="torch"))
    (line,) = sat_tf.explain(model, BitPolicy.mobile(8, input_range="torch")).inputs
    assert "first pads with (-0.166, -0.0399, 0.182) instead of 0" in line
    again = sat_tf.explain(quantized, BitPolicy.mobile(4, input_range="torch"))
    assert "instead of 0" not in again.inputs[0]


def test_preprocessing_in_front_pads_with_0():
    image = keras.Input((12, 12, 3), name="image")
    first = L.Conv2D(8, 3, padding="same")(L.Rescaling(1 / 255, 1.0)(image))
    model = keras.Model(image, L.Dense(5)(L.Flatten()(L.ReLU()(first))))
    quantized = sat_tf.quantize_model(model, 8)
    images = PIXELS.astype(np.float32)
    sat_tf.calibrate(quantized, images, progress=False)
    expected, found = (np.asarray(one(images)) for one in (model, quantized))
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * np.std(expected)
