"""A Conformer block of either Keras: its file is wholly that of its model."""

import keras as keras3  # noqa: TID251 -- models of both Kerases
import numpy as np
import pytest
import tf_keras

import sat_tf
from tests.export.proofs import proved

LENGTH, WIDTH = 8, 16
ROWS = np.random.default_rng(0).normal(size=(64, LENGTH, WIDTH)).astype(np.float32)


def _fed_forward(layers, x):
    y = layers.Dense(2 * WIDTH, activation="swish")(layers.LayerNormalization()(x))
    return layers.Add()([x, 0.5 * layers.Dense(WIDTH)(layers.Dropout(0.1)(y))])


def _conformer(keras):
    """Half a feed-forward, attention, a gated convolution, and the other half."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    rows = keras.Input((LENGTH, WIDTH), name="rows")
    x = _fed_forward(layers, layers.Dense(WIDTH)(rows))
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(y, y)])
    y = layers.LayerNormalization()(x)
    y = layers.Multiply()([layers.Dense(WIDTH)(y), layers.Dense(WIDTH, activation="sigmoid")(y)])
    y = layers.DepthwiseConv1D(3, padding="same", use_bias=False)(y)
    y = layers.Activation("swish")(layers.BatchNormalization()(y))
    x = layers.LayerNormalization()(_fed_forward(layers, layers.Add()([x, layers.Dense(WIDTH)(y)])))
    end = layers.Dense(3, name="end")(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(rows, end, name="conformer")
    model(ROWS, training=True)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("keras", [tf_keras, keras3], ids=["keras2", "keras3"])
@pytest.mark.parametrize("weight_bits", [8, 4])
def test_no_code_of_its_file_differs(keras, weight_bits, tmp_path):
    model = _conformer(keras)
    policy = sat_tf.BitPolicy.mobile(8, weight_bits=weight_bits, input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, ROWS, progress=False)
    _, certificate = proved(quantized, tmp_path / "model.tflite", ROWS[:32])
    assert certificate.trained_differing < 0.005
    # Nothing but what is float on CPUs by design.
    assert all("layer_normalization" in name for name in certificate.float_layers)
