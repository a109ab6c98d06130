"""Every operator in random forms: each code of every runtime here is the one that is simulated.

What sat-tf writes itself is read back as it was written.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sat_tf.exact.operations import arithmetic, movements, native
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import OPERATIONS, read_graph, serialize
from sat_tf.exact.operations.native import FIXED_GRIDS
from sat_tf.exact.operations.quantize import ShiftImage
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor
from tests.exact.foreign.one_operator import Grid, assert_as_in_litert, constant, file_of

Rng = np.random.Generator


@dataclasses.dataclass
class Form:
    """One form of an operator."""

    reads: list[Grid]
    makes: list[Grid]
    options: str = ""
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    version: int = 2
    is_own: bool = False  # sat-tf writes it.
    all_codes: bool = False  # The only input has each code.
    limit: int = 0  # Inputs of places are below this.
    avoids: int | None = None  # A code that the second input does not have.


def grid(rng: Rng) -> tuple[float, int]:
    """A scale and a zero point; every second scale is a power of two, which makes halves."""
    scale = float(rng.choice([rng.uniform(0.004, 0.2), 2.0 ** -rng.integers(2, 8)]))
    return scale, int(rng.choice([-128, 0, 127, *rng.integers(-128, 128, 3)]))


def near(rng: Rng, scale: float, factor: float = 1.0) -> tuple[float, int]:
    """A grid whose scale is of the size of another one."""
    ratio = rng.choice([rng.uniform(0.2, 5.0), *(0.25, 0.5, 1.0, 1.5, 2.0)])
    return float(scale * factor * ratio), int(rng.integers(-128, 128))


def codes(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Stored integers: of any size, small ones, or the extremes alone."""
    ends = rng.choice([-128, 127], shape)
    small = np.clip(rng.integers(-128, 128) + rng.integers(-3, 4, shape), -128, 127)
    return rng.choice([rng.integers(-128, 128, shape), small, ends]).astype(np.int8)


def sizes(rng: Rng, axes: int = 4, most: int = 6) -> tuple[int, ...]:
    return (1, *map(int, rng.integers(1, most + 1, axes - 1)))


def function(name: str, rng: Rng) -> Form:
    scale, zero_point = grid(rng)
    if name in ("LOG", "SQRT", "RSQRT"):  # kernels take no negative values
        zero_point = -128
    made = near(rng, scale, 8.0 if name == "EXP" else 1.0)
    if fixed := FIXED_GRIDS.get(name):
        made = float(fixed.scale), fixed.zero_point
    settings = {"alpha": float(rng.choice([0.01, 0.2, 1.0])), "approximate": bool(rng.integers(2))}
    row = {row.name: row for row in native.ROWS}[name]
    values = {option: settings[option] for option in row.options}
    own = row.written is not None and row.problem(np.float32(scale), np.float32(made[0])) is None
    options = row.written.schema if row.written else ""
    shape = (1, 16, 16, 1)
    form = Form([Grid(shape, scale, zero_point)], [Grid(shape, *made)], options, values, 1, own)
    if name == "TANH":  # next to a half, the last bit of C's library decides
        real = np.tanh((np.arange(-128, 128) - zero_point) * np.float64(scale)) / made[0]
        if np.min(np.abs(real - np.floor(real) - 0.5)) < 1e-4:
            return function(name, rng)
    form.all_codes = True
    return form


