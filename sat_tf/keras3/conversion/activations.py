"""The activation functions of Keras 3, and those among them that tf_keras does not have."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

_register = keras.utils.register_keras_serializable(package="sat_tf")


# Keras 2 has a `hard_sigmoid` too, of another slope: clip(0.2 x + 0.5, 0, 1).
@_register
def relu6_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """Keras 3's `hard_sigmoid`: relu6(x + 3) / 6.

    >>> relu6_sigmoid(tf.constant([-3.0, 0.0, 1.5, 9.0])).numpy().tolist()
    [0.0, 0.5, 0.75, 1.0]
    """
    return tf.nn.relu6(x + tf.constant(3.0, x.dtype)) / tf.constant(6.0, x.dtype)


@_register
def hard_silu(x: tf.Tensor) -> tf.Tensor:
    """Keras 3's `hard_silu`, also called hard-swish: x · relu6(x + 3) / 6.

    >>> hard_silu(tf.constant([-3.0, 0.0, 3.0, 9.0])).numpy().tolist()
    [-0.0, 0.0, 3.0, 9.0]
    """
    return x * relu6_sigmoid(x)


@_register
def log_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """log(1 / (1 + exp(-x)))."""
    return tf.math.log_sigmoid(x)


# TensorFlow's own function has another name than tf_keras looks for when it loads a model.
@_register
def log_softmax(x: tf.Tensor) -> tf.Tensor:
    """The logarithm of the softmax over the last axis."""
    return tf.nn.log_softmax(x)


@_register
def hard_tanh(x: tf.Tensor) -> tf.Tensor:
    """clip(x, -1, 1)."""
    return tf.clip_by_value(x, -1.0, 1.0)


@_register
def celu(x: tf.Tensor) -> tf.Tensor:
    """max(x, 0) + exp(min(x, 0)) - 1."""
    return tf.maximum(x, 0.0) + tf.math.expm1(tf.minimum(x, 0.0))


@_register
def tanh_shrink(x: tf.Tensor) -> tf.Tensor:
    """X - tanh(x)."""
    return x - tf.math.tanh(x)


@_register
def squareplus(x: tf.Tensor) -> tf.Tensor:
    """(x + sqrt(x² + 4)) / 2."""
    return (x + tf.sqrt(tf.square(x) + tf.constant(4.0, x.dtype))) / 2


@_register
def soft_shrink(x: tf.Tensor) -> tf.Tensor:
    """X moved towards 0 by 1/2, and 0 within."""
    inside = tf.where(x < -0.5, x + 0.5, tf.zeros_like(x))
    return tf.where(x > 0.5, x - 0.5, inside)


@_register
def hard_shrink(x: tf.Tensor) -> tf.Tensor:
    """X where |x| > 1/2, else 0."""
    return tf.where(tf.abs(x) > 0.5, x, tf.zeros_like(x))


# The functions of tf_keras, or their names there, by the names of the same functions in Keras 3.
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor] | str] = {
    "celu": celu,
    "elu": "elu",
    "exponential": "exponential",
    "gelu": "gelu",
    "hard_shrink": hard_shrink,
    "hard_sigmoid": relu6_sigmoid,
    "hard_silu": hard_silu,
    "hard_swish": hard_silu,
    "hard_tanh": hard_tanh,
    "leaky_relu": tf.nn.leaky_relu,
    "linear": "linear",
    "log_sigmoid": log_sigmoid,
    "log_softmax": log_softmax,
    "mish": "mish",
    "relu": "relu",
    "relu6": tf.nn.relu6,
    "selu": "selu",
    "sigmoid": "sigmoid",
    "silu": "swish",
    "soft_shrink": soft_shrink,
    "softmax": "softmax",
    "softplus": "softplus",
    "softsign": "softsign",
    "squareplus": squareplus,
    "swish": "swish",
    "tanh": "tanh",
    "tanh_shrink": tanh_shrink,
}


def keras3_name(activation: Any) -> str | None:
    """The name in Keras 3 of an activation function of tf_keras; None where Keras 3 has none.

    >>> keras3_name(keras.activations.swish), keras3_name(hard_silu)
    ('silu', 'hard_silu')
    >>> keras3_name(keras.activations.hard_sigmoid) is None
    True
    """
    for name, row in ACTIVATIONS.items():
        if activation is (keras.activations.get(row) if isinstance(row, str) else row):
            return name
    return None
