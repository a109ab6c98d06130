import math

import pytest

from sat_tf.analysis.allocation.tables import Wanted, read_csv, read_values

LAYERS = [Wanted("conv", [(2, 8), (4, 8)]), Wanted("dense", [(8, 8)], optional=True)]


def values(table):
    return read_values(table, LAYERS, name="cost", unit="cost")


def test_pairs_of_bits_win_over_weight_bits_alone():
    assert values({"conv": {2: 3, 4: 2, (4, 8): 1}}) == [[3.0, 1.0], [0.0]]


def test_one_number_holds_for_every_choice():
    assert values({"conv": 0.5, "dense": 2}) == [[0.5, 0.5], [2.0]]


def test_all_problems_are_listed_at_once():
    table = {"cnv": 1, "conv": {(2, 8): math.nan, "4": 1, (4, 9): 1}, "dense": -1}
    with pytest.raises(ValueError, match="cost: 6 problems") as caught:
        values(table)
    text = str(caught.value)
    assert "'cnv' is not a quantized linear layer of the model. Did you mean conv?" in text
    assert "conv[(2, 8)]: received nan, expected a finite number" in text
    assert "conv['4']: expected (weight bits, activation bits)" in text
    assert "conv[(4, 9)]: expected (weight bits, activation bits)" in text
    assert "conv: received no number for (4, 8)" in text
    assert "dense: received -1" in text


def test_a_layer_that_is_missing_is_named():
    with pytest.raises(ValueError, match="conv: received nothing, expected its cost"):
        values({})


@pytest.mark.parametrize("table", [3, "costs.csv", [("conv", 1)]])
def test_what_is_no_table_is_refused(table):
    with pytest.raises(ValueError, match="expected a mapping from layers"):
        values(table)


@pytest.mark.parametrize("value", ["1", None, True, math.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="conv: received"):
        values({"conv": value})


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_csv_file_is_a_table(tmp_path):
    path = written(
        tmp_path / "costs.csv",
        "layer,weight_bits,activation_bits,cost",
        "conv,2,,3",
        "conv,4,8,1",
        "dense,,,0.25",
    )
    assert read_csv(path, "cost") == {"conv": {2: 3.0, (4, 8): 1.0}, "dense": 0.25}


def test_all_wrong_lines_are_listed_at_once(tmp_path):
    path = written(
        tmp_path / "costs.csv",
        "layer,weight_bits,activation_bits,cost",
        "conv,two,,3",
        "conv,4,8,",
        "conv,,8,1",
        "dense,8,8,1",
        "dense,8,8,2",
    )
    with pytest.raises(ValueError, match="4 problems") as caught:
        read_csv(path, "cost")
    for number in (2, 3, 4, 6):
        assert f"line {number}: " in str(caught.value)


@pytest.mark.parametrize("lines", [[], ["layer,weight_bits"], ["name,cost", "conv,1"]])
def test_a_file_without_its_columns_is_refused(lines, tmp_path):
    with pytest.raises(ValueError, match="expected the columns layer, weight_bits"):
        read_csv(written(tmp_path / "costs.csv", *lines), "cost")


def test_a_file_that_is_not_there_is_one_message(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_csv(tmp_path / "costs.csv", "cost")
