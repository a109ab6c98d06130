import itertools
import math

import numpy as np
import pytest

from benchmarks.haq_searches import (
    ACTIVATIONS,
    WEIGHTS,
    greedy_search,
    random_search,
    stepped,
    within_budget,
)
from sat_tf.analysis.allocation.budget import Knapsack, solve

BITS = (2, 4, 8)


def layers(limit, *, tie=(-1, -1, -1), sizes=(10, 20, 40)):
    """Three layers of (weight bits, activation bits), which use size · weights · activations."""
    pairs = list(itertools.product(BITS, BITS))
    draw = np.random.default_rng(0)
    weight = draw.random((3, 2))
    cost = [
        weight[item, 0] * 4.0**-w + weight[item, 1] * 4.0**-a for item in range(3) for w, a in pairs
    ]
    problem = Knapsack(
        item=np.repeat(np.arange(3), len(pairs)),
        cost=np.array(cost),
        usage={"product": np.array([size * w * a for size in sizes for w, a in pairs], float)},
        limits={"product": float(limit)},
        level=np.array([a for _ in sizes for _, a in pairs]),
        tie=np.array(tie),
    )
    return problem, np.array(pairs * 3)


def cost_of(problem):
    return lambda chosen: math.fsum(problem.cost[chosen])


def chosen_bits(bits, chosen):
    return [tuple(map(int, bits[option])) for option in chosen]


def same_bits(bits, number):
    """The option of each layer that has these bits."""
    return np.flatnonzero((bits == number).all(axis=1))


def test_the_budget_is_met_from_the_last_layer_backwards():
    # 64 · 70 = 4480. The last layer: activations to 4, 3200; its weights to 4, 2560;
    # the second one: activations to 4, 1920.
    for limit, expected in (
        (4480, [(8, 8), (8, 8), (8, 8)]),
        (3200, [(8, 8), (8, 8), (8, 4)]),
        (2560, [(8, 8), (8, 8), (4, 4)]),
        (2000, [(8, 8), (8, 4), (4, 4)]),
        (280, [(2, 2), (2, 2), (2, 2)]),
    ):
        problem, bits = layers(limit)
        most = same_bits(bits, 8)
        found = within_budget(problem, bits, most)
        assert problem.within(found)
        assert chosen_bits(bits, found) == expected
    problem, bits = layers(279)
    assert within_budget(problem, bits, same_bits(bits, 8)) is None


def test_items_of_a_tie_step_together():
    problem, bits = layers(1e9, tie=(0, -1, 0))
    start = same_bits(bits, 4)
    moved = stepped(problem, bits, start, 0, ACTIVATIONS, -1)
    assert chosen_bits(bits, moved) == [(4, 2), (4, 4), (4, 2)]
    moved = stepped(problem, bits, start, 0, WEIGHTS, 1)
    assert chosen_bits(bits, moved) == [(8, 4), (4, 4), (4, 4)]
    assert stepped(problem, bits, same_bits(bits, 8), 0, WEIGHTS, 1) is None


@pytest.mark.parametrize("tie", [(-1, -1, -1), (0, -1, 0)])
@pytest.mark.parametrize("limit", [300, 1000, 2500])
def test_searches_keep_the_budget_and_are_never_better_than_the_optimum(limit, tie):
    problem, bits = layers(limit, tie=tie)
    best = solve(problem)
    for found in (
        random_search(problem, bits, cost_of(problem), evaluations=40, seed=0),
        greedy_search(problem, bits, cost_of(problem), evaluations=40),
    ):
        assert problem.within(found.chosen)
        levels = problem.level[found.chosen]
        assert tie[0] < 0 or levels[0] == levels[2]
        assert found.cost == cost_of(problem)(found.chosen) >= best.cost - 1e-12
        assert len(found.history) <= 40
        assert list(found.history) == sorted(found.history, reverse=True)
        assert found.history[-1] == found.cost


def test_both_evaluate_as_often_as_they_are_told():
    problem, bits = layers(1000)
    calls = []

    def ever_better(_):
        calls.append(1)
        return 0.5 ** len(calls)

    random_search(problem, bits, ever_better, evaluations=7, seed=0)
    assert len(calls) == 7
    greedy_search(problem, bits, ever_better, evaluations=7)
    assert len(calls) == 14


def test_a_seed_gives_one_search():
    problem, bits = layers(1000)
    one, other = (
        random_search(problem, bits, cost_of(problem), evaluations=20, seed=3) for _ in range(2)
    )
    assert one.chosen.tolist() == other.chosen.tolist()


def test_budgets_below_the_fewest_bits_have_no_search():
    problem, bits = layers(279)
    assert random_search(problem, bits, cost_of(problem), evaluations=5, seed=0) is None
    assert greedy_search(problem, bits, cost_of(problem), evaluations=5) is None
