"""Every operator in random forms: each code of every runtime here is the one that is simulated.

What sat-tf writes itself is read back as it was written.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sat_tf.exact.operations import arithmetic, native
from sat_tf.exact.operations.conversions import ShiftImage
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import OPERATIONS, read_graph, serialize
from sat_tf.exact.operations.native import FIXED_GRIDS
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor
from tests.exact.foreign.one_operator import Grid, assert_as_in_litert, constant, file_of

Rng = np.random.Generator
EACH, SMALL = (1, 16, 16, 1), (1, 4, 6, 4)  # the first has a place for each code


@dataclasses.dataclass
class Form:
    """One form of an operator."""

    reads: Sequence[Grid]
    makes: Sequence[Grid]
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    version: int = 2
    is_own: bool = False  # sat-tf writes it.
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
    """Stored integers: of any size, close to each other, or the extremes alone."""
    ends, spread = rng.choice([-128, 127], shape), int(rng.choice([3, 20]))
    close = rng.integers(-128, 128) + rng.integers(-spread, spread + 1, shape)
    several = [rng.integers(-128, 128, shape), np.clip(close, -128, 127), ends]
    return rng.choice(several).astype(np.int8)


def sizes(rng: Rng, axes: int = 4, most: int = 6) -> tuple[int, ...]:
    return (1, *map(int, rng.integers(1, most + 1, axes - 1)))


def function(name: str, rng: Rng) -> Form:
    """A function of each code."""
    scale, zero_point = grid(rng)
    if name in ("LOG", "SQRT", "RSQRT"):  # kernels take no negative values
        zero_point = -128
    made = near(rng, scale, 8.0 if name == "EXP" else 1.0)
    if fixed := FIXED_GRIDS.get(name):
        made = float(fixed.scale), fixed.zero_point
    if name == "TANH":  # next to a half, the last bit of C's library decides
        real = np.tanh((np.arange(-128, 128) - zero_point) * np.float64(scale)) / made[0]
        if np.min(np.abs(real - np.floor(real) - 0.5)) < 1e-4:
            return function(name, rng)
    settings = {"alpha": float(rng.choice([0.01, 0.2, 1.0])), "approximate": bool(rng.integers(2))}
    (row,) = (row for row in native.ROWS if row.name == name)
    values = {option: settings[option] for option in row.options}
    is_own = row.written is not None and row.problem(np.float32(scale), np.float32(made[0])) is None
    return Form([Grid(EACH, scale, zero_point)], [Grid(EACH, *made)], values, 1, is_own)


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
    fused = int(rng.choice([0, 1, 2, 3]))
    can_fuse = not selects and name != "SQUARED_DIFFERENCE"
    form = Form(read, [Grid(shape, *made)], {"fusedActivationFunction": fused} if can_fuse else {})
    form.is_own = selects or (fused in (0, 1) and can_fuse and name != "DIV")
    form.avoids = read[1].zero_point if name == "DIV" and not is_constant else None
    return form


def moved(rng, reads, makes, *, is_own=False, version=1, limit=0, **values) -> Form:
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
    return Form([read(one) for one in reads], made, values, version, is_own, limit)


def from_end(rng: Rng, axis: int, count: int) -> int:
    """An axis, counted from either end."""
    return axis - count * int(rng.integers(2))


def resizing(rng: Rng) -> dict[str, bool]:
    how = rng.integers(3)
    return {"alignCorners": how == 1, "halfPixelCenters": how == 2}


def rearranged(name: str, rng: Rng) -> Form:
    """Values in another order or shape, or several times."""
    shape, axis = sizes(rng), int(rng.integers(4))
    place, rest = from_end(rng, axis, 4), tuple(np.delete(shape, axis).tolist())
    match name:
        case "RESHAPE":
            flat = (1, shape[1], math.prod(shape[2:])), (math.prod(shape),)
            made = (*flat, shape[::-1])[rng.integers(3)]
            return moved(rng, [shape, list(made)], made, is_own=made[0] == 1)
        case "SQUEEZE":
            read = (*shape[:axis], 1, *shape[axis + 1 :])
            return moved(rng, [read], rest, squeezeDims=[place])
        case "EXPAND_DIMS":
            axis = int(rng.integers(5))
            made = (*shape[:axis], 1, *shape[axis:])
            return moved(rng, [shape, [from_end(rng, axis, 5)]], made)
        case "TRANSPOSE":
            order = rng.permutation(4).tolist()
            made = tuple(shape[axis] for axis in order)
            return moved(rng, [shape, order], made, is_own=order[0] == 0, version=2)
        case "TILE":
            counts = rng.integers(1, 4, 4)
            return moved(rng, [shape, counts], tuple((shape * counts).tolist()))
        case "BROADCAST_TO":
            made = sizes(rng, int(rng.integers(2, 6)))
            read = tuple(size if rng.integers(2) else 1 for size in made)
            return moved(rng, [read, list(made)], made, version=2)
        case "UNPACK":
            return moved(rng, [shape], [rest] * shape[axis], axis=place, num=shape[axis])
        case "PACK":
            read, count = sizes(rng, 3), int(rng.integers(1, 4))
            reads = [read, *({read} if rng.integers(2) else read for _ in range(count - 1))]
            made = (*read[:axis], count, *read[axis:])
            return moved(rng, reads, made, axis=place, valuesCount=count)
        case "DEPTH_TO_SPACE" | "SPACE_TO_DEPTH":
            block = int(rng.integers(1, 4))
            flat = (1, shape[1] * block, shape[2] * block, shape[3])
            deep = (*shape[:3], shape[3] * block**2)
            read, made = (deep, flat) if name == "DEPTH_TO_SPACE" else (flat, deep)
            return moved(rng, [read], made, is_own=True, blockSize=block)
        case "RESIZE_NEAREST_NEIGHBOR":
            size, how = rng.integers(1, 12, 2).tolist(), resizing(rng)
            is_own, made = how["halfPixelCenters"], (1, *size, shape[3])
            return moved(rng, [shape, size], made, is_own=is_own, **how)
        case "REVERSE_V2":
            return moved(rng, [shape, [axis]], shape)
    return moved(rng, [shape], shape, inDataType=9, outDataType=9)  # CAST


def selected(name: str, rng: Rng) -> Form:
    """Values of some places, or some of several values."""
    shape, more = sizes(rng), sizes(rng, int(rng.integers(1, 4)))
    match name:
        case "SLICE":
            begin = rng.integers(shape)
            made = rng.integers(1, shape - begin + 1)
            to_the_end = (begin + made == shape) & (rng.integers(2, size=4) == 1)
            counts = np.where(to_the_end, -1, made)
            return moved(rng, [shape, begin, counts], tuple(made.tolist()))
        case "DYNAMIC_UPDATE_SLICE":
            update = tuple(rng.integers(1, np.add(shape, 1)).tolist())
            return moved(rng, [shape, update, rng.integers(-1, np.add(shape, 1))], shape)
        case "GATHER":
            batch = int(rng.choice([0, 0, 1, 2]))
            axis = int(rng.integers(batch, 4))
            where = rng.integers(shape[axis], size=(*shape[:batch], *more[1:]))
            made = (*shape[:axis], *more[1:], *shape[axis + 1 :])
            values = {"axis": from_end(rng, axis, 4), "batchDims": batch}
            if batch and len(more) > 1:
                values["batchDims"] -= where.ndim * int(rng.integers(2))
            is_own = not batch and axis > 0
            return moved(rng, [shape, where], made, is_own=is_own, **values)
        case "GATHER_ND":
            depth = int(rng.integers(1, 5))
            where = rng.integers(shape[:depth], size=(*more, depth))
            return moved(rng, [shape, where], (*more, *shape[depth:]))
        case "EMBEDDING_LOOKUP" if rng.integers(2):  # rows of a tensor, at constant places
            return moved(rng, [[0] * 3, shape], (3, *shape[1:]))
        case "EMBEDDING_LOOKUP":  # of a table, at those that the file is given
            return moved(rng, ["places", {shape[1:]}], (3, *shape[2:]), limit=shape[1])
        case "SELECT":  # Its condition is one for each value, for each of the first axis, or one.
            shape = (int(rng.integers(1, 3)), *shape[1:])
            where = [shape, shape[:1], ()][rng.integers(3)]
        case "SELECT_V2":
            where = tuple(size if rng.integers(2) else 1 for size in shape)[rng.integers(4) :]
        case _:  # REDUCE_MAX, REDUCE_MIN
            keeps, axes = bool(rng.integers(2)), rng.choice(4, rng.integers(1, 4), replace=False)
            made = np.sum(np.empty(shape), tuple(axes.tolist()), keepdims=keeps).shape
            is_own, places = name == "REDUCE_MAX" and 0 not in axes, from_end(rng, axes, 4)
            return moved(rng, [shape, places], made, is_own=is_own, keepDims=keeps)
    reads = [shape, {shape}] if rng.integers(2) else [{shape}, shape]
    return moved(rng, [rng.integers(2, size=where).astype(bool), *reads], shape)


def strided(name: str, rng: Rng) -> Form:
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
    return moved(rng, [shape, *numbers], tuple(made), is_own=is_own, **masks)


def padded(name: str, rng: Rng) -> Form:
    shape, margins = sizes(rng), [[0, 0], *rng.integers(0, 4, (3, 2)).tolist()]
    values, fill = {}, [{()}] if name == "PADV2" else []
    if name == "MIRROR_PAD":
        values["mode"] = int(rng.integers(2))
        margins = np.minimum(margins, np.transpose([shape]) - 1 + values["mode"])
    made = tuple((shape + np.sum(margins, axis=1)).tolist())
    return moved(rng, [shape, margins, *fill], made, is_own=name == "PAD", **values)


def in_blocks(name: str, rng: Rng) -> Form:
    """Pixels of blocks as images of a batch, or the reverse."""
    axes, channels = int(rng.integers(1, 3)), int(rng.integers(1, 5))
    if name == "BATCH_TO_SPACE_ND":
        counts, cuts = rng.integers(2, 6, axes), rng.integers(0, 2, (axes, 2))
        cuts[:, 1] = np.minimum(cuts[:, 1], counts - 1 - cuts[:, 0])
        made = (1, *map(int, counts - cuts.sum(1)), channels)
        return moved(rng, [(1, *map(int, counts), channels), [1] * axes, cuts], made)
    block, counts = rng.integers(1, 4, (2, axes))
    after = np.minimum(rng.integers(0, 3, axes), counts * block - 1)
    before = np.minimum(rng.integers(0, 3, axes), counts * block - 1 - after)
    shape = (1, *map(int, counts * block - before - after), channels)
    made = (int(np.prod(block)), *map(int, counts), channels)
    return moved(rng, [shape, block, np.stack([before, after], axis=1)], made)


def split(name: str, rng: Rng) -> Form:
    axis, shape, count = int(rng.integers(1, 4)), list(sizes(rng)), int(rng.integers(1, 4))
    parts = rng.integers(1, 4, count)
    if name == "SPLIT":
        parts[:] = parts[0]
    shape[axis] = int(parts.sum())
    made = [(*shape[:axis], int(part), *shape[axis + 1 :]) for part in parts]
    place = from_end(rng, axis, 4)
    if name == "SPLIT":
        return moved(rng, [place, tuple(shape)], made, numSplits=count)
    if rng.integers(2):
        parts[rng.integers(count)] = -1
    return moved(rng, [tuple(shape), parts, place], made, numSplits=count)


def joined(name: str, rng: Rng) -> Form:
    """Along any axis, with a constant or of tensors alone."""
    shape, axis, lengths = sizes(rng), int(rng.integers(4)), rng.integers(1, 4, rng.integers(2, 4))
    shapes = [(*shape[:axis], int(one), *shape[axis + 1 :]) for one in lengths]
    has_constant = bool(rng.integers(2))
    reads = [shapes[0], *({one} if has_constant else one for one in shapes[1:])]
    reads = [reads[index] for index in rng.permutation(len(reads))]
    made, is_own = (*shape[:axis], int(lengths.sum()), *shape[axis + 1 :]), axis > 0
    return moved(rng, reads, made, is_own=is_own and not has_constant, axis=from_end(rng, axis, 4))


def pool(name: str, rng: Rng) -> Form:
    size, strides = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    where, fused = grid(rng), int(rng.choice([0, 0, 1, 3]))
    made = [-(-length // stride) for length, stride in zip(SMALL[1:3], strides, strict=True)]
    names = ("strideH", "strideW", "filterHeight", "filterWidth")
    values = dict(zip(names, map(int, (*strides, *size)), strict=True))
    values |= {"padding": 0, "fusedActivationFunction": fused}
    output = Grid((1, *map(int, made), 4), *where)
    return Form([Grid(SMALL, *where)], [output], values, is_own=not fused)


def resized(name: str, rng: Rng) -> Form:
    where, size = grid(rng), rng.integers(1, 12, 2).tolist()
    output = Grid((1, *size, 4), *where)
    return Form([Grid(SMALL, *where), constant(size)], [output], resizing(rng), is_own=True)


def reduced(name: str, rng: Rng) -> Form:
    shape, (scale, zero_point) = sizes(rng), grid(rng)
    axes = rng.choice(4, rng.integers(1, 4), replace=False)
    if name == "MEAN" and rng.integers(2):  # of images, whose channels vectors take together
        axes = np.array([1, 2])
        shape = (1, *rng.choice([1, 2, 4, 7], 2).tolist(), int(rng.choice([9, 28, 33])))
    keeps = bool(rng.integers(2))
    made = np.sum(np.empty(shape), axis=tuple(map(int, axes)), keepdims=keeps).shape
    count = math.prod(shape) // max(math.prod(made), 1)
    factor = {"SUM": count / 2, "REDUCE_PROD": 2.0}.get(name, 1.0)
    places = from_end(rng, axes, 4)
    is_own = name == "MEAN" and places.tolist() == [1, 2]
    reads, output = [Grid(shape, scale, zero_point), constant(places)], near(rng, scale, factor)
    return Form(reads, [Grid(made, *output)], {"keepDims": keeps}, is_own=is_own)


def matrices(name: str, rng: Rng) -> Form:
    rows, depth, columns = map(int, rng.integers(1, 12, 3))
    turned = {"adjX": bool(rng.integers(2)), "adjY": bool(rng.integers(2))}
    scale, zero_point = grid(rng)
    first = (1, 3, depth, rows) if turned["adjX"] else (1, 3, rows, depth)
    other = (1, 3, columns, depth) if turned["adjY"] else (1, 3, depth, columns)
    second = near(rng, 0.02)
    made = near(rng, scale, 8.0 * second[0] / 0.05)
    factor = constant(codes(rng, other), *second) if rng.integers(2) else Grid(other, *second)
    reads, output = [Grid(first, scale, zero_point), factor], Grid((1, 3, rows, columns), *made)
    return Form(reads, [output], turned)


def linear(name: str, rng: Rng) -> Form:
    """Kernels with one scale or several, and with a bias or without."""
    inputs, outputs = int(rng.integers(1, 10)), int(rng.integers(1, 20))
    scale, zero_point = grid(rng)
    size, strides = tuple(map(int, rng.integers(1, 4, 2))), tuple(map(int, rng.integers(1, 3, 2)))
    is_matrix, is_depthwise = name == "FULLY_CONNECTED", name == "DEPTHWISE_CONV_2D"
    if is_depthwise:
        outputs = inputs * int(rng.integers(1, 3))
    shapes = {"FULLY_CONNECTED": (outputs, inputs), "DEPTHWISE_CONV_2D": (1, *size, outputs)}
    kernel = rng.integers(-127, 128, shapes.get(name, (outputs, *size, inputs)))
    several = not is_matrix and bool(rng.integers(2))
    scales = rng.uniform(0.001, 0.02, outputs if several else 1).astype(np.float32)
    weights = constant(kernel, scales, axis=3 if is_depthwise else 0)
    made = near(rng, scale, 0.3 * float(np.max(scales)) / 0.02)
    fused = int(rng.choice([0, 1, 3]))
    values: dict[str, Any] = {"fusedActivationFunction": fused}
    bias = rng.integers(-2000, 2000, outputs).astype(np.int32)
    reads = [Grid((1, 5, 6, inputs), scale, zero_point), weights]
    has_bias = bool(rng.integers(2)) or not (is_matrix or name == "TRANSPOSE_CONV")
    if has_bias:
        reads.append(Grid(bias.shape, np.float32(scale) * scales, 0, bias, "INT32"))
    is_own = has_bias and fused != 3
    if is_matrix:
        keeps = values["keepNumDims"] = bool(rng.integers(2))
        shape = (1, 5, 6, outputs) if keeps else (30, outputs)
        return Form(reads, [Grid(shape, *made)], values, 5, is_own and keeps)
    values |= {"padding": int(rng.integers(2)), "strideH": strides[0], "strideW": strides[1]}
    if name == "TRANSPOSE_CONV":
        values.pop("fusedActivationFunction")
        more = [0, 0] if values["padding"] == 0 else np.maximum(np.subtract(size, strides), 0)
        shape = (1, *(np.multiply((5, 6), strides) + more).tolist(), outputs)
        reads = [constant(shape), weights, reads[0], *reads[2:]]
        return Form(reads, [Grid(shape, *made)], values, 3, has_bias)
    if is_depthwise:
        values["depthMultiplier"] = outputs // inputs
    taken = size if values["padding"] else (1, 1)
    places = ((np.array((5, 6)) - taken) // strides + 1).tolist()
    return Form(reads, [Grid((1, *places, outputs), *made)], values, 3, is_own)


def sloped(name: str, rng: Rng) -> Form:
    scale, zero_point = grid(rng)
    slopes = codes(rng, (1, 1, 4)) if rng.integers(2) else codes(rng, SMALL[1:])
    reads = Grid(SMALL, scale, zero_point), constant(slopes, float(rng.uniform(0.0005, 0.02)))
    return Form(reads, [Grid(SMALL, *near(rng, scale))], version=1, is_own=True)


def of_rows(name: str, rng: Rng) -> Form:
    """A function of every row of a tensor, on a grid that TFLite fixes."""
    shape = (1, int(rng.integers(1, 41)), int(rng.choice([1, 4, 17, 200])))
    made = {row.name: row.grid for row in arithmetic.ROWS}.get(name) or FIXED_GRIDS[name]
    beta = float(rng.choice([1.0, 1.0, 0.5, rng.uniform(0.01, 8.0)]))
    scale, zero_point = grid(rng)
    scale = float(rng.choice([0.003, scale, scale, 1.7]))
    output, is_softmax = Grid(shape, float(made.scale), made.zero_point), name == "SOFTMAX"
    values = {"beta": beta} if is_softmax else {}
    reads = [Grid(shape, scale, zero_point)]
    return Form(reads, [output], values, is_own=is_softmax and beta == 1.0)


def converted(name: str, rng: Rng) -> Form:
    """Codes on another grid, or as float values; and float values, of which many are ties."""
    read = Grid(EACH, *grid(rng))
    if name == "DEQUANTIZE":
        return Form([read], [Grid(EACH, None, type="FLOAT32")], is_own=True)
    made, reals = near(rng, read.scale), Grid((1, 256), None, type="FLOAT32")
    if rng.integers(2):
        return Form([reals], [Grid(reals.shape, *made)])
    return Form([read], [Grid(EACH, *made)], is_own=True)


_NAMES = {
    function: " ".join(row.name for row in native.ROWS),
    pair: "ADD SUB MUL DIV MAXIMUM MINIMUM SQUARED_DIFFERENCE",
    rearranged: "RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE TILE BROADCAST_TO REVERSE_V2 UNPACK PACK "
    "DEPTH_TO_SPACE SPACE_TO_DEPTH RESIZE_NEAREST_NEIGHBOR CAST",
    selected: "SLICE DYNAMIC_UPDATE_SLICE GATHER GATHER_ND EMBEDDING_LOOKUP SELECT SELECT_V2 "
    "REDUCE_MAX REDUCE_MIN",
    strided: "STRIDED_SLICE",
    padded: "PAD PADV2 MIRROR_PAD",
    in_blocks: "SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND",
    split: "SPLIT SPLIT_V",
    joined: "CONCATENATION",
    reduced: "MEAN SUM REDUCE_PROD",
    linear: "CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV FULLY_CONNECTED",
    pool: "MAX_POOL_2D AVERAGE_POOL_2D",
    resized: "RESIZE_BILINEAR",
    matrices: "BATCH_MATMUL",
    sloped: "PRELU",
    of_rows: "SOFTMAX LOG_SOFTMAX L2_NORMALIZATION",
    converted: "QUANTIZE DEQUANTIZE",
}
# What makes a form of each operator, given a generator.
FORMS = {
    name: functools.partial(form, name) for form, names in _NAMES.items() for name in names.split()
}
# Kernels of these take many values at once in a few of their forms.
_MORE_SEEDS = {"MEAN": 28, "QUANTIZE": 8, "SOFTMAX": 8}


def test_every_operator_has_a_form_here():
    # An LSTM has its own tests.
    operations = [operation for operation in OPERATIONS if operation is not Lstm]
    assert set(FORMS) == {name for operation in operations for name in operation.reads}


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


def widened(name: str, form: Form) -> Form:
    """The same form on codes of 16 bits around 0; kernels have 8, and biases 64."""
    is_linear = name in _NAMES[linear].split()

    def wide(one: Grid, *, is_bias: bool = False) -> Grid:
        if is_bias and one.values is not None:
            scale = np.asarray(one.scale) / 256.0
            return one._replace(type="INT64", values=one.values.astype(np.int64) << 8, scale=scale)
        if one.type != "INT8" or (is_linear and one.values is not None):
            return one
        values = None if one.values is None else one.values.astype(np.int16) * 257
        return one._replace(type="INT16", zero_point=0, scale=one.scale / 256.0, values=values)

    reads = [wide(one, is_bias=is_linear and place == 2) for place, one in enumerate(form.reads)]
    if name == "TRANSPOSE_CONV":
        reads = [*form.reads[:2], *map(wide, form.reads[2:3])]
        reads += [wide(one, is_bias=True) for one in form.reads[3:]]
    values = form.values | ({"potScaleInt16": False} if name in ("ADD", "SUB") else {})
    makes = list(map(wide, form.makes))
    if name in native.FIXED_GRIDS:
        makes = [one._replace(scale=float(native.FRACTIONS.scale)) for one in makes]
    return dataclasses.replace(form, reads=reads, makes=makes, values=values)


def lacks_bias(name: str, form: Form) -> bool:
    """Whether a linear operator has no bias, by whose type kernels choose their sums."""
    expected = 4 if name == "TRANSPOSE_CONV" else 3
    return name in _NAMES[linear].split() and len(form.reads) < expected


def check(name: str, seed: int, *, wide: bool = False) -> None:
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    form = FORMS[name](rng)
    while ends_at_half_a_code(name, form) or (wide and lacks_bias(name, form)):
        form = FORMS[name](rng)
    if wide:
        form = widened(name, form)
    content = file_of(name, form.reads, form.makes, version=form.version, **form.values)
    inputs = [read for read in form.reads if read.values is None]

    def drawn(read: Grid) -> np.ndarray:
        if read.type == "FLOAT32":
            halves = rng.integers(-300, 300, read.shape) * 0.5 * form.makes[0].scale
            return halves.astype(np.float32)
        if read.type == "INT8":
            return codes(rng, read.shape)
        if read.type == "INT16":
            coarse = codes(rng, read.shape).astype(np.int16) * 256
            return coarse + rng.integers(0, 256, read.shape, dtype=np.int16)
        return rng.integers(form.limit, size=read.shape, dtype=np.int32)

    images = [tuple(map(drawn, inputs)) for _ in range(2)]
    if form.avoids is not None:
        for arrays in images:
            arrays[1][arrays[1] == form.avoids] = form.avoids - 1 if form.avoids > -128 else 1
    if [read.shape for read in inputs] == [EACH] and inputs[0].type == "INT8":
        images = [(np.arange(-128, 128).astype(np.int8).reshape(EACH),)]
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
    for seed in range(_MORE_SEEDS.get(name, 4)):
        check(name, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMS)
def test_an_operator_computes_in_every_runtime_what_is_simulated_in_many_forms(name):
    for seed in range(4, 100):
        check(name, seed)


WIDE_NAMES = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "ADD", "SUB", "MUL"),
    *("MAXIMUM", "MINIMUM", "MEAN", "MAX_POOL_2D", "AVERAGE_POOL_2D", "CONCATENATION", "RESHAPE"),
    *("TRANSPOSE", "STRIDED_SLICE", "PAD", "GATHER", "REDUCE_MAX", "RESIZE_NEAREST_NEIGHBOR"),
    *("QUANTIZE", "DEQUANTIZE"),
    *("LOGISTIC", "TANH", "SOFTMAX", "ABS", "LEAKY_RELU", "BATCH_MATMUL"),
)


@pytest.mark.parametrize("name", WIDE_NAMES)
def test_an_operator_computes_on_16_bits_what_is_simulated(name):
    for seed in range(4):
        check(name, seed, wide=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", WIDE_NAMES)
def test_an_operator_computes_on_16_bits_what_is_simulated_in_many_forms(name):
    for seed in range(4, 100):
        check(name, seed, wide=True)
