"""Cases: files that lie in a folder, a command that reads them, and what would be wrong.

A case is a pure function of its kind and its seed, so that these two words bring a finding back.
"""

import dataclasses
import importlib
import json
import os
import pathlib
import random
import runpy
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

from tests.campaign.processes import server
from tests.campaign.verdicts import (
    CLEAR,
    MOST_SECONDS,
    Verdict,
    files_in,
    judge_command,
    judge_files,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A command with hostile files.

    Attributes:
        words: of `sat-tf`, or "python" and a script, to be run in the folder of the case.
        about: names of files, one of which an error has to say.
        outputs: names of files that the command may write where it ends well.
        leaves: names of those that it may leave where it fails, such as a run to be resumed.
        environment: variables to set.
        check: says, after a command that ended well with a status, what is wrong with its result;
            None where nothing is.
        most_seconds: of the processor, that the command may take.
    """

    words: Sequence[str]
    about: Sequence[str] = ()
    outputs: Sequence[str] = ()
    check: Callable[[int], str | None] = lambda status: None
    leaves: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    most_seconds: float = MOST_SECONDS


# Puts the files of a case into the working directory.
Make = Callable[[random.Random], Case]
# TensorFlow removes these when Python exits, which forks skip.
_UNTIL_EXIT = "__autograph_generated_file"
_FACTS, _WRONG = "facts.json", "wrong"
_KEPT = ("words", "about", "outputs", "leaves", "environment", "most_seconds")


def played(make: str, name: str, seed: int, folder: pathlib.Path, *, on: str = "light") -> Verdict:
    """Makes and runs a case of a seed in a process of its own, in `case` in an empty folder.

    `make` is the module and the name of its `Make`; `on` is the name of the server.
    """
    place = folder / "case"
    place.mkdir()
    ended = server(on).call("tests.campaign.cases:run", make, f"{name} {seed}", cwd=place)
    facts_path, wrong_path = folder / _FACTS, folder / _WRONG
    if not facts_path.is_file():
        return Verdict("crash", f"the case itself could not be made: {ended.err[-1500:]}")
    facts = json.loads(facts_path.read_text())
    found = judge_command(
        ended,
        about=facts["about"],
        wrong=wrong_path.read_text() if wrong_path.is_file() else None,
        most_seconds=facts["most_seconds"],
    )
    before = {path: tuple(known) for path, known in facts["before"].items()}
    found = judge_files(found, before, place, facts["outputs"], facts["leaves"])
    left = [name for name in os.listdir(folder / "tmp") if not name.startswith(_UNTIL_EXIT)]
    if not found.is_finding and left:
        return Verdict("left-over", f"among temporary files: {', '.join(left[:5])}")
    return found


def run(make: str, seed: str) -> int:
    """Makes a case in the working directory and runs its command; called in the child."""
    module, _, name = make.partition(":")
    here = pathlib.Path.cwd()
    case: Case = getattr(importlib.import_module(module), name)(random.Random(seed))
    facts = {key: getattr(case, key) for key in _KEPT}
    facts["before"] = files_in(here)
    (here.parent / _FACTS).write_text(json.dumps(facts))
    status = command(case.words, case.environment)
    if status in (0, 1) and (wrong := case.check(status)):
        (here.parent / _WRONG).write_text(wrong)
    return status


def command(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """The exit status of a command of sat-tf, called as by a shell, or of a script of Python."""
    from sat_tf.__main__ import main

    os.environ.update(environment)
    if words[0] == "python":
        sys.argv = [*words[1:]]
        try:
            runpy.run_path(words[1], run_name="__main__")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 0
        return 0
    sys.argv = ["sat-tf", *words]
    return main()


# -- cases that are kept ---------------------------------------------------------------------------

_COMMAND = "command.json"


def kept(folder: pathlib.Path, to: pathlib.Path, on: str) -> None:
    """Keeps the files of a case played in a folder, and its command, to be run again.

    They replace the folder `to`; pipes and links are not kept.
    """
    shutil.rmtree(to, ignore_errors=True)
    facts = json.loads((folder / _FACTS).read_text())
    for name in facts.pop("before"):
        source = folder / "case" / name
        if source.is_file() and not source.is_symlink():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, to / name)
    facts |= {"on": on, "expected": CLEAR}
    (to / _COMMAND).write_text(json.dumps(facts, indent=1) + "\n")


def replayed(case: pathlib.Path, folder: pathlib.Path) -> tuple[Verdict, str]:
    """Runs a kept case in an empty folder; the verdict, and the name of the expected one."""
    place = folder / "case"
    shutil.copytree(case, place)
    facts = json.loads((place / _COMMAND).read_text())
    (place / _COMMAND).unlink()
    before = files_in(place)
    ended = server(facts["on"]).call(
        "tests.campaign.cases:command", facts["words"], facts["environment"], cwd=place
    )
    found = judge_command(ended, about=facts["about"], most_seconds=facts["most_seconds"])
    found = judge_files(found, before, place, facts["outputs"], facts["leaves"])
    return found, facts["expected"]
