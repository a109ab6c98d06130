"""A trained model moved to where its integer file is.

An integer file holds biases as multiples of input scale · weight scale, and nearly constant
channels get another scale for that (`lowering.scales`); this is nearly all that makes a phone
compute other numbers than the trained model. In a deep network of few bits these differences do not
stay small: a code that flips in an early layer flips others behind it, and in the end the logits
differ as if the model had been quantized again. With the model itself moved to that grid before
top-1 is measured, the measured model is the shipped one, except for ties and for what the
certificate names: sums and products of more than two tensors, windows of means that reach far
beyond an image, and values of signed streams below all codes.
"""

import numpy as np
import tf_keras as keras

from sat_tf.export.lowering import pipeline, quantized_network
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import Linear, linear_operations
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.model_class import processor_of
from sat_tf.qat.wrapper import output_quantizer


def snap_biases(model: keras.Model, *, pack: str = "auto") -> None:
    """Moves every bias of a quantized model, in place, to that of its integer file.

    Call it when training is done, before the top-1 is measured. What moves is β of the
    BatchNormalization behind a linear layer, or the layer's own bias where there is none; layers
    with neither stay as they are, and so do layers that are called several times, whose uses have
    grids of their own. Where the file gives a channel another scale, γ follows it:

        γ <- ratio · γ,   β <- bias' - ratio · (bias - β),   ratio = scale' / scale

    with bias the constant of the whole channel, statistics included, and ' for the file's. Without
    a γ, the constant is moved so that it is right where the channel usually is.

    Args:
        model: a model quantized by sat-tf. A file with a float head holds the last layer's bias as
            it is; that of `snap_biases` is then another one, at most half a unit away.
        pack: how its file will be packed, as `sat_tf.export_tflite` is told: the grid of biases is
            that of the stored codes, and coarser where they have fewer bits.

    Raises:
        ValueError: the model has no integer form, or nothing to pack; lists every problem.
    """
    network = Network(model)
    trained = pipeline.trained_graph(network, pack=processor_of(model).packing(pack))
    deployed = pipeline.rounded(trained)
    nodes = {call_name(node): node for node in network}
    shaped = {
        operation.inputs[0]: operation.output
        for operation in trained.operations
        if operation.reshapes
    }
    pairs = (linear_operations(graph.operations) for graph in (trained, deployed))
    for exact, rounded in zip(*pairs, strict=True):
        node = nodes.get(exact.output) or nodes.get(shaped.get(exact.output, ""))
        if node is not None and not exact.is_float(trained):
            holder = _bias_holder(network, node)
            if holder is not None:
                _move(holder, trained, exact, rounded)


def _move(holder: keras.layers.Layer, graph: Graph, exact: Linear, rounded: Linear) -> None:
    """Gives a layer the constants, and where it has a γ the slopes, of its file."""
    unit = graph.codes(exact.output).unit
    # The file's scale over the trained one, a channel; 1 where it no longer has the same codes.
    same = np.all(exact.kernel == rounded.kernel, axis=exact.inner_axes)
    seen = np.any(exact.kernel != 0, axis=exact.inner_axes)
    ratio = np.where(same & seen, rounded.scales.astype(np.float64) / exact.scales, 1.0)
    bias = exact.bias * unit
    source = float(graph.codes(exact.inputs[0]).scale)
    moved = rounded.bias * source * rounded.scales.astype(np.float64) * unit
    if layer_kinds.is_batch_normalization(holder):
        beta = holder.beta.numpy().astype(np.float64)
        if holder.gamma is None:
            holder.beta.assign(beta + (moved - bias) + (ratio - 1.0) * exact.center * unit)
        else:
            holder.gamma.assign(holder.gamma.numpy() * ratio)
            holder.beta.assign(moved - ratio * (bias - beta))
    else:
        old = holder.bias.numpy().astype(np.float64)
        holder.bias.assign(old + (moved - bias) + (ratio - 1.0) * exact.center * unit)


def _bias_holder(network: Network, node: Node) -> keras.layers.Layer | None:
    """The layer whose β or bias adds to a tensor directly: the last one before its quantizer."""
    while True:
        layer = inner_layer(node.layer)
        if network.is_shared(node.name):
            return None
        if layer_kinds.is_batch_normalization(layer):
            return layer if layer.beta is not None else None
        if getattr(layer, "bias", None) is not None:
            return layer
        if quantized_network.role_of(node) is Role.SCALING:  # it scales the bias before it
            return None
        # Only a rectifier may stand between the sum and the tensor, and nothing that has codes.
        if layer.weights or len(node.inputs) != 1:
            return None
        node = network[node.inputs[0]]
        if output_quantizer(node.layer) is not None:
            return None
