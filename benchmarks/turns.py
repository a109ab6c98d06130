"""Times several calls by turns, so that what else the machine does meets all of them alike."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

_Name = TypeVar("_Name")


def seconds_by_turns(
    calls: Mapping[_Name, Callable[[], Any]], rounds: Iterable[Any], *, warm_up: int = 0
) -> dict[_Name, list[float]]:
    """Seconds of each call, in each round.

    Args:
        calls: by name; a round makes each of them once, in this order.
        rounds: one for each item, such as `range(20)`.
        warm_up: how often each is called before, untimed.
    """
    for call in calls.values():
        for _ in range(warm_up):
            call()
    seconds: dict[_Name, list[float]] = {name: [] for name in calls}
    for _ in rounds:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds
