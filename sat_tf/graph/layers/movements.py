"""Layers that move or combine values: resizing, poolings, sums, products and the like.

Where operators of moves take only images, a sequence is an image with one row.
"""

from collections.abc import Callable
from typing import Any

import tf_keras as keras

from sat_tf.graph import operation_layers
from sat_tf.graph.layers.kind import (
    SAME,
    Combination,
    Function,
    Keras3,
    Kinds,
    LayerKind,
    Move,
    Moves,
    Pooling,
    Role,
    Shape,
    refuse_batch_axis,
    refuse_channels_first,
)

L = keras.layers
_Arguments = Callable[[Any], tuple[Any, ...]]


def one_move(operator: str, arguments: _Arguments = lambda layer: ()) -> Moves:
    """One operator, with arguments taken from the layer."""
    return lambda layer, before, after: (Move(operator, arguments(layer)),)


def _on_one_row(before: Shape, move: Move) -> tuple[Move, ...]:
    """A sequence as an image with one row, the move, and a sequence again."""
    return (Move("RESHAPE", (), (1, *before), "input"), move, Move("RESHAPE"))


def _pad_sequence(layer: Any, before: Shape, after: Shape) -> tuple[Move, ...]:
    margins = ((0, 0), tuple(layer.padding), (0, 0))
    return _on_one_row(before, Move("PAD", (margins,), (1, *after), "image"))


def _upsample_sequence(layer: Any, before: Shape, after: Shape) -> tuple[Move, ...]:
    size = (1, before[0] * int(layer.size))
    return _on_one_row(before, Move("RESIZE_NEAREST_NEIGHBOR", (size,), (1, *after), "image"))


def _slice(layer: Any, before: Shape, after: Shape) -> tuple[Move, ...]:
    bounds = tuple((start, stop, step) for start, stop, step in layer.slices)
    if not layer.dropped:
        return (Move("STRIDED_SLICE", (bounds,)),)
    sizes = tuple(len(range(size)[slice(*k)]) for size, k in zip(before, bounds, strict=True))
    return (Move("STRIDED_SLICE", (bounds,), sizes, "part"), Move("RESHAPE"))


def _without(front: int, back: int) -> tuple[int | None, int | None, None]:
    """A slice without some values at its ends."""
    return (front or None, -back or None, None)


_ALL = (None, None, None)


def _refuse_flatten_at(layer: Any, rank: int) -> str | None:
    if layer.data_format != "channels_last" and rank > 1:
        return "received data_format='channels_first', expected 'channels_last'; use that"
    return None


def _refuse_interpolation(layer: Any, rank: int) -> str | None:
    if layer.interpolation not in ("nearest", "bilinear"):
        return (
            f"received interpolation={layer.interpolation!r}, which no operator of TFLite "
            "computes, expected 'nearest' or 'bilinear'; train the model with one of them"
        )
    return None


def _upsampling_role(layer: Any) -> Role:
    return Role.MOVEMENT if layer.interpolation == "nearest" else Role.FUNCTION


def _resizing_role(layer: Any) -> Role:
    # Images that are cut to an aspect ratio first are left to TensorFlow's converter.
    return Role.FUNCTION if layer.crop_to_aspect_ratio else _upsampling_role(layer)


_INTERPOLATION = Function(
    keeps_range=lambda layer: layer.interpolation in ("nearest", "bilinear", "area"),
    interpolates=lambda layer: (
        layer.interpolation == "bilinear" and not getattr(layer, "crop_to_aspect_ratio", False)
    ),
)
# Layers of volumes are not quantized: sat-tf has no operations on these.
_OF_VOLUMES = LayerKind(Role.MOVEMENT, quantized=False, keras3=SAME)


def _movement(moves: Moves, *, role: Any = Role.MOVEMENT, **settings: Any) -> LayerKind:
    return LayerKind(role, moves=moves, **{"keras3": SAME, **settings})


def _of_sat_tf(operator: str, arguments: _Arguments) -> LayerKind:
    return _movement(one_move(operator, arguments), keras3=None)


_OF_IMAGES: dict[str, Any] = {"keeps_channels": True, "refuse": refuse_channels_first}
_RESIZED: dict[str, Any] = {"refuse_at": _refuse_interpolation, "function": _INTERPOLATION}
_RESHAPE = one_move("RESHAPE")


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


_POOLED_IMAGES: dict[str, Any] = {"quantized": True, "refuse": refuse_channels_first}


def _largest_of_all(layer: Any, before: Shape, after: Shape) -> tuple[Move, ...]:
    rows, columns, channels = before
    window = ((rows, columns), (1, 1), "VALID")
    suffix = "" if layer.keepdims else "pixel"
    pixel = Move("MAX_POOL_2D", window, (1, 1, channels), suffix)
    return (pixel,) if layer.keepdims else (pixel, Move("RESHAPE"))


def _window(layer: Any) -> tuple[Any, ...]:
    return tuple(layer.pool_size), tuple(layer.strides), layer.padding.upper()


def _combining(role: Role, combination: Combination) -> LayerKind:
    return LayerKind(role, combination=combination, keras3=SAME)


