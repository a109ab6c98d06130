"""Layers that make one value of several: poolings, and sums, products and the like of tensors."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import (
    SAME,
    Combination,
    Keras3,
    Kinds,
    LayerKind,
    Move,
    Pooling,
    Role,
    Shape,
    refuse_channels_first,
)
from sat_tf.graph.layers.movements import one_move
from sat_tf.graph.operation_layers import ChannelMax, ChannelMean, ConstantSum, Scaling

L = keras.layers


def _pooling(
    *, mean: bool, whole: bool = False, on_images: Any = None, quantized: bool = False, **of: Any
) -> LayerKind:
    """The row of a pooling; only that of images is quantized."""
    return LayerKind(
        Role.MEAN if mean else Role.MOVEMENT,
        quantized=quantized,
        pooling=Pooling(mean, whole, on_images),
        keras3=SAME if whole else Keras3(channels_last=True),
        **of,
    )


_ON_IMAGES: dict[str, Any] = {"quantized": True, "refuse": refuse_channels_first}


def _largest_of_all(layer: Any, read: Shape, made: Shape) -> tuple[Move, ...]:
    rows, columns, channels = read
    window = ((rows, columns), (1, 1), "VALID")
    suffix = "" if layer.keepdims else "pixel"
    pixel = Move("MAX_POOL_2D", window, (1, 1, channels), suffix)
    return (pixel,) if layer.keepdims else (pixel, Move("RESHAPE"))


def _window(layer: Any) -> tuple[Any, ...]:
    return tuple(layer.pool_size), tuple(layer.strides), layer.padding.upper()


def _refuse_concatenation(layer: Any) -> str | None:
    if layer.axis == 0:
        return "received axis=0, the batch, expected another one; use axis=-1, the channels"
    return None


def _combining(role: Role, combination: Combination) -> LayerKind:
    return LayerKind(role, combination=combination, keras3=SAME)


KINDS: Kinds = {
    L.Add: _combining(Role.SUM, Combination.SUM),
    L.Subtract: _combining(Role.SUM, Combination.DIFFERENCE),
    L.Average: _combining(Role.SUM, Combination.MEAN),
    L.Multiply: _combining(Role.PRODUCT, Combination.PRODUCT),
    L.Maximum: _combining(Role.CONCATENATION, Combination.MAXIMUM),
    L.Minimum: _combining(Role.CONCATENATION, Combination.MINIMUM),
    L.Concatenate: LayerKind(
        Role.CONCATENATION,
        _refuse_concatenation,
        combination=Combination.JOINED,
        short_name="Concat",
        keras3=SAME,
    ),
    ConstantSum: LayerKind(Role.SUM, combination=Combination.WITH_MAP),
    Scaling: LayerKind(Role.SCALING, keras3=SAME),
    L.MaxPooling1D: _pooling(mean=False, on_images=L.MaxPooling2D),
    L.MaxPooling2D: _pooling(
        mean=False,
        moves=one_move("MAX_POOL_2D", _window),
        keeps_channels=True,
        short_name="MaxPool",
        **_ON_IMAGES,
    ),
    L.MaxPooling3D: _pooling(mean=False),
    L.AveragePooling1D: _pooling(mean=True, on_images=L.AveragePooling2D),
    L.AveragePooling2D: _pooling(mean=True, short_name="AveragePool", **_ON_IMAGES),
    L.AveragePooling3D: _pooling(mean=True),
    L.GlobalMaxPooling1D: _pooling(mean=False, whole=True, on_images=L.GlobalMaxPooling2D),
    L.GlobalMaxPooling2D: _pooling(
        mean=False,
        whole=True,
        moves=_largest_of_all,
        keeps_channels=True,
        short_name="GlobalMax",
        **_ON_IMAGES,
    ),
    L.GlobalMaxPooling3D: _pooling(mean=False, whole=True),
    L.GlobalAveragePooling1D: _pooling(mean=True, whole=True, on_images=L.GlobalAveragePooling2D),
    L.GlobalAveragePooling2D: _pooling(
        mean=True, whole=True, short_name="GlobalAverage", **_ON_IMAGES
    ),
    L.GlobalAveragePooling3D: _pooling(mean=True, whole=True),
    ChannelMean: LayerKind(Role.MEAN),
    ChannelMax: LayerKind(Role.MOVEMENT, moves=one_move("REDUCE_MAX")),
}
