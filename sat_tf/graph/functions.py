"""What is known of the functions that layers compute between quantizers."""

import tf_keras as keras

from sat_tf.core.asymmetric import UNKNOWN, Reach
from sat_tf.graph.layer_kinds import find_kind
from sat_tf.graph.layers.activations import REACHES
from sat_tf.graph.layers.kind import Function
from sat_tf.graph.operation_layers import absolute


def is_known(name: str) -> bool:
    """Whether the table has a function of this name."""
    return name in REACHES


def reach(layer: keras.layers.Layer) -> Reach:
    """The range of the values of a layer that computes a function."""
    function = _function(layer)
    return function.reach(layer) if function else UNKNOWN


def works_on_each_value(layer: keras.layers.Layer) -> bool:
    """Whether the layer is elementwise: the same function of each value by itself."""
    function = _function(layer)
    return function is not None and function.on_each_value(layer)


def is_a_broken_line(layer: keras.layers.Layer) -> bool:
    """Whether the layer is piecewise linear: not a smooth function that rounding would coarsen."""
    function = _function(layer)
    broken = function is not None and function.is_broken_line
    return broken or getattr(layer, "activation", None) is absolute


def keeps_sign(layer: keras.layers.Layer) -> bool:
    """Whether its output is nonnegative where its input is."""
    function = _function(layer)
    return function is not None and function.keeps_sign(layer)


def keeps_range(layer: keras.layers.Layer) -> bool:
    """Whether its outputs lie within the range of its inputs, as in a resized image."""
    function = _function(layer)
    return function is not None and function.keeps_range(layer)


def _function(layer: keras.layers.Layer) -> Function | None:
    kind = find_kind(layer)
    return kind.function if kind else None
