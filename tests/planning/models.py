"""Small float models whose numbers are worked out by hand in the tests."""

from collections.abc import Callable

import tensorflow as tf
import tf_keras as keras

L = keras.layers


@keras.utils.register_keras_serializable(package="tests")
def sin(x: tf.Tensor) -> tf.Tensor:
    """No activation that sat-tf knows, and none that consists of operations."""
    return _of_its_own_gradient(x)


@tf.custom_gradient
def _of_its_own_gradient(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    return tf.sin(x), lambda upstream: upstream * tf.cos(x)


def convolutions() -> keras.Model:
    """A convolution with BatchNormalization and ReLU, a depthwise one, and a classifier."""
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, padding="same", use_bias=False, name="conv")(image)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    tensor = L.DepthwiseConv2D(3, strides=2, padding="same", name="depthwise")(tensor)
    tensor = L.ReLU(6.0, name="relu6")(tensor)
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(5, name="classifier")(tensor), name="convolutions")


def residual() -> keras.Model:
    """Two convolutions around a skip."""
    image = keras.Input((4, 4, 2), name="image")
    stem = L.Conv2D(4, 1, activation="relu", name="stem")(image)
    branch = L.Conv2D(4, 3, padding="same", name="branch")(stem)
    tensor = L.ReLU(name="relu")(L.Add(name="add")([stem, branch]))
    return keras.Model(image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor)))


def with_odd_activation() -> keras.Model:
    """A convolution whose activation is not quantized, between two others, of any image size."""
    image = keras.Input((None, None, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="first")(image)
    tensor = L.Conv2D(4, 3, padding="same", activation=sin, name="odd")(tensor)
    tensor = L.Conv2D(4, 3, activation="relu", name="second")(tensor)
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(5, name="classifier")(tensor), name="with_odd_activation")
