import io
import itertools
import json
import math
import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sat_tf
from sat_tf.core import asymmetric, pact
from sat_tf.core.asymmetric import Reach
from sat_tf.core.gradients import CLIPPING_GRADIENTS
from sat_tf.exact.tflite.input_range import range_of
from sat_tf.qat.configs import PlacedConfig, make_variables
from sat_tf.qat.walk import Sample
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.dorefa import DorefaQuantizer, latent_kernel
from sat_tf.quantizers.observers import (
    ImageQuantizer,
    InputQuantizer,
    RangeObserver,
    expected_largest,
)
from sat_tf.quantizers.pact import (
    FixedGridQuantizer,
    OffsetQuantizer,
    PactQuantizer,
    StreamQuantizer,
    UnitQuantizer,
)
from sat_tf.quantizers.protocol import ActivationRequest
from sat_tf.quantizers.quantizer_table import QUANTIZERS, deserialize_quantizer, serialize_quantizer
from sat_tf.quantizers.values import SMALLEST_CLIPPING_LEVEL, SampledValues
from tests import reference
from tests.conftest import mirrored
from tests.quantizers.held import built
from tests.quantizers.rows import others, rows

# A row of each class, with a surrogate gradient where it has one.
ROWS = {
    row.name: row
    for row in sorted([*rows(3), *others()], key=lambda row: row.config.get("surrogate") == "dsq")
}
# Arguments that are checked at once have one of two values.
CHECKED = {
    "num_bits": (6, 3),
    "lowest": (3, 2),
    "highest": (7, 8),
    "grid": ("narrow", "dorefa"),
    "start": ("mean", "error"),
    "initialization": ("linear", "density"),
    "surrogate": ("dsq", "ewgs"),
    "surrogate_strength": (0.1, 0.2),
}


def _other(name, value):
    if isinstance(value, bool):
        return not value
    values = [[0], [1]] if name.endswith("_axes") else CHECKED.get(name, (0.125, 0.25))
    return values[values[0] == value]


@pytest.mark.parametrize("name", ROWS)
def test_quantizers_differ_where_an_argument_does_and_survive_a_trip_through_json(name):
    quantizer = deserialize_quantizer({"quantizer": name, **ROWS[name].config})
    arguments = {name: getattr(quantizer, name) for name in quantizer._argument_names()}
    for argument, value in arguments.items():
        changed = type(quantizer)(**{**arguments, argument: _other(argument, value)})
        assert changed != quantizer, argument
        values = json.loads(json.dumps(serialize_quantizer(changed)))
        assert deserialize_quantizer(values) == changed
        assert hash(deserialize_quantizer(values)) == hash(changed)
        assert type(quantizer).from_config(changed.get_config()) == changed


def test_quantizers_differ_by_class_show_their_settings_and_are_read_of_earlier_versions():
    assert serialize_quantizer(None) is deserialize_quantizer(None) is None
    assert PactQuantizer(num_bits=4) not in (StreamQuantizer(num_bits=4), "a quantizer")
    assert repr(PactQuantizer(num_bits=4)) == (
        "PactQuantizer(num_bits=4, initial_clipping_level=8.0, gradient='calibrated', "
        "ceiling=None, rate=1.0)"
    )
    kept = {"momentum": 0.99}
    assert RangeObserver.from_config(kept) == RangeObserver()
    config = {"input_type": "int8", **kept}
    assert InputQuantizer.from_config(config) == InputQuantizer(input_type="int8")


