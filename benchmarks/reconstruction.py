"""Top-1 of calibrated models that are reconstructed without labels, beside other ways to that.

The eight float models of `reconstruction_tasks.py` are quantized to 4-bit weights, with activations
of 4 and of 8 bits. All methods have the same unlabelled examples, which a seed chooses from those
that the float model was trained on:

- calibrated alone;
- reconstructed, by `sat_tf.reconstruct`;
- distilled: the calibrated model trained as a whole to the float model's answers, with the loss of
  `sat-tf quantize --epochs` and Adam, for as many seconds as the reconstruction took;
- TFMOT's scheme of n bits, which has no calibration, distilled alike for as many seconds;
- litert-quantizer, which has its own algorithms for weights: the best of them on the held-out
  examples, which flatters it. Its activations have 8 bits at least.

Top-1 is counted on examples that no float model was trained on. Seconds are of one thread.

    python benchmarks/reconstruction.py
    python benchmarks/reconstruction.py --tasks=digits,signals --methods=calibrated,reconstructed
    python benchmarks/reconstruction.py --picture=docs/images/reconstruction.png

Rows that the CSV file has are not made again. What a tool cannot do is a row that says why. Rows of
litert-quantizer are left out where it is not installed.
"""

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import peer_task
import rich.console
import tensorflow as tf
import tf_keras
from absl import app, flags
from reconstruction_tasks import (
    FOLDER,
    POLICIES,
    TASKS,
    Case,
    Result,
    calibrate_alone,
    calibrated,
    find_case,
    in_batches,
    reconstruct,
)
from rows import as_table, read_csv, with_spread, write_csv

import sat_tf
from sat_tf.files import written_whole
from sat_tf.messages import charts
from sat_tf.qat.reconstruction.fit import soft_divergence

_BATCH_SIZE = 32
_TEMPERATURE = 4.0  # of the teacher, as configurations have it


def distill(case: Case) -> Result:
    """Distils the calibrated model as a whole, which ends as it was where that was nearer."""
    teacher = case.twin()
    quantized = calibrated(case, case.twin())

    def loss() -> float:
        return float(_divergence(case.images, teacher, _inference(quantized)))

    first, weights = loss(), quantized.get_weights()
    _train(case, teacher, quantized)
    sat_tf.calibrate(quantized, case.images, clipping_levels=False, progress=False)
    if not loss() < first:
        quantized.set_weights(weights)
    return {**case.measured(_inference(quantized)), "seconds": case.seconds}


def tfmot(case: Case) -> Result:
    """Distils TFMOT's scheme of n bits; it knows no Rescaling, which is done in front of it."""
    import peer_tfmot

    teacher, student = case.twin(), case.twin()
    prepare = student.layers[1]
    if isinstance(prepare, tf_keras.layers.Rescaling):
        student = tf_keras.Model(prepare.output, student.output)
    else:
        prepare = tf.identity
    bits = POLICIES[case.bits]
    quantized = peer_tfmot.n_bits(student, bits.weight_bits, bits.activation_bits)
    _train(case, teacher, quantized, prepare)
    infer = _inference(quantized)
    found = case.measured(lambda pictures: infer(prepare(pictures)))
    return {**found, "seconds": case.seconds}


def litert_quantizer(case: Case) -> Result:
    """Quantizes by litert-quantizer: the best of its algorithms."""
    import peer_litert_quantizer
    import tool_files

    if POLICIES[case.bits].activation_bits != 8:
        raise ValueError("it has activations of 8 and 16 bits alone")
    start, found = time.process_time(), {}
    for algorithm, content in peer_litert_quantizer.files(case.twin(), case.images):
        answers = functools.partial(tool_files.answers, content)
        found[algorithm] = case.measured(answers)
    best = max(found, key=lambda algorithm: found[algorithm]["top1"])
    return {**found[best], "seconds": time.process_time() - start, "note": best}


def _inference(model: Any) -> Callable[[Any], Any]:
    return model.predict_on_batch


