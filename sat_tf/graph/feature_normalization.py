"""Normalizations over features in the form that NPUs have operators for.

A normalization gives y = γ n + β, n = d / sqrt(mean d² + ε), where d is x, without its mean or with
it. A linear layer that reads y reads n instead: W y + b = (W γ) n + (b + W β).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import layer_copy
from sat_tf.graph.layers.kind import axes_of
from sat_tf.graph.operation_layers import RMSNormalization, Scaling
from sat_tf.graph.operations.operation import (
    NewLayer,
    NewLayers,
    OldCall,
    Replacement,
    is_keras,
    new_layer,
)

L = keras.layers
# The most squares of codes of 8 bits whose sum fits into 32 bits: 255² · 2¹⁵ < 2³¹.
_MOST_VALUES = 2**15
# The fields of layers with codes of 16 bits, and the steps that a root of 8 takes to become one.
_OF_16_BITS, _STEPS = {"activation_bits": 16, "stream_bits": 16}, 2
_OF_8_BITS = {"activation_bits": 8, "stream_bits": 8}
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
    remaining: Mapping[int, Replacement | None],
    outputs: Sequence[Any],
    wide: bool,
) -> dict[int, Replacement]:
    """The replacements of normalizations, and of linear layers that take their γ and β.

    They have the identities of the calls' nodes. A normalization waits for the `remaining` ones, of
    other calls: attention becomes linear layers first. `outputs` are those of the model; `wide`
    ones have codes of 16 bits.
    """
    replacements: dict[int, Replacement] = {}
    nodes = {id(call.node) for call in calls}
    for call in calls:
        readers = list(call.readers())
        node, read_by = call.node, {id(reader.node) for reader in readers}
        is_plain = all(value is None for value in (*node.call_args[1:], *node.call_kwargs.values()))
        if type(call.layer) not in _FORMS or not is_plain or not is_keras(node.call_args[0]):
            continue
        is_of_channels = axes_of(call.layer) in ([-1], [len(node.call_args[0].shape) - 1])
        if not is_of_channels or any(map(remaining.get, (id(node), *read_by))):
            continue
        is_output = any(tensor is node.outputs for tensor in outputs)
        is_taken = not is_output and read_by <= nodes and _all_take(call, readers)
        scalings = [] if is_taken else _scalings(call)
        holds = wide and call.layer.compute_dtype == "float32"  # half precision holds no 16 bits
        form = None if scalings is None else _FORMS[type(call.layer)](call, scalings, holds)
        if form is None:
            continue
        replacements[id(node)] = form
        if is_taken:
            replacements |= {id(reader.node): _with_factors(reader, call) for reader in readers}
    return replacements


# -- γ and β ---------------------------------------------------------------------------------------


def _factors(layer: Any) -> list[np.ndarray | None]:
    """γ and β, float64; None where the layer has none."""
    return [
        None if (value := getattr(layer, name, None)) is None else np.asarray(value, np.float64)
        for name in ("gamma", "beta")
    ]


def _all_take(call: OldCall, readers: Sequence[OldCall]) -> bool:
    """Whether all that reads a normalization are linear layers that can take its γ and β.

    Around a convolution with padding, β would be missing. Weights that are regularized, or kept
    within limits, are other ones than their products with factors, and what is frozen would train.
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
    window = getattr(layer, "kernel_size", (1,))
    return beta is None or max(window) == 1 or layer.padding == "valid"


def _with_factors(reader: OldCall, call: OldCall) -> Replacement:
    """The linear layer that reads a normalization without its γ and β."""
    layer, kernel, (gamma, beta) = reader.layer, reader.layer.get_weights()[0], _factors(call.layer)
    facts, bias = layer_kinds.kernels_of(layer)[0], layer.get_weights()[1:]
    by_input = [-1 if axis == facts.input_axis else 1 for axis in range(kernel.ndim)]
    inner = tuple(axis for axis in range(kernel.ndim) if axis not in facts.output_axes)
    if beta is not None:
        bias = [sum(bias) + np.sum(kernel * beta.reshape(by_input), axis=inner).reshape(-1)]
    arrays = [kernel if gamma is None else kernel * gamma.reshape(by_input), *bias]
    new = NewLayer(
        lambda **options: layer_copy(layer, use_bias=bool(bias), **options), weights=arrays
    )
    return Replacement([call.node.outputs], [new])


def _scalings(call: OldCall) -> list[NewLayer] | None:
    """The layers for γ and β; None where a γ is 0, or calls of the layer have several shapes.

    Scalings take no 0, and calls that share a layer share those that replace it.
    """
    shapes = {tuple(n.call_args[0].shape) for n in call.nodes if n.layer is call.layer}
    gamma, beta = _factors(call.layer)
    if len(shapes) > 1 or (gamma is not None and np.any(gamma == 0.0)):
        return None
    factors = [("x * c", gamma)] if gamma is not None and np.any(gamma != 1.0) else []
    factors += [("x + c", beta)] if beta is not None and np.any(beta) else []
    names = ("gamma", "")[2 - len(factors) :]
    return [
        new_layer(Scaling, formula, values.tolist(), suffix=name)
        for name, (formula, values) in zip(names, factors, strict=True)
    ]


