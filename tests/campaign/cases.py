"""Cases, and the verdicts on them: a clear error, a sound result, or a finding.

A case of files is a command of sat-tf and the files that it reads, which lie in a folder. It is a
pure function of its kind and its seed, so that these two words bring a finding back.
"""

import contextlib
import dataclasses
import fnmatch
import importlib
import json
import os
import pathlib
import random
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.campaign.processes import Ended, server

CLEAR, SOUND = "clear error", "sound"
FINDINGS = ("traceback", "hang", "memory", "crash", "unclear", "left-over", "wrong")
VERDICTS = (CLEAR, SOUND, *FINDINGS)

# On any machine: seconds of the processor, and bytes beyond those of the process before.
MOST_SECONDS, MOST_BYTES = 10, 2**30
LONGEST_MESSAGE = 2000
# Escapes, bells and their like; a progress bar or a table has only line breaks and tabs.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# A message says what to do by these words, or in a second part of its sentence.
_FIX = re.compile(
    r"expected|[Dd]id you mean|Known:|; \w+|\. [A-Z]\w+|: (give|use|set|name|make|leave|remove)\b"
)
_BAD_INPUT = 2


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of a case: one of `VERDICTS`, and the message, or what is wrong."""

    name: str
    text: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether something is to be mended."""
        return self.name in FINDINGS


class FindingError(Exception):
    """What is to be mended, raised where it shows."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.verdict = Verdict(name, text)


@contextlib.contextmanager
def findings_of(about: str) -> Iterator[None]:
    """Says what a case is about before the text of its finding."""
    try:
        yield
    except FindingError as error:
        verdict = error.verdict
        raise FindingError(verdict.name, f"{about}: {verdict.text}") from None


def expect_an_end(ended: Ended, *, most_seconds: float = MOST_SECONDS) -> None:
    """Raises the finding of a process, whatever it was asked for."""
    if ended.is_late or ended.seconds > most_seconds:
        raise FindingError("hang", f"{ended.seconds:.0f} s of the processor: {ended.err[-500:]}")
    if ended.grown_bytes > MOST_BYTES:
        raise FindingError("memory", f"{ended.grown_bytes:,} bytes more: {ended.err[-500:]}")
    if "Traceback (most recent call last)" in ended.err:
        raise FindingError("traceback", ended.err[-1500:])
    if ended.status < 0:
        raise FindingError("crash", f"signal {-ended.status}: {ended.err[-500:]}")


def expect_success(ended: Ended, *, most_seconds: float = MOST_SECONDS) -> None:
    """Raises the finding of a process that was to end well."""
    expect_an_end(ended, most_seconds=most_seconds)
    if ended.status:
        raise FindingError("wrong", f"{ended.out[-300:]} {ended.err[-1000:]}")


def judge_command(ended, *, about=(), wrong=None, most_seconds=MOST_SECONDS) -> Verdict:
    """The verdict on a command of sat-tf, but for the files that it leaves.

    An error has to say one of the names `about`; `wrong` is what is wrong with its result, if any.
    """
    expect_an_end(ended, most_seconds=most_seconds)
    if ended.status not in (0, 1, _BAD_INPUT):
        raise FindingError("crash", f"status {ended.status}: {ended.err[-500:]}")
    if CONTROL.search(ended.out + ended.err):
        raise FindingError("unclear", f"control characters: {ended.out + ended.err!r:.1000}")
    if ended.status != _BAD_INPUT:
        if wrong is not None:
            raise FindingError("wrong", wrong)
        return Verdict(SOUND)
    message = ended.err[ended.err.find("error: ") :].strip()
    problems = {
        "says no error": "error: " not in ended.err,
        f"names none of {', '.join(about)}": about and not any(name in message for name in about),
        f"has {len(message):,} characters": len(message) > LONGEST_MESSAGE,
        "says no fix": not _FIX.search(message),
    }
    if any(problems.values()):
        said = "; ".join(problem for problem, is_there in problems.items() if is_there)
        raise FindingError("unclear", f"{said}: {message[:1000]}")
    return Verdict(CLEAR, message)


def files_in(folder: pathlib.Path) -> dict[str, Sequence[int]]:
    """The files below a folder, with the size and the time of each."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    facts = {str(path.relative_to(folder)): path.lstat() for path in paths}
    return {name: [fact.st_size, fact.st_mtime_ns] for name, fact in facts.items()}