def pair(name: str, rng: Rng) -> Form:
    """Two tensors, or one and a constant, each of which may be broadcast."""
    shape = sizes(rng)
    other = tuple(int(size) if rng.integers(4) else 1 for size in shape)
    scale, zero_point = grid(rng)
    selects = name in ("MAXIMUM", "MINIMUM")
    first = second = made = (scale, zero_point)
    if not selects:
        second = near(rng, scale)
        factor = {"MUL": 40 * second[0], "DIV": 0.1 / second[0]}.get(name, 1.0)
        made = near(rng, scale, factor)
    read = [Grid(shape, *first), Grid(other, *second)]
    values = codes(rng, other)
    if name == "DIV":  # kernels refuse a divisor of 0
        values = np.where(values == second[1], values - 1 if second[1] > -128 else 1, values)
    is_constant = bool(rng.integers(2))
    if is_constant:
        read[1] = constant(values, *second)
    if name != "DIV" and rng.integers(2):
        read.reverse()
    options = "MaximumMinimum" if selects else name.title().replace("_", "")
    fused = int(rng.choice([0, 1, 2, 3]))
    can_fuse = not selects and name != "SQUARED_DIFFERENCE"
    values = {"fusedActivationFunction": fused} if can_fuse else {}
    form = Form(read, [Grid(shape, *made)], f"{options}Options", values)
    form.is_own = selects or (fused in (0, 1) and can_fuse and name != "DIV")
    form.avoids = read[1].zero_point if name == "DIV" and not is_constant else None
    return form


def moved(
    rng: Rng,
    reads: list[Any],
    makes: Any,
    options: str = "",
    *,
    is_own: bool = False,
    version: int = 1,
    limit: int = 0,
    **values: Any,
) -> Form:
    """A move, on a random grid: tuples are shapes of tensors, lists are constants of numbers.

    A set of one shape is a constant of codes, and the text "places" a vector of places below
    `limit`.
    """
    where = grid(rng)

    def read(one: Any) -> Grid:
        if isinstance(one, tuple):
            return Grid(one, *where)
        if isinstance(one, set):
            return constant(codes(rng, *one), *where)
        if isinstance(one, str):
            return Grid((3,), None, type="INT32")
        array = np.asarray(one)
        return Grid(array.shape, None, 0, array, "BOOL") if array.dtype == bool else constant(array)

    made = [Grid(one, *where) for one in (makes if isinstance(makes, list) else [makes])]
    read_grids = [read(one) for one in reads]
    return Form(read_grids, made, options, values, version, is_own, limit=limit)


def from_end(rng: Rng, axis: int, count: int) -> int:
    """An axis, counted from either end."""
    return axis - count * int(rng.integers(2))


def reshaped(rng: Rng) -> Form:
    shape = sizes(rng)
    new = [(1, *shape[1:2], int(np.prod(shape[2:]))), (int(np.prod(shape)),), (*shape[::-1],)]
    made = new[rng.integers(3)]
    return moved(rng, [shape, list(made)], made, is_own=made[0] == 1)


def squeezed(rng: Rng) -> Form:
    axis, shape = int(rng.integers(4)), list(sizes(rng))
    shape[axis] = 1
    made = tuple(np.delete(shape, axis))
    options = {"squeezeDims": [from_end(rng, axis, 4)]}
    return moved(rng, [tuple(shape)], made, "SqueezeOptions", **options)


def expanded(rng: Rng) -> Form:
    axis, shape = int(rng.integers(5)), sizes(rng)
    made = (*shape[:axis], 1, *shape[axis:])
    return moved(rng, [shape, [from_end(rng, axis, 5)]], made, "ExpandDimsOptions")


def transposed(rng: Rng) -> Form:
    shape, order = sizes(rng), rng.permutation(4).tolist()
    made = tuple(shape[axis] for axis in order)
    return moved(rng, [shape, order], made, "TransposeOptions", is_own=order[0] == 0, version=2)


def sliced(rng: Rng) -> Form:
    shape = sizes(rng)
    begin = [int(rng.integers(size)) for size in shape]
    left = [size - start for size, start in zip(shape, begin, strict=True)]
    made = tuple(int(rng.integers(1, most + 1)) for most in left)
    rest = [
        -1 if count == most and rng.integers(2) else count
        for count, most in zip(made, left, strict=True)
    ]
    return moved(rng, [shape, begin, rest], made, "SliceOptions")


