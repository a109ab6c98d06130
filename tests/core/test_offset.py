import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core import asymmetric, pact
from tests import reference

RANGES = [(-0.2785, 0.0), (-1.0, 0.0), (0.0, 0.1), (-0.375, 0.2), (0.0, 0.0)]


def _values(count=4000, seed=0):
    return np.random.default_rng(seed).normal(0.0, 2.0, count).astype(np.float32)


def test_a_range_worked_by_hand():
    # a = 7 and s = (6 + 1)/7 = 1: one code below zero, six above.
    x = tf.constant([-9.0, -1.0, -0.6, -0.4, 0.4, 0.5, 5.4, 6.0, 9.0])
    found = asymmetric.quantize_offset(x, 6.0, 3, lowest=-1.0)
    assert found.numpy().tolist() == [-1, -1, -1, 0, 0, 1, 5, 6, 6]


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(("lowest", "share"), RANGES)
def test_values_are_those_of_the_formula(bits, lowest, share):
    x = _values()
    found = asymmetric.quantize_offset(x, 3.3, bits, lowest=lowest, share=share).numpy()
    expected = reference.quantize_offset(x, 3.3, bits, lowest, share)
    step = ((1.0 + share) * 3.3 - lowest) / (2**bits - 1)
    # float32 against float64: values next to a tie may be rounded to the other side.
    assert np.mean(np.abs(found - expected) > 1e-5) < 1e-3
    assert np.max(np.abs(found - expected)) < 1.001 * step
    assert 0.0 in found


@pytest.mark.parametrize("gradient", ["calibrated", "pact"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("lowest", "share"), RANGES)
def test_gradients_are_those_of_the_formula(bits, gradient, lowest, share):
    x, upstream = _values(seed=1), _values(seed=2)
    level = tf.Variable(2.7)
    with tf.GradientTape() as tape:
        tensor = tf.constant(x)
        tape.watch(tensor)
        made = asymmetric.quantize_offset(tensor, level, bits, gradient, lowest=lowest, share=share)
        total = tf.reduce_sum(made * upstream)
    by_x, by_level = tape.gradient(total, [tensor, level])
    wanted = reference.offset_gradients(x, 2.7, bits, upstream, lowest, share, gradient)
    np.testing.assert_array_equal(by_x.numpy(), wanted[0].astype(np.float32))
    # One value next to a tie may have the next code; sums of 4000 float32 are that exact.
    one_code = float(np.max(np.abs(upstream))) * (1.0 + share) / (2**bits - 1)
    assert float(by_level) == pytest.approx(wanted[1], rel=1e-4, abs=one_code + 1e-4)


def test_without_a_negative_part_it_is_the_activation_of_the_paper():
    x = tf.constant(_values())
    level = tf.Variable(2.5)
    for quantize in (asymmetric.quantize_offset, pact.quantize_activation):
        with tf.GradientTape() as tape:
            made = quantize(x, level, 4)
            total = tf.reduce_sum(made * made)
        gradient = float(tape.gradient(total, level))
        if quantize is asymmetric.quantize_offset:
            first, first_gradient = made.numpy(), gradient
    np.testing.assert_allclose(made.numpy(), first, rtol=1e-6)
    assert gradient == pytest.approx(first_gradient, rel=1e-4)


def test_what_is_not_finite_harms_nothing_else():
    x = tf.constant([np.nan, np.inf, -np.inf, 1.0])
    level = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = asymmetric.quantize_offset(x, level, 4, lowest=-0.5)
        total = tf.reduce_sum(tf.where(tf.math.is_nan(made), 0.0, made))
    by_x, by_level = tape.gradient(total, [x, level])
    assert np.isnan(made[0].numpy())
    for values in (made[1:], by_x[1:], by_level):
        assert np.all(np.isfinite(values.numpy()))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_it_returns_the_type_it_got(dtype):
    assert asymmetric.quantize_offset(tf.ones([3], dtype), 2.0, 4, lowest=-0.3).dtype == dtype


def test_an_unknown_gradient_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"Did you mean calibrated\?"):
        asymmetric.quantize_offset(tf.ones([1]), 2.0, 4, "calibratd")
