"""Commands that are killed, asked to stop, or refused by a disk, at any moment.

Whatever befalls a command, every file is whole; the chain that it belongs to then goes on, and
comes to the files of one that was left alone. Ctrl-C reaches all processes that a terminal has
started, SIGTERM the one that is named. A command that is stopped ends with the status that shells
know (130, 143), or, where a run has saved itself on SIGTERM, with 0, and says so once. A disk
refuses one event, all from there on, or any byte more: that is one error that names the file and
the fix. Neither leaves a temporary file. Four processes at once work in one folder, and in four.
"""

import pathlib
import random
import re
import signal
import threading
from typing import Any

from tests.campaign.cases import (
    CLEAR,
    SOUND,
    FindingError,
    Verdict,
    expect_an_end,
    expect_success,
    findings_of,
    judge_command,
)
from tests.campaign.chains import (
    CHAINS,
    MOST_SECONDS,
    WALL_SECONDS,
    Undisturbed,
    begin,
    events_of,
    expect_nothing_left,
    expect_the_end,
    expect_whole_files,
    reference,
    run,
)
from tests.campaign.moments import EVENTS, NAMES_CHANGE, REFUSALS, REMOVALS
from tests.campaign.processes import Ended, Server


def _moment(rng: random.Random, what: str, command: Undisturbed) -> dict[str, Any]:
    """A time while a command runs, or one of its events."""
    events = NAMES_CHANGE if what == "kill" else EVENTS
    count = sum(event.split()[0] in events for event in command.events)
    if what not in REFUSALS and (not count or rng.random() < 0.5):
        return {"what": what, "seconds": rng.uniform(0, 0.9) * command.seconds}
    after = what == "kill" and rng.random() < 0.5
    return {"what": what, "events": events, "number": rng.randrange(count or 1), "after": after}


def play_kills(seed: int, folder: pathlib.Path) -> Verdict:
    """Kills the commands of a chain up to four times in a row, and lets it come to its end."""
    rng = random.Random(f"kills {seed}")
    name = sorted(CHAINS)[seed % len(CHAINS)]
    place, waiting, killed = begin(folder), list(range(len(CHAINS[name]))), 0
    with findings_of(name):
        for _ in range(4):
            while waiting:
                index = waiting[0]
                moment = _moment(rng, "kill", reference(name).commands[index])
                ended = run(CHAINS[name][index], place, moment)
                if ended.status == -signal.SIGKILL and not ended.is_late:
                    killed += 1
                    break
                # The moment comes when the command is over.
                expect_success(ended, most_seconds=MOST_SECONDS)
                del waiting[0]
            expect_whole_files(place)
        expect_the_end(place, name, [CHAINS[name][index] for index in waiting])
        expect_nothing_left(folder)
    return Verdict(SOUND, f"{name}, killed {killed} times")


def play_signals(seed: int, folder: pathlib.Path) -> Verdict:
    """Sends a signal to a command of the seed's chain."""
    return _disturbed(f"signals {seed}", seed, ("int", "term"), folder)


def play_disks(seed: int, folder: pathlib.Path) -> Verdict:
    """Refuses an event of a command of the seed's chain, or runs four chains at once."""
    if seed % 20 == 10:
        return _together(seed // 20, folder)
    return _disturbed(f"disks {seed}", seed, REFUSALS, folder)


def _disturbed(
    draw: str, seed: int, disturbances: tuple[str, ...], folder: pathlib.Path
) -> Verdict:
    rng = random.Random(draw)
    name, what = sorted(CHAINS)[seed % len(CHAINS)], rng.choice(disturbances)
    index = rng.randrange(len(CHAINS[name]))
    place, words = begin(folder, name, index), CHAINS[name][index]
    moment = _moment(rng, what, reference(name).commands[index])
    about = f"{name}, {words[0]}, {moment}"
    with findings_of(about):
        ended = run(words, place, moment)
        events = events_of(place)
        refused: list[str] = []
        if what in REFUSALS:
            judge_command(ended, about=_ABOUT, most_seconds=MOST_SECONDS)
            refused = events[moment["number"] :][:1]
        else:
            expect_an_end(ended, most_seconds=MOST_SECONDS)
            known = reference(name).commands[index].events
            goes_on = len(events) > moment.get("number", len(known)) + _FEW
            _expect_a_clean_stop(ended, what, goes_on=goes_on)
        expect_whole_files(place)
        # What could not be removed is left.
        if not any(event.startswith(REMOVALS) for event in refused):
            expect_nothing_left(folder)
        is_done = what in REFUSALS and not ended.status
        expect_the_end(place, name, CHAINS[name][index + is_done :])
    return Verdict(CLEAR if ended.status else SOUND, about)


# Errors name one of these.
_ABOUT = ("done", "own", "proof", "again", "kit.zip", "plan", "tmp", "case")
# One of these says that a command was stopped, once.
_SAID = re.compile(r"interrupted; |terminated; |Stopped as asked; ")
# Python looks for signals now and then: so many events may follow one.
_FEW = 5
_ENDINGS = {"int": (130,), "term": (143, 0)}


def _expect_a_clean_stop(ended: Ended, what: str, *, goes_on: bool) -> None:
    """Raises the finding of how a command has ended that was asked to stop.

    `goes_on` says whether, if it says nothing, it has gone on, and was not over before.
    """
    said = ended.out + ended.err
    count = len(_SAID.findall(said))
    if ended.status == 0 and not count and not goes_on and "Exception ignored" not in said:
        return
    if ended.status not in _ENDINGS[what] or count != 1 or "Exception ignored" in said:
        raise FindingError("unclear", f"status {ended.status}, {count} messages: {said[-1000:]}")
    if "error: " in said:
        raise FindingError("unclear", said[-1000:])


def _together(number: int, folder: pathlib.Path) -> Verdict:
    """Four processes run the same chain at once, in one folder or in four."""
    is_one, name = number % 2 == 0, sorted(CHAINS)[number // 2 % len(CHAINS)]
    folders = ["0"] if is_one else ["0", "1", "2", "3"]
    places = [begin(folder / at) for at in folders] * (4 if is_one else 1)
    about = f"{name}, four at once in {'one folder' if is_one else 'four'}"
    ends: list[Ended] = []

    def work(place: pathlib.Path, beside: pathlib.Path) -> None:
        # Each prints into files beside a folder of its own.
        beside.mkdir(parents=True)
        own = Server("tensorflow")
        try:
            for words in CHAINS[name]:
                call = "tests.campaign.cases:command", words, str(place)
                ends.append(own.call(*call, cwd=beside, seconds=WALL_SECONDS))
        finally:
            own.end()

    with findings_of(about):
        reference(name)
        threads = [
            threading.Thread(target=work, args=(place, folder / f"of {index}" / "case"))
            for index, place in enumerate(places)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ended in ends:
            judge_command(ended, about=_ABOUT, most_seconds=MOST_SECONDS)
            if not is_one:
                expect_success(ended, most_seconds=MOST_SECONDS)
        for place in places[:1] if is_one else places:
            expect_whole_files(place)
            expect_the_end(place, name, CHAINS[name] if is_one else ())
    return Verdict(SOUND, about)
