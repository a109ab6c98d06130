import functools
import itertools

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import given, settings
from hypothesis import strategies as st

import sat_tf
from sat_tf.analysis.allocation.allocation import costs_of_table
from sat_tf.analysis.allocation.budget import Knapsack, read_budget, solve
from sat_tf.analysis.allocation.choices import LayerChoices, ModelChoices
from sat_tf.qat.policy import BitPolicy
from tests.analysis.allocation.small_models import joined, residual

L = keras.layers
BITS = (2, 4, 8)
EVERYWHERE = {"first_last_weight_bits": None}


def choices(model, policy=None):
    return ModelChoices(model, policy or BitPolicy.mobile(4), BITS, BITS)


def named(model, policy=None):
    return {layer.name: layer for layer in choices(model, policy).layers}


def test_the_policy_settles_the_ends_and_streams_and_what_it_overrides():
    found = named(residual())
    assert found["stem"].choices == found["classifier"].choices == [(8, 8)]
    # It reads the stream of the first sum as it is.
    assert found["one"].choices == [(2, 8), (4, 8), (8, 8)]
    assert found["two"].choices == list(itertools.product(BITS, BITS))
    found = named(residual(), BitPolicy.mobile(4, **EVERYWHERE))
    assert found["stem"].choices == [(2, 8), (4, 8), (8, 8)]
    overrides = {"two": {"weight_bits": 3}, "four": {"activation_bits": 5}}
    found = named(residual(), BitPolicy.mobile(4, overrides=overrides))
    assert found["two"].choices == [(3, 2), (3, 4), (3, 8)]
    assert found["four"].choices == [(2, 5), (4, 5), (8, 5)]


def test_layers_that_read_one_tensor_or_parts_of_a_concatenation_are_tied():
    found = named(residual())
    assert found["three"].tie == found["shortcut"].tie
    assert len({found[name].tie for name in ("two", "three", "four")}) == 3
    found = named(joined())
    assert found["up"].tie == found["down"].tie
    assert found["left"].tie == found["right"].tie
    assert found["left"].tie != found["up"].tie


def test_layers_that_read_one_stream_are_tied_where_streams_are_requantized():
    image = keras.Input((8, 8, 3))
    stem = L.Conv2D(4, 3, padding="same", name="stem")(image)
    parts = [L.Conv2D(4, 1, name=name)(stem) for name in ("one", "two")]
    tensor = L.Flatten()(L.Add()([*parts, stem]))
    model = keras.Model(image, L.Dense(3, name="classifier")(tensor))
    found = named(model, BitPolicy.mobile(4, requantize_streams=True))
    assert found["one"].chooses_activations
    assert found["one"].tie == found["two"].tie
    as_they_are = named(model)
    assert not as_they_are["one"].chooses_activations


def test_calls_of_one_layer_tie_what_they_read():
    image = keras.Input((8, 8, 4))
    again = L.Conv2D(4, 3, padding="same", activation="relu", name="again")
    first = L.Conv2D(4, 3, padding="same", activation="relu", name="first")(image)
    one = again(first)
    side = L.Conv2D(4, 1, name="side")(one)
    two = again(one)
    tensor = L.Flatten()(L.Add()([two, side]))
    model = keras.Model(image, L.Dense(3, name="classifier")(tensor))
    layers = named(model)
    assert list(layers) == ["first", "again", "side", "classifier"]
    assert layers["again"].tie == layers["side"].tie
    plan = sat_tf.explain(model, choices(model).policy_at(2, 8))
    assert (plan["again"].weights.bits, plan["again"].reading_bits) == (2, 8)
    assert plan["again@2"].reading_bits == plan["side"].reading_bits == 8


