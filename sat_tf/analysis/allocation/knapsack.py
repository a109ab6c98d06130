"""The multiple-choice knapsack: one option of every item, the cheapest within limits, proven.

    minimize    Σ cost[k] · y[k]
    subject to  Σ y[k] = 1                           over the options k of each item
                base[m] + Σ usage[m, k] · y[k] <= limits[m]   for each limit m
                Σ y[k | level l] is equal            for all items of a tie, at each level l
                y[k] in {0, 1}

It is solved by branch and bound (HiGHS, by `scipy.optimize.milp`), which ends with a lower bound
of what any choice costs. All of it is arithmetic on arrays, which knows no layers.
"""

import contextlib
import ctypes
import dataclasses
import math
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# HiGHS stops within an absolute distance of the optimum, which is nothing beside costs up to this.
_LARGEST_COST = 1e5
# HiGHS keeps limits to about one part in a million. What oversteps one by less is found here by
# exact sums, and excluded by name.
_MOST_CUTS = 200
_STATUS = {0: "optimal", 1: "stopped"}
# The solver's bound is rounded by so much, relative to the largest cost.
_ROUNDING = 1e-10
# Sums are rounded by so much, relative to themselves.
_TINY = 1e-14


@dataclasses.dataclass(frozen=True, eq=False)
class Knapsack:
    """A problem to solve; the options of an item are adjacent.

    Attributes:
        item: (n,) integers from 0, ascending: the item of each option.
        cost: (n,) float64, finite.
        usage: (m, n) float64: what each option uses of each limit.
        limits: (m,) float64; infinite where there is none.
        base: (m,) float64: what is used whatever is chosen.
        level: (n,) integers: the level of each option, for ties.
        tie: (items,) integers: items with the same number of 0 or more choose the same level; those
            with -1 are free.

    Raises:
        ValueError: shapes that do not fit, costs or usages that are not finite.
    """

    item: np.ndarray
    cost: np.ndarray
    usage: np.ndarray
    limits: np.ndarray
    base: np.ndarray
    level: np.ndarray
    tie: np.ndarray

    def __post_init__(self) -> None:
        steps = np.diff(self.item)
        if not len(self.item) or self.item[0] != 0 or np.any((steps != 0) & (steps != 1)):
            raise ValueError(
                "item: received numbers that do not ascend one by one, expected 0, 0, ..., 1, ...: "
                "the item of each option."
            )
        options, limits = len(self.item), len(self.limits)
        shapes = {
            "cost": (options,),
            "usage": (limits, options),
            "base": (limits,),
            "level": (options,),
            "tie": (self.num_items,),
        }
        for name, shape in shapes.items():
            if np.shape(getattr(self, name)) != shape:
                raise ValueError(
                    f"{name}: received the shape {np.shape(getattr(self, name))}, expected {shape} "
                    f"for {options} options and {limits} limits."
                )
        for name in ("cost", "usage", "base"):
            if not np.all(np.isfinite(getattr(self, name))):
                raise ValueError(f"{name}: received NaN or infinite values, expected finite ones.")

    @property
    def num_items(self) -> int:
        """How many items there are."""
        return int(self.item[-1]) + 1 if len(self.item) else 0

    def options(self, item: int) -> np.ndarray:
        """The options of one item."""
        return np.flatnonzero(self.item == item)

    def used(self, chosen: np.ndarray) -> np.ndarray:
        """The use that a choice makes of each limit: (m,).

        Args:
            chosen: (items,) the option of each item.
        """
        parts = self.usage[:, chosen]
        return np.array(
            [math.fsum([base, *row]) for base, row in zip(self.base, parts, strict=True)]
        )

    def costs(self, chosen: np.ndarray) -> float:
        """The cost of a choice."""
        return math.fsum(self.cost[chosen])

    def within(self, chosen: np.ndarray) -> bool:
        """Whether a choice keeps all limits, to the last digit of the sums."""
        return bool(np.all(self.used(chosen) <= self.limits + _TINY * np.abs(self.limits_or_zero)))

    @property
    def limits_or_zero(self) -> np.ndarray:
        """The limits; 0 stands for none."""
        return np.where(np.isfinite(self.limits), self.limits, 0.0)

    def with_limits(self, limits: np.ndarray) -> "Knapsack":
        """The same with other limits."""
        return dataclasses.replace(self, limits=np.asarray(limits, np.float64))


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """A choice within all limits, and the proof that no other is cheaper.

    Attributes:
        chosen: (items,) the option of each item.
        cost: of the choice.
        used: (m,) what it uses of each limit.
        bound: no choice within the limits costs less.
        status: "optimal", or "stopped" where the time was over before that was proven.
    """

    chosen: np.ndarray
    cost: float
    used: np.ndarray
    bound: float
    status: str

    @property
    def gap(self) -> float:
        """(cost - bound) / |cost|: 0 is a proven optimum."""
        missing = max(self.cost - self.bound, 0.0)
        return missing / abs(self.cost) if self.cost and missing else float(missing > 0.0)


