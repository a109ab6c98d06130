import numpy as np
import pytest
import tensorflow as tf

from sat_tf.core.grid import AUTOMATIC, GRIDS
from sat_tf.quantizers.channel_bits import ChannelBitsQuantizer
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.kmeans import KMeansQuantizer
from sat_tf.quantizers.l1 import L1Quantizer
from sat_tf.quantizers.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.lsq import LsqActivationQuantizer, LsqPlusQuantizer, LsqQuantizer
from sat_tf.quantizers.observers import InputQuantizer, RangeObserver
from sat_tf.quantizers.pact import OffsetQuantizer, PactQuantizer, StreamQuantizer, UnitQuantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer
from sat_tf.quantizers.qil import QilQuantizer
from sat_tf.quantizers.scaled import LevelsOfWeights


def _quantizers(bits):
    yield PactQuantizer(num_bits=bits)
    yield StreamQuantizer(num_bits=bits)
    yield OffsetQuantizer(num_bits=bits, lowest=-0.375)
    yield OffsetQuantizer(num_bits=bits, share=0.2)
    yield UnitQuantizer(num_bits=bits)
    yield UnitQuantizer(num_bits=bits, signed=True)
    yield LsqActivationQuantizer(num_bits=bits)
    yield LsqActivationQuantizer(num_bits=bits, signed=True)
    yield LsqPlusQuantizer(num_bits=bits, lowest=-0.375)
    yield LsqPlusQuantizer(num_bits=bits, share=0.2)


@pytest.mark.parametrize("bits", range(2, 9))
def test_a_quantizer_makes_all_of_its_codes_and_no_others(bits):
    values = tf.constant(np.linspace(-9.0, 9.0, 40_001, dtype=np.float32))
    for quantizer in _quantizers(bits):
        variables = {"offset": tf.Variable(0.0)}  # of those that have one
        if quantizer.has_clipping_level:
            variables["clipping_level"] = tf.Variable(2.7)
        found = quantizer.code_range(variables)
        quantized = quantizer(values, False, variables).numpy()
        codes = np.float32(np.arange(found.intervals + 1)) + found.lowest.numpy()
        np.testing.assert_array_equal(np.unique(quantized), codes * found.scale.numpy())
        assert found.ends == (codes[0], codes[-1])
        assert quantizer.is_symmetric == (codes[0] == -codes[-1])
        assert found.zero_point == (0 if quantizer.is_symmetric else 127 - codes[-1])
        assert quantizer.highest_value(variables) == pytest.approx(quantized.max(), rel=1e-6)


def test_offset_codes_are_those_counted_by_hand():
    # (6 + 1) / 7 = 1 a code, and round(1 / 1) codes below zero.
    quantizer = OffsetQuantizer(num_bits=3, lowest=-1.0)
    found = quantizer.code_range({"clipping_level": tf.constant(6.0)})
    assert (float(found.scale), float(found.lowest), found.intervals) == (1.0, -1.0, 7)


def test_what_does_not_round_says_what_it_is_for():
    image, observer, codes = ImageQuantizer(), RangeObserver(), InputQuantizer(input_type="int8")
    assert not any(isinstance(one, ActivationQuantizer) for one in (image, observer, codes))
    assert [one.input_type for one in (image, observer, codes)] == ["uint8", None, "int8"]
    assert [one.observes_range for one in (image, observer, codes)] == [False, True, True]
    assert isinstance(image, PixelQuantizer)
    assert all(one.input_type is None and not one.observes_range for one in _quantizers(4))


def _weight_quantizers(bits):
    for axes in ((), (3,)):
        settings = {"range_axes": axes, "rescale": "constant", "fan_out": 36}
        if bits >= LsqQuantizer.fewest_bits:
            yield LsqQuantizer(num_bits=bits, **settings)
        if bits >= QilQuantizer.fewest_bits:
            yield QilQuantizer(num_bits=bits, **settings)
        yield LqNetsQuantizer(num_bits=bits, **settings)
    for keep_zeros in (False, True):
        yield KMeansQuantizer(num_bits=bits, rescale="constant", fan_out=36, keep_zeros=keep_zeros)
    for grid in (*AUTOMATIC, "narrow"):
        limits = {"lowest": 2 if grid == "narrow" else 1, "highest": 8}
        settings = {"range_axes": (3,), "rescale": "constant", "fan_out": 36}
        if bits >= limits["lowest"]:
            yield ChannelBitsQuantizer(num_bits=bits, grid=grid, **limits, **settings)
    for grid in GRIDS:
        if bits >= GRIDS[grid].fewest_bits:
            for axes in ((), (3,)):
                yield L1Quantizer(num_bits=bits, grid=grid, range_axes=axes)
                yield DorefaQuantizer(
                    num_bits=bits,
                    grid=grid,
                    range_axes=axes,
                    rescale="stddev",
                    gain_axes=(3,),
                    initial_gain=1.7,
                    fan_out=36,
                )


def _variables(quantizer, latent):
    if isinstance(quantizer, LevelsOfWeights):
        levels = tf.Variable(quantizer.first_levels(latent))
        return {"rescale_gain": tf.Variable(1.7), quantizer.levels_name: levels}
    if isinstance(quantizer, DorefaQuantizer):
        return {"rescale_gain": tf.Variable(np.linspace(0.5, 2.0, 5, dtype=np.float32))}
    shape = [1, 1, 1, 5] if quantizer.range_axes else []
    own = tf.Variable(
        tf.reshape(np.linspace(1.0, 2.0, 5, dtype=np.float32)[: 5 if shape else 1], shape)
    )
    gain = {"rescale_gain": tf.Variable(1.7)}
    if isinstance(quantizer, QilQuantizer):
        return {**gain, "interval_center": own, "interval_distance": own / 2.0}
    return {**gain, "magnitude": own}


@pytest.mark.parametrize("bits", range(1, 9))
def test_effective_weights_are_codes_times_scales(bits):
    latent = tf.constant(np.random.default_rng(bits).normal(size=(3, 3, 4, 5)), tf.float32)
    for quantizer in _weight_quantizers(bits):
        variables = _variables(quantizer, latent)
        found = quantizer.integer_weights(latent, variables)
        assert found.codes.dtype == tf.int32
        assert found.scales.dtype == tf.float64
        products = found.codes.numpy() * found.scales.numpy()
        effective = quantizer(latent, False, variables)
        np.testing.assert_allclose(products, effective, rtol=1e-5)
        assert np.abs(found.codes).max() <= quantizer.largest_code


@pytest.mark.parametrize("bits", range(1, 9))
def test_units_count_the_codes_and_zero_is_one_of_them_where_the_grid_has_it(bits):
    latent = tf.constant(np.random.default_rng(bits).normal(size=(3, 3, 4, 5)), tf.float32)
    for quantizer in _weight_quantizers(bits):
        variables = _variables(quantizer, latent)
        units = quantizer.units(latent, variables).numpy()
        assert units.min() >= 0
        assert units.max() <= quantizer.top_unit
        codes = quantizer.integer_weights(latent, variables).codes.numpy()
        of_one = (..., slice(0, 1)) if isinstance(quantizer, LqNetsQuantizer) else ...
        assert len(np.unique(codes[of_one])) == len(np.unique(units[of_one]))
        with_zero = tf.where(tf.reduce_min(tf.abs(latent)) == tf.abs(latent), 0.0, latent)
        zeros = quantizer(with_zero, False, _variables(quantizer, with_zero)).numpy()
        by_chance = isinstance(quantizer, LevelsOfWeights) and not quantizer.holds_zero
        assert by_chance or quantizer.holds_zero is bool((zeros == 0.0).any())
