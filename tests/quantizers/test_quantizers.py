import io
import json
import math
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sat_tf
from sat_tf.core import asymmetric, dorefa, pact
from sat_tf.core.asymmetric import Reach
from sat_tf.core.gradients import CLIPPING_GRADIENTS
from sat_tf.exact.tflite.input_range import range_of
from sat_tf.qat.configs import AtLeast, PlacedConfig, make_variables
from sat_tf.qat.walk import Sample
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.dorefa import DorefaQuantizer, latent_kernel
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.l1 import L1Quantizer
from sat_tf.quantizers.lsq import LsqActivationQuantizer, LsqPlusQuantizer, LsqQuantizer
from sat_tf.quantizers.methods.channel_bits import ChannelBitsQuantizer
from sat_tf.quantizers.methods.kmeans import KMeansQuantizer
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.methods.qil import QilQuantizer
from sat_tf.quantizers.observers import InputQuantizer, RangeObserver, expected_largest
from sat_tf.quantizers.pact import (
    FixedGridQuantizer,
    OffsetQuantizer,
    PactQuantizer,
    StreamQuantizer,
    UnitQuantizer,
)
from sat_tf.quantizers.protocol import ActivationRequest
from sat_tf.quantizers.table import QUANTIZERS, deserialize_quantizer, serialize_quantizer
from sat_tf.quantizers.values import SMALLEST_CLIPPING_LEVEL, SampledValues
from tests import reference
from tests.conftest import mirrored
from tests.quantizers.held import built

_SIZED = {"num_bits": 3, "range_axes": (2, 3), "rescale": "constant", "fan_out": 9}
_DSQ = {"surrogate": "dsq", "surrogate_strength": 0.1}
_EWGS = {"surrogate": "ewgs", "surrogate_strength": 0.01}
_LEVEL = {"initial_clipping_level": 3.0, "rate": 0.1}
_CAPPED = {**_LEVEL, "gradient": "pact", "ceiling": 6.0}
_OF_CHANNELS = {"num_bits": 4, "lowest": 3, "highest": 7, "grid": "rounded", "over_size": False}
_CLUSTERED = {"initialization": "density", "keep_zeros": True, "reassign": True}
# Every argument with a value that is not its default.
EXAMPLES = [
    DorefaQuantizer(
        **{**_SIZED, "rescale": "stddev"},
        **_EWGS,
        grid="rounded",
        detach_max=True,
        initial_gain=2.5,
        gain_axes=(3,),
    ),
    DorefaQuantizer(num_bits=None),
    LsqQuantizer(**_SIZED, **_DSQ, start="error"),
    L1Quantizer(**_SIZED, **_DSQ, grid="rounded", over_size=False),
    KMeansQuantizer(num_bits=3, rescale="constant", fan_out=9, **_CLUSTERED),
    LqNetsQuantizer(**_SIZED, momentum=0.5),
    ChannelBitsQuantizer(**{**_SIZED, **_OF_CHANNELS}, **_DSQ),
    QilQuantizer(**_SIZED, **_EWGS, gradient_factor=0.1),
    PactQuantizer(num_bits=2, **_CAPPED),
    PactQuantizer(num_bits=2, **_DSQ),
    StreamQuantizer(num_bits=5, **_CAPPED),
    ImageQuantizer(low=(-1, -2), high=(1.0, 3.0), reversed_channels=True, observes=False),
    RangeObserver(rounds=True),
    InputQuantizer(input_type="int8"),
    UnitQuantizer(num_bits=3, signed=True),
    FixedGridQuantizer(lowest=-1.0, highest=127.0 / 128.0),
    OffsetQuantizer(num_bits=3, **_LEVEL, lowest=-0.3, share=0.2),
    LsqActivationQuantizer(
        num_bits=3, signed=True, **_CAPPED, **_EWGS, start="error", counts_batch=True
    ),
    LsqPlusQuantizer(num_bits=3, **_LEVEL, **_EWGS, lowest=-0.3, share=0.2, counts_batch=True),
]


