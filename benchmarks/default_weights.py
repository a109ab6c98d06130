"""What should quantize weights where a policy leaves it open: a search that is the same for all.

Two small networks of Keras 3 that differ, beside the MobileNet-V2 of `methods_on_glyphs.py`: a 1D
network on signals, and one with swish and squeeze-and-excitation on thirty printed characters. Each
is trained in float with three seeds, quantized and calibrated with the weights of every row of
`METHODS`, and trained for 400 steps of 64 examples, with and without the float model as a teacher
(`recipes.distillation` of half the weight at T = 4). Learning rates are chosen with seed 0 on one
half of the held-out examples, more of them as long as the best is at an end; what is shown is top-1
on the other half, mean of three seeds. A training that diverges counts as it ends.

    python benchmarks/default_weights.py
    python benchmarks/default_weights.py --tasks=gated --bits=2 --methods=L1,DoReFa --teachers=0

Rows that the CSV has are not made again. Those of signals there were trained by the same models in
Keras 3 on JAX, on an H100.
"""

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras  # noqa: TID251 - what is quantized is of Keras 3
import numpy as np
import peer_task
import pretrained_tasks
import rich.console
from absl import app, flags
from drawn_glyphs import load_glyphs
from rates import at_best_rate
from rows import as_table, read_csv, with_spread, write_csv

import sat_tf

_STEPS = 400
_TEMPERATURE = 4.0
_RATES = (0.1, 0.2, 0.4)  # of batches of 64
_LOWEST, _HIGHEST = 0.05, 0.8
_SEEDS = (0, 1, 2)
_FLOAT_RATE = 3e-3


class Task(NamedTuple):
    """What a network learns.

    Attributes:
        draw: gives examples to train on and those held out, with their classes.
        network: makes the float model.
        float_steps: of 64 examples.
        fields: of the policy.
    """

    draw: Callable[[], tuple[peer_task.Images, peer_task.Images]]
    network: Callable[[], Any]
    float_steps: int
    fields: Mapping[str, Any] = {}


def _signals() -> tuple[peer_task.Images, peer_task.Images]:
    examples, labels = pretrained_tasks.signals(8000)
    return (examples[:4000], labels[:4000]), (examples[4000:], labels[4000:])


def _characters() -> tuple[peer_task.Images, peer_task.Images]:
    found = load_glyphs(num_classes=30, train_per_class=64, test_per_class=64)
    return (found.train_images, found.train_labels), (found.test_images, found.test_labels)


TASKS: Mapping[str, Task] = {
    "signals": Task(
        _signals,
        lambda: pretrained_tasks.signal_net(keras, 6),
        600,
        {"input_type": "int8"},
    ),
    "gated": Task(
        _characters,
        lambda: pretrained_tasks.gated_net(keras, 30),
        600,
    ),
}

_SAT = {"rescale": "constant"}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "DoReFa": {"weight_quantizer": "dorefa"},
    "DoReFa, SAT's rescaling": {"weight_quantizer": "dorefa", **_SAT},
    "L1": {"weight_quantizer": "l1"},
    "L1, SAT's rescaling": {"weight_quantizer": "l1", **_SAT},
    "LSQ": {"weight_quantizer": "lsq"},
    "LSQ, SAT's rescaling": {"weight_quantizer": "lsq", **_SAT},
}

_TASKS = flags.DEFINE_list("tasks", list(TASKS), "which ones")
_METHODS = flags.DEFINE_list("methods", list(METHODS), "which ones")
_BITS = flags.DEFINE_list("bits", ["4", "3", "2"], "of weights and activations")
_TEACHERS = flags.DEFINE_list("teachers", ["0", "0.5"], "weights of the float model's answers")
_FOLDER = flags.DEFINE_string("folder", "runs/default_weights", "where float models are kept")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/default_weights.csv", "rows")


def _float_model(name: str, seed: int, train: peer_task.Images) -> Any:
    path = pathlib.Path(_FOLDER.value) / f"{name}_{seed}.keras"
    if not path.is_file():
        task = TASKS[name]
        keras.utils.set_random_seed(seed)
        model = task.network()
        schedule = keras.optimizers.schedules.CosineDecay(_FLOAT_RATE, task.float_steps)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(schedule), loss)
        for examples, labels in peer_task.batches(train, task.float_steps, seed):
            model.train_on_batch(examples, labels)
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
    return keras.saving.load_model(path, compile=False)