def strided(rng: Rng) -> Form:
    """Of each axis a slice, or one place; masks take bounds away, and add an axis."""
    shape, masks = sizes(rng), dict.fromkeys(("beginMask", "endMask", "shrinkAxisMask"), 0)
    bounds: list[tuple[int, int, int]] = []
    made: list[int] = []
    keeps_batch = bool(rng.integers(2))
    for axis, size in enumerate(shape):
        begin, step = int(rng.integers(-size, size)), int(rng.choice([1, 1, 2, 3, -1, -2]))
        end = int(rng.integers(-size - 2, size + 3))
        ends = rng.integers(2), rng.integers(2)
        if axis == 0 and keeps_batch:
            begin, end, step, ends = 0, 0, 1, (1, 1)
        elif rng.integers(4) == 0:  # one place
            step = abs(step)
            masks["shrinkAxisMask"] |= 1 << axis
        first, last = (None if ends[0] else begin), (None if ends[1] else end)
        count = len(range(size)[slice(first, last, step)])
        if not masks["shrinkAxisMask"] >> axis & 1:
            if not count:
                ends, count = (1, 1), len(range(size)[::step])
            made.append(count)
        masks["beginMask"] |= int(ends[0]) << axis
        masks["endMask"] |= int(ends[1]) << axis
        bounds.append((begin, end, step))
    numbers = [list(column) for column in zip(*bounds, strict=True)]
    if rng.integers(3) == 0:
        masks = {name: mask << 1 for name, mask in masks.items()}
        masks["newAxisMask"], numbers = 1, [[0, *numbers[0]], [1, *numbers[1]], [1, *numbers[2]]]
        made = [1, *made]
    is_own = keeps_batch and "newAxisMask" not in masks
    made_shape, options = tuple(made), "StridedSliceOptions"
    return moved(rng, [shape, *numbers], made_shape, options, is_own=is_own, **masks)


def tiled(rng: Rng) -> Form:
    shape, counts = sizes(rng), rng.integers(1, 4, 4).tolist()
    return moved(rng, [shape, counts], tuple(np.multiply(shape, counts).tolist()), "TileOptions")


def spread(rng: Rng) -> Form:
    made = sizes(rng, int(rng.integers(2, 6)))
    shape = tuple(size if rng.integers(2) else 1 for size in made)
    return moved(rng, [shape, list(made)], made, "BroadcastToOptions", version=2)


def reversed_axis(rng: Rng) -> Form:
    shape, axis = sizes(rng), int(rng.integers(4))
    return moved(rng, [shape, [axis]], shape, "ReverseV2Options")


def gathered(rng: Rng) -> Form:
    shape, batch = sizes(rng), int(rng.choice([0, 0, 1, 2]))
    axis, more = int(rng.integers(batch, 4)), sizes(rng, int(rng.integers(1, 4)))[1:]
    where = rng.integers(shape[axis], size=(*shape[:batch], *more))
    made = (*shape[:axis], *more, *shape[axis + 1 :])
    values = {"axis": from_end(rng, axis, 4), "batchDims": batch}
    if batch and more:
        values["batchDims"] -= where.ndim * int(rng.integers(2))
    is_own = not batch and axis > 0
    return moved(rng, [shape, where], made, "GatherOptions", is_own=is_own, **values)


def gathered_nd(rng: Rng) -> Form:
    shape, depth = sizes(rng), int(rng.integers(1, 5))
    more = sizes(rng, int(rng.integers(2, 4)))
    where = rng.integers(shape[:depth], size=(*more, depth))
    return moved(rng, [shape, where], (*more, *shape[depth:]), "GatherNdOptions")


def looked_up(rng: Rng) -> Form:
    """Rows of a tensor at constant places, or of a table at those that the file is given."""
    if rng.integers(2):
        shape = sizes(rng, int(rng.integers(2, 5)))
        return moved(rng, [[0] * 3, shape], (3, *shape[1:]))
    rows, *rest = map(int, rng.integers(1, 7, int(rng.integers(2, 4))))
    return moved(rng, ["places", {(rows, *rest)}], (3, *rest), limit=rows)


