import dataclasses
import itertools
import re
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.tflite.input_range import NAMED, PIXELS, InputRange, range_of
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.observers import ImageQuantizer
from sat_tf.quantizers.seen_values import SeenValues, misfit, pixel_doubt
from tests.conftest import mirrored
from tests.qat.float_models import pretend_trained

L = keras.layers
USUAL = [(0, 255), (0, 1), (-1, 1), "torch", "caffe", (-0.5, 0.5), (-128, 127)]
PICTURES = np.random.default_rng(3).integers(0, 256, (32, 8, 8, 3)).astype(np.uint8)
SHAPE = PICTURES.shape[1:]


@pytest.mark.parametrize(("fed", "expected"), list(itertools.product(USUAL, USUAL)), ids=str)
def test_values_of_another_usual_range_are_a_misfit_with_the_range_that_fits(fed, expected):
    expected = range_of(expected)
    seen = SeenValues.of(range_of(fed).fed(PICTURES), expected)
    problem = misfit(seen, expected)
    if range_of(fed) == expected:
        assert problem is None
        assert pixel_doubt(seen, expected) is None
    elif fed == (0, 255):
        # Whoever obeys it does not make a file of another range than that of the training.
        assert (
            f"expected input_range={expected}: scale the images, as {expected.scaling}" in problem
        )
        assert problem.endswith(
            "Only if the model was trained on pixels, change the policy, to input_range=(0, 255)"
        )
    else:
        assert problem.endswith(
            f"expected input_range={expected}; what fits is input_range={range_of(fed)}"
        )


FITTING = {
    "dark": lambda x: np.floor(x * 0.1),
    "nearly black": lambda x: np.floor(x * 0.02),
    "black": lambda x: x * 0.0,
    "bright": lambda x: 128 + np.floor(x * 0.4),
    "resized": lambda x: x * 0.99 + 0.3,
    "dark and resized": lambda x: x * 0.1 + 0.3,
    "brighter than white": lambda x: x * 1.2,
    "more contrast": lambda x: (x - 127.5) * 1.5 + 127.5,
    "binary": lambda x: np.where(x > 127, 255.0, 0.0),
    "labels": lambda x: x % 2,
}


@pytest.mark.parametrize("value", [(0, 255), (0, 1), (-1, 1)])
@pytest.mark.parametrize("kind", FITTING)
def test_unusual_pictures_of_the_right_range_are_no_misfit(kind, value):
    expected = range_of(value)
    pixels = FITTING[kind](PICTURES.astype(np.float32))
    fed = np.asarray(expected.low + expected.scales * pixels, np.float32)
    assert misfit(SeenValues.of(fed, expected), expected) is None


LOW_CONTRAST = {
    "a little": lambda x: np.floor(x * 0.9) + 8.0,
    "some": lambda x: np.floor(x * 0.8) + 10.0,
    "low": lambda x: np.floor(x * 0.6) + 30.0,
    "one channel": lambda x: np.minimum(x, [255.0, 255.0, 167.0]),
}


@pytest.mark.parametrize("contrast", LOW_CONTRAST)
@pytest.mark.parametrize(
    ("fed", "expected"),
    [
        ("caffe", (0, 255)),
        ("torch", (0, 255)),
        ((0, 1), (-1, 1)),
        ((0, 1), "torch"),
        ((-1, 1), "torch"),
        ((-1, 1), (-0.5, 0.5)),
        ((-0.5, 0.5), (0, 1)),
        ((-0.5, 0.5), (-1, 1)),
    ],
    ids=str,
)
def test_pictures_of_low_contrast_are_told_by_the_pixels_that_they_are_on(fed, expected, contrast):
    fed, expected = range_of(fed), range_of(expected)
    values = fed.fed(LOW_CONTRAST[contrast](PICTURES.astype(np.float32)).astype(np.uint8))
    problem = misfit(SeenValues.of(values, expected), expected)
    assert problem.endswith(f"what fits is input_range={fed}")


