"""The layer inside its wrappers, and its kernel."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import Kernel


def holds_matrices(layer: keras.layers.Layer) -> bool:
    """Whether any weight has more than one axis, so that the layer may be linear."""
    return any(len(weight.shape) > 1 for weight in layer.weights)


def unwrapped(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The layer that computes: inside its quantizing or distributing wrappers."""
    # A bidirectional wrapper has two layers, and computes itself.
    while isinstance(layer, keras.layers.Wrapper) and not hasattr(layer, "backward_layer"):
        layer = layer.layer
    return layer


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function, also inside TFMOT's own wrapper."""
    activation = getattr(layer, "activation", None)
    inner = getattr(activation, "activation", activation)
    # TFMOT puts an identity activation in front of BatchNormalization.
    if inner is None or type(inner).__name__ == "NoOpActivation":
        return "linear"
    return getattr(inner, "__name__", type(inner).__name__)


def groups(layer: keras.layers.Layer) -> int:
    """The number of groups of a convolution."""
    return int(getattr(layer, "groups", 1) or 1)


def kernel_of(layer: keras.layers.Layer, kernel: Kernel) -> Any:
    """The kernel attribute of a layer: a variable, or the tensor that replaces it."""
    return getattr(layer, kernel.attribute)
