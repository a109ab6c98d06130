"""The layers of `inference_layers` and `inference_operations` as Keras's own layers and operations.

A file with them is loaded wherever Keras 3 is, without sat-tf.
"""

from collections.abc import Callable
from typing import Any

import keras as keras3

from sat_tf.keras3.inference_layers import FusedBatchNormalization, FusedLayerNormalization

# What Keras has for them, whose last bits are others.
_OF_KERAS: dict[type, type] = {
    FusedBatchNormalization: keras3.layers.BatchNormalization,
    FusedLayerNormalization: keras3.layers.LayerNormalization,
}


def plain_class(kind: type) -> type:
    """The class of Keras that computes nearly what one of sat-tf computes; others as they are."""
    return _OF_KERAS.get(kind, kind)


def in_form(layer: Any, give: Callable[[str], str], *, exact: bool) -> Callable[..., Any]:
    """A Keras 3 layer as it is, or spelled out if it is of sat-tf's own, or its function is.

    Args:
        layer: the layer.
        give: gives out a name like the one it is given.
        exact: as it is.
    """
    parts = (type(layer), getattr(layer, "activation", None))
    is_ours = any(str(getattr(part, "__module__", "")).startswith("sat_tf.") for part in parts)
    return SpelledOut(layer, give) if is_ours and not exact else layer


class SpelledOut:
    """A layer of sat-tf's own as `keras.ops` operations, with constants in place of weights.

    Behind them is a layer that changes nothing, for `get_layer` to find under the layer's name.

    Args:
        layer: the layer.
        give: gives out a name like the one it is given.
    """

    def __init__(self, layer: Any, give: Callable[[str], str]) -> None:
        self.layer = layer
        self._give = give
        self._last: Any = None

    def __call__(self, inputs: Any) -> Any:
        """What the layer makes of tensors, symbolic or not."""
        spell = getattr(self.layer, "with_constants", self.layer.call)
        outputs = spell(inputs)
        if isinstance(outputs, keras3.KerasTensor):
            self._name_operations(outputs)
        if self._last is None:
            dtype = keras3.backend.standardize_dtype(outputs.dtype)
            self._last = keras3.layers.Identity(name=self.layer.name, dtype=dtype, trainable=False)
        return self._last(outputs)

    def _name_operations(self, tensor: Any) -> None:
        """Names those that made a tensor: Keras would name them as it names layers, such as add."""
        made: dict[int, Any] = {}
        waiting: list[Any] = [tensor]
        while waiting:
            # Keras has no public way from a tensor to what made it.
            operation = waiting.pop()._keras_history.operation
            if id(operation) not in made and not isinstance(operation, keras3.layers.Layer):
                made[id(operation)] = operation
                waiting += keras3.tree.flatten(operation.input)
        for operation in reversed(made.values()):
            kind = type(operation).__name__.lower()
            operation.name = self._give(f"{self.layer.name}_{kind}")