@pytest.mark.parametrize("bits", [None, 1, 2, 4, 8])
@pytest.mark.parametrize("method", [None, "constant", "stddev", "none"])
def test_effective_weights_are_those_of_the_reference(bits, method):
    latent = np.random.default_rng(0).normal(0, 0.5, (3, 3, 4, 8)).astype(np.float32)
    quantizer = DorefaQuantizer(num_bits=bits, rescale=method, fan_out=72)
    _, weights = built(quantizer)
    assert set(weights) == ({"rescale_gain"} if method else set())
    if method:
        weights["rescale_gain"].assign(3.0)
    found = quantizer(latent, training=True, variables=weights).numpy()
    grid = "dorefa" if bits != 8 else "narrow"
    clear = np.ones(latent.shape, bool)
    if bits is None:
        expected = reference.clamp(latent)
    else:
        expected = reference.quantize_weights(latent, bits, grid)
        position = reference.weight_position(latent, bits, grid)
        clear = reference.distance_from_tie(position, grid) > 1e-4
    factor = reference.rescale_factor(expected, 72, method or "none", latent)
    expected = expected * factor * (3.0 if method else 1.0)
    np.testing.assert_allclose(found[clear], expected[clear], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", [None, "constant"])
@pytest.mark.parametrize(
    ("axes", "shape"),
    [((), ()), ((3,), (1, 1, 1, 8)), ((2, 3), (1, 1, 4, 8)), ((-1,), (1, 1, 1, 8))],
)
def test_the_gain_has_one_number_a_range_with_a_rescaling_and_without(axes, shape, method):
    settings = {"num_bits": 4, "rescale": method, "fan_out": 72, "initial_gain": 2.0}
    latent = np.random.default_rng(0).normal(0, 0.5, (3, 3, 4, 8)).astype(np.float32)
    quantizer = DorefaQuantizer(**settings, gain_axes=axes)
    plain = DorefaQuantizer(**{**settings, "initial_gain": 1.0})
    (layer, weights), (_, ones) = built(quantizer), built(plain)
    of_ranges = DorefaQuantizer(num_bits=4, rescale="constant", range_axes=axes)
    assert built(of_ranges)[1]["rescale_gain"].shape == weights["rescale_gain"].shape == shape
    assert (weights["rescale_gain"].numpy() == 2.0).all()
    assert not layer.trainable_weights
    gains = np.linspace(0.5, 2.0, math.prod(shape), dtype=np.float32).reshape(shape)
    weights["rescale_gain"].assign(gains)
    found = quantizer(latent, training=True, variables=weights)
    expected = plain(latent, training=True, variables=ones) * gains
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "function", "settings"),
    [
        (PactQuantizer, pact.quantize_activation, {}),
        (StreamQuantizer, pact.quantize_stream, {}),
        (OffsetQuantizer, asymmetric.quantize_offset, {"lowest": -0.3, "share": 0.1}),
    ],
)
def test_a_clipping_quantizer_is_its_function_with_a_level_that_learns_at_its_rate(
    kind, function, settings
):
    x = tf.constant(np.random.default_rng(0).normal(0, 3, (2, 4, 4, 3)).astype(np.float32))
    for gradient, rate in itertools.product(CLIPPING_GRADIENTS, (1.0, 0.25)):
        choice = {"initial_clipping_level": 2.5, "gradient": gradient, "rate": rate}
        quantizer = kind(num_bits=3, **choice, **settings)
        layer, weights = built(quantizer)
        (level,) = layer.trainable_weights
        assert weights == {"clipping_level": level}
        assert level.numpy() == 2.5
        assert not layer.losses  # no weight decay
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            value = quantizer(x, training=False, variables=weights)
            expected = function(x, level, 3, gradient, **settings)
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_array_equal(tape.gradient(value, x), tape.gradient(expected, x))
        # The rate is a power of two: the product is exact.
        assert tape.gradient(value, level) == rate * tape.gradient(expected, level)


@pytest.mark.parametrize(
    ("start", "ceiling", "expected"),
    [(8.0, None, 8.0), (8.0, 6.0, 6.0), (4.0, 6.0, 4.0), (8.0, 0.0, SMALLEST_CLIPPING_LEVEL)],
)
def test_a_rectifiers_maximum_caps_the_start_and_a_level_stays_positive(start, ceiling, expected):
    quantizer = PactQuantizer(num_bits=4, initial_clipping_level=start, ceiling=ceiling)
    _, weights = built(quantizer)
    level = weights["clipping_level"]
    assert level.numpy() == pytest.approx(expected)
    assert level.constraint(-level).numpy() == np.float32(SMALLEST_CLIPPING_LEVEL)
    again = type(level.constraint).from_config(level.constraint.get_config())
    assert again.minimum == SMALLEST_CLIPPING_LEVEL


