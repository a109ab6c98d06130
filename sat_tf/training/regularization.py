"""Weight decay as the paper has it: in the gradient, and on some kernels only."""

import tf_keras as keras

from sat_tf.qat.layout import inner_layer

_WITHOUT_DECAY = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
_SEPARABLE = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)


def with_weight_decay(model: keras.Model, weight_decay: float) -> keras.Model:
    """Returns a copy of a model whose loss makes kernels decay; its regularizers are replaced.

    Adds weight_decay · sum(W²) / 2 to the loss for the kernel W of every convolution and dense
    layer, so that its gradient gets weight_decay · W. In a quantized layer W are the latent
    weights, which are what the optimizer updates. Depthwise kernels, biases, BatchNormalization and
    clipping levels get none.

    The copy's variables are made under the `tf.distribute` strategy that is in scope.

    Args:
        model: a float Keras model, or one quantized by sat-tf.
        weight_decay: 0 (none) or more.
    """

    def fresh(layer: keras.layers.Layer) -> keras.layers.Layer:
        copy = type(layer).from_config(layer.get_config())
        inner = inner_layer(copy)
        regularizer = keras.regularizers.L2(weight_decay / 2) if weight_decay else None
        if isinstance(inner, _SEPARABLE):
            inner.pointwise_regularizer = regularizer
        elif hasattr(inner, "kernel_regularizer") and not isinstance(inner, _WITHOUT_DECAY):
            inner.kernel_regularizer = regularizer
        return copy

    copy = keras.models.clone_model(model, clone_function=fresh)
    copy.set_weights(model.get_weights())
    return copy
