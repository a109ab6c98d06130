import numpy as np
import pytest
import tensorflow as tf

from sat_tf.export.lowering.codes import codes_of
from sat_tf.export.tflite.tensors import Activation, range_codes
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer


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
