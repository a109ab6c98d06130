"""Statistics of BatchNormalization tell what a model was trained on, before they are replaced."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.inputs import CheckedRange, checked_by_accuracy
from sat_tf.exact.certificate.rules import INPUT_RANGES
from sat_tf.exact.tflite.input_range import InputRange, range_of
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.qat.calibrate import StaleStatisticsWarning, estimate_statistics
from sat_tf.qat.input_range_checks import _off, range_statistics
from sat_tf.qat.inputs import input_nodes
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.value_ranges import PixelRanges, Spread, Spreads
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from sat_tf.training.data.digits import load_digits
from tests.qat import float_models

L = keras.layers
RANGES = [(0, 255), (0, 1), (-1, 1), (-0.5, 0.5), "torch", "caffe"]
DRAW = np.random.default_rng(0)
# Digits in colours of their own, on grounds of their own.
PICTURES = load_digits(16).train_images[:96].astype(np.float32)
PICTURES = np.uint8(np.clip(PICTURES * DRAW.uniform(0.3, 1, (96, 1, 1, 3)) + 20.0, 0, 255))


def _model(order="conv, norm, relu", end="logits"):
    keras.utils.set_random_seed(1)
    image = keras.Input((16, 16, 3), name="image")
    x = image
    for place, channels in enumerate((12, 8)):
        for kind in order.split(", "):
            layer = {
                "conv": L.Conv2D(channels, 3, padding="same", use_bias=False, name=f"conv{place}"),
                "norm": L.BatchNormalization(name=f"norm{place}"),
                "relu": L.ReLU(name=f"relu{place}"),
                "depthwise": L.DepthwiseConv2D(3, use_bias=False, name=f"depthwise{place}"),
                "flat": L.Flatten(name=f"flat{place}"),
                "dense": L.Dense(channels, name=f"dense{place}"),
            }[kind]
            x = layer(x)
        if "flat" in order:
            break
    x = L.GlobalAveragePooling2D()(x) if len(x.shape) == 4 else x
    return keras.Model(image, L.Dense(3, name="head")(x), name="trained")


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


def _checked_by(quantized):
    (node,) = input_nodes(Network(quantized)).values()
    return output_quantizer(node.layer).checked_by(node.layer.output_variables)


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
    image = keras.Input((16, 16, 3), name="image")
    x = L.Conv2D(12, 3, padding="same", strides=2, activation="relu")(image)
    x = L.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
    x = L.BatchNormalization(name="norm")(L.Conv2D(8, 3, padding="same")(x))
    model = keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(L.ReLU()(x))))
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
    image = keras.Input((16, 16, 3), name="image")
    x = frozen.get_layer("norm0")(frozen.get_layer("conv0")(image), training=True)
    by_batch = keras.Model(image, L.Flatten()(x))
    assert _statistics(by_batch, (0, 255)) is None
    without = keras.Sequential([keras.Input((16, 16, 3)), L.Conv2D(4, 3), L.Flatten(), L.Dense(3)])
    assert _statistics(without, (0, 255)) is None


def test_statistics_drawn_at_random_witness_nothing():
    wrong = 0
    for seed in range(6):
        model, draw = _model(), np.random.default_rng(seed)
        for layer in (model.get_layer("norm0"), model.get_layer("norm1")):
            layer.moving_mean.assign(draw.normal(0.0, 0.3, layer.moving_mean.shape))
            layer.moving_variance.assign(draw.uniform(0.3, 2.0, layer.moving_mean.shape))
        wrong += _statistics(model, (0, 255)).fitting is not None
    assert wrong == 0


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


def test_scalings_in_words_are_those_that_the_model_is_fed():
    images = np.arange(256.0)
    for value in ((0, 255), (0, 1), (-1, 1), (-0.5, 0.5), (-128, 127), (3, 7)):
        found = range_of(value)
        fed = eval(found.scaling, {"images": images})
        np.testing.assert_allclose(fed, found.fed(images), atol=1e-5 * max(map(abs, value)))
    assert 'mode="torch"' in range_of("torch").scaling.replace("'", '"')


def test_pixels_are_what_a_model_was_fed_for():
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


@pytest.mark.thorough
def test_uint8_pixels_are_scaled_and_other_numbers_are_not(of_tf):
    policy = BitPolicy.mobile(4, input_range=(-1, 1))
    found = []
    batches = tf.data.Dataset.from_tensor_slices((PICTURES, np.zeros(96))).batch(40)
    start = sat_tf.quantize_model(of_tf, policy).get_weights()
    quantized = sat_tf.quantize_model(of_tf, policy)
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
    without = keras.Sequential([keras.Input((16, 16, 3), name="image"), *layers])
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
    image = keras.Input((16, 16, 3), name="image")
    x = L.Conv2D(4, 3, name="conv")(L.Rescaling(1 / 127.5, -1.0, name="scaled")(image))
    model = keras.Model(image, L.Dense(3, name="head")(L.Flatten()(x)))
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, 8), PICTURES)
    (found,) = _certificate(quantized, tmp_path).input_ranges
    assert found.checked_by == "the model's own layer scaled, which converts pixels"


def test_another_range_by_requantize_is_checked_by_nothing_that_was_before(of_tf):
    policy = BitPolicy.mobile(8, input_range=(-1, 1))
    quantized = sat_tf.calibrate(sat_tf.quantize_model(of_tf, policy), PICTURES)
    for value, checked in (((-1, 1), True), ((0, 1), False)):
        other = sat_tf.requantize(quantized, BitPolicy.mobile(4, input_range=value))
        assert bool(_checked_by(other)) is checked


@pytest.mark.thorough
def test_a_second_calibration_knows_no_more_than_the_first(tmp_path):
    # Of a range that is none of the usual ones, statistics are replaced, with a warning.
    model = estimate_statistics(_model(), InputRange((5.0,), (40.0,)).fed(PICTURES))
    quantized = sat_tf.quantize_model(model, 8)
    with pytest.warns(StaleStatisticsWarning):
        sat_tf.calibrate(quantized, PICTURES)
    sat_tf.calibrate(quantized, PICTURES)
    assert _certificate(quantized, tmp_path).input_ranges[0].checked_by == ""


# Levels from the weights.
FROM_WEIGHTS = {"initial_clipping_level": None, "initial_classifier_clipping_level": None}


def _mobile(bits, **fields):
    return BitPolicy.mobile(bits, **FROM_WEIGHTS, **fields)


def _spreads(model):
    network, grid = Network(model), BitPolicy().range_of("image").grid
    pixels = PixelRanges(network, dict.fromkeys(network.inputs, grid))
    return Spreads(network, pixels, lambda name: layer_kinds.kernel_of(network[name].layer))


FUNCTIONS = {
    "rectifier": lambda x: L.ReLU()(x),
    "ceiling": lambda x: L.ReLU(1.0)(x),
    "swish": lambda x: L.Activation("swish")(x),
    "leaky": lambda x: L.LeakyReLU(0.1)(x),
    "prelu": lambda x: L.PReLU("ones", shared_axes=[1, 2])(x),
    "doubled": lambda x: L.Add()([L.ReLU()(x)] * 2),
    "concatenation": lambda x: L.Concatenate()([x, L.ReLU()(x)]),
    "pointwise": lambda x: L.Conv2D(3, 1, bias_initializer="ones", name="conv")(x),
    "pointwise_groups": lambda x: L.Conv2D(6, 1, groups=2, name="conv")(x),
    "depthwise": lambda x: L.DepthwiseConv2D(1, depth_multiplier=2, name="conv")(x),
    "dense": lambda x: L.Dense(5, activation="relu", name="dense")(x),
    "flattened": lambda x: L.Dense(5, name="dense")(L.Flatten()(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_moments_are_those_of_values_that_do_not_know_of_each_other(name):
    draw, tensor = np.random.default_rng(0), keras.Input((8, 8, 4), name="image")
    norm = L.BatchNormalization(name="bn", epsilon=0.0)
    hidden = norm(tensor)
    norm.set_weights([draw.uniform(0.5, 2.0, 4), draw.normal(size=4), np.zeros(4), np.ones(4)])
    values = draw.normal(size=(512, 8, 8, 4)).astype(np.float32)
    tf.random.set_seed(0)
    model = keras.Model(tensor, FUNCTIONS[name](hidden))
    found = _spreads(model)[model.layers[-1].name]
    seen = model.predict_on_batch(values).reshape(-1, model.output_shape[-1])
    # No two values are alike if a kernel has one pixel, and Dense one value of each pixel.
    tolerance = 0.6 if name == "flattened" else 0.08
    room = {"atol": tolerance * np.std(seen)}
    np.testing.assert_allclose(found.mean, seen.mean(axis=0), **room)
    deviation = np.sqrt(found.variance)
    np.testing.assert_allclose(deviation, seen.std(axis=0), rtol=tolerance, **room)


def test_a_normalization_is_known_whatever_is_in_front_of_it():
    model = float_models.build("mobile_block")
    spreads = _spreads(model)
    norm = model.get_layer("a_bn")
    found = spreads["a_bn"]
    np.testing.assert_allclose(found.mean, norm.beta, rtol=1e-6)
    assert found.known
    assert found.source == "γ and β of a_bn"
    assert spreads["a_relu"].source == "γ and β of a_bn"
    assert spreads["add"].known
    assert not spreads["a"].known  # it reads pixels


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", [PactQuantizer, StreamQuantizer])
def test_the_level_has_the_smallest_error_on_normal_values(bits, kind):
    draw = np.random.default_rng(0)
    mean, deviation = np.array([0.5, -1.0, 0.0]), np.array([1.0, 2.0, 0.3])
    values = draw.normal(mean, deviation, (20000, 3)).astype(np.float32)
    quantiles = np.linspace(-4.5, 4.5, 91)
    quantizer = kind(num_bits=bits)
    found = Spread(mean[:, None] + deviation[:, None] * quantiles, "").best_level(quantizer)
    wanted = values if quantizer.signed else np.maximum(values, 0.0)
    power = 4 if bits == 8 else 2

    def error(level):
        weights = {"clipping_level": tf.constant(level, tf.float32)}
        return np.mean(np.abs(quantizer(values, False, weights).numpy() - wanted) ** power)

    smallest = min(error(level) for level in np.linspace(0.5, 9.0, 86))
    # 60000 values have no such tail as a normal distribution, which counts at the fourth power.
    found /= 1.5  # the room for longer tails
    assert error(found) <= (2.5 if bits == 8 else 1.1) * smallest


def _levels(model):
    """The clipping levels, by the names of layers."""
    named = {layer.name: getattr(layer, "output_variables", {}) for layer in model.layers}
    levels = {name: variables.get("clipping_level") for name, variables in named.items()}
    return {name: float(level) for name, level in levels.items() if level is not None}


def test_levels_are_near_those_of_calibration_where_statistics_are_those_of_the_images():
    images = float_models.images(64)
    model = float_models.build("mobile_block")
    norms = [layer for layer in model.layers if isinstance(layer, L.BatchNormalization)]
    for norm in norms:
        norm.momentum = 0.0
    model(images, training=True)
    for bits in (4, 8):
        quantized = sat_tf.quantize_model(model, _mobile(bits, weight_bits=8))
        found = _levels(quantized)
        calibrated = _levels(sat_tf.calibrate(quantized, images, batch_normalization=False))
        del found["quant_pool"]  # the mean of pixels that are drawn one by one hardly varies
        for name, level in found.items():
            assert 0.5 < level / calibrated[name] < 2.6, (name, level, calibrated[name])


def test_a_rectifiers_ceiling_is_never_exceeded():
    model = sat_tf.quantize_model(float_models.build("relu6"), _mobile(8))
    assert all(level <= 6.0 for level in _levels(model).values())


def test_the_paper_has_levels_of_its_own():
    paper = BitPolicy.paper(4)
    assert (paper.initial_clipping_level, paper.initial_classifier_clipping_level) == (8.0, 10.0)


def test_new_levels_of_another_policy_follow_the_effective_weights():
    model = float_models.build("without_normalization")
    direct = _levels(sat_tf.quantize_model(model, _mobile(8)))
    other = sat_tf.quantize_model(model, BitPolicy(weight_bits=None, activation_bits=None))
    assert _levels(sat_tf.requantize(other, _mobile(8))) == pytest.approx(direct, rel=0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("name", float_models.EVERY)
def test_every_level_is_positive_and_finite(name):
    levels = _levels(sat_tf.quantize_model(float_models.build(name), _mobile(4)))
    assert all(0.0 < level < np.inf for level in levels.values())


def test_explain_says_where_each_level_comes_from():
    plan = sat_tf.explain(float_models.build("mobile_block"), _mobile(4))
    rows = {row.name: row for row in plan.rows}
    assert re.search(r"clipping level from γ and β of a_bn", rows["a_relu"].activation_reason)
    plan = sat_tf.explain(float_models.build("without_normalization"), _mobile(4))
    rows = {row.name: row for row in plan.rows}
    assert "typical pixels: a guess, calibrate" in rows["b_relu"].activation_reason


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (L.Conv1DTranspose(6, 3, 2), L.Conv2DTranspose(6, (1, 3), (1, 2))),
        (L.DepthwiseConv1D(3, depth_multiplier=2), L.DepthwiseConv2D((1, 3), depth_multiplier=2)),
    ],
    ids=["transposed", "depthwise"],
)
def test_layers_of_sequences_are_those_of_images_with_one_row(one, two):
    models, spreads = [], []
    for layer, shape in ((one, (8, 4)), (two, (1, 8, 4))):
        image = keras.Input(shape, name="image")
        tensor = L.Conv2D(5, (1, 3)) if len(shape) == 3 else L.Conv1D(5, 3)
        tensor = L.ReLU()(L.BatchNormalization()(tensor(image)))
        models.append(keras.Model(image, layer(tensor)))
        weights = zip(models[0].weights, models[-1].weights, strict=True)
        models[-1].set_weights([np.reshape(weight, other.shape) for weight, other in weights])
        spreads.append(_spreads(models[-1])[layer.name].values)
    np.testing.assert_array_equal(*spreads)
