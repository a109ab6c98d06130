"""Top-1 of calibrated models that are reconstructed without labels, beside other ways to that.

Eight float models, trained once each and kept, are quantized to 4-bit weights, with activations of
4 and of 8 bits. All methods have the same unlabelled examples, which a seed chooses from those that
the float model was trained on:

- calibrated alone;
- reconstructed, by `sat_tf.reconstruct`;
- distilled: the calibrated model trained as a whole to the float model's answers, with the loss of
  `sat-tf quantize --epochs` and Adam, for as many seconds as the reconstruction took;
- TFMOT's scheme of n bits, which has no calibration, distilled alike for as many seconds;
- ai-edge-quantizer, which has its own algorithms for weights: the best of them on the held-out
  examples, which flatters it. Its activations have 8 bits at least.

Top-1 is counted on examples that no float model was trained on. Seconds are of one thread.

    python benchmarks/reconstruction.py
    python benchmarks/reconstruction.py --tasks=digits,signals --methods=calibrated,reconstructed
    python benchmarks/reconstruction.py --picture=docs/images/reconstruction.png

Rows that the CSV file has are not made again. What a tool cannot do is a row that says why. Rows of
ai-edge-quantizer are left out where it is not installed.
"""

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import peer_task
import pretrained_tasks
import rich.console
import tensorflow as tf
import tf_keras
from absl import app, flags
from pretrained_tasks import Arrays, Task
from rows import as_table, read_csv, with_spread, write_csv

import sat_tf
from sat_tf import models
from sat_tf.atomic_file import written_whole
from sat_tf.data.glyphs import load_glyphs
from sat_tf.presentation import palette
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.recipes.recipes import soft_divergence

_BATCH_SIZE = 32
_TEMPERATURE = 4.0  # of the teacher, as configurations have it
_VERIFIED_IMAGES = 64


def _characters(count: int, *, classes: int, train_per_class: int, test_per_class: int) -> Arrays:
    """Printed characters: those to train on, in an order drawn by lot, and those held out."""
    of_each = {"train_per_class": train_per_class, "test_per_class": test_per_class}
    found = load_glyphs(num_classes=classes, **of_each)
    order = np.random.default_rng(0).permutation(len(found.train_images))
    pictures = np.concatenate([found.train_images[order], found.test_images])
    labels = np.concatenate([found.train_labels[order], found.test_labels])
    return pictures[:count], labels[:count].astype(np.int32)


def _of_characters(classes: int, train_per_class: int, test_per_class: int, **fields: Any) -> Task:
    of_each = {"train_per_class": train_per_class, "test_per_class": test_per_class}
    return Task(
        draw=functools.partial(_characters, classes=classes, **of_each),
        train=classes * train_per_class,
        held_out=classes * test_per_class,
        classes=classes,
        batch_size=64,
        **fields,
    )


def _small_mobilenet(keras: Any, classes: int) -> Any:
    return models.build("mobilenet_v2_small", image_size=24, num_classes=classes, seed=0)


def _small_resnet(keras: Any, classes: int) -> Any:
    small = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
    sizes = {"width_multiplier": 0.25, "stage_blocks": (2, 2, 2)}
    return models.build("resnet18", image_size=24, num_classes=classes, seed=0, **small, **sizes)


_OF_PRETRAINED = pretrained_tasks.TASKS
_ARROWS = dataclasses.replace(_OF_PRETRAINED["arrows"], held_out=2000)
TASKS: Mapping[str, Task] = {
    "digits": _OF_PRETRAINED["digits"],
    "glyphs_50": _of_characters(
        50, 64, 40, kind="glyphs, 50 characters", network=_small_mobilenet, epochs=15
    ),
    "glyphs_1000": _of_characters(
        1000, 64, 8, kind="glyphs, 1,000 characters", network=_small_mobilenet, epochs=2
    ),
    "shapes": dataclasses.replace(_OF_PRETRAINED["shapes_1000"], held_out=2000),
    "signals": dataclasses.replace(
        _OF_PRETRAINED["signals"], held_out=2000, kind="signals, Conv1D"
    ),
    "residual": _of_characters(100, 64, 20, kind="glyphs, ResNet", network=_small_resnet, epochs=5),
    "squeeze": dataclasses.replace(_ARROWS, keras3=False, kind="arrows, squeeze-and-excitation"),
    "keras3": dataclasses.replace(
        _of_characters(
            30,
            64,
            64,
            kind="glyphs, gated, Keras 3",
            network=pretrained_tasks.gated_net,
            epochs=15,
        ),
        keras3=True,
    ),
}

