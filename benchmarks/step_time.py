"""Time and memory of a training step, and time of an evaluation step, beside float and TFMOT.

Every time is a median over steps that are interleaved in one process: float, ours, TFMOT, float,
ours, TFMOT, ... so that what else the machine does meets all of them alike. Ratios are what counts;
seconds say something about one machine only.

An evaluation step is timed twice: as it is, and inside `sat_tf.callbacks.constant_weights`, where
weights are not quantized anew in each step; that is how `sat_tf` itself measures held-out images.
Others have no such thing, and are timed as they are once more.

Memory is by how much two training steps raise the peak of a process of their own that has built the
model: activations, gradients, momentum and what tracing leaves, without TensorFlow itself. Linux
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
import importlib.util
import itertools
import pathlib
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import rich.console
import rows
from absl import app, flags
from new_process import in_new_process

_MODELS = flags.DEFINE_list("models", ["mobilenet_v2"], "float models, by name")
_IMAGE_SIZES = flags.DEFINE_list("image_sizes", ["96"], "rows and columns of the images")
_BATCH_SIZES = flags.DEFINE_list("batch_sizes", ["32"], "images a step")
_CONTENDERS = flags.DEFINE_list("contenders", None, "which to measure, besides float; default: all")
_STEPS = flags.DEFINE_integer("steps", 20, "timed steps of every model")
_WARM_UP = flags.DEFINE_integer("warm_up", 3, "steps before them; the first one traces")
_THREADS = flags.DEFINE_integer("threads", 2, "threads inside an operation")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/step_time.csv", "where to write rows")

_NUM_CLASSES = 1000
_CASE = ("model", "image size", "batch size")
_TRAINING, _EVALUATION, _CONSTANT = "training", "evaluation", "constant weights"
_KINDS = (_TRAINING, _EVALUATION, _CONSTANT)


def _contenders() -> dict[str, Callable[[Any], Any]]:
    """Each takes the float model and gives the one to train."""
    import peer_tfmot

    import sat_tf

    policies = {
        "sat-tf clamp only": sat_tf.BitPolicy(weight_bits=None, activation_bits=None),
        "sat-tf w4a4 mobile": sat_tf.BitPolicy.mobile(4),
        "sat-tf w4a4 paper": sat_tf.BitPolicy.paper(4),
    }
    contenders = {
        "float": lambda model: model,
        **{
            name: lambda model, policy=policy: sat_tf.quantize_model(model, policy)
            for name, policy in policies.items()
        },
        "TFMOT 8-bit": peer_tfmot.eight_bits,
        "TFMOT 4-bit experimental": lambda model: peer_tfmot.n_bits(model, 4),
    }
    if importlib.util.find_spec("qkeras"):
        import peer_qkeras

        settings = {"bits": 4, "integer_bits": "2", "alpha": "auto", "ternary": False}
        no_images: Any = None  # integer bits are given, not measured
        contenders["QKeras w4a4"] = lambda model: peer_qkeras.quantized(
            model, no_images, **settings
        )
    return contenders


class _Steps:
    """A contender's model, compiled, and a batch to step on.

    Args:
        contender: its name.
        model_name: name of the float model.
        image_size: rows and columns of the images.
        batch_size: images a step.
    """

    def __init__(self, contender: str, model_name: str, image_size: int, batch_size: int) -> None:
        import numpy as np
        import tensorflow as tf
        import tf_keras as keras

        from sat_tf.models import build

        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        shape = (batch_size, image_size, image_size, 3)
        images = tf.constant(rng.integers(0, 256, shape), tf.float32)
        labels = tf.constant(rng.integers(0, _NUM_CLASSES, batch_size))
        float_model = build(model_name, image_size=image_size, num_classes=_NUM_CLASSES)
        self.model = _contenders()[contender](float_model)
        self.model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        self.has_constant_weights = contender.startswith("sat-tf")
        self._batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())

    # Fetching the loss waits for the step.
    def train(self) -> None:
        float(self.model.make_train_function()(self._batches)["loss"])

    def evaluate(self) -> None:
        float(self.model.make_test_function()(self._batches)["loss"])


def _mebibytes(contender: str, case: tuple[str, int, int]) -> float:
    """By how much two steps raise the peak of this process."""
    steps = _Steps(contender, *case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps.train()
    steps.train()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def _durations(
    contenders: list[str], case: tuple[str, int, int], count: int, warm_up: int, threads: int
) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step, by contender and kind."""
    import tensorflow as tf

    import sat_tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    all_steps = {name: _Steps(name, *case) for name in contenders}
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
            for call in calls.values():
                for _ in range(warm_up):
                    call()
            for _ in range(count):
                for name, call in calls.items():
                    start = time.perf_counter()
                    call()
                    seconds[name].setdefault(kind, []).append(time.perf_counter() - start)
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
    names = list(dict.fromkeys(["float", *(_CONTENDERS.value or _contenders())]))
    unknown = sorted(set(names) - set(_contenders()))
    if unknown:
        raise app.UsageError(f"--contenders: received {unknown}, expected {list(_contenders())}.")
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
