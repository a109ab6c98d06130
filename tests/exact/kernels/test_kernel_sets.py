"""Simulations with the rules of a kernel set, against the kernels: every code of every tensor."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import sat_tf
from sat_tf.exact.kernels import functions, kernel_sets, wide
from sat_tf.exact.kernels.bilinear import OF_XNNPACK, OF_XNNPACK_FUSED, AxisGrid, interpolated
from sat_tf.exact.kernels.fixed_point import moved_away
from sat_tf.exact.kernels.functions import Grids
from sat_tf.exact.kernels.kernel_sets import (
    BUILTIN_ARM,
    BUILTIN_X86,
    KERNEL_SETS,
    REFERENCE,
    X86,
    LinearWork,
)
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations.conversions import Dequantize
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.graph_file import read_graph, serialize
from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.operations.native import FIXED_GRIDS
from sat_tf.exact.operations.pools import Mean, ResizeBilinear
from sat_tf.exact.operations.tabled import table_of
from sat_tf.exact.tflite.tensors import Codes
from tests.exact.foreign.one_operator import Grid as Stored
from tests.exact.foreign.one_operator import chained, file_of
from tests.export import zoo
from tests.export.proofs import own_count


@pytest.fixture(scope="module", params=["preactivation", "bottleneck"])
def packed(request, tmp_path_factory) -> tuple[bytes, np.ndarray]:
    """A file with convolutions, or depthwise ones, that have kernels of 4 bits, and images."""
    model = zoo.quantized(request.param)
    path = tmp_path_factory.mktemp("packed") / "model.tflite"
    sat_tf.export_tflite(model, path, pack="int4")
    return path.read_bytes(), zoo.images_for(model)


@pytest.mark.parametrize("shape", [(7, 7, 37), (1, 1, 16), (3, 5, 33), (8, 8, 9)])
def test_means_are_those_of_the_kernels(shape):
    rng = np.random.default_rng(7)
    images = rng.integers(0, 256, (8, 1, 1, shape[-1])) + rng.integers(-60, 60, (8, *shape))
    images, scale = np.clip(images, 0, 255).astype(np.uint8), np.float32(0.3)
    for zero_point, keeps, ratio in itertools.product((-128, 5), (False, True), (0.5, 1.37)):
        made, output = (1, 1, shape[-1])[0 if keeps else 2 :], Codes(scale * np.float32(ratio), 17)
        rows = (Mean(("x",), "y", keeps), made, output), (Dequantize(("y",), "real"), made, None)
        content = serialize(chained(shape, Codes(scale, zero_point), *rows), {})
        for runtime in ("builtin", "reference"):
            compared, differing = own_count(content, images, runtime)
            assert differing == 0 < 8 * shape[-1] < compared


def test_the_table_names_every_set_once():
    assert [KERNEL_SETS[name].name for name in KERNEL_SETS] == list(KERNEL_SETS)
    assert len({kernels.title for kernels in KERNEL_SETS.values()}) == len(KERNEL_SETS)


def test_kernels_that_xnnpack_leaves_convolutions_to_differ_by_processor(packed):
    # The reference kernels have no depthwise convolution of 4 bits.
    compared, differing = own_count(*packed, "builtin")
    assert differing == 0 < 1000 < compared
    content, images = packed
    graph = read_graph(content, "packed.tflite")
    left = [op.is_builtin for op in graph.operations if isinstance(op, Linear)]
    assert any(left)
    kernels = BUILTIN_X86, BUILTIN_ARM, REFERENCE
    x86, *others = (simulate(graph.on(one), images) for one in kernels)
    for other in others:
        assert any(np.any(x86[name] != other[name]) for name in graph.integer_tensors)


CODES = Codes(np.float32(0.1), 9)
PLACES = ({}, {"half_pixel_centers": False}, {"half_pixel_centers": False, "align_corners": True})
SHAPE = (5, 6, 9)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("size", [(10, 12), (7, 13), (3, 2), (1, 1)])
def test_float_values_between_pixels_are_those_of_tensorflow_to_the_last_bit(size, places):
    values = np.random.default_rng(3).normal(size=(8, *SHAPE)).astype(np.float32)
    grids = (AxisGrid(*lengths, **places) for lengths in zip(SHAPE, size, strict=False))
    settings = {"half_pixel_centers": True, **places}
    expected = tf.compat.v1.image.resize_bilinear(values, size, **settings).numpy()
    np.testing.assert_array_equal(interpolated(values, *grids), expected)


def resized(shape: tuple[int, ...], *size: int, **places: bool) -> Graph:
    operation, made = ResizeBilinear(("x",), "y", size, **places), (*size, shape[-1])
    return chained(shape, CODES, (operation, made, CODES))


def test_a_file_tells_that_xnnpack_resizes_alike_on_all_processors():
    graph = resized(SHAPE, 10, 12)
    found = graph.operations[1].portability(graph)
    assert (found.holds, found.inputs) == (True, 22)


def test_a_place_on_a_pixel_is_one_place_whichever_neighbour_has_all_the_weight():
    rules = OF_XNNPACK, OF_XNNPACK_FUSED
    one, other = (rule.places(AxisGrid(3, 25)) for rule in rules)
    assert np.any(one.weights != other.weights)
    np.testing.assert_array_equal(one.positions(11), other.positions(11))


def test_places_of_rounded_steps_that_lie_beyond_the_image_are_told():
    graph = resized((5, 2, 1), 5, 110, half_pixel_centers=False)
    for kernels in (BUILTIN_X86, REFERENCE, kernel_sets.MICRO):
        assert "beyond images of 2 pixels that become 110" in graph.ends_process(kernels)
    assert graph.ends_process(X86) is None
    # The last place is the last one that the builtin kernels' simulation reads.
    simulate(graph.on(REFERENCE), np.arange(10, dtype=np.uint8).reshape(1, 5, 2, 1))


def rows(classes: int, count: int = 100) -> np.ndarray:
    rng = np.random.default_rng(classes)
    spread, middle = rng.choice([4, 20, 128], (count, 1)), rng.integers(-60, 60, (count, 1))
    values = middle + spread * rng.uniform(-1, 1, (count, classes))
    return np.clip(values, -128, 127).astype(np.int8)


@pytest.mark.parametrize("kernels", [X86, BUILTIN_ARM, REFERENCE], ids=lambda one: one.name)
@pytest.mark.parametrize("scale", [0.003, 0.0625, 0.31, 1.7])
def test_probabilities_are_within_a_code_of_real_ones(scale, kernels):
    stored = rows(100).astype(np.int32)
    real = np.exp(stored * np.float64(np.float32(scale)))
    real = np.minimum(256.0 * real / real.sum(-1, keepdims=True), 255.0) - 128.0
    assert np.max(np.abs(kernels.softmax(stored, np.float32(scale)) - real)) < 0.53


def test_x86_and_arm_differ_in_about_one_code_of_a_thousand_by_one():
    stored, scale = rows(40, 3000).astype(np.int32), np.float32(0.05)
    found = BUILTIN_X86.softmax(stored, scale) - BUILTIN_ARM.softmax(stored, scale)
    assert np.max(np.abs(found)) == 1
    assert 1e-4 < np.mean(found != 0) < 3e-3


ONE, EIGHTH = np.float32(1.0), np.float32(0.125)


# 1.5, 2.5 and -1.5 codes; the zero point is odd, so that half to even moves with it.
@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        (functions.rounded_half_away, [2, 3, -2]),
        (functions.rounded_moved, [1, 3, -1]),
        (functions.rounded_moved_fused, [1, 3, -1]),
    ],
)
def test_halves_of_tables(rounding, expected):
    values = np.float32([1.5, 2.5, -1.5])
    assert rounding(values, ONE, 1).astype(int).tolist() == expected


def test_a_fused_product_is_not_rounded_before_the_zero_point_is_added():
    # 3 · f32(1/6) is a little more than 0.5 before it is rounded to float32, which makes it 0.5.
    value, scale = np.float32([3.0]), np.float32(6.0)
    assert functions.rounded_moved(value, scale, 0).tolist() == [0.0]
    assert float(value[0]) * float(ONE / scale) > 0.5
    assert functions.rounded_moved_fused(value, scale, 0).tolist() == [0.0]  # float32 holds 0.5
    assert functions.rounded_moved_fused(np.float32([3.0000002]), scale, 0).tolist() == [1.0]


@pytest.mark.parametrize("name", KERNEL_SETS)
def test_sigmoid_and_tanh_have_the_codes_of_their_definition(name):
    source = Codes(np.float32(0.5), 0)
    sigmoid = table_of("LOGISTIC", (), source, FIXED_GRIDS["LOGISTIC"], KERNEL_SETS[name])
    # sigmoid(-64) is 0, sigmoid(-0.5) is 0.37754, sigmoid(0) is 0.5, and sigmoid(63.5) is 1.
    assert sigmoid[[0, 127, 128, 255]].tolist() == [-128, 97 - 128, 0, 127]
    tanh = table_of("TANH", (), source, FIXED_GRIDS["TANH"], KERNEL_SETS[name])
    # tanh(0.5) is 0.46212.
    assert tanh[[0, 127, 128, 129, 255]].tolist() == [-128, -59, 0, 59, 127]


def test_a_hard_swish_is_0_below_minus_3_and_x_above_3():
    found = functions.hard_swish(np.array([-40, -25, 25, 40]), Grids(EIGHTH, EIGHTH))
    assert found.tolist() == [0, 0, 25, 40]


def test_vectors_of_arm_round_negative_halves_of_a_hard_swish_up():
    codes = np.arange(-24, 0)
    away = functions.hard_swish(codes, Grids(EIGHTH, EIGHTH / 2))
    up = functions.hard_swish_of_arm(codes, Grids(EIGHTH, EIGHTH / 2))
    assert set((up - away).tolist()) <= {0, 1}
    for_arm = BUILTIN_ARM, kernel_sets.ARM, kernel_sets.ARM_UNFUSED
    assert {kernels.hard_swish for kernels in for_arm} == {functions.hard_swish_of_arm}
    others = {kernels.hard_swish for kernels in (BUILTIN_X86, X86, REFERENCE)}
    assert others == {functions.hard_swish}


def test_a_leaky_rectifier_of_xnnpack_has_8_bits_behind_the_point():
    # 0.3 is 77/256, and 100 · 77/256 is 30.08.
    grids, codes = Grids(ONE, ONE, 0, {"alpha": 0.3}), np.array([-100, -5, 100])
    for rule in (X86.leaky, BUILTIN_X86.leaky):
        assert rule(codes, grids).tolist() == [-30, -2, 100]
    # Of -1.5 codes, a product of 31 bits and a shift: one rounds half up, the other away from zero.
    eighth = Grids(ONE, ONE, 0, {"alpha": 0.125})
    assert X86.leaky(np.array([-12]), eighth).tolist() == [-1]
    assert BUILTIN_X86.leaky(np.array([-12]), eighth).tolist() == [-2]


def test_xnnpack_leaves_small_multipliers_to_the_builtin_kernels():
    codes = np.array([-128])
    assert X86.leaky(codes, Grids(ONE, ONE, 0, {"alpha": 0.002})).tolist() == [0]
    grids = Grids(ONE, ONE, 0, {"alpha": 0.0039})  # below 1/256, which would make -0.5 codes
    assert X86.leaky(codes, grids).tolist() == BUILTIN_X86.leaky(codes, grids).tolist()


# -- codes of 16 bits ------------------------------------------------------------------------------


def _in_64_bits(total: int, multiplier: float) -> int:
    """TFLite's product of a sum of 64 bits, written with whole numbers of Python."""
    fraction, exponent = math.frexp(multiplier)
    mantissa = math.floor(fraction * 2**31 + 0.5)
    if mantissa == 2**31:
        mantissa, exponent = 2**30, exponent + 1
    narrow = (mantissa + 2**15) >> 16 if mantissa < 0x7FFF0000 else 0x7FFF
    return (total * narrow + 2 ** (14 - exponent)) >> (15 - exponent)