def _divergence(images: np.ndarray, teacher: Any, student: Callable[[Any], Any]) -> Any:
    fed = images.astype(np.float32)
    divergence = soft_divergence(teacher.predict_on_batch(fed), student(fed), _TEMPERATURE)
    return tf.reduce_mean(divergence)


def _train(
    case: Case,
    teacher: tf_keras.Model,
    student: tf_keras.Model,
    prepare: Callable[[Any], Any] = tf.identity,
) -> None:
    """Distils for the seconds of a case, tracing included; the rate falls down half a cosine."""
    start = time.process_time()
    optimizer = tf_keras.optimizers.Adam(_RATE.value)
    variables = student.trainable_variables

    @tf.function
    def step(images: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = student(prepare(images), training=True)
            divergence = soft_divergence(teacher(images, training=False), logits, _TEMPERATURE)
            loss = tf.reduce_mean(divergence)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    order = np.random.default_rng(case.seed)
    while (share := (time.process_time() - start) / case.seconds) < 1.0:
        optimizer.learning_rate.assign(_RATE.value * 0.5 * (1.0 + np.cos(np.pi * share)))
        chosen = order.choice(len(case.images), _BATCH_SIZE, replace=False)
        step(tf.constant(case.images[chosen], tf.float32))


METHODS: Mapping[str, Callable[[Case], Result]] = {
    "calibrated": calibrate_alone,
    "reconstructed": reconstruct,
    "distilled": distill,
    "TFMOT": tfmot,
    "litert-quantizer": litert_quantizer,
}
_TAKE_AS_LONG = (distill, tfmot)
_OF_OTHERS = {tfmot: "tensorflow_model_optimization", litert_quantizer: "litert_quantizer"}
_KEYS = ("task", "bits", "method", "seed")
_NUMBERS = ("top1", "kept", "seconds", "codes_compared", "codes_differing", "note")

# Of 8-bit weights there are rows only where 4 bits lose much.
_BITS_OF_ALL = ("w4a4", "w4a8")

_TASKS = flags.DEFINE_list("tasks", list(TASKS), "which ones")
_BITS = flags.DEFINE_list("bits", list(_BITS_OF_ALL), "of weights and activations")
_METHODS = flags.DEFINE_list("methods", list(METHODS), "which ones")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of the examples, and of their order")
_IMAGES = flags.DEFINE_integer("images", 512, "examples without labels", lower_bound=1)
_RATE = flags.DEFINE_float("rate", 1e-3, "where the learning rate of a distillation starts")
_FOLDER = flags.DEFINE_string("folder", FOLDER, "where float models are kept")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/reconstruction.csv", "rows")
_PICTURE = flags.DEFINE_string("picture", None, "where to draw what is lost")


def main(argv: list[str]) -> None:
    """Measures what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    known = ((_TASKS, TASKS), (_BITS, POLICIES), (_METHODS, METHODS))
    for flag, names in known:
        if unknown := [name for name in flag.value if name not in names]:
            raise app.UsageError(f"--{flag.name}: received {unknown}, expected {', '.join(names)}.")
    peer_task.one_thread()
    rows = read_csv(_OUTPUT.value)
    for name in _TASKS.value:
        for row in _missing(name, rows):
            rows.append(row)
            write_csv(rows, _OUTPUT.value)
            print(*row.values(), flush=True)
    console = rich.console.Console(width=160)
    for bits in _BITS.value:
        if lines := table(rows, bits):
            console.print(as_table(lines, f"{bits}: top-1 in percent"))
    if _PICTURE.value:
        _draw(rows, pathlib.Path(_PICTURE.value))


def _missing(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a task that are not there yet."""
    task = TASKS[name]
    made = {tuple(row[key] for key in _KEYS): row for row in rows}
    of_float = None
    for bits, seed, method in itertools.product(_BITS.value, _SEEDS.value, _METHODS.value):
        if (name, bits, method, seed) in made or not _is_there(method):
            continue
        reconstructed = made.get((name, bits, "reconstructed", seed), {})
        case = find_case(
            name,
            bits,
            int(seed),
            folder=_FOLDER.value,
            count=_IMAGES.value,
            of_float=of_float,
            seconds=float(reconstructed.get("seconds") or 0),
        )
        if METHODS[method] in _TAKE_AS_LONG and not case.seconds:
            print(
                f"{name}, {bits}, seed {seed}: {method} takes as long as reconstruction; none yet"
            )
            continue
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(int(seed))
        if of_float is None:
            answers = in_batches(_inference(case.float_model()), case.held_out[0])
            of_float = answers.argmax(axis=-1)
            case = dataclasses.replace(case, of_float=of_float)
        row = {
            **dict(zip(_KEYS, (name, bits, method, seed), strict=True)),
            "kind": task.kind,
            "images": len(case.images),
            "float": f"{100.0 * np.mean(of_float == case.held_out[1]):.2f}",
            **_result(METHODS[method], case),
        }
        made[name, bits, method, seed] = row
        yield row


def _is_there(method: str) -> bool:
    package = _OF_OTHERS.get(METHODS[method])
    return package is None or importlib.util.find_spec(package) is not None


def _result(method: Callable[[Case], Result], case: Case) -> dict[str, Any]:
    """The numbers of a row; of another tool, also why there are none."""
    try:
        found = dict(method(case))
    except Exception as error:
        if method not in _OF_OTHERS:
            raise
        found = {"note": " ".join(str(error).split())[:160]}
    for name in ("top1", "kept", "seconds"):
        if name in found:
            found[name] = f"{found[name]:.2f}"
    return {name: found.get(name, "") for name in _NUMBERS}


def table(rows: Sequence[Mapping[str, Any]], bits: str) -> list[dict[str, str]]:
    """A line for each task: means over seeds, lowest to highest; one value is that of one seed."""
    lines = []
    for name, task in TASKS.items():
        own = [row for row in rows if (row["task"], row["bits"]) == (name, bits)]
        if not own:
            continue
        line = {"task": task.kind, "float": own[0]["float"]}
        for method in METHODS:
            found = [row for row in own if row["method"] == method]
            values = [float(row["top1"]) for row in found if row["top1"]]
            line[method] = _cell(values) if values or not found else "not possible"
        seconds = [float(row["seconds"]) for row in own if row["method"] == "reconstructed"]
        lines.append({**line, "seconds": f"{statistics.mean(seconds):.0f}" if seconds else ""})
    return lines


def _cell(values: Sequence[float]) -> str:
    return with_spread(values) if len(values) > 1 else f"{sum(values):.1f}" if values else ""


def _draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Draws the top-1 of each method above that of each float model, a point for each seed."""
    marks = zip(METHODS, [*charts.SERIES, {"color": charts.GREY, "marker": "x"}], strict=True)
    styles = {method: {**style, "linestyle": "none"} for method, style in marks}
    with charts.styled():
        # Above each other, so that names are readable at the width of a telephone.
        picture, panels = charts.canvas(len(_BITS_OF_ALL), 1, size=(6.4, 10.6))
        for axes, bits in zip(panels, _BITS_OF_ALL, strict=True):
            for method, style in styles.items():
                points = [
                    (float(row["top1"]) - float(row["float"]), list(TASKS).index(row["task"]))
                    for row in rows
                    if (row["bits"], row["method"]) == (bits, method) and row["top1"]
                ]
                if points:
                    offset = 0.15 * (list(METHODS).index(method) - 2)
                    lost, places = zip(*points, strict=True)
                    axes.plot(lost, [at + offset for at in places], label=method, **style)
            axes.axvline(0.0, color=charts.BLACK, linewidth=1.0)
            axes.set_title(bits)
            names = [task.kind.replace(", ", ",\n", 1) for task in TASKS.values()]
            axes.set_yticks(range(len(TASKS)), names, fontsize=11.5)
            axes.invert_yaxis()
        panels[-1].set_xlabel("points above the float model")
        found = [axes.get_legend_handles_labels() for axes in panels]
        legend = {
            name: mark for marks, names in found for mark, name in zip(marks, names, strict=True)
        }
        picture.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=3)
        with written_whole(path) as temporary:
            charts.save(picture, temporary)


if __name__ == "__main__":
    app.run(main)
