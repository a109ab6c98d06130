import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.lowering.layers import affine, codes_of
from sat_tf.export.operations.linear import Linear
from sat_tf.export.operations.windows import LinearKind
from sat_tf.export.tflite.tensors import Activation, range_codes
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer


def product(codes, scales, bias):
    return Linear.of_codes("x", LinearKind.FULLY_CONNECTED, codes, scales, bias)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
def test_the_affine_map_is_what_keras_computes(scale, center):
    rng = np.random.default_rng(0)
    norm = keras.layers.BatchNormalization(scale=scale, center=center, epsilon=1e-3)
    norm.build((None, 5))
    norm.set_weights([rng.uniform(0.1, 2.0, 5) for _ in norm.get_weights()])
    x = rng.normal(size=(7, 5)).astype(np.float32)
    found = affine(norm)
    # Keras computes in float32.
    np.testing.assert_allclose(
        found.slope * x + found.offset, norm(x, training=False), rtol=1e-5, atol=1e-5
    )


def test_folding_gives_the_same_function_with_codes_on_their_lattice():
    rng = np.random.default_rng(1)
    linear = product(rng.integers(-7, 8, (4, 3)), rng.uniform(1, 2, 3), np.ones(3))
    norm = keras.layers.BatchNormalization()
    norm.build((None, 3))
    values = [[0.5, -2.0, 0.0], [1.0, 2.0, 3.0], [0.1, 0.2, 0.3], [1.0, 4.0, 9.0]]
    norm.set_weights(np.array(values))
    folded = linear.folded(affine(norm))
    x = rng.normal(size=(6, 4))
    before = x @ (linear.kernel.T * linear.scales) + linear.bias
    after = x @ (folded.kernel.T * folded.scales) + folded.bias
    found = affine(norm)
    np.testing.assert_allclose(after, before * found.slope + found.offset, rtol=1e-12)
    np.testing.assert_array_equal(np.abs(folded.kernel[:2]), np.abs(linear.kernel[:2]))
    assert np.all(folded.scales > 0)
    assert not folded.kernel[2].any()


def test_the_center_is_where_the_normalization_gives_beta():
    linear = product(np.ones((1, 1), int), np.ones(1), np.array([3.0]))
    norm = keras.layers.BatchNormalization()
    norm.build((None, 1))
    norm.set_weights(np.array([[2.0], [0.25], [5.0], [1.0]]))
    folded = linear.folded(affine(norm))
    assert folded.center + folded.bias == pytest.approx(0.25)


def test_the_spread_is_the_deviation_that_the_normalization_has_seen():
    linear = product(np.ones((1, 1), int), np.ones(1), np.zeros(1))
    assert np.all(np.isinf(linear.spread))
    norm = keras.layers.BatchNormalization(epsilon=0.0)
    norm.build((None, 1))
    norm.set_weights(np.array([[-2.0], [0.0], [0.0], [9.0]]))
    assert linear.folded(affine(norm)).spread == pytest.approx(2.0)


def _codes(kind, num_bits, level, *, unit_free=False):
    variables = {"clipping_level": tf.constant(level)}
    return codes_of(kind(num_bits=num_bits), variables, unit_free=unit_free)


@pytest.mark.parametrize("num_bits", range(1, 9))
def test_unsigned_codes_saturate_at_the_clipping_level(num_bits):
    codes = _codes(PactQuantizer, num_bits, 3.0)
    levels = 2**num_bits - 1
    assert (codes.lowest, codes.highest) == (127 - levels, 127)
    assert codes.real_range == pytest.approx((0.0, 3.0))
    # At 8 bits int8 saturates at both ends by itself, and RELU clips where it does anyway.
    expected = Activation.RELU if num_bits < 8 else Activation.NONE
    assert codes.activation is expected


@pytest.mark.parametrize("num_bits", range(2, 9))
def test_unit_free_codes_are_clipped_by_relu_n1_to_1(num_bits):
    codes = _codes(StreamQuantizer, num_bits, 2.5, unit_free=True)
    largest = 2 ** (num_bits - 1) - 1
    assert (codes.lowest, codes.highest, codes.zero_point) == (-largest, largest, 0)
    assert np.rint(1.0 / codes.scale) == largest
    assert codes.real_range == pytest.approx((-2.5, 2.5))
    assert codes.activation is Activation.UNIT


def test_signed_codes_in_real_units_saturate_one_code_below():
    codes = _codes(StreamQuantizer, 8, 2.54)
    assert float(codes.scale) == pytest.approx(0.02)
    assert (codes.lowest, codes.highest, codes.activation) == (-128, 127, Activation.NONE)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 3.0), (0.0, 5.0), (-2.0, 0.0), (-1e-6, 1e6)])
def test_an_observed_range_is_covered_to_a_step_and_holds_zero(low, high):
    codes = range_codes(low, high)
    assert -128 <= codes.zero_point <= 127
    found = codes.real_range
    assert found[0] == pytest.approx(low, abs=float(codes.scale))
    assert found[1] == pytest.approx(high, abs=float(codes.scale))


def test_a_range_of_zero_alone_still_has_a_scale():
    assert range_codes(0.0, 0.0).scale > 0
