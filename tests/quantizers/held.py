"""Kernels, and quantizers whose variables a layer of tf_keras holds."""

import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.configs import make_variables
from tests.core.execution import draw

SHAPE = (3, 3, 4, 8)


def drawn(seed=0, deviation=0.3, shape=SHAPE):
    return draw(shape, seed, deviation)


def built(quantizer, shape=SHAPE):
    """A layer, and its variables for the quantizer of a kernel."""
    layer = keras.layers.Layer()
    return layer, make_variables(layer, quantizer.variables(shape))


def started(quantizer, latent):
    """The same, where the variables have begun with a kernel."""
    layer, variables = built(quantizer, latent.shape)
    quantizer.begin(tf.Variable(latent), variables)
    return layer, variables
