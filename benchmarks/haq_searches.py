"""The searches that an allocation is compared with: HAQ's rule on random and on greedy proposals.

HAQ (Wang et al., CVPR 2019) proposes bits by reinforcement learning, and brings every proposal
within the budget by one rule: from the last layer backwards, activation bits and then weight bits
are lowered by one, again and again, until the budget is kept. Here proposals are random, or follow
the best single step; each is evaluated once, by the same function and equally often.

All of them take a `Knapsack` and the (n, 2) bits of its options, weights first, and return the
option of each item.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from sat_tf.analysis.allocation.budget import Knapsack

Evaluate = Callable[[np.ndarray], float]

WEIGHTS, ACTIVATIONS = 0, 1


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """What a search has found.

    Attributes:
        chosen: (items,) the best option of each item, within the limits.
        cost: of this choice.
        history: the best cost after each evaluation.
    """

    chosen: np.ndarray
    cost: float
    history: tuple[float, ...]


def within_budget(problem: Knapsack, bits: np.ndarray, chosen: np.ndarray) -> np.ndarray | None:
    """HAQ's rule: lowers bits from the last item backwards until all limits are kept.

    Each pass takes one step down in the activation bits and then in the weight bits of each item;
    items of one tie step together.

    Args:
        problem: with the limits.
        bits: (n, 2) of its options.
        chosen: (items,) the proposal.

    Returns:
        The choice; None where even the fewest bits are too many.
    """
    chosen = chosen.copy()
    while not problem.within(chosen):
        moved = False
        for item in reversed(range(len(problem.tie))):
            for kind in (ACTIVATIONS, WEIGHTS):
                lower = stepped(problem, bits, chosen, item, kind, -1)
                if lower is not None:
                    chosen, moved = lower, True
                    if problem.within(chosen):
                        return chosen
        if not moved:
            return None
    return chosen


def stepped(
    problem: Knapsack, bits: np.ndarray, chosen: np.ndarray, item: int, kind: int, step: int
) -> np.ndarray | None:
    """The choice with one item's bits one step lower or higher; None where there is no such step.

    Args:
        problem: what is chosen from.
        bits: (n, 2) of its options.
        chosen: (items,) the option of each item.
        item: which one.
        kind: `WEIGHTS` or `ACTIVATIONS`.
        step: -1 or 1, in the bits that there are to choose from.
    """
    own = bits[chosen[item], kind]
    known = np.unique(bits[problem.options(item), kind])
    place = int(np.searchsorted(known, own)) + step
    if not 0 <= place < len(known):
        return None
    tied = np.flatnonzero(problem.tie == problem.tie[item])
    together = list(tied) if kind == ACTIVATIONS else [item]
    moved = chosen.copy()
    for each in together:
        wanted = bits[chosen[each]].copy()
        wanted[kind] = known[place]
        found = [one for one in problem.options(each) if np.array_equal(bits[one], wanted)]
        if not found:
            return None
        moved[each] = found[0]
    return moved


def random_search(
    problem: Knapsack, bits: np.ndarray, evaluate: Evaluate, *, evaluations: int, seed: int
) -> Search | None:
    """Random bits for each item, brought within the budget by HAQ's rule; the best of them.

    Args:
        problem: with the limits.
        bits: (n, 2) of its options.
        evaluate: what a choice costs, such as a measured loss of accuracy.
        evaluations: how often to call it.
        seed: of the proposals.

    Returns:
        The best choice; None where even the fewest bits are too many.
    """
    draw = np.random.default_rng(seed)
    best: Search | None = None
    for _ in range(evaluations):
        chosen = within_budget(problem, bits, _random_choice(problem, bits, draw))
        if chosen is None:
            return None
        best = _better(best, chosen, evaluate(chosen))
    return best


def greedy_search(
    problem: Knapsack, bits: np.ndarray, evaluate: Evaluate, *, evaluations: int
) -> Search | None:
    """From the most bits, brought within the budget, the best single steps as long as they help.

    A round evaluates every step of one item that stays within the limits after HAQ's rule, up or
    down in weight or activation bits, and takes the best.

    Args:
        problem: with the limits.
        bits: (n, 2) of its options.
        evaluate: as in `random_search`.
        evaluations: how often to call it at most.

    Returns:
        The best choice; None where even the fewest bits are too many.
    """
    start = within_budget(problem, bits, _most(problem, bits))
    if start is None:
        return None
    best = _better(None, start, evaluate(start))
    seen = {start.tobytes()}
    while len(best.history) < evaluations:
        before = best.cost
        for chosen in list(_neighbours(problem, bits, best.chosen)):
            if len(best.history) >= evaluations:
                break
            if chosen.tobytes() not in seen:
                seen.add(chosen.tobytes())
                best = _better(best, chosen, evaluate(chosen))
        if best.cost >= before:
            break
    return best


def _neighbours(problem: Knapsack, bits: np.ndarray, chosen: np.ndarray) -> Iterator[np.ndarray]:
    for item in range(len(problem.tie)):
        for kind in (WEIGHTS, ACTIVATIONS):
            for step in (1, -1):
                moved = stepped(problem, bits, chosen, item, kind, step)
                kept = None if moved is None else within_budget(problem, bits, moved)
                if kept is not None:
                    yield kept


def _better(best: Search | None, chosen: np.ndarray, cost: float) -> Search:
    history = () if best is None else best.history
    if best is None or cost < best.cost:
        return Search(chosen, cost, (*history, cost))
    return dataclasses.replace(best, history=(*history, best.cost))


def _most(problem: Knapsack, bits: np.ndarray) -> np.ndarray:
    return np.array(
        [
            max(problem.options(item), key=lambda option: tuple(bits[option]))
            for item in range(len(problem.tie))
        ]
    )


def _random_choice(problem: Knapsack, bits: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Any option of each item; those of one tie have the level of its first one."""
    chosen = np.zeros(len(problem.tie), int)
    levels: dict[int, int] = {}
    for item in range(len(problem.tie)):
        options, tie = problem.options(item), int(problem.tie[item])
        if tie in levels:
            options = options[problem.level[options] == levels[tie]]
        chosen[item] = draw.choice(options)
        levels.setdefault(tie, int(problem.level[chosen[item]]))
    return chosen