def test_padding_with_zeros_half_precision_and_the_range_of_the_model_itself_are_no_misfit():
    caffe, unit, signed = map(range_of, ("caffe", (0, 1), (-1, 1)))
    fed = np.pad(caffe.fed(PICTURES), ((0, 0), (2, 2), (2, 2), (0, 0)))
    assert misfit(SeenValues.of(fed, caffe), caffe) is None
    half = SeenValues.of(unit.fed(PICTURES).astype(np.float16), unit)
    assert pixel_doubt(half, unit) is None
    # What a model of another range has seen fits its own.
    seen = SeenValues.of(unit.fed(PICTURES // 2), signed)
    assert misfit(seen, signed).endswith("input_range=(0, 1)")
    assert misfit(seen, unit) is pixel_doubt(seen, unit) is None


def test_real_values_are_told_of_input_type_and_channels_of_caffe_of_their_order():
    features = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    seen = SeenValues.of(features, PIXELS)
    assert "input_type='int8'" in misfit(seen, PIXELS)
    # Hardly outside of the pixels, and between them.
    for values in (features * 10.0 + 30.0, np.abs(features) * 60.0):
        seen = SeenValues.of(values, PIXELS)
        assert misfit(seen, PIXELS) is None
        assert "set BitPolicy(input_type='int8'), or 'float32'" in pixel_doubt(seen, PIXELS)
    fed = range_of("caffe").fed(PICTURES)[..., ::-1]
    problem = misfit(SeenValues.of(fed, range_of("caffe")), range_of("caffe"))
    assert problem.endswith(
        "input_range=((-123.68, -116.779, -103.939), (131.32, 138.221, 151.061))"
    )


def _quantized(**fields):
    image = keras.Input(SHAPE, name="image")
    tensor = L.BatchNormalization(name="bn")(L.Conv2D(4, 3, use_bias=False, name="conv")(image))
    tensor = L.GlobalAveragePooling2D(name="pool")(L.ReLU(name="relu")(tensor))
    model = pretend_trained(keras.Model(image, L.Dense(3, name="classifier")(tensor)))
    return sat_tf.quantize_model(model, BitPolicy.mobile(8, **fields))


def _fit(model, images, **options):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    model.optimizer.learning_rate = 0.0
    model.fit(images, np.zeros(len(images), np.int64), batch_size=8, verbose=0)


def _seen(model):
    layer = model.get_layer("quant_image_image")
    return layer.quantize_config.output.seen(layer.output_variables)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=str)
def test_the_image_layer_remembers_what_it_is_fed_in_training(options):
    model = _quantized(input_range="tf")
    assert _seen(model) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.predict(PICTURES, verbose=0)
        assert _seen(model) is None
        _fit(model, range_of("tf").fed(PICTURES), **options)
    seen = _seen(model)
    assert (float(seen.lowest), float(seen.highest)) == (-1.0, 1.0)
    assert seen.off_grid < 0.01


def test_arrays_of_the_user_are_not_written_to():
    # Memory that starts at a multiple of 64 bytes is not copied by TensorFlow.
    count, size = 16, 16 * 16 * 3
    memory = np.zeros(count * size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    images = memory[start : start + count * size].reshape(count, 16, 16, 3)
    images[...] = np.random.default_rng(0).integers(0, 256, images.shape)
    kept = images.copy()
    quantizer = ImageQuantizer(compares=True)
    specs = quantizer.variables((None, 16, 16, 3))
    variables = {name: tf.Variable(tf.zeros(spec.shape)) for name, spec in specs.items()}

    @tf.function
    def step():
        batch = tf.numpy_function(lambda: images, [], tf.float32)
        quantizer(tf.ensure_shape(batch, (None, 16, 16, 3)), True, variables)

    # One in twenty steps would write, as the threads come.
    for _ in range(200):
        step()
    np.testing.assert_array_equal(images, kept)


@pytest.mark.thorough
def test_what_replicas_are_fed_is_remembered():
    with mirrored().scope():
        model = _quantized()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(PICTURES, np.zeros(32, np.int64), batch_size=16, verbose=0)
    assert float(_seen(model).highest) > 250.0


@pytest.mark.thorough
def test_a_frozen_model_and_a_half_precision_one_train_as_they_did():
    model = _quantized()
    model.trainable = False
    _fit(model, PICTURES.astype(np.float32))
    assert _seen(model) is None
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        half = _quantized(input_range=(0, 1))
        _fit(half, range_of((0, 1)).fed(PICTURES))
    finally:
        keras.mixed_precision.set_global_policy(None)
    assert float(_seen(half).highest) == pytest.approx(1.0, abs=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".keras", ".h5", ""])
def test_what_was_seen_of_every_channel_is_saved(suffix, tmp_path):
    model = _quantized(input_range="torch")
    _fit(model, range_of("torch").fed(PICTURES))
    np.testing.assert_allclose(_seen(model).lowest, range_of("torch").low, atol=0.05)
    model.save(tmp_path / f"model{suffix}")
    loaded = keras.models.load_model(tmp_path / f"model{suffix}")
    np.testing.assert_array_equal(_seen(loaded).lowest, _seen(model).lowest)
    np.testing.assert_array_equal(loaded(PICTURES / 99.0), model(PICTURES / 99.0))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=str)
