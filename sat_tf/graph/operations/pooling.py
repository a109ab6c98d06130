"""Operations that pool or reduce: rows of the registry."""

from functools import partial
from typing import Any

import numpy as np

from sat_tf.graph.operations.operation import (
    OldCall,
    OperationKind,
    Replacement,
    Twin,
    constant_of,
    new_layer,
    one_layer,
    only_tensor,
    pooled_in_rows,
    pooled_whole_row,
)

# -- layers of tf_keras for calls of TensorFlow's functions ----------------------------------------


def _reduced(spatial: str, channel: str, call: OldCall) -> Replacement | None:
    """A mean or maximum over the pixels of each image, or over the channels of each pixel."""
    tensor, axis = call.argument(0, "input_tensor"), constant_of(call.argument(1, "axis"))
    keepdims = bool(call.argument(2, "keepdims", call.node.call_kwargs.get("keep_dims")))
    if axis is None:
        return None
    rank = len(tensor.shape)
    axes = sorted({int(index) % rank for index in np.atleast_1d(axis)})
    if axes == [1, 2] and rank == 4:
        return one_layer(tensor, spatial, keepdims=keepdims)
    if axes == [1] and rank == 3:
        return Replacement([tensor], pooled_whole_row(tensor, spatial, keepdims=keepdims))
    if axes != [rank - 1] or rank < 2:
        return None
    if keepdims:
        return one_layer(tensor, channel)
    output_shape = call.shape
    if not output_shape or output_shape.count(None) > 1:
        return None
    shape = [-1 if size is None else size for size in output_shape]
    return Replacement(
        [tensor], [new_layer(channel, suffix="channel"), new_layer("Reshape", shape)]
    )


def _pooled(layer: str, call: OldCall) -> Replacement | None:
    """Pooling by its window, strides and padding."""
    size, strides = call.argument(1, "ksize"), call.argument(2, "strides")
    if str(call.argument(4, "data_format")).startswith("NC"):
        return None
    return _pooled_by(call, layer, size, strides, call.argument(3, "padding"))


def _pooled_by_kind(call: OldCall) -> Replacement | None:
    """`tf.nn.pool`, which has the kind of pooling as an argument."""
    window, pooling_type = call.argument(1, "window_shape"), call.argument(2, "pooling_type")
    rates = [call.argument(4, "dilation_rate"), call.argument(8, "dilations")]
    plain = all(rate is None or np.all(np.asarray(rate) == 1) for rate in rates)
    channels_first = str(call.argument(7, "data_format")).startswith("NC")
    layer = {"MAX": "MaxPooling2D", "AVG": "AveragePooling2D"}.get(pooling_type)
    if layer is None or channels_first or not plain:
        return None
    strides = call.argument(5, "strides")
    padding = call.argument(3, "padding")
    return _pooled_by(call, layer, window, 1 if strides is None else strides, padding)


def _pooled_by(
    call: OldCall, layer: str, size: Any, strides: Any, padding: Any
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


# -- Keras 3, for calls of TensorFlow's functions, and tf_keras, for those of Keras 3's -----------


def _over_axes(
    name: str, keras3: Any, input_tensor: Any, axis: Any = None, keepdims: bool = False
) -> Any:
    """Keras 3's function of one tensor, over some of its axes."""
    axes = tuple(axis) if isinstance(axis, list) else axis
    return getattr(keras3.ops, name)(input_tensor, axes, keepdims=keepdims)


def _reduction_twin(layer: str, call: Any) -> Twin:
    """A reduction; over rows and columns a layer, if there is one."""
    axis, keepdims = call.operation.axis, call.operation.keepdims
    rank = len(call.tensors[0].shape)
    axes = sorted(index % rank for index in np.atleast_1d(axis)) if axis is not None else None
    if layer and rank == 4 and axes == [1, 2]:
        return new_layer(layer, keepdims=keepdims, data_format="channels_last")
    function = call.function
    return lambda x: function(x, axis=axis, keepdims=keepdims)


def _pooling_twin(layer: str, call: Any) -> Twin:
    operation = call.operation
    return new_layer(
        f"{layer}{len(call.tensors[0].shape) - 2}D",
        operation.pool_size,
        operation.strides,
        operation.padding,
        data_format=operation.data_format or "channels_last",
    )


# -- rows ------------------------------------------------------------------------------------------


def _reducing(
    name: str, call: str, fix: str = "", *, pooling: str = "", **fields: Any
) -> OperationKind:
    """An operation of one tensor over some axes; over rows and columns the layer `pooling`."""
    by: dict[str, Any] = {
        "keras3": partial(_over_axes, name),
        "twin": partial(_reduction_twin, pooling),
    }
    return OperationKind(name, (call,), fix, **by, **fields)


def _pooling(name: str, call: str, layer: str) -> OperationKind:
    calls = tuple(f"{v1}nn.{call}{rank}" for v1 in ("", "compat.v1.") for rank in ("", "1d", "2d"))
    layers, twin = partial(_pooled, f"{layer}2D"), partial(_pooling_twin, layer)
    return OperationKind(name, calls, _POOLING, layers, twin=twin)


_POOLING = (
    "sat-tf pools rows and columns of channels last, with padding 'SAME' or 'VALID' (for other "
    "margins, put a keras.layers.ZeroPadding2D in front)"
)
_REDUCED = (
    "sat-tf takes it over the rows and columns of images, [1, 2], over sequences, 1, or over the "
    "channels, -1"
)
REDUCTIONS = (
    _reducing(
        "max",
        "math.reduce_max",
        _REDUCED,
        pooling="GlobalMaxPooling2D",
        layers=partial(_reduced, "GlobalMaxPooling2D", "ChannelMax"),
        synonyms=("Amax",),
    ),
    _reducing(
        "mean",
        "math.reduce_mean",
        _REDUCED,
        pooling="GlobalAveragePooling2D",
        layers=partial(_reduced, "GlobalAveragePooling2D", "ChannelMean"),
    ),
    _reducing("min", "math.reduce_min", "the smallest is -tf.reduce_max(-x)"),
    _reducing("prod", "math.reduce_prod"),
    _reducing(
        "sum",
        "math.reduce_sum",
        f"write tf.reduce_mean(x, axes) * n for the sum of n values; of a mean, {_REDUCED}",
    ),
)
OPERATIONS = (
    *REDUCTIONS,
    _pooling("average_pool", "avg_pool", "AveragePooling"),
    _pooling("max_pool", "max_pool", "MaxPooling"),
    OperationKind(
        "pool", ("compat.v1.nn.pool",), f"{_POOLING} and without dilation", _pooled_by_kind
    ),
)
