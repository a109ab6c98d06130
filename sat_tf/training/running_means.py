"""Means over a few steps, out of the running means that Keras logs."""

from collections.abc import Mapping
from typing import Any


class RunningMeans:
    """What the running means of an epoch say of the steps since they were last read.

    A mean over n steps and one over the first m of them give that over the n - m others. Steps that
    are left at the end of an epoch, where Keras starts over, count in the first reading after it.

    Args:
        names: of the logged values.

    >>> means = RunningMeans(["loss"])
    >>> means.advance(2); means.take({"loss": 3.0})
    {'loss': 3.0}
    >>> means.advance(2); means.take({"loss": 2.0})
    {'loss': 1.0}
    """

    def __init__(self, names: list[str]) -> None:
        self._steps = 0
        self._read_steps = 0
        self._read = dict.fromkeys(names, 0.0)
        self._left_steps = 0
        self._left = dict.fromkeys(names, 0.0)

    def go_on(self, steps: int, logs: Mapping[str, Any]) -> None:
        """Starts within an epoch: readings begin with the next step.

        Args:
            steps: over how many steps the running means go already.
            logs: what they are.
        """
        self._steps = steps
        self.take(logs)

    def advance(self, steps: int) -> None:
        """Counts steps that the running means have taken in."""
        self._steps += steps

    def take(self, logs: Mapping[str, Any]) -> dict[str, float | None]:
        """The means over the steps since the last call; None where a name is not logged."""
        steps, sums = self._since_reading(logs)
        self._read_steps = self._steps
        self._read = {name: self._steps * _number(logs, name) for name in self._read}
        self._left_steps, self._left = 0, dict.fromkeys(self._left, 0.0)
        return {
            name: total / steps if name in logs and steps else None for name, total in sums.items()
        }

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Keeps what is left of an epoch; the running means start over."""
        self._left_steps, self._left = self._since_reading(logs)
        self._steps, self._read_steps = 0, 0
        self._read = dict.fromkeys(self._read, 0.0)

    def _since_reading(self, logs: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
        sums = {
            name: self._steps * _number(logs, name) - read + self._left[name]
            for name, read in self._read.items()
        }
        return self._steps - self._read_steps + self._left_steps, sums


def _number(logs: Mapping[str, Any], name: str) -> float:
    return float(logs[name]) if name in logs else 0.0
