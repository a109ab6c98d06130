import fractions

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sat_tf.core import grid as grids
from sat_tf.core.grid import AUTOMATIC, GRIDS, find_grid
from tests import reference
from tests.core.execution import MODES, array, tensor, value_and_gradients

BITS = range(1, 9)
ROWS = [(name, bits) for name in GRIDS for bits in BITS if (name, bits) != ("narrow", 1)]


# Worked by hand from the table at the top of the module: (name, bits, steps, step, codes).
@pytest.mark.parametrize(
    ("name", "bits", "steps", "step", "codes"),
    [
        ("dorefa", 1, 1, 1.0, [-1, 1]),
        ("dorefa", 2, 3, 1 / 3, [-3, -1, 1, 3]),
        ("dorefa", 3, 7, 1 / 7, [-7, -5, -3, -1, 1, 3, 5, 7]),
        ("dorefa", 7, 127, 1 / 127, list(range(-127, 128, 2))),
        ("dorefa", 8, 255, 1 / 255, list(range(-255, 256, 2))),
        ("narrow", 2, 2, 1.0, [-1, 0, 1]),
        ("narrow", 3, 6, 1 / 3, [-3, -2, -1, 0, 1, 2, 3]),
        ("narrow", 4, 14, 1 / 7, list(range(-7, 8))),
        ("narrow", 8, 254, 1 / 127, list(range(-127, 128))),
        ("rounded", 2, 3, 0.5, [-2, -1, 0, 1]),
        ("rounded", 8, 255, 1 / 128, list(range(-128, 128))),
        ("modified", 2, 3, 0.5, [-2, -1, 0, 1]),
        ("modified", 3, 7, 0.25, [-4, -3, -2, -1, 0, 1, 2, 3]),
        ("nested", 1, 1, 0.5, [-1, 1]),
        ("nested", 2, 3, 0.25, [-3, -1, 1, 3]),
        ("nested", 7, 127, 1 / 128, list(range(-127, 128, 2))),
    ],
)
def test_grids_have_the_steps_and_codes_of_the_table(name, bits, steps, step, codes):
    row = GRIDS[name]
    assert grids.levels(bits, name) == steps
    assert row.scale(bits) == step
    units = range(row.top(bits) + 1)
    assert [row.codes_per_unit * n - row.code_offset(bits) for n in units] == codes
    assert row.largest_code(bits) == max(abs(code) for code in codes)


@pytest.mark.parametrize(
    ("name", "bits"), [row for row in ROWS if row[1] >= GRIDS[row[0]].fewest_bits]
)
def test_a_code_times_the_step_is_the_value_of_its_integer(name, bits):
    row = GRIDS[name]
    divisor, top, _, per_unit = reference.GRIDS[name]
    assert (row.divisor(bits), row.top(bits), row.codes_per_unit) == (
        divisor(bits),
        top(bits),
        per_unit,
    )
    for n in range(row.top(bits) + 1):
        above = fractions.Fraction(1, 2) if name == "nested" else 0
        value = 2 * (n + above) / fractions.Fraction(row.divisor(bits)) - 1
        code = row.codes_per_unit * n - row.code_offset(bits)
        assert code * fractions.Fraction(2, row.divisor(bits) * row.codes_per_unit) == value


def test_integers_of_the_nested_grid_are_the_upper_bits_of_those_at_more():
    unit = np.linspace(0.0, 1.0, 10_001, dtype=np.float32)
    at_8_bits = np.minimum(np.floor(unit * 256), 255).astype(int)
    for bits in BITS:
        row = GRIDS["nested"]
        units = np.minimum(np.floor(unit * row.divisor(bits)), row.top(bits)).astype(int)
        np.testing.assert_array_equal(units, at_8_bits >> (8 - bits))


@pytest.mark.parametrize("bits", BITS)
def test_auto_is_the_grid_whose_codes_fit_int8(bits):
    row = find_grid("auto", bits)
    assert row.name == ("dorefa" if bits <= 7 else "narrow")
    assert row.largest_code(bits) <= 127


def test_ties_go_up():
    x = np.float32([-np.inf, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf, np.nan])
    rounded = array(grids.round_half_up(x))
    np.testing.assert_array_equal(rounded, [-np.inf, -2, -1, 0, 1, 2, 3, np.inf, np.nan])


# Worked by hand: the largest magnitude is code 127.
@pytest.mark.parametrize(
    ("values", "codes", "scale"),
    [
        ([127.0, -63.5, 0.5, -0.5], [127, -63, 1, 0], 1.0),
        ([-0.254, 0.1, 0.0, 0.001], [-127, 50, 0, 1], 0.002),
        ([0.0, 0.0, 1e-30, 0.0], [0, 0, 0, 0], 1.0),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_largest_magnitude_is_code_127_and_gradients_pass(values, codes, scale, mode):
    found, of_one = map(array, grids.int8_codes(tensor(np.float32(values))))
    np.testing.assert_array_equal(found, codes)
    assert of_one == pytest.approx(scale)
    upstream = np.float32([1.0, -2.0, 3.0, 0.5])
    rounded, gradient = value_and_gradients(
        grids.on_int8_codes, [np.float32(values)], upstream, mode=mode
    )
    np.testing.assert_array_equal(rounded, np.float32(codes) * of_one)
    np.testing.assert_array_equal(gradient, upstream)


@pytest.mark.thorough
@given(hnp.arrays(np.float32, 8, elements=st.floats(-1e4, 1e4, width=32)))
def test_rounding_is_to_a_nearest_integer(x):
    rounded = array(grids.round_half_up(x))
    assert (rounded == np.round(rounded)).all()
    # x + 1/2 is itself rounded: by half a unit in its last place, 2^-11 below 2^14.
    assert (abs(rounded.astype(np.float64) - x) <= 0.5 + 2.0**-11).all()


@pytest.mark.parametrize("name", [*AUTOMATIC, *GRIDS])
@pytest.mark.parametrize("number", [grids.levels, grids.divisor, grids.middle])
def test_numbers_of_bits_in_a_tensor_are_those_of_the_bits(name, number):
    fewest = 1 if name in AUTOMATIC else GRIDS[name].fewest_bits
    bits = np.arange(fewest, 9, dtype=np.int32)
    found = array(number(tensor(bits), name))
    assert found.tolist() == [number(int(each), name) for each in bits]
