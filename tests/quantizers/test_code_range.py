import numpy as np
import pytest
import tensorflow as tf

from sat_tf.quantizers.code_range import code_range, has_codes
from sat_tf.quantizers.functions import OffsetQuantizer, UnitQuantizer
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer


def _quantizers(bits):
    yield PactQuantizer(num_bits=bits)
    yield StreamQuantizer(num_bits=bits)
    yield OffsetQuantizer(num_bits=bits, lowest=-0.375)
    yield OffsetQuantizer(num_bits=bits, share=0.2)
    yield UnitQuantizer(num_bits=bits)
    yield UnitQuantizer(num_bits=bits, signed=True)


@pytest.mark.parametrize("bits", range(2, 9))
def test_a_quantizer_makes_all_of_its_codes_and_no_others(bits):
    values = tf.constant(np.linspace(-9.0, 9.0, 40_001, dtype=np.float32))
    for quantizer in _quantizers(bits):
        level = None if isinstance(quantizer, UnitQuantizer) else tf.Variable(2.7)
        found = code_range(quantizer, level)
        quantized = quantizer(values, False, weights={"clipping_level": level}).numpy()
        codes = np.float32(np.arange(found.steps + 1)) + found.lowest.numpy()
        np.testing.assert_array_equal(np.unique(quantized), codes * found.step.numpy())


def test_offset_codes_are_those_counted_by_hand():
    # (6 + 1) / 7 = 1 a code, and round(1 / 1) codes below zero.
    found = code_range(OffsetQuantizer(num_bits=3, lowest=-1.0), tf.constant(6.0))
    assert (float(found.step), float(found.lowest), found.steps) == (1.0, -1.0, 7)


def test_what_does_not_round_has_no_codes():
    assert not any(map(has_codes, (None, ImageQuantizer(), RangeObserver())))
    assert all(map(has_codes, _quantizers(4)))