# -- forms in integers -----------------------------------------------------------------------------


def _in_layers(call: OldCall, scalings: list[NewLayer], wide: bool) -> Replacement | None:
    """The layers of a normalization of the last axis: d / sqrt(Σ d² / n + ε) · γ + β.

    A UnitNormalization divides by sqrt(max(Σ x², ε)). With 8 bits, a product of matrices adds up
    the squares, because it does not round each of them: next to that of an outlier, all others
    would become 0. With 16, they are a product and a mean. RSQRT has 8 bits on NPUs, and Newton's
    steps, r · (3 - v r²) / 2, make its root as exact as 16.
    """
    layer, tensor = call.layer, call.node.call_args[0]
    *outer, size = tensor.shape[1:]
    if size is None or size > _MOST_VALUES or outer.count(None) > 1:
        return None
    is_unit, last = type(layer) is L.UnitNormalization, "normalized" if scalings else ""
    layers, values = NewLayers(), 0
    add = functools.partial(layers.add, dtype="float32", fields=_OF_16_BITS if wide else {})
    if type(layer) is L.LayerNormalization:
        mean = add("ChannelMean", suffix="mean")
        values = add("Subtract", suffix="centered", reads=(0, mean))
    if wide:
        add("Multiply", suffix="squares", reads=(values, values))
        variance = add("ChannelMean", suffix="variance")
    else:
        lengths = [length or -1 for length in outer]
        rows = -1 if None in outer else math.prod(lengths)
        matrices = add("Reshape", (rows, 1, size), suffix="rows", reads=(values,))
        add("MatrixProduct", True, suffix="squares", reads=(matrices, matrices))
        variance = add("Reshape", (*lengths, 1), suffix="sums")
    if wide == is_unit:  # a mean for a sum, or the reverse
        end, factor = ("sums", size) if wide else ("variance", 1.0 / size)
        variance = add(Scaling, "x * c", factor, suffix=end)
    smallest = _LEAST_SQUARE if is_unit else 0.5 * float(layer.epsilon)
    if not is_unit:
        variance = add(Scaling, "x + c", float(layer.epsilon), suffix="epsilon")
    if wide:  # the same values, which are never below 0, with 8 bits
        add("ReLU", suffix="coarse", fields=_OF_8_BITS)
    fields = _OF_8_BITS if wide else {}
    root = add("InverseRoot", smallest, suffix="inverse_root", fields=fields)
    for _ in range(_STEPS if wide else 0):
        once = add("Multiply", suffix="once", reads=(variance, root))
        add("Multiply", suffix="twice", reads=(once, root))
        add("ReLU", 3.0, suffix="ratio")
        add(Scaling, "x * c", -0.5, suffix="half")
        add(Scaling, "x + c", 1.5, suffix="rest")
        step = add("ReLU", 1.5, suffix="step")
        root = add("Multiply", suffix="root", reads=(root, step))
    add("Multiply", suffix=last, reads=(values, root))
    return Replacement([tensor], [*layers, *scalings])


def _in_groups(call: OldCall, scalings: list[NewLayer], _wide: bool) -> Replacement | None:
    """The layers of a GroupNormalization: a LayerNormalization of the values of each group."""
    layer, tensor = call.layer, call.node.call_args[0]
    shape, groups = tuple(tensor.shape[1:]), int(call.layer.groups)
    if None in shape or math.prod(shape) // groups > _MOST_VALUES:
        return None
    places, size = math.prod(shape[:-1]), shape[-1] // groups

    def swapped(outer: int, inner: int, suffix: str) -> list[NewLayer]:
        if outer == 1 or inner == 1:
            return []
        matrices = new_layer("Reshape", (outer, inner, size), suffix=f"{suffix}_parts")
        return [matrices, new_layer("Permute", (2, 1, 3), suffix=f"{suffix}_turned")]

    settings = {"epsilon": layer.epsilon, "center": False, "scale": False}
    layers = [
        *swapped(places, groups, "input"),
        new_layer("Reshape", (groups, 1, -1), suffix="groups"),
        new_layer("LayerNormalization", suffix="rows", **settings),
        *swapped(groups, places, "rows"),
        new_layer("Reshape", shape, suffix="normalized" if scalings else ""),
    ]
    return Replacement([tensor], [*layers, *scalings])


# Finds the form of a call, which ends in the layers for γ and β, by the class of its layer.
_FORMS: dict[type, Callable[[OldCall, list[NewLayer], bool], Replacement | None]] = {
    L.GroupNormalization: _in_groups,
    L.LayerNormalization: _in_layers,
    L.UnitNormalization: _in_layers,
    RMSNormalization: _in_layers,
}
