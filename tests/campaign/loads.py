"""Processes that work for long or wait for others: memory stays, and nobody waits for ever."""

import concurrent.futures
import gc
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from tests.campaign.cases import CLEAR, SOUND, FindingError, Verdict, expect_an_end, expect_success
from tests.campaign.chains import begin, expect_whole_files
from tests.campaign.originals import original
from tests.campaign.processes import Ended, server
from tests.training.processes import free_ports

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
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(verify, [share] * threads))
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


_TRAIN = "train --config run.yaml --out done --set distribution=multi_worker"
_LONG = "--set stages.float.epochs=40"
# TensorFlow itself takes some of this time to see that another worker is gone.
_SECONDS_OF_WORKERS = 900
_SECONDS_TO_TRAIN = 20


def _start(place: pathlib.Path, ports: Sequence[int], index: int) -> "subprocess.Popen[str]":
    """Starts a worker of a training on these ports."""
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
    environment = {"TF_CONFIG": json.dumps(task), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "sat_tf", *_TRAIN.split(), *_LONG.split()],
        cwd=place,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _until_it_waits(worker: "subprocess.Popen[str]") -> None:
    if not any("it waits for" in line for line in worker.stdout):
        raise FindingError("unclear", worker.stderr.read()[-500:])


def _ended(worker: "subprocess.Popen[str]", seconds: float = _SECONDS_OF_WORKERS) -> Ended:
    """Waits for the end of a worker, or ends it after some seconds."""
    is_late = False
    try:
        out, err = worker.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        is_late = True
        worker.kill()
        out, err = worker.communicate()
    return Ended(worker.returncode, 0.0, 0, is_late, out, err)


def play_workers(seed: int, folder: pathlib.Path) -> Verdict:
    """Waits for a worker that never comes, or kills one of two."""
    return (_nobody_comes, _one_is_killed)[seed % 2](begin(folder), free_ports(2))


def _nobody_comes(place: pathlib.Path, ports: Sequence[int]) -> Verdict:
    """A worker says whom it waits for, and Ctrl-C ends it."""
    worker = _start(place, ports, 0)
    _until_it_waits(worker)
    worker.send_signal(signal.SIGINT)
    ended = _ended(worker, seconds=60.0)
    if ended.status != -signal.SIGINT:  # which ends it where it waits in C++
        expect_an_end(ended)
        if ended.status != 130:
            raise FindingError("unclear", f"status {ended.status}: {ended.err[-1000:]}")
    return Verdict(CLEAR, "it ended by Ctrl-C")


def _one_is_killed(place: pathlib.Path, ports: Sequence[int]) -> Verdict:
    """Who is left ends with one message; both go on, to the end."""
    workers = [_start(place, ports, index) for index in range(2)]
    for worker in workers:
        _until_it_waits(worker)
    time.sleep(_SECONDS_TO_TRAIN)
    workers[1].kill()
    first, second = map(_ended, workers)
    if second.status != -signal.SIGKILL:
        return Verdict(SOUND, f"it was over before: {first.status}, {second.status}")
    expect_an_end(first)
    if first.status != 2 or len(re.findall("^error: ", first.err, re.MULTILINE)) != 1:
        raise FindingError("unclear", f"status {first.status}: {first.err[-1000:]}")
    expect_whole_files(place)
    for ended in map(_ended, [_start(place, ports, index) for index in range(2)]):
        expect_success(ended)
    return Verdict(CLEAR, first.err.strip()[-300:])
