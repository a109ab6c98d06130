"""Disks that are full or become read-only at each write of each file, and folders that are shared.

A writer of one file is refused at every one of its events in turn: at that one alone, from there
on, or by the system itself, which lets no file grow any more. It raises one error that names the
file and the fix, or has not needed what was refused; an older file stays, and no temporary one.
Commands are refused at one event of each case, and go on once there is room again. Four processes
at once work in one folder, and in four.
"""

import pathlib
import random
import threading
from collections.abc import Callable
from typing import Any

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
from tests.campaign.commands.moments import LOG, REFUSALS, REMOVALS, watched
from tests.campaign.processes import Server, server
from tests.campaign.verdicts import CLEAR, SOUND, Verdict, judge_command, judge_process

_TOGETHER = 4
_SWEEP_SECONDS, _WALL_SECONDS = 120, 900
_ABOUT = ("done", "own", "proof", "again", "kit.zip", "tmp", "case")


def play(seed: int, folder: pathlib.Path) -> Verdict:
    """Plays all refusals of a writer of one file, one of a command, or four processes at once."""
    sweeps = [(writer, what) for writer in WRITERS for what in REFUSALS]
    if seed < len(sweeps):
        return _all_refusals(*sweeps[seed], folder)
    if seed % 20 == 0:
        return _together(seed, folder)
    return _of_a_command(seed, folder)


# -- commands --------------------------------------------------------------------------------------


def _of_a_command(seed: int, folder: pathlib.Path) -> Verdict:
    rng = random.Random(f"disks {seed}")
    name, what = sorted(CHAINS)[seed % len(CHAINS)], rng.choice(REFUSALS)
    known, index = reference(name), rng.randrange(len(CHAINS[name]))
    place = begin(folder, name, index)
    number = rng.randrange(max(len(known.commands[index].events), 1))
    words = CHAINS[name][index]
    about = f"{name}, {words[0]}, {what} at {number}"
    ended = run(words, place, {"what": what, "number": number})
    found = judge_command(ended, about=_ABOUT, most_seconds=MOST_SECONDS)
    if found.is_finding:
        return Verdict(found.name, f"{about}: {found.text}")
    if problems := problems_of_files(place):
        return Verdict("left-over", f"{about}: not whole: {problems[:3]}")
    events = (folder / LOG).read_text().splitlines()
    is_removal = number < len(events) and events[number].startswith(REMOVALS)
    if not is_removal and (left := left_over(folder)):
        return Verdict("left-over", f"{about}: {', '.join(left[:5])}")
    for again in CHAINS[name][index if ended.status else index + 1 :]:
        if (ended_again := run(again, place)).status:
            return Verdict("wrong", f"{about}: it does not go on: {ended_again.err[-1000:]}")
    if differs := differences(place, known.place):
        return Verdict("wrong", f"{about}: {'; '.join(differs[:5])}")
    return Verdict(found.name, about)


# -- writers of one file ---------------------------------------------------------------------------


