"""A view of a tf_keras model as a list of calls, in an order in which they can be made."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.network import keras_calls


@dataclasses.dataclass(frozen=True)
class LayerCall:
    """One call of a layer.

    Attributes:
        layer: the layer.
        node: Keras' record of the call.
    """

    layer: Any
    node: Any

    @property
    def outputs(self) -> list[Any]:
        """The symbolic tensors it makes."""
        return list(tf.nest.flatten(self.node.outputs))

    def filled_in(self, values: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with a value for every symbolic tensor, by its identity."""

        def fill_in(value: Any) -> Any:
            return values[id(value)] if hasattr(value, "_keras_history") else value

        kwargs = {
            name: value
            for name, value in self.node.call_kwargs.items()
            if value is not None and name not in ("training", "mask")
        }
        args, kwargs = tf.nest.map_structure(fill_in, (tuple(self.node.call_args), kwargs))
        return args, kwargs


def calls_of(model: keras.Model) -> Iterator[LayerCall]:
    """The calls of a Functional or Sequential model; those of its input layers first."""
    return (LayerCall(node.layer, node) for node in keras_calls(model))
