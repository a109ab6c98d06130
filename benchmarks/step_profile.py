"""Where the time of a step goes: milliseconds and calls of each kind of kernel, beside float.

From TensorFlow's profiler, for the kernels whose time differs most. Kernels run beside each other,
so that their times add up to more than the step, and each is timed on its own threads alone; the
step itself is timed without the profiler, by turns, above them.

    python benchmarks/step_profile.py
    python benchmarks/step_profile.py --step=evaluation --model=resnet18
"""

import collections
import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import rich.console
import rows
from absl import app, flags
from contenders import Steps, with_float
from new_process import in_new_process
from turns import seconds_by_turns

_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "float model, by name")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 96, "rows and columns of the images")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a step")
_STEP = flags.DEFINE_enum("step", "training", ["training", "evaluation"], "which step")
_CONTENDERS = flags.DEFINE_list(
    "contenders",
    ["sat-tf clamp only", "sat-tf w4a4 paper", "TFMOT 8-bit"],
    "which to profile, besides float",
)
_STEPS = flags.DEFINE_integer("steps", 20, "timed steps; a quarter as many are profiled")
_THREADS = flags.DEFINE_integer("threads", 2, "threads inside an operation")
_KERNELS = flags.DEFINE_integer("kernels", 20, "how many kinds of kernels have a row of their own")
_OUTPUT = flags.DEFINE_string(
    "output", "benchmarks/results/step_profile.csv", "where to write rows"
)

_WARM_UP = 3

# Milliseconds and calls of one step, by kind of kernel.
_Profile = dict[str, tuple[float, float]]


def _measure(
    names: list[str], case: tuple[str, int, int], step: str, count: int, threads: int
) -> tuple[dict[str, float], dict[str, _Profile]]:
    """Milliseconds of a step, and its profile, by contender."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    all_steps = {name: Steps(name, *case) for name in names}
    calls = {
        name: steps.train if step == "training" else steps.evaluate
        for name, steps in all_steps.items()
    }
    seconds = seconds_by_turns(calls, range(count), warm_up=_WARM_UP)
    milliseconds = {name: 1e3 * statistics.median(taken) for name, taken in seconds.items()}
    return milliseconds, {name: _profile(call, max(count // 4, 1)) for name, call in calls.items()}


def _profile(call: Callable[[], None], count: int) -> _Profile:
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(count):
            call()
        tf.profiler.experimental.stop()
        (path,) = pathlib.Path(folder).glob("**/*.xplane.pb")
        content = path.read_bytes()
    picoseconds: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for name, duration in _events(content):
        picoseconds[name] += duration
        calls[name] += 1
    return {name: (picoseconds[name] / 1e9 / count, calls[name] / count) for name in calls}


def _events(content: bytes) -> list[tuple[str, int]]:
    """Kind and picoseconds of each call of a kernel on a CPU in what the profiler wrote."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(content)
    found = []
    for plane in space.planes:
        if "CPU" not in plane.name:
            continue
        for line in plane.lines:
            for event in line.events:
                # Kernels are "name of the operation:its type", and so is what calls the function;
                # what runs them has no colon.
                _, _, kind = plane.event_metadata[event.metadata_id].name.partition(":")
                if kind and "#" not in kind and ":" not in kind and "__inference" not in kind:
                    found.append((kind, event.duration_ps))
    return found


def _as_rows(milliseconds: dict[str, float], profiles: dict[str, _Profile]) -> list[dict[str, str]]:
    """The step itself, the kernels that differ most from float, and the others."""
    float_profile = profiles["float"]
    nothing = 0.0, 0.0

    def difference(kind: str) -> float:
        mine = (profile.get(kind, nothing)[0] for profile in profiles.values())
        return max(abs(each - float_profile.get(kind, nothing)[0]) for each in mine)

    kinds = sorted({kind for profile in profiles.values() for kind in profile}, key=difference)
    kinds.reverse()
    shown, others = kinds[: _KERNELS.value], kinds[_KERNELS.value :]
    table: list[dict[str, Any]] = [
        {"kernel": "the step"}
        | {f"{name}, ms": f"{milliseconds[name]:.1f}" for name in profiles}
        | {f"{name}, calls": "" for name in profiles}
    ]
    for label, members in [*((kind, [kind]) for kind in shown), ("others", others)]:
        row = {"kernel": label}
        for column, part, digits in (("ms", 0, 2), ("calls", 1, 0)):
            for name, profile in profiles.items():
                total = sum(profile.get(kind, nothing)[part] for kind in members)
                row[f"{name}, {column}"] = f"{total:.{digits}f}"
        table.append(row)
    return table


def main(argv: list[str]) -> None:
    """Profiles, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    names = with_float(_CONTENDERS.value)
    console = rich.console.Console(width=160)
    case = _MODEL.value, _IMAGE_SIZE.value, _BATCH_SIZE.value
    with console.status("profiling"):
        task = names, case, _STEP.value, _STEPS.value, _THREADS.value
        results = _as_rows(*in_new_process(_measure, *task))
    title = f"{_STEP.value} step, {case[0]}, {case[1]}x{case[1]}, batch {case[2]}"
    columns = ["kernel", *(column for column in results[0] if column.endswith(", ms"))]
    console.print(rows.as_table(results, title, columns))
    rows.write_csv(results, _OUTPUT.value)
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