def test_float_twins_clip_only_where_the_rectifier_does():
    x = tf.constant([-2.0, 0.5, 7.0, 100.0])
    assert PactQuantizer(num_bits=4).float_twin(x).numpy().tolist() == [0.0, 0.5, 7.0, 100.0]
    capped = PactQuantizer(num_bits=4, ceiling=6.0).float_twin(x)
    assert capped.numpy().tolist() == [0.0, 0.5, 6.0, 6.0]
    assert StreamQuantizer(num_bits=4).float_twin(x).numpy().tolist() == x.numpy().tolist()


def test_an_image_passes_as_it_is_and_has_variables_that_are_not_trained():
    of_before = ImageQuantizer.from_config({"image_max": 1.0})
    assert built(of_before)[1] == {}
    layer, weights = built(ImageQuantizer(low=0.0, high=1.0))
    assert {*weights} == {"lowest", "highest", "off_grid", "observations"}
    _, weights = built(ImageQuantizer.of_range(range_of((0, 1))))
    assert {*weights} == {
        *("lowest", "highest", "off_grid", "off_usual", "observations", "checked_by")
    }
    assert not layer.trainable_weights
    x = tf.constant([0.3])
    assert ImageQuantizer()(x, training=True, variables={}) is x


# Quantizers, and what is said of them: see the file.
LINES = [
    line.split(" -> ")
    for line in pathlib.Path(__file__).with_name("lines.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("quantizer", "line"), LINES)
def test_lines_for_people_say_what_was_chosen(quantizer, line):
    assert eval(quantizer, dict(QUANTIZERS)).describe() == line


def _range(weights):
    return [float(weights[name]) for name in ("lowest", "highest", "observations")]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[-1.0, 4.0], [-3.0, 2.0], [0.5, 0.25]], [-3.0, 4.0, 3.0]),
        ([[2.0, 3.0]], [0.0, 3.0, 1.0]),
        ([[-3.0, -2.0]], [-3.0, 0.0, 1.0]),
        *(
            ([[-1.0, 4.0], [bad, 1.0], [bad, bad]], [-1.0, 4.0, 1.0])
            for bad in (math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_the_observed_range_takes_in_finite_extremes_holds_zero_and_never_shrinks(
    batches, expected
):
    observer = RangeObserver()
    layer, weights = built(observer)
    assert not layer.trainable_weights
    for batch in batches:
        observer(tf.constant(batch), training=True, variables=weights)
    assert _range(weights) == expected
    observer.remember(-8.0, 1.0, weights, 5)
    observer(tf.constant([0.5, 0.25]), training=True, variables=weights)
    assert _range(weights) == [-8.0, 1.0, 6.0]


@pytest.mark.parametrize("quantizer", [RangeObserver(), InputQuantizer(input_type="float32")])
def test_the_observed_range_does_not_depend_on_the_batch_size(quantizer):
    values = np.random.default_rng(0).standard_t(3, (256, 8)).astype(np.float32)
    for size in (1, 2, 8, 32, 256):
        _, weights = built(quantizer)
        for start in range(0, 256, size):
            quantizer(tf.constant(values[start : start + size]), training=True, variables=weights)
        assert _range(weights) == [values.min(), values.max(), 256 / size]


@pytest.mark.parametrize("is_traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("trains_float", [False, True])
def test_an_observer_that_rounds_does_so_in_training_too_unless_it_is_kept_float(
    trains_float, is_traced
):
    observer = RangeObserver(rounds=True, trains_float=trains_float)
    _, weights = built(observer)
    x = tf.constant([-1.0, 0.4, 1.6, 254.0])
    rounded = [-1.0, 0.0, 2.0, 254.0]
    # Nothing has been observed that could be rounded.
    assert observer(x, training=False, variables=weights).numpy().tolist() == x.numpy().tolist()

    @tf.function
    def traced(x, training):
        return observer(x, training=training, variables=weights)

    def called(training):
        if is_traced:
            return traced(x, tf.constant(training)).numpy().tolist()
        return observer(x, training=training, variables=weights).numpy().tolist()

    assert called(training=True) == (x.numpy().tolist() if trains_float else rounded)
    assert called(training=False) == rounded
    codes = observer.code_range(weights)
    assert (float(codes.scale), *codes.ends, codes.zero_point) == (1.0, -1, 254, -127)
    kept = {"trains_float": True} if trains_float else {}
    assert observer.get_config() == {"rounds": True, **kept}


@pytest.mark.parametrize(
    "quantizer",
    [
        RangeObserver(rounds=True, is_fixed=True),
        InputQuantizer(input_type="int8", fed_by="state_out", is_fixed=True),
    ],
)
def test_training_leaves_the_range_of_a_state_and_rounds_to_it(quantizer):
    _, weights = built(quantizer)
    quantizer.remember(-1.0, 254.0, weights, 3)
    x = tf.constant([-5.0, -1.0, 0.4, 1.6, 900.0])
    for training in (True, tf.constant(True), False):
        rounded = quantizer(x, training=training, variables=weights)
        assert rounded.numpy().tolist() == [-1.0, -1.0, 0.0, 2.0, 254.0]
    assert _range(weights) == [-1.0, 254.0, 3.0]
    again = deserialize_quantizer(serialize_quantizer(quantizer))
    assert (again, again.is_fixed, again.fed_by) == (quantizer, True, quantizer.fed_by)


@pytest.mark.parametrize("training", [False, 0, None])
def test_nothing_is_observed_outside_training(training):
    observer = RangeObserver()
    _, weights = built(observer)
    x = tf.constant([-1.0, 4.0])
    assert observer(x, training=training, variables=weights) is x
    assert _range(weights) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("training", [True, False])
def test_whether_it_is_training_may_be_a_tensor_and_observing_has_no_gradient(training):
    observer = RangeObserver()
    _, weights = built(observer)

    @tf.function
    def gradient(x, training):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = observer(x, training=training, variables=weights)
        return tape.gradient(value, x)

    found = gradient(tf.constant([-1.0, 4.0]), tf.constant(training))
    assert found.numpy().tolist() == [1.0, 1.0]
    assert _range(weights) == ([-1.0, 4.0, 1.0] if training else [0.0, 0.0, 0.0])


def test_a_layer_of_half_precision_keeps_levels_in_float32():
    quantizer = PactQuantizer(num_bits=8, initial_clipping_level=2.7)
    layer = keras.layers.Layer(dtype="mixed_bfloat16")
    weights = make_variables(layer, quantizer.variables((2,)))
    assert weights["clipping_level"].dtype == tf.float32
    value = quantizer(tf.constant([0.1, 1.7], tf.bfloat16), training=False, variables=weights)
    assert value.dtype == tf.bfloat16


@pytest.mark.thorough
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_two_replicas_observe_the_range_of_the_whole_batch(activation):
    images = keras.Input((4,))
    model = keras.Model(images, keras.layers.Dense(3, activation=activation)(images))
    batch = np.random.RandomState(0).uniform(0, 255, (8, 4)).astype(np.float32)
    found = []
    for count in (1, 2):
        with mirrored(count).scope():
            quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
            quantized.compile(keras.optimizers.SGD(0.0), "mse")
        quantized.fit(batch, np.zeros((8, 3), np.float32), batch_size=8, verbose=0)
        variables = quantized.layers[-1].output_variables
        found.append([variables[name].numpy() for name in ("lowest", "highest", "observations")])
    assert found[0][0] < 0.0 < found[0][1]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], 3.0),
        ([-3.0], 0.0),
        ([], 0.0),
        ([np.nan, np.inf, 2.0], 2.0),
        ([6.0] * 50 + [1.0] * 50, 6.0),  # all of the tenth end at one bound
        ([1.0] * 9 + [2.0], 2.0 + np.log(30.0)),  # one value is 1 above the tenth's threshold
        ([*range(20)], 19.0 + 1.5 * np.log(30.0)),  # 18 and 19 are 1.5 above 17, in the mean
    ],
)
def test_the_largest_value_that_is_expected_worked_by_hand(values, expected):
    assert expected_largest(np.array(values)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("count", [1, 7, 64, 513])
@pytest.mark.parametrize("draw", ["normal", "standard_cauchy", "random"])
def test_the_largest_value_that_is_expected_is_that_of_the_reference(count, draw):
    values = getattr(np.random.default_rng(count), draw)(size=count)
    expected = reference.expected_largest(values)
    assert expected_largest(values.astype(np.float32)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("draw", "share"), [("normal", 1e-3), ("laplace", 2e-3), ("random", 1e-5)])
def test_few_held_out_values_are_larger(draw, share):
    rng = np.random.default_rng(0)
    seen, others = getattr(rng, draw)(size=(100, 512)), getattr(rng, draw)(size=100_000)
    beyond = [np.mean(others > expected_largest(values)) for values in seen]
    assert np.mean(beyond) < share
    # The largest of the calibration images would be exceeded by one in 513 by definition.
    assert np.mean([np.mean(others > values.max()) for values in seen]) > np.mean(beyond)


KERNELS = hnp.arrays(np.float64, (2, 3, 4), elements=st.floats(-1e3, 1e3))


@given(kernel=KERNELS, axes=st.sampled_from([(), (2,), (1, 2), (-1,)]))
def test_the_clamped_latent_kernel_is_the_kernel_divided_by_its_maximum(kernel, axes):
    weights, maximum = latent_kernel(kernel, axes)
    assert np.abs(weights).max() <= np.arctanh(0.9)
    assert (maximum > 0).all()
    clamped = reference.clamp(weights, axes)
    np.testing.assert_allclose(clamped * maximum, kernel, atol=1e-12 * max(1, np.abs(kernel).max()))


@pytest.mark.parametrize("maximum", [1e-6, 0.01, 0.3, 0.9, 0.91, 1.0, 40.0])
def test_a_kernel_enters_with_its_own_size_and_gradient_but_not_where_tanh_is_flat(maximum):
    kernel = maximum * np.array([[0.5, -1.0], [0.25, 0.0]])
    weights, m = latent_kernel(kernel)
    if maximum > 0.9:
        np.testing.assert_allclose(np.tanh(weights), 0.9 / maximum * kernel, rtol=1e-12)
        return
    np.testing.assert_allclose(weights, np.arctanh(kernel), rtol=1e-12)
    # d(m tanh(W) / max|tanh|) / dW, the maximum held: the kernel's own gradient at its middle.
    np.testing.assert_allclose(m * (1.0 - np.tanh(weights) ** 2) / maximum, 1.0 - kernel**2)
    weights, maximum = latent_kernel(np.array([[0.0, 2.0], [0.0, -4.0]]), (1,))
    assert weights[:, 0].tolist() == [0.0, 0.0]
    assert maximum.tolist() == [[1.0, 4.0]]


def _batch(count, seed=0):
    draw = np.random.default_rng(seed)
    return (draw.standard_t(4, (count, 20, 30)) * 3.0).astype(np.float32)


def _parts(batch, sizes):
    return np.split(batch, np.cumsum(sizes)[:-1])


def _assert_same(one, other):
    assert one.largest == other.largest
    np.testing.assert_array_equal(one.sampled.values, other.sampled.values)
    np.testing.assert_array_equal(one.sampled.counts, other.sampled.counts)


@pytest.mark.parametrize("sizes", [[40], [8] * 5, [16, 16, 8], [1] * 40])
def test_a_sample_of_parts_is_that_of_the_whole_batch(sizes):
    found, expected = Sample("tensor", io.BytesIO()), Sample("tensor", io.BytesIO())
    for seed in range(3):
        batch = _batch(40, seed)
        found.take(_parts(batch, sizes))
        expected.take([batch])
    _assert_same(found, expected)
    small, batch = Sample("tensor", io.BytesIO()), _batch(4)  # which is its own sample
    small.take(_parts(batch, [2, 2]))
    np.testing.assert_array_equal(small.sampled.values, batch.reshape(-1))
    np.testing.assert_array_equal(small.sampled.counts, np.ones(batch.size))


def test_a_sample_has_values_at_random_and_all_of_the_largest():
    batch = _batch(300)
    sample = Sample("tensor", io.BytesIO())
    sample.take(_parts(batch, [128, 128, 44]))
    values, counts = sample.sampled.values, sample.sampled.counts
    tail, others = np.split(values, [np.count_nonzero(counts == 1.0)])
    of_tail, of_others = np.split(counts, [len(tail)])
    bound = np.abs(tail).min()
    flat = batch.reshape(-1)
    np.testing.assert_array_equal(tail, flat[np.abs(flat) >= bound])
    assert 1500 < len(tail) < 2600
    assert np.abs(others).max() < bound
    assert np.isin(others, flat).all()
    assert set(of_tail) == {1.0}
    # Together they stand for all values.
    assert np.sum(of_tail) + np.sum(of_others) == pytest.approx(flat.size)
    assert sample.largest == np.abs(flat).max()


def test_samples_that_share_a_file_have_their_own_values():
    with tempfile.SpooledTemporaryFile(2**16) as file:
        shared = [Sample("one", file), Sample("other", file)]
        apart = [Sample("one", io.BytesIO()), Sample("other", io.BytesIO())]
        for seed in range(4):
            for samples in (shared, apart):
                for number, sample in enumerate(samples):
                    sample.take([_batch(40, 2 * seed + number)])
        for one, other in zip(shared, apart, strict=True):
            _assert_same(one, other)


SETTINGS = {"num_bits": 4, "gradient": "pact", "ceiling": None, "rate": 0.5}


@pytest.mark.parametrize(
    ("reach", "expected"),
    [
        (Reach(0.0, highest=1.0), UnitQuantizer(num_bits=4)),
        (Reach(-1.0, highest=1.0), UnitQuantizer(num_bits=4, signed=True)),
        (Reach(-1.0, highest=0.5), FixedGridQuantizer(num_bits=4, lowest=-1.0, highest=0.5)),
        (Reach(0.0), PactQuantizer(**SETTINGS)),
        (Reach(), StreamQuantizer(**SETTINGS)),
        (Reach(-0.3), OffsetQuantizer(lowest=-0.3, share=0.0, **SETTINGS)),
        (Reach(0.0, share=0.2), OffsetQuantizer(lowest=0.0, share=0.2, **SETTINGS)),
    ],
)
def test_each_reach_has_its_quantizer(reach, expected):
    found = PactQuantizer.create(ActivationRequest(reach=reach, **SETTINGS))
    assert found == expected
    assert deserialize_quantizer(serialize_quantizer(found)) == expected


# By hand: sigmoid is 0.00247, 0.5, 0.73106 and 0.99753; tanh is -0.99505, 0, 0.46212 and 1.
@pytest.mark.parametrize(
    ("quantizer", "activation", "scale", "codes"),
    [
        (UnitQuantizer(num_bits=3), "sigmoid", 1 / 7, {-6.0: 0, 1.0: 5, 6.0: 7}),
        (UnitQuantizer(num_bits=3, signed=True), "tanh", 1 / 3, {-3.0: -3, 0.0: 0, 0.5: 1, 9.0: 3}),
        (
            FixedGridQuantizer(lowest=0.0, highest=255.0 / 256.0),
            *("sigmoid", 2.0**-8, {-6.0: 1, 0.0: 128, 6.0: 255}),
        ),
        (
            FixedGridQuantizer(lowest=-1.0, highest=127.0 / 128.0),
            *("tanh", 2.0**-7, {-3.0: -127, 0.0: 0, 0.5: 59, 9.0: 127}),
        ),
    ],
    ids=str,
)
def test_a_range_that_a_function_or_an_operator_fixes_has_its_codes_and_no_variable(
    quantizer, activation, scale, codes
):
    layer = QuantizedLayer(keras.layers.Activation(activation), PlacedConfig(output=quantizer))
    x = tf.constant([list(codes)])
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = layer(x)
    assert layer.weights == []
    expected = np.float32(scale) * np.float32([*codes.values()])
    np.testing.assert_array_max_ulp(made.numpy()[0], expected, np.log2(scale) % 1 > 0)
    of_float = getattr(tf, activation)(x).numpy()
    slope = of_float * (1.0 - of_float) if activation == "sigmoid" else 1.0 - of_float**2
    inside = of_float < getattr(quantizer, "highest", 1.0)
    np.testing.assert_allclose(tape.gradient(made, x), slope * inside, rtol=1e-5, atol=1e-7)
    found = quantizer.code_range({})
    assert float(found.scale) == pytest.approx(scale)
    assert found.zero_point == (0 if activation == "tanh" else 127 - max(codes.values()))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_best_level_has_no_larger_error_than_any_other(bits):
    values = np.asarray(tf.nn.silu(np.random.default_rng(0).normal(0.0, 3.0, 3000)), np.float32)
    quantizer = OffsetQuantizer(num_bits=bits, lowest=-0.2785)

    def error(level):
        made = asymmetric.quantize_offset(values, level, bits, lowest=-0.2785)
        return float(np.mean(np.abs(made - values) ** (4 if bits == 8 else 2)))

    best = quantizer.best_level(SampledValues(values, 0.0))
    # Floats round the same levels in another order.
    assert error(best) <= min(error(np.max(values) * i / 20.0) for i in range(1, 21)) * 1.0001


# -- 16 bits ---------------------------------------------------------------------------------------


def _wide(**request):
    return PactQuantizer.create(ActivationRequest(num_bits=16, **request))


@pytest.mark.parametrize(
    ("request_", "ends"),
    [
        ({"signed": False}, (0, 32767)),
        ({"signed": True, "skews": True}, (-32768, 32767)),
        ({"reach": Reach(-0.3)}, (-32768, 32767)),
        ({"reach": asymmetric.UNIT}, (0, 32767)),
    ],
)
def test_codes_of_16_bits_are_around_0_whatever_the_range(request_, ends):
    quantizer = _wide(**request_)
    variables = make_variables(keras.layers.Layer(), quantizer.variables((None, 4)))
    found = quantizer.code_range(variables)
    assert found.ends == ends
    step = quantizer.initial_clipping_level / max(map(abs, ends))
    assert float(found.scale) == pytest.approx(step, rel=1e-6)
    values = tf.random.stateless_normal((1000,), (1, 2), stddev=5.0)
    codes = quantizer(values, False, variables) / found.scale
    expected = reference.round_half_up(values.numpy().astype(np.float64) / float(found.scale))
    expected = np.clip(expected, *ends)
    # float32 has 8 bits below a code: a few values next to a tie get the other one.
    assert np.max(np.abs(codes - expected)) < 1.01
    assert np.mean(np.abs(codes - expected) > 0.01) < 0.01


def test_an_observer_of_16_bits_is_symmetric_and_saves_its_bits():
    observer = RangeObserver(rounds=True, num_bits=16)
    variables = make_variables(keras.layers.Layer(), observer.variables((None, 4)))
    observer.remember(-1.0, 4.0, variables, 1)
    found = observer.code_range(variables)
    assert found.ends == (-32768, 32767)
    assert float(found.scale) == np.float32(4.0 / 32767)
    rounded = observer(tf.constant([-1.0, 0.0, 5.0]), False, variables)
    np.testing.assert_allclose(rounded, [-1.0, 0.0, 4.0], atol=float(found.scale))
    assert deserialize_quantizer(serialize_quantizer(observer)) == observer
    assert "num_bits" not in RangeObserver().get_config()  # as earlier releases have it
