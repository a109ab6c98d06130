"""Losses and metrics that are parts of a model: kept by its layers, or refused by name."""

import keras as keras3  # noqa: TID251 -- both Kerases keep them
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf

L = keras.layers
NUMBERS = np.ones((4, 8), np.float32)


def _model():
    read = keras.Input((8,), name="read")
    code = L.Dense(4, name="code", kernel_regularizer="l2")(read)
    return keras.Model(read, L.Dense(3, name="classifier")(code), name="net"), code


def test_a_loss_of_the_quantized_model_trains_it_and_does_not_reach_the_file(tmp_path):
    quantized = sat_tf.quantize_model(_model()[0], sat_tf.BitPolicy.mobile(8, input_type="int8"))
    quantized.add_loss(tf.reduce_mean(quantized.get_layer("quant_code").output ** 2))
    sat_tf.calibrate(quantized, np.tile(NUMBERS, (16, 1)), progress=False)
    quantized(NUMBERS)
    assert len(quantized.losses) == 2  # with that of the regularizer
    sat_tf.export_tflite(quantized, tmp_path / "net.tflite")
    with pytest.raises(ValueError, match="a loss of its own"):
        sat_tf.requantize(quantized, 4)


class Penalty(L.Layer):
    """A layer of a user that adds a loss when it is called."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


@pytest.mark.parametrize(
    ("library", "layer"),
    [
        *(
            (library, layer)
            for library in (keras, keras3)
            for layer in (
                library.layers.Dense(4, activation="relu", activity_regularizer="l2"),
                library.layers.Dense(4, activation="tanh", activity_regularizer="l2"),
                library.layers.ReLU(activity_regularizer="l2"),
                library.layers.BatchNormalization(activity_regularizer="l2"),
            )
        ),
        (keras, L.Dense(4, activity_regularizer="l2")),
        (keras, L.Activation("tanh", activity_regularizer="l2")),
        (keras, L.ActivityRegularization(0.1)),
        (keras, Penalty()),
    ],
    ids=lambda value: value.__name__ if value in (keras, keras3) else value.name,
)
def test_losses_of_layers_are_kept(library, layer):
    library.utils.set_random_seed(5)
    read, dense = library.Input((8,)), library.layers.Dense
    model = library.Model(read, dense(3, name="end")(layer(dense(4, name="start")(read))))
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float", input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    values = np.random.default_rng(5).normal(size=(64, 8)).astype(np.float32)
    sat_tf.calibrate(quantized, values, batch_normalization=False, progress=False)
    model(values), quantized(values)
    (expected,), (found,) = model.losses, quantized.losses
    assert float(found) == pytest.approx(float(expected), rel=0.05)