def solve(
    problem: Knapsack, *, seconds: float | None = None, excluded: Sequence[np.ndarray] = ()
) -> Solution | None:
    """The cheapest choice within the limits; None where no choice is within them.

    The same problem has the same answer, unless the time was over.

    Args:
        problem: what to choose from.
        seconds: the most time to take; by default as much as the proof needs.
        excluded: choices that do not count, each the options of all items: one of an item, or
            several of which any makes the choice one that does not count.

    Raises:
        ValueError: the time was over before any choice was found.
        RuntimeError: the solver proposes nothing but choices that overstep a limit in the last
            digits.

    >>> pair = Knapsack(
    ...     item=np.array([0, 0, 1, 1]),
    ...     cost=np.array([5.0, 0.0, 3.0, 0.0]),
    ...     usage=np.array([[1.0, 4.0, 1.0, 4.0]]),
    ...     limits=np.array([5.0]),
    ...     base=np.zeros(1),
    ...     level=np.array([2, 8, 2, 8]),
    ...     tie=np.array([-1, -1]),
    ... )
    >>> best = solve(pair)
    >>> best.chosen.tolist(), best.cost, best.status, best.gap
    ([1, 2], 3.0, 'optimal', 0.0)
    """
    # The least cost of an item changes no choice, and its digits would crowd out others.
    least = np.array(
        [problem.cost[problem.options(item)].min() for item in range(problem.num_items)]
    )
    above = problem.cost - least[problem.item]
    unit = float(above.max()) / _LARGEST_COST or 1.0
    constant = math.fsum(least)
    cuts = list(excluded)
    bound = -math.inf
    for _ in range(_MOST_CUTS):
        found = _milp(problem, above / unit, cuts, seconds)
        if found is None:
            return None
        chosen, lower, status = found
        bound = constant + lower * unit
        if problem.within(chosen):
            cost = problem.costs(chosen)
            if abs(cost - bound) <= _ROUNDING * unit * _LARGEST_COST:
                bound = cost
            return Solution(chosen, cost, problem.used(chosen), min(bound, cost), status)
        cuts.append(chosen)
    raise RuntimeError(
        f"the solver has proposed {_MOST_CUTS} choices that overstep a limit in the last digits; "
        "expected one within; change the limits a little."
    )


