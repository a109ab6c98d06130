"""Operators of other tools: each code of every runtime here is the one of its rule."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels.kernel_sets import (
    MICRO,
    builtin_of_this_machine,
)
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations.graph_file import read_foreign
from sat_tf.exact.operations.tabled import table_of
from sat_tf.exact.tflite.tensors import Codes
from tests import reference
from tests.export.foreign.one_operator import Grid, constant, file_of
from tests.export.proofs import KERNELS

ALL_CODES = np.arange(-128, 128).astype(np.int8)
SHAPE = (1, 8, 8, 4)
IMAGE = ALL_CODES.reshape(SHAPE)
RNG = np.random.default_rng(0)
NOISE = RNG.integers(-128, 128, (2, 8, 8, 4)).astype(np.int8)
SCALES = st.one_of(st.floats(0.004, 0.2), st.sampled_from([2.0**-power for power in range(2, 8)]))
RATIOS = st.one_of(st.floats(0.1, 8.0), st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0]))
ZERO_POINTS = st.integers(-128, 127)


# TFLite Micro puts an integer around the image that it has never set.
WRONG = {"SPACE_TO_BATCH_ND": ["micro"]}


def assert_as_in_litert(content, images):
    file = read_foreign(content, "one")
    assert dict(file.reasons) == {}
    places = {tensor.name: index for index, tensor in enumerate(file.contents.tensors)}
    compared = []
    for name, kernels in KERNELS.items():
        if name in WRONG.get(file.contents.operators[0].name, ()) or not is_installed(name):
            continue
        try:
            runtime = loaded(content, name, keep_tensors=True)
            runtime.run(images[:1])
        except ValueError as error:
            # Some runtimes have no kernel of an operator, and TFLite Micro not in every form.
            assert name == "micro" or "find op for builtin" in str(error)  # noqa: PT017
            continue
        is_left = name == "xnnpack" and 0 not in runtime.delegated
        rules = builtin_of_this_machine() if is_left else kernels
        compared.append(name)
        for image in images:
            runtime.run(image[np.newaxis])
            kept = {places[one.name]: image[np.newaxis] for one in file.contents.inputs}
            kept |= runtime.kept(places.values())
            for operation in file.graph.operations:
                read = [kept[places[one]].astype(np.int32) for one in operation.inputs]
                made = operation.simulate(file.graph.on(rules), *read)
                found = kept[places[operation.output]]
                if operation.reshapes:
                    made = made.reshape(found.shape)
                np.testing.assert_array_equal(found, made, err_msg=name)
    assert "xnnpack" in compared


# Scales of powers of two, so that only the clipping and halves round.
BY_HAND = [
    # name, given codes, scale and zero point of the output, made
    ("RELU", [-7, 0, 3, 100], 0.5, -128, [-128, -128, -122, 72]),
    ("RELU6", [-7, 0, 3, 10], 0.5, 0, [0, 0, 6, 12]),
    ("RELU_N1_TO_1", [-7, -1, 0, 1], 0.25, 5, [1, 1, 5, 9]),
    ("RELU_0_TO_1", [-7, 0, 1, 2], 0.25, -1, [-1, -1, 3, 3]),
    ("RELU", [1, 3, 5, -3], 2.0, 0, [1, 2, 3, 0]),  # halves away from zero
    ("ABS", [-7, 3, -3, 0], 2.0, 0, [4, 2, 2, 0]),
    ("EXP", [0, 1, 2, -9], 1 / 16, -16, [0, 27, 102, -16]),
    ("LOG", [1, 2, 3, 100], 1 / 16, 0, [0, 11, 18, 74]),
    ("RSQRT", [1, 4, 16, 0], 1 / 64, 0, [64, 32, 16, 127]),
    ("L2_NORMALIZATION", [3, -4, 0, 0], 1 / 128, 0, [77, -102, 0, 0]),
]


@pytest.mark.parametrize(("name", "stored", "scale", "zero_point", "expected"), BY_HAND)
def test_functions_worked_by_hand(name, stored, scale, zero_point, expected):
    shape = (1, 4)
    content = file_of(name, [Grid(shape, 1.0)], [Grid(shape, scale, zero_point)])
    file = read_foreign(content, "one")
    (operation,) = file.graph.operations
    made = operation.simulate(file.graph, np.array([stored], np.int32))
    assert made.tolist() == [expected]


def test_a_rectifier_of_tflite_micro_clips_codes_between_its_own_ends_alone():
    # One that stands in front of it may have left codes that are not of the grid that it makes.
    clipped = Codes(np.float32(0.1), 0, lowest=0, highest=60)
    table = table_of("RELU_N1_TO_1", {}, clipped, Codes(np.float32(0.5), 0), MICRO)
    assert table[[108, 123, 131]].tolist() == [-10, -5, 3]


@pytest.mark.parametrize("name", reference.FUNCTIONS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(scale=SCALES, ratio=RATIOS, zero=ZERO_POINTS, output_zero=ZERO_POINTS)
def test_functions_are_within_a_code_of_those_of_real_values(name, scale, ratio, zero, output_zero):
    zero = -128 if name in ("RSQRT", "LOG") else zero
    file = read_foreign(function(name, scale, ratio, zero, output_zero), "one")
    (operation,) = file.graph.operations
    made = operation.simulate(file.graph, IMAGE.astype(np.int32))
    source, output = (file.graph.codes(one) for one in ("t0", "t1"))
    with np.errstate(all="ignore"):
        real = reference.FUNCTIONS[name]((IMAGE.astype(np.float64) - zero) * float(source.scale))
    wanted = np.clip(real / float(output.scale) + output_zero, -128, 127)
    # Half a code of the result, and as much for what was rounded before, or for an end.
    assert np.max(np.abs(made - wanted)) <= 1.0


def test_a_squared_difference_worked_by_hand():
    # ((a - b) / 4)² in units of 1/16 is (a - b)²; the largest codes saturate.
    shape = (1, 4)
    given = [Grid(shape, 0.25), constant([[1, 4, -3, 9]], 0.25)]
    made = [Grid(shape, 1 / 16, 2)]
    content = file_of("SQUARED_DIFFERENCE", given, made, options="SquaredDifferenceOptions")
    file = read_foreign(content, "one")
    (operation,) = file.graph.operations
    found = operation.simulate(file.graph, np.array([[3, 4, 4, -9]], np.int32))
    assert found.tolist() == [[6, 2, 51, 127]]


def function(name, scale, ratio, zero, output_zero, **more):
    source, output = Grid(SHAPE, scale, zero), Grid(SHAPE, scale * ratio, output_zero)
    return file_of(name, [source], [output], **more)


@pytest.mark.parametrize(
    "name", ["RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ABS", "EXP", "LOG", "RSQRT"]
)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(scale=SCALES, ratio=RATIOS, zero=ZERO_POINTS, output_zero=ZERO_POINTS)
def test_every_code_of_a_function_is_that_of_litert(name, scale, ratio, zero, output_zero):
    if name in ("RSQRT", "LOG"):
        zero = -128  # kernels take no negative values
    content = function(name, scale, ratio, zero, output_zero)
    assert_as_in_litert(content, IMAGE)


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "SQUARED_DIFFERENCE"])
@pytest.mark.parametrize("is_first", [False, True])
@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    scale=SCALES,
    other=RATIOS,
    ratio=RATIOS,
    zero=ZERO_POINTS,
    other_zero=ZERO_POINTS,
    output_zero=ZERO_POINTS,
    fused=st.sampled_from([0, 1, 2, 3]),
)
def test_every_pair_of_codes_with_a_constant_is_that_of_litert(
    name, is_first, scale, other, ratio, zero, other_zero, output_zero, fused
):
    # Builtin kernels hold a product in 16 bits behind its rounding.
    assume(name != "MUL" or 2**16 * scale * other < ratio * 2**15)
    shape = (1, 256, 256, 1)
    values = np.tile(ALL_CODES, 256).reshape(shape)
    pair = [Grid(shape, scale, zero), constant(values, scale * other, other_zero)]
    output = Grid(shape, scale * ratio, output_zero)
    options = (
        "SquaredDifferenceOptions" if name[0] == "S" and len(name) > 3 else f"{name.title()}Options"
    )
    more = {} if len(name) > 3 else {"fusedActivationFunction": fused}
    content = file_of(
        name, pair[::-1] if is_first else pair, [output], version=2, options=options, **more
    )
    assert_as_in_litert(content, np.repeat(ALL_CODES, 256).reshape(shape))


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    scale=SCALES,
    other=RATIOS,
    ratio=RATIOS,
    zero=ZERO_POINTS,
    other_zero=ZERO_POINTS,
    output_zero=ZERO_POINTS,
    turned=st.booleans(),
)
def test_products_of_matrices_are_those_of_litert(
    scale, other, ratio, zero, other_zero, output_zero, turned
):
    values = RNG.integers(-128, 128, (1, 8, 5, 4) if turned else (1, 8, 4, 5))
    given_ = [Grid(SHAPE, scale, zero), constant(values, scale * other, other_zero)]
    output = Grid((1, 8, 8, 5), scale * ratio * 8, output_zero)
    content = file_of(
        "BATCH_MATMUL", given_, [output], version=2, options="BatchMatMulOptions", adjY=turned
    )
    assert_as_in_litert(content, NOISE)


@pytest.mark.parametrize("channels", [1, 4, 64, 256])
@settings(deadline=None, derandomize=True, max_examples=20)
@given(scale=SCALES, zero=ZERO_POINTS)
def test_l2_normalization_is_that_of_litert(channels, scale, zero):
    shape = (1, 256 // channels, channels)
    images = RNG.integers(-128, 128, (3, *shape[1:])).astype(np.int8)
    images[-1] = np.clip(images[-1] // 100 + zero, -128, 127)  # small values, and zeros
    content = file_of(
        "L2_NORMALIZATION",
        [Grid(shape, scale, zero)],
        [Grid(shape, 1 / 128)],
        version=2,
        options="L2NormOptions",
    )
    assert_as_in_litert(content, images)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("axes", [[1], [2], [3], [-1], [1, 2], [2, 3], [1, 2, 3], [0, 3]])
@settings(deadline=None, derandomize=True, max_examples=10)
@given(scale=SCALES, ratio=RATIOS, zero=ZERO_POINTS, output_zero=ZERO_POINTS)
def test_means_over_any_axes_are_those_of_litert(axes, keeps, scale, ratio, zero, output_zero):
    shape = np.mean(np.empty(SHAPE), axis=tuple(axes), keepdims=keeps).shape
    output = Grid(shape, scale * ratio, output_zero)
    content = file_of(
        "MEAN",
        [Grid(SHAPE, scale, zero), constant(axes)],
        [output],
        version=2,
        options="ReducerOptions",
        keepDims=keeps,
    )
    assert_as_in_litert(content, NOISE)


@pytest.mark.parametrize("keeps", [False, True])
@settings(deadline=None, derandomize=True, max_examples=20)
@given(
    scale=SCALES,
    ratio=RATIOS,
    zero=ZERO_POINTS,
    output_zero=ZERO_POINTS,
    fused=st.sampled_from([0, 1, 3]),
)
def test_matrix_products_of_rows_are_those_of_litert(keeps, scale, ratio, zero, output_zero, fused):
    kernel = constant(RNG.integers(-127, 128, (12, 4)), 0.01)
    output = Grid((1, 8, 8, 12) if keeps else (64, 12), scale * ratio * 0.1, output_zero)
    content = file_of(
        "FULLY_CONNECTED",
        [Grid(SHAPE, scale, zero), kernel],
        [output],
        version=5,
        options="FullyConnectedOptions",
        keepNumDims=keeps,
        fusedActivationFunction=fused,
    )
    assert_as_in_litert(content, NOISE)


SMALL = (1, 4, 6, 4)
WINDOW = {"padding": 0, "strideH": 2, "strideW": 2, "filterHeight": 3, "filterWidth": 2}
MOVES = [
    ("RESHAPE", [SMALL, [2, 48]], (2, 48), "", {}),
    ("SQUEEZE", [(1, 1, 6, 4)], (6, 4), "SqueezeOptions", {}),
    ("EXPAND_DIMS", [SMALL, 1], (1, 1, 4, 6, 4), "ExpandDimsOptions", {}),
    ("TRANSPOSE", [SMALL, [3, 1, 0, 2]], (4, 4, 1, 6), "TransposeOptions", {}),
    ("SLICE", [SMALL, [0, 1, 2, 0], [1, 2, -1, 3]], (1, 2, 4, 3), "SliceOptions", {}),
    (
        *("STRIDED_SLICE", [SMALL, [0, 3, 0, 1], [1, 0, 9, 2], [1, -2, 2, 1]], (1, 2, 3)),
        *("StridedSliceOptions", {"endMask": 2, "shrinkAxisMask": 8}),
    ),
    (
        *("STRIDED_SLICE", [SMALL, [0, 0, 1, 0], [1, 1, 3, 2], [1, 1, 1, 2]], (1, 1, 4, 2, 1)),
        *("StridedSliceOptions", {"newAxisMask": 2, "beginMask": 1}),
    ),
    ("TILE", [SMALL, [1, 2, 1, 3]], (1, 8, 6, 12), "TileOptions", {}),
    ("BROADCAST_TO", [(1, 1, 6, 1), list(SMALL)], SMALL, "BroadcastToOptions", {}),
    ("REVERSE_V2", [SMALL, [2]], SMALL, "ReverseV2Options", {}),
    ("GATHER", [SMALL, [3, 0, 3]], (1, 4, 6, 3), "GatherOptions", {"axis": 3}),
    ("GATHER", [SMALL, [3, 0, 3]], (1, 3, 6, 4), "GatherOptions", {"axis": -3}),
    ("GATHER_ND", [SMALL, [[0, 2, 1], [0, 3, 5]]], (2, 4), "GatherNdOptions", {}),
    ("PAD", [SMALL, [[0, 0], [1, 0], [0, 2], [1, 1]]], (1, 5, 8, 6), "PadOptions", {}),
    ("PADV2", [SMALL, [[0, 0], [1, 0], [0, 2], [0, 0]], 7], (1, 5, 8, 4), "PadV2Options", {}),
    *(
        ("MIRROR_PAD", [SMALL, [[0, 0], [1, 3], [2, 1], [0, 0]]], shape, "MirrorPadOptions", mode)
        for shape, mode in (((1, 8, 9, 4), {"mode": 0}), ((1, 8, 9, 4), {"mode": 1}))
    ),
    (
        *("SPACE_TO_BATCH_ND", [SMALL, [2, 3], [[0, 2], [2, 1]]], (6, 3, 3, 4)),
        *("SpaceToBatchNDOptions", {}),
    ),
    ("REDUCE_MAX", [SMALL, [1, 2]], (1, 4), "ReducerOptions", {}),
    ("REDUCE_MIN", [SMALL, [3]], (1, 4, 6, 1), "ReducerOptions", {"keepDims": True}),
    *(
        (
            "RESIZE_NEAREST_NEIGHBOR",
            [SMALL, [7, 5]],
            (1, 7, 5, 4),
            "ResizeNearestNeighborOptions",
            how,
        )
        for how in ({}, {"alignCorners": True}, {"halfPixelCenters": True})
    ),
    ("SPLIT", [2, SMALL], [(1, 4, 2, 4)] * 3, "SplitOptions", {"numSplits": 3}),
    (
        "SPLIT_V",
        [SMALL, [1, -1], 3],
        [(1, 4, 6, 1), (1, 4, 6, 3)],
        "SplitVOptions",
        {"numSplits": 2},
    ),
    ("UNPACK", [SMALL], [(1, 6, 4)] * 4, "UnpackOptions", {"axis": 1, "num": 4}),
    ("PACK", [SMALL, "same"], (1, 4, 2, 6, 4), "PackOptions", {"axis": 2, "valuesCount": 2}),
    ("CONCATENATION", [SMALL, "same"], (2, 4, 6, 4), "ConcatenationOptions", {"axis": 0}),
    ("CONCATENATION", ["same", SMALL], (1, 4, 6, 8), "ConcatenationOptions", {"axis": -1}),
    ("MAXIMUM", [SMALL, "same"], SMALL, "MaximumMinimumOptions", {}),
    ("MINIMUM", ["same", SMALL], SMALL, "MaximumMinimumOptions", {}),
    *(
        (name, [SMALL], (1, 2, 3, 4), "Pool2DOptions", {**WINDOW, "fusedActivationFunction": fused})
        for name in ("MAX_POOL_2D", "AVERAGE_POOL_2D")
        for fused in (0, 1, 3)
    ),
]


@pytest.mark.parametrize(("name", "reads", "makes", "options", "values"), MOVES)
def test_moves_in_every_form_are_those_of_litert(name, reads, makes, options, values):
    shape = next(one for one in reads if isinstance(one, tuple))
    images = RNG.integers(-128, 128, (2, *shape[1:])).astype(np.int8)
    grid = (0.05, -3)
    given = [
        Grid(one, *grid)
        if isinstance(one, tuple)
        else constant(RNG.integers(-128, 128, SMALL), *grid)
        if one == "same"
        else constant(one, *grid)
        if one == 7
        else constant(one)
        for one in reads
    ]
    made = [Grid(one, *grid) for one in (makes if isinstance(makes, list) else [makes])]
    version = 1 if name in ("RESHAPE", "EXPAND_DIMS") else 2
    content = file_of(name, given, made, version=version, options=options, **values)
    assert_as_in_litert(content, images)


def test_blocks_are_put_beside_each_other():
    content = file_of(
        "BATCH_TO_SPACE_ND",
        [Grid((6, 1, 2, 1)), constant([2, 3]), constant([[0, 0], [1, 2]])],
        [Grid((1, 2, 3, 1))],
        options="BatchToSpaceNDOptions",
    )
    file = read_foreign(content, "one")
    (operation,) = file.graph.operations
    # Image k has the pixels of row k // 3 and column k % 3 of each block.
    images = np.arange(12).reshape(6, 1, 2, 1)
    made = operation.simulate(file.graph, images)
    assert made[0, :, :, 0].tolist() == [[2, 4, 1], [8, 10, 7]]
