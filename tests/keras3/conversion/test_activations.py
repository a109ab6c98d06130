import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layers.activations import OF_KERAS3, keras3_name

VALUES = tf.linspace([-7.0], [7.0], 57, axis=-1)


@pytest.mark.parametrize("name", OF_KERAS3)
def test_an_activation_is_that_of_keras_3(name):
    expected = keras3.activations.get(name)(VALUES)
    received = keras.activations.get(OF_KERAS3[name])(VALUES)
    np.testing.assert_allclose(received, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", OF_KERAS3)
def test_an_activation_survives_saving(name):
    layer = keras.layers.Activation(OF_KERAS3[name])
    again = keras.layers.deserialize(keras.layers.serialize(layer))
    np.testing.assert_array_equal(again(VALUES), layer(VALUES))


def test_names_lead_back():
    aliases = {"hard_swish": "hard_silu", "swish": "silu"}
    for name, row in OF_KERAS3.items():
        found = keras3_name(keras.activations.get(row))
        assert aliases.get(found, found) == aliases.get(name, name)