ONE = np.float32(1.0)
# A sum, a multiplier, and the code: the multiplier is rounded to 15 bits, and halves go up.
WIDE_SUMS = [
    (3, 0.5, 2),
    (-3, 0.5, -1),
    (32767, 2.0**-15, 1),
    # 0.7 · 2^15 = 22937.6, so that the multiplier is 22938 / 2^15.
    (2**20, float(np.float32(0.7)), 734016),
    # 1 - 2^-20 is 32767 / 2^15, as 15 bits do not hold 1.
    (2**15, 1.0 - 2.0**-20, 32767),
]


@pytest.mark.parametrize(("total", "multiplier", "code"), WIDE_SUMS)
def test_sums_of_64_bits_worked_by_hand(total, multiplier, code):
    assert _in_64_bits(total, multiplier) == code
    work = LinearWork("CONV_2D")
    scales = np.float32(multiplier), np.array([1.0]), ONE
    for kernels in KERNEL_SETS.values():
        assert kernels.on(16).linear(work, np.array([total]), scales).tolist() == [code]


@given(st.integers(-(2**36), 2**36), st.floats(2.0**-25, 2.0**-6, width=32))
def test_convolutions_of_16_bits_are_those_of_whole_numbers(total, multiplier):
    work, scales = LinearWork("CONV_2D"), (np.float32(multiplier), np.array([1.0]), ONE)
    for kernels in KERNEL_SETS.values():
        found = kernels.on(16).linear(work, np.array([total]), scales)
        assert found.tolist() == [_in_64_bits(total, multiplier)]


