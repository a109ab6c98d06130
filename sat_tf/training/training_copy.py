"""The copy of a model that is trained: weight decay, arithmetic and statistics as a run wants."""

import tf_keras as keras

from sat_tf.qat.layout import inner_layer
from sat_tf.qat.synchronized import SynchronizedBatchNormalization
from sat_tf.qat.wrapper import QuantizedLayer

_WITHOUT_DECAY = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
_SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)

# By whether they are synchronized.
_NORMALIZATIONS = (keras.layers.BatchNormalization, SynchronizedBatchNormalization)


def training_copy(
    model: keras.Model,
    *,
    weight_decay: float = 0.0,
    precision: str = "float32",
    synchronized: bool = False,
) -> keras.Model:
    """Returns a copy of a model, with the same weights; its regularizers are replaced.

    Weight decay is the paper's: in the gradient, and on some kernels only. It adds
    weight_decay · sum(W²) / 2 to the loss for the kernel W of every convolution and dense layer, so
    that its gradient gets weight_decay · W. In a quantized layer W are the latent weights, which
    are what the optimizer updates. Depthwise kernels, biases, BatchNormalization and clipping
    levels get none.

    The copy's variables are made under the `tf.distribute` strategy that is in scope. They are
    float32 in every precision, and so is the arithmetic of quantizers.

    Args:
        model: a float Keras model, or one quantized by sat-tf.
        weight_decay: 0 (none) or more.
        precision: name of a Keras dtype policy, such as "mixed_float16": what its layers compute
            in.
        synchronized: BatchNormalization takes its statistics over all replicas.
    """

    def fresh(layer: keras.layers.Layer) -> keras.layers.Layer:
        inner = _copied(inner_layer(layer))
        copy = inner
        if isinstance(layer, QuantizedLayer):
            config = layer.get_config()
            copy = type(layer).from_config({**config, "layer": keras.layers.serialize(inner)})
            inner = copy.layer
        regularizer = keras.regularizers.L2(weight_decay / 2) if weight_decay else None
        if isinstance(inner, _SEPARABLE):
            inner.pointwise_regularizer = regularizer
        elif hasattr(inner, "kernel_regularizer") and not isinstance(inner, _WITHOUT_DECAY):
            inner.kernel_regularizer = regularizer
        return copy

    def _copied(layer: keras.layers.Layer) -> keras.layers.Layer:
        config, kind = layer.get_config(), type(layer)
        if not isinstance(layer, keras.layers.InputLayer):
            config["dtype"] = precision
        if kind in _NORMALIZATIONS:
            config["synchronized"] = synchronized
            kind = _NORMALIZATIONS[synchronized]
        return kind.from_config(config)

    copy = keras.models.clone_model(model, clone_function=fresh)
    copy.set_weights(model.get_weights())
    return copy
