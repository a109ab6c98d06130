"""Accuracy of networks quantized and trained in Keras 3, by backend, beside tf_keras.

A small MobileNet-V2 of Keras 3 learns glyphs in float, once for each seed. It is quantized, and
trained on from there with the same images in the same order: by Keras 3 on each backend, and by
tf_keras, as the twin of the same model. The file of each is verified on held-out images.

    python benchmarks/keras3_on_glyphs.py
    python benchmarks/keras3_on_glyphs.py --backends=tf_keras,tensorflow --seeds=0,1,2 --bits=4,2

Each row is one training, in a process of its own; rows that the CSV file has are not made again.
JAX takes several times as long as TensorFlow on a CPU, whose convolutions XLA does not make well.
"""

import os
import pathlib
import subprocess
import sys
import time

from absl import app, flags
from rows import read_csv, write_csv

_BACKENDS = flags.DEFINE_list("backends", ["tf_keras", "tensorflow", "jax"], "what trains")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "of weights and order of images")
_BITS = flags.DEFINE_list("bits", ["4", "2"], "of weights and activations")
_CLASSES = flags.DEFINE_integer("classes", 50, "how many characters", lower_bound=2)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 30, "of the float model", lower_bound=1)
_EPOCHS = flags.DEFINE_integer("epochs", 4, "of the quantized one", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "runs/keras3_glyphs", "for models and files")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/keras3_on_glyphs.csv", "rows")
_ONE = flags.DEFINE_list("one", None, "what a process of its own does: backend,bits,seed")

_BATCH = 64
_MOMENTUM = 0.9  # MobileNet-V2 has 0.999, which remembers more steps than are made here


def main(argv: list[str]) -> None:
    """Measures what is missing, a process a row."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if _ONE.value:
        _one(*_ONE.value)
        return
    done = {(row["backend"], row["bits"], row["seed"]) for row in read_csv(_OUTPUT.value)}
    for seed in _SEEDS.value:
        if not _float_path(seed).is_file():
            _in_process("tensorflow", "float", "0", seed)
        for backend in _BACKENDS.value:
            for bits in _BITS.value:
                if (backend, bits, seed) not in done:
                    _in_process(backend, backend, bits, seed)


def _in_process(keras_backend: str, *what: str) -> None:
    backend = "tensorflow" if keras_backend == "tf_keras" else keras_backend
    command = [sys.executable, __file__, *sys.argv[1:], f"--one={','.join(what)}"]
    subprocess.run(command, env={**os.environ, "KERAS_BACKEND": backend}, check=True)


def _float_path(seed: str) -> pathlib.Path:
    return pathlib.Path(_FOLDER.value) / f"float_{seed}.keras"


def _one(backend: str, bits: str, seed: str) -> None:
    import keras
    from drawn_glyphs import load_glyphs

    keras.utils.set_random_seed(int(seed))
    glyphs = load_glyphs(num_classes=_CLASSES.value)
    if backend == "float":
        _train_float(keras, glyphs, seed)
        return
    row = {"backend": backend, "bits": bits, "seed": seed, **_measured(backend, bits, seed, glyphs)}
    write_csv([*read_csv(_OUTPUT.value), row], _OUTPUT.value)
    print(row)


def _train_float(keras, glyphs, seed: str) -> None:
    image = keras.Input((*glyphs.train_images.shape[1:3], 3), name="image")
    x = keras.layers.Rescaling(1 / 127.5, -1.0)(image)
    backbone = keras.applications.MobileNetV2(
        input_tensor=x, alpha=0.5, include_top=False, weights=None, pooling="avg"
    )
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = _MOMENTUM
    logits = keras.layers.Dense(_CLASSES.value, name="logits")(backbone.output)
    model = keras.Model(image, logits, name="glyphs")
    _fit(keras, model, glyphs, _FLOAT_EPOCHS.value, 3e-3, int(seed))
    path = _float_path(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)


def _measured(backend: str, bits: str, seed: str, glyphs) -> dict[str, object]:
    import keras as keras3
    import numpy as np
    import tf_keras

    import sat_tf

    model = keras3.saving.load_model(_float_path(seed), compile=False)
    float_top1 = _top1(model, glyphs)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(int(bits)))
    sat_tf.calibrate(quantized, glyphs.train_images[:: len(glyphs.train_images) // 256])
    library = keras3
    if backend == "tf_keras":
        quantized, library = sat_tf.from_keras3(quantized), tf_keras
    start = time.perf_counter()
    _fit(library, quantized, glyphs, _EPOCHS.value, 1e-3, int(seed))
    seconds = time.perf_counter() - start
    path = pathlib.Path(_FOLDER.value) / f"{backend}_{bits}_{seed}.tflite"
    sat_tf.export_tflite(quantized, path)
    some = np.random.default_rng(0).permutation(len(glyphs.test_images))[:256]
    certificate = sat_tf.verify_tflite(quantized, path, glyphs.test_images[some])
    from sat_tf.exact.evaluate import evaluate_tflite

    of_file = evaluate_tflite(path, glyphs.test_images, glyphs.test_labels, progress=False)
    return {
        "float top-1": f"{float_top1:.2f}",
        "top-1": f"{_top1(quantized, glyphs):.2f}",
        "file top-1": f"{100 * of_file.top[1]:.2f}",
        "codes compared": certificate.codes_compared,
        "codes differing": certificate.codes_differing,
        "seconds": f"{seconds:.0f}",
    }


def _fit(keras, model, glyphs, epochs: int, rate: float, seed: int) -> None:
    """Adam down a cosine, on images in an order that the seed decides, alike in all libraries."""
    import numpy as np

    count = len(glyphs.train_images) // _BATCH * _BATCH
    schedule = keras.optimizers.schedules.CosineDecay(rate, epochs * count // _BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss)
    draws = np.random.default_rng(seed)
    for epoch in range(epochs):
        order = draws.permutation(len(glyphs.train_images))[:count]
        images = glyphs.train_images[order].astype(np.float32)
        model.fit(
            images,
            glyphs.train_labels[order],
            batch_size=_BATCH,
            shuffle=False,
            initial_epoch=epoch,
            epochs=epoch + 1,
            verbose=0,
        )


def _top1(model, glyphs) -> float:
    import numpy as np

    outputs = model.predict(glyphs.test_images.astype(np.float32), batch_size=256, verbose=0)
    return 100.0 * float(np.mean(np.argmax(outputs, axis=-1) == glyphs.test_labels))


if __name__ == "__main__":
    app.run(main)