def test_the_policy_has_the_bits_in_the_layers_that_were_chosen():
    model = residual()
    found = choices(model)
    policy = found.policy_of({"two": (2, 8), "three": (8, 2), "shortcut": (4, 2), "stem": (2, 2)})
    plan = sat_tf.explain(model, policy)
    bits = {row.name: (row.weights.bits, row.reading_bits) for row in plan.rows if row.weights}
    assert bits == {
        "stem": (8, 8),
        "one": (4, 8),
        "two": (2, 8),
        "three": (8, 2),
        "four": (4, 4),
        "shortcut": (4, 2),
        "classifier": (8, 8),
    }
    # Equal bits need no operator between grids.
    assert not [row for row in plan.insertions if "_to_" in row.name]


def test_open_image_sizes_leave_values_unknown():
    image = keras.Input((None, None, 3))
    tensor = L.Conv2D(4, 3, activation="relu", name="stem")(image)
    tensor = L.Conv2D(4, 1, activation="relu", name="conv")(tensor)
    model = keras.Model(image, L.Dense(3)(L.GlobalAveragePooling2D()(tensor)))
    conv = named(model)["conv"]
    assert conv.values_read is None


# -- limits and costs ------------------------------------------------------------------------------


def test_numbers_and_shares_are_read_and_pairs_of_bits_win_over_weight_bits_alone():
    found = read_budget({"bytes": np.int64(10), "average_bits": "62.5%"})
    both = ("average_weight_bits", "average_activation_bits")
    assert found == {"bytes": 10, **dict.fromkeys(both, "62.5%")}
    assert type(found["bytes"]) is int
    assert read_budget({"average_bits": 4}) == dict.fromkeys(both, 4.0)
    rows = ("conv", (2, 4), True), ("dense", (8,), False)
    numbers = {"num_weights": 1, "tie": 0, "values_read": 1, "activation_bits": (8,)}
    common = {"kind": "Conv2D", "chooses_activations": False, "reads_settled": True, **numbers}
    two = [
        LayerChoices(name=name, weight_bits=bits, chooses_weights=is_chosen, **common)
        for name, bits, is_chosen in rows
    ]
    values = functools.partial(costs_of_table, layers=two)
    assert values({"conv": {2: 3, 4: 2, (4, 8): 1}}) == [3.0, 1.0, 0.0]
    assert values({"conv": 0.5, "dense": 2}) == [0.5, 0.5, 2.0]
    assert values({"conv": {4: 3, None: 1}}) == [1.0, 3.0, 0.0]


# -- the problem that is solved --------------------------------------------------------------------


def knapsack(costs, usage, limits, *, levels=None, tie=None):
    """A problem from nested lists: costs[item][option], usage[limit][item][option]."""
    item = [index for index, options in enumerate(costs) for _ in options]
    flat = [cost for options in costs for cost in options]
    return Knapsack(
        item=np.array(item),
        cost=np.array(flat, float),
        usage={
            str(index): np.array([one for row in limit for one in row])
            for index, limit in enumerate(usage)
        },
        limits={str(index): float(limit) for index, limit in enumerate(limits)},
        level=np.array([one for row in levels for one in row] if levels else [0] * len(flat)),
        tie=np.array(tie or range(len(costs))),
    )


def all_choices(problem):
    """Every choice within limits and ties, worked out without the solver."""
    for chosen in itertools.product(*(problem.options(i) for i in range(len(problem.tie)))):
        chosen = np.array(chosen)
        levels = {}
        for item, option in enumerate(chosen):
            levels.setdefault(problem.tie[item], set()).add(problem.level[option])
        tied = all(len(found) == 1 for found in levels.values())
        used = {name: usage[chosen].sum() for name, usage in problem.usage.items()}
        if tied and all(used[name] <= most * (1 + 1e-12) for name, most in problem.limits.items()):
            yield chosen


@st.composite
def problems(draw):
    items = draw(st.integers(1, 4))
    options = [draw(st.integers(1, 4)) for _ in range(items)]
    num_limits = draw(st.integers(0, 2))
    number = st.integers(0, 12)
    # Costs of very different sizes, as traces are.
    cost = st.floats(0.0, 1.0).map(lambda x: 10.0 ** (8.0 * x - 6.0))
    costs = [[draw(cost) for _ in range(n)] for n in options]
    usage = [[[draw(number) for _ in range(n)] for n in options] for _ in range(num_limits)]
    limits = [draw(st.integers(0, 30)) for _ in range(num_limits)]
    levels = [[draw(st.integers(0, 2)) for _ in range(n)] for n in options]
    tie = [draw(st.sampled_from([item, item, 0, 1])) for item in range(items)]
    return knapsack(costs, usage, limits, levels=levels, tie=tie)


