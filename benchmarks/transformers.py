"""Small transformers in integers: what calibration, reconstruction and training keep of them.

Each network is trained in float, then quantized by `sat_tf` at several widths; top-1 is that of the
file on held-out examples, run by LiteRT. TensorFlow's converter, which quantizes after training,
computes at 8 bits.

    python benchmarks/transformers.py
    python benchmarks/transformers.py --networks=vision --widths=w8a8 --epochs=2

Rows that the CSV file has are not made again.
"""

import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import rich.console
import tensorflow as tf
import tf_keras as keras
from absl import app, flags
from rows import as_table, read_csv, write_csv

import sat_tf
from sat_tf.exact.evaluate import evaluate_tflite
from sat_tf.qat.finetune import finetune
from sat_tf.training.data.glyphs import load_glyphs

L = keras.layers
WIDTHS = {"w8a8": (8, 8), "w4a8": (4, 8), "w4a4": (4, 4), "w2a4": (2, 4)}
_CLASSES, _WIDTH, _HEADS, _BLOCKS = 50, 64, 4, 6
_CALIBRATION = 512

_NETWORKS = flags.DEFINE_list("networks", ["vision", "signals"], "which ones")
_WIDTHS = flags.DEFINE_list("widths", list(WIDTHS), "weights and activations")
_EPOCHS = flags.DEFINE_integer("epochs", 8, "of training at fewer bits", lower_bound=1)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 40, "of the float network", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/transformers.csv", "CSV of the rows")


class Examples(NamedTuple):
    """What a network learns."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def glyphs() -> Examples:
    """Characters of 24x24 pixels, of 50 classes."""
    drawn = load_glyphs(num_classes=_CLASSES, train_per_class=128, test_per_class=40)
    order = np.random.default_rng(0).permutation(len(drawn.train_images))
    images, labels = drawn.train_images[order], drawn.train_labels[order]
    return Examples(images, labels, drawn.test_images, drawn.test_labels)


def chirps() -> Examples:
    """Sequences of 64 steps and 8 bands: which of ten tones comes behind which of two others."""
    rng = np.random.default_rng(1)
    count = 8000
    labels = rng.integers(0, 20, count)
    values = rng.normal(0.0, 0.8, (count, 64, 8))
    tones = rng.normal(size=(10, 8, 8))
    marks = rng.normal(size=(2, 4, 8))
    for row, label in zip(values, labels, strict=True):
        start = rng.integers(0, 24)
        row[start : start + 4] += 1.5 * marks[label // 10]
        later = rng.integers(start + 8, 56)
        row[later : later + 8] += tones[label % 10]
    sets = values.astype(np.float32)
    return Examples(sets[:6000], labels[:6000], sets[6000:], labels[6000:])


def _blocks(x: Any, causal: bool = False) -> Any:
    for _ in range(_BLOCKS):
        y = L.LayerNormalization()(x)
        attention = L.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, dropout=0.1)
        x = L.Add()([x, attention(y, y, use_causal_mask=causal)])
        y = L.Dense(2 * _WIDTH, activation="gelu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dropout(0.1)(L.Dense(_WIDTH)(y))])
    return L.GlobalAveragePooling1D()(L.LayerNormalization()(x))


class Places(L.Layer):
    """Adds a trained vector to each place; it becomes a constant map before quantization."""

    def build(self, input_shape: Any) -> None:
        """Makes the vectors."""
        self.vectors = self.add_weight("vectors", input_shape[1:], initializer="random_normal")

    def call(self, inputs: Any) -> Any:
        """The sum."""
        return inputs + self.vectors


def vision(places: Callable[[Any], Any]) -> keras.Model:
    """A vision transformer on patches of 4x4 pixels."""
    image = keras.Input((24, 24, 3), name="image")
    x = L.Conv2D(_WIDTH, 4, 4, name="patches")(L.Rescaling(1 / 255.0)(image))
    x = _blocks(places(L.Reshape((36, _WIDTH))(x)))
    return keras.Model(image, L.Dense(_CLASSES, name="classes")(x), name="vision")


def signals(places: Callable[[Any], Any]) -> keras.Model:
    """A causal transformer on steps of a signal."""
    steps = keras.Input((64, 8), name="steps")
    x = _blocks(places(L.Dense(_WIDTH, name="bands")(steps)), causal=True)
    return keras.Model(steps, L.Dense(20, name="classes")(x), name="signals")


NETWORKS: dict[str, tuple[Callable[..., keras.Model], Callable[[], Examples], dict[str, Any]]] = {
    "vision": (vision, glyphs, {"input_range": (0, 255)}),
    "signals": (signals, chirps, {"input_type": "int8"}),
}


def trained(name: str, examples: Examples) -> keras.Model:
    """The float network, with constant places."""
    keras.utils.set_random_seed(0)
    build = NETWORKS[name][0]
    learned = Places(name="places")
    model = build(learned)
    steps = _FLOAT_EPOCHS.value * (len(examples.train) // 64)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.01), loss, ["accuracy"])
    model.fit(examples.train, examples.train_labels, 64, epochs=_FLOAT_EPOCHS.value, verbose=0)
    constant = build(lambda x: x + learned.vectors.numpy())
    weights = [w for w in model.weights if w is not learned.vectors]
    constant.set_weights([weight.numpy() for weight in weights])
    return constant


def _top1(model: keras.Model, examples: Examples) -> float:
    answers = model.predict(examples.test, batch_size=250, verbose=0)
    return 100.0 * float(np.mean(np.argmax(answers, -1) == examples.test_labels))


def measured(quantized: keras.Model, examples: Examples) -> dict[str, Any]:
    """The file's top-1, its codes that differ from their simulation, and those from Keras."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        sat_tf.export_tflite(quantized, path)
        certificate = sat_tf.verify_tflite(quantized, path, examples.test[:64], progress=False)
        result = evaluate_tflite(path, examples.test, examples.test_labels, progress=False)
        return {
            "top1": f"{100.0 * result.top[1]:.2f}",
            "codes_differing": certificate.codes_differing,
            "codes": certificate.codes_compared,
            "trained_differing": f"{100.0 * certificate.trained_differing:.3f}",
            "bytes": path.stat().st_size,
        }


