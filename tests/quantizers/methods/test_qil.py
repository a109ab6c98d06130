"""QIL against a table by hand, the reference in float64, and properties at all bits."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate
from sat_tf.quantizers.methods import qil
from sat_tf.quantizers.methods.qil import SMALLEST_DISTANCE, QilQuantizer
from sat_tf.quantizers.protocol import Predecessor, WeightRequest
from sat_tf.quantizers.table import make_weight_quantizer
from tests import reference
from tests.core.execution import LONG_MODES, MODES, array, draw, tensor, value_and_gradients
from tests.quantizers.held import SHAPE, built, drawn, started

BITS = range(2, 9)
# Nearer than this to a tie, in codes, float32 may round either way.
TIE = 1e-3
NAMES = ("interval_center", "interval_distance")


def _interval(center, distance):
    return {"interval_center": np.float32(center), "interval_distance": np.float32(distance)}


def _weights(latent, center, distance, bits, upstream=None, mode="eager", **options):
    quantizer = QilQuantizer(num_bits=bits, **{"gradient_factor": 1.0, **options})
    return value_and_gradients(
        lambda w, *values: quantizer.quantized(w, dict(zip(NAMES, values, strict=True)), bits),
        [latent, *_interval(center, distance).values()],
        upstream,
        mode,
    )


def _codes_and_scale(latent, center, distance, bits):
    quantizer, variables = QilQuantizer(num_bits=bits), _interval(center, distance)
    found = quantizer.integer_weights(tensor(latent), variables)
    return array(found.codes), array(found.scales)


# 3 bits: codes -3..3, c = 2 and d = 1: from 1 to 3, one code is 1 of 3. The upstream gradient is 1.
#   w        -9    -3   -2.5  -1.2   -1   -0.5    0    0.9   1    1.4    2     3
#   t         1     1   0.75  0.1     0     0     0     0    0    0.2   0.5    1
#   code     -3    -3    -2    0      0     0     0     0    0     1     2     3     (ties go up)
#   dq/dw     0     0   1.5   1.5     0     0     0     0    0    1.5   1.5    0
#   |w| - c               0.5  -0.8                              -0.6    0
#   dq/dc                1.5   1.5                               -1.5  -1.5
#   dq/dd               0.75  -1.2                                0.9    0
@pytest.mark.parametrize("mode", MODES)
def test_3_bit_weights_worked_by_hand(mode):
    w = np.array([-9, -3, -2.5, -1.2, -1, -0.5, 0, 0.9, 1, 1.4, 2, 3], np.float32)
    value, by_w, by_c, by_d = _weights(w, 2.0, 1.0, 3, mode=mode)
    codes = [-3, -3, -2, 0, 0, 0, 0, 0, 0, 1, 2, 3]
    assert value.tolist() == codes
    assert _codes_and_scale(w, 2.0, 1.0, 3)[0].tolist() == codes
    assert by_w.tolist() == [0, 0, 1.5, 1.5, 0, 0, 0, 0, 0, 1.5, 1.5, 0]
    assert by_c == pytest.approx(0.0, abs=1e-6)
    assert by_d == pytest.approx(0.75 - 1.2 + 0.9, abs=1e-6)
    _, by_w, by_c, by_d = _weights(w[9:], 2.0, 1.0, 3, mode=mode, gradient_factor=0.1)
    assert by_w.tolist() == [1.5, 1.5, 0]
    assert (by_c, by_d) == (pytest.approx(-0.3), pytest.approx(0.09))


@pytest.mark.parametrize("mode", LONG_MODES)
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
@pytest.mark.parametrize("bits", BITS)
def test_weights_and_gradients_are_those_of_the_reference(bits, axes, mode):
    latent, upstream = draw(), draw(seed=1)
    shape = [size if axis in axes else 1 for axis, size in enumerate(latent.shape)]
    shape = shape if axes else ()
    center, distance = (
        (np.abs(draw(shape, seed, 0.2)) + np.float32(0.3)).astype(np.float32) for seed in (2, 3)
    )
    units = reference.qil_position(latent, center, distance) * (2 ** (bits - 1) - 1)
    tie = np.abs(units - np.floor(units) - 0.5) < TIE
    latent[tie] *= 1.02
    for surrogate in (STRAIGHT_THROUGH, Surrogate("ewgs", 0.5), Surrogate("dsq")):
        value, by_w, *by_interval = _weights(
            latent,
            center,
            distance,
            bits,
            upstream,
            mode,
            surrogate=surrogate.name,
            surrogate_strength=surrogate.strength,
        )
        expected = reference.qil_quantize(latent, center, distance, bits)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
        names = surrogate.name, surrogate.strength
        wanted, *slopes = reference.qil_gradients(latent, center, distance, bits, upstream, *names)
        np.testing.assert_allclose(by_w, wanted, rtol=2e-3, atol=2e-4)
        shared = tuple(axis for axis in range(4) if axis not in axes)
        for found, each in zip(by_interval, slopes, strict=True):
            total = np.sum(each, axis=shared, keepdims=bool(axes))
            np.testing.assert_allclose(found, total, rtol=2e-3, atol=5e-3)


@given(
    bits=st.sampled_from(BITS),
    center=st.floats(0.0, 4.0, width=32),
    distance=st.floats(2.0**-8, 4.0, width=32),
    latent=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-9, 9, width=32)),
)
def test_codes_fit_their_bits_keep_the_sign_and_prune_and_clip(bits, center, distance, latent):
    codes, scale = _codes_and_scale(latent, center, distance, bits)
    largest = QilQuantizer(num_bits=bits).largest_code
    assert np.abs(codes).max() <= largest
    assert (codes * np.sign(latent) >= 0).all()
    assert (codes[np.abs(latent) < center - 1.01 * distance] == 0).all()
    beyond = np.abs(latent) > center + 1.01 * distance
    assert (np.abs(codes[beyond]) == largest).all()
    value, *_ = _weights(latent, center, distance, bits)
    np.testing.assert_array_equal(value, codes.astype(np.float32) * scale.astype(np.float32))


# QIL is the narrow grid up to the largest weight where nothing is pruned or clipped.
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("axes", [(), (3,)])
def test_it_starts_at_the_largest_weight(bits, axes):
    latent = draw()
    latent[0, 0, 0, 0] = np.inf  # left out, as NaN is
    half = array(qil.first_end(latent, range_axes=axes)) / np.float32(2.0)
    latent[0, 0, 0, 0] = 0.0
    largest = np.max(np.abs(latent), axis=(0, 1, 2) if axes else None, keepdims=True)
    np.testing.assert_array_equal(np.ravel(half), np.ravel(largest) / 2)
    value, by_w, _, _ = _weights(latent, half, half, bits)
    step = largest / QilQuantizer(num_bits=bits).largest_code
    assert (np.abs(value - latent) <= 0.5001 * step).all()
    inner = (np.abs(latent) > 0.0) & (np.abs(latent) < 0.999 * largest)
    np.testing.assert_allclose(by_w[inner], 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("range_", "shape"), [("layer", ()), ("channel", (1, 1, 1, 8))], ids=["layer", "channel"]
)
@pytest.mark.parametrize("bits", range(2, 9))
def test_the_interval_starts_from_0_to_the_largest_weight(bits, range_, shape):
    quantizer = make_weight_quantizer("qil", WeightRequest(num_bits=bits, range=range_))
    kernel = drawn()
    layer, variables = started(quantizer, kernel)
    assert variables.keys() == {"interval_center", "interval_distance"}
    assert [v.name.split(":")[0] for v in layer.trainable_weights] == list(variables)
    assert not layer.losses  # no weight decay
    wanted = np.max(np.abs(kernel), axis=(0, 1, 2) if shape else None) / 2
    for variable in variables.values():
        assert variable.shape == shape
        np.testing.assert_array_equal(np.ravel(variable), np.ravel(wanted))
    found = quantizer.integer_weights(kernel, variables)
    assert np.abs(found.codes).max() == 2 ** (bits - 1) - 1
    assert found.scales.shape == (1, 1, 1, 8 if shape else 1)


def test_a_channel_of_zeros_has_the_interval_of_its_layer_and_a_layer_of_zeros_keeps_its_own():
    kernel = drawn()
    kernel[..., 2] = 0.0
    quantizer = QilQuantizer(num_bits=4, range_axes=(3,))
    _, variables = started(quantizer, kernel)
    ends = 2.0 * variables["interval_distance"].numpy().ravel()
    assert ends[2] == np.abs(kernel).max()
    _, variables = built(quantizer)
    own = variables["interval_center"].numpy()
    quantizer.begin(tf.Variable(tf.zeros(SHAPE)), variables)
    np.testing.assert_array_equal(variables["interval_center"], own)
    assert (own > 0.0).all()


def test_a_step_cannot_turn_the_interval_inside_out():
    layer, variables = started(QilQuantizer(num_bits=4), drawn())
    optimizer = keras.optimizers.SGD(1.0)
    ones = [tf.fill(v.shape, 1e6) for v in layer.trainable_weights]
    optimizer.apply_gradients(zip(ones, layer.trainable_weights, strict=True))
    assert float(variables["interval_center"]) == 0.0
    assert float(variables["interval_distance"]) == np.float32(SMALLEST_DISTANCE)


def test_the_interval_goes_to_other_bits_and_starts_anew_with_other_ranges():
    kernel = drawn()
    old = QilQuantizer(num_bits=8, range_axes=(3,))
    _, old_variables = started(old, kernel)
    old_variables["interval_center"].assign(old_variables["interval_center"] * 1.25)
    of_channels, of_layer = (QilQuantizer(num_bits=3, range_axes=axes) for axes in ((3,), ()))
    for new, same in ((of_channels, True), (of_layer, False)):
        _, variables = started(new, 3.0 * kernel)
        new.carry(
            tf.constant(kernel), variables, Predecessor(old, old_variables, keep_function=True)
        )
        _, fresh = started(new, kernel)
        wanted = old_variables if same else fresh
        np.testing.assert_array_equal(variables["interval_center"], wanted["interval_center"])
