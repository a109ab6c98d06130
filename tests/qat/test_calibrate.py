import contextlib
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given, settings
from hypothesis import strategies as st

import sat_tf
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network
from sat_tf.qat import calibrate
from sat_tf.qat.calibrate import StaleStatisticsWarning, estimate_statistics
from sat_tf.qat.images import Batches
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.shared_grids import SharedGrids
from sat_tf.quantizers.best_levels import best_clipping_level, best_skewed_range
from sat_tf.quantizers.values import SampledValues
from tests import reference
from tests.export.proofs import proved
from tests.qat import float_models
from tests.qat.float_models import L, model_of

IMAGES = float_models.images(64)


def _levels(model):
    return {v.name: float(v.numpy()) for v in model.variables if "clipping_level" in v.name}


def _statistics(model):
    return {v.name: v.numpy() for v in model.variables if "moving_" in v.name}


def _equal(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


def _mobile_block():
    return sat_tf.quantize_model(float_models.build("mobile_block"), BitPolicy.mobile(4))


@pytest.fixture(scope="module")
def _shared():
    model = _mobile_block()
    return model, model.get_weights()


@pytest.fixture
def quantized(_shared):
    """A model that no other test has changed."""
    model, weights = _shared
    model.set_weights(weights)
    return model


def test_the_sample_of_a_large_tensor_holds_all_channels():
    # Every 441st value of 64 images of 28x28 pixels and 144 channels would meet 16 channels.
    float_model = model_of(L.ReLU(), L.Conv2D(2, 1), shape=(28, 28, 144))
    model = sat_tf.quantize_model(float_model, BitPolicy.mobile(4))
    draw = np.random.default_rng(3)
    sizes = draw.lognormal(0.0, 0.8, 144)
    images = np.maximum(draw.normal(0.0, 1.0, (64, 28, 28, 144)), 0.0) * sizes
    images = np.rint(images / images.max() * 255.0)
    sat_tf.calibrate(model, images)
    (found,) = _levels(model).values()
    best = best_clipping_level(SampledValues(images, images.max()), 4, signed=False)

    def error(level):
        return np.mean((reference.quantize_activation(images, level, 4) - images) ** 2)

    # The optimum is flat: levels some percent apart are as good.
    assert error(found) <= 1.005 * error(best)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({}, {"batch_normalization": False}),
        # 8-bit codes of these grids do not fit int8.
        ({"weight_bits": 7, "weight_grid": "dorefa", "weight_range": "channel"}, {}),
        ({"weight_bits": 7, "weight_grid": "rounded", "rescale": "none"}, {}),
    ],
    ids=["default", "kept statistics", "channels", "rounded"],
)
def test_8_bits_lose_less_than_a_point_without_training(
    digits, digits_model, correct, fields, options
):
    quantized = sat_tf.quantize_model(digits_model, BitPolicy.mobile(8, **fields))
    assert sat_tf.calibrate(quantized, digits.train_images, **options) is quantized
    # 359 images: a point is three and a half of them.
    assert correct(quantized) >= correct(digits_model) - 0.01


@pytest.mark.thorough
def test_the_papers_own_start_needs_the_statistics_calibrated(digits, digits_model, correct):
    quantized = sat_tf.quantize_model(digits_model, BitPolicy.paper(8))
    assert correct(quantized) < 0.9  # clamped weights under the statistics of others
    sat_tf.calibrate(quantized, digits.train_images)
    assert correct(quantized) >= correct(digits_model) - 0.02


def _assert_best(level, error, largest, bits):
    """No level of a hundred has a smaller error at the power that counts."""
    power = 4 if bits == 8 else 2
    least = min(np.mean(error(other) ** power) for other in largest * np.arange(1, 101) / 100)
    # Ties may be rounded otherwise in float32, by a whole step.
    assert np.mean(error(level) ** power) <= least + 1e-5 * largest**power


