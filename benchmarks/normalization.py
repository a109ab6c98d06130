"""Measures what normalizations over features lose where they are computed on codes, as on NPUs.

    PYTHONPATH=. python benchmarks/normalization.py

First the error of the output of each, root mean square, against the float layer, with 8 bits (int8)
and with 16 between (Ethos-U): on rows of one scale, on rows whose scales differ by up to 10, and on
rows with one channel 20 times as large as the others. Codes of 8 bits are fed, whose own error is
beside it. Then top-1 of two small mixers of characters, calibrated at 8 bits and not trained
further: as float networks, with LayerNormalization in float32 for CPUs, and in integers of 8 bits
and of 16. At last the latency of these two files and of one with
BatchNormalization, with XNNPACK on one thread, of a small mixer and a larger one: the median of
100 runs by turns. Ten minutes on two cores.
"""

import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tf_keras as keras
from absl import app
from ai_edge_litert.interpreter import Interpreter
from drawn_glyphs import load_glyphs
from turns import seconds_by_turns

import sat_tf
from sat_tf.graph.operation_layers import RMSNormalization

L = keras.layers
_TARGETS = ("litert", "int8", "ethos-u55")
_WIDTHS, _SEEDS = (16, 64, 256, 768), (0, 1)
_CLASSES, _EPOCHS, _BATCH, _RATE = 60, 12, 128, 3e-3
_SIDE, _CHANNELS, _BLOCKS = 6, 48, 3
_NORMS: dict[str, Callable[..., Any]] = {
    "layer": L.LayerNormalization,
    "root mean square": RMSNormalization,
    "unit": L.UnitNormalization,
    "4 groups": lambda **options: L.GroupNormalization(4, **options),
}


def _rows(width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2048, width))
    scales = 10.0 ** rng.uniform(-1.0, 0.0, (2048, 1))
    outlier = np.where(np.arange(width) == 3, 20.0, 1.0)
    return {"one scale": rows, "scales of 0.1 to 1": rows * scales, "outlier": rows * outlier}


def _errors(kind: str, rows: np.ndarray, target: str) -> tuple[float, float]:
    """The errors of the output in integers, and of the float layer of codes, in percent."""
    width = rows.shape[1]
    values, norm = keras.Input((width,)), _NORMS[kind](name="norm")
    model = keras.Model(values, L.Dense(2)(norm(values)))
    policy = sat_tf.BitPolicy.mobile(8, target=target, input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, rows[:512], progress=False)
    codes = quantized.layers[1].output
    both = keras.Model(quantized.input, [codes, quantized.get_layer("quant_norm").output])
    read, found = both.predict(rows[512:], verbose=0)
    wanted = norm(rows[512:]).numpy()
    errors = [np.linalg.norm(each - wanted) for each in (found, norm(read).numpy())]
    of_output, of_input = (100.0 * error / np.linalg.norm(wanted) for error in errors)
    return float(of_output), float(of_input)


def _mixer(
    norm: Callable[[], Any] = L.LayerNormalization, side: int = _SIDE, channels: int = _CHANNELS
) -> keras.Model:
    places, image = side * side, keras.Input((4 * side, 4 * side, 3))
    x = L.Conv2D(channels, 4, 4)(L.Rescaling(1 / 127.5, offset=-1.0)(image))
    x = L.Reshape((places, channels))(x)
    for _ in range(_BLOCKS):
        y = L.Permute((2, 1))(norm()(x))
        y = L.Dense(places)(L.Dense(48, activation="relu")(y))
        x = L.Add()([x, L.Permute((2, 1))(y)])
        y = L.Dense(2 * channels, activation="relu")(norm()(x))
        x = L.Add()([x, L.Dense(channels)(y)])
    x = L.Reshape((side, side, channels))(norm()(x))
    return keras.Model(image, L.Dense(_CLASSES)(L.GlobalAveragePooling2D()(x)))


def _calibrated(model: keras.Model, target: str, images: np.ndarray) -> keras.Model:
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, target=target))
    return sat_tf.calibrate(quantized, images, progress=False)


def _accuracies(seed: int) -> list[float]:
    """Top-1 in percent: float, with the normalization in float32, and in integers of both."""
    data = load_glyphs(num_classes=_CLASSES, train_per_class=64, test_per_class=64)
    images, labels = data.train_images.astype(np.float32), data.train_labels
    test_images = data.test_images.astype(np.float32)
    keras.utils.set_random_seed(seed)
    model = _mixer()
    decay = keras.optimizers.schedules.CosineDecay(_RATE, _EPOCHS * len(images) // _BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.legacy.Adam(decay), loss)
    model.fit(images, labels, batch_size=_BATCH, epochs=_EPOCHS, verbose=0)
    seen = np.random.default_rng(0).permutation(len(images))[:512]
    models = [model, *(_calibrated(model, target, images[seen]) for target in _TARGETS)]
    answers = [each.predict(test_images, verbose=0).argmax(-1) for each in models]
    return [100.0 * float(np.mean(answer == data.test_labels)) for answer in answers]


def _latencies(side: int, channels: int) -> dict[str, float]:
    """Milliseconds of the files of a mixer, by the form of its normalizations."""
    images = np.random.default_rng(0).uniform(0, 255, (64, 4 * side, 4 * side, 3))
    images = images.astype(np.float32)
    forms = {
        "in float32": (L.LayerNormalization, "litert"),
        "in integers": (L.LayerNormalization, "int8"),
        "BatchNormalization": (L.BatchNormalization, "litert"),
    }
    calls = {}
    with tempfile.TemporaryDirectory() as folder:
        for form, (norm, target) in forms.items():
            path = pathlib.Path(folder, f"{target}.tflite")
            quantized = _calibrated(_mixer(norm, side, channels), target, images)
            sat_tf.export_tflite(quantized, path)
            interpreter = Interpreter(model_content=path.read_bytes(), num_threads=1)
            interpreter.allocate_tensors()
            calls[form] = interpreter.invoke
    seconds = seconds_by_turns(calls, range(100), warm_up=10)
    return {form: 1000.0 * float(np.median(times)) for form, times in seconds.items()}


def main(arguments: list[str]) -> None:
    """Prints the errors, the accuracies and the latencies."""
    del arguments
    for kind in _NORMS:
        for width in _WIDTHS:
            for name, rows in _rows(width).items():
                pairs = [_errors(kind, rows.astype(np.float32), target) for target in _TARGETS[1:]]
                (found, read), (wide, _) = pairs
                errors = f"8 bits {found:.1f} %, 16 {wide:.1f} %, the codes {read:.1f} %"
                print(f"{kind}, {width} values, {name}: {errors}")
    for seed in _SEEDS:
        plain, in_float, *in_integers = _accuracies(seed)
        shares = ", ".join(f"{share:.2f}" for share in in_integers)
        print(f"seed {seed}: {plain:.2f} float, {in_float:.2f} in float32, {shares} with 8 and 16")
    for side, channels in ((_SIDE, _CHANNELS), (14, 192)):
        times = _latencies(side, channels)
        words = ", ".join(f"{form} {time:.3f} ms" for form, time in times.items())
        print(f"{side} x {side} places of {channels}: {words}")


if __name__ == "__main__":
    app.run(main)
