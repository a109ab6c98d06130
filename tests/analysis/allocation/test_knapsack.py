import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.analysis.allocation.knapsack import Knapsack, Solution, fewest, pareto, solve


def knapsack(costs, usage, limits, *, levels=None, tie=None, base=None):
    """A problem from nested lists: costs[item][option], usage[limit][item][option]."""
    item = [index for index, options in enumerate(costs) for _ in options]
    flat = [cost for options in costs for cost in options]
    return Knapsack(
        item=np.array(item),
        cost=np.array(flat, float),
        usage=np.array([[one for row in limit for one in row] for limit in usage], float).reshape(
            len(limits), len(flat)
        ),
        limits=np.array(limits, float),
        base=np.zeros(len(limits)) if base is None else np.array(base, float),
        level=np.array([one for row in levels for one in row] if levels else [0] * len(flat)),
        tie=np.array(tie or [-1] * len(costs)),
    )


def all_choices(problem):
    """Every choice within limits and ties, worked out without the solver."""
    for chosen in itertools.product(*(problem.options(i) for i in range(problem.num_items))):
        chosen = np.array(chosen)
        levels = {}
        for item, option in enumerate(chosen):
            levels.setdefault(problem.tie[item], set()).add(problem.level[option])
        tied = all(len(found) == 1 for tie, found in levels.items() if tie >= 0)
        used = problem.base + problem.usage[:, chosen].sum(axis=1)
        if tied and np.all(used <= problem.limits * (1 + 1e-12)):
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
    tie = [draw(st.sampled_from([-1, -1, 0, 1])) for _ in range(items)]
    return knapsack(costs, usage, limits, levels=levels, tie=tie)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_solver_finds_what_trying_everything_finds(problem):
    best = min((problem.costs(chosen) for chosen in all_choices(problem)), default=None)
    found = solve(problem)
    if best is None:
        assert found is None
        return
    # HiGHS stops within 1e-6 where the largest cost is 1e5.
    largest = float(np.abs(problem.cost).max())
    assert found.cost == pytest.approx(best, rel=1e-9, abs=1e-10 * largest)
    assert found.bound <= best * (1 + 1e-9) + 1e-10 * largest
    assert found.status == "optimal"
    assert found.chosen.tolist() in [chosen.tolist() for chosen in all_choices(problem)]


def test_a_table_worked_by_hand():
    # Three layers of 10, 20 and 40 bytes a bit, at 2, 4 or 8 bits; 360 bytes are 5.14 bits a byte.
    #   2,8,4: 20+160+160 = 340, cost 4+0+2 = 6     8,8,2: 80+160+80 = 320, cost 0+0+9 = 9
    #   4,4,4: 40+80+160 = 280, cost 1+3+2 = 6      8,4,4: 80+80+160 = 320, cost 0+3+2 = 5
    #   4,8,4: 40+160+160 = 360, cost 1+0+2 = 3     8,8,4: 400, too much
    costs = [[4, 1, 0], [7, 3, 0], [9, 2, 0]]
    usage = [[[20, 40, 80], [40, 80, 160], [80, 160, 320]]]
    found = solve(knapsack(costs, usage, [360]))
    assert (found.chosen.tolist(), found.cost, found.used.tolist()) == ([1, 5, 7], 3.0, [360.0])
    assert (found.bound, found.gap) == (3.0, 0.0)
    assert solve(knapsack(costs, usage, [359])).cost == 5.0
    assert solve(knapsack(costs, usage, [139])) is None


def test_what_is_used_anyway_counts():
    costs, usage = [[1, 0]], [[[1, 2]]]
    assert solve(knapsack(costs, usage, [10], base=[8])).cost == 0.0
    assert solve(knapsack(costs, usage, [10], base=[9])).cost == 1.0
    assert solve(knapsack(costs, usage, [10], base=[10])) is None


def test_items_of_a_tie_have_one_level():
    # Alone, the first would take level 8 and the second level 2.
    costs, levels = [[5, 0], [0, 4]], [[2, 8], [2, 8]]
    free = solve(knapsack(costs, [], [], levels=levels))
    tied = solve(knapsack(costs, [], [], levels=levels, tie=[3, 3]))
    assert (free.chosen.tolist(), free.cost) == ([1, 2], 0.0)
    assert (tied.chosen.tolist(), tied.cost) == ([1, 3], 4.0)


def test_a_tie_without_a_common_level_excludes_every_choice():
    assert solve(knapsack([[0], [0]], [], [], levels=[[2], [8]], tie=[0, 0])) is None