def _milp(
    problem: Knapsack, cost: np.ndarray, cuts: list[np.ndarray], seconds: float | None
) -> tuple[np.ndarray, float, str] | None:
    """The choice, a lower bound of the cost, and the status; None if nothing is within limits."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    matrix, low, high = _rows(problem, cuts)
    options: dict[str, Any] = {"mip_rel_gap": 0.0}
    if seconds is not None:
        options["time_limit"] = seconds
    with _without_output():
        result = milp(
            cost,
            integrality=np.ones(len(cost)),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix, low, high),
            options=options,
        )
    if result.status == 2:
        return None
    if result.status not in _STATUS or result.x is None:
        raise ValueError(
            f"seconds={seconds}: received a solver that found no choice in time "
            f"({result.message}), expected one; give it more seconds, or fewer bits to choose from."
        )
    taken = result.x
    best = [problem.options(item) for item in range(problem.num_items)]
    chosen = np.array([each[int(np.argmax(taken[each]))] for each in best])
    lower = result.mip_dual_bound
    return chosen, float(result.fun if lower is None else lower), _STATUS[result.status]


@contextlib.contextmanager
def _without_output() -> Iterator[None]:
    """Nothing is printed: HiGHS writes debugging lines past its own options, and past Python."""
    sys.stdout.flush()
    try:
        kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # there is no standard output
        yield
        return
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).fflush(None)  # what C has not yet written
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _rows(problem: Knapsack, cuts: list[np.ndarray]) -> tuple[Any, np.ndarray, np.ndarray]:
    """The constraints as low <= matrix · y <= high, with a sparse matrix."""
    from scipy.sparse import csr_matrix, vstack

    count, items = len(problem.item), problem.num_items
    columns = np.arange(count)
    one_each = csr_matrix((np.ones(count), (problem.item, columns)), shape=(items, count))
    blocks, low, high = [one_each], [np.ones(items)], [np.ones(items)]
    for row, limit, base in zip(problem.usage, problem.limits, problem.base, strict=True):
        if math.isfinite(limit):
            scale = float(np.abs(row).max()) or 1.0
            blocks.append(csr_matrix(row / scale))
            low.append(np.array([-np.inf]))
            high.append(np.array([(limit - base) / scale]))
    tied = list(_tie_rows(problem))
    if tied:
        blocks.append(csr_matrix(np.array(tied)))
        low.append(np.zeros(len(tied)))
        high.append(np.zeros(len(tied)))
    for cut in cuts:
        row = np.zeros(count)
        row[cut] = 1.0
        blocks.append(csr_matrix(row))
        low.append(np.array([-np.inf]))
        high.append(np.array([items - 1.0]))
    return vstack(blocks), np.concatenate(low), np.concatenate(high)


def _tie_rows(problem: Knapsack) -> list[np.ndarray]:
    """For each level of a tie, one item's options of that level minus the first item's: 0."""
    rows = []
    for group in np.unique(problem.tie[problem.tie >= 0]):
        first, *others = np.flatnonzero(problem.tie == group)
        for other in others:
            both = np.isin(problem.item, (first, other))
            for level in np.unique(problem.level[both]):
                at = problem.level == level
                row = np.where(at & (problem.item == other), 1.0, 0.0)
                rows.append(row - np.where(at & (problem.item == first), 1.0, 0.0))
    return rows


def fewest(problem: Knapsack, row: int, *, keep_others: bool = False) -> float | None:
    """The least that any choice uses of one limit; None where the others exclude every choice.

    Args:
        problem: what to choose from; its cost does not matter.
        row: which limit.
        keep_others: the other limits hold, and only this one is lifted.
    """
    limits = problem.limits.copy() if keep_others else np.full(len(problem.limits), np.inf)
    limits[row] = np.inf
    found = solve(dataclasses.replace(problem, cost=problem.usage[row], limits=limits))
    return None if found is None else float(found.used[row])


def pareto(
    problem: Knapsack, row: int, *, points: int = 25, seconds: float | None = None
) -> list[Solution]:
    """The cheapest choices as one limit is swept, from the least of it to what is free.

    The other limits stay. Choices that another one beats in both are left out.

    Args:
        problem: what to choose from.
        row: the limit that is swept; its own value does not matter.
        points: how many values of it to try, evenly spaced.
        seconds: the most time for each.

    Returns:
        Ascending in what they use of it, and descending in cost; empty where the other limits
        exclude every choice.
    """
    lifted = problem.limits.copy()
    lifted[row] = np.inf
    free = solve(problem.with_limits(lifted), seconds=seconds)
    low = fewest(problem, row, keep_others=True)
    if free is None or low is None:
        return []
    found = [free]
    for limit in np.linspace(low, free.used[row], points)[:-1]:
        limits = lifted.copy()
        limits[row] = limit
        if (one := solve(problem.with_limits(limits), seconds=seconds)) is not None:
            found.append(one)
    found.sort(key=lambda one: (one.used[row], one.cost))
    curve: list[Solution] = []
    for one in found:
        if not curve or one.cost < curve[-1].cost:
            curve.append(one)
    return curve
