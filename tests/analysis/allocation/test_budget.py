from sat_tf.analysis.allocation.allocation import costs_of_table
from sat_tf.analysis.allocation.budget import SHORT, read_budget
from sat_tf.analysis.allocation.choices import LayerChoices


def test_numbers_and_shares_are_read():
    found = read_budget({"bytes": 10, "average_bits": "30%"})
    assert found == {"bytes": 10.0, **dict.fromkeys(SHORT["average_bits"], "30%")}


def test_average_bits_are_those_of_weights_and_of_activations():
    found = read_budget({"average_bits": 4})
    assert found == {"average_weight_bits": 4.0, "average_activation_bits": 4.0}


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
    return costs_of_table(table, LAYERS)


def test_pairs_of_bits_win_over_weight_bits_alone():
    assert values({"conv": {2: 3, 4: 2, (4, 8): 1}}) == [3.0, 1.0, 0.0]


def test_one_number_holds_for_every_choice():
    assert values({"conv": 0.5, "dense": 2}) == [0.5, 0.5, 2.0]
    assert values({"conv": {4: 3, None: 1}}) == [1.0, 3.0, 0.0]
