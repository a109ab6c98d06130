import pytest

from sat_tf.reproduction.figures.figure import Numbers

TABLE = Numbers(("grid", "bits", "ratio"), (("dorefa", 1, 2.0 / 3.0), ("dorefa", 2, 1e-9)))


def test_a_table_is_read_back_to_six_digits():
    text = TABLE.to_csv()
    assert text == "grid,bits,ratio\ndorefa,1,0.666667\ndorefa,2,1e-09\n"
    again = Numbers.from_csv(text, TABLE.columns)
    assert again.rows == (("dorefa", 1, 0.666667), ("dorefa", 2, 1e-9))
    assert again.to_csv() == text


def test_columns_and_rows_are_found_by_name():
    assert TABLE["bits"].tolist() == [1.0, 2.0]
    assert TABLE.where(grid="dorefa", bits=2).rows == (("dorefa", 2, 1e-9),)
    assert TABLE.row(bits=1) == {"bits": 1.0, "ratio": 2.0 / 3.0}
    assert TABLE.distinct("grid") == ["dorefa"]


@pytest.mark.parametrize(
    "text",
    ["", "grid,bits\n", "grid,bits,ratio\n", "grid,bits,ratio\nx,1\n", 'grid,"bi'],
)
def test_what_is_no_such_table_is_refused(text):
    with pytest.raises(ValueError, match="expected rows of grid, bits, ratio"):
        Numbers.from_csv(text, TABLE.columns)