@settings(max_examples=30)
@given(
    values=st.lists(st.floats(0, 10), min_size=1, max_size=30),
    bits=st.integers(2, 8),
    signed=st.booleans(),
)
def test_the_best_clipping_level_has_the_smallest_error_of_a_hundred(values, bits, signed):
    values = np.array([*values, 1.0])
    if signed:
        values = values * np.where(np.arange(len(values)) % 2, -1, 1)
    largest = np.abs(values).max()
    found = best_clipping_level(SampledValues(values, largest), bits, signed=signed)
    quantize = reference.quantize_stream if signed else reference.quantize_activation
    _assert_best(found, lambda level: quantize(values, level, bits) - values, largest, bits)
    assert 0 < found <= largest


@settings(max_examples=40)
@given(
    ends=st.tuples(st.floats(0, 40), st.floats(0, 40)),
    seed=st.integers(0, 100),
    bits=st.integers(2, 8),
)
def test_a_range_is_skewed_where_that_makes_the_error_smaller(ends, seed, bits):
    below, above = ends[0] + 0.01, ends[1] + 0.01
    draw = np.random.default_rng(seed)
    values = draw.uniform(-below, above, 400).astype(np.float32)
    sample = SampledValues(values, float(np.abs(values).max()))
    level, skew = best_skewed_range(sample, bits)
    power = 4 if bits == 8 else 2

    def error(level, skew):
        return np.mean((reference.quantize_skewed(values, level, bits, skew) - values) ** power)

    symmetric = best_clipping_level(sample, bits, signed=True)
    if skew == 0.0:
        assert level == symmetric
    else:
        assert np.sign(skew) == np.sign(above - below)
        assert error(level, np.float32(skew)) < 0.95**power * error(symmetric, 0.0) * 1.001
    if bits == 8 and max(below, above) > 1.5 * min(below, above):
        smaller = level * (1.0 - abs(skew))
        assert skew != 0.0
        assert (smaller, level) == pytest.approx(sorted([below, above]), abs=0.1 * level)


def test_a_tensor_of_one_sign_gets_no_codes_of_the_other_and_one_bit_has_a_best_level():
    values = np.linspace(0.5, 3.0, 64, dtype=np.float32)
    assert best_skewed_range(SampledValues(values, 3.0), 8) == (3.0, 1.0)
    assert best_skewed_range(SampledValues(-values, 3.0), 8) == (3.0, -1.0)
    assert best_clipping_level(SampledValues([0.0, 0.0, 1.0], 1.0), 1, signed=False) == 1.0


@settings(max_examples=30)
@given(seed=st.integers(0, 100), bits=st.integers(2, 8))
def test_in_front_of_a_function_the_error_behind_it_is_the_smallest(seed, bits):
    draw = np.random.default_rng(seed)
    values = np.concatenate([draw.normal(0, 1, 200), draw.normal(-9, 3, 100)])

    def swish(x):
        return x / (1.0 + np.exp(-x))

    largest = np.abs(values).max()
    found = best_clipping_level(SampledValues(values, largest, function=swish), bits, signed=True)

    def error(level):
        return swish(reference.quantize_stream(values, level, bits)) - swish(values)

    _assert_best(found, error, largest, bits)
    # Values that swish makes nearly 0 cost the rest no resolution.
    assert found < best_clipping_level(SampledValues(values, largest), bits, signed=True)


def test_calibration_looks_behind_a_function_that_alone_reads_a_tensor():
    levels, images, swish = [], float_models.images(32), L.Activation("swish")
    for read in (swish, lambda x: L.Concatenate()([swish(x), x])):
        keras.utils.set_random_seed(0)
        norm = L.BatchNormalization(name="norm")
        model = model_of(L.Conv2D(4, 3, use_bias=False), norm, read, L.Flatten(), L.Dense(3))
        norm.set_weights([np.full(4, value) for value in (2.0, -6.0, 0.0, 1.0)])
        estimate_statistics(model, images)
        quantized = sat_tf.calibrate(sat_tf.quantize_model(model, BitPolicy.mobile(8)), images)
        levels += [level for name, level in _levels(quantized).items() if "norm" in name]
    alone, beside = levels
    assert alone < 0.8 * beside


