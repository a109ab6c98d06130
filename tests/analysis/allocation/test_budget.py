import math

import pytest

from sat_tf.analysis.allocation.budget import Share, read_budget


def test_numbers_and_shares_are_read():
    found = read_budget({"bytes": 10, "bit_operations": "30%"}, has_latency=False)
    assert found == {"bytes": 10.0, "bit_operations": Share(0.3)}


def test_average_bits_are_those_of_weights_and_of_activations():
    found = read_budget({"average_bits": 4}, has_latency=False)
    assert found == {"average_weight_bits": 4.0, "average_activation_bits": 4.0}


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, None, "4", "x%", "-3%", "0%"])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(ValueError, match=r"bytes=.*expected a number above 0"):
        read_budget({"bytes": value}, has_latency=False)


@pytest.mark.parametrize("budget", [None, {}, 4, ["bytes"]])
def test_a_budget_needs_a_limit(budget):
    with pytest.raises(ValueError, match="expected a mapping with at least one limit"):
        read_budget(budget, has_latency=False)


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
            has_latency=False,
        )
    text = str(caught.value)
    assert "'bits' is not a limit" in text
    assert "received no `latency`" in text
    assert "two limits, by average_bits and average_weight_bits" in text


def test_a_wrong_name_is_met_with_the_right_one():
    with pytest.raises(ValueError, match="Did you mean bit_operations"):
        read_budget({"bitoperations": 1}, has_latency=False)