@pytest.mark.essential
@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_solver_finds_what_trying_everything_finds(problem):
    best = min((problem.cost[chosen].sum() for chosen in all_choices(problem)), default=None)
    found = solve(problem)
    if best is None:
        assert found is None
        return
    # HiGHS stops within 1e-6 where the largest cost is 1e3.
    largest = float(np.abs(problem.cost).max())
    assert found.cost == pytest.approx(best, rel=1e-9, abs=2e-9 * largest)
    assert found.cost == found.bound
    assert found.chosen.tolist() in [chosen.tolist() for chosen in all_choices(problem)]


def test_a_table_and_the_ends_of_its_limit_worked_by_hand():
    # Three layers of 10, 20 and 40 bytes a bit, at 2, 4 or 8 bits; 360 bytes are 5.14 bits a byte.
    #   2,8,4: 20+160+160 = 340, cost 4+0+2 = 6     8,8,2: 80+160+80 = 320, cost 0+0+9 = 9
    #   4,4,4: 40+80+160 = 280, cost 1+3+2 = 6      8,4,4: 80+80+160 = 320, cost 0+3+2 = 5
    #   4,8,4: 40+160+160 = 360, cost 1+0+2 = 3     8,8,4: 400, too much
    costs = [[4, 1, 0], [7, 3, 0], [9, 2, 0]]
    usage = [[[20, 40, 80], [40, 80, 160], [80, 160, 320]]]
    found = solve(knapsack(costs, usage, [360]))
    assert (found.chosen.tolist(), found.cost, found.bound) == ([1, 5, 7], 3.0, 3.0)
    assert solve(knapsack(costs, usage, [359])).cost == 5.0
    assert solve(knapsack(costs, usage, [139])) is None
    usage = [[[1, 4], [3, 2]], [[4, 1], [4, 1]]]
    problem = knapsack([[0, 0], [0, 0]], usage, [100, 5])
    assert (problem.ends("0"), problem.ends("1")) == ((3, 7), (2, 8))


@pytest.mark.parametrize("size", [1, 10**6, 10**12])
def test_limits_are_kept_to_the_last_digit_by_the_cheapest_choice(size):
    # The second option of the last item is too much, by less than the solver sees.
    usage = [[[size, 2 * size]] * 5 + [[0, 1]]]
    costs = [[1, 0]] * 5 + [[1, 0]]
    problem = knapsack(costs, usage, [7 * size])
    found = solve(problem)
    assert problem.used(found.chosen)["0"] <= 7 * size
    assert (found.cost, found.bound) == (4.0, 4.0)
    limit = 33 * (1.0 - 1e-8)
    problem = knapsack([[5, 1], [2, 0]], [[[5, 22], [3, 11]]], [limit])
    found = solve(problem)
    assert (found.chosen.tolist(), found.cost, found.bound) == ([1, 2], 3.0, 3.0)
    assert solve(problem, **{"0": 33}).cost == 1.0


def test_the_solver_prints_nothing_and_answers_the_same_again(capfd):
    draw = np.random.default_rng(1)
    costs, usage = 10.0 ** draw.uniform(-4, 3, (40, 9)), draw.integers(0, 1000, (2, 40, 9))
    weights = draw.integers(1, 500, (40, 1)) * np.arange(2, 11)
    problem = knapsack(costs.tolist(), usage.tolist(), [16_000, 17_000])
    one, other = solve(problem), solve(problem)
    assert one.chosen.tolist() == other.chosen.tolist()
    assert (one.cost, one.bound) == (other.cost, other.bound)
    solve(knapsack(costs.tolist(), [weights.tolist()], [0.4 * weights[:, -1].sum()]))
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"
