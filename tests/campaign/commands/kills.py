"""Kills at random moments of chains of commands, each of which has to come to its end all the same.

A chain is killed three or four times in a row, half of the times before or behind a rename, an
unlink or a flush to the disk. After each kill every file is whole; the same commands then go on,
and end with the files of a chain that was left alone.
"""

import pathlib
import random
import signal

from tests.campaign.commands.chains import (
    CHAINS,
    MOST_SECONDS,
    begin,
    differences,
    left_over,
    problems_of_files,
    reference,
    run,
)
from tests.campaign.commands.moments import NAMES_CHANGE
from tests.campaign.verdicts import SOUND, Verdict, judge_process

# A moment that comes when the command is over does not count.
_MOST_TRIES = 12


def play(seed: int, folder: pathlib.Path) -> Verdict:
    """Kills the chain of a seed three or four times, and lets it come to its end."""
    rng = random.Random(f"kills {seed}")
    name = sorted(CHAINS)[seed % len(CHAINS)]
    known, place = reference(name), begin(folder)
    waiting, killed = list(range(len(CHAINS[name]))), 0
    for _ in range(_MOST_TRIES):
        if killed == (4 if seed % 3 == 0 else 3) or not waiting:
            break
        index = waiting[0]
        ended = run(CHAINS[name][index], place, _moment(rng, known.commands[index]))
        if ended.status == -signal.SIGKILL and not ended.is_late:
            killed += 1
            if problems := problems_of_files(place):
                return Verdict("left-over", f"{name}, killed {killed} times: {problems[:3]}")
        elif (found := _unless_well(ended)) is not None:
            return found
        else:
            del waiting[0]
    for index in waiting:
        if (found := _unless_well(run(CHAINS[name][index], place))) is not None:
            return found
    wrong = differences(place, known.place)
    if wrong:
        return Verdict("wrong", f"{name}, killed {killed} times: {'; '.join(wrong[:5])}")
    if left := left_over(folder):
        return Verdict("left-over", f"{name}, killed {killed} times: {', '.join(left[:5])}")
    return Verdict(SOUND, f"{name}, killed {killed} times")


def _moment(rng: random.Random, known):
    if rng.random() < 0.5:
        return {"what": "kill", "seconds": rng.uniform(0, 0.9) * known.seconds}
    count = sum(event.split()[0] in NAMES_CHANGE for event in known.events)
    return {
        "what": "kill",
        "events": NAMES_CHANGE,
        "number": rng.randrange(max(count, 1)),
        "after": rng.random() < 0.5,
    }


def _unless_well(ended) -> Verdict | None:
    """The finding of a command that does not go on where another was killed."""
    if found := judge_process(ended, most_seconds=MOST_SECONDS):
        return found
    if ended.status:
        return Verdict("wrong", f"it does not go on: {ended.err[-1000:]}")
    return None
