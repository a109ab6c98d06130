"""Layers made again from their configuration, as every rewriting of a model makes them."""

import textwrap
from typing import Any

import tf_keras as keras

from sat_tf.messages import kind_of


def layer_copy(layer: keras.layers.Layer, **changes: Any) -> keras.layers.Layer:
    """A layer with the same configuration, without weights.

    Args:
        layer: any layer.
        **changes: what is to be different in its configuration, such as its name.

    Raises:
        ValueError: Keras cannot make it from its configuration; names the layer and the fix.
    """
    try:
        copy = type(layer).from_config({**layer.get_config(), **changes})
        if isinstance(layer, keras.layers.Lambda):
            copy.function = layer.function  # one made of its code would lack what it refers to
        return copy
    except Exception as error:  # code of users, and what Keras makes of it, raises anything
        reason = textwrap.shorten(str(error) or type(error).__name__, 160)
        raise ValueError(
            f"{layer.name}: received {kind_of(layer)} that cannot be made again from its "
            f"configuration ({reason}), expected from_config(get_config()) to give the same layer; "
            f"{_fix(layer)}."
        ) from error


def _fix(layer: keras.layers.Layer) -> str:
    if isinstance(layer, keras.layers.Lambda):
        return "give it a function written in Python, or use a layer for it"
    return f"write {type(layer).__name__}.get_config so that it returns all arguments"
