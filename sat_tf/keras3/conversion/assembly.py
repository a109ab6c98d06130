"""Builds the Keras 3 model with the graph of a tf_keras model, of given pieces."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import keras as keras3
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.flatten import unique_name
from sat_tf.keras3.conversion.calls import LayerCall

# What is called in Keras 3 for one layer of tf_keras, in order, the first with its arguments.
Pieces = list[Callable[..., Any]]


class Names:
    """Gives out the names of the layers of one Keras 3 model.

    They are those of tf_keras, with `_` for slashes, which Keras 3 refuses, and with `_2`, `_3` and
    so on where that name is taken.

    Args:
        layers: all layers of the tf_keras model.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        every = [layer for one in layers for layer in (one, getattr(one, "layer", one))]
        self._waiting = {layer.name for layer in every if "/" not in layer.name}
        self._taken = set(self._waiting)

    def give(self, wanted: str) -> str:
        """A name for one more layer."""
        if wanted in self._waiting:
            self._waiting.remove(wanted)
            return wanted
        return unique_name(wanted.replace("/", "_"), self._taken)


def run(pieces: list[Callable[..., Any]], args: Any, kwargs: Any) -> Any:
    """Calls one piece after the other; without any, returns the first argument."""
    outputs = args[0]
    for index, piece in enumerate(pieces):
        outputs = piece(outputs) if index else piece(*args, **kwargs)
    return outputs


class Filled:
    """A Keras 3 layer that gets its values when it has been built by its first call.

    Args:
        layer: the layer.
        fill: gives the built layer its values.
    """

    def __init__(self, layer: Any, fill: Callable[[Any], None]) -> None:
        self._layer = layer
        self._fill = fill
        self._is_new = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's outputs."""
        outputs = self._layer(*args, **kwargs)
        if self._is_new:
            self._fill(self._layer)
        self._is_new = False
        return outputs


def build(
    model: keras.Model,
    calls: list[LayerCall],
    pieces_of: Callable[[Any, Names], Pieces],
) -> tuple[keras3.Model, dict[int, Pieces]]:
    """The Keras 3 model, and for every layer, by its identity, what is called for it.

    Args:
        model: a tf_keras model, all of whose layers have a form in Keras 3.
        calls: its calls.
        pieces_of: makes them for a layer, when it is called for the first time.

    Raises:
        ValueError: Keras 3 cannot call a layer as tf_keras does; names it.
    """
    made: dict[int, Pieces] = {}
    tensors: dict[int, Any] = {}
    names = Names({id(call.layer): call.layer for call in calls}.values())
    for call in calls:
        layer = call.layer
        if isinstance(layer, keras.layers.InputLayer):
            shape = tuple(call.outputs[0].shape)
            tensor = keras3.Input(batch_shape=shape, dtype=layer.dtype, name=names.give(layer.name))
            tensors[id(call.outputs[0])] = tensor
            continue
        if id(layer) not in made:
            made[id(layer)] = pieces_of(layer, names)
        try:
            outputs = run(made[id(layer)], *call.filled_in(tensors))
        except Exception as error:
            raise ValueError(
                f"model {model.name!r}: {layer.name}: received a layer that Keras 3 cannot call "
                f"this way ({_reason(error)}); build the model without it."
            ) from error
        for symbol, tensor in zip(call.outputs, keras3.tree.flatten(outputs), strict=True):
            tensors[id(symbol)] = tensor

    def found(symbols: Any) -> Any:
        return tf.nest.map_structure(lambda symbol: tensors[id(symbol)], symbols)

    inputs, outputs = found(model._nested_inputs), found(model._nested_outputs)
    return keras3.Model(inputs, outputs, name=model.name.replace("/", "_")), made


def _reason(error: Exception) -> str:
    """The line with the reason, without what Keras puts around it in bold."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error)) or type(error).__name__
    inside = re.search(r"Error encountered:\s*([^\n]+)", text)
    inside = inside or re.search(r"Exception encountered[^\n]*\s*([^\n]+)", text)
    return (inside.group(1) if inside else text.splitlines()[0]).strip().rstrip(".")
