"""Time of a training step in two checkouts of sat-tf, beside each other in one run.

Each checkout has a process of its own, and the processes step by turns, so that what else the
machine does meets all of them alike. The first one is what the others are compared with; name a
checkout twice to see how much two processes of the same code differ.

    git worktree add /tmp/before v0.1.0
    python benchmarks/step_time_of_checkouts.py --checkouts=/tmp/before,/tmp/before,.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from absl import app, flags
from turns import seconds_by_turns

_CHECKOUTS = flags.DEFINE_list("checkouts", None, "folders that hold sat_tf/; the first is 1.00")
_CONTENDERS = flags.DEFINE_list(
    "contenders", ["sat-tf w4a4 paper", "sat-tf w4a4 mobile"], "which to measure"
)
_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "float model, by name")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 96, "rows and columns of the images")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a step")
_STEPS = flags.DEFINE_integer("steps", 30, "timed steps of every checkout")
_WARM_UP = flags.DEFINE_integer("warm_up", 3, "steps before them; the first one traces")

_WORKER = """
import json, sys
from contenders import Steps
steps = Steps(*json.loads(sys.argv[1]))
for _ in sys.stdin:
    steps.train()
    print("done", flush=True)
"""


class _Checkout:
    """A process that trains with the code of one checkout, a step at a time."""

    def __init__(self, folder: str, case: tuple[str, str, int, int]) -> None:
        here = pathlib.Path(__file__).parent
        path = os.pathsep.join([str(pathlib.Path(folder).resolve()), str(here)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, json.dumps(case)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def step(self) -> None:
        """Trains on the batch once."""
        self._requests.write("\n")
        self._requests.flush()
        while (line := self._answers.readline()) != "done\n":
            if not line:
                raise RuntimeError("A process ended; run benchmarks/step_time.py to see why.")

    def close(self) -> None:
        """Ends the process."""
        self._requests.close()
        self._process.wait()


def main(argv: list[str]) -> None:
    """Prints the ratio of medians, with quartiles of the ratios step by step."""
    if len(argv) > 1:
        raise app.UsageError(f"Received {argv[1:]}, expected flags only.")
    for contender in _CONTENDERS.value:
        case = (contender, _MODEL.value, _IMAGE_SIZE.value, _BATCH_SIZE.value)
        folders = dict(enumerate(_CHECKOUTS.value))
        made = {at: _Checkout(folder, case) for at, folder in folders.items()}
        calls = {at: checkout.step for at, checkout in made.items()}
        seconds = seconds_by_turns(calls, range(_STEPS.value), warm_up=_WARM_UP.value)
        for checkout in made.values():
            checkout.close()
        for at, folder in folders.items():
            ratios = [mine / first for mine, first in zip(seconds[at], seconds[0], strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            ratio = statistics.median(seconds[at]) / statistics.median(seconds[0])
            print(f"{contender}: {folder}: {ratio:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    flags.mark_flag_as_required("checkouts")
    app.run(main)
