"""A thousand verifications in one process, and in threads: memory stays, and so do the answers."""

import gc
import json
import os
import pathlib
import shutil
import threading

import numpy as np

from tests.campaign.commands.chains import reference
from tests.campaign.processes import server
from tests.campaign.verdicts import SOUND, Verdict, judge_process

# How many verifications, and in how many threads; the first is the small one of the tests.
_CASES = ((12, 2), (1000, 1), (1000, 4))
_FIRST = 4
# A process may grow by so much after the first ones, however many follow.
MOST_BYTES_MORE = 32 * 2**20
_SECONDS = 3600


def play(seed: int, folder: pathlib.Path) -> Verdict:
    """Verifies a file again and again in one process."""
    place = folder / "case"
    place.mkdir()
    shutil.copy(reference("export").place / "own.tflite", place / "own.tflite")
    count, threads = _CASES[seed % len(_CASES)]
    arguments = f"{__name__}:verify_again", count, threads
    ended = server("light").call(
        *arguments, cwd=place, seconds=_SECONDS, forks=threads == 1, most_seconds=_SECONDS
    )
    if found := judge_process(ended, most_seconds=_SECONDS):
        return found
    if ended.status:
        return Verdict("wrong", f"{ended.out[-500:]} {ended.err[-1000:]}")
    found = json.loads(ended.out)
    about = f"{count} in {threads} threads: {ended.out.strip()}"
    if found["answers"] != 1:
        return Verdict("wrong", about)
    if found["grown_bytes"] > MOST_BYTES_MORE or found["handles"] or found["threads"]:
        return Verdict("memory", about)
    return Verdict(SOUND, about)


def verify_again(count: int, threads: int) -> None:
    """Verifies own.tflite so many times in all; prints what has grown since the first ones.

    It runs in the child of a server.
    """
    from sat_tf.export import verify_file
    from sat_tf.export.certificate.proof import read_subject

    shape = read_subject(pathlib.Path("own.tflite")).graph.images[0].shape
    images = np.random.default_rng(0).integers(0, 256, (4, *shape)).astype(np.uint8)
    answers: set[str] = set()

    def verify(times: int) -> None:
        for _ in range(times):
            certificate = verify_file("own.tflite", images, runtimes=["xnnpack"], progress=False)
            answers.add(json.dumps(certificate.to_dict(), sort_keys=True, default=repr))

    def in_threads(times: int) -> None:
        share = times // threads
        working = [threading.Thread(target=verify, args=(share,)) for _ in range(threads)]
        for thread in working:
            thread.start()
        for thread in working:
            thread.join()

    in_threads(_FIRST)
    before = _held()
    in_threads(count)
    after = _held()
    grown = {name: after[name] - before[name] for name in before}
    print(json.dumps({"answers": len(answers), **grown}))


def _held() -> dict[str, int]:
    """Memory, open files and threads of this process."""
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return {
        "grown_bytes": pages * os.sysconf("SC_PAGESIZE"),
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }
