"""Commands in a process without TensorFlow, which the tests' own loaded long ago."""

import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from tests.campaign.processes import server

_HEAVY = {"tensorflow", "tf_keras", "matplotlib", "sklearn", "pandas"}
_LOADED = "loaded.json"


class Told(NamedTuple):
    """The words and exit status of a command that ran, and the heavy libraries it loaded."""

    status: int
    out: str
    err: str
    loaded: frozenset[str]


class _Missing(NamedTuple):
    """Finds no module of some packages."""

    packages: Sequence[str]

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def command(words: Sequence[str], folder: str, without: Sequence[str]) -> int:
    """Runs `sat-tf` in a folder; called in the child of a server."""
    beside = pathlib.Path.cwd().with_name(_LOADED)
    if without:
        for name in [*sys.modules]:
            if name.split(".")[0] in (*without, "sat_tf"):
                del sys.modules[name]
        sys.meta_path.insert(0, _Missing(without))
    os.chdir(folder)
    try:
        from sat_tf.commands import main

        return main.main([*words])
    finally:
        beside.write_text(json.dumps(sorted(_HEAVY & set(sys.modules))))


def run_alone(
    *arguments: object, cwd: pathlib.Path | None = None, without: Sequence[str] = ()
) -> Told:
    """Runs `sat-tf` with these arguments, as if some packages were not installed."""
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name, "case")
        place.mkdir()
        words, folder = [*map(str, arguments)], str(cwd or pathlib.Path.cwd())
        call = "tests.commands.light:command", words, folder, [*without]
        ended = server("commands").call(*call, cwd=place)
        loaded = json.loads(place.with_name(_LOADED).read_text())
    return Told(ended.status, ended.out, ended.err, frozenset(loaded))


def told_without_tensorflow(
    *arguments: str, status: int, cwd: pathlib.Path | None = None, plots: bool = False
) -> str:
    """Returns what a command prints that ends with this status and loads nothing heavy.

    `plots` says whether matplotlib may be loaded.
    """
    told = run_alone(*arguments, cwd=cwd)
    assert told.status == status, told.err
    assert "Traceback" not in told.err
    assert told.loaded <= ({"matplotlib"} if plots else set())
    return told.out + told.err