def test_matrix_products_of_16_bits_are_in_float64_but_in_micro():
    """Micro multiplies by 22938 / 2^15, and LiteRT by the multiplier itself: 0.7 in float32."""
    multiplier, total = np.float32(0.7), np.array([10**6])
    work, scales = LinearWork("FULLY_CONNECTED"), (multiplier, np.array([1.0]), ONE)
    found = {
        name: int(of.on(16).linear(work, total, scales)[0]) for name, of in KERNEL_SETS.items()
    }
    assert found["micro"] == _in_64_bits(10**6, float(multiplier)) == 700012
    assert found["reference"] == found["xnnpack_x86"] == found["builtin_arm"] == 700000


def test_functions_of_16_bits_worked_by_hand():
    """The table has 47911 / 2^16 for a sigmoid of 1, and 57724 for one of 2, or a tanh of 1."""
    grids = Grids(np.float32(2.0**-13), wide.SCALE)  # 2^13 codes are one
    codes = np.array([-(2**13), 0, 2**13])
    for kernels in (of.on(16) for of in KERNEL_SETS.values()):
        assert kernels.logistic(codes, grids).tolist() == [8812, 16384, 23956]
        assert kernels.tanh(codes, grids).tolist() == [-24956, 0, 24956]
        assert kernels.softmax(np.array([[5, 5]]), np.float64(1e-3)).tolist() == [[16384, 16384]]


