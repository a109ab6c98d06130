"""Small Keras 3 networks and data, the same on every backend."""

import keras
import numpy as np

from sat_tf.training import data


def digits_network(size=8, name="digits"):
    """Convolutions, one of them depthwise and one without BatchNormalization, and a sum."""
    image = keras.Input((size, size, 3), name="image")
    x = keras.layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv_1")(image)
    x = keras.layers.BatchNormalization(name="norm_1")(x)
    first = keras.layers.ReLU(name="relu_1")(x)
    x = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(first)
    x = keras.layers.BatchNormalization(name="norm_2")(x)
    x = keras.layers.ReLU(name="relu_2")(x)
    x = keras.layers.Conv2D(8, 1, use_bias=False, name="conv_2")(x)
    x = keras.layers.BatchNormalization(name="norm_3")(x)
    x = keras.layers.Add(name="add")([x, first])
    # Sums of few codes are often exactly 0, where a last bit would decide what passes a rectifier.
    bias = keras.initializers.Constant(0.03)
    x = keras.layers.Conv2D(16, 3, 2, activation="relu", bias_initializer=bias, name="conv_3")(x)
    x = keras.layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(image, keras.layers.Dense(10, name="logits")(x), name=name)


def pixels_and_labels(count, size=8):
    """The first digits, as float32 pixels, and their labels."""
    digits = data.load_digits(size)
    return digits.train_images[:count].astype(np.float32), digits.train_labels[:count]
