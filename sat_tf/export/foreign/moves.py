"""Operators that move or select codes, in every form that TFLite has: a row each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.foreign.rule import Read, Reshaped, numbers, on_one_grid, operand, operands, rule
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView

Move = Callable[[np.ndarray], np.ndarray]
# The function of an operator, for the place of one of the tensors that it makes.
MoveOf = Callable[[OperatorView, int], Move]


def moved(move_of: MoveOf, source: int = 0) -> Callable[[OperatorView, int], Read]:
    """The reader of an operator that moves the codes of one tensor, by default its first input."""

    def read(view: OperatorView, place: int) -> Read:
        given = [operand(view, source)]
        codes, move = on_one_grid(view, given), move_of(view, place)
        return rule(view, given, lambda graph, arrays: move(arrays[0])), codes

    return read


def reshaped(view: OperatorView, place: int) -> Read:
    """The reader of an operator that changes nothing but the shape."""
    given = [operand(view)]
    made = rule(view, given, lambda graph, arrays: arrays[0], Reshaped)
    return made, on_one_grid(view, given)


def joined(join: Callable[[Sequence[np.ndarray], int], np.ndarray]) -> Callable[..., Read]:
    """The reader of an operator that joins tensors along an axis."""

    def read(view: OperatorView, place: int) -> Read:
        given, axis = operands(view), view.option("axis")
        made = rule(view, given, lambda graph, arrays: join(arrays, axis))
        return made, on_one_grid(view, given)

    return read


def _slice(view: OperatorView, place: int) -> Move:
    begin, sizes = numbers(view, 1), numbers(view, 2)
    stops = [None if size == -1 else start + size for start, size in zip(begin, sizes, strict=True)]
    index = tuple(slice(*ends) for ends in zip(begin, stops, strict=True))
    return lambda values: values[index]


def _strided_slice(view: OperatorView, place: int) -> Move:
    """TensorFlow's slices: masks say where a bound does not count, and which axes come or go."""
    if view.option("offset") or view.option("shrinkAxisMask") & view.option("beginMask"):
        raise NotUnderstoodError("its masks leave open where it begins or ends")
    masks = {
        name: view.option(f"{name}Mask")
        for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")
    }
    index: list[Any] = []
    for axis, (begin, end, step) in enumerate(
        zip(*(numbers(view, given) for given in (1, 2, 3)), strict=True)
    ):
        is_set = {name: bool(mask >> axis & 1) for name, mask in masks.items()}
        if is_set["ellipsis"]:
            index.append(Ellipsis)
        elif is_set["newAxis"]:
            index.append(None)
        elif is_set["shrinkAxis"]:
            index.append(begin)
        else:
            first, last = (
                None if is_set[name] else value for name, value in (("begin", begin), ("end", end))
            )
            index.append(slice(first, last, step))
    return lambda values: np.asarray(values[tuple(index)])


def _split(view: OperatorView, place: int) -> Move:
    (axis,), count = numbers(view, 0), view.option("numSplits")
    return lambda values: np.split(values, count, axis)[place]


def _split_in_sizes(view: OperatorView, place: int) -> Move:
    sizes, (axis,) = numbers(view, 1), numbers(view, 2)

    def move(values: np.ndarray) -> np.ndarray:
        rest = values.shape[axis] - sum(size for size in sizes if size >= 0)
        whole = [rest if size < 0 else size for size in sizes]
        return np.split(values, np.cumsum(whole)[:-1], axis)[place]

    return move


def _unpack(view: OperatorView, place: int) -> Move:
    axis = view.option("axis")
    return lambda values: np.take(values, place, axis)


def _tile(view: OperatorView, place: int) -> Move:
    repeats = numbers(view, 1)
    return lambda values: np.tile(values, repeats)


def _broadcast(view: OperatorView, place: int) -> Move:
    shape = numbers(view, 1)
    return lambda values: np.broadcast_to(values, shape)


def _transpose(view: OperatorView, place: int) -> Move:
    order = numbers(view, 1)
    return lambda values: np.transpose(values, order)


def _reverse(view: OperatorView, place: int) -> Move:
    axes = tuple(numbers(view, 1))
    return lambda values: np.flip(values, axes)


def _gather(view: OperatorView, place: int) -> Move:
    axis, indices = view.option("axis"), view.constant(1, "INT32", "INT64")
    if view.option("batchDims"):
        raise NotUnderstoodError("it gathers other places of each image")
    if indices.size and np.min(indices) < 0:
        raise NotUnderstoodError("it gathers from places below 0")
    return lambda values: np.take(values, indices, axis)


def _gather_places(view: OperatorView, place: int) -> Move:
    places = view.constant(1, "INT32", "INT64")
    return lambda values: values[tuple(np.moveaxis(places, -1, 0))]


def _margins(view: OperatorView) -> np.ndarray:
    margins = view.constant(1, "INT32", "INT64")
    if margins.ndim != 2 or margins.shape[1] != 2 or np.min(margins, initial=0) < 0:
        raise NotUnderstoodError("its margins are not two for each axis, from 0 on")
    return margins


def _pad(view: OperatorView, place: int) -> Move:
    margins, zero = _margins(view), int(view.output.zero_points[0])
    return lambda values: np.pad(values, margins, constant_values=zero)