@pytest.mark.parametrize("size", [1, 10**6, 10**12])
def test_limits_are_kept_to_the_last_digit(size):
    # The second option of the last item is too much, by less than the solver sees.
    usage = [[[size, 2 * size]] * 5 + [[0, 1]]]
    costs = [[1, 0]] * 5 + [[1, 0]]
    found = solve(knapsack(costs, usage, [7 * size]))
    assert found.used[0] <= 7 * size
    assert found.cost == 4.0
    assert found.gap == 0.0


def test_costs_of_very_different_sizes_are_told_apart():
    costs = [[1e6, 0.0], [1e-3, 0.0], [2e-3, 0.0]]
    usage = [[[0, 1], [0, 1], [0, 1]]]
    assert solve(knapsack(costs, usage, [2])).chosen.tolist() == [1, 2, 5]


def test_the_least_of_a_limit_is_found_with_and_without_the_others():
    usage = [[[1, 4], [1, 4]], [[4, 1], [4, 1]]]
    problem = knapsack([[0, 0], [0, 0]], usage, [100, 5])
    assert fewest(problem, 0) == 2.0
    assert fewest(problem, 0, keep_others=True) == 5.0
    assert fewest(problem.with_limits(np.array([100.0, 1.0])), 0, keep_others=True) is None


@settings(max_examples=20, deadline=None)
@given(problems().filter(lambda problem: len(problem.limits) == 2))
def test_no_choice_is_better_in_both_than_the_curve(problem):
    curve = pareto(problem, 0, points=60)
    others = problem.with_limits(np.array([np.inf, problem.limits[1]]))
    every = [(problem.used(c)[0], problem.costs(c)) for c in all_choices(others)]
    assert bool(curve) == bool(every)
    for one in curve:
        better = [c for used, c in every if used <= one.used[0]]
        assert one.cost == pytest.approx(min(better), rel=1e-9, abs=1e-9 * problem.cost.max())
    used, costs = [one.used[0] for one in curve], [one.cost for one in curve]
    assert used == sorted(used)
    assert costs == sorted(costs, reverse=True)


def test_the_same_problem_has_the_same_answer():
    draw = np.random.default_rng(0)
    costs, usage = draw.random((30, 9)), draw.random((2, 30, 9))
    problem = knapsack(costs.tolist(), usage.tolist(), [12.0, 13.0])
    one, other = solve(problem), solve(problem)
    assert one.chosen.tolist() == other.chosen.tolist()
    assert (one.cost, one.bound) == (other.cost, other.bound)


def test_the_solver_prints_nothing(capfd):
    draw = np.random.default_rng(1)
    costs, usage = 10.0 ** draw.uniform(-4, 3, (40, 9)), draw.random((2, 40, 9))
    pareto(knapsack(costs.tolist(), usage.tolist(), [16.0, 17.0]), 0, points=5)
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"


def test_a_search_that_is_stopped_says_what_it_has_proven():
    draw = np.random.default_rng(0)
    # Costs that hang together with what they use: hard to prove anything about.
    usage = draw.integers(1000, 2000, (3, 60, 12))
    costs = 10.0 - usage.mean(axis=0) / 1000
    problem = knapsack(costs.tolist(), usage.tolist(), usage.sum(axis=(1, 2)) / 12.0 * 0.97)
    found = solve(problem, seconds=1.0)
    assert found.status == "stopped"
    assert found.bound <= found.cost
    assert found.gap > 0.0
    with pytest.raises(ValueError, match="seconds=1e-06: received a solver that found no choice"):
        solve(problem, seconds=1e-6)


def test_the_gap_is_relative_to_the_cost():
    made = Solution(np.zeros(1, int), 4.0, np.zeros(0), 3.0, "stopped")
    assert made.gap == 0.25
    assert Solution(np.zeros(1, int), 0.0, np.zeros(0), 0.0, "optimal").gap == 0.0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"cost": np.array([math.nan, 0.0])}, "cost: received NaN"),
        ({"cost": np.zeros(3)}, r"cost: received the shape \(3,\), expected \(2,\)"),
        ({"item": np.array([1, 2])}, "item: received numbers that do not ascend"),
        ({"usage": np.array([[0.0, math.inf]])}, "usage: received NaN or infinite"),
    ],
)
def test_arrays_that_are_no_problem_are_refused(changed, expected):
    fields = vars(knapsack([[0, 1]], [[[0, 1]]], [1]))
    with pytest.raises(ValueError, match=expected):
        Knapsack(**{**fields, **changed})
