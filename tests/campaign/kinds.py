"""The kinds of the campaign: one row each, with how many there are in a full run."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

from tests.campaign.cases import played
from tests.campaign.verdicts import Verdict


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of hostile cases.

    Attributes:
        what: it is, in words, for the table of the documentation.
        count: how many cases a full run has.
        few: how many `make test-all` has.
        play: makes the case of a seed in an empty folder, runs it, and judges it.
        on: the name of its server; see `tests.campaign.processes`.
    """

    what: str
    count: int
    few: int
    play: Callable[[int, pathlib.Path], Verdict]
    on: str = "light"


def _of_files(name: str, what: str, count: int, few: int, on: str = "light") -> Kind:
    """A kind whose cases `tests.campaign.NAME:make` makes."""
    make = f"tests.campaign.{name}:make"
    return Kind(what, count, few, functools.partial(played, make, name, on=on), on)


KINDS = {
    "tflite": _of_files("tflite", "`.tflite` files", 10_000, 60),
}
