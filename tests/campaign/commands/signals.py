"""SIGINT and SIGTERM at moments of commands: a clean end that says what it leaves.

Ctrl-C reaches all processes that a terminal has started, SIGTERM the one that is named. A command
ends with the status that shells know (130, 143), or, where a run has saved itself on SIGTERM, with
0; it says so once, leaves no temporary file, and what it says is true: files are whole, and a run
that can be resumed ends like one that was left alone.
"""

import pathlib
import random
import re

from tests.campaign.commands.chains import (
    CHAINS,
    MOST_SECONDS,
    begin,
    differences,
    left_over,
    problems_of_files,
    reference,
    run,
    temporary_files,
)
from tests.campaign.commands.moments import EVENTS, LOG
from tests.campaign.verdicts import CLEAR, SOUND, Verdict, judge_process

_CHAINS = ("calibrated", "run", "taught", "train", "export", "proof")
# One of these says that a command was stopped, once.
_SAID = re.compile(r"interrupted; |terminated; |Stopped as asked; ")
# Python looks for signals now and then: so many events may follow one.
_FEW = 5
_ENDINGS = {"int": (130,), "term": (143, 0)}


def play(seed: int, folder: pathlib.Path) -> Verdict:
    """Sends a signal to a command of the seed's chain."""
    rng = random.Random(f"signals {seed}")
    name, what = _CHAINS[seed % len(_CHAINS)], ("int", "term")[seed // len(_CHAINS) % 2]
    known, index = reference(name), rng.randrange(len(CHAINS[name]))
    place = begin(folder, name, index)
    about = f"{name}, {CHAINS[name][index][0]}, {what}"
    command = known.commands[index]
    moment = {"what": what, "seconds": rng.uniform(0, 0.95) * command.seconds}
    if rng.random() < 0.5 and command.events:
        number = rng.randrange(len(command.events))
        moment = {"what": what, "events": EVENTS, "number": number}
    ended = run(CHAINS[name][index], place, moment)
    if found := judge_process(ended, most_seconds=MOST_SECONDS):
        return Verdict(found.name, f"{about}: {found.text}")
    count = len((folder / LOG).read_text().splitlines())
    goes_on = count > moment.get("number", len(command.events)) + _FEW
    if wrong := _wrong_end(ended, what, goes_on=goes_on):
        return Verdict("unclear", f"{about}: {wrong}: {ended.out[-300:]} {ended.err[-1000:]}")
    if problems := problems_of_files(place):
        return Verdict("left-over", f"{about}: not whole: {problems[:3]}")
    if left := [*left_over(folder), *temporary_files(place)]:
        return Verdict("left-over", f"{about}: {', '.join(left[:5])}")
    for words in CHAINS[name][index:]:
        ended_again = run(words, place)
        if ended_again.status:
            return Verdict("wrong", f"{about}: it does not go on: {ended_again.err[-1000:]}")
    if differs := differences(place, known.place):
        return Verdict("wrong", f"{about}: {'; '.join(differs[:5])}")
    return Verdict(CLEAR if ended.status else SOUND, about)


def _wrong_end(ended, what: str, *, goes_on: bool) -> str | None:
    """Says what is wrong with how a command has ended; None where it may end so.

    `goes_on` says whether, if it says nothing, it has gone on, and was not over before.
    """
    said = ended.out + ended.err
    if "Exception ignored" in said:
        return "an exception that was ignored"
    count = len(_SAID.findall(said))
    if ended.status == 0 and not count:
        return "it goes on" if goes_on else None
    if ended.status not in _ENDINGS[what]:
        return f"status {ended.status}"
    if count != 1:
        return f"{count} messages"
    if said.count("error: "):
        return "an error"
    return None
