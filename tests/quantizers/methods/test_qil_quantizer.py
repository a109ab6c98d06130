"""The quantizer of QIL: its variables, their start, and what it refuses."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.quantizers.methods.qil import SMALLEST_DISTANCE, QilQuantizer
from sat_tf.quantizers.protocol import Predecessor, WeightRequest
from sat_tf.quantizers.table import make_weight_quantizer
from tests.quantizers.held import SHAPE, built, drawn, started


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


def test_what_is_learnt_moves_by_the_factor():
    kernel, found = drawn(), {}
    for factor in (0.0, 0.01, 0.02):
        quantizer = QilQuantizer(num_bits=3, gradient_factor=factor)
        _, variables = started(quantizer, kernel)
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(quantizer(kernel, True, variables) * drawn(1))
        found[factor] = tape.gradient(total, list(variables.values()))
    assert all(float(each) == 0.0 for each in found[0.0])
    for one, two in zip(found[0.01], found[0.02], strict=True):
        assert float(two) == pytest.approx(2.0 * float(one), rel=1e-5)
        assert float(one) != 0.0
