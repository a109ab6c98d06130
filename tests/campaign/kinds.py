"""The kinds of the campaign: one row each, with how many there are in a full run."""

import dataclasses
import pathlib
from collections.abc import Callable

from tests.campaign import chains, loads, names
from tests.campaign.cases import FindingError, Verdict, played


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of hostile cases."""

    what: str  # For the table of the documentation.
    count: int  # Of a full run.
    few: int  # Of `make test-all`.
    on: str  # The name of its server; see `tests.campaign.processes`.
    # Plays a case in an empty folder, or the module here with a function that makes one of files.
    case: Callable[[int, pathlib.Path], Verdict] | str


_LIGHT, _HEAVY = "light", "tensorflow"
KINDS = {
    "tflite": Kind("`.tflite` files", 10_000, 60, _LIGHT, "tflite"),
    "kits": Kind("certificates and proof kits", 3_000, 60, _LIGHT, "files"),
    "configs": Kind("configurations, read", 2_850, 60, _LIGHT, "files"),
    "trained": Kind("configurations that are trained", 150, 1, _HEAVY, "files"),
    "models": Kind("model files of both Kerases", 2_000, 10, _HEAVY, "files"),
    "pictures": Kind("picture folders, verified on", 700, 30, _LIGHT, "pictures"),
    "classes": Kind("folders of classes", 300, 10, _HEAVY, "pictures"),
    "records": Kind("record sets", 500, 10, _HEAVY, "pictures"),
    "clusters": Kind("values of `TF_CONFIG`", 200, 4, _HEAVY, "files"),
    "tables": Kind("names of classes and policies", 500, 5, _HEAVY, "files"),
    "kills": Kind("kills of chains of commands", 30, 1, _HEAVY, chains.play_kills),
    "signals": Kind("SIGINT and SIGTERM in commands", 200, 1, _HEAVY, chains.play_signals),
    "disks": Kind("disks that refuse, shared folders", 232, 2, _HEAVY, chains.play_disks),
    "workers": Kind("workers that never come, or die", 2, 1, _HEAVY, loads.play_workers),
    "names": Kind("names that attack pages and terminals", 315, 2, _HEAVY, names.play),
    "load": Kind("a thousand verifications in a process", 3, 1, _HEAVY, loads.play_load),
}


def play(name: str, seed: int, folder: pathlib.Path) -> Verdict:
    """Plays the case of a kind and a seed in an empty folder, and judges it."""
    kind = KINDS[name]
    try:
        if isinstance(kind.case, str):
            make = f"tests.campaign.{kind.case}:make_{name}"
            return played(make, f"{name} {seed}", folder, on=kind.on)
        return kind.case(seed, folder)
    except FindingError as error:
        return error.verdict
