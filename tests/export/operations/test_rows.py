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
from tests.export.foreign.one_operator import Grid, assert_as_in_litert, constant, file_of

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
    is_constant = bool(rng.integers(2)) or name == "DIV"
    if is_constant:
        read[1] = constant(values, *second)
    if name != "DIV" and rng.integers(2):
        read.reverse()
    options = "MaximumMinimum" if selects else name.title().replace("_", "")
    fused = int(rng.choice([0, 1, 2, 3]))
    can_fuse = not selects and name != "SQUARED_DIFFERENCE"
    return Form(
        read,
        [Grid(shape, *made)],
        f"{options}Options",
        {"fusedActivationFunction": fused} if can_fuse else {},
        is_own=is_constant and fused in (0, 1) and name in ("ADD", "SUB", "MUL"),
    )


def moved(
    reads: list[Any],
    makes: Any,
    options: str = "",
    is_own: bool = False,
    version: int = 1,
    **values: Any,
) -> Callable[[Rng], Form]:
    """A move, on a random grid: tuples are shapes of tensors, "same" is a constant like the first.

    Anything else is a constant of numbers.
    """

    def form(rng: Rng) -> Form:
        where = grid(rng)
        tensor = next(one for one in reads if isinstance(one, tuple))
        read = [
            Grid(one, *where)
            if isinstance(one, tuple)
            else constant(codes(rng, tensor), *where)
            if isinstance(one, str) and one == "same"
            else constant(rng.integers(-128, 128), *where)
            if isinstance(one, str)
            else Grid(np.shape(one), None, 0, np.array(one), "BOOL")
            if np.asarray(one).dtype == bool
            else constant(one)
            for one in reads
        ]
        made = [Grid(one, *where) for one in (makes if isinstance(makes, list) else [makes])]
        return Form(read, made, options, values, version, is_own)

    return form


SMALL = (1, 4, 6, 4)
_BITS = np.indices(SMALL).sum(0) % 2 == 0
MOVES: dict[str, list[Callable[[Rng], Form]]] = {
    "RESHAPE": [
        moved([SMALL, [1, 2, 48]], (1, 2, 48), is_own=True),
        moved([SMALL, [2, 48]], (2, 48)),
    ],
    "SQUEEZE": [moved([(1, 1, 6, 4)], (6, 4), "SqueezeOptions")],
    "EXPAND_DIMS": [moved([SMALL, 1], (1, 1, 4, 6, 4), "ExpandDimsOptions")],
    "TRANSPOSE": [
        moved([SMALL, [0, 3, 1, 2]], (1, 4, 4, 6), "TransposeOptions", is_own=True),
        moved([SMALL, [3, 1, 0, 2]], (4, 4, 1, 6), "TransposeOptions"),
    ],
    "SLICE": [moved([SMALL, [0, 1, 2, 0], [1, 2, -1, 3]], (1, 2, 4, 3), "SliceOptions")],
    "STRIDED_SLICE": [
        moved(
            [SMALL, [0, 3, 0, 1], [1, 0, 9, 2], [1, -2, 2, 1]],
            (1, 2, 3),
            "StridedSliceOptions",
            endMask=2,
            shrinkAxisMask=8,
        ),
        moved(
            [SMALL, [0, 0, 1, 0], [1, 1, 3, 2], [1, 1, 1, 2]],
            (1, 1, 4, 2, 1),
            "StridedSliceOptions",
            newAxisMask=2,
            beginMask=1,
        ),
        moved(
            [SMALL, [0, 1, 0, 0], [0, 4, 6, 4], [1, 2, 1, 3]],
            (1, 2, 6, 2),
            "StridedSliceOptions",
            is_own=True,
            beginMask=1,
            endMask=1,
        ),
    ],
    "TILE": [moved([SMALL, [1, 2, 1, 3]], (1, 8, 6, 12), "TileOptions")],
    "BROADCAST_TO": [moved([(1, 1, 6, 1), [1, 4, 6, 4]], SMALL, "BroadcastToOptions", version=2)],
    "REVERSE_V2": [moved([SMALL, [2]], SMALL, "ReverseV2Options")],
    "GATHER": [
        moved([SMALL, [3, 0, 3]], (1, 4, 6, 3), "GatherOptions", is_own=True, axis=3),
        moved([SMALL, [3, 0, 3]], (1, 3, 6, 4), "GatherOptions", axis=-3),
    ],
    "GATHER_ND": [moved([SMALL, [[0, 2, 1], [0, 3, 5]]], (2, 4), "GatherNdOptions")],
    "EMBEDDING_LOOKUP": [moved([[0, 0, 0], SMALL], (3, 4, 6, 4))],
    "SELECT": [moved([_BITS, SMALL, "same"], SMALL, "SelectOptions")],
    "SELECT_V2": [moved([_BITS[0, 0, 0], "same", SMALL], SMALL, "SelectV2Options")],
    "DYNAMIC_UPDATE_SLICE": [
        moved([SMALL, (1, 2, 3, 4), [0, 1, 3, 0]], SMALL, "DynamicUpdateSliceOptions")
    ],
    "PAD": [
        moved([SMALL, [[0, 0], [1, 0], [0, 2], [1, 1]]], (1, 5, 8, 6), "PadOptions", is_own=True)
    ],
    "PADV2": [
        moved([SMALL, [[0, 0], [1, 0], [0, 2], [0, 0]], "code"], (1, 5, 8, 4), "PadV2Options")
    ],
    "MIRROR_PAD": [
        moved(
            [SMALL, [[0, 0], [1, 3], [2, 1], [0, 0]]], (1, 8, 9, 4), "MirrorPadOptions", mode=mode
        )
        for mode in (0, 1)
    ],
    "SPACE_TO_BATCH_ND": [
        moved([SMALL, [2, 3], [[0, 2], [2, 1]]], (6, 3, 3, 4), "SpaceToBatchNDOptions")
    ],
    "BATCH_TO_SPACE_ND": [
        moved([SMALL, [1, 1], [[0, 1], [2, 1]]], (1, 3, 3, 4), "BatchToSpaceNDOptions")
    ],
    "REDUCE_MAX": [
        moved([SMALL, [1, 2]], (1, 4), "ReducerOptions"),
        moved([SMALL, [3]], (1, 4, 6, 1), "ReducerOptions", is_own=True, keepDims=True),
    ],
    "REDUCE_MIN": [moved([SMALL, [3]], (1, 4, 6, 1), "ReducerOptions", keepDims=True)],
    "RESIZE_NEAREST_NEIGHBOR": [
        moved(
            [SMALL, [7, 5]],
            (1, 7, 5, 4),
            "ResizeNearestNeighborOptions",
            is_own="halfPixelCenters" in how,
            **how,
        )
        for how in ({}, {"alignCorners": True}, {"halfPixelCenters": True})
    ],
    "DEPTH_TO_SPACE": [
        moved([SMALL], (1, 8, 12, 1), "DepthToSpaceOptions", is_own=True, blockSize=2)
    ],
    "SPACE_TO_DEPTH": [
        moved([SMALL], (1, 2, 3, 16), "SpaceToDepthOptions", is_own=True, blockSize=2)
    ],
    "SPLIT": [moved([2, SMALL], [(1, 4, 2, 4)] * 3, "SplitOptions", numSplits=3)],
    "SPLIT_V": [
        moved([SMALL, [1, -1], 3], [(1, 4, 6, 1), (1, 4, 6, 3)], "SplitVOptions", numSplits=2)
    ],
    "UNPACK": [moved([SMALL], [(1, 6, 4)] * 4, "UnpackOptions", axis=1, num=4)],
    "PACK": [moved([SMALL, "same"], (1, 4, 2, 6, 4), "PackOptions", axis=2, valuesCount=2)],
    "CONCATENATION": [
        moved([SMALL, "same"], (2, 4, 6, 4), "ConcatenationOptions", axis=0),
        moved(["same", SMALL], (1, 4, 6, 8), "ConcatenationOptions", axis=-1),
        moved([SMALL, SMALL], (1, 8, 6, 4), "ConcatenationOptions", axis=1),
    ],
    "CAST": [moved([SMALL], SMALL, "CastOptions", inDataType=9, outDataType=9)],
}