def _pad_with(view: OperatorView, place: int) -> Move:
    on_one_grid(view, [operand(view, 2)])
    margins, (stored,) = _margins(view), view.constant(2, "INT8").reshape(-1)
    return lambda values: np.pad(values, margins, constant_values=int(stored))


def _mirror(view: OperatorView, place: int) -> Move:
    margins = _margins(view)
    if view.option("mode") == tfl.MirrorPadMode.REFLECT:
        return lambda values: np.pad(values, margins, mode="reflect")
    return lambda values: np.pad(values, margins, mode="symmetric")


def _blocks(view: OperatorView, place: int) -> Move:
    """Each pixel of a block of pixels becomes one of an image of its own."""
    sizes, margins = numbers(view, 1), view.constant(2, "INT32").tolist()
    zero, axes = int(view.output.zero_points[0]), len(sizes)

    def move(values: np.ndarray) -> np.ndarray:
        more = [(0, 0), *margins, *[(0, 0)] * (values.ndim - 1 - axes)]
        whole = np.pad(values, more, constant_values=zero)
        images, rest = whole.shape[0], whole.shape[1 + axes :]
        counts = [
            length // size for length, size in zip(whole.shape[1 : 1 + axes], sizes, strict=True)
        ]
        pairs = [number for pair in zip(counts, sizes, strict=True) for number in pair]
        parts = whole.reshape(images, *pairs, *rest)
        inner = range(2, 2 + 2 * axes, 2)
        outer = range(1, 1 + 2 * axes, 2)
        order = (*inner, 0, *outer, *range(1 + 2 * axes, parts.ndim))
        return parts.transpose(order).reshape(-1, *counts, *rest)

    return move


def _unblocked(view: OperatorView, place: int) -> Move:
    """The reverse of `_blocks`; what was put around is cut."""
    sizes, cuts = numbers(view, 1), view.constant(2, "INT32").tolist()
    axes = len(sizes)

    def move(values: np.ndarray) -> np.ndarray:
        counts, rest = values.shape[1 : 1 + axes], values.shape[1 + axes :]
        parts = values.reshape(*sizes, -1, *counts, *rest)
        pairs = [axis for place in range(axes) for axis in (axes + 1 + place, place)]
        order = (axes, *pairs, *range(2 * axes + 1, parts.ndim))
        whole = [count * size for count, size in zip(counts, sizes, strict=True)]
        made = parts.transpose(order).reshape(-1, *whole, *rest)
        kept = (
            slice(before, length - behind)
            for (before, behind), length in zip(cuts, whole, strict=True)
        )
        return made[(slice(None), *kept)]

    return move


def _extreme(function: Callable[..., np.ndarray]) -> MoveOf:
    def move_of(view: OperatorView, place: int) -> Move:
        axes, keeps = tuple(numbers(view, 1)), bool(view.option("keepDims"))
        return lambda values: np.asarray(function(values, axis=axes, keepdims=keeps))

    return move_of


def _nearest(view: OperatorView, place: int) -> Move:
    """Resizing to the nearest pixel, in the ways of older TensorFlow too.

    Pixel i of n lies over that of m at i · m / n, rounded down, in float32; `halfPixelCenters` adds
    half a pixel to i; `alignCorners` divides m - 1 by n - 1, and rounds half away from zero.
    """
    sizes = numbers(view, 1)
    aligns, centers = view.option("alignCorners"), view.option("halfPixelCenters")
    offset = np.float32(0.5 if centers else 0.0)

    def places(before: int, after: int) -> np.ndarray:
        less = int(aligns and after > 1)
        scale = np.float32(before - less) / np.float32(after - less)
        real = (np.arange(after, dtype=np.float32) + offset) * scale
        whole = np.floor(real + np.float32(0.5)) if aligns else np.floor(real)
        return np.clip(whole.astype(int), 0, before - 1)

    def move(values: np.ndarray) -> np.ndarray:
        rows, columns = map(places, values.shape[1:3], sizes)
        return values[:, rows][:, :, columns]

    return move


READERS: Mapping[str, Callable[[OperatorView, int], Read]] = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), reshaped),
    "CONCATENATION": joined(np.concatenate),
    "PACK": joined(np.stack),
    "SLICE": moved(_slice),
    "STRIDED_SLICE": moved(_strided_slice),
    "SPLIT": moved(_split, source=1),
    "SPLIT_V": moved(_split_in_sizes),
    "UNPACK": moved(_unpack),
    "TILE": moved(_tile),
    "BROADCAST_TO": moved(_broadcast),
    "TRANSPOSE": moved(_transpose),
    "REVERSE_V2": moved(_reverse),
    "GATHER": moved(_gather),
    "GATHER_ND": moved(_gather_places),
    "PAD": moved(_pad),
    "PADV2": moved(_pad_with),
    "MIRROR_PAD": moved(_mirror),
    "SPACE_TO_BATCH_ND": moved(_blocks),
    "BATCH_TO_SPACE_ND": moved(_unblocked),
    "REDUCE_MAX": moved(_extreme(np.max)),
    "REDUCE_MIN": moved(_extreme(np.min)),
    "RESIZE_NEAREST_NEIGHBOR": moved(_nearest),
}
# Operators that make several tensors.
WITH_SEVERAL = ("SPLIT", "SPLIT_V", "UNPACK")
