"""The paper's first rule of efficient training, as a number: κ₀ of the classifier."""

import math

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer


def kappa_0(model: keras.Model) -> float | None:
    """κ₀ of a classifier; training is efficient if it is far below 1 (rule I of the paper).

    κ₀ = n_L · VAR[Ξ] / k²_pool, with the effective weights Ξ of the last linear layer, the number
    n_L of its inputs (times the area of its kernel), and the area k²_pool of the average pooling
    between it and the layer before: the area of the pooled map for global pooling, 1 without
    pooling. The variance is centred, over the whole kernel. Max-pooling does not count, as in the
    paper.

    Args:
        model: a Functional or Sequential model, quantized or not.

    Returns:
        κ₀; None if the output is not that of one linear layer which sat-tf knows, or the size of
        the pooled map is not fixed.

    Raises:
        ValueError: the model is not a graph.
    """
    network = Network(model)
    classifier = _back_to_linear(network, network.output)[-1]
    if role_of(classifier) is not Role.LINEAR:
        return None
    area = 1
    for node in _back_to_linear(network, classifier.inputs[0]):
        pooled = _pooled_area(node, network)
        if pooled is None:
            return None
        area *= pooled
    kernel = tf.cast(effective_kernel(classifier), tf.float64)
    inputs = math.prod(kernel.shape) // _output_channels(classifier)
    return inputs * float(tf.math.reduce_variance(kernel)) / area


def role_of(node: Node) -> Role:
    """The role of the user's layer of a node."""
    return layer_kinds.role_of(inner_layer(node.layer))


def effective_kernel(node: Node) -> tf.Tensor:
    """The effective kernel of a linear layer; its own kernel if it is not quantized."""
    layer = node.layer
    if isinstance(layer, QuantizedLayer):
        effective = layer.effective_kernel()
        if effective is not None:
            return effective
    inner = inner_layer(layer)
    return tf.convert_to_tensor(getattr(inner, layer_kinds.kernel_name(inner)))


def _output_channels(node: Node) -> int:
    inner = inner_layer(node.layer)
    support = layer_kinds.find_support(inner)
    shape = getattr(inner, layer_kinds.kernel_name(inner)).shape
    return math.prod(shape[axis] for axis in (support.channel_axes if support else (-1,)))


def _back_to_linear(network: Network, name: str) -> list[Node]:
    """The nodes from `name` backwards to the first that mixes channels or reads several tensors."""
    found = [network[name]]
    while not _mixes(found[-1]) and len(found[-1].inputs) == 1:
        found.append(network[found[-1].inputs[0]])
    return found


def _mixes(node: Node) -> bool:
    # Layers that sat-tf does not know may be linear if they have matrices.
    unknown = role_of(node) is Role.OPAQUE
    matrices = any(len(weight.shape) > 1 for weight in node.layer.weights)
    return role_of(node) is Role.LINEAR or (unknown and matrices)


def _pooled_area(node: Node, network: Network) -> int | None:
    """The area that a layer average-pools; 1 if it does not, None if the area is not fixed."""
    if role_of(node) is not Role.MEAN:
        return 1
    layer = inner_layer(node.layer)
    pooling = layer_kinds.pooling_of(layer)
    if pooling and not pooling.whole:
        return math.prod(layer.pool_size)
    rows, columns, _ = network[node.inputs[0]].shape
    return None if rows is None or columns is None else rows * columns
