"""The verdict on a hostile case: a clear error, a sound result, or a finding."""

import dataclasses
import fnmatch
import json
import pathlib
import re
from collections.abc import Sequence

from tests.campaign.processes import Ended

CLEAR, SOUND = "clear error", "sound"
FINDINGS = ("traceback", "hang", "memory", "crash", "unclear", "left-over", "wrong")
VERDICTS = (CLEAR, SOUND, *FINDINGS)

# On any machine: seconds of the processor, and bytes beyond those of the process before.
MOST_SECONDS, MOST_BYTES = 10, 2**30
_LONGEST_MESSAGE = 2000
_BAD_INPUT, _ENDINGS = 2, (0, 1)
# Escapes, bells and their like; a progress bar or a table has only line breaks and tabs.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# A message says what to do by these words, or in a second part of its sentence.
_FIX = re.compile(
    r"expected|[Dd]id you mean|Known:|; \w+|\. [A-Z]\w+|: (give|use|set|name|make|leave|remove)\b"
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of a case: one of `VERDICTS`, and the message, or what is wrong."""

    name: str
    text: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether something is to be mended."""
        return self.name in FINDINGS


def judge_process(ended: Ended, *, most_seconds: float = MOST_SECONDS) -> Verdict | None:
    """The finding of a process, whatever it was asked for; None where it ended by itself."""
    if ended.is_late or ended.seconds > most_seconds:
        return Verdict("hang", f"{ended.seconds:.0f} s of the processor: {ended.err[-500:]}")
    if ended.grown_bytes > MOST_BYTES:
        return Verdict("memory", f"{ended.grown_bytes:,} bytes more: {ended.err[-500:]}")
    if "Traceback (most recent call last)" in ended.err:
        return Verdict("traceback", ended.err[-1500:])
    if ended.status < 0:
        return Verdict("crash", f"signal {-ended.status}: {ended.err[-500:]}")
    return None


def judge_error(err: str, about: Sequence[str]) -> Verdict:
    """The verdict on the standard error of a command that ended with the status of bad input.

    `about` are names, one of which the message has to say; none where the words are at fault.
    """
    if err.count("error: ") < 1:
        return Verdict("unclear", f"no error is said: {err[-500:]}")
    message = err[err.index("error: ") :].strip()
    problems = []
    if about and not any(name in message for name in about):
        problems.append(f"names none of {', '.join(about)}")
    if len(message) > _LONGEST_MESSAGE:
        problems.append(f"has {len(message):,} characters")
    if _CONTROL.search(err):
        problems.append("has control characters")
    if not _FIX.search(message):
        problems.append("says no fix")
    if problems:
        return Verdict("unclear", f"{'; '.join(problems)}: {message[:1000]}")
    return Verdict(CLEAR, message)


def judge_command(
    ended: Ended,
    *,
    about: Sequence[str] = (),
    wrong: str | None = None,
    most_seconds: float = MOST_SECONDS,
) -> Verdict:
    """The verdict on a command of sat-tf, but for the files that it leaves.

    `wrong` is what was found to be wrong with its result, if it has one.
    """
    if found := judge_process(ended, most_seconds=most_seconds):
        return found
    if ended.status == _BAD_INPUT:
        return judge_error(ended.err, about)
    if ended.status not in _ENDINGS:
        return Verdict("crash", f"status {ended.status}: {ended.err[-500:]}")
    if wrong is not None:
        return Verdict("wrong", wrong)
    if _CONTROL.search(ended.out + ended.err):
        return Verdict("unclear", "what it prints has control characters")
    return Verdict(SOUND)


def files_in(folder: pathlib.Path) -> dict[str, tuple[int, int]]:
    """The files below a folder, with the size and the time of each."""
    found = {}
    for path in folder.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            facts = path.lstat()
            found[str(path.relative_to(folder))] = facts.st_size, facts.st_mtime_ns
    return found


def judge_files(
    verdict: Verdict,
    before: dict[str, tuple[int, int]],
    folder: pathlib.Path,
    outputs: Sequence[str],
    leaves: Sequence[str] = (),
) -> Verdict:
    """The verdict on a command, unless the files that it leaves in its folder are a finding.

    `before` are the files before it, by `files_in`; `outputs` are names of files that it may write
    where it ends well, such as "run/*"; `leaves` are those that it may leave where it fails.
    """

    def may(name: str, patterns: Sequence[str]) -> bool:
        hidden = any(part.startswith(".") for part in pathlib.PurePath(name).parts)
        return name in patterns or (
            not hidden and any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
        )

    if verdict.is_finding:
        return verdict
    now = files_in(folder)
    changed = sorted(name for name, facts in before.items() if now.get(name) != facts)
    if changed := [name for name in changed if not may(name, outputs)]:
        return Verdict("left-over", f"changed or gone: {', '.join(changed[:5])}")
    new = sorted(set(now) - set(before))
    allowed = outputs if verdict.name == SOUND else leaves
    if more := [name for name in new if not may(name, allowed)]:
        return Verdict("left-over", f"{', '.join(more[:5])} after: {verdict.text[:500]}")
    for name in new:
        if name.endswith(".json"):
            try:
                json.loads((folder / name).read_text("utf-8"))
            except ValueError as error:
                return Verdict("left-over", f"{name} is not whole: {error}")
    return verdict
