"""Operators that select or move codes, reshape them, or put zeros around them: a row each."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.kernels.bilinear import Grid
from sat_tf.exact.operations.operation import SELECTED, Made, Operation
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView
from sat_tf.exact.tflite.tensors import Activation, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer

# Values of int32 constants, and builtin options by their names.
Settings = tuple[Sequence[Any], dict[str, Any]]
_RESHAPE = Operator("RESHAPE", 1, "ReshapeOptions")


class Move(NamedTuple):
    """An operator that moves or selects codes, in every form that TFLite has."""

    # Its result for all that it reads, in order, and for options by their names; where it makes
    # several tensors, a list of them. Raises ValueError where its kernels do not take these.
    function: Callable[..., Any]
    options: tuple[str, ...] = ()  # The names of its options that count.
    makes_several: bool = False
    pads: bool = False  # The function is also given `zero`, the stored integer of 0.


class Written(NamedTuple):
    """The form of a move that layers become."""

    title: str  # In the listing of a graph.
    version: int  # Of the operator.
    schema: str  # The schema's name of its builtin options.
    # Its constants and options, for the shape that it reads, without the batch dimension, and the
    # arguments of the layer's move.
    settings: Callable[..., Settings]
    constants: tuple[str, ...] = ()  # The names of the constants.


@dataclasses.dataclass(frozen=True)
class Moved(Operation):
    """The values of tensors, as an operator of `MOVES` puts them elsewhere."""

    name: str  # Of the operator.
    reads_in_order: tuple[np.ndarray | None, ...]  # The constants, and None for each input.
    options: Mapping[str, Any]
    place: int = 0  # Which of the tensors that the operator makes this is.

    same_in_float_because = SELECTED
    moves = True

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.name,)

    def title(self, graph: Tensors) -> str:
        return WRITTEN[self.name].title if self.name in WRITTEN else self.name

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        move, options = MOVES[self.name], {**self.options}
        if move.pads:
            codes = graph.tensors[self.output].codes
            options["zero"] = codes.zero_point if codes else 0.0
        made = move.function(*self.arrays(inputs), **options)
        return np.asarray(made[self.place] if move.makes_several else made)

    def arrays(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All that the operator reads, in order."""
        sources = iter(inputs)
        return [next(sources) if array is None else array for array in self.reads_in_order]

    def write(self, writer: Writer) -> None:
        written = WRITTEN[self.name]
        (source,), (_, *arrays) = self.inputs, self.reads_in_order
        constants = [
            writer.constant(f"{self.output}/{name}", np.ascontiguousarray(array))
            for name, array in zip(written.constants, arrays, strict=True)
        ]
        operator = Operator(self.name, written.version, written.schema)
        writer.operator(operator, [source, *constants], self.output, **self.options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Gathering from a constant is a `Lookup`."""
        return operator.name != "GATHER" or not operator.is_constant(0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        if operator.activation != Activation.NONE.value:
            raise NotUnderstoodError("it fuses an activation, which its kernels do not take")
        codes, (inputs, arrays) = operator.selected_codes(), cls.read_in_order(operator)
        options = {name: operator.option(name) for name in MOVES[operator.name].options}
        read = inputs, operator.output.name, operator.name, arrays, options
        return cls(*read, operator.place), codes

    @staticmethod
    def read_in_order(
        operator: OperatorView,
    ) -> tuple[tuple[str, ...], tuple[np.ndarray | None, ...]]:
        """The names of the inputs, and the constants with None for each input."""
        inputs, arrays = [], []
        for index in range(len(operator.stored.inputs)):
            array = operator.tensor(index).values
            if array is None:
                inputs.append(operator.source(index))
            elif array.dtype == np.int8:
                array = array.astype(np.int32)
            arrays.append(array)
        return tuple(inputs), tuple(arrays)

    @property
    def num_constants(self) -> int:
        return sum(array is not None for array in self.reads_in_order)

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        counted = [] if MOVES[self.name].pads else self.reads_in_order
        return sum(array.nbytes for array in counted if array is not None)


def moved(
    name: str, source: str, output: str, shape: tuple[int, ...], *arguments: Any
) -> Operation:
    """The operation that a layer's move becomes."""
    if name == _RESHAPE.name:
        return Reshape((source,), output)
    constants, options = WRITTEN[name].settings(shape, *arguments)
    arrays = [np.array(values, np.int32) for values in constants]
    return Moved((source,), output, name, (None, *arrays), options)


def _slice(values: np.ndarray, begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    ends = [None if size == -1 else start + size for start, size in zip(begin, sizes, strict=True)]
    return values[tuple(map(slice, begin, ends))]


_MASKS = ("beginMask", "endMask", "ellipsisMask", "newAxisMask", "shrinkAxisMask")


def _strided_slice(
    values: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    strides: np.ndarray,
    offset: bool = False,
    **masks: int,
) -> np.ndarray:
    """TensorFlow's slices: masks say where a bound does not count, and which axes come or go."""
    index: list[Any] = []
    for axis, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        is_set = {name for name, mask in masks.items() if mask >> axis & 1}
        if offset or {"shrinkAxisMask", "beginMask"} <= is_set:
            raise ValueError("its masks leave open where it begins or ends")
        if "ellipsisMask" in is_set:
            index.append(Ellipsis)
        elif "newAxisMask" in is_set:
            index.append(None)
        elif "shrinkAxisMask" in is_set:
            index.append(first)
        else:
            start = None if "beginMask" in is_set else first
            index.append(slice(start, None if "endMask" in is_set else last, step))
    return np.asarray(values[tuple(index)])


def _slice_settings(shape: tuple[int, ...], slices: tuple[tuple[int | None, ...], ...]) -> Settings:
    """The whole batch, whatever its size, and of each other axis start, stop and step."""
    bounds = [slice(*ends).indices(size) for ends, size in zip(slices, shape, strict=True)]
    return list(zip((0, 0, 1), *bounds, strict=True)), {"beginMask": 1, "endMask": 1}


def _split_in_sizes(values: np.ndarray, sizes: np.ndarray, axis: np.ndarray) -> list[np.ndarray]:
    rest = values.shape[axis.item()] - np.sum(sizes[sizes >= 0])
    whole = np.where(sizes < 0, rest, sizes)
    return np.split(values, np.cumsum(whole)[:-1], axis.item())


def _gather(values: np.ndarray, indices: np.ndarray, axis: int, batchDims: int = 0) -> np.ndarray:
    if batchDims:
        raise ValueError("it gathers other places of each image")
    if np.min(indices, initial=0) < 0:
        raise ValueError("it gathers from places below 0")
    return np.take(values, indices, axis)


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


def _nearest(
    values: np.ndarray, size: np.ndarray, alignCorners: bool, halfPixelCenters: bool
) -> np.ndarray:
    """Resizing to the nearest pixel, in the ways of older TensorFlow too.

    Pixel i of n lies over that of m at i · m / n, rounded down, in float32; `halfPixelCenters` adds
    half a pixel to i; `alignCorners` divides m - 1 by n - 1, and rounds half away from zero.
    """
    offset = np.float32(0.5 if halfPixelCenters else 0.0)

    def places(before: int, after: int) -> np.ndarray:
        scale = Grid(before, after, align_corners=alignCorners).scale
        real = (np.arange(after, dtype=np.float32) + offset) * scale
        whole = np.floor(real + np.float32(0.5)) if alignCorners else np.floor(real)
        return np.clip(whole.astype(int), 0, before - 1)

    rows, columns = map(places, values.shape[1:3], size)
    return values[:, rows][:, :, columns]


def _depth_to_space(values: np.ndarray, blockSize: int) -> np.ndarray:
    """Channels moved into rows and columns: (h, w, b²·c) becomes (b·h, b·w, c)."""
    images, rows, columns, channels = values.shape
    left = channels // blockSize**2
    blocks = values.reshape(images, rows, columns, blockSize, blockSize, left)
    beside = blocks.transpose(0, 1, 3, 2, 4, 5)
    return beside.reshape(images, rows * blockSize, columns * blockSize, left)


def _space_to_depth(values: np.ndarray, blockSize: int) -> np.ndarray:
    """Rows and columns moved into channels: (b·h, b·w, c) becomes (h, w, b²·c)."""
    images, rows, columns, channels = values.shape
    rows, columns = rows // blockSize, columns // blockSize
    blocks = values.reshape(images, rows, blockSize, columns, blockSize, channels)
    behind = blocks.transpose(0, 1, 3, 2, 4, 5)
    return behind.reshape(images, rows, columns, channels * blockSize**2)


def _space_to_batch(
    values: np.ndarray, sizes: np.ndarray, margins: np.ndarray, zero: int
) -> np.ndarray:
    """Each pixel of a block of pixels becomes one of an image of its own."""
    axes = len(sizes)
    more = [(0, 0), *margins, *[(0, 0)] * (values.ndim - 1 - axes)]
    whole = _padded(values, np.array(more), zero)
    counts, rest = whole.shape[1 : 1 + axes] // sizes, whole.shape[1 + axes :]
    parts = whole.reshape(whole.shape[0], *np.stack([counts, sizes], axis=1).flat, *rest)
    inner, outer = range(2, 2 + 2 * axes, 2), range(1, 1 + 2 * axes, 2)
    order = (*inner, 0, *outer, *range(1 + 2 * axes, parts.ndim))
    return parts.transpose(order).reshape(-1, *counts, *rest)


def _batch_to_space(values: np.ndarray, sizes: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The reverse of `_space_to_batch`; what was put around is cut."""
    axes = len(sizes)
    counts, rest = values.shape[1 : 1 + axes], values.shape[1 + axes :]
    parts = values.reshape(*sizes, -1, *counts, *rest)
    pairs = [axis for place in range(axes) for axis in (axes + 1 + place, place)]
    order = (axes, *pairs, *range(2 * axes + 1, parts.ndim))
    lengths = counts * sizes
    whole = parts.transpose(order).reshape(-1, *lengths, *rest)
    return whole[(slice(None), *map(slice, cuts[:, 0], lengths - cuts[:, 1]))]


MOVES: Mapping[str, Move] = {
    "STRIDED_SLICE": Move(_strided_slice, (*_MASKS, "offset")),
    "TRANSPOSE": Move(np.transpose),
    "RESIZE_NEAREST_NEIGHBOR": Move(_nearest, ("alignCorners", "halfPixelCenters")),
    "DEPTH_TO_SPACE": Move(_depth_to_space, ("blockSize",)),
    "SPACE_TO_DEPTH": Move(_space_to_depth, ("blockSize",)),
    "GATHER": Move(_gather, ("axis", "batchDims")),
    "REDUCE_MAX": Move(
        lambda values, axes, keepDims: np.max(values, tuple(axes.flat), keepdims=keepDims),
        ("keepDims",),
    ),
    "PAD": Move(_padded, pads=True),
    "PADV2": Move(lambda values, margins, fill: _padded(values, margins, fill.item())),
    "MIRROR_PAD": Move(_mirrored, ("mode",)),
    "REDUCE_MIN": Move(
        lambda values, axes, keepDims: np.min(values, tuple(axes.flat), keepdims=keepDims),
        ("keepDims",),
    ),
    "SLICE": Move(_slice),
    "SPLIT": Move(
        lambda axis, values, numSplits: np.split(values, numSplits, axis.item()),
        ("numSplits",),
        makes_several=True,
    ),
    "SPLIT_V": Move(_split_in_sizes, makes_several=True),
    "UNPACK": Move(
        lambda values, axis: np.moveaxis(values, axis, 0), ("axis",), makes_several=True
    ),
    "PACK": Move(lambda *arrays, axis: np.stack(arrays, axis), ("axis",)),
    "CONCATENATION": Move(lambda *arrays, axis: np.concatenate(arrays, axis), ("axis",)),
    "TILE": Move(np.tile),
    "BROADCAST_TO": Move(np.broadcast_to),
    "REVERSE_V2": Move(lambda values, axes: np.flip(values, tuple(axes.flat))),
    "GATHER_ND": Move(lambda values, places: values[tuple(np.moveaxis(places, -1, 0))]),
    "SPACE_TO_BATCH_ND": Move(_space_to_batch, pads=True),
    "BATCH_TO_SPACE_ND": Move(_batch_to_space),
}
# The form of those that layers become; other tools alone write the others.
WRITTEN: Mapping[str, Written] = {
    "STRIDED_SLICE": Written(
        "Slice", 2, "StridedSliceOptions", _slice_settings, ("begin", "end", "strides")
    ),
    "TRANSPOSE": Written(
        "Transpose", 2, "TransposeOptions", lambda shape, order: ([(0, *order)], {}), ("order",)
    ),
    "RESIZE_NEAREST_NEIGHBOR": Written(
        "Resize",
        3,
        "ResizeNearestNeighborOptions",
        lambda shape, size: ([size], {"alignCorners": False, "halfPixelCenters": True}),
        ("size",),
    ),
    "DEPTH_TO_SPACE": Written(
        "DepthToSpace", 1, "DepthToSpaceOptions", lambda shape, size: ([], {"blockSize": size})
    ),
    "SPACE_TO_DEPTH": Written(
        "SpaceToDepth", 2, "SpaceToDepthOptions", lambda shape, size: ([], {"blockSize": size})
    ),
    "GATHER": Written(
        "Gather",
        2,
        "GatherOptions",
        lambda shape, indices, axis: ([indices], {"axis": axis + 1}),
        ("indices",),
    ),
    "REDUCE_MAX": Written(
        "ChannelMax",
        2,
        "ReducerOptions",
        lambda shape: ([[len(shape)]], {"keepDims": True}),
        ("axes",),
    ),
    "PAD": Written(
        "Pad", 2, "PadOptions", lambda shape, margins: ([[(0, 0), *margins]], {}), ("margins",)
    ),
}
Moved.reads = tuple(WRITTEN)


@dataclasses.dataclass(frozen=True)
class Reshape(Operation):
    """The same values in another shape."""

    operator = _RESHAPE
    num_constants = 1  # the shape
    reshapes = True
    moves = True
    same_in_float_because = SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (source,) = inputs
        return source.reshape(-1, *graph.tensors[self.output].shape)

    def write(self, writer: Writer) -> None:
        write_reshape(writer, self.inputs[0], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        if not operator.progress.is_foreign:
            operator.expect_shape(1, "newShape")
        return cls((operator.source(),), operator.output.name), operator.moved_codes()


def write_reshape(writer: Writer, source: int | str, output: str) -> None:
    """Adds the operator that makes `output` of a tensor, by name or by index."""
    shape = np.array([-1, *writer.graph.tensors[output].shape], np.int32)
    constant = writer.constant(f"{output}/shape", shape)
    writer.operator(_RESHAPE, [source, constant], output, newShape=list(shape))
