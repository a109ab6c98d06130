"""What a model says of the range that it was trained on: by statistics, certainty and borders."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.proof_images import CheckedRange, checked_by_accuracy
from sat_tf.exact.certificate.rules import INPUT_RANGES
from sat_tf.exact.tflite.input_range import PIXELS, InputRange, range_of
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.qat.calibrate import StaleStatisticsWarning, estimate_statistics
from sat_tf.qat.input_range_checks import _leads, _off, certainty_doubt, range_statistics
from sat_tf.qat.inputs import AnotherBorderWarning, borders, input_nodes
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.training.data.digits import load_digits
from tests.qat.float_models import L, chain, model_of

SHAPE = (16, 16, 3)
RANGES = [(0, 255), (0, 1), (-1, 1), (-0.5, 0.5), "torch", "caffe"]
DRAW = np.random.default_rng(0)
# Digits in colours of their own, on grounds of their own.
PICTURES = load_digits(16).train_images[:96].astype(np.float32)
PICTURES = np.uint8(np.clip(PICTURES * DRAW.uniform(0.3, 1, (96, 1, 1, 3)) + 20.0, 0, 255))


def _model(order="conv, norm, relu"):
    keras.utils.set_random_seed(1)
    layers, is_flat = [], "flat" in order
    for place, channels in enumerate((12,) if is_flat else (12, 8)):
        of_kind = {
            "conv": L.Conv2D(channels, 3, padding="same", use_bias=False, name=f"conv{place}"),
            "norm": L.BatchNormalization(name=f"norm{place}"),
            "relu": L.ReLU(name=f"relu{place}"),
            "depthwise": L.DepthwiseConv2D(3, use_bias=False, name=f"depthwise{place}"),
            "flat": L.Flatten(name=f"flat{place}"),
            "dense": L.Dense(channels, name=f"dense{place}"),
        }
        layers += [of_kind[kind] for kind in order.split(", ")]
    pool = [] if is_flat else L.GlobalAveragePooling2D()
    return model_of(*layers, pool, L.Dense(3, name="head"), shape=SHAPE, name="trained")


def _trained(value, share=1.0, **options):
    """A model with the statistics of pictures in a range, of which training has moved a share."""
    model = estimate_statistics(_model(**options), range_of(value).fed(PICTURES))
    for layer in model.layers:
        if isinstance(layer, L.BatchNormalization):
            layer.moving_mean.assign(share * layer.moving_mean)
            layer.moving_variance.assign(share * layer.moving_variance + 1.0 - share)
    return model


def _scale(input_range):
    return round(float(np.mean(input_range.scales)), 6)


def _statistics(model, value, pictures=PICTURES):
    given = range_of(value)
    return range_statistics(network_of_layers(model), [given.fed(pictures)], 0, given)


# The others take seconds.
SLOWER = ("conv, relu, norm", "norm, conv, relu", "depthwise, norm", "flat, dense, norm")
SLOWER = [pytest.param(order, marks=pytest.mark.thorough) for order in SLOWER]


@pytest.mark.parametrize("order", ["conv, norm, relu", *SLOWER])
@pytest.mark.parametrize("trained", RANGES, ids=str)
def test_the_range_of_the_training_fits_alone_and_no_other_does(trained, order):
    model = _trained(trained, order=order)
    for given in RANGES:
        found = _statistics(model, given)
        if given == trained:
            assert found.off[found.given] < 0.25
            assert found.fitting is None
            assert found.decides
            continue
        assert not found.decides
        if _scale(range_of(given)) == _scale(range_of(trained)):
            # Nothing but brightness tells them apart, which pictures of other domains have too.
            assert found.fitting is None
        elif found.off[found.given] >= 0.6:
            assert _scale(found.fitting) == _scale(range_of(trained)), (given, str(found))
            assert str(range_of(trained)) in found.likely or trained == "caffe"
        else:  # as after a short training
            assert found.doubt is not None, (given, str(found))
        assert found.off[range_of(trained)] < 0.25


@pytest.mark.parametrize("stated", ["torch", "caffe"])
def test_what_folded_layers_pad_with_hides_no_contradiction(stated):
    keras.utils.set_random_seed(1)
    layers = [L.Conv2D(12, 3, padding="same", strides=2, activation="relu")]
    layers += [L.Conv2D(8, 3, padding="same", activation="relu", name="second")]
    layers += [L.Conv2D(8, 3, padding="same"), L.BatchNormalization(name="norm"), L.ReLU()]
    model = model_of(*layers, L.GlobalAveragePooling2D(), L.Dense(3), shape=SHAPE)
    estimate_statistics(model, range_of((0, 1)).fed(PICTURES))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8, input_range=stated))
    with pytest.raises(ValueError, match=r"which is \(0, 1\) by the statistics"):
        sat_tf.calibrate(quantized, PICTURES)


@pytest.mark.parametrize("steps", [1, 5, 70, 500])
@pytest.mark.parametrize("trained", [(0, 255), (-1, 1)], ids=str)
def test_averages_that_lag_behind_a_short_training_are_no_contradiction(trained, steps):
    found = _statistics(_trained(trained, 1.0 - 0.99**steps), trained)
    assert found.fitting is None
    assert found.off[found.given] < 0.2


def test_a_model_of_a_few_steps_on_small_values_is_not_one_of_pixels():
    for steps in (1, 20, 200):
        found = _statistics(_trained((-1, 1), 1.0 - 0.99**steps), (0, 255))
        assert found.fitting is not None
        assert "(-1, 1)" in found.likely
    # Of small values, others may have left the same.
    assert not _statistics(_trained((-1, 1), 1.0 - 0.99**5), (-1, 1)).decides


def test_what_was_never_trained_witnesses_nothing():
    assert _statistics(_model(), (0, 255)) is None
    frozen = _trained((0, 1))
    norm = frozen.get_layer("norm0")
    layers = [frozen.get_layer("conv0"), lambda x: norm(x, training=True), L.Flatten()]
    assert _statistics(model_of(*layers, shape=SHAPE), (0, 255)) is None
    without = model_of(L.Conv2D(4, 3), L.Flatten(), L.Dense(3), shape=SHAPE)
    assert _statistics(without, (0, 255)) is None
    # Nor do statistics drawn at random.
    for seed in range(6):
        model, draw = _model(), np.random.default_rng(seed)
        for layer in (model.get_layer("norm0"), model.get_layer("norm1")):
            layer.moving_mean.assign(draw.normal(0.0, 0.3, layer.moving_mean.shape))
            layer.moving_variance.assign(draw.uniform(0.3, 2.0, layer.moving_mean.shape))
        assert _statistics(model, (0, 255)).fitting is None


DOMAINS = {
    "dark": lambda x: x * 0.2,
    "bright": lambda x: 200 + x * 0.2,
    "negative": lambda x: 255 - x,
    "noise": lambda x: DRAW.integers(0, 256, x.shape),
    "flat": lambda x: x * 0.3 + 90,
    "grey": lambda x: np.repeat(np.mean(x, axis=-1, keepdims=True), 3, axis=-1),
    "smooth": lambda x: (x + np.roll(x, 1, 1) + np.roll(x, 1, 2) + np.roll(x, 2, 2)) / 4,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", DOMAINS)
def test_pictures_of_another_domain_are_no_contradiction(kind):
    others = np.uint8(np.clip(DOMAINS[kind](PICTURES.astype(np.float32)), 0, 255))
    for trained, share in (((0, 255), 0.6), ((0, 1), 1.0), ((0, 1), 0.6), ((-1, 1), 1.0)):
        found = _statistics(_trained(trained, share), trained, others)
        assert found.fitting is None, (trained, share, str(found))


def test_dead_channels_hide_nothing():
    model = _trained((-1, 1))
    kernel = model.get_layer("conv0").kernel
    kernel.assign(kernel * np.float32(np.arange(12) < 3))
    estimate_statistics(model, range_of((-1, 1)).fed(PICTURES))
    assert _statistics(model, (0, 255)).fitting == range_of((-1, 1))
    assert _statistics(model, (-1, 1)).decides


def test_how_far_statistics_are_off_is_a_mean_of_shift_and_spread():
    model = _trained((0, 1), order="norm, conv")
    norm = Network(model)["norm0"]
    own = Statistics.of(norm.layer)
    other = Statistics(own.mean + 0.1, own.variance * 4.0, own.epsilon)
    shift = 0.1 / np.sqrt(own.variance * 4.0 + own.epsilon)
    spread = 0.5 * np.log((own.variance * 4.0 + own.epsilon) / (own.variance + own.epsilon))
    norm.layer.momentum = 0.0  # no step leaves anything of the start
    np.testing.assert_allclose(_off([norm], [other]), shift + spread, rtol=1e-6)
    far = Statistics(own.mean + 1e6, own.variance, own.epsilon)
    np.testing.assert_array_equal(_off([norm], [far]), 3.0)


def test_scalings_in_words_are_those_that_the_model_is_fed_and_pixels_come_back():
    images = np.arange(256.0)
    for value in ((0, 255), (0, 1), (-1, 1), (-0.5, 0.5), (-128, 127), (3, 7)):
        found = range_of(value)
        fed = eval(found.scaling, {"images": images})
        np.testing.assert_allclose(fed, found.fed(images), atol=1e-5 * max(map(abs, value)))
    assert 'mode="torch"' in range_of("torch").scaling.replace("'", '"')
    pixels = np.arange(24.0).reshape(2, 4, 3)
    for value in RANGES:
        found = range_of(value)
        np.testing.assert_allclose(found.pixels(found.fed(pixels)), pixels, atol=2e-5)


def _error(function, *arguments):
    with pytest.raises(ValueError, match="the range that it was trained with") as caught:
        function(*arguments)
    return str(caught.value)


@pytest.fixture(scope="module")
def of_tf():
    return _trained((-1, 1))


@pytest.mark.parametrize("bits", [8, 4])
def test_pixels_for_a_model_of_small_values_are_an_error_that_says_how_to_scale(of_tf, bits):
    quantized = sat_tf.quantize_model(of_tf, bits)
    before = quantized.get_weights()
    for pixels in (PICTURES, PICTURES.astype(np.float32)):
        text = _error(sat_tf.calibrate, quantized, pixels)
        assert "image: received a model that is fed input_range=(0, 255)" in text
        assert "BitPolicy(input_range=(-1, 1))" in text
        assert "uint8 pixels, which are scaled for you, or images / 127.5 - 1." in text
        assert "norm0" in text
    np.testing.assert_equal(before, quantized.get_weights())


def test_reconstruction_reads_the_statistics_of_the_float_model(of_tf):
    quantized = sat_tf.quantize_model(of_tf, 4)
    pixels = PICTURES.astype(np.float32)
    for layer in quantized.layers:  # as if it had been calibrated without a word
        if "norm" in layer.name:
            layer.layer.moving_variance.assign(layer.layer.moving_variance * 127.5**2)
            layer.layer.moving_mean.assign(layer.layer.moving_mean * 0.0)
    sat_tf.calibrate(quantized, pixels)
    text = _error(sat_tf.reconstruct, quantized, of_tf, pixels)
    assert "input_range=(0, 255)" in text
    assert "BitPolicy(input_range=(-1, 1))" in text


def test_uint8_pixels_are_scaled_and_other_numbers_are_not(of_tf):
    policy = BitPolicy.mobile(4, input_range=(-1, 1))
    found, quantized = [], sat_tf.quantize_model(of_tf, policy)
    batches = tf.data.Dataset.from_tensor_slices((PICTURES, np.zeros(96))).batch(40)
    start = quantized.get_weights()
    for images in (range_of((-1, 1)).fed(PICTURES), PICTURES, batches):
        quantized.set_weights(start)
        sat_tf.calibrate(quantized, images)
        if images is not batches:
            sat_tf.reconstruct(quantized, of_tf, images, steps=1, progress=False)
        found.append(quantized.get_weights())
    quantized.set_weights(start)
    found.append(sat_tf.calibrate(quantized, PICTURES).get_weights())
    for pair in (found[:2], found[2:]):
        np.testing.assert_equal(*pair)
    with pytest.raises(ValueError, match="which are pixels, expected input_range=") as caught:
        sat_tf.calibrate(sat_tf.quantize_model(of_tf, policy), PICTURES.astype(np.int32))
    assert "scale the images, as images / 127.5 - 1" in str(caught.value)


def test_uint8_values_of_an_input_that_is_no_image_stay_what_they_are():
    model = keras.Sequential([keras.Input((6,), name="x"), L.Dense(3, name="head")])
    values = DRAW.integers(0, 256, (64, 6))
    found = []
    for kind in (np.uint8, np.float32):
        quantized = sat_tf.quantize_model(model, BitPolicy(input_type="int8"))
        found.append(sat_tf.calibrate(quantized, values.astype(kind)).get_weights())
    np.testing.assert_equal(*found)


def test_one_accuracy_tells_whether_a_range_can_be_right():
    ranges = [CheckedRange("image", "(0, 255)")]
    labels = np.arange(200) % 10
    assert checked_by_accuracy(ranges, [labels], [0.115]) == ranges
    assert checked_by_accuracy(ranges, [labels[:4]], [1.0]) == ranges
    assert checked_by_accuracy(ranges, [None], []) == ranges
    assert checked_by_accuracy(ranges, [labels * 0 - 1], [float("nan")]) == ranges
    (found,) = checked_by_accuracy(ranges, [labels], [0.635])
    assert found.checked_by == "accuracy, 63.5 % where one class for all has 10.0 %"
    both = [*ranges, CheckedRange("other", "(0, 1)")]
    assert checked_by_accuracy(both, [labels], [0.635]) == both


def _certificate(quantized, tmp_path, **options):
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(quantized, path, snap_biases=True)
    return sat_tf.verify_tflite(quantized, path, PICTURES[:40], progress=False, **options)


def test_a_certificate_says_what_the_range_was_checked_by_and_is_amber_where_nothing_could(
    of_tf, tmp_path
):
    policy = BitPolicy.mobile(8, input_range=(-1, 1))
    quantized = sat_tf.calibrate(sat_tf.quantize_model(of_tf, policy), PICTURES)
    found = _certificate(quantized, tmp_path)
    said = "stand for (-1, 1), as checked by the statistics of BatchNormalization."
    assert [said in note.words for note in found.statements].count(True) == 1
    assert found.verdict.kind == "good"

    layers = [L.Conv2D(4, 3, name="conv"), L.Flatten(), L.Dense(3, name="head")]
    without = model_of(*layers, shape=SHAPE)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(without, 8), PICTURES)
    found = _certificate(quantized, tmp_path)
    assert found.verdict.kind == "watch"
    assert found.verdict.words.endswith("; the input range is checked by nothing")
    assert found.is_exact
    # Its own answers as labels are accuracy.
    labels = np.argmax(without(PICTURES[:40].astype(np.float32)), axis=1)
    if len(np.unique(labels)) > 1:
        found = _certificate(quantized, tmp_path, labels=labels)
        assert any("as checked by accuracy" in note.words for note in found.statements)
    # Trained in it, it is that of the training.
    quantized.compile("sgd", "mse")
    quantized.fit(PICTURES[:32].astype(np.float32), np.zeros((32, 3)), verbose=0)
    found = _certificate(quantized, tmp_path)
    assert found.input_ranges == [CheckedRange("image", "(0, 255)", "training in it")]
    assert "checked by nothing" not in found.verdict.words


@pytest.mark.thorough
def test_a_float_model_beside_a_file_checks_its_range(of_tf, tmp_path):
    for value, kind in (((-1, 1), "good"), ((0, 255), "bad")):
        quantized = sat_tf.quantize_model(of_tf, BitPolicy.mobile(8, input_range=value))
        for layer in quantized.layers:  # as never trained, so that they say nothing
            if "norm" in layer.name:
                layer.layer.moving_mean.assign(layer.layer.moving_mean * 0.0)
                layer.layer.moving_variance.assign(layer.layer.moving_variance * 0.0 + 1.0)
        sat_tf.calibrate(quantized, PICTURES)
        found = _certificate(quantized, tmp_path, float_model=of_tf)
        (note,) = INPUT_RANGES.notes(found)
        assert note.kind == {"good": "plain"}.get(kind, kind)
        assert found.is_exact is (kind == "good")


def test_layers_of_the_model_that_convert_pixels_check_them(tmp_path):
    layers = [L.Rescaling(1 / 127.5, -1.0, name="scaled"), L.Conv2D(4, 3, name="conv")]
    model = model_of(*layers, L.Flatten(), L.Dense(3, name="head"), shape=SHAPE)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, 8), PICTURES)
    (found,) = _certificate(quantized, tmp_path).input_ranges
    assert found.checked_by == "the model's own layer scaled, which converts pixels"


def test_another_range_by_requantize_is_checked_by_nothing_that_was_before(of_tf):
    policy = BitPolicy.mobile(8, input_range=(-1, 1))
    quantized = sat_tf.calibrate(sat_tf.quantize_model(of_tf, policy), PICTURES)
    for value, checked in (((-1, 1), True), ((0, 1), False)):
        other = sat_tf.requantize(quantized, BitPolicy.mobile(4, input_range=value))
        (node,) = input_nodes(Network(other)).values()
        said = output_quantizer(node.layer).checked_by(node.layer.output_variables)
        assert bool(said) is checked


@pytest.mark.thorough
def test_a_second_calibration_knows_no_more_than_the_first(tmp_path):
    # Of a range that is none of the usual ones, statistics are replaced, with a warning.
    model = estimate_statistics(_model(), InputRange((5.0,), (40.0,)).fed(PICTURES))
    quantized = sat_tf.quantize_model(model, 8)
    with pytest.warns(StaleStatisticsWarning):
        sat_tf.calibrate(quantized, PICTURES)
    sat_tf.calibrate(quantized, PICTURES)
    assert _certificate(quantized, tmp_path).input_ranges[0].checked_by == ""


@pytest.fixture(scope="module", params=["tf_keras", "keras"])
def library(request):
    return pytest.importorskip(request.param)


def _pixels():
    return load_digits(8).train_images[:512].astype(np.float32)


def _trained_on(library, divisor, entrance=(), end="softmax"):
    """A network without normalization that was trained on pixels divided by something."""
    library.utils.set_random_seed(0)
    layers = library.layers
    image = library.Input((8, 8, 3), name="image")
    if end == "apart":
        ends = [layers.Dense(10), layers.Softmax()]
    else:
        ends = [layers.Dense(1 if end == "sigmoid" else 10, activation=end or None)]
    front = [*entrance, layers.Conv2D(16, 3, activation="relu"), layers.Flatten()]
    model = library.Model(image, chain(image, front, ends))
    labels = load_digits(8).train_labels[:512]
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=not end)
    if end == "sigmoid":
        labels, loss = (labels > 4).astype(np.float32), "binary_crossentropy"
    model.compile(library.optimizers.Adam(5e-3), loss)
    model.fit(_pixels() / divisor, labels, epochs=12, verbose=0)
    return model


@pytest.fixture(scope="module")
def on_unit(library):
    return _trained_on(library, 255.0)


def _said(model, divisor=1.0, **fields):
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy(**fields))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        sat_tf.calibrate(quantized, _pixels()[:64] / divisor, progress=False)
    return [str(one.message) for one in found if "image: " in str(one.message)]


@pytest.mark.thorough
def test_a_classifier_is_warned_of_where_it_is_not_fed_what_it_was_trained_on(library, on_unit):
    for fields in ({}, {"input_range": (0, 255)}):
        (said,) = _said(on_unit, **fields)
        assert "fed input_range=(0, 255), the model is as certain of a class as float32" in said
        assert "fed input_range=(0, 1) it is not" in said
    assert _said(on_unit, 255.0, input_range=(0, 1)) == []
    assert _said(_trained_on(library, 1.0)) == []


@pytest.mark.thorough
def test_a_model_that_converts_pixels_is_to_be_fed_pixels_and_not_converted_ones(library):
    rescaling = _trained_on(library, 1.0, [library.layers.Rescaling(1 / 255, name="scaled")])
    assert _said(rescaling) == []
    (said,) = _said(rescaling, 255.0, input_range=(0, 1))
    assert "own layer scaled makes values that lie 0.00392 apart of input_range=(0, 1)" in said
    assert "input_range=(0, 255) fits that layer" in said


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["apart", "sigmoid", ""])
def test_probabilities_and_logits_are_read_wherever_they_are_made(library, end):
    model = _trained_on(library, 255.0, end=end)
    (said,) = _said(model)
    assert "fed input_range=(0, 1) it is not" in said
    if not end:  # logits are taken for such where the policy says no range
        assert "BitPolicy(input_range=(0, 255)) says so" in said
        assert _said(model, input_range=(0, 255)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("divisor", [1.0, 255.0])
def test_normalization_is_known_by_what_it_makes_of_a_range(library, divisor):
    layer = library.layers.Normalization(name="adapted")
    layer.adapt(_pixels() / divisor)
    model = _trained_on(library, divisor, [layer])
    own, other = ({"input_range": (0, 1)}, {})[:: -1 if divisor == 1.0 else 1]
    assert _said(model, divisor, **own) == []
    said = _said(model, 1.0 if divisor > 1.0 else 255.0, **other)
    assert any("own layer" in one for one in said), said


def test_a_lead_is_a_mean_over_rows_and_a_model_certain_in_every_range_no_doubt():
    rows = np.array([[[1.0, 5.0, 2.0], [0.0, 0.0, 7.0]], [[1.0, 1.0, 1.0], [4.0, 2.0, 0.0]]])
    assert _leads(rows).tolist() == [5.0, 1.0]
    dense = L.Dense(3)
    network = Network(model_of(L.Flatten(), dense, shape=(2, 2, 3)))
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


TILES = np.random.default_rng(0).integers(0, 256, (64, 4, 4, 3), np.uint8)
TILES = TILES.repeat(3, axis=1).repeat(3, axis=2)


def _padding(first):
    keras.utils.set_random_seed(1)
    layers = [first, L.ReLU(), L.Conv2D(4, 3, name="inner"), L.Flatten(), L.Dense(5, name="head")]
    return model_of(*layers, shape=(12, 12, 3))


FIRST = {
    "same": lambda: L.Conv2D(8, 3, 2, padding="same", name="first"),
    "depthwise": lambda: L.DepthwiseConv2D(5, padding="same", activation="relu", name="first"),
    "dilated": lambda: L.Conv2D(8, 3, dilation_rate=2, padding="same", name="first"),
    "padding": lambda: keras.Sequential([L.ZeroPadding2D(((1, 0), (2, 1))), L.Conv2D(8, 3)]),
}


def _error_of(model, quantized, images):
    """How far the outputs of a calibrated model are off, in standard deviations."""
    sat_tf.calibrate(quantized, images, progress=False)
    expected, found = (np.asarray(each(images)) for each in (model, quantized))
    return np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected)


@pytest.mark.parametrize("pixels", [(1, 2), (-5, -3), ((0, 1, -2), (1, 3, 5))], ids=str)
@pytest.mark.parametrize("first", FIRST)
def test_the_error_of_a_border_is_told_before_the_training(first, pixels):
    model = _padding(FIRST[first]())
    policy = BitPolicy.mobile(8, input_range=pixels)
    with pytest.warns(AnotherBorderWarning, match="instead of 0.*standard deviations.*in front"):
        quantized = sat_tf.quantize_model(model, policy)
    (line,) = sat_tf.explain(model, policy).inputs
    told = float(line.split("outputs are off by ")[1].split(" standard")[0])
    off = _error_of(model, quantized, policy.range_of("image").fed(TILES))
    assert told == pytest.approx(off, rel=0.4)


@pytest.mark.parametrize(
    ("first", "pixels"),
    [("same", (0, 1)), ("same", (-1, 1)), ("same", (-0.4, 2.7)), ("valid", (1, 2))],
)
def test_a_border_that_is_0_or_that_nothing_pads_is_not_spoken_of(first, pixels):
    model = _padding(L.Conv2D(8, 3, padding=first))
    policy = BitPolicy.mobile(8, input_range=pixels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnotherBorderWarning)
        sat_tf.quantize_model(model, policy)
    assert "instead of 0" not in sat_tf.explain(model, policy).inputs[0]


def test_a_border_is_told_of_what_reads_the_image_and_of_the_layers_that_pad():
    image = keras.Input((12, 12, 3), name="image")
    padded = L.Conv2D(8, 3, padding="same", name="pads")(image)
    hidden = L.Concatenate()([padded, L.Conv2D(8, 1, name="plain")(image)])
    outputs = [L.Dense(5)(L.Flatten()(hidden)), L.Cropping2D(2)(image)]
    network, fed = Network(keras.Model(image, outputs)), {"image": range_of((1, 2))}
    (border,) = borders(network, fed)
    assert border.layers == ("pads",)
    assert 0.01 < border.error < 1.0  # the cropped image is as it was


def test_zeros_that_are_other_pixels_in_each_channel_are_told_and_too_small_to_warn_of():
    model = _padding(FIRST["same"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error", AnotherBorderWarning)
        quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8, input_range="torch"))
    (line,) = sat_tf.explain(model, BitPolicy.mobile(8, input_range="torch")).inputs
    assert "first pads with (-0.166, -0.0399, 0.182) instead of 0" in line
    again = sat_tf.explain(quantized, BitPolicy.mobile(4, input_range="torch"))
    assert "instead of 0" not in again.inputs[0]


def test_preprocessing_in_front_pads_with_0():
    layers = [L.Rescaling(1 / 255, 1.0), L.Conv2D(8, 3, padding="same"), L.ReLU(), L.Flatten()]
    model = model_of(*layers, L.Dense(5), shape=(12, 12, 3))
    assert _error_of(model, sat_tf.quantize_model(model, 8), TILES.astype(np.float32)) < 0.05
