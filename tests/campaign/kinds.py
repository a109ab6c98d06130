"""The kinds of the campaign: one row each, with how many there are in a full run."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable

from tests.campaign.cases import played
from tests.campaign.commands import disks, kills, load, names, signals, workers
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


_LIGHT, _HEAVY = "light", "tensorflow"


def _of_files(
    name: str, what: str, count: int, few: int, on: str = _LIGHT, make: str = ""
) -> dict[str, Kind]:
    """A kind whose cases a function of `tests.campaign.files` makes, by default `NAME:make`."""
    made = f"tests.campaign.files.{make or f'{name}:make'}"
    return {name: Kind(what, count, few, functools.partial(played, made, name, on=on), on)}


KINDS = {
    **_of_files("tflite", "`.tflite` files", 10_000, 60),
    **_of_files("kits", "certificates and proof kits", 3_000, 60),
    **_of_files("configs", "configurations, read", 2_850, 60),
    **_of_files(
        "trained", "configurations that are trained", 150, 1, _HEAVY, "configs:make_trained"
    ),
    **_of_files("models", "model files of both Kerases", 2_000, 10, _HEAVY),
    **_of_files("pictures", "picture folders, verified on", 700, 30),
    **_of_files("classes", "folders of classes", 300, 10, _HEAVY, "pictures:make_classes"),
    **_of_files("records", "record sets", 500, 10, _HEAVY),
    **_of_files("clusters", "values of `TF_CONFIG`", 200, 4, _HEAVY),
    **_of_files("tables", "names of classes and policies", 500, 5, _HEAVY),
    "kills": Kind("kills of chains of commands, three or four each", 30, 1, kills.play, _HEAVY),
    "signals": Kind("SIGINT and SIGTERM in commands", 200, 1, signals.play, _HEAVY),
    "disks": Kind("disks full or read-only, shared folders", 232, 2, disks.play, _HEAVY),
    "workers": Kind("workers that part, never come, or die", 4, 1, workers.play, _HEAVY),
    "names": Kind("names that attack pages and terminals", 350, 2, names.play, _HEAVY),
    "load": Kind("a thousand verifications in a process", 3, 1, load.play, _HEAVY),
}
