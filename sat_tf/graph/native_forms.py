"""Forms of functions that NPUs have operators for, and users' layers that compute the same."""

import math
from typing import Any

import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.activations import ends_of_rectifier, hard_silu, relu6_sigmoid
from sat_tf.graph.operation_layers import Scaling
from sat_tf.graph.replacement import OldCall, Replacement, new_layer, one_layer
from sat_tf.targets import Processor

L = keras.layers

_HARD_SWISHES = ("hard_silu", "hard_swish")
# Products of a tensor and of a function of it, by their names.
_GATES = {
    **dict.fromkeys(("swish", "silu"), "sigmoid"),
    **dict.fromkeys(_HARD_SWISHES, relu6_sigmoid),
}
# Slope and offset below the ceiling of 1 of each, by the names of the functions.
_HARD_SIGMOIDS = {"hard_sigmoid": (0.2, 0.5), "relu6_sigmoid": (1.0 / 6.0, 0.5)}


def native_replacement_of(call: OldCall, processor: Processor) -> Replacement | None:
    """The layers that replace a function where an NPU computes it; None for any other call.

    - A swish becomes a product with its name of what it reads and of a sigmoid of that,
      `<name>_sigmoid`: LOGISTIC and MUL.
    - x · relu6(x + 3) / 6 in layers, factors in any order, becomes a hard-swish with the name of
      the last of them: HARD_SWISH. Where there is no such operator, a hard-swish becomes a product
      of what it reads and of a hard-sigmoid of that, `<name>_sigmoid`.
    - A hard-sigmoid becomes a rectifier with its name and a ceiling of 1, behind a factor
      `<name>_slope` and a summand `<name>_offset`: an activation of the linear layer in front.
    """
    if call.symbol or not processor.native:
        return None
    if type(call.layer) is not L.Activation:
        return _hard_swish(call) if processor.has_hard_swish else None
    name = layer_kinds.activation_name(call.layer)
    if processor.has_hard_swish and name in _HARD_SWISHES:
        return None
    return _in_steps(call, name)


def _in_steps(call: OldCall, name: str) -> Replacement | None:
    read = call.node.call_args[0]
    if name in _GATES:
        gate = new_layer("Activation", _GATES[name], suffix="sigmoid")
        product = [new_layer("Multiply")]
        return Replacement([read, read], product, takes_list=True, fronts={1: gate})
    if name not in _HARD_SIGMOIDS:
        return None
    slope, offset = _HARD_SIGMOIDS[name]
    layers = [
        new_layer(Scaling, "x * c", slope, suffix="slope"),
        new_layer(Scaling, "x + c", offset, suffix="offset"),
        new_layer("ReLU", 1.0),
    ]
    return Replacement([read], layers)


def _hard_swish(call: OldCall) -> Replacement | None:
    tensors, number = _factors(call)
    if len(tensors) != 2 or not math.isclose(number, 1.0 / 6.0, rel_tol=1e-6):
        return None
    for x, gate in (tensors, tensors[::-1]):
        rectifier = call.maker_of(gate)
        if rectifier is None or ends_of_rectifier(rectifier.layer) != (0.0, 6.0):
            continue
        moved = call.maker_of(rectifier.node.call_args[0])
        if moved is not None and _affine(moved) == (1.0, 3.0) and moved.node.call_args[0] is x:
            return one_layer(x, "Activation", hard_silu)
    return None


def _factors(call: OldCall) -> tuple[list[Any], float]:
    """The tensors and the number whose product a call makes; no tensors where it makes none."""
    slope, offset = _affine(call)
    if type(call.layer) is L.Multiply:
        read, number = list(call.node.call_args[0]), 1.0
    elif offset == 0.0:
        read, number = [call.node.call_args[0]], slope
    else:
        return [], 1.0
    tensors = []
    for tensor in read:
        maker = call.maker_of(tensor)
        inner, more = ([], 1.0) if maker is None else _factors(maker)
        tensors += inner or [tensor]
        number *= more
    return tensors, number


def _affine(call: OldCall) -> tuple[float, float]:
    """Slope and offset of a layer that multiplies or moves all values alike; else of none."""
    if type(call.layer) is not Scaling:
        return math.nan, math.nan
    slope, offset = call.layer.affine()
    return (float(slope), float(offset)) if slope.ndim == offset.ndim == 0 else (math.nan, math.nan)
