"""Calls of TensorFlow that pool or reduce, as layers."""

from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph.counterparts import by_call
from sat_tf.graph.operation_layers import (
    ChannelMax,
    ChannelMean,
)
from sat_tf.graph.replacement import (
    Finder,
    OldCall,
    Replacement,
    constant_of,
    new_layer,
    one_layer,
    only_tensor,
    pooled_in_rows,
    pooled_whole_row,
)

L = keras.layers


def _reduced(spatial: Any, channel: Any) -> Finder:
    """A mean or maximum over the pixels of each image, or over the channels of each pixel."""

    def find(call: OldCall) -> Replacement | None:
        tensor, axis = call.argument(0, "input_tensor"), constant_of(call.argument(1, "axis"))
        keepdims = bool(call.argument(2, "keepdims", call.node.call_kwargs.get("keep_dims")))
        if axis is None:
            return None
        rank = len(tensor.shape)
        axes = sorted({int(one) % rank for one in np.atleast_1d(axis)})
        if axes == [1, 2] and rank == 4:
            return one_layer(tensor, spatial, keepdims=keepdims)
        if axes == [1] and rank == 3:
            return Replacement([tensor], pooled_whole_row(tensor, spatial, keepdims=keepdims))
        if axes != [rank - 1] or rank < 2:
            return None
        if keepdims:
            return one_layer(tensor, channel)
        inner = call.shape
        if not inner or inner.count(None) > 1:
            return None
        shape = [-1 if size is None else size for size in inner]
        return Replacement(
            [tensor], [new_layer(channel, suffix="channel"), new_layer(L.Reshape, shape)]
        )

    return find


def _pooled(layer: Any) -> Finder:
    """Pooling by its window, strides and padding."""

    def find(call: OldCall) -> Replacement | None:
        size, strides = call.argument(1, "ksize"), call.argument(2, "strides")
        if str(call.argument(4, "data_format")).startswith("NC"):
            return None
        return _pooled_by(call, layer, size, strides, call.argument(3, "padding"))

    return find


def _pooled_by_kind(call: OldCall) -> Replacement | None:
    """`tf.nn.pool`, which has the kind of pooling as an argument."""
    window, kind = call.argument(1, "window_shape"), call.argument(2, "pooling_type")
    rates = [call.argument(4, "dilation_rate"), call.argument(8, "dilations")]
    plain = all(rate is None or np.all(np.asarray(rate) == 1) for rate in rates)
    first = str(call.argument(7, "data_format")).startswith("NC")
    layer = {"MAX": L.MaxPooling2D, "AVG": L.AveragePooling2D}.get(kind)
    if layer is None or first or not plain:
        return None
    strides = call.argument(5, "strides")
    padding = call.argument(3, "padding")
    return _pooled_by(call, layer, window, 1 if strides is None else strides, padding)


def _pooled_by(
    call: OldCall, layer: Any, size: Any, strides: Any, padding: Any
) -> Replacement | None:
    tensor = only_tensor(call)
    if tensor is None or str(padding).lower() not in ("same", "valid"):
        return None
    inner = len(tensor.shape) - 2
    sizes, strides = (_along_images(value, inner) for value in (size, strides))
    if sizes is None or strides is None or inner not in (1, 2):
        return None
    padding = str(padding).lower()
    if inner == 1:
        return Replacement(
            [tensor], pooled_in_rows(call, tensor, layer, sizes[0], strides[0], padding)
        )
    return one_layer(tensor, layer, sizes, strides, padding)


def _along_images(value: Any, inner: int) -> tuple[int, ...] | None:
    """A window's sizes in rows and columns; None where batch or channels have others than 1."""
    sizes = np.atleast_1d(np.asarray(value)).tolist()
    if len(sizes) == inner + 2 and sizes[0] == sizes[-1] == 1:
        sizes = sizes[1:-1]
    sizes = sizes * inner if len(sizes) == 1 else sizes
    return tuple(sizes) if len(sizes) == inner else None


CALLS: dict[str, Finder] = by_call(
    {
        "mean": _reduced(L.GlobalAveragePooling2D, ChannelMean),
        "max": _reduced(L.GlobalMaxPooling2D, ChannelMax),
        "max_pool": _pooled(L.MaxPooling2D),
        "average_pool": _pooled(L.AveragePooling2D),
        "pool": _pooled_by_kind,
    }
)
