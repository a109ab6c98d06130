"""Layers that are left float in models of mixed precision: files compute them in float32."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.quantized_network import in_float32
from sat_tf.graph.network import Network
from tests.export.proofs import proved

L = keras.layers
ISLANDS = {
    "normalization": lambda x: L.LayerNormalization()(x),
    "resizing": lambda x: L.UpSampling2D(2, interpolation="bilinear")(x),
    "attention": lambda x: _attention(x),
    "recurrent": lambda x: L.Bidirectional(L.LSTM(3))(L.Reshape((16, 6))(x)),
    "operation": lambda x: x / (0.5 + tf.reduce_sum(x, -1, keepdims=True)),
}
# The converter takes seconds for each of the others.
QUICK = ("operation", "mixed_bfloat16")


def _attention(x):
    x = L.Reshape((16, 6))(x)
    return L.MultiHeadAttention(2, 3)(x, value=x[:, ::2])


def _model(island, policy):
    keras.utils.set_random_seed(3)
    image = keras.Input((8, 8, 3), name="image")
    try:
        keras.mixed_precision.set_global_policy(policy)
        x = L.Conv2D(6, 3, strides=2, padding="same", activation="relu")(image)
        x = L.Flatten()(ISLANDS[island](x))
        return keras.Model(image, L.Dense(3, dtype="float32")(x))
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    ("island", "precision"),
    [
        pytest.param(island, name, marks=() if (island, name) == QUICK else pytest.mark.thorough)
        for island in ISLANDS
        for name in ("mixed_bfloat16", "mixed_float16")
    ],
)
def test_they_are_exported_with_the_weights_of_the_model(island, precision, path):
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 3)).astype(np.uint8)
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float")
    quantized = sat_tf.quantize_model(_model(island, precision), policy)
    for variable in quantized.trainable_variables:
        variable.assign_add(0.01 * tf.ones_like(variable))  # as if it were trained
    sat_tf.calibrate(quantized, images.astype(np.float32))
    proved(quantized, path, images)
    # In the mean: in lower precision sums are rounded to the codes next to them.
    expected = quantized(images.astype(np.float32)).numpy()
    found = Runtime(path.read_bytes(), keep_tensors=False).run(images)
    assert np.mean(np.abs(found - expected)) < 0.02 * np.ptp(expected)


def test_a_layer_in_float32_is_the_layer_itself():
    network = Network(_model("normalization", "float32"))
    node = next(node for node in network if isinstance(node.layer, L.LayerNormalization))
    assert in_float32(node, [(4, 4, 6)]) is node.layer


def test_a_copy_in_float32_has_layers_inside_in_float32_too():
    network = Network(_model("recurrent", "mixed_float16"))
    node = next(node for node in network if isinstance(node.layer, L.Bidirectional))
    copy = in_float32(node, [(16, 6)])
    parts = [part for part in copy.submodules if isinstance(part, L.Layer)]
    assert {part.compute_dtype for part in (copy, *parts)} == {"float32"}
    for one, other in zip(node.layer.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
