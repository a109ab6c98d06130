"""The learning rate that a search has chosen, and its rows."""

from collections.abc import Mapping, Sequence
from typing import Any


def best_rate(rows: Sequence[Mapping[str, Any]], name: str, bits: int) -> float | None:
    """The learning rate with the best top-1 on the half that it is chosen on, with seed 0."""
    tried = {
        float(row["rate"]): float(row["chosen_on"])
        for row in rows
        if (row["method"], int(row["bits"]), int(row["seed"])) == (name, bits, 0)
    }
    return max(tried, key=lambda rate: tried[rate], default=None)


def at_best_rate(
    rows: Sequence[Mapping[str, Any]], name: str, bits: int
) -> list[Mapping[str, Any]]:
    """The rows of a method with the rate that was chosen, one a seed; none where it was not run."""
    rate = best_rate(rows, name, bits)
    return [
        row
        for row in rows
        if (row["method"], int(row["bits"]), float(row["rate"])) == (name, bits, rate)
    ]