def chosen(name: str, rng: Rng) -> Form:
    shape = sizes(rng)
    where = tuple(size if rng.integers(2) else 1 for size in shape)[rng.integers(4) :]
    if name == "SELECT":  # Its condition is one for each value, for each of the first axis, or one.
        shape = (int(rng.integers(1, 3)), *shape[1:])
        where = [shape, shape[:1], ()][rng.integers(3)]
    reads = [shape, {shape}] if rng.integers(2) else [{shape}, shape]
    options = "SelectOptions" if name == "SELECT" else "SelectV2Options"
    return moved(rng, [rng.integers(2, size=where).astype(bool), *reads], shape, options)


def updated(rng: Rng) -> Form:
    shape = sizes(rng)
    update = tuple(int(rng.integers(1, size + 1)) for size in shape)
    start = [int(rng.integers(-1, size + 1)) for size in shape]
    return moved(rng, [shape, update, start], shape, "DynamicUpdateSliceOptions")


def padded(name: str, rng: Rng) -> Form:
    shape, values = sizes(rng), dict[str, Any]()
    margins = [[0, 0], *rng.integers(0, 4, (3, 2)).tolist()]
    if name == "MIRROR_PAD":
        values["mode"] = int(rng.integers(2))
        most = [size - 1 + values["mode"] for size in shape]
        margins = [[min(one, top) for one in two] for two, top in zip(margins, most, strict=True)]
    made = tuple(size + sum(two) for size, two in zip(shape, margins, strict=True))
    options = {"PAD": "PadOptions", "PADV2": "PadV2Options"}.get(name, "MirrorPadOptions")
    fill = [{()}] if name == "PADV2" else []
    return moved(rng, [shape, margins, *fill], made, options, is_own=name == "PAD", **values)


def to_batch(rng: Rng) -> Form:
    axes, (block, before) = int(rng.integers(1, 3)), rng.integers(1, 4, (2, 2))
    block, before = block[:axes], before[:axes] - 1
    counts = rng.integers(1, 4, axes)
    after = np.minimum(rng.integers(0, 3, axes), counts * block - 1)
    before = np.minimum(before, counts * block - 1 - after)
    channels = int(rng.integers(1, 5))
    shape = (1, *map(int, counts * block - before - after), channels)
    made = (int(np.prod(block)), *map(int, counts), channels)
    margins = np.stack([before, after], axis=1)
    return moved(rng, [shape, block, margins], made, "SpaceToBatchNDOptions", version=1)


def from_batch(rng: Rng) -> Form:
    axes, channels = int(rng.integers(1, 3)), int(rng.integers(1, 5))
    counts = rng.integers(2, 6, axes)
    cuts = rng.integers(0, 2, (axes, 2))
    cuts[:, 1] = np.minimum(cuts[:, 1], counts - 1 - cuts[:, 0])
    made = (1, *map(int, counts - cuts.sum(1)), channels)
    shape = (1, *map(int, counts), channels)
    return moved(rng, [shape, [1] * axes, cuts], made, "BatchToSpaceNDOptions")


def extreme(name: str, rng: Rng) -> Form:
    shape, keeps = sizes(rng), bool(rng.integers(2))
    axes = rng.choice(4, rng.integers(1, 4), replace=False)
    made = np.sum(np.empty(shape), axis=tuple(axes.tolist()), keepdims=keeps).shape
    is_own = name == "REDUCE_MAX" and 0 not in axes
    numbers = axes - 4 * int(rng.integers(2))
    return moved(rng, [shape, numbers], made, "ReducerOptions", is_own=is_own, keepDims=keeps)


def nearest(rng: Rng) -> Form:
    shape, size = sizes(rng), rng.integers(1, 12, 2).tolist()
    how = ({}, {"alignCorners": True}, {"halfPixelCenters": True})[rng.integers(3)]
    made, options = (1, *size, shape[3]), "ResizeNearestNeighborOptions"
    return moved(rng, [shape, size], made, options, is_own="halfPixelCenters" in how, **how)


def blocks(name: str, rng: Rng) -> Form:
    _, rows, columns, channels = sizes(rng)
    block = int(rng.integers(1, 4))
    flat = (1, rows * block, columns * block, channels)
    deep = (1, rows, columns, channels * block**2)
    shape, made = (deep, flat) if name == "DEPTH_TO_SPACE" else (flat, deep)
    options = "DepthToSpaceOptions" if shape is deep else "SpaceToDepthOptions"
    return moved(rng, [shape], made, options, is_own=True, blockSize=block)


