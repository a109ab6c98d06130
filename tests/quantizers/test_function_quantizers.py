import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import asymmetric, pact
from sat_tf.core.asymmetric import Reach
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.pact import (
    FixedGridQuantizer,
    OffsetQuantizer,
    PactQuantizer,
    StreamQuantizer,
    UnitQuantizer,
)
from sat_tf.quantizers.protocol import ActivationRequest
from sat_tf.quantizers.table import deserialize_quantizer, serialize_quantizer
from sat_tf.quantizers.values import SampledValues

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
