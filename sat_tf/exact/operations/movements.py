"""Rows of the operators that select, move or reshape values, or put zeros around them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.kernels.bilinear import AxisGrid
from sat_tf.exact.operations.operation import SELECTED, Call, Row, Settings, Written


def _move(
    name: str, function: Callable[..., Any], *options: str, pads: bool = False, **fields: Any
) -> Row:
    """Returns the row of an operator that is a function of its operands, in order, and options.

    A function that `pads` also gets `zero`, the stored integer of 0.
    """

    def rule(call: Call) -> Any:
        settings = dict(call.options)
        if pads:
            settings["zero"] = call.made.zero_point if call.made else 0.0
        return function(*call.arrays, **settings)

    fields.setdefault("takes_wide", True)
    return Row(name, rule, options, SELECTED, pads=pads, **fields)


def _slice(values: np.ndarray, begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    ends = [None if size == -1 else start + size for start, size in zip(begin, sizes, strict=True)]
    return values[tuple(map(slice, begin, ends))]


_MASKS = ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask")


def _strided_slice(
    values: np.ndarray, *bounds: np.ndarray, offset: bool = False, **masks: int
) -> np.ndarray:
    """Slices as TensorFlow does: masks say which bounds do not count, and which axes come or go."""
    index: list[Any] = []
    for axis, (begin, end, step) in enumerate(zip(*bounds, strict=True)):
        is_set = {name for name, mask in masks.items() if mask >> axis & 1}
        if offset or ("shrinkAxisMask" in is_set and step < 0):
            raise ValueError("its ends count from its begins, or it takes one place backwards")
        if "ellipsisMask" in is_set:
            index.append(Ellipsis)
        elif "newAxisMask" in is_set:
            index.append(None)
        elif "shrinkAxisMask" in is_set:
            index.append(0 if "beginMask" in is_set else begin)
        else:
            start = None if "beginMask" in is_set else begin
            index.append(slice(start, None if "endMask" in is_set else end, step))
    return np.asarray(values[tuple(index)])


def _slice_settings(shape: tuple[int, ...], slices: tuple[tuple[int | None, ...], ...]) -> Settings:
    """Returns begin, end and strides of all axes, with masks for the whole batch of any size."""
    bounds = [slice(*ends).indices(size) for ends, size in zip(slices, shape, strict=True)]
    return list(zip((0, 0, 1), *bounds, strict=True)), {"beginMask": 1, "endMask": 1}


def _split_in_sizes(values: np.ndarray, sizes: np.ndarray, axis: np.ndarray) -> list[np.ndarray]:
    remainder = values.shape[axis.item()] - np.sum(sizes[sizes >= 0])
    whole = np.where(sizes < 0, remainder, sizes)
    return np.split(values, np.cumsum(whole)[:-1], axis.item())


def _gather(values: np.ndarray, indices: np.ndarray, axis: int, batchDims: int = 0) -> np.ndarray:
    if np.min(indices, initial=0) < 0:
        raise ValueError("it gathers from places below 0")
    first, batch = axis % values.ndim, batchDims % (indices.ndim + (batchDims >= 0))
    gathered = np.moveaxis(values, first, batch)[(*np.indices(indices.shape)[:batch], indices)]
    places = np.arange(batch, indices.ndim)
    return np.moveaxis(gathered, places, places + (first - batch))


def _padded(values: np.ndarray, margins: np.ndarray, zero: float) -> np.ndarray:
    _expect_margins(values, margins)
    return np.pad(values, margins, constant_values=zero)


def _mirrored(values: np.ndarray, margins: np.ndarray, mode: int) -> np.ndarray:
    _expect_margins(values, margins)
    reflects = mode == tfl.MirrorPadMode.REFLECT
    return np.pad(values, margins, "reflect" if reflects else "symmetric")


def _expect_margins(values: np.ndarray, margins: np.ndarray) -> None:
    if margins.shape != (values.ndim, 2) or np.min(margins, initial=0) < 0:
        raise ValueError("its margins are not two for each axis, from 0 on")


def _nearest(values: np.ndarray, size: Any, alignCorners: bool, halfPixelCenters: bool) -> Any:
    """Resizes to the nearest pixel, in the ways of older TensorFlow too.

    Pixel i of n lies over pixel i · m / n of m, rounded down, in float32; `halfPixelCenters` adds
    half a pixel to i; `alignCorners` divides m - 1 by n - 1, and rounds half away from zero.
    """
    offset = np.float32(0.5 if halfPixelCenters else 0.0)

    def places(before: int, after: int) -> np.ndarray:
        scale = AxisGrid(before, after, align_corners=alignCorners).scale
        real = (np.arange(after, dtype=np.float32) + offset) * scale
        whole = np.floor(real + np.float32(0.5)) if alignCorners else np.floor(real)
        return np.clip(whole.astype(int), 0, before - 1)

    rows, columns = map(places, values.shape[1:3], size)
    return values[:, rows][:, :, columns]


def _depth_to_space(values: np.ndarray, blockSize: int) -> np.ndarray:
    """Moves channels into rows and columns: (h, w, b²·c) becomes (b·h, b·w, c)."""
    images, rows, columns, channels = values.shape
    blocks = values.reshape(images, rows, columns, blockSize, blockSize, channels // blockSize**2)
    transposed = blocks.transpose(0, 1, 3, 2, 4, 5)
    return transposed.reshape(images, rows * blockSize, columns * blockSize, blocks.shape[-1])


def _space_to_depth(values: np.ndarray, blockSize: int) -> np.ndarray:
    """Moves rows and columns into channels: (b·h, b·w, c) becomes (h, w, b²·c)."""
    images, rows, columns, channels = values.shape
    rows, columns = rows // blockSize, columns // blockSize
    blocks = values.reshape(images, rows, blockSize, columns, blockSize, channels)
    transposed = blocks.transpose(0, 1, 3, 2, 4, 5)
    return transposed.reshape(images, rows, columns, channels * blockSize**2)


def _updated(values: np.ndarray, update: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Replaces values by an update from a start on, which is moved so that the update fits."""
    corner = np.clip(start, 0, np.array(values.shape) - update.shape)
    copy = values.copy()
    copy[tuple(map(slice, corner, corner + update.shape))] = update
    return copy


