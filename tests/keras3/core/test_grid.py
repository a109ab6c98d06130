import numpy as np
import pytest
from keras import ops

from sat_tf.core.grid_table import AUTOMATIC, GRIDS
from sat_tf.keras3.core import grid
from tests import reference
from tests.keras3.gradients import to_numpy

SPECIAL = np.float32([-np.inf, -1.5, -0.5, 0.5, 1.5, 2.5, np.inf, np.nan])


def test_rounding_sends_ties_upwards():
    found = to_numpy(grid.round_half_up(ops.convert_to_tensor(SPECIAL)))
    np.testing.assert_array_equal(found, [-np.inf, -1, 0, 1, 2, 3, np.inf, np.nan])


def test_clipping_keeps_nan():
    found = to_numpy(grid.clip(ops.convert_to_tensor(SPECIAL), -1.0, 2.0))
    np.testing.assert_array_equal(found, [-1, -1, -0.5, 0.5, 1.5, 2, 2, np.nan])


@pytest.mark.parametrize("name", [*AUTOMATIC, *GRIDS])
@pytest.mark.parametrize("number", [grid.levels, grid.divisor, grid.middle])
def test_numbers_of_bits_in_a_tensor_are_those_of_the_bits(name, number):
    fewest = 1 if name in AUTOMATIC else GRIDS[name].fewest_bits
    bits = np.arange(fewest, 9, dtype=np.int32)
    found = to_numpy(number(ops.convert_to_tensor(bits), name))
    assert found.tolist() == [number(int(each), name) for each in bits]


def test_bits_that_no_grid_has_are_refused():
    for bits in (0, 9, 2.0, True, None):
        with pytest.raises(ValueError, match="1 to 8"):
            grid.levels(bits)
    with pytest.raises(ValueError, match="single value"):
        grid.divisor(1, "narrow")
    with pytest.raises(ValueError, match="narrow"):
        grid.middle(4, "narow")


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_integers_of_a_grid_go_from_0_to_its_top(name, bits):
    values = np.linspace(-2.5, 2.5, 1001, dtype=np.float32)
    maximum = ops.convert_to_tensor(np.float32(2.0))
    units = to_numpy(grid.grid_units(ops.convert_to_tensor(values), maximum, bits, name))
    divisor, top, offset, _ = reference.GRIDS[name]
    position = divisor(bits) * (np.float64(values) / 2.0 + 1.0) / 2.0
    expected = np.clip(np.floor(position + offset), 0, top(bits))
    clear = reference.distance_from_tie(position, name) > 1e-4
    np.testing.assert_array_equal(units[clear], expected[clear])
    assert set(units) == set(range(top(bits) + 1))
    special = ops.convert_to_tensor(np.float32([-np.inf, np.inf, np.nan]))
    found = to_numpy(grid.grid_units(special, maximum, bits, name))
    np.testing.assert_array_equal(found, [0, top(bits), np.nan])
