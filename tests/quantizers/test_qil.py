"""The quantizer of QIL: its variables, their start, and what it refuses."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.tfmot_adapter import make_variables
from sat_tf.quantizers.protocol import Predecessor, WeightRequest
from sat_tf.quantizers.qil import SMALLEST_DISTANCE, QilQuantizer
from sat_tf.quantizers.table import make_weight_quantizer

SHAPE = (3, 3, 4, 8)


def _kernel(seed=0, deviation=0.3):
    return np.random.default_rng(seed).normal(0, deviation, SHAPE).astype(np.float32)


def _started(quantizer, kernel):
    layer = keras.layers.Layer()
    variables = make_variables(layer, quantizer.variables(SHAPE))
    quantizer.begin(tf.Variable(kernel), variables)
    return layer, variables


@pytest.mark.parametrize(
    ("range_", "shape"), [("layer", ()), ("channel", (1, 1, 1, 8))], ids=["layer", "channel"]
)
@pytest.mark.parametrize("bits", range(2, 9))
def test_the_interval_starts_from_0_to_the_largest_weight(bits, range_, shape):
    quantizer = make_weight_quantizer("qil", WeightRequest(num_bits=bits, range=range_))
    kernel = _kernel()
    layer, variables = _started(quantizer, kernel)
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
    kernel = _kernel()
    kernel[..., 2] = 0.0
    quantizer = QilQuantizer(num_bits=4, range_axes=(3,))
    _, variables = _started(quantizer, kernel)
    ends = 2.0 * variables["interval_distance"].numpy().ravel()
    assert ends[2] == np.abs(kernel).max()
    layer = keras.layers.Layer()
    variables = make_variables(layer, quantizer.variables(SHAPE))
    built = variables["interval_center"].numpy()
    quantizer.begin(tf.Variable(tf.zeros(SHAPE)), variables)
    np.testing.assert_array_equal(variables["interval_center"], built)
    assert (built > 0.0).all()


def test_a_step_cannot_turn_the_interval_inside_out():
    layer, variables = _started(QilQuantizer(num_bits=4), _kernel())
    optimizer = keras.optimizers.SGD(1.0)
    ones = [tf.fill(v.shape, 1e6) for v in layer.trainable_weights]
    optimizer.apply_gradients(zip(ones, layer.trainable_weights, strict=True))
    assert float(variables["interval_center"]) == 0.0
    assert float(variables["interval_distance"]) == np.float32(SMALLEST_DISTANCE)


def test_the_interval_goes_to_other_bits_and_starts_anew_with_other_ranges():
    kernel = _kernel()
    old = QilQuantizer(num_bits=8, range_axes=(3,))
    _, old_variables = _started(old, kernel)
    old_variables["interval_center"].assign(old_variables["interval_center"] * 1.25)
    of_channels, of_layer = (QilQuantizer(num_bits=3, range_axes=axes) for axes in ((3,), ()))
    for new, same in ((of_channels, True), (of_layer, False)):
        _, variables = _started(new, 3.0 * kernel)
        new.carry(
            tf.constant(kernel), variables, Predecessor(old, old_variables, keep_function=True)
        )
        _, fresh = _started(new, kernel)
        wanted = old_variables if same else fresh
        np.testing.assert_array_equal(variables["interval_center"], wanted["interval_center"])


def test_what_is_learnt_moves_by_the_factor():
    kernel, found = _kernel(), {}
    for factor in (0.0, 0.01, 0.02):
        quantizer = QilQuantizer(num_bits=3, gradient_factor=factor)
        _, variables = _started(quantizer, kernel)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(quantizer(kernel, True, variables) * _kernel(1))
        found[factor] = tape.gradient(total, list(variables.values()))
    assert all(float(each) == 0.0 for each in found[0.0])
    for one, two in zip(found[0.01], found[0.02], strict=True):
        assert float(two) == pytest.approx(2.0 * float(one), rel=1e-5)
        assert float(one) != 0.0


@pytest.mark.parametrize("field", ["weight_bits", "first_last_weight_bits"])
def test_1_bit_is_refused_by_the_policy(field):
    with pytest.raises(ValueError, match=f"{field}=1 with weight_quantizer='qil'.*give it 2"):
        BitPolicy(**{"weight_bits": 4, "weight_quantizer": "qil", field: 1})
    with pytest.raises(ValueError, match="'dorefa' or 'l1'"):
        QilQuantizer(num_bits=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gradient_facto": 0.1}, "Did you mean gradient_factor"),
        ({"gradient_factor": -1.0}, "expected a number of 0 or more"),
        ({"gradient_factor": True}, "expected a number of 0 or more"),
        ({"gradient_factor": float("nan")}, "expected a number of 0 or more"),
        ({"surrogate": "ewg"}, "Did you mean ewgs"),
    ],
)
def test_options_that_it_does_not_have_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        BitPolicy(weight_bits=4, weight_quantizer="qil", weight_options=options)


def test_it_says_what_it_is():
    line = QilQuantizer(num_bits=4, range_axes=(3,)).describe()
    assert line == "QIL weights of 4 bits, one scale per channel, no rescale"