@pytest.mark.parametrize("quantizer", EXAMPLES, ids=lambda q: type(q).__name__)
def test_a_quantizer_survives_a_trip_through_json(quantizer):
    values = json.loads(json.dumps(serialize_quantizer(quantizer)))
    assert deserialize_quantizer(values) == quantizer
    assert hash(deserialize_quantizer(values)) == hash(quantizer)
    assert type(quantizer).from_config(quantizer.get_config()) == quantizer


def test_no_quantizer_is_none():
    assert serialize_quantizer(None) is None
    assert deserialize_quantizer(None) is None


def test_every_quantizer_is_in_the_table_and_in_the_examples():
    assert set(QUANTIZERS.values()) == {type(quantizer) for quantizer in EXAMPLES}


# Arguments that are checked at once have these values, which no example has.
_OTHERS = {
    "num_bits": 6,
    "lowest": 2,
    "highest": 8,
    "grid": "narrow",
    "start": "mean",
    "initialization": "linear",
}


@pytest.mark.parametrize("quantizer", EXAMPLES, ids=lambda q: type(q).__name__)
def test_quantizers_differ_where_an_argument_does(quantizer):
    for name in quantizer.get_config():
        other = _OTHERS.get(name, [0] if name.endswith("_axes") else 0.125)
        if isinstance(quantizer.get_config()[name], bool):
            other = not quantizer.get_config()[name]
        elif name == "surrogate":
            other = "ewgs" if quantizer.surrogate == "dsq" else "dsq"
        assert type(quantizer)(**{**quantizer.get_config(), name: other}) != quantizer, name
    assert quantizer != "a quantizer"
    assert PactQuantizer(num_bits=4) != StreamQuantizer(num_bits=4)


def test_a_quantizer_shows_its_settings():
    assert repr(PactQuantizer(num_bits=4)) == (
        "PactQuantizer(num_bits=4, initial_clipping_level=8.0, gradient='calibrated', "
        "ceiling=None, rate=1.0)"
    )


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


@pytest.mark.parametrize(
    ("axes", "shape"),
    [((), ()), ((3,), (1, 1, 1, 8)), ((2, 3), (1, 1, 4, 8)), ((-1,), (1, 1, 1, 8))],
)
def test_the_gain_has_one_number_a_range(axes, shape):
    quantizer = DorefaQuantizer(num_bits=4, range_axes=axes, rescale="constant", initial_gain=2.0)
    layer, weights = built(quantizer)
    assert weights["rescale_gain"].shape == shape
    assert (weights["rescale_gain"].numpy() == 2.0).all()
    assert not layer.trainable_weights


@pytest.mark.parametrize("method", [None, "constant"])
def test_gains_of_channels_are_there_without_a_rescaling_too(method):
    latent = np.random.default_rng(0).normal(0, 0.5, (3, 3, 4, 8)).astype(np.float32)
    quantizer = DorefaQuantizer(num_bits=4, rescale=method, fan_out=72, gain_axes=(3,))
    plain = DorefaQuantizer(num_bits=4, rescale=method, fan_out=72)
    (_, weights), (_, ones) = built(quantizer), built(plain)
    gains = np.linspace(0.5, 2.0, 8, dtype=np.float32).reshape(1, 1, 1, 8)
    weights["rescale_gain"].assign(gains)
    found = quantizer(latent, training=True, variables=weights)
    np.testing.assert_allclose(
        found, plain(latent, training=True, variables=ones) * gains, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "function"),
    [(PactQuantizer, pact.quantize_activation), (StreamQuantizer, pact.quantize_stream)],
)
def test_a_clipping_quantizer_is_its_function_with_a_trainable_level(kind, function):
    x = np.random.default_rng(0).normal(0, 3, (2, 4, 4, 3)).astype(np.float32)
    for gradient in CLIPPING_GRADIENTS:
        quantizer = kind(num_bits=3, initial_clipping_level=2.5, gradient=gradient)
        layer, weights = built(quantizer)
        (level,) = layer.trainable_weights
        assert weights == {"clipping_level": level}
        assert level.numpy() == 2.5
        assert not layer.losses  # no weight decay
        with tf.GradientTape() as tape:
            value = quantizer(x, training=False, variables=weights)
        found = tape.gradient(value, level)
        with tf.GradientTape() as tape:
            expected = function(x, level, 3, gradient)
        np.testing.assert_array_equal(value, expected)
        np.testing.assert_array_equal(found, tape.gradient(expected, level))


