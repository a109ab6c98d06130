"""The quantized network that a placement gives, without its model.

Layers of the float model stand in it as they are, inside the wrappers that the quantized model
would give them, whose few scalars are all that is made. So the export can be asked about it what it
asks about a quantized model.
"""

import dataclasses
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.export.lattice import KernelOutline
from sat_tf.planning.image_size import input_shape
from sat_tf.qat import registry
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.decisions import Insertion, Placement
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network, Node
from sat_tf.qat.quantizers import (
    DorefaQuantizer,
    ImageQuantizer,
    InputQuantizer,
    RangeObserver,
)
from sat_tf.qat.wrapper import QuantizedLayer

_APART = 2.0**-12


@dataclasses.dataclass(frozen=True)
class _OutputOfCall(Node):
    """The quantizer behind one call of a layer that has several.

    Attributes:
        behind: the node of the float model that it belongs to.
    """

    behind: str = ""


def preview(network: Network, placement: Placement) -> Network:
    """The graph of the quantized model, with the names that its layers will have.

    Args:
        network: the float model.
        placement: what was decided for it.
    """
    insertions: dict[str, list[Insertion]] = {}
    for insertion in placement.insertions:
        insertions.setdefault(insertion.tensor, []).append(insertion)
    made: dict[tuple[str, str | None], str] = {}
    nodes: list[Node] = []
    wrappers: dict[int, keras.layers.Layer] = {}
    renamed: dict[str, str] = {}
    shapes = {node.name: node.shape for node in network}
    for node in network:
        config, shared = placement.configs.get(node.name), network.is_shared(node.name)
        layer = wrappers.get(id(node.layer), node.layer)
        if config is not None and layer is node.layer:
            own = PlacedConfig(weights=config.weights) if shared else config
            layer = wrappers[id(node.layer)] = QuantizedLayer(node.layer, own)
            _build(layer, input_shape(node, [shapes[name] for name in node.inputs]), len(nodes))
        call = node.name.removeprefix(node.layer.name)
        name = layer.name + call
        inputs = tuple(made.get((read, node.name), made[read, None]) for read in node.inputs)
        nodes.append(dataclasses.replace(node, name=name, layer=layer, inputs=inputs))
        if shared and config is not None and config.output is not None:
            # Each call has its quantizer in a layer of its own.
            own_name = f"{node.name.replace('@', '_call_')}_output"
            identity = keras.layers.Activation("linear", name=own_name)
            output = PlacedConfig(output=config.output, inserted=True)
            quantizer = QuantizedLayer(identity, output)
            _build(quantizer, (None, *node.shape), len(nodes))
            nodes.append(
                _OutputOfCall(
                    quantizer.name, quantizer, (name,), False, {}, node.shape, behind=node.name
                )
            )
            name = quantizer.name
        made[node.name, None] = renamed[node.name] = name
        for insertion in insertions.get(node.name, []):
            identity = keras.layers.Activation("linear", name=insertion.name)
            quantizer = QuantizedLayer(identity, insertion.config)
            _build(quantizer, (None, *node.shape), len(nodes))
            nodes.append(Node(quantizer.name, quantizer, (name,), False, {}, shape=node.shape))
            made.update({(node.name, reader): quantizer.name for reader in insertion.readers})
    return network.rearranged(nodes, renamed)


def user_name(node: Node) -> str:
    """The name that the user knows a layer of a preview by."""
    if isinstance(node, _OutputOfCall):
        return node.behind
    return str(inner_layer(node.layer).name) + node.name.removeprefix(node.layer.name)


def kernel_outlines(network: Network) -> dict[str, KernelOutline]:
    """Codes of the right number and shape for the linear layers of a preview, by their names."""
    outlines = {}
    for node in network:
        quantizer = getattr(getattr(node.layer, "quantize_config", None), "weights", None)
        if isinstance(quantizer, DorefaQuantizer):
            outlines[node.name] = _outline(inner_layer(node.layer), quantizer)
    return outlines


def reading_bits(network: Network, name: str) -> int | None:
    """Bits of the codes that a layer of a preview reads; None where it reads float values."""
    node = network[network[name].inputs[0]]
    while True:
        quantizer = getattr(getattr(node.layer, "quantize_config", None), "output", None)
        if isinstance(quantizer, ImageQuantizer | InputQuantizer):
            return 8
        bits: int | None = getattr(quantizer, "num_bits", None)
        if bits is not None:
            return bits
        if not registry.role_of(inner_layer(node.layer)).keeps_codes:
            return None
        node = network[node.inputs[0]]


def _build(layer: QuantizedLayer, shape: Any, index: int) -> None:
    # Levels start alike, but no two stay so, and the file has operators between grids that differ.
    apart = 1.0 + index * _APART
    layer.build(shape)
    variables = layer.output_variables
    if isinstance(layer.quantize_config.output, RangeObserver):
        # As after a calibration, without which no model is exported.
        for name, value in (("lowest", -1.0), ("highest", 1.0), ("observations", 1.0)):
            variables[name].assign(value * apart)
    if "clipping_level" in variables:
        variables["clipping_level"].assign(variables["clipping_level"] * apart)


def _outline(layer: keras.layers.Layer, quantizer: DorefaQuantizer) -> KernelOutline:
    shape = tuple(getattr(layer, registry.kernel_name(layer)).shape)
    support = registry.find_support(layer)
    axes = support.channel_axes if support else (len(shape) - 1,)
    channels = int(np.prod([shape[axis] for axis in axes]))
    # Channels with ranges of their own have steps of their own.
    steps = np.linspace(1.0, 2.0, channels) if quantizer.range_axes else np.ones(channels)
    return KernelOutline(np.broadcast_to(np.int8(0), shape), steps)
