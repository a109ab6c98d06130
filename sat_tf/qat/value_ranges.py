"""What is known of the values in a graph before any data is seen: their sign, and their maximum."""

from collections.abc import Mapping

import numpy as np
import tf_keras as keras

from sat_tf.qat import functions, registry
from sat_tf.qat.network import Network, Node
from sat_tf.qat.operation_layers import ConstantSum
from sat_tf.qat.pixel_ranges import PixelRanges
from sat_tf.qat.preprocessing import is_adapted
from sat_tf.qat.registry import Role


class ValueRanges:
    """Signs and maxima of the outputs of layers.

    Args:
        network: the float model.
        roles: the part that each layer plays.
        pixels: the values of tensors that are made of pixels alone.
    """

    def __init__(self, network: Network, roles: Mapping[str, Role], pixels: PixelRanges) -> None:
        self._network = network
        self._roles = roles
        self._pixels = pixels

    def is_negative(self, name: str) -> bool:
        """Whether the layer's output can be negative."""
        node, role = self._network[name], self._roles[name]
        if role is Role.INPUT:
            return not self._pixels.reads(name) or self._pixels[name][0] < 0.0
        if role is Role.RECTIFIER:
            return False
        if role is Role.LINEAR:
            return not (registry.rectifies(node.layer) or registry.is_softmax(node.layer))
        if role is Role.AFFINE and self._pixels.reads(name):
            # Other weights can give an adapted one other signs.
            return is_adapted(node.layer) or self._pixels[name][0] < 0.0
        if role in (Role.FUNCTION, Role.SOFTMAX):
            if registry.is_softmax(node.layer):
                return False
            if functions.keeps_range(node.layer):
                return self.is_negative(node.inputs[0])
            # A sign that is kept is that of the input; else the function's own.
            keeps = functions.keeps_sign(node.layer) and not self.is_negative(node.inputs[0])
            return not keeps and functions.reach(node.layer).is_negative
        if role in (Role.SUM, Role.PRODUCT, Role.CONCATENATION, Role.MEAN, Role.MOVEMENT):
            return self._combines_to_negative(node)
        if role is Role.SCALING:
            slope, offset = node.layer.affine()
            grows = bool(np.all(slope > 0.0) and np.all(offset >= 0.0))
            return not grows or self.is_negative(node.inputs[0])
        return True

    def _combines_to_negative(self, node: Node) -> bool:
        if isinstance(node.layer, keras.layers.Subtract):
            return True
        if isinstance(node.layer, ConstantSum) and np.any(node.layer.values < 0.0):
            return True
        negative = [self.is_negative(producer) for producer in node.inputs]
        return all(negative) if isinstance(node.layer, keras.layers.Maximum) else any(negative)

    def reach(self, name: str) -> functions.Reach:
        """Which values the layer's output can have, as far as functions in or before it say."""
        node, role = self._network[name], self._roles[name]
        if role is Role.FUNCTION and not functions.keeps_range(node.layer):
            found = functions.reach(node.layer)
            return found if self.is_negative(name) == found.is_negative else functions.POSITIVE
        if role in (Role.MEAN, Role.MOVEMENT, Role.FUNCTION):
            return self.reach(node.inputs[0])
        if role is Role.PRODUCT:
            # A gate between 0 and 1 leaves what it multiplies in its range.
            reaches = sorted(map(self.reach, node.inputs), key=lambda one: one == functions.UNIT)
            if all(one == functions.UNIT for one in reaches[1:]):
                return reaches[0]
        return functions.UNKNOWN

    def ceiling(self, name: str) -> float | None:
        """What the layer's output cannot exceed by its own definition, or None."""
        node, role = self._network[name], self._roles[name]
        if role in (Role.INPUT, Role.MOVEMENT) and self._pixels.reads(name):
            return self._pixels[name][1]
        if role in (Role.RECTIFIER, Role.LINEAR):
            return registry.rectifier_ceiling(node.layer)
        if role is Role.FUNCTION and not functions.keeps_range(node.layer):
            return functions.reach(node.layer).highest
        if role in (Role.MEAN, Role.MOVEMENT, Role.FUNCTION):
            return self.ceiling(node.inputs[0])
        return None
