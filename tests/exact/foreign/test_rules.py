"""Operators of other tools: codes worked by hand, and how far they are from real values."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sat_tf.exact.kernels.kernel_sets import MICRO, REFERENCE, TOSA, X86
from sat_tf.exact.operations.graph_file import read_foreign
from sat_tf.exact.operations.tabled import table_of
from sat_tf.exact.tflite.tensors import Codes
from tests import reference
from tests.exact.foreign.one_operator import Grid, assert_as_in_litert, constant, file_of

ALL_CODES = np.arange(-128, 128).astype(np.int8)
SHAPE = (1, 8, 8, 4)
IMAGE = ALL_CODES.reshape(SHAPE)
SCALES = st.one_of(st.floats(0.004, 0.2), st.sampled_from([2.0**-power for power in range(2, 8)]))
RATIOS = st.one_of(st.floats(0.1, 8.0), st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0]))
ZERO_POINTS = st.integers(-128, 127)


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
    ("SQRT", [0, 1, 4, 7], 1 / 4, -3, [-3, 1, 5, 7]),  # rounded towards zero
    ("NEG", [-128, -3, 0, 127], 1.0, 0, [-128, 3, 0, -127]),  # int8 has no 128
    # log ½ = -0.693 is -11 of 16, and log of e^-8 / 2 is -8.693.
    ("LOG_SOFTMAX", [0, 0, -8, -100], 1 / 16, 127, [116, 116, -12, -128]),
]


def simulated(content, stored):
    """The stored integers that the operator of a file makes of others."""
    graph = read_foreign(content, "one").graph
    return graph.operations[0].simulate(graph, np.array(stored, np.int32))


@pytest.mark.parametrize(("name", "stored", "scale", "zero_point", "expected"), BY_HAND)
def test_functions_worked_by_hand(name, stored, scale, zero_point, expected):
    shape = (1, 4)
    content = file_of(name, [Grid(shape, 1.0)], [Grid(shape, scale, zero_point)])
    assert simulated(content, [stored]).tolist() == [expected]


# 1 / 0.4 is 2.5 in float32 and less in float64; XNNPACK rounds half to even with the zero point.
ENDS_BY_HAND = [
    # activation, scale, zero point, ends of XNNPACK, of LiteRT's own kernels, of TOSA
    ("RELU_N1_TO_1", 0.4, 0, (-2, 2), (-3, 3), (-2, 2)),
    ("RELU_N1_TO_1", 0.4, -3, (-6, 0), (-6, 0), (-5, -1)),
    ("RELU6", 0.4, 0, (0, 15), (0, 15), (0, 15)),
    ("RELU6", 4.0, 1, (1, 2), (1, 3), (1, 3)),
]


@pytest.mark.parametrize(("name", "scale", "zero", "x86", "builtin", "tosa"), ENDS_BY_HAND)
def test_ends_between_codes_are_rounded_as_each_runtime_does(name, scale, zero, x86, builtin, tosa):
    pool = {"strideH": 1, "strideW": 1, "filterHeight": 1, "filterWidth": 1}
    fused = {"fusedActivationFunction": {"RELU_N1_TO_1": 2, "RELU6": 3}[name], "version": 2}
    source, other = Grid(SHAPE, 4 * scale), constant(np.zeros((1, 1, 1, 1)), 4 * scale)
    output = Grid(SHAPE, scale, zero)
    contents = [
        file_of(name, [source], [output]),
        file_of("ADD", [source, other], [output], **fused),
        file_of("MAX_POOL_2D", [output], [output], **pool, **fused),
    ]
    expected = {X86: x86, REFERENCE: builtin, MICRO: builtin, TOSA: tosa}
    for content in contents:
        graph = assert_as_in_litert(content, [(IMAGE,)])
        for kernels, ends in expected.items():
            codes = graph.on(kernels).codes(graph.output)
            assert (codes.lowest, codes.highest) == ends


def test_a_rectifier_of_tflite_micro_clips_codes_between_its_own_ends_alone():
    # One that stands in front of it may have left codes that are not of the grid that it makes.
    clipped = Codes(np.float32(0.1), 0, lowest=0, highest=60)
    table = table_of("RELU_N1_TO_1", (), clipped, Codes(np.float32(0.5), 0), MICRO)
    assert table[[108, 123, 131]].tolist() == [-10, -5, 3]


@pytest.mark.parametrize("name", reference.FUNCTIONS)
@settings(deadline=None, derandomize=True, max_examples=40)
@given(scale=SCALES, ratio=RATIOS, zero=ZERO_POINTS, output_zero=ZERO_POINTS)
def test_functions_are_within_a_code_of_those_of_real_values(name, scale, ratio, zero, output_zero):
    zero = -128 if name in ("RSQRT", "LOG", "SQRT") else zero
    read, made = Grid(SHAPE, scale, zero), Grid(SHAPE, scale * ratio, output_zero)
    file = read_foreign(file_of(name, [read], [made]), "one")
    (operation,) = file.graph.operations
    made = operation.simulate(file.graph, IMAGE.astype(np.int32))
    source, output = (file.graph.codes(one) for one in ("t0", "t1"))
    with np.errstate(all="ignore"):
        real = reference.FUNCTIONS[name]((IMAGE.astype(np.float64) - zero) * float(source.scale))
    wanted = np.clip(real / float(output.scale) + output_zero, -128, 127)
    # Half a code of the result, and as much for what was rounded before, or for an end; scales have
    # the 24 bits of float32.
    assert np.max(np.abs(made - wanted)) <= 1.0 + 1e-5


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "SQUARED_DIFFERENCE"])
@pytest.mark.parametrize("is_first", [False, True])
@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    scale=SCALES,
    ratios=st.tuples(RATIOS, RATIOS),
    zeros=st.tuples(ZERO_POINTS, ZERO_POINTS, ZERO_POINTS),
    fused=st.sampled_from([0, 1, 2, 3]),
)
def test_every_pair_of_codes_is_that_of_litert(name, is_first, scale, ratios, zeros, fused):
    (other, ratio), (zero, other_zero, output_zero) = ratios, zeros
    # Builtin kernels hold a product in 16 bits behind its rounding.
    assume(name != "MUL" or 2**16 * scale * other < ratio * 2**15)
    shape = (1, 256, 256, 1)
    values = np.tile(ALL_CODES, 256).reshape(shape)
    pair = [Grid(shape, scale, zero), constant(values, scale * other, other_zero)]
    output = Grid(shape, scale * ratio, output_zero)
    more = {} if len(name) > 3 else {"fusedActivationFunction": fused}
    content = file_of(name, pair[::-1] if is_first else pair, [output], version=2, **more)
    assert_as_in_litert(content, [(np.repeat(ALL_CODES, 256).reshape(shape),)])


def test_blocks_are_put_beside_each_other():
    content = file_of(
        "BATCH_TO_SPACE_ND",
        [Grid((6, 1, 2, 1)), constant([2, 3]), constant([[0, 0], [1, 2]])],
        [Grid((1, 2, 3, 1))],
    )
    # Image k has the pixels of row k // 3 and column k % 3 of each block.
    made = simulated(content, np.arange(12).reshape(6, 1, 2, 1))
    assert made[0, :, :, 0].tolist() == [[2, 4, 1], [8, 10, 7]]


# What each makes of some codes in a unit, and of a constant: axes, or codes in that unit.
OF_SEVERAL = [
    # name, codes, unit, constant, scale and zero point of the output, made
    ("SUM", [3, -4, 5, 6], 0.5, 1, 0.25, 2, [22]),  # 5
    ("REDUCE_PROD", [3, -4, 5, 6], 0.5, 1, 0.25, 2, [-82]),  # -22.5, rounded four times
    # 1.5, 4, 1.25, 2
    ("DIV", [3, -4, 5, 6], 0.5, [[2, -1, 4, 3]], 0.25, 2, [8, 18, 7, 10]),
    # ((a - b) / 4)² in units of 1/16 is (a - b)²; the largest codes saturate.
    ("SQUARED_DIFFERENCE", [3, 4, 4, -9], 0.25, [[1, 4, -3, 9]], 1 / 16, 2, [6, 2, 51, 127]),
]


@pytest.mark.parametrize(
    ("name", "stored", "unit", "other", "scale", "zero", "expected"), OF_SEVERAL
)
def test_operators_of_several_values_worked_by_hand(
    name, stored, unit, other, scale, zero, expected
):
    reduces = isinstance(other, int)
    numbers, options = (
        (constant([other]), {"keepDims": False}) if reduces else (constant(other, unit), {})
    )
    made = Grid((1, 4)[: 2 - reduces], scale, zero)
    content = file_of(name, [Grid((1, 4), unit), numbers], [made], version=2, **options)
    assert np.ravel(simulated(content, [stored])).tolist() == expected
