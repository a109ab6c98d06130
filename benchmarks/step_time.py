"""Time and memory of one training step beside the float model and TFMOT's 8-bit model.

Every time is a median over steps that are interleaved in one process: float, ours, TFMOT, float,
ours, TFMOT, ... so that what else the machine does meets all of them alike. Ratios are what counts;
seconds say something about one machine only.

Memory is by how much two steps raise the peak of a process of their own that has built the model:
activations, gradients, momentum and what tracing leaves, without TensorFlow itself. Linux only.

    python benchmarks/step_time.py
    python benchmarks/step_time.py --image_size=224 --steps=10
"""

import concurrent.futures
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import rich.console
import rows
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from absl import app, flags

import sat_tf
from sat_tf.models import build

_MODEL = flags.DEFINE_string("model", "mobilenet_v2", "float model, by name")
_IMAGE_SIZE = flags.DEFINE_integer("image_size", 96, "rows and columns of the images")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "images a step")
_STEPS = flags.DEFINE_integer("steps", 20, "timed steps of every model")
_WARM_UP = flags.DEFINE_integer("warm_up", 3, "steps before them; the first one traces")
_THREADS = flags.DEFINE_integer("threads", 2, "threads inside an operation")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/step_time.csv", "where to write rows")

# Each takes the float model and gives the one to train.
_CONTENDERS: dict[str, Callable[[keras.Model], keras.Model]] = {
    "float": lambda model: model,
    "sat-tf clamp only": lambda model: sat_tf.quantize_model(
        model, sat_tf.BitPolicy(weight_bits=None, activation_bits=None)
    ),
    "sat-tf w4a4 mobile": lambda model: sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4)),
    "sat-tf w4a4 paper": lambda model: sat_tf.quantize_model(model, sat_tf.BitPolicy.paper(4)),
    "TFMOT 8-bit": tfmot.quantization.keras.quantize_model,
}


def _trainer(
    contender: str, model_name: str, image_size: int, batch_size: int
) -> Callable[[], None]:
    """One training step of a contender, as a call."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    shape = (batch_size, image_size, image_size, 3)
    images = tf.constant(rng.integers(0, 256, shape), tf.float32)
    labels = tf.constant(rng.integers(0, 1000, batch_size))
    model = _CONTENDERS[contender](build(model_name, image_size=image_size, num_classes=1000))
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    step = model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())

    def run() -> None:
        # Fetching the loss waits for the step.
        float(step(batches)["loss"])

    return run


def _mebibytes(contender: str, model_name: str, image_size: int, batch_size: int) -> float:
    """By how much two steps raise the peak of this process."""
    step = _trainer(contender, model_name, image_size, batch_size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def _mebibytes_alone(contender: str, model_name: str, image_size: int, batch_size: int) -> float:
    """The same in a new process, where nothing of another contender is left."""
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        return pool.submit(_mebibytes, contender, model_name, image_size, batch_size).result()


def main(argv: list[str]) -> None:
    """Times all contenders, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
    console = rich.console.Console()
    task = _MODEL.value, _IMAGE_SIZE.value, _BATCH_SIZE.value
    mebibytes: dict[str, float] = {}
    for name in _CONTENDERS:
        with console.status(f"memory of {name}"):
            mebibytes[name] = _mebibytes_alone(name, *task)
    steps: dict[str, Callable[[], None]] = {}
    for name in _CONTENDERS:
        with console.status(f"building {name}"):
            steps[name] = _trainer(name, *task)
            for _ in range(_WARM_UP.value):
                steps[name]()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    with console.status("timing"):
        for _ in range(_STEPS.value):
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - start)
    results = [
        _row(name, seconds[name], seconds["float"], mebibytes[name], mebibytes["float"])
        for name in steps
    ]
    title = (
        f"{_MODEL.value}, {_IMAGE_SIZE.value}x{_IMAGE_SIZE.value}, batch {_BATCH_SIZE.value}, "
        f"median of {_STEPS.value} interleaved steps, {_THREADS.value} threads"
    )
    console.print(rows.as_table(results, title))
    rows.write_csv(results, _OUTPUT.value)
    console.print(f"wrote {_OUTPUT.value}")


def _row(
    name: str, mine: list[float], floats: list[float], mebibytes: float, of_float: float
) -> dict[str, str]:
    # Ratios step by step: neighbours in time share what else the machine does.
    ratios = [own / reference for own, reference in zip(mine, floats, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "seconds": f"{statistics.median(mine):.4f}",
        "times float": f"{statistics.median(mine) / statistics.median(floats):.3f}",
        "quartiles": f"{low:.3f} to {high:.3f}",
        "mebibytes": f"{mebibytes:.0f}",
        "times float's memory": f"{mebibytes / of_float:.2f}",
    }


if __name__ == "__main__":
    app.run(main)
