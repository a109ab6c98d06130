"""A small model with all that quantized models hold beside the usual: layers, calls and ends."""

import tensorflow as tf
import tf_keras as keras

import sat_tf
from tests.qat import float_models

L = keras.layers

# Operations that are no layers, such as a sine, stay float.
POLICY = sat_tf.BitPolicy.mobile(
    4, unsupported="float", overrides={"inner/conv": {"weight_bits": 3}}
)


def _inner():
    tensor = keras.Input((8, 8, 4), name="tensor")
    return keras.Model(tensor, L.Conv2D(4, 1, activation="relu", name="conv")(tensor), name="inner")


def build() -> keras.Model:
    """Two images in, a list and a class out; a nested model and a layer with two calls."""
    left, right = (keras.Input((8, 8, 3), name=name) for name in ("left", "right"))
    stem = L.Conv2D(4, 3, padding="same", activation="swish", name="stem")
    one = stem(L.Rescaling(1 / 127.5, -1.0, name="centred")(left))  # two calls of one kernel
    other = stem(right * 2.0 - 1.0)
    inner = _inner()
    tensor = L.Concatenate(name="join")([inner(one), L.LeakyReLU(0.1, name="leaky")(other)])
    gate = L.Activation("sigmoid", name="gate")(L.Conv2D(8, 1, name="gates")(tensor))
    tensor = L.Multiply(name="gated")([tensor, gate])[:, 1:-1, ::2]
    up = L.Conv2DTranspose(3, 2, 2, use_bias=False, name="up")(tensor)
    up = L.PReLU(shared_axes=[1, 2], name="prelu")(L.BatchNormalization(name="bn")(up))
    pooled = tf.math.sin(tf.reduce_mean(tensor, [1, 2]))
    logits = L.Dense(3, name="classifier")(L.LayerNormalization(name="norm")(pooled))
    outputs = {"class": logits, "maps": [L.Activation("tanh", name="tanh")(up), tensor]}
    return keras.Model([left, right], outputs, name="many_layers")


def images(count: int = 32) -> list:
    """Pixels for both inputs."""
    return [float_models.images(count, seed=seed) for seed in (1, 2)]


def quantized(seed: int = 0) -> keras.Model:
    """The calibrated model."""
    keras.utils.set_random_seed(seed)
    return sat_tf.calibrate(sat_tf.quantize_model(build(), POLICY), [images()])