def _export(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    import sat_tf
    from tests.training.small import small_quantized_model

    model = small_quantized_model()
    return lambda folder: sat_tf.export_tflite(model, folder / "model.tflite")


def _certificate(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    import sat_tf
    from sat_tf.export.certificate.page import write_both
    from tests.training.small import small_images, small_quantized_model

    model = small_quantized_model()
    sat_tf.export_tflite(model, scratch / "model.tflite")
    certificate = sat_tf.verify_tflite(
        model, scratch / "model.tflite", small_images().test_images[:4], progress=False
    )
    return lambda folder: write_both(certificate, folder / "certificate.json")


def _report(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    from sat_tf.training.loop.outcome import write_curves, write_report
    from sat_tf.training.run_folder import RunFolder
    from tests.training.report_folder import fill

    def write(folder: pathlib.Path) -> None:
        write_curves(RunFolder(folder))
        write_report(RunFolder(folder))

    def filled(folder: pathlib.Path) -> None:
        if not (folder / "config.yaml").exists():
            fill(RunFolder(folder))
        write(folder)

    return filled


def _saved_model(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    from sat_tf.output_folder import QUANTIZED_MODEL
    from sat_tf.training.run_folder import RunFolder
    from tests.training.small import small_quantized_model

    model = small_quantized_model()

    def write(folder: pathlib.Path) -> None:
        with RunFolder(folder).written(QUANTIZED_MODEL) as temporary:
            model.save(temporary)

    return write


def _plan(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    import sat_tf
    from tests.training.small import small_float_model

    plan = sat_tf.explain(small_float_model(), sat_tf.BitPolicy.mobile(4))

    def write(folder: pathlib.Path) -> None:
        plan.write_csv(folder / "plan.csv")
        plan.write_page(folder / "plan.html")
        plan.write_overlay(folder / "plan.json")

    return write


def _kit(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    import sat_tf
    from tests.training.small import small_images, small_quantized_model

    sat_tf.export_tflite(small_quantized_model(), scratch / "model.tflite")
    images = small_images().test_images[:4]
    return lambda folder: sat_tf.export.write_kit(
        scratch / "model.tflite", images, folder / "kit.zip"
    )


def _rules(scratch: pathlib.Path) -> Callable[[pathlib.Path], Any]:
    from sat_tf.training.audit.training_rules import RuleLog

    rows = [{"row": "layer", "verdict": "good", "name": f"layer {index}"} for index in range(40)]

    def write(folder: pathlib.Path) -> None:
        log = RuleLog(folder / "rules.csv")
        for step in range(3):
            log.write(step, rows)

    return write


# Each makes what is written, and gives a function that writes it into a folder.
WRITERS: dict[str, Callable[[pathlib.Path], Callable[[pathlib.Path], Any]]] = {
    "export": _export,
    "certificate": _certificate,
    "report": _report,
    "saved model": _saved_model,
    "plan": _plan,
    "kit": _kit,
    "rules": _rules,
}


def _all_refusals(writer: str, what: str, folder: pathlib.Path) -> Verdict:
    place = folder / "case"
    place.mkdir()
    ended = server("tensorflow").call(
        f"{__name__}:sweep", writer, what, cwd=place, seconds=_WALL_SECONDS
    )
    if found := judge_process(ended, most_seconds=_SWEEP_SECONDS):
        return found
    if ended.status:
        return Verdict("wrong", ended.out[-1500:] + ended.err[-500:])
    return Verdict(CLEAR, ended.out.strip())


def sweep(writer: str, what: str) -> int:
    """Refuses each event of a writer in turn; prints what is wrong, or how many there were.

    It runs in the child of a server. Files that are there before are of an earlier writing.
    """
    here, scratch = pathlib.Path.cwd(), pathlib.Path.cwd().with_name("scratch")
    scratch.mkdir()
    write = WRITERS[writer](scratch)
    write(here)
    problems, number, refused = [], 0, 0
    while True:
        before = _contents(here)
        message = None
        with watched(here.parent, number=number, what=what) as events:
            try:
                write(here)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
        if len(events) <= number:
            break
        about = f"{writer}, {what} at {events[number]}"
        if message is not None:
            refused += 1
            problems += [f"{about}: {one}" for one in _problems_of(message)]
        if left := left_over(here.parent):
            problems.append(f"{about}: left {left[:3]}")
        if broken := problems_of_files(here):
            problems.append(f"{about}: not whole: {broken[:2]}")
        if message is not None and (gone := set(before) - set(_contents(here))):
            problems.append(f"{about}: gone: {sorted(gone)[:3]}")
        number += 1
    print("\n".join(problems[:10]) or f"{writer}, {what}: {number} events, {refused} errors")
    return min(len(problems), 1)


def _problems_of(message: str) -> list[str]:
    problems = []
    if message.partition(":")[0] not in ("ValueError", "RunError"):
        problems.append(f"raises {message[:300]}")
    elif "expected" not in message or ";" not in message:
        problems.append(f"says no fix: {message[:300]}")
    if len(message) > 2000:
        problems.append(f"{len(message)} characters")
    return problems


def _contents(folder: pathlib.Path) -> dict[str, int]:
    """The files of a folder with their sizes; of checkpoints, the number changes."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and "ckpt-" not in path.name and path.name != ".lock"
    }


# -- several processes -----------------------------------------------------------------------------


def _together(seed: int, folder: pathlib.Path) -> Verdict:
    """Four processes run the same chain at once, in one folder or in four."""
    is_one, name = seed % 40 == 0, sorted(CHAINS)[seed // 40 % len(CHAINS)]
    known = reference(name)
    places = [begin(folder / "0")] * _TOGETHER if is_one else []
    for number in range(len(places), _TOGETHER):
        places.append(begin(folder / str(number)))
    about = f"{name}, four at once in {'one folder' if is_one else 'four'}"
    found: list[list[Any]] = [[] for _ in places]

    def work(number: int) -> None:
        # Each prints into files beside a folder of its own.
        beside = folder / f"of {number}" / "case"
        beside.mkdir(parents=True)
        own = Server("tensorflow")
        try:
            for words in CHAINS[name]:
                arguments = str(places[number]), words
                found[number].append(
                    own.call(f"{__name__}:in_folder", *arguments, cwd=beside, seconds=_WALL_SECONDS)
                )
        finally:
            own.end()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_TOGETHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ended in (one for row in found for one in row):
        verdict = judge_command(ended, about=_ABOUT, most_seconds=MOST_SECONDS)
        if verdict.is_finding:
            return Verdict(verdict.name, f"{about}: {verdict.text}")
        if not is_one and ended.status:
            return Verdict("wrong", f"{about}: {ended.err[-1000:]}")
    for words in CHAINS[name] if is_one else ():
        if (ended := run(words, places[0])).status:
            return Verdict("wrong", f"{about}: afterwards: {ended.err[-1000:]}")
    for place in places:
        if problems := problems_of_files(place):
            return Verdict("left-over", f"{about}: not whole: {problems[:3]}")
        if differs := differences(place, known.place):
            return Verdict("wrong", f"{about}: {'; '.join(differs[:5])}")
    return Verdict(SOUND, about)


def in_folder(place: str, words: list[str]) -> int:
    """Runs `sat-tf` with some words in a folder; called in the child of a server."""
    import os
    import sys

    from sat_tf.__main__ import main

    os.chdir(place)
    sys.argv = ["sat-tf", *words]
    return main()