def test_a_wrong_range_is_told_once_in_training_and_after_it_until_the_policy_fits(options):
    model, fed = _quantized(), range_of((0, 1)).fed(PICTURES)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for brightness in np.linspace(0.9, 1.0, 5):  # four batches each
            _fit(model, fed * np.float32(brightness), **options)
    (said,) = [str(one.message) for one in told if "the model is trained on" in str(one.message)]
    assert re.search(r"values from 0 to 0.9, .*what fits is input_range=\(0, 1", said)
    with pytest.raises(ValueError, match=r"^calibrate: 1 problem\n.*what fits is .*0, 1"):
        sat_tf.calibrate(model, fed)
    of_training = "the training before, on average over its latest batches, on values from 0 to 0.9"
    with pytest.raises(ValueError, match=of_training):
        sat_tf.calibrate(model, PICTURES)
    fitting = sat_tf.requantize(model, BitPolicy.mobile(8, input_range=(0, 1)))
    assert float(_seen(fitting).highest) == float(_seen(model).highest)
    sat_tf.calibrate(fitting, fed, batch_normalization=False)


def test_a_rescaling_inside_is_told_of_pixels_under_another_range_and_takes_them_as_uint8():
    image = keras.Input(SHAPE, name="image")
    tensor = L.Conv2D(4, 3, name="conv")(L.Rescaling(1 / 255)(image))
    tensor = L.GlobalAveragePooling2D(name="pool")(L.ReLU()(tensor))
    model = pretend_trained(keras.Model(image, L.Dense(3, name="classifier")(tensor)))
    quantized = sat_tf.quantize_model(model, BitPolicy(input_max=1.0))
    with pytest.raises(ValueError, match=r"scale the images, as images / 255, or give them as"):
        sat_tf.calibrate(quantized, PICTURES.astype(np.float32))
    with pytest.warns(UserWarning, match=r"own layer rescaling\w* makes values"):
        sat_tf.calibrate(quantized, PICTURES.astype(np.uint8))


def test_calibrate_refuses_another_range_first_and_a_model_of_before_is_on_its_own_pixels():
    model = _quantized(input_range=(0, 1))
    layer = model.get_layer("quant_image_image")
    seen = SeenValues(np.float32(0.1), np.float32(0.9), 0.01)
    layer.quantize_config.output.remember(seen, layer.output_variables, 3)
    assert misfit(_seen(model), range_of((0, 1))) is None
    assert pixel_doubt(_seen(model), range_of((0, 1))) is None
    model = _quantized(input_range=(-1, 1))
    before = [np.array(value) for value in model.get_weights()]
    with pytest.raises(ValueError, match=r"calibrate: 1 problem\n.*image: .*is input_range=\(0, 1"):
        sat_tf.calibrate(model, range_of((0, 1)).fed(PICTURES))
    np.testing.assert_equal(before, model.get_weights())


