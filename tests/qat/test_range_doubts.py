"""Calibration speaks of models that seem to be trained on another range than they are fed."""

import warnings

import numpy as np
import pytest
import tf_keras

import sat_tf
from sat_tf.exact.tflite.input_range import PIXELS, InputRange, range_of
from sat_tf.graph.network import Network
from sat_tf.qat.input_range_checks import _leads, certainty_doubt
from sat_tf.qat.inputs import AnotherBorderWarning, borders
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.data.digits import load_digits

_UNIT = (0.0, 1.0)
_IMAGES = 64


@pytest.fixture(scope="module", params=["tf_keras", "keras"])
def keras(request):
    return pytest.importorskip(request.param)


def _pixels():
    return load_digits(8).train_images[:512].astype(np.float32)


def _trained(keras, divisor, entrance=(), end="softmax"):
    """A network without normalization that was trained on pixels divided by something."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    x = image = keras.Input((8, 8, 3), name="image")
    for layer in (*entrance, layers.Conv2D(16, 3, activation="relu"), layers.Flatten()):
        x = layer(x)
    if end == "apart":
        x = layers.Softmax()(layers.Dense(10)(x))
    else:
        x = layers.Dense(1 if end == "sigmoid" else 10, activation=end or None)(x)
    model = keras.Model(image, x)
    labels = load_digits(8).train_labels[:512]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not end)
    if end == "sigmoid":
        labels, loss = (labels > 4).astype(np.float32), "binary_crossentropy"
    model.compile(keras.optimizers.Adam(5e-3), loss)
    model.fit(_pixels() / divisor, labels, epochs=12, verbose=0)
    return model


@pytest.fixture(scope="module")
def on_unit(keras):
    return _trained(keras, 255.0)


def _said(model, divisor=1.0, **fields):
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy(**fields))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sat_tf.calibrate(quantized, _pixels()[:_IMAGES] / divisor, progress=False)
    return [str(one.message) for one in found if "image: " in str(one.message)]


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [{}, {"input_range": (0, 255)}])
def test_a_classifier_of_values_to_1_that_is_fed_pixels_is_warned_of(on_unit, fields):
    (said,) = _said(on_unit, **fields)
    assert "fed input_range=(0, 255), the model is as certain of a class as float32" in said
    assert "fed input_range=(0, 1) it is not" in said


@pytest.mark.thorough
def test_models_that_are_fed_what_they_were_trained_on_are_not_warned_of(keras, on_unit):
    assert _said(on_unit, 255.0, input_range=_UNIT) == []
    assert _said(_trained(keras, 1.0)) == []


@pytest.mark.thorough
def test_a_model_that_converts_pixels_is_to_be_fed_pixels_and_not_converted_ones(keras):
    rescaling = _trained(keras, 1.0, [keras.layers.Rescaling(1 / 255, name="scaled")])
    assert _said(rescaling) == []
    (said,) = _said(rescaling, 255.0, input_range=_UNIT)
    assert "own layer scaled makes values that lie 0.00392 apart of input_range=(0, 1)" in said
    assert "input_range=(0, 255) fits that layer" in said


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["apart", "sigmoid", ""])
def test_probabilities_and_logits_are_read_wherever_they_are_made(keras, end):
    model = _trained(keras, 255.0, end=end)
    (said,) = _said(model)
    assert "fed input_range=(0, 1) it is not" in said
    if not end:  # logits are taken for such where the policy says no range
        assert "BitPolicy(input_range=(0, 255)) says so" in said
        assert _said(model, input_range=(0, 255)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("divisor", [1.0, 255.0])
def test_normalization_is_known_by_what_it_makes_of_a_range(keras, divisor):
    layer = keras.layers.Normalization(name="adapted")
    layer.adapt(_pixels() / divisor)
    model = _trained(keras, divisor, [layer])
    own, other = ({"input_range": _UNIT}, {})[:: -1 if divisor == 1.0 else 1]
    assert _said(model, divisor, **own) == []
    said = _said(model, 1.0 if divisor > 1.0 else 255.0, **other)
    assert any("own layer" in one for one in said), said


def test_the_lead_of_a_class_is_a_mean_over_the_rows_of_an_image():
    rows = np.array([[[1.0, 5.0, 2.0], [0.0, 0.0, 7.0]], [[1.0, 1.0, 1.0], [4.0, 2.0, 0.0]]])
    assert _leads(rows).tolist() == [5.0, 1.0]


def test_a_model_that_is_certain_in_every_range_is_no_doubt():
    image = tf_keras.Input((2, 2, 3), name="image")
    dense = tf_keras.layers.Dense(3)
    network = Network(tf_keras.Model(image, dense(tf_keras.layers.Flatten()(image))))
    images = np.full((4, 2, 2, 3), 255.0)
    kernel, bias = np.zeros((12, 3), np.float32), np.float32([0, 0, 100])
    kernel[0, 2] = 1.0

    def doubt(weights):
        dense.set_weights(weights)
        return certainty_doubt(network, images, PIXELS, is_stated=False)

    assert doubt([0 * kernel, bias]) is None
    assert "input_range=(0, 1) it is not" in doubt([10 * kernel, 0 * bias])
    assert doubt([0.2 * kernel, 0 * bias]) is None  # 51 apart
    unit = InputRange((0.0,), (1.0,))
    assert certainty_doubt(network, images / 255, unit, is_stated=False) is None


L = tf_keras.layers
TILES = np.repeat(np.random.default_rng(0).integers(0, 256, (64, 4, 4, 3), np.uint8), 3, axis=1)
TILES = np.repeat(TILES, 3, axis=2)


def _model(first):
    tf_keras.utils.set_random_seed(1)
    image = tf_keras.Input((12, 12, 3), name="image")
    hidden = L.Conv2D(4, 3, name="inner")(L.ReLU()(first(image)))
    return tf_keras.Model(image, L.Dense(5, name="head")(L.Flatten()(hidden)))


FIRST = {
    "same": lambda: L.Conv2D(8, 3, 2, padding="same", name="first"),
    "depthwise": lambda: L.DepthwiseConv2D(5, padding="same", activation="relu", name="first"),
    "dilated": lambda: L.Conv2D(8, 3, dilation_rate=2, padding="same", name="first"),
    "padding": lambda: tf_keras.Sequential([L.ZeroPadding2D(((1, 0), (2, 1))), L.Conv2D(8, 3)]),
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
    images = policy.range_of("image").fed(TILES)
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


def test_a_border_is_told_of_what_reads_the_image_and_of_the_layers_that_pad():
    image = tf_keras.Input((12, 12, 3), name="image")
    padded = L.Conv2D(8, 3, padding="same", name="pads")(image)
    hidden = L.Concatenate()([padded, L.Conv2D(8, 1, name="plain")(image)])
    outputs = [L.Dense(5)(L.Flatten()(hidden)), L.Cropping2D(2)(image)]
    network, fed = Network(tf_keras.Model(image, outputs)), {"image": range_of((1, 2))}
    (border,) = borders(network, fed)
    assert border.layers == ("pads",)
    assert 0.01 < border.error < 1.0  # the cropped image is as it was


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
    image = tf_keras.Input((12, 12, 3), name="image")
    first = L.Conv2D(8, 3, padding="same")(L.Rescaling(1 / 255, 1.0)(image))
    model = tf_keras.Model(image, L.Dense(5)(L.Flatten()(L.ReLU()(first))))
    quantized = sat_tf.quantize_model(model, 8)
    images = TILES.astype(np.float32)
    sat_tf.calibrate(quantized, images, progress=False)
    expected, found = (np.asarray(one(images)) for one in (model, quantized))
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.05 * np.std(expected)
