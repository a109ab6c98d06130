"""Puts the quantized model together that a placement describes."""

from typing import Any

import tf_keras as keras

from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.decisions import Insertion, Placement
from sat_tf.qat.layer_copy import layer_copy
from sat_tf.qat.naming import unique_name
from sat_tf.qat.network import Network, Node
from sat_tf.qat.operation_layers import ConstantSum
from sat_tf.qat.preprocessing import adapted_copy, is_adapted
from sat_tf.qat.wrapper import QuantizedLayer


def assemble(
    network: Network, placement: Placement
) -> tuple[keras.Model, dict[str, keras.layers.Layer]]:
    """Builds the quantized model, with weights of its own.

    A layer that is called several times is one `QuantizedLayer` without an output quantizer; those
    of its calls follow it in layers of their own, named `quant_<name>_output` and, from the second
    call on, `quant_<name>_call_2_output`.

    Args:
        network: the float model.
        placement: its quantizers.

    Returns:
        The model, and its layers by the names that they have in the float one.
    """
    return _Assembler(network, placement).assemble()


class _Assembler:
    def __init__(self, network: Network, placement: Placement) -> None:
        self.network = network
        self.placement = placement
        self.layers: dict[str, keras.layers.Layer] = {}
        # Layers without quantizers keep their names; others make room, as users know them.
        self.taken = {node.layer.name for node in network if node.name not in placement.configs}
        self.inner = {node.layer.name for node in network}
        self.made: dict[tuple[str, str | None], Any] = {}

    def assemble(self) -> tuple[keras.Model, dict[str, keras.layers.Layer]]:
        insertions: dict[str, list[Insertion]] = {}
        for insertion in self.placement.insertions:
            insertions.setdefault(insertion.tensor, []).append(insertion)
        for node in self.network:
            tensor = self._call(node)
            self.made[node.name, None] = tensor
            for insertion in insertions.get(node.name, []):
                readers = [self.network[reader].layer for reader in insertion.readers]
                frozen = not any(layer.trainable for layer in (node.layer, *readers))
                quantized = self._inserted(insertion.name, insertion.config, frozen)(tensor)
                self.made.update({(node.name, reader): quantized for reader in insertion.readers})
        ends = {*self.network.inputs, *self.network.outputs}
        model = self.network.assemble({name: self.made[name, None] for name in ends})
        return model, self.layers

    def _call(self, node: Node) -> Any:
        """The output of a node, behind its quantizer."""
        name, config = node.layer.name, self.placement.configs.get(node.name)
        if name not in self.layers:
            self.layers[name] = self._layer(node)
        if isinstance(node.layer, keras.layers.InputLayer):
            return self.layers[name].output
        tensors = [
            self.made.get((source, node.name), self.made[source, None]) for source in node.inputs
        ]
        tensor = node.call(self.layers[name], tensors)
        if config is None or config.output is None or not self.network.is_shared(node.name):
            return tensor
        output = PlacedConfig(output=config.output, inserted=True)
        behind = f"{node.name.replace('@', '_call_')}_output"
        return self._inserted(behind, output, not node.layer.trainable)(tensor)

    def _layer(self, node: Node) -> keras.layers.Layer:
        fresh = layer_copy(node.layer)
        config = self.placement.configs.get(node.name)
        if config is None:
            return fresh
        if is_adapted(fresh):
            fresh = adapted_copy(fresh)
        if isinstance(fresh, ConstantSum) and self._becomes_codes(node.name):
            fresh = fresh.rounded()
        if self.network.is_shared(node.name):
            config = PlacedConfig(weights=config.weights, annotation=config.annotation)
        name = unique_name(f"quant_{fresh.name}", self.taken)
        return QuantizedLayer(fresh, config, name=name, trainable=node.layer.trainable)

    def _becomes_codes(self, name: str) -> bool:
        """Whether a layer's output is quantized, or that of the one that absorbs it."""
        while name in self.placement.reasons.absorbed_by:
            name = self.placement.reasons.absorbed_by[name]
        config = self.placement.configs.get(name)
        return config is not None and config.output is not None

    def _inserted(self, name: str, config: PlacedConfig, frozen: bool) -> QuantizedLayer:
        """A quantizer in a layer of its own."""
        identity = keras.layers.Activation("linear", name=unique_name(name, self.inner))
        name = unique_name(f"quant_{identity.name}", self.taken)
        return QuantizedLayer(identity, config, name=name, trainable=not frozen)
