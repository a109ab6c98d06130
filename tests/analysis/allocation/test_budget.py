import math

import pytest

from sat_tf.analysis.allocation.budget import SHORT, read_budget
from sat_tf.analysis.allocation.choices import LayerChoices
from sat_tf.analysis.allocation.costs import of_table


def test_numbers_and_shares_are_read():
    found = read_budget({"bytes": 10, "average_bits": "30%"})
    assert found == {"bytes": 10.0, **dict.fromkeys(SHORT["average_bits"], "30%")}


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
    assert "received no `npu`" in text
    assert "average_weight_bits: received two limits, by it and by average_bits" in text


def test_milliseconds_are_known_of_an_npu():
    assert read_budget({"milliseconds": "50%"}, npu=True) == {"milliseconds": "50%"}
    with pytest.raises(ValueError, match=r"milliseconds='50%': received no `npu`"):
        read_budget({"milliseconds": "50%"})


def test_a_wrong_name_is_met_with_the_right_one():
    with pytest.raises(ValueError, match="Did you mean average_bits"):
        read_budget({"averagebits": 1})


@pytest.mark.parametrize("name", ["ideal_bytes", "bit_operations", "compiled_bytes"])
def test_limits_of_earlier_versions_say_what_to_use(name):
    with pytest.raises(ValueError, match=f"'{name}' is not a limit. Use (average|milliseconds)"):
        read_budget({name: 1})


def layer(name, weight_bits, *, is_chosen):
    return LayerChoices(
        name=name,
        kind="Conv2D",
        num_weights=1,
        usual_bits=8,
        weight_bits=weight_bits,
        activation_bits=(8,),
        chooses_weights=is_chosen,
        chooses_activations=False,
        reads_settled=True,
        tie=-1,
        values_read=1,
    )


LAYERS = [layer("conv", (2, 4), is_chosen=True), layer("dense", (8,), is_chosen=False)]


def values(table):
    return of_table(table, LAYERS)


def test_pairs_of_bits_win_over_weight_bits_alone():
    assert values({"conv": {2: 3, 4: 2, (4, 8): 1}}) == [[3.0, 1.0], [0.0]]


def test_one_number_holds_for_every_choice():
    assert values({"conv": 0.5, "dense": 2}) == [[0.5, 0.5], [2.0]]
    assert values({"conv": {4: 3, None: 1}}) == [[1.0, 3.0], [0.0]]


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
    assert "dense[(8, 8)]: received -1" in text


def test_a_layer_that_is_missing_is_named():
    with pytest.raises(ValueError, match="conv: received nothing, expected its cost"):
        values({})


@pytest.mark.parametrize("value", ["1", None, True, math.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match=r"conv.*: received"):
        values({"conv": value})