POLICIES: Mapping[str, BitPolicy] = {
    "w4a4": BitPolicy.mobile(4),
    "w4a8": BitPolicy.mobile(8, weight_bits=4),
}
Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The case that a row is of.

    Attributes:
        task: what the float model has learned.
        file: of the float model.
        bits: a name of `POLICIES`.
        seed: of what is drawn by lot.
        images: without labels, which all methods have.
        held_out: examples to measure on.
        of_float: the classes that the float model gives them; None while they are not known.
        seconds: that methods have which would train for ever.
    """

    task: Task
    file: pathlib.Path
    bits: str
    seed: int
    images: np.ndarray
    held_out: Arrays
    of_float: np.ndarray | None
    seconds: float

    def float_model(self) -> Any:
        """The float model, of its own Keras."""
        keras = importlib.import_module("keras") if self.task.keras3 else tf_keras
        return keras.models.load_model(self.file, compile=False)

    def twin(self) -> tf_keras.Model:
        """The float model in tf_keras."""
        model = self.float_model()
        return sat_tf.from_keras3(model) if self.task.keras3 else model

    def measured(self, answers: Callable[[np.ndarray], Any]) -> dict[str, float]:
        """Top-1, and how many of the float model's answers are kept, in percent.

        Of the largest answers that are equal, as integers can be, each has a share. An example with
        an answer that is not finite counts as wrong.
        """
        pictures, labels = self.held_out
        logits = _in_batches(answers, pictures)
        largest = logits == logits.max(axis=-1, keepdims=True)
        finite = np.isfinite(logits).all(axis=-1, keepdims=True)
        shares = np.where(finite, largest / np.maximum(largest.sum(axis=-1, keepdims=True), 1), 0.0)

        def percent(classes: np.ndarray) -> float:
            return 100.0 * float(np.mean(shares[np.arange(len(labels)), classes]))

        kept = {} if self.of_float is None else {"kept": percent(self.of_float)}
        return {"top1": percent(labels), **kept}


def _in_batches(answers: Callable[[np.ndarray], Any], pictures: np.ndarray) -> np.ndarray:
    starts = range(0, len(pictures), 250)
    parts = [pictures[start : start + 250].astype(np.float32) for start in starts]
    return np.concatenate([np.asarray(answers(part)) for part in parts])


def _calibrated(case: Case, model: Any) -> Any:
    policy = POLICIES[case.bits]
    if case.images.dtype == np.uint8:
        policy = dataclasses.replace(policy, input_range=(0, 255))
    else:
        policy = dataclasses.replace(policy, input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, case.images, progress=False)
    return quantized


def calibrate_alone(case: Case) -> Result:
    """Calibrates alone."""
    start = time.process_time()
    quantized = _calibrated(case, case.float_model())
    seconds = time.process_time() - start
    return {**case.measured(_inference(quantized)), "seconds": seconds}


def reconstruct(case: Case) -> Result:
    """Calibrates and reconstructs; the file of the first seed is verified."""
    model = case.float_model()
    quantized = _calibrated(case, model)
    start = time.process_time()
    sat_tf.reconstruct(quantized, model, case.images, seed=case.seed, progress=False)
    seconds = time.process_time() - start
    result = {**case.measured(_inference(quantized)), "seconds": seconds}
    if case.seed:
        return result
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(quantized, path)
        of_file = sat_tf.verify_tflite(quantized, path, case.held_out[0][:_VERIFIED_IMAGES])
    of_codes = {name: getattr(of_file, name) for name in ("codes_compared", "codes_differing")}
    return {**result, **of_codes}


def distill(case: Case) -> Result:
    """Distils the calibrated model as a whole, which ends as it was where that was nearer."""
    teacher = case.twin()
    quantized = _calibrated(case, case.twin())

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


def edge_quantizer(case: Case) -> Result:
    """Quantizes by ai-edge-quantizer: the best of its algorithms."""
    import peer_edge_quantizer

    if POLICIES[case.bits].activation_bits != 8:
        raise ValueError("it has activations of 8 and 16 bits alone")
    start, found = time.process_time(), {}
    for algorithm, content in peer_edge_quantizer.files(case.twin(), case.images):
        answers = functools.partial(peer_edge_quantizer.answers, content)
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
    "ai-edge-quantizer": edge_quantizer,
}
_TAKE_AS_LONG = (distill, tfmot)
_OF_OTHERS = {tfmot: "tensorflow_model_optimization", edge_quantizer: "ai_edge_quantizer"}
_KEYS = ("task", "bits", "method", "seed")
_NUMBERS = ("top1", "kept", "seconds", "codes_compared", "codes_differing", "note")

_TASKS = flags.DEFINE_list("tasks", list(TASKS), "which ones")
_BITS = flags.DEFINE_list("bits", list(POLICIES), "of weights and activations")
_METHODS = flags.DEFINE_list("methods", list(METHODS), "which ones")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of the examples, and of their order")
_IMAGES = flags.DEFINE_integer("images", 512, "examples without labels", lower_bound=1)
_RATE = flags.DEFINE_float("rate", 1e-3, "where the learning rate of a distillation starts")
_FOLDER = flags.DEFINE_string("folder", "runs/reconstruction", "where float models are kept")
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
    for bits in POLICIES:
        if lines := table(rows, bits):
            console.print(as_table(lines, f"{bits}: top-1 in percent"))
    if _PICTURE.value:
        _draw(rows, pathlib.Path(_PICTURE.value))


def _missing(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of a task that are not there yet."""
    task = TASKS[name]
    file = pathlib.Path(_FOLDER.value) / f"{name}{'.keras' if task.keras3 else '.h5'}"
    train, held_out = task.examples()
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        task.trained(train, held_out).save(file)
    made = {tuple(row[key] for key in _KEYS): row for row in rows}
    of_float = None
    for bits, seed, method in itertools.product(_BITS.value, _SEEDS.value, _METHODS.value):
        if (name, bits, method, seed) in made or not _is_there(method):
            continue
        chosen = np.random.default_rng(int(seed)).permutation(len(train[0]))[: _IMAGES.value]
        reconstructed = made.get((name, bits, "reconstructed", seed), {})
        case = Case(
            task=task,
            file=file,
            bits=bits,
            seed=int(seed),
            images=train[0][chosen],
            held_out=held_out,
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
            answers = _in_batches(_inference(case.float_model()), held_out[0])
            of_float = answers.argmax(axis=-1)
            case = dataclasses.replace(case, of_float=of_float)
        row = {
            **dict(zip(_KEYS, (name, bits, method, seed), strict=True)),
            "kind": task.kind,
            "images": len(case.images),
            "float": f"{100.0 * np.mean(of_float == held_out[1]):.2f}",
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
    marks = zip(METHODS, [*palette.SERIES, {"color": palette.GREY, "marker": "x"}], strict=True)
    styles = {method: {**style, "linestyle": "none"} for method, style in marks}
    with palette.styled():
        picture, panels = palette.canvas(1, len(POLICIES), size=(11.0, 5.6), sharey=True)
        for axes, bits in zip(panels, POLICIES, strict=True):
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
            axes.axvline(0.0, color=palette.BLACK, linewidth=1.0)
            axes.set_xlabel(f"{bits}: points above the float model")
        panels[0].set_yticks(range(len(TASKS)), [task.kind for task in TASKS.values()])
        panels[0].invert_yaxis()
        found = [axes.get_legend_handles_labels() for axes in panels]
        legend = {
            name: mark for marks, names in found for mark, name in zip(marks, names, strict=True)
        }
        picture.legend(
            legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend)
        )
        with written_whole(path) as temporary:
            palette.save(picture, temporary)


if __name__ == "__main__":
    app.run(main)
