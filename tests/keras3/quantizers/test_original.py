"""Quantizers of Keras 3 on TensorFlow against those of tf_keras, bit for bit."""

import dataclasses

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.keras3.core import dorefa as dorefa_in_ops
from sat_tf.keras3.core import pact as pact_in_ops
from sat_tf.keras3.quantizers import dorefa, pact
from sat_tf.keras3.quantizers import table as of_keras3
from sat_tf.quantizers import table as original
from tests.keras3.gradients import to_numpy, value_and_gradients
from tests.keras3.quantizers.rows import draw, others, rows

BITS = [*range(1, 9)]


@pytest.fixture(autouse=True)
def in_keras_ops(monkeypatch):
    """As on the other backends: on this one they would compute with the original's functions."""
    monkeypatch.setattr(pact, "pact", lambda: pact_in_ops)
    monkeypatch.setattr(dorefa, "dorefa", lambda: dorefa_in_ops)


def _made(row):
    values = {"quantizer": row.name, **row.config}
    return of_keras3.deserialize_quantizer(values), original.deserialize_quantizer(values)


def _trainable(quantizer, row):
    specs = quantizer.variables(row.inputs.shape)
    return [name for name in row.variables if specs[name].trainable]


def _differentiated(row):
    """Value and gradients of inputs and trainable variables, of both."""
    new, old = _made(row)
    names = _trainable(new, row)

    def call(quantizer, make):
        def function(inputs, *trained):
            variables = {name: make(value) for name, value in row.variables.items()}
            variables.update(zip(names, trained, strict=True))
            return quantizer(inputs, False, variables)

        arrays = [row.inputs, *(row.variables[name] for name in names)]
        upstream = draw(to_numpy(function(*map(tf.constant, arrays))).shape, seed=99)
        return value_and_gradients(function, arrays, upstream)

    return call(new, keras3.Variable), call(old, tf.Variable)


def _at_edges(row):
    """The row, with numbers where one bit decides, and those that are not finite."""
    level = np.float32(row.variables.get("clipping_level", 1.0))
    near = [level, np.nextafter(level, np.float32(0)), np.nextafter(level, np.float32(9))]
    near += [0.0, np.finfo(np.float32).tiny, level / 2, level / 3, np.inf]
    edges = np.float32([*near, *(-one for one in near), np.nan])
    inputs = row.inputs.copy()
    inputs.reshape(-1)[: len(edges)] = edges
    return dataclasses.replace(row, inputs=inputs)


def _equal(row):
    (value, gradients), (expected, expected_gradients) = _differentiated(row)
    np.testing.assert_array_equal(value, expected, err_msg=str(row))
    for found, one in zip(gradients, expected_gradients, strict=True):
        room = 1e-5 * np.max(np.abs(one[np.isfinite(one)]), initial=0.0)
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=room, err_msg=str(row))


@pytest.mark.parametrize(
    "bits",
    [bits if bits in (2, 4) else pytest.param(bits, marks=pytest.mark.thorough) for bits in BITS],
)
def test_values_are_those_of_tf_keras_and_gradients_nearly(bits):
    for row in rows(bits):
        _equal(row)


@pytest.mark.parametrize("bits", [1, 4])
def test_so_they_are_at_the_edges(bits):
    for row in rows(bits):
        _equal(_at_edges(row))


def test_images_and_observers_are_those_of_tf_keras():
    for row in others():
        _equal(row)


@pytest.mark.parametrize("bits", [2, 5])
def test_variables_follow_the_data_as_those_of_tf_keras(bits):
    for row in [*rows(bits), *others()]:
        new, old = _made(row)
        variables = {name: keras3.Variable(value) for name, value in row.variables.items()}
        expected = {name: tf.Variable(value) for name, value in row.variables.items()}
        new(keras3.ops.convert_to_tensor(row.inputs), True, variables)
        old(tf.constant(row.inputs), True, expected)
        for name, variable in variables.items():
            found, wanted = to_numpy(variable), expected[name].numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, err_msg=str(row))
            if not new.variables(row.inputs.shape)[name].follows_data:
                np.testing.assert_array_equal(wanted, row.variables[name])


class _Asked(keras.layers.Layer):
    """Remembers what is asked of it."""

    def __init__(self):
        super().__init__()
        self.asked = {}

    def add_weight(self, **settings):
        self.asked[settings["name"]] = settings
        return tf.Variable(tf.zeros(settings["shape"], settings["dtype"]))


@pytest.mark.parametrize("bits", [2, 8])
def test_variables_are_those_that_tf_keras_makes(bits):
    for row in [*rows(bits), *others()]:
        new, old = _made(row)
        layer, specs = _Asked(), new.variables(row.inputs.shape)
        old.build(tf.TensorShape(row.inputs.shape), "", layer)
        assert set(specs) == set(layer.asked) == set(row.variables), str(row)
        for name, spec in specs.items():
            asked = layer.asked[name]
            assert tuple(spec.shape) == tuple(asked["shape"]) == np.shape(row.variables[name])
            assert spec.dtype == tf.as_dtype(asked["dtype"]).name
            assert spec.trainable == asked["trainable"]
            first = np.asarray(asked["initializer"](spec.shape, spec.dtype))
            np.testing.assert_array_equal(first, np.full(spec.shape, spec.start, first.dtype))
            constraint = asked.get("constraint")
            assert spec.lowest == (constraint.minimum if constraint else None)
            # Of those that tf_keras lets each replica assign, some are never assigned.
            assert spec.follows_data <= ("synchronization" in asked), str(row)


def test_every_quantizer_of_the_package_is_one_of_keras3_with_the_same_settings():
    own = {name for name, cls in original.QUANTIZERS.items() if _is_of_package(cls)}
    assert set(of_keras3.QUANTIZERS) == own
    seen = set()
    for row in [*rows(3), *others()]:
        new, old = _made(row)
        assert new.get_config() == old.get_config()
        assert of_keras3.serialize_quantizer(new) == original.serialize_quantizer(old)
        again = of_keras3.deserialize_quantizer(original.serialize_quantizer(old))
        assert again.get_config() == old.get_config()
        seen.add(row.name)
    assert seen == own


def _is_of_package(cls):
    return cls.__module__.startswith("sat_tf.")