def pool(rng: Rng) -> Form:
    size, strides = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    where, fused = grid(rng), int(rng.choice([0, 0, 1, 3]))
    made = [-(-length // stride) for length, stride in zip(SMALL[1:3], strides, strict=True)]
    values = {
        "padding": 0,
        "strideH": int(strides[0]),
        "strideW": int(strides[1]),
        "filterHeight": int(size[0]),
        "filterWidth": int(size[1]),
        "fusedActivationFunction": fused,
    }
    output = Grid((1, *map(int, made), 4), *where)
    return Form([Grid(SMALL, *where)], [output], "Pool2DOptions", values, is_own=not fused)


def resized(rng: Rng) -> Form:
    where, (rows, columns) = grid(rng), map(int, rng.integers(1, 12, 2))
    how = ({}, {"alignCorners": True}, {"halfPixelCenters": True})[rng.integers(3)]
    made = Grid((1, rows, columns, 4), *where)
    return Form(
        [Grid(SMALL, *where), constant([rows, columns])],
        [made],
        "ResizeBilinearOptions",
        how,
        is_own=True,
    )


def reduced(name: str, rng: Rng) -> Form:
    shape, (scale, zero_point) = sizes(rng), grid(rng)
    axes = rng.choice(4, rng.integers(1, 4), replace=False)
    keeps = bool(rng.integers(2))
    empty = np.empty(shape)
    made = np.sum(empty, axis=tuple(map(int, axes)), keepdims=keeps).shape
    count = empty.size // max(int(np.prod(made)), 1)
    factor = {"SUM": count / 2, "REDUCE_PROD": 2.0}.get(name, 1.0)
    return Form(
        [Grid(shape, scale, zero_point), constant(axes - 4 * rng.integers(2))],
        [Grid(made, *near(rng, scale, factor))],
        "ReducerOptions",
        {"keepDims": keeps},
    )


def matrices(rng: Rng) -> Form:
    rows, depth, columns = map(int, rng.integers(1, 12, 3))
    turned = bool(rng.integers(2))
    scale, zero_point = grid(rng)
    other = (1, 3, columns, depth) if turned else (1, 3, depth, columns)
    second = near(rng, 0.02)
    made = near(rng, scale, 8.0 * second[0] / 0.05)
    return Form(
        [Grid((1, 3, rows, depth), scale, zero_point), constant(codes(rng, other), *second)],
        [Grid((1, 3, rows, columns), *made)],
        "BatchMatMulOptions",
        {"adjY": turned},
    )


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
    has_bias = name != "TRANSPOSE_CONV" and (bool(rng.integers(2)) or not is_matrix)
    if has_bias:
        reads.append(Grid(bias.shape, unit, 0, bias, "INT32"))
    is_own = has_bias and fused != 3
    if is_matrix:
        keeps = bool(rng.integers(2))
        values["keepNumDims"] = keeps
        shape = (1, 5, 6, outputs) if keeps else (30, outputs)
        return Form(
            reads, [Grid(shape, *made)], "FullyConnectedOptions", values, 5, is_own and keeps
        )
    values |= {"padding": int(rng.integers(2)), "strideH": strides[0], "strideW": strides[1]}
    if name == "TRANSPOSE_CONV":
        values.pop("fusedActivationFunction")
        more = [0, 0] if values["padding"] == 0 else np.maximum(np.subtract(size, strides), 0)
        places = [
            int(a * b + c) for a, b, c in zip(reads[0].shape[1:3], strides, more, strict=True)
        ]
        shape = (1, *places, outputs)
        reads = [constant(shape), weights, reads[0]]
        return Form(reads, [Grid(shape, *made)], "TransposeConvOptions", values, 3)
    if is_depthwise:
        values["depthMultiplier"] = outputs // inputs
    taken = size if values["padding"] else (1, 1)
    places = [
        (length - one) // stride + 1
        for length, one, stride in zip((5, 6), taken, strides, strict=True)
    ]
    options = f"{'DepthwiseConv2D' if is_depthwise else 'Conv2D'}Options"
    return Form(reads, [Grid((1, *places, outputs), *made)], options, values, 3, is_own)


def sloped(rng: Rng) -> Form:
    scale, zero_point = grid(rng)
    slopes = codes(rng, (1, 1, 4)) if rng.integers(2) else codes(rng, SMALL[1:])
    return Form(
        [Grid(SMALL, scale, zero_point), constant(slopes, float(rng.uniform(0.0005, 0.02)))],
        [Grid(SMALL, *near(rng, scale))],
        version=1,
        is_own=True,
    )


def of_rows(name: str, options: str, rng: Rng, *, is_own: bool = False) -> Form:
    """A function of every row of a tensor, on a grid that TFLite fixes."""
    shape = (1, int(rng.integers(1, 9)), int(rng.choice([1, 4, 16, 200])))
    row = {row.name: row.grid for row in arithmetic.ROWS}
    made = row.get(name) or FIXED_GRIDS[name]
    values = {"beta": 1.0} if name == "SOFTMAX" else {}
    output = Grid(shape, float(made.scale), made.zero_point)
    return Form([Grid(shape, *grid(rng))], [output], options, values, is_own=is_own)


def requantized(rng: Rng) -> Form:
    scale, zero_point = grid(rng)
    shape = (1, 16, 16, 1)
    read = Grid(shape, scale, zero_point)
    return Form([read], [Grid(shape, *near(rng, scale))], is_own=True, all_codes=True)


def dequantized(rng: Rng) -> Form:
    shape = (1, 16, 16, 1)
    made = Grid(shape, None, type="FLOAT32")
    return Form([Grid(shape, *grid(rng))], [made], is_own=True, all_codes=True)


def one_of(name: str, rng: Rng) -> Form:
    forms = MOVES[name]
    return forms[rng.integers(len(forms))](rng)


FORMS: dict[str, Callable[[Rng], Form]] = {
    **{row.name: functools.partial(function, row.name) for row in native.ROWS},
    **{
        name: functools.partial(pair, name)
        for name in ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    },
    **{name: functools.partial(one_of, name) for name in MOVES},
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
    """Writes an operation behind an input of codes, and reads it back."""
    (read,) = graph.images
    image = dataclasses.replace(read, name="image")
    first = ShiftImage((image.name,), read.name)
    own = dataclasses.replace(graph, operations=(first, *graph.operations), images=(image,))
    content = serialize(own, {})
    found = read_graph(content, "one")
    assert [type(one) for one in found.operations] == [type(one) for one in own.operations]
    assert {name: tensor.codes for name, tensor in found.tensors.items()} == {
        name: tensor.codes for name, tensor in own.tensors.items()
    }
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
    images = [tuple(codes(rng, read.shape) for read in inputs) for _ in range(2)]
    if form.all_codes:
        images = [(np.arange(-128, 128).astype(np.int8).reshape(inputs[0].shape),)]
    graph = assert_as_in_litert(content, images)
    if form.is_own and len(inputs) == 1:
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