@pytest.mark.essential
def test_statistics_are_those_of_the_quantized_network_in_the_mean_over_batches(quantized):
    images = np.concatenate([float_models.images(64), 0.2 * float_models.images(64, seed=2)])
    sat_tf.calibrate(quantized, np.round(images))
    norm = quantized.get_layer("quant_a_bn")
    before = keras.Model(quantized.input, norm.input)
    batches = [before(part).numpy() for part in np.split(np.round(images), 2)]
    layer, axes = inner_layer(norm), (0, 1, 2)
    mean = np.mean([batch.mean(axes) for batch in batches], axis=0)
    variance = np.mean([batch.var(axes, ddof=1) for batch in batches], axis=0)
    np.testing.assert_allclose(layer.moving_mean, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.moving_variance, variance, rtol=1e-3)
    assert layer.momentum == 0.99  # as it was


def _observed(model, name="quant_classifier"):
    variables = model.get_layer(name).output_variables
    return [float(variables[key]) for key in ("lowest", "highest", "observations")]


def test_the_range_of_the_logits_is_what_their_extremes_let_expect_and_the_same_again(quantized):
    sat_tf.calibrate(quantized, IMAGES)
    logits = quantized(IMAGES).numpy()
    below, above = map(reference.expected_largest, (-logits.min(1), logits.max(1)))
    assert _observed(quantized) == pytest.approx([-below, above, 1.0], rel=1e-5)
    assert below >= max(0.0, -logits.min())
    assert above >= logits.max()
    # Calibrating twice gives the same.
    levels, statistics = _levels(quantized), _statistics(quantized)
    sat_tf.calibrate(quantized, IMAGES)
    assert _levels(quantized) == levels
    for name, value in _statistics(quantized).items():
        np.testing.assert_allclose(value, statistics[name], rtol=1e-5, atol=1e-5, err_msg=name)


def _calibrated_on_features(features):
    layers = [L.Dense(3, name="logits"), L.Softmax(name="probabilities")]
    model = model_of(*layers, shape=features.shape[1:])
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8, input_type="int8"))
    return sat_tf.calibrate(quantized, np.float32(features))


def test_ranges_of_inputs_that_are_no_pictures_have_no_margin():
    features = np.random.default_rng(0).uniform(-3, 2, (64, 5)).astype(np.float32)
    observed = _observed(_calibrated_on_features(features), "quant_image_codes")
    # A margin would cost resolution in all of the network.
    assert observed[:2] == [features.min(), features.max()]


def test_inputs_that_are_integers_keep_all_of_their_values():
    integers = np.random.default_rng(0).normal(0, 8, (512, 5)).round().clip(-128, 127)
    integers[0, :2] = -128, 127
    observed = _observed(_calibrated_on_features(integers), "quant_image_codes")
    assert observed[:2] == [-128.0, 127.0]


@pytest.mark.parametrize("is_own", [True, False])
def test_certain_logits_do_not_cost_the_others_their_resolution_behind_a_softmax(is_own):
    features = np.random.default_rng(0).normal(size=(256, 2)).astype(np.float32)
    features[:8] *= 20
    end = [] if is_own else L.Softmax(name="probabilities")
    model = model_of(L.Dense(3, "softmax" if is_own else None, name="logits"), end, shape=(2,))
    kernel = np.array([[3.0, -2.0, -1.0], [-1.0, 3.0, -2.0]])
    model.get_layer("logits").set_weights([kernel, np.zeros(3)])
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8, input_type="int8"))
    sat_tf.calibrate(quantized, features)
    lowest, highest, _ = _observed(quantized, "quant_logits")
    logits = features.astype(np.float64) @ kernel

    def softmax(logits):
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def error(lowest, highest):
        return np.mean((softmax(_in_codes(logits, lowest, highest)) - softmax(logits)) ** 2)

    assert logits.min() <= lowest < 0 < highest <= logits.max()
    assert error(lowest, highest) < 0.5 * error(logits.min(), logits.max())


def _in_codes(values, lowest, highest):
    """Values as a file has them, of whose 256 codes the ends are these."""
    scale = (highest - lowest) / 255
    below = np.round(lowest / scale)
    return np.clip(np.round(values / scale), below, below + 255) * scale


