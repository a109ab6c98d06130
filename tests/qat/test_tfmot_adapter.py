"""Our quantizers in a wrapper of TFMOT's own, which sees them through the adapter."""

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from tensorflow_model_optimization.python.core.quantization.keras import quantize_wrapper

from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.lsq import LsqQuantizer
from sat_tf.quantizers.pact import StreamQuantizer

L = keras.layers


def _config():
    output = StreamQuantizer(num_bits=4, initial_clipping_level=3.0)
    return PlacedConfig(weights=LsqQuantizer(num_bits=4), output=output)


def test_tfmots_wrapper_computes_and_trains_as_ours():
    x = tf.constant(np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32))
    made = []
    for wrap in (quantize_wrapper.QuantizeWrapperV2, QuantizedLayer):
        layer = L.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        wrapped = wrap(layer, _config())
        with tf.GradientTape() as tape:
            outputs = wrapped(x, training=True)
        variables = {v.name.split("/")[-1].split(":")[0]: v for v in wrapped.trainable_variables}
        assert {"kernel", "bias", "magnitude", "clipping_level"} == set(variables)
        made.append((outputs, tape.gradient(outputs, variables)))
    (expected, gradients), (found, others) = made
    np.testing.assert_array_equal(found, expected)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(others[name], gradient, err_msg=name)


def test_what_tfmot_is_given_is_one_of_its_quantizers():
    layer = L.Dense(3)
    layer.build((None, 5))
    config = _config()
    ((kernel, quantizer),) = config.get_weights_and_quantizers(layer)
    assert kernel is layer.kernel
    for one in (quantizer, *config.get_output_quantizers(layer)):
        assert isinstance(one, tfmot.quantization.keras.quantizers.Quantizer)
    assert quantizer.get_config() == config.weights.get_config()