def test_values_that_are_certainly_wrong_are_told_after_doubtful_ones_and_once():
    quantizer = ImageQuantizer()
    quantizer.variables((None, 12))  # no pictures
    batches = [(100.3, "lie between those of the pixels"), (9000.0, "export_tflite will refuse it")]
    for highest, said in batches:
        with pytest.warns(UserWarning, match=said):
            quantizer._warn(np.float32(0.0), np.float32(highest), np.float32(0.3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantizer._warn(np.float32(0.0), np.float32(9000.0), np.float32(0.3))


PIXEL_VALUES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_preprocessing_is_that_of_keras_applications(name):
    pictures = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    expected = keras.applications.imagenet_utils.preprocess_input(
        pictures.astype(np.float32), mode=name
    )
    np.testing.assert_allclose(NAMED[name].fed(pictures), expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "step", "zero_point"),
    [
        ((0, 255), 1.0, 0),
        ((0, 1), 1 / 255, 0),
        ((-1, 1), 2 / 255, 128),  # real 0 lies between the pixels 127 and 128
        ((-128, 127), 1.0, 128),
        ((10, 265), 1.0, 0),  # real 0 is no pixel
        ("caffe", 1.0, 115),
        (((0, 0, 0), (1, 1, 1)), 1 / 255, 0),
    ],
)
def test_the_grid_has_the_pixel_nearest_to_real_0_which_changes_nothing_where_it_is(
    value, step, zero_point
):
    grid, change = range_of(value).grid, range_of(value).change
    assert (pytest.approx(grid.scale), grid.zero_point) == (step, zero_point)
    assert change.is_none == (value in ((0, 255), (0, 1), (-128, 127), ((0, 0, 0), (1, 1, 1))))


@pytest.mark.parametrize("value", [(0, 255), (-1, 1), (10, 265), "torch", "caffe"])
def test_what_is_fed_is_the_change_of_the_grid(value):
    found = range_of(value)
    pixels = np.stack([PIXEL_VALUES, PIXEL_VALUES[::-1], PIXEL_VALUES], axis=-1)
    grid, change = found.grid, found.change
    read = grid.scale * (pixels.astype(np.float64) - grid.zero_point)
    read = read[..., ::-1] if change.reverses else read
    np.testing.assert_allclose(change.ratio * read + change.shift, found.fed(pixels), atol=1e-4)


def test_a_policy_keeps_one_spelling():
    assert BitPolicy(input_max=1.0) == BitPolicy(input_range=[0, 1])
    assert BitPolicy(input_range=[[0, 0], [1, 1]]) == BitPolicy(input_range=(0.0, 1.0))
    assert BitPolicy(input_range="tf").range_of("any") == InputRange((-1.0,), (1.0,))
    policy = BitPolicy(input_range={"photo": "caffe", "mask": [0, 1]})
    assert policy.range_of("mask") == range_of((0, 1))
    assert policy.range_of("another") == PIXELS
    assert BitPolicy(**policy.to_dict()) == policy
    assert policy.to_dict()["input_range"] == {"photo": "caffe", "mask": [0.0, 1.0]}
    assert isinstance(hash(policy), int)
    # The older spelling stands for the range from 0.
    policy = dataclasses.replace(BitPolicy(), input_max=2)
    assert policy.input_range == (0.0, 2.0)
    assert dataclasses.replace(policy, weight_bits=8).input_range == (0.0, 2.0)
    assert BitPolicy(input_max=1.0, input_range=(0, 1)).input_range == (0.0, 1.0)