@pytest.mark.parametrize(
    ("unrounded", "quantized", "expected"),
    [
        ((0.1, 1.0), (0.11, 1.01), (0.01, 1.0)),
        ((0.1, 1.0), (0.15, 1.05), (0.05, 1.05)),
        ((0.0, 1.0), (0.05, 1.05), (0.05, 1.05)),
        ((1.0, 2.0), (1.01, 2.02), (1.01, 2.02)),
    ],
    ids=["as at 8 bits", "as at 4 bits", "images of the training", "stale"],
)
def test_rounding_moves_means_and_variances_by_more_than_noise(unrounded, quantized, expected):
    statistics = [
        [Statistics(np.full(3, mean), np.full(3, variance), 0.0)]
        for mean, variance in ((0.0, 1.0), unrounded, quantized)
    ]
    (best,) = calibrate.best_statistics(*statistics)
    np.testing.assert_allclose([best.mean[0], best.variance[0]], expected, atol=1e-12)


@pytest.mark.parametrize(("far_out", "is_clipped"), [(1, True), (64, False)])
def test_inputs_are_clipped_where_that_makes_the_squared_error_smaller(far_out, is_clipped):
    features = np.random.default_rng(0).normal(size=(32, 4096)).astype(np.float32)
    features[3, :far_out] = 12.0
    quantized = _calibrated_on_features(features)
    lowest, highest, _ = _observed(quantized, "quant_image_codes")
    assert lowest <= features.min() / 2
    assert (highest < 12.0) == is_clipped

    def error(lowest, highest):
        rounded = _in_codes(features.astype(np.float64), lowest, highest)
        return np.mean((rounded - features) ** 2)

    assert error(lowest, highest) < (0.81 if is_clipped else 1.01) * error(features.min(), 12.0)


def test_no_batch_size_shrinks_a_calibrated_range(quantized):
    sat_tf.calibrate(quantized, IMAGES)
    before, weights = _observed(quantized), quantized.get_weights()
    quantized.compile(keras.optimizers.SGD(0.0), "mse")
    targets = np.zeros(quantized(IMAGES[:32]).shape)
    for size in (1, 2, 8, 32):
        quantized.set_weights(weights)
        quantized.fit(IMAGES[:32], targets, batch_size=size, verbose=0)
        lowest, highest, count = _observed(quantized)
        assert lowest <= before[0], size
        assert highest >= before[1], size
        assert count == before[2] + 32 / size


OF_VALUES = BitPolicy.mobile(8, input_type="float32", unsupported="float")
OTHERS = [pytest.param(f, marks=pytest.mark.thorough) for f in (tf.nn.softplus, tf.tanh, tf.nn.elu)]


@pytest.mark.parametrize("function", [tf.exp, *OTHERS])
def test_what_float_layers_read_is_rounded_in_keras_as_in_the_file(function, tmp_path):
    layers = [L.Dense(8, activation="relu", name="hidden"), L.Dense(2, name="variance"), function]
    model = sat_tf.quantize_model(model_of(*layers, shape=(6,)), OF_VALUES)
    x = np.random.default_rng(0).normal(0, 2, (400, 6)).astype(np.float32)
    sat_tf.calibrate(model, x)
    rounded = keras.Model(model.input, model.get_layer("quant_variance").output)(x).numpy()
    layer = model.get_layer("quant_variance")
    codes = layer.output_quantizer.code_range(layer.output_variables)
    np.testing.assert_array_equal(rounded, np.rint(rounded / codes.scale) * codes.scale)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x, training=True))
    assert all(np.any(g) for g in tape.gradient(loss, model.trainable_variables))
    proved(model, tmp_path / "model.tflite", x[:64])