def split(name: str, rng: Rng) -> Form:
    axis, shape, count = int(rng.integers(1, 4)), list(sizes(rng)), int(rng.integers(1, 4))
    parts = rng.integers(1, 4, count)
    if name == "SPLIT":
        parts[:] = parts[0]
    shape[axis] = int(parts.sum())
    made = [(*shape[:axis], int(part), *shape[axis + 1 :]) for part in parts]
    place = from_end(rng, axis, 4)
    if name == "SPLIT":
        return moved(rng, [place, tuple(shape)], made, "SplitOptions", numSplits=count)
    if rng.integers(2):
        parts[rng.integers(count)] = -1
    return moved(rng, [tuple(shape), parts, place], made, "SplitVOptions", numSplits=count)


def unpacked(rng: Rng) -> Form:
    shape, axis = sizes(rng), int(rng.integers(4))
    made = [(*shape[:axis], *shape[axis + 1 :])] * shape[axis]
    values = {"axis": from_end(rng, axis, 4), "num": shape[axis]}
    return moved(rng, [shape], made, "UnpackOptions", **values)


def packed(rng: Rng) -> Form:
    shape, axis, count = sizes(rng, 3), int(rng.integers(4)), int(rng.integers(1, 4))
    reads = [shape, *({shape} if rng.integers(2) else shape for _ in range(count - 1))]
    made = (*shape[:axis], count, *shape[axis:])
    values = {"axis": from_end(rng, axis, 4), "valuesCount": count}
    return moved(rng, reads, made, "PackOptions", **values)


def joined(rng: Rng) -> Form:
    """Along any axis, with a constant or of tensors alone."""
    shape, axis, count = sizes(rng), int(rng.integers(4)), int(rng.integers(2, 4))
    lengths = rng.integers(1, 4, count)
    shapes = [(*shape[:axis], int(one), *shape[axis + 1 :]) for one in lengths]
    has_constant = bool(rng.integers(2))
    reads = [shapes[0], *({one} if has_constant else one for one in shapes[1:])]
    rng.shuffle(order := np.arange(count))
    made = (*shape[:axis], int(lengths.sum()), *shape[axis + 1 :])
    reads, is_own = [reads[index] for index in order], not has_constant and axis > 0
    place = from_end(rng, axis, 4)
    return moved(rng, reads, made, "ConcatenationOptions", is_own=is_own, axis=place)


def cast(rng: Rng) -> Form:
    shape = sizes(rng)
    return moved(rng, [shape], shape, "CastOptions", inDataType=9, outDataType=9)