@pytest.mark.parametrize(("name", "scale"), [("LOGISTIC", 2.0**-12), ("TANH", 2.0**-11)])
def test_builtin_kernels_of_16_bits_have_other_functions_at_a_power_of_two(name, scale):
    codes, shape = np.arange(-(2**15), 2**15).astype(np.int16)[np.newaxis], (1, 2**16)
    grids, found = Grids(np.float32(scale), wide.SCALE), []
    read, made = (Stored(shape, one, type="INT16") for one in (scale, 2.0**-15))
    content = file_of(name, [read], [made], version=3)
    for runtime, kernels in (("builtin", BUILTIN_X86), ("reference", REFERENCE)):
        ran = loaded(content, runtime, keep_tensors=False)
        rule = getattr(kernels.on(16), name.lower())(codes, grids)
        found.append(np.asarray(ran.run((codes,))) / np.float32(2.0**-15))
        np.testing.assert_array_equal(found[-1], np.clip(rule, -(2**15), 2**15 - 1))
    assert np.any(found[0] != found[1])


def test_kernels_of_8_bits_are_the_sets_themselves():
    assert all(kernels.on(8) is kernels for kernels in KERNEL_SETS.values())
    assert {kernels.on(16).name for kernels in KERNEL_SETS.values()} == set(KERNEL_SETS)


def test_sums_of_16_bits_are_rounded_in_blocks_by_the_builtin_kernels():
    """Among 600,000 sums, a few tell the two ways of rounding apart."""
    draw, differing = np.random.default_rng(0), 0
    for _ in range(6):
        first, second = draw.uniform(1e-5, 1e-3, 2).astype(np.float32)
        output = np.float32((first + second) * draw.uniform(0.6, 1.2))
        reads = [Stored((1, 100_007), scale, type="INT16") for scale in (first, second)]
        made = [Stored((1, 100_007), output, type="INT16")]
        content = file_of("ADD", reads, made, version=3, potScaleInt16=False)
        terms = [draw.integers(-32768, 32768, (1, 100_007)).astype(np.int16) for _ in reads]
        rules: dict[str, np.ndarray] = {}
        for name, kernels in (("builtin", BUILTIN_X86), ("reference", REFERENCE)):
            rule = kernels.on(16).summed(terms, [first, second], output)
            rules[name] = np.clip(rule, -32768, 32767)
            runtime = loaded(content, name, keep_tensors=True)
            runtime.run(tuple(terms))
            np.testing.assert_array_equal(runtime.kept([2])[2], rules[name])
        differing += np.count_nonzero(rules["builtin"] != rules["reference"])
    assert 0 < differing < 60


def test_armv7_rounds_halves_of_float_values_away_from_zero():
    values = np.float32([0.5, -0.5, 1.5, 2.5, -2.5, 0.49, 3.0])
    assert moved_away(values).tolist() == [1, -1, 2, 3, -3, 0, 3]
    real = np.tile(values, (1, 2))  # a block of 8, and 6 values by division
    found = kernel_sets.ARM_UNFUSED.on(16).quantized(real, ONE)
    assert found.tolist() == [[1, -1, 2, 3, -3, 0, 3] * 2]
    assert kernel_sets.ARM.on(16).quantized(real, ONE).tolist()[0][:8] == [0, 0, 2, 2, -2, 0, 3, 0]
