"""Normalizations over features: their factors in what reads them, and their form in integers.

A normalization gives y = γ n + β, n = d / sqrt(mean d² + ε), where d is x, without its mean or with
it. A linear layer that reads y reads n instead: W y + b = (W γ) n + (b + W β).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import layer_copy
from sat_tf.graph.layers.kind import axes_of
from sat_tf.graph.operation_layers import RMSNormalization, Scaling
from sat_tf.graph.operations.operation import NewLayer, OldCall, Replacement, is_keras, new_layer

L = keras.layers
_FLOAT32 = {"dtype": "float32"}
# The most squares of codes of 8 bits whose sum fits into 32 bits: 255² · 2¹⁵ < 2³¹.
_MOST_VALUES = 2**15
# The least Σ x² that a UnitNormalization divides by, in both Kerases.
_LEAST_SQUARE = 1e-12
# Settings that weights have of their own.
_OF_WEIGHTS = [
    f"{weights}_{setting}"
    for weights in ("kernel", "depthwise", "bias", "gamma", "beta")
    for setting in ("regularizer", "constraint")
]


def replacements_of_normalizations(
    calls: Sequence[OldCall],
    others: Mapping[int, Replacement | None],
    outputs: Sequence[Any],
    *,
    native: bool,
) -> dict[int, Replacement]:
    """The replacements of normalizations and of what takes their factors, by the calls' nodes.

    A normalization waits for the `others`: attention becomes linear layers first.

    Args:
        calls: those that may be replaced.
        others: the replacements of all other calls.
        outputs: the outputs of the model.
        native: whether the normalizations get their form in integers.
    """
    replacements: dict[int, Replacement] = {}
    open_nodes = {id(call.node) for call in calls}
    for call in calls:
        readers = list(call.readers())
        nodes = [call.node, *(reader.node for reader in readers)]
        if type(call.layer) not in _FORMS or not _is_plain(call):
            continue
        if any(others.get(id(node)) or id(node) in replacements for node in nodes):
            continue
        is_output = any(tensor is call.node.outputs for tensor in outputs)
        is_open = all(id(node) in open_nodes for node in nodes)
        if is_open and not is_output and _has_factors(call) and _all_take(call, readers):
            replacements |= dict(_folded(call, readers))
        elif native and (replacement := _FORMS[type(call.layer)](call)):
            replacements[id(call.node)] = replacement
    return replacements


def _is_plain(call: OldCall) -> bool:
    node = call.node
    more = (*node.call_args[1:], *node.call_kwargs.values())
    return is_keras(node.call_args[0]) and all(value is None for value in more)


def _is_of_channels(call: OldCall) -> bool:
    last = len(call.node.call_args[0].shape) - 1
    return axes_of(call.layer) in ([-1], [last])


# -- γ and β in linear layers ----------------------------------------------------------------------


def _factors(layer: Any) -> list[np.ndarray | None]:
    """γ and β, float64; None where the layer has none."""
    return [
        None if (value := getattr(layer, name, None)) is None else np.asarray(value, np.float64)
        for name in ("gamma", "beta")
    ]


def _has_factors(call: OldCall) -> bool:
    gamma, beta = _factors(call.layer)
    return not (gamma is None and beta is None) and _is_of_channels(call)


def _all_take(call: OldCall, readers: Sequence[OldCall]) -> bool:
    """Whether all that reads a normalization are linear layers that can take its factors.

    Around a convolution with padding, β would be missing. Weights that are regularized, or kept
    within limits, are not those of the factors' product, and what is frozen would train with the
    rest.
    """
    layers = [call.layer, *(reader.layer for reader in readers)]
    return bool(readers) and all(
        sum(node.layer is layer for node in call.nodes) == 1
        and layer.trainable == call.layer.trainable
        and all(getattr(layer, setting, None) is None for setting in _OF_WEIGHTS)
        and (layer is call.layer or _takes(layer, call))
        for layer in layers
    )


def _takes(layer: Any, call: OldCall) -> bool:
    kernel, beta = layer_kinds.quantized_kernel(layer), _factors(call.layer)[1]
    if kernel is None or kernel.transposed or getattr(layer, "groups", 1) != 1:
        return False
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        return False
    windows = getattr(layer, "kernel_size", (1,))
    return beta is None or max(windows) == 1 or layer.padding == "valid"


def _folded(call: OldCall, readers: Sequence[OldCall]) -> Iterator[tuple[int, Replacement]]:
    """The normalization without its factors, and linear layers with them."""
    layer = call.layer
    factors = {name: False for name in ("scale", "center") if hasattr(layer, name)}
    bare = NewLayer(lambda **options: layer_copy(layer, **factors, **options))
    yield id(call.node), Replacement([call.node.call_args[0]], [bare])
    for reader in readers:
        yield id(reader.node), Replacement([call.node.outputs], [_linear(reader, *_factors(layer))])


def _linear(reader: OldCall, gamma: np.ndarray | None, beta: np.ndarray | None) -> NewLayer:
    layer, kernel = reader.layer, layer_kinds.quantized_kernel(reader.layer)
    weights, *bias = layer.get_weights()
    by_input = [-1 if axis == kernel.input_axis else 1 for axis in range(weights.ndim)]
    inner = tuple(axis for axis in range(weights.ndim) if axis not in kernel.output_axes)
    arrays = [weights if gamma is None else weights * gamma.reshape(by_input)]
    if beta is not None:
        shift = np.sum(weights * beta.reshape(by_input), axis=inner).reshape(-1)
        bias = [sum(bias, shift)]
    arrays += bias
    return NewLayer(
        lambda **options: layer_copy(layer, use_bias=bool(bias), **options), weights=arrays
    )


# -- forms in integers -----------------------------------------------------------------------------


def _in_layers(call: OldCall) -> Replacement | None:
    """The layers of a normalization of the last axis: d / sqrt(Σ d² / n + ε) · γ + β.

    That to a norm of 1 has the divisor sqrt(max(Σ x², ε)). A product of matrices adds up the
    squares, because it does not round each of them to 8 bits: next to that of an outlier, all
    others would become 0.
    """
    layer, tensor = call.layer, call.node.call_args[0]
    *outer, size = tensor.shape[1:]
    factors = _scalings(call)
    if not _is_of_channels(call) or factors is None or not size or size > _MOST_VALUES:
        return None
    if outer.count(None) > 1:
        return None
    lengths = [length or -1 for length in outer]
    rows = -1 if None in outer else math.prod(lengths)
    layers: list[NewLayer] = []

    def add(*arguments: Any, **settings: Any) -> int:
        layers.append(new_layer(*arguments, **settings))
        return len(layers)

    values = 0
    if type(layer) is L.LayerNormalization:
        mean = add("ChannelMean", suffix="mean")
        values = add("Subtract", suffix="centered", reads=(0, mean))
    first = len(layers)
    matrices = add("Reshape", (rows, 1, size), suffix="rows", reads=(values,))
    add("MatrixProduct", True, suffix="squares", reads=(matrices, matrices))
    add("Reshape", (*lengths, 1), suffix="sums")
    smallest = _LEAST_SQUARE
    if type(layer) is not L.UnitNormalization:
        add(Scaling, "x * c", 1.0 / size, suffix="variance")
        add(Scaling, "x + c", float(layer.epsilon), suffix="epsilon")
        smallest = 0.5 * float(layer.epsilon)
    root = add("InverseRoot", smallest, suffix="inverse_root")
    layers[first:] = map(_in_float32, layers[first:])
    add("Multiply", suffix="normalized" if factors else "", reads=(values, root))
    return Replacement([tensor], [*layers, *factors])


def _in_groups(call: OldCall) -> Replacement | None:
    """The layers of a GroupNormalization: a LayerNormalization of the values of each group."""
    layer, tensor = call.layer, call.node.call_args[0]
    *outer, channels = shape = tuple(tensor.shape[1:])
    factors = _scalings(call)
    if not _is_of_channels(call) or factors is None or None in shape:
        return None
    places, groups = math.prod(outer), int(layer.groups)
    parts = (places, groups, channels // groups)
    if math.prod(shape) // groups > _MOST_VALUES:
        return None
    grouped, restored = [new_layer("Reshape", (groups, 1, -1), suffix="groups")], []
    if places > 1 and groups > 1:
        grouped = [
            new_layer("Reshape", parts, suffix="parts"),
            new_layer("Permute", (2, 1, 3), suffix="parts_of_groups"),
            *grouped,
        ]
        restored = [
            new_layer("Reshape", (groups, places, channels // groups), suffix="normalized_groups"),
            new_layer("Permute", (2, 1, 3), suffix="normalized_parts"),
        ]
    settings = {"epsilon": layer.epsilon, "center": False, "scale": False}
    layers = [
        *grouped,
        new_layer("LayerNormalization", suffix="rows", **settings),
        *restored,
        new_layer("Reshape", shape, suffix="normalized" if factors else ""),
    ]
    return Replacement([tensor], [*layers, *factors])


def _scalings(call: OldCall) -> list[NewLayer] | None:
    """The layers for γ and β; None where a γ is 0, or calls of the layer have several shapes.

    Scalings take no 0, and calls that share a layer share those that replace it.
    """
    shapes = {tuple(n.call_args[0].shape) for n in call.nodes if n.layer is call.layer}
    gamma, beta = _factors(call.layer)
    if len(shapes) > 1 or (gamma is not None and np.any(gamma == 0.0)):
        return None
    parts = [
        ("gamma", "x * c", None if gamma is None or np.all(gamma == 1.0) else gamma),
        ("beta", "x + c", None if beta is None or not np.any(beta) else beta),
    ]
    made = [part for part in parts if part[2] is not None]
    return [
        new_layer(Scaling, formula, values.tolist(), suffix="" if part is made[-1] else name)
        for part in made
        for name, formula, values in (part,)
    ]


def _in_float32(new: NewLayer) -> NewLayer:
    """The same layer where others compute in float16, in which sums of squares are infinite."""
    return dataclasses.replace(new, layer=lambda **options: new.layer(**options | _FLOAT32))


# Finds the form in integers, by the class of the layer.
_FORMS: dict[type, Callable[[OldCall], Replacement | None]] = {
    L.GroupNormalization: _in_groups,
    L.LayerNormalization: _in_layers,
    L.UnitNormalization: _in_layers,
    RMSNormalization: _in_layers,
}
