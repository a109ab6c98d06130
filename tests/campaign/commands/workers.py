"""Workers of one training that do not fit each other, that never come, or that are killed.

Two processes on this machine; nothing here takes longer than some minutes, and nobody waits for
ever: who is left says what is missing, and the run goes on once both are there again.
"""

import json
import os
import pathlib
import shutil
import signal
import threading
import time
from typing import Any

from sat_tf import output_folder
from tests.campaign.commands.chains import begin, problems_of_files
from tests.campaign.processes import Ended, Server
from tests.campaign.verdicts import CLEAR, SOUND, Verdict, judge_process
from tests.training.processes import free_ports

_WORDS = ("train", "--config", "tiny.yaml", "--out", "done", "--set", "distribution=multi_worker")
# TensorFlow itself takes some of this time to see that another worker is gone.
_SECONDS = 900
_SECONDS_TO_END = 30


def play(seed: int, folder: pathlib.Path) -> Verdict:
    """Plays one of `CASES`."""
    name = list(CASES)[seed % len(CASES)]
    verdict = CASES[name](folder)
    return Verdict(verdict.name, f"{name}: {verdict.text}")


class _Workers:
    """Two processes that are to train together, in `case` in the folder of the case."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.place = begin(folder)
        self._folder = folder
        self._ports = free_ports(2)
        self._servers = [Server("tensorflow") for _ in range(2)]
        for one in self._servers:  # Times count from when both are there.
            one.call("builtins:print", cwd=self.place)
        self._threads: list[threading.Thread] = []
        self.ended: dict[int, Ended] = {}

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for thread in self._threads:
            thread.join()
        for one in self._servers:
            one.end()

    def start(self, index: int, *more: str, kill: Any = None, **facts: Any) -> None:
        """Starts a worker; `facts` are of `worker`."""
        beside = self._folder / f"worker {index}" / "case"
        shutil.rmtree(beside.parent, ignore_errors=True)
        beside.mkdir(parents=True)
        cluster = {"worker": [f"localhost:{port}" for port in self._ports]}
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        asked = {"config": task, "words": [*_WORDS, *more], "place": str(self.place), **facts}

        def wait() -> None:
            self.ended[index] = self._servers[index].call(
                f"{__name__}:worker",
                asked,
                cwd=beside,
                seconds=_SECONDS,
                kill=kill,
            )

        self._threads.append(threading.Thread(target=wait))
        self._threads[-1].start()

    def finish(self) -> list[Ended]:
        """Waits for all; gives how they ended, by index."""
        for thread in self._threads:
            thread.join()
        return [self.ended[index] for index in sorted(self.ended)]


def worker(asked: dict[str, Any]) -> int:
    """A worker; called in the child of a server."""
    import sys

    import sat_tf.version
    from sat_tf.__main__ import main
    from sat_tf.training.loop import start

    os.environ["TF_CONFIG"] = json.dumps(asked["config"])
    if "version" in asked:
        for module in (sat_tf.version, start):
            module.__version__ = asked["version"]
    os.chdir(asked["place"])
    sys.argv = ["sat-tf", *asked["words"]]
    return main()


def _refused(ended: list[Ended], word: str) -> Verdict:
    """The verdict where both have to refuse, and one at least has to say why."""
    for one in ended:
        if found := judge_process(one, most_seconds=_SECONDS):
            return found
    if [one.status for one in ended] != [2, 2]:
        return Verdict("wrong", f"status {[one.status for one in ended]}: {ended[0].err[-500:]}")
    if not any(word in one.err for one in ended):
        return Verdict("unclear", ended[0].err[-1000:])
    return Verdict(CLEAR, ended[0].err.strip()[-300:])


def _unequal_settings(folder: pathlib.Path) -> Verdict:
    with _Workers(folder) as workers:
        workers.start(0)
        workers.start(1, "--set", "seed=1")
        return _refused(workers.finish(), "seed")


def _unequal_versions(folder: pathlib.Path) -> Verdict:
    with _Workers(folder) as workers:
        workers.start(0)
        workers.start(1, version="0.0.1")
        return _refused(workers.finish(), "0.0.1")


def _nobody_comes(folder: pathlib.Path) -> Verdict:
    """Says whom it waits for, and Ctrl-C ends it."""
    with _Workers(folder) as workers:
        started = time.monotonic()
        workers.start(0, kill=(signal.SIGINT, 15.0))
        (ended,) = workers.finish()
        took = time.monotonic() - started
    if "it waits for" not in ended.out:
        return Verdict("unclear", f"{ended.out[-300:]} {ended.err[-500:]}")
    if ended.is_late or took > 15 + _SECONDS_TO_END:
        return Verdict("hang", f"{took:.0f} s, though Ctrl-C came after 15: {ended.err[-500:]}")
    if "Traceback" in ended.err or ended.status not in (130, -signal.SIGINT):
        return Verdict("traceback", f"status {ended.status}: {ended.err[-1000:]}")
    return Verdict(CLEAR, f"ended {took:.0f} s after it began to wait")


def _killed(folder: pathlib.Path) -> Verdict:
    """Who is left ends with one message; both go on, to the end."""
    with _Workers(folder) as workers:
        long = "--set", "stages.float.epochs=40"
        workers.start(0, *long)
        workers.start(1, *long, kill=(signal.SIGKILL, 30.0))
        first, second = workers.finish()
        if second.status != -signal.SIGKILL:
            return Verdict(SOUND, f"it was over before: {first.status}, {second.status}")
        waits = first.is_late and "it waits for" in first.out
        if waits and not (workers.place / "done" / output_folder.CONFIG).exists():
            # On a busy machine the other one was killed before it came.
            return Verdict(SOUND, "it waits for one that never came, and says so")
        if found := judge_process(first, most_seconds=_SECONDS):
            return found
        if first.status != 2 or first.err.count("error: ") != 1:
            return Verdict("unclear", f"status {first.status}: {first.err[-1000:]}")
        if problems := problems_of_files(workers.place):
            return Verdict("left-over", str(problems[:3]))
        workers.start(0, *long)
        workers.start(1, *long)
        for one in workers.finish():
            if found := judge_process(one, most_seconds=_SECONDS):
                return found
            if one.status:
                return Verdict("wrong", f"it does not go on: {one.err[-1000:]}")
    return Verdict(CLEAR, first.err.strip()[-300:])


CASES = {
    "other settings": _unequal_settings,
    "another version": _unequal_versions,
    "the other never comes": _nobody_comes,
    "a worker is killed": _killed,
}
