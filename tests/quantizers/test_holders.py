"""The variables that quantizers declare, as the layers of tf_keras, Keras 3 and TFMOT make them."""

import keras as keras3  # noqa: TID251 -- both Kerases hold the same quantizers
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.tensors import namespace
from sat_tf.keras3.quantized_layer import QuantizedLayer
from sat_tf.qat.configs import make_variables
from sat_tf.quantizers.table import QUANTIZERS, deserialize_quantizer, serialize_quantizer
from tests.quantizers.rows import others, rows


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
    for row in [*rows(3), *others()]:
        quantizer = _made(row)
        assert deserialize_quantizer(serialize_quantizer(quantizer)) == quantizer


def test_tensors_of_tensorflow_have_its_functions_in_both_kerases():
    ours = namespace(tf.constant(1.0))
    assert namespace(keras3.Variable(1.0)) is namespace(tf.Variable(1.0)) is ours
