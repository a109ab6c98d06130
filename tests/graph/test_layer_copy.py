import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.flatten import layer_copy

L = keras.layers


class Shifted(L.Layer):
    """A layer of a user who has not written its get_config."""

    def __init__(self, shift, **options):
        super().__init__(**options)
        self.shift = shift

    def call(self, inputs):
        return inputs + self.shift


def test_a_copy_has_the_settings_that_are_not_changed():
    copy = layer_copy(L.Conv2D(3, 1, name="conv", padding="same"), name="other")
    assert (copy.name, copy.filters, copy.padding, copy.built) == ("other", 3, "same", False)


def test_a_copy_of_a_lambda_keeps_what_its_function_refers_to():
    # Made of its code, tf.sin would look for names of TensorFlow's own module.
    assert layer_copy(L.Lambda(tf.sin)).function is tf.sin


@pytest.mark.parametrize(
    ("layer", "fix"),
    [
        (Shifted(np.ones(4), name="odd"), r"write Shifted\.get_config"),
        (L.Lambda(abs, name="odd"), "a function written in Python"),
    ],
)
# Only a swish of its own makes the model be rewritten before it is looked at.
@pytest.mark.parametrize("activation", ["relu", "swish"])
@pytest.mark.filterwarnings("ignore")  # of Keras, which calls such a layer no more than that
def test_a_layer_that_cannot_be_copied_is_named_with_the_fix(activation, layer, fix):
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, activation=activation, name="conv")(image)
    tensor = L.GlobalAveragePooling2D(name="pool")(layer(tensor))
    model = keras.Model(image, L.Dense(3, name="classifier")(tensor))
    policy = sat_tf.BitPolicy(unsupported="float")
    with pytest.raises(ValueError, match=f"odd: received a .*{fix}"):
        sat_tf.quantize_model(model, policy)