def by_converter(model: keras.Model, examples: Examples) -> dict[str, Any]:
    """The file of TensorFlow's converter, quantized after training on the same examples."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    sample = examples.train[:_CALIBRATION].astype(np.float32)
    converter.representative_dataset = lambda: ([row[None]] for row in sample)
    content = converter.convert()
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    right = 0
    for row, label in zip(examples.test, examples.test_labels, strict=True):
        interpreter.set_tensor(given["index"], row[None].astype(np.float32))
        interpreter.invoke()
        right += int(np.argmax(interpreter.get_tensor(made["index"])) == label)
    return {"top1": f"{100.0 * right / len(examples.test):.2f}", "bytes": len(content)}


def main(argv: list[str]) -> None:
    """Measures what is missing."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows: list[dict[str, Any]] = [*read_csv(_OUTPUT.value)]
    keys = ("network", "width", "way")
    done = {tuple(row[key] for key in keys) for row in rows}
    columns = ("float", "top1", "codes_differing", "codes", "trained_differing", "bytes", "seconds")

    def add(case: tuple[str, str, str], facts: dict[str, Any]) -> None:
        row = dict(zip(keys, case, strict=True))
        rows.append(row | {column: facts.get(column, "") for column in columns})
        write_csv(rows, _OUTPUT.value)
        print(*rows[-1].values(), flush=True)

    for name in _NETWORKS.value:
        examples, settings = NETWORKS[name][1](), NETWORKS[name][2]
        ways = ("calibrated", "reconstructed", "trained")
        wanted = [(name, width, way) for width in _WIDTHS.value for way in ways]
        if done.issuperset(wanted):
            continue
        model = trained(name, examples)
        of_float = {"float": f"{_top1(model, examples):.2f}"}
        print(name, of_float, flush=True)
        if (name, "w8a8", "converter") not in done:
            add((name, "w8a8", "converter"), of_float | by_converter(model, examples))
        for width in _WIDTHS.value:
            weights, activations = WIDTHS[width]
            policy = sat_tf.BitPolicy.mobile(weights, activation_bits=activations, **settings)
            sample = examples.train[:_CALIBRATION]
            quantized = sat_tf.quantize_model(model, policy)
            sat_tf.calibrate(quantized, sample, num_images=_CALIBRATION)
            for way in ways:
                if (name, width, way) in done:
                    continue
                begun = time.monotonic()
                if way == "reconstructed":
                    sat_tf.reconstruct(quantized, model, sample, progress=False)
                if way == "trained":
                    finetune(
                        quantized,
                        model,
                        examples.train,
                        examples.train_labels,
                        held_out=(examples.train[:500], examples.train_labels[:500]),
                        sample=sample,
                        epochs=_EPOCHS.value,
                    )
                seconds = {"seconds": f"{time.monotonic() - begun:.0f}"}
                add((name, width, way), of_float | measured(quantized, examples) | seconds)
    rich.console.Console().print(as_table(rows, "Transformers"))


if __name__ == "__main__":
    app.run(main)