@pytest.mark.parametrize("kind", [PactQuantizer, StreamQuantizer])
def test_the_rate_is_a_factor_on_the_gradient_of_the_level_alone(kind):
    x = tf.constant(np.random.default_rng(0).normal(0, 3, (2, 4, 4, 3)).astype(np.float32))
    values, gradients = [], []
    for rate in (1.0, 0.25):  # a power of two: the product is exact
        quantizer = kind(num_bits=3, initial_clipping_level=2.5, rate=rate)
        _, weights = built(quantizer)
        with tf.GradientTape() as tape:
            tape.watch(x)
            values.append(quantizer(x, training=False, variables=weights))
        gradients.append(tape.gradient(values[-1], [x, weights["clipping_level"]]))
    np.testing.assert_array_equal(*values)
    np.testing.assert_array_equal(gradients[0][0], gradients[1][0])
    assert gradients[1][1].numpy() == 0.25 * gradients[0][1].numpy()


@pytest.mark.parametrize(
    ("start", "ceiling", "expected"),
    [(8.0, None, 8.0), (8.0, 6.0, 6.0), (4.0, 6.0, 4.0), (8.0, 0.0, SMALLEST_CLIPPING_LEVEL)],
)
def test_a_rectifiers_maximum_caps_the_start(start, ceiling, expected):
    quantizer = PactQuantizer(num_bits=4, initial_clipping_level=start, ceiling=ceiling)
    _, weights = built(quantizer)
    assert weights["clipping_level"].numpy() == pytest.approx(expected)


def test_float_twins_clip_only_where_the_rectifier_does():
    x = tf.constant([-2.0, 0.5, 7.0, 100.0])
    assert PactQuantizer(num_bits=4).float_twin(x).numpy().tolist() == [0.0, 0.5, 7.0, 100.0]
    capped = PactQuantizer(num_bits=4, ceiling=6.0).float_twin(x)
    assert capped.numpy().tolist() == [0.0, 0.5, 6.0, 6.0]
    assert StreamQuantizer(num_bits=4).float_twin(x).numpy().tolist() == x.numpy().tolist()


def test_a_clipping_level_stays_positive():
    level = tf.Variable(-3.0, constraint=AtLeast(1e-3))
    assert level.constraint(level).numpy() == np.float32(1e-3)
    assert AtLeast.from_config(AtLeast(0.5).get_config()).minimum == 0.5


def test_an_image_passes_as_it_is_and_has_variables_that_are_not_trained():
    assert (
        built(ImageQuantizer.from_config({"image_max": 1.0}))[1] == {}
    )  # in models of before they were
    layer, weights = built(ImageQuantizer(low=0.0, high=1.0))
    assert {*weights} == {"lowest", "highest", "off_grid", "observations"}
    _, weights = built(ImageQuantizer.of_range(range_of((0, 1))))
    assert {*weights} == {
        *("lowest", "highest", "off_grid", "off_usual", "observations", "checked_by")
    }
    assert not layer.trainable_weights
    x = tf.constant([0.3])
    assert ImageQuantizer()(x, training=True, variables={}) is x