@pytest.mark.filterwarnings("ignore::sat_tf.qat.layout.GuessedClippingLevelsWarning")
def test_ranges_of_what_float_layers_read_forget_the_values_before_unless_a_calibration_fails():
    layers = [L.Dense(8, name="hidden"), tf.math.asinh, L.Dense(2, name="classifier")]
    float_model = float_models.pretend_trained(model_of(*layers, shape=(6,)))
    model, expected = (sat_tf.quantize_model(float_model, OF_VALUES) for _ in range(2))
    values = np.random.default_rng(0).normal(0, 2, (64, 6)).astype(np.float32)
    for fed in (values, 100.0 * values):
        sat_tf.calibrate(model, fed)
    sat_tf.calibrate(expected, 100.0 * values)
    np.testing.assert_equal(model.get_weights(), expected.get_weights())
    inner_layer(model.get_layer("quant_hidden")).bias.assign(np.full(8, np.nan))
    before = model.get_weights()
    with pytest.raises(ValueError, match="NaN or infinite"):
        sat_tf.calibrate(model, values)
    np.testing.assert_equal(model.get_weights(), before)


@pytest.mark.parametrize(
    ("policy", "walks"),
    [(BitPolicy.mobile(4), 2), (BitPolicy(activation_bits=None, input_type="int8"), 1)],
)
def test_only_ranges_to_be_observed_need_all_images(policy, walks, monkeypatch):
    network = Network(sat_tf.quantize_model(float_models.build("mobile_block"), policy))
    found = []
    monkeypatch.setattr(calibrate, "walk", lambda *args, **options: found.append(args))
    batches = Batches((float_models.images(128),))
    calibrate.observe_ranges(network, batches, grids=SharedGrids(network))
    assert len(found) == walks


@pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")
@pytest.mark.parametrize("policy", [BitPolicy.mobile(4), BitPolicy(activation_bits=None)])
def test_the_bar_ends_full(policy, monkeypatch):
    totals, done = [], []

    @contextlib.contextmanager
    def bar(title, total, *, shown):
        totals.append(total)
        yield done.append

    monkeypatch.setattr(calibrate, "image_bar", bar)
    quantized = sat_tf.quantize_model(float_models.build("mobile_block"), policy)
    sat_tf.calibrate(quantized, IMAGES)
    assert [sum(done)] == totals


def test_either_part_can_be_left_out(quantized):
    levels, statistics = _levels(quantized), _statistics(quantized)
    sat_tf.calibrate(quantized, IMAGES, clipping_levels=False)
    assert _levels(quantized) == levels
    assert not _equal(_statistics(quantized), statistics)
    statistics = _statistics(quantized)
    sat_tf.calibrate(quantized, IMAGES, batch_normalization=False)
    assert _levels(quantized) != levels
    assert _equal(_statistics(quantized), statistics)


