"""The kinds of the campaign: one row each, with how many there are in a full run."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

from tests.campaign.cases import played
from tests.campaign.commands import disks, kills, load, names, signals
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
    "kills": Kind(
        "kills of chains of commands, three or four each", 30, 1, kills.play, "tensorflow"
    ),
    "signals": Kind("SIGINT and SIGTERM in commands", 200, 2, signals.play, "tensorflow"),
    "disks": Kind("disks full or read-only, shared folders", 232, 2, disks.play, "tensorflow"),
    "names": Kind("names that attack pages and terminals", 340, 4, names.play, "tensorflow"),
    "load": Kind("a thousand verifications in a process", 3, 1, load.play, "tensorflow"),
}
