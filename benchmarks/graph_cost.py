"""What a model's size costs before the first step and after the last: seconds against layers.

A plain network of convolutions, normalizations and rectifiers of 8 channels, of any depth, so that
what counts is the number of layers and not their arithmetic: `quantize_model`, tracing and the
first training step, saving, loading, export, verification, beside TFMOT's `quantize_model`, its
first step, and TensorFlow's converter on the model that TFMOT makes. Each depth has a process of
its own. Growth is the exponent e of seconds ~ layers^e between the last two depths: 1 is linear.

    python benchmarks/graph_cost.py
    python benchmarks/graph_cost.py --layers=30,90
"""

import math
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import rich.console
import rows
from absl import app, flags
from new_process import in_new_process

_LAYERS = flags.DEFINE_list("layers", ["10", "50", "150", "500"], "layers of the networks")
_VERIFIED = flags.DEFINE_integer("verified", 4, "images to verify the file with")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/graph_cost.csv", "where to write rows")

_IMAGE_SIZE = 16


def _network(num_layers: int) -> Any:
    import tf_keras as keras

    layers = keras.layers
    model = keras.Sequential([layers.Input((_IMAGE_SIZE, _IMAGE_SIZE, 3))])
    while len(model.layers) + 5 <= num_layers:
        model.add(layers.Conv2D(8, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization())
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    return model


def _measure(num_layers: int, verified: int) -> dict[str, float]:
    """Seconds of each step with one network, in this process."""
    import numpy as np
    import tensorflow as tf
    import tensorflow_model_optimization as tfmot
    import tf_keras as keras

    import sat_tf

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, _IMAGE_SIZE, _IMAGE_SIZE, 3)).astype(np.float32)
    labels = rng.integers(0, 10, len(images))
    model = _network(num_layers)
    seconds: dict[str, float] = {"layers": len(model.layers)}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        made = function()
        seconds[name] = round(time.perf_counter() - start, 3)
        return made

    def first_step(trained: Any) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trained.compile(keras.optimizers.SGD(0.01), loss)
        trained.train_on_batch(images, labels)

    timed("float: first step", lambda: first_step(model))
    sat_tf.quantize_model(_network(5))  # what happens only once in a process
    policy = sat_tf.BitPolicy.mobile(4)
    quantized = timed("quantize_model", lambda: sat_tf.quantize_model(model, policy))
    timed("first step", lambda: first_step(quantized))
    with tempfile.TemporaryDirectory() as folder:
        path, file = pathlib.Path(folder) / "model.keras", pathlib.Path(folder) / "model.tflite"
        timed("save", lambda: quantized.save(path))
        timed("load", lambda: keras.models.load_model(path))
        timed("export", lambda: sat_tf.export_tflite(quantized, file))
        some = images[:verified].astype(np.uint8)
        proof = timed("verify", lambda: sat_tf.verify_tflite(quantized, file, some))
        if proof.codes_differing:
            raise RuntimeError(f"{proof.codes_differing} codes differ.")
    theirs = timed("TFMOT quantize_model", lambda: tfmot.quantization.keras.quantize_model(model))
    timed("TFMOT first step", lambda: first_step(theirs))
    converter = tf.lite.TFLiteConverter.from_keras_model(theirs)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    timed("converter", converter.convert)
    return seconds


def main(argv: list[str]) -> None:
    """Measures all depths, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, measured = rich.console.Console(width=110), []
    for num_layers in map(int, _LAYERS.value):
        with console.status(f"{num_layers} layers"):
            measured.append(in_new_process(_measure, num_layers, _VERIFIED.value))
    results = []
    for what in list(measured[0])[1:]:
        row = {"seconds": what}
        row |= {f"{each['layers']} layers": f"{each[what]:.2f}" for each in measured}
        if len(measured) > 1:
            before, last = measured[-2:]
            times = math.log(last[what] / before[what])
            row["growth"] = f"{times / math.log(last['layers'] / before['layers']):.2f}"
        results.append(row)
    console.print(rows.as_table(results, "seconds against the number of layers"))
    rows.write_csv(results, _OUTPUT.value)
    console.print(f"wrote {_OUTPUT.value}")


if __name__ == "__main__":
    app.run(main)