def test_levels_fit_the_statistics_that_are_kept():
    # The moving statistics are a hundred times those of the images.
    model = float_models.build("plain")
    for name in ("a_bn", "b_bn"):
        norm = model.get_layer(name)
        norm.moving_variance.assign(norm.moving_variance * 1e4)
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8))
    sat_tf.calibrate(quantized, IMAGES, batch_normalization=False)
    wanted = model(IMAGES).numpy()
    assert np.abs(quantized(IMAGES) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_levels_fit_what_inference_will_see_and_not_what_a_batch_does():
    # On the statistics of a batch, both networks are the same; neither has stale ones.
    levels = []
    for factor in (1.0, 1.3):
        model = float_models.build("plain")
        estimate_statistics(model, IMAGES)
        norm = model.get_layer("a_bn")
        norm.moving_variance.assign(norm.moving_variance * factor)
        quantized = sat_tf.quantize_model(model, BitPolicy.mobile(8))
        sat_tf.calibrate(quantized, IMAGES)
        rectifier = quantized.get_layer("quant_a_relu")
        levels.append(float(rectifier.output_variables["clipping_level"].numpy()))
    # A channel's offset keeps its size: less than the 12 % by which the deviations shrink.
    assert 0.87 * levels[0] < levels[1] < 0.97 * levels[0]


@pytest.mark.parametrize(
    ("name", "kept"), [("mobile_block", "/a_bn/"), ("frozen_normalization", "")]
)
def test_frozen_normalizations_and_those_called_for_inference_keep_their_statistics(name, kept):
    quantized = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    quantized.get_layer("quant_a_bn").trainable = name == "frozen_normalization"
    before = _statistics(quantized)
    sat_tf.calibrate(quantized, IMAGES)
    after = _statistics(quantized)
    found = {name for name in before if np.array_equal(before[name], after[name])}
    assert found == {name for name in before if kept in name}


def test_levels_of_rectifiers_that_never_fire_stay_where_they_are():
    model = float_models.build("without_normalization")
    bias = model.get_layer("a").bias
    bias.assign(np.full(bias.shape, -1e6))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
    sat_tf.calibrate(quantized, IMAGES)
    level = quantized.get_layer("quant_a").output_variables["clipping_level"]
    assert level.numpy() == 8.0
    assert np.isfinite(quantized(float_models.images(2))).all()


def test_layers_left_float_are_run_as_they_were_called():
    drop = functools.partial(L.Dropout(0.5, name="dropout"), training=True)
    layers = [L.Conv2D(4, 3, name="a"), L.UpSampling2D(name="up"), drop, L.Conv2D(4, 3, name="b")]
    model = float_models.pretend_trained(model_of(*layers))
    quantized = sat_tf.quantize_model(model, BitPolicy(unsupported="float"))
    sat_tf.calibrate(quantized, IMAGES)
    assert all(level != 8.0 for level in _levels(quantized).values())


FORMS = {
    "array": lambda images: images,
    "bytes": lambda images: images.astype(np.uint8),
    "tensor": tf.constant,
    "pair": lambda images: (images, np.zeros(len(images))),
    "list": lambda images: [images[:64], images[64:]],
    "iterator": lambda images: iter([images[:64], images[64:]]),
    "pairs": lambda images: [(images[:64], 0), (images[64:], 1)],
    "dataset": lambda images: tf.data.Dataset.from_tensor_slices((images, np.zeros(128))).batch(64),
    "endless": lambda images: FORMS["dataset"](images).repeat(),
    "odd": lambda images: tf.data.Dataset.from_tensor_slices(images).batch(100),
}


@functools.cache
def _levels_of(form):
    images = FORMS[form](float_models.images(128))
    return _levels(sat_tf.calibrate(_mobile_block(), images, num_images=128))


@pytest.mark.thorough
@pytest.mark.parametrize("form", [form for form in FORMS if form != "array"])
def test_images_may_come_in_any_form(form):
    assert _levels_of(form) == pytest.approx(_levels_of("array"), rel=1e-5)


def test_no_more_images_are_used_than_asked_for(quantized):
    def batches():
        yield float_models.images(40)
        yield float_models.images(40)
        raise AssertionError("asked for a third batch")

    sat_tf.calibrate(quantized, batches(), num_images=64)


def test_statistics_of_a_float_model_become_the_mean_over_batches(digits, digits_model):
    model = keras.models.clone_model(digits_model)
    model.set_weights(digits_model.get_weights())
    images = digits.train_images[:128].astype(np.float32)
    norm = model.get_layer("stem_bn")
    norm.moving_mean.assign(tf.ones_like(norm.moving_mean))
    assert estimate_statistics(model, images, num_images=128) is model
    batches = np.split(model.get_layer("stem")(images).numpy(), 2)
    mean = np.mean([batch.mean(axis=(0, 1, 2)) for batch in batches], axis=0)
    np.testing.assert_allclose(norm.moving_mean, mean, rtol=1e-4)
    kernel, before = (of.get_layer("stem").kernel for of in (model, digits_model))
    assert np.array_equal(kernel, before)


def test_stale_statistics_are_left_alone_where_the_function_is_to_be_kept():
    images = np.random.RandomState(3).uniform(0, 255, (96, 8, 8, 3)).astype(np.float32)
    kept, replaced = _mobile_block(), _mobile_block()
    before = _statistics(kept)
    with pytest.warns(StaleStatisticsWarning, match="were left as they are"):
        sat_tf.calibrate(kept, images, keep_function=True)
    assert _equal(before, _statistics(kept))
    with pytest.warns(StaleStatisticsWarning, match="were replaced.*pass keep_function=True"):
        sat_tf.calibrate(replaced, images)
    assert not _equal(before, _statistics(replaced))
    alone = _mobile_block()
    sat_tf.calibrate(alone, images, batch_normalization=False)
    assert _levels(kept) == _levels(alone)
