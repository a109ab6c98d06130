import keras as keras3  # noqa: TID251 -- both Kerases hold the same quantizers
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.tensors import namespace
from sat_tf.keras3.quantized_layer import QuantizedLayer
from sat_tf.qat.configs import make_variables
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.methods.channel_bits import ChannelBitsQuantizer
from sat_tf.quantizers.methods.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.observers import InputQuantizer, RangeObserver
from sat_tf.quantizers.pact import OffsetQuantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer, WeightQuantizer
from sat_tf.quantizers.scaled import LevelsOfWeights
from sat_tf.quantizers.table import QUANTIZERS, deserialize_quantizer
from tests.quantizers.rows import others, rows


def _activations(bits):
    """Quantizers of activations, and variables of theirs; some offsets have learnt."""
    for row in rows(bits):
        quantizer = deserialize_quantizer({"quantizer": row.name, **row.config})
        if isinstance(quantizer, ActivationQuantizer):
            yield quantizer, row.variables
            if "offset" in row.variables:
                for offset in (-1.0, 0.1, 5.0):
                    yield quantizer, {**row.variables, "offset": np.float32(offset)}


@pytest.mark.parametrize("bits", range(1, 9))
def test_a_quantizer_makes_all_of_its_codes_and_no_others(bits):
    values = tf.constant(np.linspace(-9.0, 9.0, 40_001, dtype=np.float32))
    for quantizer, start in _activations(bits):
        variables = {name: tf.Variable(value) for name, value in start.items()}
        found = quantizer.code_range(variables)
        quantized = quantizer(values, False, variables).numpy()
        codes = np.float32(np.arange(int(found.intervals) + 1)) + found.lowest.numpy()
        np.testing.assert_array_equal(np.unique(quantized), np.unique(codes * found.scale.numpy()))
        assert found.ends == (codes[0], codes[-1])
        assert codes[0] <= 0 <= codes[-1]  # padding has a code
        is_symmetric = quantizer.is_symmetric and not start.get("skew")
        assert is_symmetric == (codes[0] == -codes[-1])
        assert found.zero_point == (0 if is_symmetric else 127 - codes[-1])
        if start.get("skew", 0.0) >= 0.0:
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
    assert all(one.input_type is None and not one.observes_range for one, _ in _activations(4))


@pytest.mark.parametrize("bits", range(1, 9))
def test_effective_weights_are_codes_times_scales_and_units_count_the_codes(bits):
    for row in rows(bits):
        quantizer = deserialize_quantizer({"quantizer": row.name, **row.config})
        if not isinstance(quantizer, WeightQuantizer) or quantizer.num_bits is None:
            continue
        latent = tf.constant(row.inputs)
        variables = {name: tf.Variable(value) for name, value in row.variables.items()}
        if isinstance(quantizer, ChannelBitsQuantizer):  # its levels are those of its bits
            variables["channel_bits"].assign(quantizer.first_levels(latent))
        found = quantizer.integer_weights(latent, variables)
        assert found.codes.dtype == tf.int32
        assert found.scales.dtype == tf.float64
        codes = found.codes.numpy()
        effective = quantizer(latent, False, variables).numpy()
        np.testing.assert_allclose(codes * found.scales.numpy(), effective, rtol=1e-5)
        assert np.abs(codes).max() <= quantizer.largest_code
        units = quantizer.units(latent, variables).numpy()
        assert units.min() >= 0
        assert units.max() <= quantizer.top_unit
        of_one = (..., slice(0, 1)) if isinstance(quantizer, LqNetsQuantizer) else ...
        assert len(np.unique(codes[of_one])) == len(np.unique(units[of_one])), str(row)
        # Some weights are 0, and stay so where that is one of the codes.
        by_chance = isinstance(quantizer, LevelsOfWeights) and not quantizer.holds_zero
        assert by_chance or quantizer.holds_zero is bool((effective == 0.0).any()), str(row)


def _made(row):
    return deserialize_quantizer({"quantizer": row.name, **row.config})


@pytest.mark.parametrize("bits", [2, 8])
def test_both_kerases_make_the_variables_that_are_declared_in_their_order(bits):
    for row in [*rows(bits), *others()]:
        quantizer, shape = _made(row), row.inputs.shape
        specs = quantizer.variables(shape)
        assert set(specs) == set(row.variables), str(row)
        layer = keras.layers.Layer()
        ours = make_variables(layer, quantizer.variables(tf.TensorShape(shape)))
        layer3 = QuantizedLayer(keras3.layers.Identity())
        theirs = layer3.make_variables(specs)
        assert [*ours] == [*theirs] == [*specs]
        assert [v.name.split(":")[0] for v in layer.weights] == [v.name for v in layer3.weights]
        for name, spec in specs.items():
            one, other = ours[name], theirs[name]
            assert tuple(one.shape) == tuple(other.shape) == tuple(spec.shape)
            assert one.dtype.name == other.dtype == spec.dtype
            assert one.trainable == other.trainable == spec.trainable
            np.testing.assert_array_equal(one, np.full(spec.shape, spec.start, spec.dtype))
            np.testing.assert_array_equal(one, keras3.ops.convert_to_numpy(other))
            for variable in (one, other):
                kept = getattr(variable.constraint, "minimum", None)
                assert kept == spec.lowest


@pytest.mark.parametrize("bits", [2, 5])
def test_variables_follow_the_data_alike_and_those_alone_that_say_so(bits):
    for row in [*rows(bits), *others()]:
        quantizer = _made(row)
        ours = {name: tf.Variable(value) for name, value in row.variables.items()}
        theirs = {name: keras3.Variable(value) for name, value in row.variables.items()}
        expected = quantizer(tf.constant(row.inputs), True, ours)
        found = quantizer(keras3.ops.convert_to_tensor(row.inputs), True, theirs)
        np.testing.assert_array_equal(found, expected, err_msg=str(row))
        specs = quantizer.variables(row.inputs.shape)
        for name, variable in ours.items():
            np.testing.assert_array_equal(variable, keras3.ops.convert_to_numpy(theirs[name]))
            if not specs[name].follows_data:
                np.testing.assert_array_equal(variable, row.variables[name])


def test_every_quantizer_of_the_package_has_its_rows():
    own = {name for name, cls in QUANTIZERS.items() if cls.__module__.startswith("sat_tf.")}
    assert {row.name for row in [*rows(3), *others()]} == own


def test_tensors_of_tensorflow_have_its_functions_in_both_kerases():
    ours = namespace(tf.constant(1.0))
    assert namespace(keras3.Variable(1.0)) is namespace(tf.Variable(1.0)) is ours
