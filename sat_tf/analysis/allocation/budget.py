"""The limits of a budget, and the cheapest choice within them: one option of every item, proven.

minimize    Σ cost[k] · y[k]
subject to  Σ y[k] = 1                         over the options k of each item
            Σ usage[m, k] · y[k] <= limits[m]  for each limit m
            Σ y[k | level l] is equal          for all items of a tie, at each level l
            y[k] in {0, 1}
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from sat_tf.messages import ProblemsError, no_such
from sat_tf.messages.validation import PositiveNumber, find_problems, plain

# HiGHS keeps limits to a part in a million. It stops within that distance of the optimum, which is
# negligible for costs up to this; with larger ones it has to repair its solutions.
_TOLERANCE, _LARGEST_COST = 1e-6, 1e3
# The relative rounding errors of sums are below this.
_ROUNDING = 1e-14


@dataclasses.dataclass(frozen=True)
class Limit:
    """A quantity that can be limited."""

    title: str  # The name for readers.
    meaning: str  # The explanation for errors and help.
    form: str = ",.0f"  # The format of values.


LIMITS: dict[str, Limit] = {
    "bytes": Limit("file bytes", "bytes of the .tflite file that `export_tflite` writes"),
    "milliseconds": Limit("milliseconds", "of one image on the `npu`, by its compiler", ".4g"),
    "average_weight_bits": Limit("mean weight bits", "mean bits over all quantized weights", ".3f"),
    "average_activation_bits": Limit(
        "mean activation bits",
        "mean bits over all values that linear layers read, without images and streams",
        ".3f",
    ),
}
# Short names for several limits of the same value.
SHORT = {"average_bits": ("average_weight_bits", "average_activation_bits")}
NAMES = (*LIMITS, *SHORT)
_Amount = Annotated[
    PositiveNumber | Annotated[str, Field(pattern=r"^\d+(\.\d+)?%$")],
    Field(description="a number above 0, or a share such as '60%'"),
]


def read_budget(budget: Any, *, npu: bool = False) -> dict[str, float | str]:
    """Returns the limits that a budget sets, by the names of `LIMITS`: numbers, or shares."""
    if not isinstance(budget, Mapping) or not budget:
        raise ValueError(
            f"budget={budget!r}: expected a mapping with at least one limit of {', '.join(NAMES)}; "
            "write budget={'bytes': 500_000}, or {'average_bits': 4}."
        )
    known = {name: (value, _Amount) for name, value in budget.items() if name in NAMES}
    problems = [
        no_such(f"{name!r} is not a limit", f"allocate.{name}", NAMES)
        for name in budget
        if name not in NAMES
    ] + find_problems(**known)
    if "milliseconds" in budget and not npu:
        problems.append(
            f"milliseconds={budget['milliseconds']!r}: received no `npu`, expected the Ethos-U "
            "whose compiler estimates them; name its configuration, such as 'ethos-u55-128'."
        )
    limits: dict[str, float | str] = {}
    for name, value in budget.items():
        problems += [
            f"{limit}: received two limits, by it and by average_bits, expected one; leave one out."
            for limit in SHORT.get(name, (name,))
            if limit in limits
        ]
        limits |= dict.fromkeys(SHORT.get(name, (name,)), plain(value))
    if problems:
        raise ProblemsError("budget", problems)
    return limits


@dataclasses.dataclass(frozen=True, eq=False)
class Knapsack:
    """A multiple-choice knapsack."""

    item: np.ndarray  # (n,) from 0, ascending: the item of each option.
    cost: np.ndarray  # (n,) float64, finite.
    usage: Mapping[str, np.ndarray]  # (n,) integers each: how much of a quantity the options use.
    limits: Mapping[str, float]  # The limits on some quantities.
    level: np.ndarray  # (n,) the level of each option, for ties.
    tie: np.ndarray  # (items,) items with the same number choose the same level.

    def options(self, item: int) -> np.ndarray:
        """Returns the options of one item."""
        return np.flatnonzero(self.item == item)

    def used(self, choice: np.ndarray) -> dict[str, int]:
        """Returns how much of each quantity a choice, an option of each item, uses."""
        return {name: int(np.sum(usage[choice])) for name, usage in self.usage.items()}

    def within(self, choice: np.ndarray) -> bool:
        """Returns whether a choice keeps all limits."""
        used = self.used(choice)
        return all(used[name] <= limit * (1.0 + _ROUNDING) for name, limit in self.limits.items())

    def ends(self, name: str) -> tuple[int, int]:
        """Returns the least and the most that options use of a quantity, each item by itself."""
        usage = [self.usage[name][self.options(item)] for item in range(len(self.tie))]
        return int(sum(uses.min() for uses in usage)), int(sum(uses.max() for uses in usage))


@dataclasses.dataclass(frozen=True)
class Solution:
    """A choice within all limits, and the proof that no other is cheaper."""

    chosen: np.ndarray = dataclasses.field(compare=False)  # (items,) the option of each item.
    cost: float  # The choice's cost.
    bound: float  # No choice within the limits costs less.

    @property
    def gap(self) -> float:
        """(cost - bound) / cost: 0 is a proven optimum."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0

    @property
    def status(self) -> str:
        """Returns "optimal", or "within the gap" where files of cheaper choices are too long."""
        return "within the gap" if self.gap else "optimal"


def solve(problem: Knapsack, **limits: float) -> Solution | None:
    """Returns the cheapest choice within the limits, some of which change; None without one."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    problem = dataclasses.replace(problem, limits={**problem.limits, **limits})
    options = [problem.options(item) for item in range(len(problem.tie))]
    # The least cost of an item changes no choice, and its digits would crowd out others.
    least = np.array([problem.cost[indices].min() for indices in options])
    above = problem.cost - least[problem.item]
    unit = float(above.max()) / _LARGEST_COST or 1.0
    of_items = np.equal.outer(np.arange(len(options)), problem.item).astype(float)
    constraints = [LinearConstraint(of_items, 1.0, 1.0)]
    for tie in np.unique(problem.tie):
        of_tie = of_items[problem.tie == tie]
        for level in np.unique(problem.level):
            differences = np.diff(of_tie * (problem.level == level), axis=0)
            if np.any(differences):
                constraints.append(LinearConstraint(differences, 0.0, 0.0))
    for name, limit in problem.limits.items():
        # HiGHS keeps a limit that is halfway to the next value of the sum.
        step = int(np.gcd.reduce(problem.usage[name])) or 1
        top = np.floor(limit / step * (1.0 + _ROUNDING)) + 0.5
        constraints.append(LinearConstraint(problem.usage[name][np.newaxis] / step, -np.inf, top))
    result = milp(
        above / unit,
        integrality=np.ones(len(above)),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"mip_rel_gap": 0.0},
    )
    if result.status == 2:
        return None
    choice = np.array([indices[np.argmax(result.x[indices])] for indices in options])
    if result.status != 0 or not problem.within(choice):
        raise RuntimeError(f"the solver found no proof: {result.message}")
    bound = math.fsum(least) + float(result.mip_dual_bound) * unit
    cost = math.fsum(problem.cost[choice])
    is_optimal = cost - bound <= 2 * _TOLERANCE * unit
    return Solution(choice, cost, cost if is_optimal else bound)