KINDS: Kinds = {
    L.Flatten: _movement(_RESHAPE, refuse_at=_refuse_flatten_at, reshapes=True),
    L.Reshape: _movement(_RESHAPE, reshapes=True),
    L.Permute: _movement(one_move("TRANSPOSE", lambda layer: (tuple(layer.dims),))),
    L.ZeroPadding1D: _movement(_pad_sequence, keeps_channels=True),
    L.ZeroPadding2D: _movement(
        one_move("PAD", lambda layer: ((*map(tuple, layer.padding), (0, 0)),)),
        short_name="ZeroPad",
        **_OF_IMAGES,
    ),
    L.ZeroPadding3D: _OF_VOLUMES,
    L.Cropping1D: _movement(
        one_move("STRIDED_SLICE", lambda layer: ((_without(*layer.cropping), _ALL),)),
        keeps_channels=True,
    ),
    L.Cropping2D: _movement(
        one_move("STRIDED_SLICE", lambda layer: ((*(_without(*m) for m in layer.cropping), _ALL),)),
        **_OF_IMAGES,
    ),
    L.Cropping3D: _OF_VOLUMES,
    L.UpSampling1D: _movement(_upsample_sequence, keeps_channels=True),
    L.UpSampling2D: _movement(
        lambda layer, before, after: (Move("RESIZE_NEAREST_NEIGHBOR", (tuple(after[:2]),)),),
        role=_upsampling_role,
        **_OF_IMAGES,
        **_RESIZED,
    ),
    L.UpSampling3D: _OF_VOLUMES,
    L.Resizing: _movement(
        one_move("RESIZE_NEAREST_NEIGHBOR", lambda layer: ((int(layer.height), int(layer.width)),)),
        role=_resizing_role,
        **_RESIZED,
    ),
    operation_layers.DepthToSpace: _of_sat_tf("DEPTH_TO_SPACE", lambda layer: (layer.block_size,)),
    operation_layers.SpaceToDepth: _of_sat_tf("SPACE_TO_DEPTH", lambda layer: (layer.block_size,)),
    operation_layers.Padding: _of_sat_tf("PAD", lambda layer: (tuple(map(tuple, layer.margins)),)),
    operation_layers.Gather: _of_sat_tf("GATHER", lambda layer: (tuple(layer.indices), layer.axis)),
    operation_layers.Slice: _movement(_slice),
    L.Add: _combining(Role.SUM, Combination.SUM),
    L.Subtract: _combining(Role.SUM, Combination.DIFFERENCE),
    L.Average: _combining(Role.SUM, Combination.MEAN),
    L.Multiply: _combining(Role.PRODUCT, Combination.PRODUCT),
    L.Maximum: _combining(Role.CONCATENATION, Combination.MAXIMUM),
    L.Minimum: _combining(Role.CONCATENATION, Combination.MINIMUM),
    L.Concatenate: LayerKind(
        Role.CONCATENATION,
        refuse_batch_axis,
        combination=Combination.JOINED,
        short_name="Concat",
        keras3=SAME,
    ),
    operation_layers.ConstantSum: LayerKind(Role.SUM, combination=Combination.WITH_MAP),
    operation_layers.Scaling: LayerKind(Role.SCALING, keras3=SAME),
    operation_layers.MatrixProduct: LayerKind(Role.MATRIX_PRODUCT, keras3=SAME),
    L.MaxPooling1D: _pooling(mean=False, on_images=L.MaxPooling2D),
    L.MaxPooling2D: _pooling(
        mean=False,
        moves=one_move("MAX_POOL_2D", _window),
        keeps_channels=True,
        short_name="MaxPool",
        **_POOLED_IMAGES,
    ),
    L.MaxPooling3D: _pooling(mean=False),
    L.AveragePooling1D: _pooling(mean=True, on_images=L.AveragePooling2D),
    L.AveragePooling2D: _pooling(mean=True, short_name="AveragePool", **_POOLED_IMAGES),
    L.AveragePooling3D: _pooling(mean=True),
    L.GlobalMaxPooling1D: _pooling(mean=False, whole=True, on_images=L.GlobalMaxPooling2D),
    L.GlobalMaxPooling2D: _pooling(
        mean=False,
        whole=True,
        moves=_largest_of_all,
        keeps_channels=True,
        short_name="GlobalMax",
        **_POOLED_IMAGES,
    ),
    L.GlobalMaxPooling3D: _pooling(mean=False, whole=True),
    L.GlobalAveragePooling1D: _pooling(mean=True, whole=True, on_images=L.GlobalAveragePooling2D),
    L.GlobalAveragePooling2D: _pooling(
        mean=True, whole=True, short_name="GlobalAverage", **_POOLED_IMAGES
    ),
    L.GlobalAveragePooling3D: _pooling(mean=True, whole=True),
    operation_layers.ChannelMean: LayerKind(Role.MEAN),
    operation_layers.ChannelMax: LayerKind(Role.MOVEMENT, moves=one_move("REDUCE_MAX")),
}
