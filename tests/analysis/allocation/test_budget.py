import math

import pytest

from sat_tf.analysis.allocation.budget import Share, read_budget, read_csv, read_values


def test_numbers_and_shares_are_read():
    found = read_budget({"bytes": 10, "bit_operations": "30%"})
    assert found == {"bytes": 10.0, "bit_operations": Share(0.3)}


def test_average_bits_are_those_of_weights_and_of_activations():
    found = read_budget({"average_bits": 4})
    assert found == {"average_weight_bits": 4.0, "average_activation_bits": 4.0}


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, None, "4", "x%", "-3%", "0%"])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(ValueError, match=r"bytes=.*expected a number above 0"):
        read_budget({"bytes": value})


@pytest.mark.parametrize("budget", [None, {}, 4, ["bytes"]])
def test_a_budget_needs_a_limit(budget):
    with pytest.raises(ValueError, match="expected a mapping with at least one limit"):
        read_budget(budget)


def test_all_problems_are_listed_at_once():
    with pytest.raises(ValueError, match="budget: 4 problems") as caught:
        read_budget(
            {
                "bits": 1,
                "bytes": -1,
                "milliseconds": 3,
                "average_bits": 4,
                "average_weight_bits": 3,
            },
        )
    text = str(caught.value)
    assert "'bits' is not a limit" in text
    assert "received no `latency`" in text
    assert "two limits, by average_bits and average_weight_bits" in text


def test_limits_of_a_table_are_known_with_it():
    budget = {"milliseconds": 3, "compiled_bytes": "50%"}
    assert list(read_budget(budget, ["milliseconds", "compiled_bytes"])) == list(budget)
    with pytest.raises(ValueError, match=r"compiled_bytes='50%': received no `npu`"):
        read_budget(budget, ["milliseconds"])


def test_a_wrong_name_is_met_with_the_right_one():
    with pytest.raises(ValueError, match="Did you mean bit_operations"):
        read_budget({"bitoperations": 1})


LAYERS = {"conv": [(2, 8), (4, 8)], "dense": [(8, 8)]}


def values(table):
    return read_values(table, LAYERS, name="cost", unit="cost", optional=["dense"])


def test_pairs_of_bits_win_over_weight_bits_alone():
    assert values({"conv": {2: 3, 4: 2, (4, 8): 1}}) == [[3.0, 1.0], [0.0]]


def test_one_number_holds_for_every_choice():
    assert values({"conv": 0.5, "dense": 2}) == [[0.5, 0.5], [2.0]]


def test_all_problems_of_a_table_are_listed_at_once():
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


def test_numbers_with_decimal_commas_are_refused(tmp_path):
    path = written(tmp_path / "costs.csv", "layer,weight_bits,activation_bits,cost", "conv,4,,1,5")
    with pytest.raises(ValueError, match=r"line 2: received 5 fields, expected 4; write 1\.5"):
        read_csv(path, "cost")


def test_a_long_list_of_wrong_lines_is_a_short_message(tmp_path):
    path = written(tmp_path / "costs.csv", "layer,cost", *["conv,none"] * 5000)
    with pytest.raises(ValueError, match="5000 problems") as caught:
        read_csv(path, "cost")
    assert len(str(caught.value)) < 2000


def test_a_table_that_is_too_long_is_not_read_in_part(tmp_path):
    path = written(tmp_path / "costs.csv", "layer,cost", "head,1", "\n" * 2**22, "conv,12345")
    with pytest.raises(ValueError, match="at most 4,194,304 are read; expected a CSV file"):
        read_csv(path, "cost")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["layer,weight_bits"],
        ["name,cost", "conv,1"],
        ["layer,cost,cost", "conv,1,2"],
        ["layer,weigth_bits,cost", "conv,4,1"],
    ],
)
def test_a_file_without_its_columns_is_refused(lines, tmp_path):
    with pytest.raises(ValueError, match="expected the columns layer, weight_bits"):
        read_csv(written(tmp_path / "costs.csv", *lines), "cost")


def test_a_file_that_is_not_there_is_one_message(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_csv(tmp_path / "costs.csv", "cost")
