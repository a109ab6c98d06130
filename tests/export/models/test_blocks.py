"""Blocks of well-known networks, written as their users write them, at all bits."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from tests.export.proofs import calibrated, proved
from tests.export.zoo import make_realistic

L = keras.layers


def _conv(x: Any, filters: int, strides: int = 1, *, size: int = 3, rectified: bool = True) -> Any:
    x = L.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
    x = L.BatchNormalization()(x)
    return tf.nn.relu(x) if rectified else x


def _classes(x: Any) -> Any:
    return L.Dense(4)(tf.reduce_mean(x, axis=[1, 2]))


def cbam(image: Any) -> Any:
    x = _conv(image, 8)
    reduce, expand = L.Dense(2, activation="relu"), L.Dense(8)
    pooled = [expand(reduce(pool(x, axis=[1, 2]))) for pool in (tf.reduce_mean, tf.reduce_max)]
    x *= tf.reshape(tf.sigmoid(pooled[0] + pooled[1]), [-1, 1, 1, 8])
    maps = [pool(x, axis=-1, keepdims=True) for pool in (tf.reduce_mean, tf.reduce_max)]
    x *= L.Conv2D(1, 7, padding="same", activation="sigmoid")(tf.concat(maps, -1))
    return _classes(_conv(x, 8))


def resnet_option_a(image: Any) -> Any:
    x = _conv(image, 4)
    for filters in (8, 16):
        branch = _conv(_conv(x, filters, 2), filters, rectified=False)
        more = (filters - x.shape[-1]) // 2
        x = tf.nn.relu(branch + tf.pad(x[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [more, more]]))
    return _classes(x)


def super_resolution(image: Any) -> Any:
    x = L.Conv2D(8, 5, padding="same", activation="tanh")(image)
    x = x + 0.1 * L.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = tf.nn.depth_to_space(L.Conv2D(12, 3, padding="same")(x), 2)
    return tf.clip_by_value(x + tf.image.resize(image, (16, 16), "nearest"), 0.0, 255.0)


def channel_shuffle(image: Any) -> Any:
    x = _conv(image, 8)
    for _ in range(2):
        kept, branch = tf.split(x, 2, axis=-1)
        branch = L.DepthwiseConv2D(3, padding="same")(_conv(branch, 4, size=1))
        x = tf.concat([kept, _conv(branch, 4, size=1)], -1)
        x = tf.transpose(tf.reshape(x, [-1, 8, 8, 2, 4]), [0, 1, 2, 4, 3])
        x = tf.reshape(x, [-1, 8, 8, 8])
    return _classes(x)


def gated_rows(image: Any) -> Any:
    x, skips = L.Reshape((64, 3))(image), []
    for dilation in (1, 2):
        gated = L.SeparableConv1D(8, 2, padding="causal", dilation_rate=dilation)(x)
        signal, gate = tf.split(gated, 2, axis=-1)
        x = L.Conv1D(4, 1)(tf.tanh(signal) * tf.sigmoid(gate))
        skips.append(L.DepthwiseConv1D(3, padding="same")(x))
    return L.Dense(4)(tf.reduce_mean(tf.nn.relu(tf.add_n(skips)), axis=1))


def encoder_decoder(image: Any) -> Any:
    fine = _conv(image, 6)
    x = _conv(tf.nn.max_pool2d(fine, 2, 2, "VALID"), 8)
    up = {"strides": 2, "padding": "same", "output_padding": 1}
    x = tf.concat([L.Conv2DTranspose(6, 3, activation="relu", **up)(x), fine], axis=-1)
    return L.Conv2D(2, 1)(_conv(x, 6))


def patches(image: Any) -> Any:
    positions = np.random.default_rng(0).normal(size=(1, 16, 8)).astype(np.float32)
    x = tf.reshape(L.Conv2D(8, 2, 2)(image), [-1, 16, 8]) + positions
    x = x + L.Dense(8)(L.Dense(16, activation="gelu")(x))
    return L.Dense(4)(tf.reduce_mean(x, axis=1))


def hard_swish(image: Any) -> Any:
    x = _conv(image, 6, rectified=False)
    x = x * tf.minimum(tf.maximum(x + 3, 0), 6) / 6
    x = _conv(x, 6, rectified=False)
    return _classes(x * keras.backend.relu(x + 3.0, max_value=6.0) / 6)


BLOCKS = (
    *(cbam, resnet_option_a, super_resolution, channel_shuffle),
    *(gated_rows, encoder_decoder, patches, hard_swish),
)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_blocks_are_integers_from_end_to_end(block, bits, path):
    keras.utils.set_random_seed(bits)
    image = keras.Input((8, 8, 3), name="image")
    model = keras.Model(image, block(image))
    make_realistic(model)
    policy = sat_tf.BitPolicy.mobile(bits)
    assert sat_tf.explain(model, policy).problems == ()
    report, proof = proved(calibrated(model, policy), path)
    assert [line.split()[0] for line in report.float_operators] == ["DEQUANTIZE"]
    assert proof.runtimes["xnnpack"].outputs_differing == 0