def _space_to_batch(values: np.ndarray, sizes: Any, margins: np.ndarray, zero: int) -> np.ndarray:
    """Moves each pixel of a block of pixels into a separate image."""
    axes = len(sizes)
    all_margins = [(0, 0), *margins, *[(0, 0)] * (values.ndim - 1 - axes)]
    whole = _padded(values, np.array(all_margins), zero)
    counts, trailing_shape = whole.shape[1 : 1 + axes] // sizes, whole.shape[1 + axes :]
    blocks = whole.reshape(whole.shape[0], *np.stack([counts, sizes], axis=1).flat, *trailing_shape)
    inner, outer = range(2, 2 + 2 * axes, 2), range(1, 1 + 2 * axes, 2)
    order = (*inner, 0, *outer, *range(1 + 2 * axes, blocks.ndim))
    return blocks.transpose(order).reshape(-1, *counts, *trailing_shape)


def _batch_to_space(values: np.ndarray, sizes: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Reverses `_space_to_batch`, and cuts the margins off."""
    axes = len(sizes)
    counts, trailing_shape = values.shape[1 : 1 + axes], values.shape[1 + axes :]
    blocks = values.reshape(*sizes, -1, *counts, *trailing_shape)
    pairs = [axis for place in range(axes) for axis in (axes + 1 + place, place)]
    order = (axes, *pairs, *range(2 * axes + 1, blocks.ndim))
    lengths = counts * sizes
    whole = blocks.transpose(order).reshape(-1, *lengths, *trailing_shape)
    return whole[(slice(None), *map(slice, cuts[:, 0], lengths - cuts[:, 1]))]


ROWS = (
    _move(
        "STRIDED_SLICE",
        _strided_slice,
        *_MASKS,
        "offset",
        written=Written(2, "StridedSliceOptions", ("begin", "end", "strides"), _slice_settings),
    ),
    _move(
        "TRANSPOSE",
        np.transpose,
        written=Written(2, "TransposeOptions", ("order",), lambda _, order: ([(0, *order)], {})),
    ),
    _move(
        "RESIZE_NEAREST_NEIGHBOR",
        _nearest,
        "alignCorners",
        "halfPixelCenters",
        written=Written(
            3,
            "ResizeNearestNeighborOptions",
            ("size",),
            lambda shape, size: ([size], {"alignCorners": False, "halfPixelCenters": True}),
        ),
    ),
    _move(
        "DEPTH_TO_SPACE",
        _depth_to_space,
        "blockSize",
        takes_wide=False,
        written=Written(1, "DepthToSpaceOptions", (), lambda _, size: ([], {"blockSize": size})),
    ),
    _move(
        "SPACE_TO_DEPTH",
        _space_to_depth,
        "blockSize",
        takes_wide=False,
        written=Written(2, "SpaceToDepthOptions", (), lambda _, size: ([], {"blockSize": size})),
    ),
    _move(
        "GATHER",
        _gather,
        "axis",
        "batchDims",
        written=Written(
            2, "GatherOptions", ("indices",), lambda _, places, axis: ([places], {"axis": axis + 1})
        ),
    ),
    _move(
        "REDUCE_MAX",
        lambda values, axes, keepDims: np.max(values, tuple(axes.flat), keepdims=keepDims),
        "keepDims",
        written=Written(
            2, "ReducerOptions", ("axes",), lambda shape: ([[len(shape)]], {"keepDims": True})
        ),
    ),
    _move(
        "CONCATENATION",
        lambda *arrays, axis: np.concatenate(arrays, axis),
        "axis",
        written=Written(2, "ConcatenationOptions", joins=True),
    ),
    _move(
        "PAD",
        _padded,
        pads=True,
        written=Written(2, "PadOptions", ("margins",), lambda _, rest: ([[(0, 0), *rest]], {})),
    ),
    _move("PADV2", lambda values, margins, fill: _padded(values, margins, fill.item())),
    _move("MIRROR_PAD", _mirrored, "mode"),
    _move(
        "REDUCE_MIN",
        lambda values, axes, keepDims: np.min(values, tuple(axes.flat), keepdims=keepDims),
        "keepDims",
    ),
    _move("SLICE", _slice),
    _move(
        "SPLIT",
        lambda axis, values, numSplits: np.split(values, numSplits, axis.item()),
        "numSplits",
        makes_several=True,
    ),
    _move("SPLIT_V", _split_in_sizes, makes_several=True),
    _move("UNPACK", lambda values, axis: np.moveaxis(values, axis, 0), "axis", makes_several=True),
    _move("PACK", lambda *arrays, axis: np.stack(arrays, axis), "axis"),
    _move("TILE", np.tile),
    _move("BROADCAST_TO", np.broadcast_to),
    _move("REVERSE_V2", lambda values, axes: np.flip(values, tuple(axes.flat))),
    _move("GATHER_ND", lambda values, places: values[tuple(np.moveaxis(places, -1, 0))]),
    _move("EMBEDDING_LOOKUP", lambda ids, values: values[ids]),
    # A condition with one axis is one for each of the first: transposed, that is the last.
    _move("SELECT", lambda where, *values: np.where(where.T, *(array.T for array in values)).T),
    _move("SELECT_V2", np.where),
    _move("DYNAMIC_UPDATE_SLICE", _updated),
    _move("SPACE_TO_BATCH_ND", _space_to_batch, pads=True),
    _move("BATCH_TO_SPACE_ND", _batch_to_space),
)