class _Start(NamedTuple):
    """A calibrated model in tf_keras, its weights, and the float model that teaches it."""

    model: Any
    weights: Any
    teacher: Any


def _start(task: str, method: str, bits: int, seed: int, train: peer_task.Images) -> _Start:
    teacher = _float_model(task, seed, train)
    policy = sat_tf.BitPolicy.mobile(bits, **METHODS[method], **TASKS[task].fields)
    quantized = sat_tf.quantize_model(teacher, policy)
    some = train[0][:: len(train[0]) // 256][:256].astype(np.float32)
    sat_tf.calibrate(quantized, some)
    model = sat_tf.from_keras3(quantized)
    return _Start(model, model.get_weights(), teacher)


def _trained(task: str, method: str, bits: int, teacher: float) -> Iterator[dict[str, Any]]:
    """The rows of a search: rates with the first seed, then the best one with the others."""
    train, test = TASKS[task].draw()

    def row(start: _Start, seed: int, rate: float) -> dict[str, Any]:
        start.model.set_weights(start.weights)
        aims = {"distillation": teacher, "temperature": _TEMPERATURE}
        recipe = peer_task.Recipe(steps=_STEPS, peak_learning_rate=rate, **aims)
        found = peer_task.train_and_measure(
            start.model, train, test, recipe, seed=seed, teacher=start.teacher
        )
        key = {"task": task, "method": method, "bits": bits, "teacher": teacher}
        shares = {name: f"{found[name]:.2f}" for name in ("chosen_on", "not_chosen_on")}
        return {**key, "seed": seed, "rate": rate, **shares, "trained_by": "TensorFlow, CPU"}

    first = _start(task, method, bits, _SEEDS[0], train)
    tried: dict[float, float] = {}
    waiting = list(_RATES)
    while waiting:
        rate = waiting.pop(0)
        made = row(first, _SEEDS[0], rate)
        tried[rate] = float(made["chosen_on"])
        yield made
        best = max(tried, key=tried.__getitem__)
        if not waiting:
            for other, is_end in ((2 * best, best < _HIGHEST), (best / 2, best > _LOWEST)):
                if is_end and best in (max(tried), min(tried)) and other not in tried:
                    waiting.append(other)
    for seed in _SEEDS[1:]:
        yield row(_start(task, method, bits, seed, train), seed, best)


def table(rows: list[dict[str, Any]], task: str, teacher: float) -> list[dict[str, str]]:
    """A line for each method: at each number of bits the mean over seeds with the best rate."""
    own = [row for row in rows if (row["task"], float(row["teacher"])) == (task, teacher)]
    lines = []
    for method in METHODS:
        found = {bits: at_best_rate(own, method, int(bits)) for bits in _BITS.value}
        values = {b: [float(row["not_chosen_on"]) for row in one] for b, one in found.items()}
        cells = {f"{bits} bits": with_spread(some) for bits, some in values.items()}
        if any(cells.values()):
            lines.append({"weights": method, **cells})
    return lines


def main(argv: list[str]) -> None:
    """Runs what is missing and prints the tables."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    peer_task.one_thread()
    console = rich.console.Console()
    rows = read_csv(_OUTPUT.value)
    for task in _TASKS.value:
        for bits in _BITS.value:
            for method in _METHODS.value:
                for teacher in map(float, _TEACHERS.value):
                    key = (task, method, bits, str(teacher))
                    fields = ("task", "method", "bits", "teacher")
                    if any(tuple(str(row[name]) for name in fields) == key for row in rows):
                        continue
                    rows += _trained(task, method, int(bits), teacher)
                    write_csv(rows, _OUTPUT.value)
                    console.print(*key, rows[-1]["not_chosen_on"])
        for teacher in map(float, _TEACHERS.value):
            console.print(as_table(table(rows, task, teacher), f"{task}, teacher {teacher}"))


if __name__ == "__main__":
    app.run(main)