@pytest.mark.parametrize(
    ("quantizer", "line"),
    [
        (
            LsqQuantizer(num_bits=4, range_axes=(3,), surrogate="ewgs"),
            "LSQ weights of 4 bits, one scale per channel, no rescale, ewgs gradient of 0.001",
        ),
        (
            L1Quantizer(num_bits=None, rescale="constant"),
            "L1 weights not rounded, one scale per layer, constant rescale",
        ),
        (
            QilQuantizer(num_bits=4, range_axes=(3,)),
            "QIL weights of 4 bits, one scale per channel, no rescale",
        ),
        (
            KMeansQuantizer(num_bits=4, keep_zeros=True, rescale="constant"),
            "k-means weights of 4 bits, 16 values per layer, constant rescale, "
            "linear initialization, zeros kept",
        ),
        (
            KMeansQuantizer(num_bits=4, reassign=True),
            "k-means weights of 4 bits, 16 values per layer, no rescale, "
            "linear initialization, weights move between clusters",
        ),
        (
            LqNetsQuantizer(num_bits=2, range_axes=(3,)),
            "LQ-Nets weights of 2 bits, one scale per channel, no rescale",
        ),
        (
            ChannelBitsQuantizer(num_bits=3, highest=6, range_axes=(3,)),
            "L1 weights of 3 bits, one scale per channel, no rescale, "
            "2 to 6 bits per channel with that mean",
        ),
        (
            ChannelBitsQuantizer(num_bits=8, range_axes=(3,)),
            "L1 weights of 8 bits, one scale per channel, no rescale",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_lines_for_people_say_what_was_chosen(quantizer, line):
    assert quantizer.describe() == line


def _range(weights):
    return [float(weights[name]) for name in ("lowest", "highest", "observations")]


def test_the_observed_range_takes_in_extremes_and_never_shrinks():
    observer = RangeObserver()
    layer, weights = built(observer)
    assert not layer.trainable_weights
    observer(tf.constant([-1.0, 4.0]), training=True, variables=weights)
    assert _range(weights) == [-1.0, 4.0, 1.0]
    observer(tf.constant([-3.0, 2.0]), training=True, variables=weights)
    assert _range(weights) == [-3.0, 4.0, 2.0]
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


def test_an_observer_that_rounds_does_so_in_training_and_inference():
    observer = RangeObserver(rounds=True)
    _, weights = built(observer)
    x = tf.constant([-1.0, 0.4, 1.6, 254.0])
    assert observer(x, training=False, variables=weights).numpy().tolist() == x.numpy().tolist()
    for training in (True, False):
        rounded = observer(x, training=training, variables=weights)
        assert rounded.numpy().tolist() == [-1.0, 0.0, 2.0, 254.0]
    codes = observer.code_range(weights)
    assert (float(codes.scale), *codes.ends, codes.zero_point) == (1.0, -1, 254, -127)


def test_a_stream_that_training_keeps_float_is_rounded_in_inference_alone():
    observer = RangeObserver(rounds=True, trains_float=True)
    _, weights = built(observer)
    x = tf.constant([-1.0, 0.4, 1.6, 254.0])

    @tf.function
    def traced(x, training):
        return observer(x, training=training, variables=weights)

    for call in (observer, lambda x, training, variables: traced(x, tf.constant(training))):
        assert call(x, training=True, variables=weights).numpy().tolist() == x.numpy().tolist()
        rounded = call(x, training=False, variables=weights)
        assert rounded.numpy().tolist() == [-1.0, 0.0, 2.0, 254.0]
    assert observer.get_config() == {"rounds": True, "trains_float": True}
    assert RangeObserver(rounds=True).get_config() == {"rounds": True}


def test_observers_of_earlier_versions_are_read():
    kept = {"momentum": 0.99}
    assert RangeObserver.from_config(kept) == RangeObserver()
    config = {"input_type": "int8", **kept}
    assert InputQuantizer.from_config(config) == InputQuantizer(input_type="int8")


def test_the_observed_range_holds_zero():
    for batch, expected in (([2.0, 3.0], [0.0, 3.0]), ([-3.0, -2.0], [-3.0, 0.0])):
        observer = RangeObserver()
        _, weights = built(observer)
        observer(tf.constant(batch), training=True, variables=weights)
        assert _range(weights)[:2] == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_observed(bad):
    observer = RangeObserver()
    _, weights = built(observer)
    observer(tf.constant([-1.0, 4.0]), training=True, variables=weights)
    for batch in ([bad, 1.0], [bad, bad]):
        observer(tf.constant(batch), training=True, variables=weights)
    assert _range(weights) == [-1.0, 4.0, 1.0]


@pytest.mark.parametrize("training", [False, 0, None])
def test_nothing_is_observed_outside_training(training):
    observer = RangeObserver()
    _, weights = built(observer)
    x = tf.constant([-1.0, 4.0])
    assert observer(x, training=training, variables=weights) is x
    assert _range(weights) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("training", [True, False])
def test_whether_it_is_training_may_be_a_tensor(training):
    observer = RangeObserver()
    _, weights = built(observer)

    @tf.function
    def run(x, training):
        return observer(x, training=training, variables=weights)

    run(tf.constant([-1.0, 4.0]), tf.constant(training))
    assert _range(weights) == ([-1.0, 4.0, 1.0] if training else [0.0, 0.0, 0.0])


def test_observing_has_no_gradient_of_its_own():
    observer = RangeObserver()
    _, weights = built(observer)
    x = tf.constant([-1.0, 4.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = observer(x, training=True, variables=weights)
    assert tape.gradient(value, x).numpy().tolist() == [1.0, 1.0]


def test_half_precision_tensors_are_quantized_in_float32():
    x = tf.constant([0.1, 1.7], tf.bfloat16)
    quantizer = PactQuantizer(num_bits=8, initial_clipping_level=2.7)
    layer = keras.layers.Layer(dtype="mixed_bfloat16")
    weights = make_variables(layer, quantizer.variables(x.shape))
    assert weights["clipping_level"].dtype == tf.float32
    value = quantizer(x, training=False, variables=weights)
    assert value.dtype == tf.bfloat16
    expected = pact.quantize_activation(tf.cast(x, tf.float32), 2.7, 8)
    np.testing.assert_array_equal(value, tf.cast(expected, tf.bfloat16))


def test_the_clamp_of_a_quantizer_is_that_of_the_core():
    latent = tf.constant([[0.5, -2.0], [0.1, 0.3]])
    quantizer = DorefaQuantizer(num_bits=None, range_axes=(1,))
    np.testing.assert_array_equal(
        quantizer.clamp(latent), dorefa.clamp_weights(latent, range_axes=(1,))
    )


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
def test_it_is_that_of_the_reference(count, draw):
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


@pytest.mark.parametrize("maximum", [1e-6, 0.01, 0.3, 0.9])
def test_a_kernel_enters_with_its_own_size_and_gradient(maximum):
    kernel = maximum * np.array([[0.5, -1.0], [0.25, 0.0]])
    weights, m = latent_kernel(kernel)
    np.testing.assert_allclose(weights, np.arctanh(kernel), rtol=1e-12)
    # d(m tanh(W) / max|tanh|) / dW, the maximum held: the kernel's own gradient at its middle.
    np.testing.assert_allclose(m * (1.0 - np.tanh(weights) ** 2) / maximum, 1.0 - kernel**2)


@pytest.mark.parametrize("maximum", [0.91, 1.0, 40.0])
def test_no_kernel_enters_where_tanh_is_flat(maximum):
    weights, _ = latent_kernel(maximum * np.array([[0.5, -1.0]]))
    np.testing.assert_allclose(np.tanh(weights), [[0.45, -0.9]], rtol=1e-12)


def test_a_range_of_zeros_stays_zero():
    weights, maximum = latent_kernel(np.array([[0.0, 2.0], [0.0, -4.0]]), (1,))
    assert weights[:, 0].tolist() == [0.0, 0.0]
    assert maximum.tolist() == [[1.0, 4.0]]


def _batch(count, seed=0):
    draw = np.random.default_rng(seed)
    return (draw.standard_t(4, (count, 20, 30)) * 3.0).astype(np.float32)


def _parts(batch, sizes):
    return np.split(batch, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("sizes", [[40], [8] * 5, [16, 16, 8], [1] * 40])
def test_a_sample_of_parts_is_that_of_the_whole_batch(sizes):
    found, expected = Sample("tensor", io.BytesIO()), Sample("tensor", io.BytesIO())
    for seed in range(3):
        batch = _batch(40, seed)
        found.take(_parts(batch, sizes))
        expected.take([batch])
    assert found.largest == expected.largest
    np.testing.assert_array_equal(found.sampled.values, expected.sampled.values)
    np.testing.assert_array_equal(found.sampled.counts, expected.sampled.counts)


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
            for several in (shared, apart):
                for number, sample in enumerate(several):
                    sample.take([_batch(40, 2 * seed + number)])
        for one, other in zip(shared, apart, strict=True):
            np.testing.assert_array_equal(one.sampled.values, other.sampled.values)


def test_a_small_batch_is_its_own_sample():
    batch = _batch(4)
    sample = Sample("tensor", io.BytesIO())
    sample.take(_parts(batch, [2, 2]))
    np.testing.assert_array_equal(sample.sampled.values, batch.reshape(-1))
    np.testing.assert_array_equal(sample.sampled.counts, np.ones(batch.size))


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


def _wrapped(quantizer, activation):
    layer = QuantizedLayer(
        keras.layers.Activation(activation, name=activation), PlacedConfig(output=quantizer)
    )
    layer.build((None, 50))
    return layer


def test_a_unit_range_has_no_variable_and_passes_gradients():
    layer = _wrapped(UnitQuantizer(num_bits=3), "sigmoid")
    x = tf.constant(np.linspace(-6.0, 6.0, 50, dtype=np.float32)[np.newaxis])
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = layer(x)
    assert layer.weights == []
    np.testing.assert_array_equal(made, pact.quantize_activation(tf.sigmoid(x), 1.0, 3))
    slope = tf.sigmoid(x) * (1.0 - tf.sigmoid(x))
    np.testing.assert_allclose(tape.gradient(made, x), slope, rtol=1e-5, atol=1e-7)


def test_a_signed_unit_range_is_symmetric():
    made = _wrapped(UnitQuantizer(num_bits=3, signed=True), "tanh")(tf.constant([[-9.0, 0.0, 9.0]]))
    assert made.numpy().tolist() == [[-1.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("ends", "activation", "scale", "codes"),
    [
        # By hand: sigmoid is 0.00247, 0.5 and 0.99753; tanh is -0.99505, 0 and 0.46212.
        ((0.0, 255.0 / 256.0), "sigmoid", 2.0**-8, {-6.0: 1, 0.0: 128, 6.0: 255}),
        ((-1.0, 127.0 / 128.0), "tanh", 2.0**-7, {-3.0: -127, 0.0: 0, 0.5: 59, 9.0: 127}),
    ],
)
def test_a_grid_that_an_operator_fixes_has_its_codes_and_no_variable(
    ends, activation, scale, codes
):
    quantizer = FixedGridQuantizer(lowest=ends[0], highest=ends[1])
    layer = QuantizedLayer(keras.layers.Activation(activation), PlacedConfig(output=quantizer))
    x = tf.constant([list(codes)])
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = layer(x)
    assert layer.weights == []
    np.testing.assert_array_equal(made.numpy()[0] / scale, list(codes.values()))
    slope = getattr(tf, activation)(x)
    slope = slope * (1.0 - slope) if activation == "sigmoid" else 1.0 - slope**2
    inside = [code < round(ends[1] / scale) for code in codes.values()]
    gradient = tape.gradient(made, x)
    np.testing.assert_allclose(gradient, slope * np.float32([inside]), rtol=1e-5, atol=1e-7)
    found = quantizer.code_range({})
    assert (float(found.scale), found.zero_point) == (scale, -128 if ends[0] == 0.0 else 0)


def test_a_range_with_an_offset_has_a_level_that_learns_at_its_rate():
    x = tf.constant(np.linspace(-6.0, 6.0, 50, dtype=np.float32)[np.newaxis])
    quantizer = PactQuantizer.create(ActivationRequest(reach=Reach(-0.3), **SETTINGS))
    layer = _wrapped(quantizer.with_settings(initial_clipping_level=3.0), "swish")
    (level,) = layer.trainable_variables
    with tf.GradientTape() as tape:
        made = layer(x)
    by_level = float(tape.gradient(made, level))
    swish = tf.nn.silu(x)
    other = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        expected = asymmetric.quantize_offset(swish, other, 4, "pact", lowest=-0.3)
    np.testing.assert_array_equal(made, expected)
    assert by_level == pytest.approx(0.5 * float(tape.gradient(expected, other)), rel=1e-6)


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
