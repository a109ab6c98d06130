"""Biases of a trained model on the grid of its integer file.

An integer file holds biases as multiples of input step · weight step; rounding them is all that
makes a phone compute other numbers than the trained model. In a deep network of few bits these
differences do not stay small: a code that flips in an early layer flips others behind it, and in
the end the logits differ as if the model had been quantized anew. With the biases on that grid
before top-1 is measured, the model that is measured is the model that is shipped.
"""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export import steps
from sat_tf.export.graph import Graph, Linear
from sat_tf.export.pipeline import graph_with_real_biases
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network, Node


def snap_biases(model: keras.Model) -> None:
    """Moves every bias of a quantized model, in place, to the nearest one an integer file can hold.

    Call it when training is done, before the top-1 is measured: nearly all codes of the model are
    then those of its file. What moves is β of the BatchNormalization behind a linear layer, or the
    layer's own bias where there is none. Layers with neither stay as they are.

    Args:
        model: a model quantized by sat-tf.

    Raises:
        ValueError: the model has no integer form; lists every problem.
    """
    graph = graph_with_real_biases(model)
    snapped = steps.snap_biases(graph)
    network = Network(model)
    nodes = {inner_layer(node.layer).name: node for node in network}
    for exact, rounded in zip(graph.operations, snapped.operations, strict=True):
        if not isinstance(exact, Linear) or not isinstance(rounded, Linear):
            continue
        if exact.output in nodes and not graph.is_float(exact):
            bias = _bias_variable(network, nodes[exact.output])
            if bias is not None:
                bias.assign_add(_change(graph, exact, rounded).astype(np.float32))


def _change(graph: Graph, exact: Linear, rounded: Linear) -> np.ndarray:
    """What rounding adds to each bias, in real values."""
    source = float(graph.codes(exact.inputs[0]).step)
    units = source * rounded.steps.astype(np.float64)
    return np.asarray((rounded.bias * units - exact.bias) * graph.codes(exact.output).unit)


def _bias_variable(network: Network, node: Node) -> tf.Variable | None:
    """The variable that adds to a tensor directly: the last one before its quantizer."""
    while True:
        layer = inner_layer(node.layer)
        if isinstance(layer, keras.layers.BatchNormalization):
            return layer.beta
        if getattr(layer, "bias", None) is not None:
            return layer.bias
        # Only a rectifier or a quantizer may stand between the sum and the tensor.
        if layer.weights or len(node.inputs) != 1:
            return None
        node = network[node.inputs[0]]
