"""What is to be quantized: the graph of a float model, and which of its layers are annotated."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.qat.flatten import flatten
from sat_tf.qat.network import Network, Node, check_model
from sat_tf.qat.operations import with_layers_for_operations
from sat_tf.qat.requantize import effective_kernels, without_quantizers
from sat_tf.qat.wrapper import QuantizedLayer


@dataclasses.dataclass(frozen=True)
class Source:
    """A float model as the placement takes it.

    Attributes:
        network: its graph, without annotations.
        annotations: for every layer to quantize, its `LayerConfig` or None.
        requantized: it was quantized before, and its weights are latent ones.
        kernels: its effective kernels then, by name; none otherwise.
    """

    network: Network
    annotations: Mapping[str, Any]
    requantized: bool = False
    kernels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def read_source(model: keras.Model) -> Source:
    """Reads a float model, one that TFMOT's functions have annotated, or one quantized before.

    Raises:
        ValueError: the model has no graph; says what to do.
    """
    check_model(model)
    network = Network(model)
    if is_quantized(network):
        float_model, annotations = without_quantizers(model)
        kernels = effective_kernels(model)
        return Source(Network(float_model), annotations, requantized=True, kernels=kernels)
    if not any(_is_annotated(node.layer) for node in network):
        # As `quantize_model` reads it.
        network = Network(with_layers_for_operations(flatten(model)))
        return Source(network, {node.name: None for node in network})
    renamed = {node.name: node.layer.layer.name for node in network if _is_annotated(node.layer)}
    nodes = [_without_annotation(node, renamed) for node in network]
    annotations = {
        node.layer.layer.name: node.layer.quantize_config
        for node in network
        if _is_annotated(node.layer)
    }
    return Source(network.rearranged(nodes, renamed), annotations)


def is_quantized(network: Network) -> bool:
    """Whether sat-tf has quantized the model."""
    return any(isinstance(node.layer, QuantizedLayer) for node in network)


def _is_annotated(layer: keras.layers.Layer) -> bool:
    # TFMOT has no public name for its wrapper.
    return type(layer).__name__ == "QuantizeAnnotate" and hasattr(layer, "quantize_config")


def _without_annotation(node: Node, renamed: Mapping[str, str]) -> Node:
    layer = node.layer.layer if _is_annotated(node.layer) else node.layer
    inputs = tuple(renamed.get(name, name) for name in node.inputs)
    # TFMOT's wrapper hands no arguments on.
    return dataclasses.replace(node, name=layer.name, layer=layer, inputs=inputs)
