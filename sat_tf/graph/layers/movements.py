"""Layers that move values, resizing included, and the operators that do so in a file.

Where operators take only images, a sequence is an image with one row.
"""

from collections.abc import Callable
from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import (
    SAME,
    Function,
    Kinds,
    LayerKind,
    Move,
    Moves,
    Role,
    Shape,
    refuse_channels_first,
)
from sat_tf.graph.operation_layers import DepthToSpace, Gather, Padding, Slice, SpaceToDepth

L = keras.layers
_Arguments = Callable[[Any], tuple[Any, ...]]


def one_move(operator: str, arguments: _Arguments = lambda layer: ()) -> Moves:
    """One operator, with arguments taken from the layer."""

    def moves(layer: Any, read: Shape, made: Shape) -> tuple[Move, ...]:
        return (Move(operator, arguments(layer)),)

    return moves


def _on_one_row(read: Shape, move: Move) -> tuple[Move, ...]:
    """A sequence as an image with one row, the move, and a sequence again."""
    return (Move("RESHAPE", (), (1, *read), "input"), move, Move("RESHAPE"))


def _pad_sequence(layer: Any, read: Shape, made: Shape) -> tuple[Move, ...]:
    margins = ((0, 0), tuple(layer.padding), (0, 0))
    return _on_one_row(read, Move("PAD", (margins,), (1, *made), "image"))


def _upsample_sequence(layer: Any, read: Shape, made: Shape) -> tuple[Move, ...]:
    size = (1, read[0] * int(layer.size))
    return _on_one_row(read, Move("RESIZE_NEAREST_NEIGHBOR", (size,), (1, *made), "image"))


def _slice(layer: Any, read: Shape, made: Shape) -> tuple[Move, ...]:
    kept = tuple((first, stop, step) for first, stop, step in layer.slices)
    if not layer.dropped:
        return (Move("STRIDED_SLICE", (kept,)),)
    sizes = tuple(len(range(size)[slice(*k)]) for size, k in zip(read, kept, strict=True))
    return (Move("STRIDED_SLICE", (kept,), sizes, "part"), Move("RESHAPE"))


def _without(first: int, last: int) -> tuple[int | None, int | None, None]:
    """A slice without some values at its ends."""
    return (first or None, -last or None, None)


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
# Not quantized: sat-tf has no operations on volumes.
_OF_VOLUMES = LayerKind(Role.MOVEMENT, quantized=False, keras3=SAME)

KINDS: Kinds = {
    L.Flatten: LayerKind(
        Role.MOVEMENT,
        refuse_at=_refuse_flatten_at,
        moves=one_move("RESHAPE"),
        reshapes=True,
        keras3=SAME,
    ),
    L.Reshape: LayerKind(Role.MOVEMENT, moves=one_move("RESHAPE"), reshapes=True, keras3=SAME),
    L.Permute: LayerKind(
        Role.MOVEMENT, moves=one_move("TRANSPOSE", lambda layer: (tuple(layer.dims),)), keras3=SAME
    ),
    L.ZeroPadding1D: LayerKind(
        Role.MOVEMENT, moves=_pad_sequence, keeps_channels=True, keras3=SAME
    ),
    L.ZeroPadding2D: LayerKind(
        Role.MOVEMENT,
        refuse_channels_first,
        moves=one_move("PAD", lambda layer: ((*map(tuple, layer.padding), (0, 0)),)),
        keeps_channels=True,
        short_name="ZeroPad",
        keras3=SAME,
    ),
    L.ZeroPadding3D: _OF_VOLUMES,
    L.Cropping1D: LayerKind(
        Role.MOVEMENT,
        moves=one_move("STRIDED_SLICE", lambda layer: ((_without(*layer.cropping), _ALL),)),
        keeps_channels=True,
        keras3=SAME,
    ),
    L.Cropping2D: LayerKind(
        Role.MOVEMENT,
        refuse_channels_first,
        moves=one_move(
            "STRIDED_SLICE",
            lambda layer: ((*(_without(*margin) for margin in layer.cropping), _ALL),),
        ),
        keeps_channels=True,
        keras3=SAME,
    ),
    L.Cropping3D: _OF_VOLUMES,
    L.UpSampling1D: LayerKind(
        Role.MOVEMENT, moves=_upsample_sequence, keeps_channels=True, keras3=SAME
    ),
    L.UpSampling2D: LayerKind(
        _upsampling_role,
        refuse_channels_first,
        refuse_at=_refuse_interpolation,
        function=_INTERPOLATION,
        moves=lambda layer, read, made: (Move("RESIZE_NEAREST_NEIGHBOR", (tuple(made[:2]),)),),
        keeps_channels=True,
        keras3=SAME,
    ),
    L.UpSampling3D: _OF_VOLUMES,
    L.Resizing: LayerKind(
        _resizing_role,
        refuse_at=_refuse_interpolation,
        function=_INTERPOLATION,
        moves=one_move(
            "RESIZE_NEAREST_NEIGHBOR", lambda layer: ((int(layer.height), int(layer.width)),)
        ),
        keras3=SAME,
    ),
    DepthToSpace: LayerKind(
        Role.MOVEMENT, moves=one_move("DEPTH_TO_SPACE", lambda layer: (layer.block_size,))
    ),
    SpaceToDepth: LayerKind(
        Role.MOVEMENT, moves=one_move("SPACE_TO_DEPTH", lambda layer: (layer.block_size,))
    ),
    Padding: LayerKind(
        Role.MOVEMENT,
        moves=one_move(
            "PAD", lambda layer: (tuple((before, behind) for before, behind in layer.margins),)
        ),
    ),
    Gather: LayerKind(
        Role.MOVEMENT, moves=one_move("GATHER", lambda layer: (tuple(layer.indices), layer.axis))
    ),
    Slice: LayerKind(Role.MOVEMENT, moves=_slice, keras3=SAME),
}
