"""Processes that work for long or wait for others: memory stays, and nobody waits for ever."""

import gc
import json
import os
import pathlib
import shutil
import signal
import threading

import numpy as np

from sat_tf import output_folder
from tests.campaign.cases import CLEAR, SOUND, FindingError, Verdict, expect_an_end, expect_success
from tests.campaign.chains import begin, expect_whole_files
from tests.campaign.originals import original
from tests.campaign.processes import Ended, Server, server
from tests.training.processes import free_ports

# -- a thousand verifications in one process -------------------------------------------------------

# How many verifications, and in how many threads; the first is the small one of the tests.
_CASES = ((12, 2), (1000, 1), (1000, 4))
_FIRST = 4
# A process may grow by so much after the first ones, however many follow.
_MOST_BYTES_MORE = 32 * 2**20
_SECONDS = 3600


def play_load(seed: int, folder: pathlib.Path) -> Verdict:
    """Verifies a file again and again in one process."""
    place = folder / "case"
    place.mkdir()
    shutil.copy(original("model.tflite"), place)
    count, threads = _CASES[seed % len(_CASES)]
    arguments = f"{__name__}:verify_again", count, threads
    ended = server("light").call(
        *arguments, cwd=place, seconds=_SECONDS, forks=threads == 1, most_seconds=_SECONDS
    )
    expect_success(ended, most_seconds=_SECONDS)
    found = json.loads(ended.out)
    about = f"{count} in {threads} threads: {ended.out.strip()}"
    if found["answers"] != 1:
        raise FindingError("wrong", about)
    if found["grown_bytes"] > _MOST_BYTES_MORE or found["handles"] or found["threads"]:
        raise FindingError("memory", about)
    return Verdict(SOUND, about)


def verify_again(count: int, threads: int) -> None:
    """Verifies model.tflite so many times in all; prints what has grown since the first ones.

    It runs in the child of a server.
    """
    from sat_tf.exact.certificate.proof import read_subject
    from sat_tf.export import verify_file

    shape = read_subject(pathlib.Path("model.tflite")).graph.images[0].shape
    images = np.random.default_rng(0).integers(0, 256, (4, *shape)).astype(np.uint8)
    answers: set[str] = set()

    def verify(times: int) -> None:
        for _ in range(times):
            certificate = verify_file("model.tflite", images, runtimes=["xnnpack"], progress=False)
            answers.add(json.dumps(certificate.to_dict(), sort_keys=True, default=repr))

    def in_threads(times: int) -> dict[str, int]:
        share = times // threads
        working = [threading.Thread(target=verify, args=(share,)) for _ in range(threads)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()
        gc.collect()
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return {
            "grown_bytes": pages * os.sysconf("SC_PAGESIZE"),
            "handles": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
        }

    before, after = in_threads(_FIRST), in_threads(count)
    grown = {name: after[name] - before[name] for name in before}
    print(json.dumps({"answers": len(answers), **grown}))


# -- workers of one training -----------------------------------------------------------------------

_TRAIN = ("train", "--config", "run.yaml", "--out", "done", "--set", "distribution=multi_worker")
_LONG = ("--set", "stages.float.epochs=40")
# TensorFlow itself takes some of this time to see that another worker is gone.
_SECONDS_OF_WORKERS = 900


class _Workers:
    """Two processes that are to train together, in `case` in the folder of the case."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.place = begin(folder)
        self._folder = folder
        self._ports = free_ports(2)
        self._servers = [Server("tensorflow") for _ in range(2)]
        for one in self._servers:  # Times count from when both are there.
            one.call("builtins:print", cwd=self.place)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._servers:
            one.end()

    def train(
        self, *kills: tuple[int, float] | None, seconds: float = _SECONDS_OF_WORKERS
    ) -> list[Ended]:
        """How workers end, each of which may get a signal after some seconds."""
        ends: dict[int, Ended] = {}
        cluster = {"worker": [f"localhost:{port}" for port in self._ports]}

        def work(index: int) -> None:
            beside = self._folder / f"worker {index}" / "case"
            shutil.rmtree(beside.parent, ignore_errors=True)
            beside.mkdir(parents=True)
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            ends[index] = self._servers[index].call(
                f"{__name__}:train_as",
                json.dumps(task),
                str(self.place),
                cwd=beside,
                seconds=seconds,
                kill=kills[index],
            )

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(kills))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [ends[index] for index in range(len(kills))]


def train_as(task: str, place: str) -> int:
    """Trains as one of several workers; called in the child of a server."""
    from tests.campaign.cases import command

    os.environ["TF_CONFIG"] = task
    return command([*_TRAIN, *_LONG], place)


def play_workers(seed: int, folder: pathlib.Path) -> Verdict:
    """Waits for a worker that never comes, or kills one of two."""
    with _Workers(folder) as workers:
        return (_nobody_comes, _one_is_killed)[seed % 2](workers)


def _nobody_comes(workers: _Workers) -> Verdict:
    """A worker says whom it waits for, and Ctrl-C ends it."""
    (ended,) = workers.train((signal.SIGINT, 15.0), seconds=45.0)
    if "it waits for" not in ended.out:
        raise FindingError("unclear", f"{ended.out[-300:]} {ended.err[-500:]}")
    if ended.is_late:
        raise FindingError("hang", f"Ctrl-C came after 15 seconds: {ended.err[-500:]}")
    if "Traceback" in ended.err or ended.status not in (130, -signal.SIGINT):
        raise FindingError("traceback", f"status {ended.status}: {ended.err[-1000:]}")
    return Verdict(CLEAR, "it ended by Ctrl-C")


def _one_is_killed(workers: _Workers) -> Verdict:
    """Who is left ends with one message; both go on, to the end."""
    first, second = workers.train(None, (signal.SIGKILL, 30.0))
    if second.status != -signal.SIGKILL:
        return Verdict(SOUND, f"it was over before: {first.status}, {second.status}")
    waits = first.is_late and "it waits for" in first.out
    if waits and not (workers.place / "done" / output_folder.CONFIG).exists():
        # On a busy machine the other one was killed before it came.
        return Verdict(SOUND, "it waits for one that never came, and says so")
    expect_an_end(first, most_seconds=_SECONDS_OF_WORKERS)
    if first.status != 2 or first.err.count("error: ") != 1:
        raise FindingError("unclear", f"status {first.status}: {first.err[-1000:]}")
    expect_whole_files(workers.place)
    for ended in workers.train(None, None):
        expect_success(ended, most_seconds=_SECONDS_OF_WORKERS)
    return Verdict(CLEAR, first.err.strip()[-300:])
