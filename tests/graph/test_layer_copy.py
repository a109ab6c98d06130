import inspect

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.flatten import layer_copy
from sat_tf.graph.layer_kinds import KINDS
from sat_tf.qat.wrapper import QuantizedLayer

L = keras.layers


def test_a_copy_has_the_settings_that_are_not_changed():
    copy = layer_copy(L.Conv2D(3, 1, name="conv", padding="same"), name="other")
    assert (copy.name, copy.filters, copy.padding, copy.built) == ("other", 3, "same", False)


def test_a_copy_of_a_lambda_keeps_what_its_function_refers_to():
    # Made of its code, tf.sin would look for names of TensorFlow's own module.
    assert layer_copy(L.Lambda(tf.sin)).function is tf.sin


# Constructors need these.
REQUIRED = {
    "filters": 4, "kernel_size": 3, "units": 4, "target_shape": (4,), "dims": (1,), "num_heads": 2,
    "key_dim": 2, "input_dim": 5, "output_dim": 3, "n": 2, "rate": 0.3, "scale": 2.0, "stddev": 0.1,
    "factor": 0.1, "height": 2, "width": 2, "function": abs, "activation": "relu", "axes": 1,
    "equation": "ab,bc->ac", "output_shape": 4, "bin_boundaries": [0.0, 1.0], "values": [1.0],
    "height_factor": 0.1, "width_factor": 0.1, "num_tokens": 4, "size": 2, "low": 0.0, "high": 1.0,
}  # fmt: skip
OF_KERAS = sorted(
    (kind for kind in KINDS if kind.__module__.startswith("tf_keras")),
    key=lambda kind: kind.__name__,
)


def _other_values(kind):
    """Layers of a class, each with another value for one of the arguments that have a plain one."""
    parameters = inspect.signature(kind.__init__).parameters
    required = {
        name: L.Dense(2) if name == "layer" else REQUIRED.get(name)
        for name, parameter in parameters.items()
        if name in REQUIRED or (parameter.default is parameter.empty and name == "layer")
    }
    for name, parameter in parameters.items():
        if isinstance(parameter.default, bool) and name != "dynamic":
            try:
                yield name, kind(**{**required, name: not parameter.default})
            except (TypeError, ValueError, NotImplementedError):
                continue  # it does not go with the others


@pytest.mark.parametrize("kind", OF_KERAS, ids=lambda kind: kind.__name__)
def test_a_copy_has_every_argument_of_the_layer_that_differs_from_its_default(kind):
    for name, layer in _other_values(kind):
        held = getattr(layer, name, None)
        assert getattr(layer_copy(layer), name, None) == held, name


def test_a_layer_that_keras_saves_without_an_argument_is_loaded_with_it():
    read = keras.Input((8, 8, 3))
    norm = L.BatchNormalization(synchronized=True, name="norm", activity_regularizer="l2")
    model = keras.Model(read, L.Dense(2)(L.Flatten()(norm(L.Conv2D(4, 3)(read)))))
    quantized = sat_tf.quantize_model(model, 8)
    again = QuantizedLayer.from_config(quantized.get_layer("quant_norm").get_config())
    for layer in (quantized.get_layer("quant_norm").layer, again.layer):
        assert layer.synchronized
        assert layer.activity_regularizer is not None


def test_a_copy_that_would_lose_an_argument_is_refused():
    class Doubled(L.Layer):
        def __init__(self, units=3, **options):
            super().__init__(**options)
            self.units = 2 * units

        def get_config(self):
            return {"name": self.name}

    with pytest.raises(ValueError, match=r"it loses units=8.*write Doubled\.get_config"):
        layer_copy(Doubled(4))


class InTwoSteps(L.Layer):
    """A layer of a user with two layers inside, of which the first may be frozen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.second = L.Dense(4), L.Dense(4)

    def call(self, inputs):
        return self.second(tf.nn.tanh(self.first(inputs)))


# Only a gelu of its own makes the model be rewritten before it is quantized.
@pytest.mark.parametrize("activation", ["linear", "gelu"])
def test_layers_inside_others_stay_frozen_and_keep_their_own_weights(activation):
    keras.utils.set_random_seed(5)
    read, inside = keras.Input((4,)), InTwoSteps(name="inside")
    model = keras.Model(read, L.Dense(2, activation=activation)(inside(L.Dense(4)(read))))
    inside.first.trainable = False
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float", input_type="float32")
    quantized = sat_tf.quantize_model(model, policy)
    copy = quantized.get_layer("quant_inside").layer
    assert (copy.first.trainable, copy.second.trainable) == (False, True)
    np.testing.assert_array_equal(copy.first.kernel, inside.first.kernel)
    np.testing.assert_array_equal(copy.second.kernel, inside.second.kernel)
