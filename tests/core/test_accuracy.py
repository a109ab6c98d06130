from tests.core import accuracy

# Half a unit in the last place of 1 in float32.
EPSILON = 2.0**-24


def test_float32_is_within_a_few_last_places_of_float64():
    rows = accuracy.measure_all(size=2**16)
    print("\n" + accuracy.table(rows))  # shown by pytest -s
    assert [row.bits for row in rows] == [*range(1, 9), *range(2, 9)]
    for row in rows:
        # A subtraction and a product with a rounded constant.
        assert row.weights <= 2 * EPSILON, row
        # The step and its product with the code, each rounded.
        assert row.activations <= 3 * EPSILON, row
        # At the largest weight the slope 1 - t² is a twentieth, so it has 40 times the relative
        # error of t, which is off by a unit or two.
        assert row.weight_gradient <= 100 * EPSILON, row
        # A sum of 2^16 products.
        assert row.level_gradient <= 4 * EPSILON, row
        # At ties only: nearer than the rounding of a position, which is below 256.
        assert row.from_tie <= 256 * 4 * EPSILON, row
        assert row.differing_codes <= 2**17 * 256 * 8 * EPSILON, row
