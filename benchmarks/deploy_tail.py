"""What the deploy tail does to codes and top-1, and what its step costs, on handwritten digits.

The first table counts, for a small 4-bit model, the codes of Keras that are those of its file in
LiteRT: as trained, with its biases snapped, deployed without training, and after the tail. The
second holds medians over interleaved steps, as `step_time.py` does: a step of the tail begins with
the refreshing of the integers, whose time is also given by itself.

    python benchmarks/deploy_tail.py
    python benchmarks/deploy_tail.py --width=1.0 --batch_size=64
"""

import pathlib
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import rich.console
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from rows import as_table, write_csv
from turns import seconds_by_turns

import sat_tf
from sat_tf import data
from sat_tf.data.arrays import ArraySource
from sat_tf.export.deployed import deployed_model
from sat_tf.models import build
from sat_tf.training.loop.deploy_tail import deploy_tail
from sat_tf.training.step.learner import training_copy
from sat_tf.training.step.schedule import WarmupCosine

_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "float model, by name")
_WIDTH = flags.DEFINE_float("width", 0.35, "its width multiplier")
_BITS = flags.DEFINE_integer("bits", 4, "bits of weights and activations")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a step")
_EPOCHS = flags.DEFINE_integer("epochs", 10, "of the float and of the quantized training each")
_TAIL_EPOCHS = flags.DEFINE_integer("tail_epochs", 3, "of the tail")
_IMAGES = flags.DEFINE_integer("images", 540, "held-out images to compare codes on")
_STEPS = flags.DEFINE_integer("steps", 20, "timed steps of every model")
_WARM_UP = flags.DEFINE_integer("warm_up", 3, "steps before them; the first one traces")
_THREADS = flags.DEFINE_integer("threads", 2, "threads inside an operation")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results", "folder of the CSV files")

_LEARNING_RATE = 0.05
_TAIL_LEARNING_RATE = 0.002
_SEED = 0

_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _batches(source: ArraySource, epochs: int) -> tf.data.Dataset:
    """The batches of so many epochs, each in another order."""
    batches = source.training_batches(batch_size=_BATCH_SIZE.value, seed=_SEED)
    steps = epochs * (source.num_train // _BATCH_SIZE.value)
    # The source has no end, and does not know how many batches are left of it.
    batches = batches.take(steps).apply(tf.data.experimental.assert_cardinality(steps))
    return batches.map(lambda x, label: (tf.cast(x, tf.float32), label))


def _train(model: keras.Model, batches: tf.data.Dataset) -> None:
    steps = int(batches.cardinality())
    schedule = WarmupCosine(
        first_learning_rate=_LEARNING_RATE / 5,
        peak_learning_rate=_LEARNING_RATE,
        warmup_steps=steps // _EPOCHS.value,
        total_steps=steps,
    )
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True), _LOSS)
    model.fit(batches, verbose=0)


def _comparison(state: str, model: keras.Model, images: np.ndarray, labels: np.ndarray) -> Any:
    """A row of the first table: the model against its file in LiteRT."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(model, path)
        found = sat_tf.verify_tflite(model, path, images, labels)
    compared = sum(tensor.codes_compared for tensor in found.trained)
    differing = sum(tensor.codes_differing for tensor in found.trained)
    return {
        "model": state,
        "code match": f"{1 - found.trained_differing:.6f}",
        "codes compared": compared,
        "codes differing": differing,
        "LiteRT differs from simulation": found.codes_differing,
        "top-1 Keras": f"{100 * found.top1['quantized']:.2f}",
        "top-1 LiteRT": f"{100 * found.top1['tflite']:.2f}",
        "same class": f"{100 * found.agreement:.2f}",
    }


def _step(model: keras.Model, images: tf.Tensor, labels: tf.Tensor) -> Callable[[], None]:
    """One training step as a call; so small that models stay where they are."""
    model.compile(keras.optimizers.SGD(1e-5, momentum=0.9, nesterov=True), _LOSS)
    step = model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())

    def run() -> None:
        # Fetching the loss waits for the step.
        float(step(batches)["loss"])

    return run


def _times(plain: keras.Model, quantized: keras.Model, batch: Any, status: Any) -> list[Any]:
    """The rows of the second table."""
    deployed = deployed_model(training_copy(quantized))
    calls = {
        "float step": _step(plain, *batch),
        "quantized step": _step(quantized, *batch),
        "tail step": _step(deployed, *batch),
        "of that, refreshing": deployed.refresh_quickly,
    }
    for name, call in calls.items():
        status(f"tracing {name}")
        for _ in range(_WARM_UP.value):
            call()
    status("timing")
    seconds = seconds_by_turns(calls, range(_STEPS.value))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        {
            "what": name,
            "seconds": f"{median:.4f}",
            "times float": f"{median / medians['float step']:.3f}",
            "times quantized": f"{median / medians['quantized step']:.3f}",
        }
        for name, median in medians.items()
    ]


def _show(console: rich.console.Console, title: str, rows: list[Any], name: str) -> None:
    """Prints a table and writes it as a CSV file."""
    console.print(as_table(rows, title))
    output = pathlib.Path(_OUTPUT.value) / name
    write_csv(rows, output)
    console.print(f"wrote {output}")


def main(argv: list[str]) -> None:
    """Trains, compares, times; prints the tables and writes them as CSV files."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
    keras.utils.set_random_seed(_SEED)
    console = rich.console.Console()
    images = data.load("digits", image_size=32, test_fraction=0.3)
    source = ArraySource(images, shift_pixels=2)
    held_out = source.held_out_sample(_IMAGES.value)
    plain = build(
        _MODEL.value,
        image_size=images.image_size,
        num_classes=images.num_classes,
        width_multiplier=_WIDTH.value,
        stem_stride=1,
        seed=_SEED,
    )
    with console.status("float training") as status:
        _train(plain, _batches(source, _EPOCHS.value))
        quantized = sat_tf.quantize_model(plain, sat_tf.BitPolicy.mobile(_BITS.value))
        # At random, because the set is in the order of its writers.
        chosen = np.random.default_rng(_SEED).permutation(len(images.train_images))[:512]
        sat_tf.calibrate(quantized, images.train_images[chosen])
        status.update("quantized training")
        _train(quantized, _batches(source, _EPOCHS.value))
        sat_tf.calibrate(quantized, images.train_images[chosen], clipping_levels=False)
        status.update("comparing")
        rows = [_comparison("quantized, as trained", quantized, *held_out)]
        snapped = training_copy(quantized)
        sat_tf.export.snap_biases(snapped)
        rows.append(_comparison("with snapped biases", snapped, *held_out))
        rows.append(_comparison("deployed, not trained", deployed_model(snapped), *held_out))
        status.update("deploy tail")
        tail = deploy_tail(
            snapped, _batches(source, _TAIL_EPOCHS.value), learning_rate=_TAIL_LEARNING_RATE
        )
        rows.append(_comparison("deployed, after the tail", tail, *held_out))
        batch = next(iter(_batches(source, 1)))
        times = _times(plain, quantized, batch, status.update)
    subject = f"{_MODEL.value} {_WIDTH.value:g}, w{_BITS.value}a{_BITS.value}, 32x32"
    title = f"{subject}, {len(held_out[0])} held-out digits"
    _show(console, title, rows, "deploy_tail.csv")
    title = f"{subject}, batch {_BATCH_SIZE.value}, median of {_STEPS.value} interleaved steps"
    _show(console, title, times, "deploy_tail_step.csv")


if __name__ == "__main__":
    app.run(main)