MOVES: dict[str, Callable[[Rng], Form]] = {
    "RESHAPE": reshaped,
    "SQUEEZE": squeezed,
    "EXPAND_DIMS": expanded,
    "TRANSPOSE": transposed,
    "SLICE": sliced,
    "STRIDED_SLICE": strided,
    "TILE": tiled,
    "BROADCAST_TO": spread,
    "REVERSE_V2": reversed_axis,
    "GATHER": gathered,
    "GATHER_ND": gathered_nd,
    "EMBEDDING_LOOKUP": looked_up,
    **{name: functools.partial(chosen, name) for name in ("SELECT", "SELECT_V2")},
    "DYNAMIC_UPDATE_SLICE": updated,
    **{name: functools.partial(padded, name) for name in ("PAD", "PADV2", "MIRROR_PAD")},
    "SPACE_TO_BATCH_ND": to_batch,
    "BATCH_TO_SPACE_ND": from_batch,
    **{name: functools.partial(extreme, name) for name in ("REDUCE_MAX", "REDUCE_MIN")},
    "RESIZE_NEAREST_NEIGHBOR": nearest,
    **{name: functools.partial(blocks, name) for name in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")},
    **{name: functools.partial(split, name) for name in ("SPLIT", "SPLIT_V")},
    "UNPACK": unpacked,
    "PACK": packed,
    "CONCATENATION": joined,
    "CAST": cast,
}
SMALL = (1, 4, 6, 4)


def pool(rng: Rng) -> Form:
    size, strides = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    where, fused = grid(rng), int(rng.choice([0, 0, 1, 3]))
    made = [-(-length // stride) for length, stride in zip(SMALL[1:3], strides, strict=True)]
    names = ("strideH", "strideW", "filterHeight", "filterWidth")
    values = dict(zip(names, map(int, (*strides, *size)), strict=True))
    values |= {"padding": 0, "fusedActivationFunction": fused}
    output = Grid((1, *map(int, made), 4), *where)
    return Form([Grid(SMALL, *where)], [output], "Pool2DOptions", values, is_own=not fused)


def resized(rng: Rng) -> Form:
    where, (rows, columns) = grid(rng), map(int, rng.integers(1, 12, 2))
    how = ({}, {"alignCorners": True}, {"halfPixelCenters": True})[rng.integers(3)]
    read, made = Grid(SMALL, *where), Grid((1, rows, columns, 4), *where)
    size = constant([rows, columns])
    return Form([read, size], [made], "ResizeBilinearOptions", how, is_own=True)


def reduced(name: str, rng: Rng) -> Form:
    shape, (scale, zero_point) = sizes(rng), grid(rng)
    axes = rng.choice(4, rng.integers(1, 4), replace=False)
    if name == "MEAN" and rng.integers(2):
        axes = np.array([1, 2])
    keeps = bool(rng.integers(2))
    empty = np.empty(shape)
    made = np.sum(empty, axis=tuple(map(int, axes)), keepdims=keeps).shape
    count = empty.size // max(int(np.prod(made)), 1)
    factor = {"SUM": count / 2, "REDUCE_PROD": 2.0}.get(name, 1.0)
    places = axes - 4 * rng.integers(2)
    is_own = name == "MEAN" and places.tolist() == [1, 2]
    reads, output = [Grid(shape, scale, zero_point), constant(places)], near(rng, scale, factor)
    values = {"keepDims": keeps}
    return Form(reads, [Grid(made, *output)], "ReducerOptions", values, is_own=is_own)


def matrices(rng: Rng) -> Form:
    rows, depth, columns = map(int, rng.integers(1, 12, 3))
    turned = {"adjX": bool(rng.integers(2)), "adjY": bool(rng.integers(2))}
    scale, zero_point = grid(rng)
    first = (1, 3, depth, rows) if turned["adjX"] else (1, 3, rows, depth)
    other = (1, 3, columns, depth) if turned["adjY"] else (1, 3, depth, columns)
    second = near(rng, 0.02)
    made = near(rng, scale, 8.0 * second[0] / 0.05)
    factor = constant(codes(rng, other), *second) if rng.integers(2) else Grid(other, *second)
    reads, output = [Grid(first, scale, zero_point), factor], Grid((1, 3, rows, columns), *made)
    return Form(reads, [output], "BatchMatMulOptions", turned)


def linear(name: str, rng: Rng) -> Form:
    """Kernels with one scale or several, and with a bias or without."""
    inputs, outputs = int(rng.integers(1, 10)), int(rng.integers(1, 20))
    scale, zero_point = grid(rng)
    size, strides = tuple(map(int, rng.integers(1, 4, 2))), tuple(map(int, rng.integers(1, 3, 2)))
    is_matrix, is_depthwise = name == "FULLY_CONNECTED", name == "DEPTHWISE_CONV_2D"
    if is_depthwise:
        outputs = inputs * int(rng.integers(1, 3))
    axis = 3 if is_depthwise else 0
    shapes = {"FULLY_CONNECTED": (outputs, inputs), "DEPTHWISE_CONV_2D": (1, *size, outputs)}
    kernel = rng.integers(-127, 128, shapes.get(name, (outputs, *size, inputs)))
    several = not is_matrix and bool(rng.integers(2))
    scales = rng.uniform(0.001, 0.02, outputs if several else 1).astype(np.float32)
    weights = constant(kernel, scales, axis=axis)
    made = near(rng, scale, 0.3 * float(np.max(scales)) / 0.02)
    fused = int(rng.choice([0, 1, 3]))
    values: dict[str, Any] = {"fusedActivationFunction": fused}
    bias = rng.integers(-2000, 2000, outputs).astype(np.int32)
    unit = np.float32(scale) * scales
    reads = [Grid((1, 5, 6, inputs), scale, zero_point), weights]
    has_bias = bool(rng.integers(2)) or not (is_matrix or name == "TRANSPOSE_CONV")
    if has_bias:
        reads.append(Grid(bias.shape, unit, 0, bias, "INT32"))
    is_own = has_bias and fused != 3
    if is_matrix:
        keeps = bool(rng.integers(2))
        values["keepNumDims"] = keeps
        shape = (1, 5, 6, outputs) if keeps else (30, outputs)
        is_own, output = is_own and keeps, Grid(shape, *made)
        return Form(reads, [output], "FullyConnectedOptions", values, 5, is_own)
    values |= {"padding": int(rng.integers(2)), "strideH": strides[0], "strideW": strides[1]}
    if name == "TRANSPOSE_CONV":
        values.pop("fusedActivationFunction")
        more = [0, 0] if values["padding"] == 0 else np.maximum(np.subtract(size, strides), 0)
        shape = (1, *(np.multiply((5, 6), strides) + more).tolist(), outputs)
        reads = [constant(shape), weights, reads[0], *reads[2:]]
        return Form(reads, [Grid(shape, *made)], "TransposeConvOptions", values, 3, has_bias)
    if is_depthwise:
        values["depthMultiplier"] = outputs // inputs
    taken = size if values["padding"] else (1, 1)
    places = ((np.array((5, 6)) - taken) // strides + 1).tolist()
    options = f"{'DepthwiseConv2D' if is_depthwise else 'Conv2D'}Options"
    return Form(reads, [Grid((1, *places, outputs), *made)], options, values, 3, is_own)


def sloped(rng: Rng) -> Form:
    scale, zero_point = grid(rng)
    slopes = codes(rng, (1, 1, 4)) if rng.integers(2) else codes(rng, SMALL[1:])
    reads = Grid(SMALL, scale, zero_point), constant(slopes, float(rng.uniform(0.0005, 0.02)))
    return Form([*reads], [Grid(SMALL, *near(rng, scale))], version=1, is_own=True)


def of_rows(name: str, options: str, rng: Rng, *, is_own: bool = False) -> Form:
    """A function of every row of a tensor, on a grid that TFLite fixes."""
    shape = (1, int(rng.integers(1, 9)), int(rng.choice([1, 4, 16, 200])))
    row = {row.name: row.grid for row in arithmetic.ROWS}
    made = row.get(name) or FIXED_GRIDS[name]
    beta = float(rng.choice([1.0, 1.0, 0.5, rng.uniform(0.01, 8.0)]))
    values = {"beta": beta} if name == "SOFTMAX" else {}
    output = Grid(shape, float(made.scale), made.zero_point)
    is_own = is_own and beta == 1.0
    return Form([Grid(shape, *grid(rng))], [output], options, values, is_own=is_own)


def requantized(rng: Rng) -> Form:
    read = Grid((1, 16, 16, 1), *grid(rng))
    made = Grid(read.shape, *near(rng, read.scale))
    return Form([read], [made], is_own=True, all_codes=True)


def dequantized(rng: Rng) -> Form:
    shape = (1, 16, 16, 1)
    made = Grid(shape, None, type="FLOAT32")
    return Form([Grid(shape, *grid(rng))], [made], is_own=True, all_codes=True)


FORMS: dict[str, Callable[[Rng], Form]] = {
    **{row.name: functools.partial(function, row.name) for row in native.ROWS},
    **{
        name: functools.partial(pair, name)
        for name in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    },
    **MOVES,
    **{name: functools.partial(reduced, name) for name in ("MEAN", "SUM", "REDUCE_PROD")},
    **{
        name: functools.partial(linear, name)
        for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED")
    },
    "MAX_POOL_2D": pool,
    "AVERAGE_POOL_2D": pool,
    "RESIZE_BILINEAR": resized,
    "BATCH_MATMUL": matrices,
    "PRELU": sloped,
    "SOFTMAX": functools.partial(of_rows, "SOFTMAX", "SoftmaxOptions", is_own=True),
    "LOG_SOFTMAX": functools.partial(of_rows, "LOG_SOFTMAX", "LogSoftmaxOptions"),
    "L2_NORMALIZATION": functools.partial(of_rows, "L2_NORMALIZATION", "L2NormOptions"),
    "QUANTIZE": requantized,
    "DEQUANTIZE": dequantized,
}


def test_every_operator_has_a_form_here():
    assert set(FORMS) == {name for operation in OPERATIONS for name in operation.reads}
    assert set(MOVES) >= {row.name for row in movements.ROWS}


def assert_read_as_written(graph: Graph) -> None:
    """Writes an operation behind inputs of codes, and reads it back."""
    images = tuple(dataclasses.replace(read, name=f"image of {read.name}") for read in graph.images)
    first = [ShiftImage((f"image of {read.name}",), read.name) for read in graph.images]
    own = dataclasses.replace(graph, operations=(*first, *graph.operations), images=images)
    content = serialize(own, {})
    found = read_graph(content, "one")
    assert [type(one) for one in found.operations] == [type(one) for one in own.operations]
    for name, tensor in own.tensors.items():
        assert found.tensors[name].codes == tensor.codes
    assert serialize(found, {}) == content


# The ends of activations, by the numbers of those that are fused and by the names of operators.
ENDS = {2: 1.0, 3: 6.0, "RELU_N1_TO_1": 1.0, "RELU6": 6.0, "RELU_0_TO_1": 1.0}


def ends_at_half_a_code(name: str, form: Form) -> bool:
    """Whether an activation ends between two codes, of which kernels do not take the same one."""
    end = ENDS.get(form.values.get("fusedActivationFunction", 0), ENDS.get(name))
    return end is not None and abs(end / form.makes[0].scale % 1.0 - 0.5) < 1e-4


def check(name: str, seed: int) -> None:
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    form = FORMS[name](rng)
    while ends_at_half_a_code(name, form):
        form = FORMS[name](rng)
    content = file_of(
        name, form.reads, form.makes, version=form.version, options=form.options, **form.values
    )
    inputs = [read for read in form.reads if read.values is None]

    def drawn(read: Grid) -> np.ndarray:
        if read.type == "INT8":
            return codes(rng, read.shape)
        return rng.integers(form.limit, size=read.shape, dtype=np.int32)

    images = [tuple(map(drawn, inputs)) for _ in range(2)]
    if form.avoids is not None:
        for arrays in images:
            arrays[1][arrays[1] == form.avoids] = form.avoids - 1 if form.avoids > -128 else 1
    if form.all_codes:
        images = [(np.arange(-128, 128).astype(np.int8).reshape(inputs[0].shape),)]
    graph = assert_as_in_litert(content, images)
    if form.is_own:
        assert_read_as_written(graph)


def test_a_table_is_read_back_as_it_was_written():
    """Of a CAST, an ADD and a GATHER."""
    rng = np.random.default_rng(0)
    source, output = Codes(np.float32(0.1), 3), Codes(np.float32(0.2), -5, -100, 90)
    table = np.append(rng.integers(-100, 91, 254), [-100, 90]).astype(np.int8)
    tensors = {"x": Tensor("x", (4, 3), source), "y": Tensor("y", (4, 3), output)}
    image = Image("x", (4, 3), source.scale, source.zero_point, type="int8")
    graph = Graph("one", tensors, (native.Lookup(("x",), "y", table),), (image,), "y")
    assert_read_as_written(graph)


@pytest.mark.parametrize("name", FORMS)
def test_an_operator_computes_in_every_runtime_what_is_simulated(name):
    for seed in range(4):
        check(name, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMS)
def test_an_operator_computes_in_every_runtime_what_is_simulated_in_many_forms(name):
    for seed in range(4, 100):
        check(name, seed)
