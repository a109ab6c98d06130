"""Which layer computes inside its wrappers, and what it multiplies by."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import Kernel


def holds_matrices(layer: keras.layers.Layer) -> bool:
    """Whether any weight has more than one axis, so that the layer may be linear in its own way."""
    return any(len(weight.shape) > 1 for weight in layer.weights)


def unwrapped(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The layer that computes: inside its quantizing or distributing wrappers."""
    # A bidirectional one wraps two, neither of which is the one that computes.
    while isinstance(layer, keras.layers.Wrapper) and not hasattr(layer, "backward_layer"):
        layer = layer.layer
    return layer


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function, also where TFMOT's own wrapper stands for it."""
    activation = getattr(layer, "activation", None)
    inner = getattr(activation, "activation", activation)
    # TFMOT has an activation that does nothing, in front of BatchNormalization.
    if inner is None or type(inner).__name__ == "NoOpActivation":
        return "linear"
    return getattr(inner, "__name__", type(inner).__name__)


def groups(layer: keras.layers.Layer) -> int:
    """In how many groups a convolution's channels fall."""
    return int(getattr(layer, "groups", 1) or 1)


def kernel_of(layer: keras.layers.Layer, kernel: Kernel) -> Any:
    """What the layer has in the place of a kernel: a variable, or what stands in for it."""
    return getattr(layer, kernel.attribute)
