"""Attention and products by einsum, in layers that sat-tf quantizes.

    scores = (x W_q) / sqrt(d) · (x W_k)ᵀ,   y = (softmax(scores) · (x W_v)) W_o

The projections are Dense layers of all heads at once, and each head is a matrix after the batch.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from sat_tf.graph.operations.operation import (
    MOST_AXES,
    Finder,
    NewLayer,
    NewLayers,
    OldCall,
    OperationKind,
    Replacement,
    Twin,
    alone_or_alike,
    is_keras,
    new_layer,
)

# Settings that a product by einsum and a Dense have in common. Initializers are none of them: the
# weights are set, and Keras warns of initializers that several layers share.
_OF_WEIGHTS = tuple(
    f"{weights}_{setting}"
    for weights in ("kernel", "bias")
    for setting in ("regularizer", "constraint")
)


def _dense(layer: Any, inner: int, outer: int, suffix: str = "") -> NewLayer:
    """The Dense with the weights of a product over some inputs to some outputs."""
    kernel, *bias = layer.get_weights()
    settings = {name: getattr(layer, name) for name in _OF_WEIGHTS if hasattr(layer, name)}
    weights = [kernel.reshape(inner, outer), *(array.reshape(outer) for array in bias)]
    return new_layer(
        "Dense", outer, use_bias=bool(bias), suffix=suffix, weights=weights, **settings
    )


def _parts(equation: str) -> tuple[str, str] | None:
    """The axes of a product by a kernel that are summed over, and that come from the kernel.

    None where it is no matrix product of the last axes: the kernel's first axes are the last ones
    of the tensor, and its last axes those of the result, in this order.
    """
    operands, _, result = equation.replace(" ", "").partition("->")
    tensor, _, kernel = operands.partition(",")
    if tensor.startswith("..."):  # axes in front of the others, not after them
        tensor, result = tensor.removeprefix("..."), result.removeprefix("...")
    if "." in tensor + kernel + result:
        return None
    summed = "".join(axis for axis in kernel if axis not in result)
    new = "".join(axis for axis in kernel if axis in result)
    outer_axes = tensor.removesuffix(summed)
    fits = tensor == outer_axes + summed and kernel == summed + new and result == outer_axes + new
    return (summed, new) if fits and summed and new else None


def _einsum_dense(call: OldCall) -> Replacement | None:
    """A Dense on the last axes of a tensor, as one axis, to the last axes of its output."""
    layer, tensor = call.layer, call.node.call_args[0]
    axes, activation = _parts(layer.equation), getattr(layer.activation, "__name__", None)
    if axes is None or activation is None or layer.activity_regularizer is not None:
        return None
    summed, new = axes
    shape, kernel = tuple(tensor.shape)[1:], tuple(layer.kernel.shape)
    new_shape, kept_shape = kernel[len(summed) :], shape[: len(shape) - len(summed)]
    if layer.bias is not None and tuple(layer.bias.shape) != new_shape:
        return None
    if len(summed) > len(shape) or kept_shape.count(None) > 1:
        return None
    lengths = tuple(length or -1 for length in kept_shape)
    inner, outer = math.prod(kernel[: len(summed)]), math.prod(new_shape)
    joins, splits = len(summed) > 1, len(new) > 1
    activates = activation != "linear"
    layers = [_dense(layer, inner, outer, "product" if splits or activates else "")]
    if joins:
        layers.insert(0, new_layer("Reshape", (*lengths, inner), suffix="input"))
    if splits:
        suffix = "shape" if activates else ""
        layers.append(new_layer("Reshape", (*lengths, *new_shape), suffix=suffix))
    if activates:
        layers.append(new_layer("Activation", layer.activation))
    return Replacement([tensor], layers)


def _hidden(layer: Any, mask: Any, is_causal: bool, query: Any, value: Any) -> Any:
    """The summands of a constant mask, the same for all heads; None where it is no constant.

    Of float masks, those of 0 and 1 are taken.
    """
    rows, columns = query.shape[1], value.shape[1]
    if rows is None or columns is None or is_keras(mask):
        return None
    visible = np.ones((1, rows, columns), bool)
    if mask is not None:
        values = np.asarray(mask)
        values = values[np.newaxis] if values.ndim == 2 else values
        if values.ndim != 3 or values.dtype.kind not in "bfiu" or len(values) != 1:
            return None
        if not np.all((values == 0) | (values == 1)):
            return None
        try:
            visible = visible & np.broadcast_to(values.astype(bool), visible.shape)
        except ValueError:
            return None
    if is_causal:
        visible = visible & np.tril(visible)
    summand = np.float32(-65504.0 if layer.compute_dtype == "float16" else -1e9)  # as in Keras
    return np.where(visible, np.float32(0.0), summand)


def _weights_of(hidden: Any, dropout: float) -> list[NewLayer]:
    """The layers from scores, some of which may be hidden, to the weights of a mean."""
    return [
        *([new_layer("ConstantSum", hidden, suffix="mask")] if hidden is not None else []),
        new_layer("Softmax", suffix="softmax"),
        *([new_layer("Dropout", dropout, suffix="dropout")] if dropout else []),
    ]


def _sequences(call: OldCall, *masks: str) -> tuple[list[Any], Any] | None:
    """The queries, keys and values of a layer of heads, and what its masks add to scores.

    None where it is not taken: `masks` are arguments that must be left out.
    """
    names = ("query", "value", "key", *masks, "attention_mask", "return_attention_scores")
    names = (*names, "training", "use_causal_mask")
    query, value, key, *refused, mask, scores, training, is_causal = (
        call.argument(place, name) for place, name in enumerate(names)
    )
    tensors = [query, value if key is None else key, value]
    if not all(map(is_keras, tensors)) or any(len(tensor.shape) != 3 for tensor in tensors):
        return None
    if scores or training or any(argument is not None for argument in refused):
        return None
    is_masked = is_causal or mask is not None
    hidden = _hidden(call.layer, mask, is_causal, query, value) if is_masked else None
    return None if is_masked and hidden is None else (tensors, hidden)


def _heads(call: OldCall) -> Replacement | None:
    """The layers of a MultiHeadAttention over sequences."""
    layer, sequences = call.layer, _sequences(call)
    dense = layer._query_dense, layer._key_dense, layer._value_dense, layer._output_dense
    if not sequences or layer.activity_regularizer is not None or len(dense[3].kernel.shape) != 3:
        return None
    units = int(dense[3].kernel.shape[-1])
    heads = _Heads(layer._num_heads, 1, layer._key_dim, layer._value_dim, units, layer._dropout)
    return _of_heads(*sequences, heads, dense)


def _grouped_heads(call: OldCall) -> Replacement | None:
    """The layers of a GroupQueryAttention of Keras 3: some heads of queries share a key."""
    layer, sequences = call.layer.original, _sequences(call, "query_mask", "value_mask", "key_mask")
    refused = (getattr(layer, name, None) for name in ("use_gate", "sliding_window"))
    if not sequences or layer.activity_regularizer is not None or any(refused):
        return None
    groups, size = layer.num_query_heads // layer.num_key_value_heads, layer.head_dim
    units = int(sequences[0][0].shape[-1])
    heads = _Heads(layer.num_key_value_heads, groups, size, size, units, layer.dropout)
    count = len(arrays := call.layer.get_weights()) // 4
    projections = [arrays[place : place + count] for place in range(0, len(arrays), count)]
    dense = [SimpleNamespace(get_weights=functools.partial(list, pair)) for pair in projections]
    return _of_heads(*sequences, heads, dense)


class _Heads(NamedTuple):
    """The numbers of an attention of several heads."""

    keys: int  # Heads of keys, and of values.
    groups: int  # Heads of queries for each of them.
    key_size: int
    value_size: int
    units: int  # The size of the output.
    dropout: float  # The share of the weights of the mean that training drops.


def _of_heads(tensors: list[Any], hidden: Any, heads: _Heads, dense: Sequence[Any]) -> Replacement:
    """The layers of attention over queries, keys and values; the queries of a group are one matrix.

    `dense` are the projections of the three and of the output.
    """
    layers = NewLayers(len(tensors))

    def projected(place: int, size: int, name: str, groups: int = 1) -> int:
        inner, length = int(tensors[place].shape[-1]), tensors[place].shape[1] or -1
        layers.put(_dense(dense[place], inner, heads.keys * groups * size, name), place)
        if place == 0:
            layers.add("Scaling", "x * c", 1.0 / math.sqrt(size), suffix="query_scale")
        if groups == 1:
            layers.add("Reshape", (length, heads.keys, size), suffix=f"{name}_heads")
            return layers.add("Permute", (2, 1, 3), suffix=f"{name}_matrices")
        layers.add("Reshape", (length, heads.keys, groups, size), suffix=f"{name}_heads")
        layers.add("Permute", (2, 3, 1, 4), suffix=f"{name}_groups")
        shape = heads.keys, max(groups * length, -1), size
        return layers.add("Reshape", shape, suffix=f"{name}_matrices")

    length, groups = tensors[0].shape[1] or -1, heads.groups
    if hidden is not None:
        hidden = np.tile(hidden, (1, groups, 1))
    queries = projected(0, heads.key_size, "query", groups)
    keys = projected(1, heads.key_size, "key")
    values = projected(2, heads.value_size, "value")
    layers.add("MatrixProduct", True, suffix="scores", reads=(queries, keys))
    *_, weights = map(layers.put, _weights_of(hidden, heads.dropout))
    layers.add("MatrixProduct", suffix="mean", reads=(weights, values))
    if groups == 1:
        layers.add("Permute", (2, 1, 3), suffix="mean_heads")
    else:
        shape = heads.keys, groups, length, heads.value_size
        layers.add("Reshape", shape, suffix="mean_groups")
        layers.add("Permute", (3, 1, 2, 4), suffix="mean_heads")
    inner = heads.keys * groups * heads.value_size
    layers.add("Reshape", (length, inner), suffix="mean_of_heads")
    layers.put(_dense(dense[3], inner, heads.units))
    return Replacement(tensors, layers)


def _attention(call: OldCall) -> Replacement | None:
    """The layers of an Attention that multiplies queries and keys as they are."""
    layer = call.layer
    names = ("inputs", "mask", "training", "return_attention_scores", "use_causal_mask")
    (query, value, *keys), mask, training, scores, is_causal = (
        call.argument(place, name) for place, name in enumerate(names)
    )
    tensors = [query, value, *keys]
    is_plain = layer.score_mode == "dot" and not layer.use_scale
    is_plain = is_plain and not any((mask, training, scores))
    if not is_plain or any(len(t.shape) != 3 for t in tensors):
        return None
    hidden = _hidden(layer, None, True, query, value) if is_causal else None
    if is_causal and hidden is None:
        return None
    layers = [
        new_layer("MatrixProduct", True, suffix="scores", reads=(0, len(tensors) - 1)),
        *_weights_of(None if hidden is None else hidden[0], layer.dropout),
    ]
    weights = len(tensors) + len(layers) - 1
    return Replacement(tensors, [*layers, new_layer("MatrixProduct", reads=(weights, 1))])


def _dot(call: OldCall) -> Replacement | None:
    """The product of the matrices in two tensors over an axis of each."""
    layer, (x, y) = call.layer, call.node.call_args[0]
    if layer.normalize or len(x.shape) != 3 or len(y.shape) != 3:
        return None
    axes = [layer.axes] * 2 if isinstance(layer.axes, int) else layer.axes
    x_axis, y_axis = (axis % 3 for axis in axes)
    if 0 in (x_axis, y_axis):
        return None
    product = new_layer("MatrixProduct", y_axis == 2)
    if x_axis == 2:
        return Replacement([x, y], [product])
    turned = new_layer("Permute", (2, 1), suffix="transposed", reads=(0,))
    return Replacement([x, y], [turned, dataclasses.replace(product, reads=(2, 1))])


def _einsum(call: OldCall) -> Replacement | None:
    """The product of matrices in two tensors, with their axes in any order."""
    equation, *operands = call.node.call_args
    if len(operands) != 2 or not all(map(is_keras, operands)) or "->" not in equation:
        return None
    inputs, _, result = equation.replace(" ", "").partition("->")
    x_axes, _, y_axes = inputs.partition(",")
    fits = len(operands[0].shape) <= MOST_AXES and all(
        axes.isalpha() and len({*axes}) == len(axes) == len(tensor.shape)
        for axes, tensor in zip((x_axes, y_axes), operands, strict=True)
    )
    outer = [axis for axis in x_axes if axis in y_axes and axis in result]
    summed, rows, columns = (
        [axis for axis in axes if axis not in outer and predicate(axis)]
        for axes, predicate in (
            (x_axes, lambda axis: axis in y_axes),
            (x_axes, lambda axis: axis in result),
            (y_axes, lambda axis: axis in result),
        )
    )
    is_product = [*map(len, (summed, rows, columns))] == [1, 1, 1]
    together = [*outer, *rows, *columns]
    if not (fits and is_product and sorted(result) == sorted(together)):
        return None
    if not outer or any(axes[0] != outer[0] for axes in (x_axes, y_axes, result)):
        return None  # the batch is first in all
    layers, places = NewLayers(2), []
    for place, (axes, needed_axes) in enumerate(
        ((x_axes, [*outer, *rows, *summed]), (y_axes, [*outer, *columns, *summed]))
    ):
        if [*axes] == needed_axes:
            places.append(place)
            continue
        order = tuple(axes.index(axis) for axis in needed_axes[1:])
        places.append(layers.add("Permute", order, suffix=f"operand_{place}", reads=(place,)))
    is_last = [*result] == together
    suffix = "" if is_last else "product"
    layers.add("MatrixProduct", True, suffix=suffix, reads=(places[0], places[1]))
    if not is_last:
        layers.add("Permute", tuple(together.index(axis) for axis in result[1:]))
    return Replacement(operands, layers)


def _einsum_of_keras3(keras3: Any, equation: str, *operands: Any, **options: Any) -> Any:
    return keras3.ops.einsum(equation, *operands)


def _einsum_twin(call: Any) -> Twin:
    function, equation = call.function, call.operation.subscripts
    return lambda *operands: function(equation, *operands)


def _attention_twin(call: Any) -> Twin:
    """TensorFlow's operations for heads on the third axis, without bias, mask and soft cap."""
    import tensorflow as tf

    operation = call.operation
    if operation.attn_logits_soft_cap is not None or operation.is_causal:
        raise ValueError(
            "received is_causal or attn_logits_soft_cap, expected neither; use a "
            "keras.layers.MultiHeadAttention, which has use_causal_mask"
        )

    def attention(query: Any, key: Any, value: Any, scale: Any = None) -> Any:
        factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = tf.einsum("btnh,bsnh->bnts", query * factor, key)
        return tf.einsum("bnts,bsnh->btnh", tf.nn.softmax(scores), value)

    return attention


_PRODUCTS = (
    "sat-tf takes products of matrices in two tensors, with the batch first in all, such as "
    "'bid,bjd->bij'; multiply by constants in an EinsumDense"
)
OPERATIONS = (
    OperationKind("einsum", ("einsum",), _PRODUCTS, _einsum, _einsum_of_keras3, _einsum_twin),
    OperationKind("dot_product_attention", twin=_attention_twin),
)
# Layers of tf_keras, by their names, that become others.
LAYERS: dict[str, Finder] = {
    "Attention": alone_or_alike(_attention),
    "Dot": alone_or_alike(_dot),
    "EinsumDense": alone_or_alike(_einsum_dense),
    "MultiHeadAttention": alone_or_alike(_heads),
}
# Layers of Keras 3 that tf_keras lacks, by their names.
LAYERS_OF_KERAS3: dict[str, Finder] = {"GroupedQueryAttention": alone_or_alike(_grouped_heads)}
