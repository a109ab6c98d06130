"""Time and memory of a training step, and time of an evaluation step, beside float and TFMOT.

Every time is a median over steps that are interleaved in one process: float, ours, TFMOT, float,
ours, TFMOT, ... so that what else the machine does meets all of them alike. Ratios are what counts;
seconds say something about one machine only. A ratio is that of two medians; its quartiles are
those of the ratios step by step, and where they lie beside it the machine was uneasy.

An evaluation step is timed twice: as it is, and inside `sat_tf.callbacks.constant_weights`, where
weights are not quantized anew in each step; that is how `sat_tf` itself measures held-out images.
Others have no such thing, and are timed as they are once more.

Memory is by how much a process of its own that has made the model grows in two training steps, at
its peak: activations, gradients, momentum and what tracing leaves, without TensorFlow itself. Linux
only.

    python benchmarks/step_time.py
    python benchmarks/step_time.py --models=resnet18,resnet50 --batch_sizes=8,32 --steps=10

Each model, image size and batch size is measured in a process of its own. Its rows replace those
that the CSV file has of the same contenders; the others stay. So QKeras, which needs an environment
of its own (`peer_qkeras.py` says how to make it; sat-tf goes into it as well), can be added there:

    TF_USE_LEGACY_KERAS=1 ~/qkeras/bin/python benchmarks/step_time.py --contenders="QKeras w4a4"
"""

import contextlib
import csv
import itertools
import pathlib
import statistics

import rich.console
import rows
from absl import app, flags
from contenders import Steps, with_float
from new_process import in_new_process
from turns import seconds_by_turns

_MODELS = flags.DEFINE_list("models", ["mobilenet_v2"], "float models, by name")
_IMAGE_SIZES = flags.DEFINE_list("image_sizes", ["96"], "rows and columns of the images")
_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["32"], "images a step")
_CONTENDERS = flags.DEFINE_list("contenders", None, "which to measure, besides float; default: all")
_STEPS = flags.DEFINE_integer("steps", 20, "timed steps of every model")
_WARM_UP = flags.DEFINE_integer("warm_up", 3, "steps before them; the first one traces")
_THREADS = flags.DEFINE_integer("threads", 2, "threads inside an operation")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/step_time.csv", "where to write rows")

_CASE = ("model", "image size", "batch size")
_TRAINING, _EVALUATION, _CONSTANT = "training", "evaluation", "constant weights"
_KINDS = (_TRAINING, _EVALUATION, _CONSTANT)


def _mebibytes(contender: str, case: tuple[str, int, int]) -> float:
    """By how much this process grows in two steps, at its peak."""
    steps = Steps(contender, *case)
    # Making the model may have needed more, for a moment, than training does: the peak starts anew.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _kibibytes("VmRSS")
    steps.train()
    steps.train()
    return (_kibibytes("VmHWM") - before) / 1024


def _kibibytes(entry: str) -> int:
    """Memory of this process, as Linux counts it."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == entry:
            return int(amount.removesuffix("kB"))
    raise ValueError(f"/proc/self/status has no {entry}.")


def _durations(
    contenders: list[str], case: tuple[str, int, int], count: int, warm_up: int, threads: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step, by contender and kind."""
    import tensorflow as tf

    import sat_tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    all_steps = {name: Steps(name, *case) for name in contenders}
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in contenders}
    with contextlib.ExitStack() as stack:
        for kind in _KINDS:
            if kind == _CONSTANT:
                for steps in all_steps.values():
                    if steps.has_constant_weights:
                        stack.enter_context(sat_tf.callbacks.constant_weights(steps.model))
            calls = {
                name: steps.train if kind == _TRAINING else steps.evaluate
                for name, steps in all_steps.items()
            }
            for name, taken in seconds_by_turns(calls, range(count), warm_up=warm_up).items():
                seconds[name][kind] = taken
    return seconds


def _measure(
    contenders: list[str], case: tuple[str, int, int], console: rich.console.Console
) -> list[dict[str, str]]:
    """The rows of one model, image size and batch size."""
    mebibytes: dict[str, float] = {}
    for name in contenders:
        with console.status(f"memory of {name}"):
            try:
                mebibytes[name] = in_new_process(_mebibytes, name, case)
            except (ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0][:80]
                console.print(f"{name} does not take {case[0]}: {reason}")
    with console.status("timing"):
        settings = _STEPS.value, _WARM_UP.value, _THREADS.value
        seconds = in_new_process(_durations, list(mebibytes), case, *settings)
    described = {key: str(value) for key, value in zip(_CASE, case, strict=True)}
    described["threads"] = str(_THREADS.value)
    return [
        {
            **described,
            "contender": name,
            **{
                key: value
                for kind in _KINDS
                for key, value in _times(kind, seconds[name][kind], seconds["float"][kind]).items()
            },
            "mebibytes": f"{mebibytes[name]:.0f}",
            "memory, times float": f"{mebibytes[name] / mebibytes['float']:.2f}",
        }
        for name in mebibytes
    ]


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return (*(row[name] for name in _CASE), row["contender"])


def _times(step: str, mine: list[float], floats: list[float]) -> dict[str, str]:
    # Ratios step by step: neighbours in time share what else the machine does.
    ratios = [own / reference for own, reference in zip(mine, floats, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        f"{step}, seconds": f"{statistics.median(mine):.4f}",
        f"{step}, times float": f"{statistics.median(mine) / statistics.median(floats):.3f}",
        f"{step}, quartiles": f"{low:.3f} to {high:.3f}",
    }


def main(argv: list[str]) -> None:
    """Measures all cases, prints a table of each and keeps a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, output = rich.console.Console(width=150), pathlib.Path(_OUTPUT.value)
    names = with_float(_CONTENDERS.value)
    results: dict[tuple[str, ...], dict[str, str]] = {}
    if output.exists():
        with output.open(newline="") as file:
            results = {_key(row): row for row in csv.DictReader(file)}
    sizes = (map(int, flag.value) for flag in (_IMAGE_SIZES, _BATCH_SIZES))
    for case in itertools.product(_MODELS.value, *sizes):
        measured = _measure(names, case, console)
        title = f"{case[0]}, {case[1]}x{case[1]}, batch {case[2]}, medians of {_STEPS.value} steps"
        console.print(rows.as_table(measured, title, list(measured[0])[len(_CASE) :]))
        for row in measured:
            # Others' ratios are to the float model that was timed beside them.
            if row["contender"] != "float" or not _CONTENDERS.value:
                results.pop(_key(row), None)
            results.setdefault(_key(row), row)
        rows.write_csv(list(results.values()), output)
    console.print(f"wrote {output}")


if __name__ == "__main__":
    app.run(main)
