"""Functions of one value by hand, and where kernels differ in them."""

import numpy as np
import pytest

from sat_tf.export.kernels import functions
from sat_tf.export.kernels.functions import Grids
from sat_tf.export.kernels.kernel_sets import (
    ARM,
    ARM_UNFUSED,
    BUILTIN_ARM,
    BUILTIN_X86,
    KERNEL_SETS,
    REFERENCE,
    X86,
)
from sat_tf.export.operations.native import FIXED_GRIDS, NATIVE, table_of
from sat_tf.export.tflite.tensors import Codes

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
    sigmoid = table_of("LOGISTIC", {}, source, Codes(*FIXED_GRIDS["LOGISTIC"]), KERNEL_SETS[name])
    # sigmoid(-64) is 0, sigmoid(-0.5) is 0.37754, sigmoid(0) is 0.5, and sigmoid(63.5) is 1.
    assert sigmoid[[0, 127, 128, 255]].tolist() == [-128, 97 - 128, 0, 127]
    tanh = table_of("TANH", {}, source, Codes(*FIXED_GRIDS["TANH"]), KERNEL_SETS[name])
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
    assert BUILTIN_ARM.hard_swish is ARM.hard_swish is ARM_UNFUSED.hard_swish
    assert BUILTIN_X86.hard_swish is X86.hard_swish is REFERENCE.hard_swish


def test_a_leaky_rectifier_of_xnnpack_has_8_bits_behind_the_point():
    # 0.3 is 77/256, and 100 · 77/256 is 30.08.
    settings = {"alpha": 0.3}
    codes = np.array([-100, -5, 100])
    assert functions.leaky_of_xnnpack(codes, Grids(ONE, ONE, 0, settings)).tolist() == [
        -30,
        -2,
        100,
    ]
    assert BUILTIN_X86.leaky(codes, Grids(ONE, ONE, 0, settings)).tolist() == [
        -30,
        -2,
        100,
    ]
    # Of -1.5 codes, a product of 31 bits and a shift: one rounds half up, the other away from zero.
    eighth = {"alpha": 0.125}
    assert functions.leaky_of_xnnpack(np.array([-12]), Grids(ONE, ONE, 0, eighth)).tolist() == [-1]
    assert BUILTIN_X86.leaky(np.array([-12]), Grids(ONE, ONE, 0, eighth)).tolist() == [-2]


def test_xnnpack_leaves_small_multipliers_to_the_builtin_kernels():
    settings, codes = {"alpha": 0.002}, np.array([-128])
    assert functions.leaky_of_xnnpack(codes, Grids(ONE, ONE, 0, settings)).tolist() == [0]
    settings = {"alpha": 0.0039}  # below 1/256, which would make -0.5 codes of -128
    found = functions.leaky_of_xnnpack(codes, Grids(ONE, ONE, 0, settings))
    assert found.tolist() == BUILTIN_X86.leaky(codes, Grids(ONE, ONE, 0, settings)).tolist()


def test_every_row_names_options_that_its_rule_takes():
    codes = Codes(EIGHTH, 0)
    values = {"alpha": 0.25, "approximate": False}
    for name, row in NATIVE.items():
        settings = {key: values[key] for key in row.settings}
        output = Codes(*FIXED_GRIDS.get(name, (EIGHTH, 0)))
        assert table_of(name, settings, codes, output, X86).shape == (256,)
