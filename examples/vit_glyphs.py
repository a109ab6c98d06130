"""Trains a vision transformer in low bits on printed characters, and exports it with proof.

A small transformer learns 50 characters in float, gets quantizers, is calibrated, trained on, and
exported; LiteRT runs its file on typefaces that training has not seen. Two minutes on two cores,
nothing to download.

    python examples/vit_glyphs.py
    python examples/vit_glyphs.py --weight_bits=2 --epochs=6
"""

import pathlib
import sys
from typing import Any

import numpy as np
import rich.console
import rich.table
import tf_keras as keras
from absl import app, flags

import sat_tf
from sat_tf.exact.evaluate import evaluate_tflite

sys.path.append(str(pathlib.Path(__file__).parents[1]))  # the repository, which has the pictures
from benchmarks.drawn_glyphs import load_glyphs

_WEIGHT_BITS = flags.DEFINE_integer("weight_bits", 4, "Of weights.", 2, 8)
_ACTIVATION_BITS = flags.DEFINE_integer("activation_bits", 4, "Of activations.", 2, 8)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 10, "Of the float model.", lower_bound=1)
_EPOCHS = flags.DEFINE_integer("epochs", 2, "Of the quantized model.", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "runs/vit_glyphs", "Folder for the models.")

_CLASSES, _SEED = 50, 0
_PATCH, _WIDTH, _HEADS, _BLOCKS = 8, 64, 4, 4
_BATCH_SIZE = 64
_CALIBRATION, _VERIFIED = 512, 32

L = keras.layers


def main(argv: list[str]) -> None:
    """Trains in float, quantizes, trains on, exports and verifies; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    folder = pathlib.Path(_OUTPUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(_SEED)
    glyphs = load_glyphs(num_classes=_CLASSES, train_per_class=128, test_per_class=40)
    # They are in the order of their classes.
    order = np.random.default_rng(_SEED).permutation(len(glyphs.train_images))
    train = glyphs.train_images[order], glyphs.train_labels[order]
    test = glyphs.test_images, glyphs.test_labels
    table = rich.table.Table("", "top-1, %", "bytes")

    model = network()
    fit(model, train, _FLOAT_EPOCHS.value, 2e-3)
    table.add_row("float", f"{accuracy(model, test):.2f}", f"{4 * model.count_params():,}")

    bits = {"weight_bits": _WEIGHT_BITS.value, "activation_bits": _ACTIVATION_BITS.value}
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy(**bits))
    sat_tf.calibrate(quantized, train[0][:_CALIBRATION])
    name = "w{weight_bits}a{activation_bits}".format(**bits)
    table.add_row(f"{name}, calibrated", f"{accuracy(quantized, test):.2f}", "")
    fit(quantized, train, _EPOCHS.value, 3e-4)  # a small rate: the model is trained already
    table.add_row(f"{name}, trained", f"{accuracy(quantized, test):.2f}", "")

    path = folder / "model.tflite"
    sat_tf.export_tflite(quantized, path, snap_biases=True)
    some = slice(None, None, len(test[0]) // _VERIFIED)
    certificate = sat_tf.verify_tflite(quantized, path, test[0][some], test[1][some])
    of_file = evaluate_tflite(path, *test, progress=False)
    size = f"{path.stat().st_size:,}"
    table.add_row(f"{name}, its file in LiteRT", f"{100 * of_file.top[1]:.2f}", size)
    rich.console.Console().print(table)
    print(certificate)
    print(f"wrote {path}")


def network() -> keras.Model:
    """A vision transformer on patches of 8x8 pixels."""
    image = keras.Input((24, 24, 3), name="image")
    x = L.Conv2D(_WIDTH, _PATCH, _PATCH, name="patches")(L.Rescaling(1 / 255.0)(image))
    side = 24 // _PATCH
    x = L.Reshape((side * side, _WIDTH), name="tokens")(x) + places(side)
    for _ in range(_BLOCKS):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(y, y)])
        y = L.Dense(2 * _WIDTH, activation="gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dense(_WIDTH)(y)])
    x = L.GlobalAveragePooling1D()(L.LayerNormalization()(x))
    return keras.Model(image, L.Dense(_CLASSES, name="logits")(x), name="vit")


def places(side: int) -> np.ndarray:
    """Sines and cosines of the row and the column of each patch: a constant map."""
    rates = 0.1 ** np.linspace(0.0, 1.0, _WIDTH // 4)
    rows, columns = np.indices((side, side)).reshape(2, -1, 1) * rates
    parts = np.sin(rows), np.cos(rows), np.sin(columns), np.cos(columns)
    return np.concatenate(parts, axis=-1).astype(np.float32)


def fit(model: Any, train: Any, epochs: int, rate: float) -> None:
    """Trains a model, down to a rate of 0."""
    steps = epochs * -(-len(train[0]) // _BATCH_SIZE)
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    model.fit(*train, batch_size=_BATCH_SIZE, epochs=epochs, verbose=2)


def accuracy(model: Any, test: Any) -> float:
    """Per cent of the held-out images that a model answers right."""
    answers = np.argmax(model.predict(test[0], verbose=0), axis=-1)
    return 100.0 * float(np.mean(answers == test[1]))


if __name__ == "__main__":
    app.run(main)
