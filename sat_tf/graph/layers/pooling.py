"""Poolings, and the mean and the maximum over channels."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import (
    SAME,
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
from sat_tf.graph.operation_layers import ChannelMax, ChannelMean

L = keras.layers
_WINDOWS = Keras3(channels_last=True)


def _largest_of_all(layer: Any, read: Shape, made: Shape) -> tuple[Move, ...]:
    rows, columns, channels = read
    window = ((rows, columns), (1, 1), "VALID")
    suffix = "" if layer.keepdims else "pixel"
    pixel = Move("MAX_POOL_2D", window, (1, 1, channels), suffix)
    return (pixel,) if layer.keepdims else (pixel, Move("RESHAPE"))


def _window(layer: Any) -> tuple[Any, ...]:
    return tuple(layer.pool_size), tuple(layer.strides), layer.padding.upper()


KINDS: Kinds = {
    L.MaxPooling1D: LayerKind(
        Role.MOVEMENT,
        quantized=False,
        pooling=Pooling(mean=False, on_images=L.MaxPooling2D),
        keras3=_WINDOWS,
    ),
    L.MaxPooling2D: LayerKind(
        Role.MOVEMENT,
        refuse_channels_first,
        pooling=Pooling(mean=False),
        moves=one_move("MAX_POOL_2D", _window),
        keeps_channels=True,
        short_name="MaxPool",
        keras3=_WINDOWS,
    ),
    L.MaxPooling3D: LayerKind(
        Role.MOVEMENT, quantized=False, pooling=Pooling(mean=False), keras3=_WINDOWS
    ),
    L.AveragePooling1D: LayerKind(
        Role.MEAN,
        quantized=False,
        pooling=Pooling(mean=True, on_images=L.AveragePooling2D),
        keras3=_WINDOWS,
    ),
    L.AveragePooling2D: LayerKind(
        Role.MEAN,
        refuse_channels_first,
        pooling=Pooling(mean=True),
        short_name="AveragePool",
        keras3=_WINDOWS,
    ),
    L.AveragePooling3D: LayerKind(
        Role.MEAN, quantized=False, pooling=Pooling(mean=True), keras3=_WINDOWS
    ),
    L.GlobalMaxPooling1D: LayerKind(
        Role.MOVEMENT,
        quantized=False,
        pooling=Pooling(mean=False, whole=True, on_images=L.GlobalMaxPooling2D),
        keras3=SAME,
    ),
    L.GlobalMaxPooling2D: LayerKind(
        Role.MOVEMENT,
        refuse_channels_first,
        pooling=Pooling(mean=False, whole=True),
        moves=_largest_of_all,
        keeps_channels=True,
        short_name="GlobalMax",
        keras3=SAME,
    ),
    L.GlobalMaxPooling3D: LayerKind(
        Role.MOVEMENT, quantized=False, pooling=Pooling(mean=False, whole=True), keras3=SAME
    ),
    L.GlobalAveragePooling1D: LayerKind(
        Role.MEAN,
        quantized=False,
        pooling=Pooling(mean=True, whole=True, on_images=L.GlobalAveragePooling2D),
        keras3=SAME,
    ),
    L.GlobalAveragePooling2D: LayerKind(
        Role.MEAN,
        refuse_channels_first,
        pooling=Pooling(mean=True, whole=True),
        short_name="GlobalAverage",
        keras3=SAME,
    ),
    L.GlobalAveragePooling3D: LayerKind(
        Role.MEAN, quantized=False, pooling=Pooling(mean=True, whole=True), keras3=SAME
    ),
    ChannelMean: LayerKind(Role.MEAN),
    ChannelMax: LayerKind(Role.MOVEMENT, moves=one_move("REDUCE_MAX")),
}
