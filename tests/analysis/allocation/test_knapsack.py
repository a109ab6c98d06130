import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.analysis.allocation.budget import Knapsack, solve


def knapsack(costs, usage, limits, *, levels=None, tie=None):
    """A problem from nested lists: costs[item][option], usage[limit][item][option]."""
    item = [index for index, options in enumerate(costs) for _ in options]
    flat = [cost for options in costs for cost in options]
    return Knapsack(
        item=np.array(item),
        cost=np.array(flat, float),
        usage={
            str(index): np.array([one for row in limit for one in row], float)
            for index, limit in enumerate(usage)
        },
        limits={str(index): float(limit) for index, limit in enumerate(limits)},
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
    tie = [draw(st.sampled_from([-1, -1, 0, 1])) for _ in range(items)]
    return knapsack(costs, usage, limits, levels=levels, tie=tie)


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


def test_a_table_worked_by_hand():
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


@pytest.mark.parametrize("size", [1, 10**6, 10**12])
def test_limits_are_kept_to_the_last_digit(size):
    # The second option of the last item is too much, by less than the solver sees.
    usage = [[[size, 2 * size]] * 5 + [[0, 1]]]
    costs = [[1, 0]] * 5 + [[1, 0]]
    problem = knapsack(costs, usage, [7 * size])
    found = solve(problem)
    assert problem.used(found.chosen)["0"] <= 7 * size
    assert (found.cost, found.bound) == (4.0, 4.0)


def test_the_ends_of_a_limit_are_those_of_each_item():
    usage = [[[1, 4], [3, 2]], [[4, 1], [4, 1]]]
    problem = knapsack([[0, 0], [0, 0]], usage, [100, 5])
    assert (problem.ends("0"), problem.ends("1")) == ((3.0, 7.0), (2.0, 8.0))


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
    weights = draw.integers(1, 500, (40, 1)) * np.arange(2, 11)
    solve(knapsack(costs.tolist(), usage.tolist(), [16.0, 17.0]))
    solve(knapsack(costs.tolist(), [weights.tolist()], [0.4 * weights[:, -1].sum()]))
    print("afterwards")
    assert capfd.readouterr().out == "afterwards\n"