@dataclasses.dataclass(frozen=True)
class Case:
    """A command with hostile files."""

    words: Sequence[str]  # Of `sat-tf`, or "python" and a script, to be run in the case's folder.
    about: Sequence[str] = ()  # Names of files, one of which an error has to say.
    outputs: Sequence[str] = ()  # Names of files that it may write where it ends well.
    # Says, after a command that ended well with a status, what is wrong with its result, if any.
    check: Callable[[int], str | None] = lambda status: None
    leaves: Sequence[str] = ()  # What it may leave where it fails, such as a run to be resumed.
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    most_seconds: float = MOST_SECONDS  # Of the processor.


# TensorFlow removes these when Python exits, which forks skip.
_UNTIL_EXIT = "__autograph_generated_file"
_FACTS, _WRONG, _COMMAND = "facts.json", "wrong", "command.json"
_KEPT = ("words", "about", "outputs", "leaves", "environment", "most_seconds")


def played(make: str | None, seed: str, folder: pathlib.Path, *, on: str) -> Verdict:
    """Makes and runs a case on a server, in `case` in an empty folder.

    `make` names a function that puts the files of a case into the working directory, by a generator
    with a seed, and returns the case; None takes the case that is kept in the folder `seed`.
    """
    place = folder / "case"
    place.mkdir()
    ended = server(on).call("tests.campaign.cases:run", make, seed, cwd=place)
    if not (folder / _FACTS).is_file():
        raise FindingError("crash", f"the case itself could not be made: {ended.err[-1500:]}")
    facts = json.loads((folder / _FACTS).read_text())
    wrong_path = folder / _WRONG
    verdict = judge_command(
        ended,
        about=facts["about"],
        wrong=wrong_path.read_text() if wrong_path.is_file() else None,
        most_seconds=facts["most_seconds"],
    )
    now = files_in(place)
    written = facts["outputs"] if verdict.name == SOUND else facts["leaves"]
    changed = {name for name, known in facts["before"].items() if now.get(name) != known}
    new = set(now) - set(facts["before"])
    left = {name for name in changed if not _matches(name, facts["outputs"])}
    left |= {name for name in new if not _matches(name, written)}
    left |= {name for name in os.listdir(folder / "tmp") if not name.startswith(_UNTIL_EXIT)}
    if left:
        raise FindingError("left-over", f"{', '.join(sorted(left)[:5])} after: {verdict.text}")
    for name in new:
        if name.endswith(".json"):
            try:
                json.loads((place / name).read_text("utf-8"))
            except ValueError as error:
                raise FindingError("left-over", f"{name} is not whole: {error}") from error
    return verdict


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a file is one of those; a hidden one is not, unless it is named."""
    if any(part.startswith(".") for part in pathlib.PurePath(name).parts):
        return name in patterns
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def run(make: str | None, seed: str) -> int:
    """Makes a case in the working directory and runs its command; called in the child."""
    here = pathlib.Path.cwd()
    if make is None:
        kept = json.loads(pathlib.Path(seed, _COMMAND).read_text())
        shutil.copytree(seed, ".", ignore=shutil.ignore_patterns(_COMMAND), dirs_exist_ok=True)
        case = Case(**{key: kept[key] for key in _KEPT})
    else:
        module, _, name = make.partition(":")
        case = getattr(importlib.import_module(module), name)(random.Random(seed))
    facts = {key: getattr(case, key) for key in _KEPT}
    facts["before"] = files_in(here)
    (here.parent / _FACTS).write_text(json.dumps(facts))
    os.environ.update(case.environment)
    status = command(case.words)
    if status in (0, 1) and (wrong := case.check(status)):
        (here.parent / _WRONG).write_text(wrong)
    return status


def command(words: Sequence[str], folder: str = ".") -> int:
    """The exit status of a command of sat-tf, called as by a shell, or of a script of Python."""
    from sat_tf.__main__ import main

    os.chdir(folder)
    sys.argv = ["sat-tf", *words]
    if words[0] != "python":
        return main()
    sys.argv = [*words[1:]]
    try:
        runpy.run_path(words[1], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def keep(folder: pathlib.Path, to: pathlib.Path, on: str) -> None:
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
    (to / _COMMAND).write_text(json.dumps({**facts, "on": on, "expected": CLEAR}, indent=1) + "\n")
