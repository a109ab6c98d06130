import keras
import numpy as np
import pytest

import sat_tf

L = keras.layers


@pytest.mark.parametrize(
    "layer",
    [
        L.Dense(4, activation="relu", activity_regularizer="l2"),
        L.Dense(4, activation="tanh", activity_regularizer="l2"),
        L.ReLU(activity_regularizer="l2"),
        L.BatchNormalization(activity_regularizer="l2"),
    ],
    ids=lambda layer: layer.name,
)
def test_losses_of_layers_are_kept(layer):
    keras.utils.set_random_seed(5)
    read = keras.Input((8,))
    model = keras.Model(read, L.Dense(3, name="end")(layer(L.Dense(4, name="start")(read))))
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_type="int8"))
    values = np.random.default_rng(5).normal(size=(64, 8)).astype(np.float32)
    sat_tf.calibrate(quantized, values, batch_normalization=False, progress=False)
    model(values), quantized(values)
    (expected,), (found,) = model.losses, quantized.losses
    assert float(found) == pytest.approx(float(expected), rel=0.05)
