"""Measures what a LayerNormalization loses on NPUs, where it is computed on codes.

    PYTHONPATH=. python benchmarks/normalization.py

First the error of its output, root mean square, against the float layer: on rows of one scale, on
rows whose scales differ by up to 10, and on rows with one channel 20 times as large as the others.
Codes of 8 bits are fed, whose own error is beside it. Then top-1 of two small mixers of characters,
calibrated at 8 bits and not trained further: as float networks, with LayerNormalization in
float32 for CPUs, and in integers. Eight minutes on two cores.
"""

import numpy as np
import tf_keras as keras
from absl import app

import sat_tf
from sat_tf.training.data.glyphs import load_glyphs

L = keras.layers
_WIDTHS, _SEEDS = (16, 64, 256, 768), (0, 1)
_CLASSES, _EPOCHS, _BATCH, _RATE = 60, 12, 128, 3e-3
_CHANNELS, _BLOCKS = 48, 3


def _rows(width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2048, width))
    scales = 10.0 ** rng.uniform(-1.0, 0.0, (2048, 1))
    outlier = np.where(np.arange(width) == 3, 20.0, 1.0)
    return {"one scale": rows, "scales of 0.1 to 1": rows * scales, "outlier": rows * outlier}


def _errors(rows: np.ndarray) -> tuple[float, float]:
    """The errors of the output in integers, and of the float layer of codes, in percent."""
    width = rows.shape[1]
    values, gamma = keras.Input((width,)), keras.initializers.RandomUniform(0.9, 1.1, seed=0)
    norm = L.LayerNormalization(name="norm", gamma_initializer=gamma)
    model = keras.Model(values, L.Dense(2)(norm(values)))
    policy = sat_tf.BitPolicy.mobile(8, target="int8", input_type="int8")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, rows[:512], progress=False)
    codes = quantized.layers[1].output
    both = keras.Model(quantized.input, [codes, quantized.get_layer("quant_norm").output])
    read, found = both.predict(rows[512:], verbose=0)
    wanted = norm(rows[512:]).numpy()
    errors = [np.linalg.norm(each - wanted) for each in (found, norm(read).numpy())]
    of_output, of_input = (100.0 * error / np.linalg.norm(wanted) for error in errors)
    return float(of_output), float(of_input)


def _mixer() -> keras.Model:
    image = keras.Input((24, 24, 3))
    x = L.Conv2D(_CHANNELS, 4, 4)(L.Rescaling(1 / 127.5, offset=-1.0)(image))
    x = L.Reshape((36, _CHANNELS))(x)
    for _ in range(_BLOCKS):
        y = L.Permute((2, 1))(L.LayerNormalization()(x))
        y = L.Dense(36)(L.Dense(48, activation="relu")(y))
        x = L.Add()([x, L.Permute((2, 1))(y)])
        y = L.Dense(96, activation="relu")(L.LayerNormalization()(x))
        x = L.Add()([x, L.Dense(_CHANNELS)(y)])
    x = L.Reshape((6, 6, _CHANNELS))(L.LayerNormalization()(x))
    return keras.Model(image, L.Dense(_CLASSES)(L.GlobalAveragePooling2D()(x)))


def _accuracies(seed: int) -> list[float]:
    """Top-1 in percent: float, with the normalization in float32, and in integers."""
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
    models = [model]
    for target in ("litert", "int8"):
        policy = sat_tf.BitPolicy.mobile(8, target=target)
        quantized = sat_tf.quantize_model(model, policy)
        models.append(sat_tf.calibrate(quantized, images[seen], progress=False))
    answers = [each.predict(test_images, verbose=0).argmax(-1) for each in models]
    return [100.0 * float(np.mean(answer == data.test_labels)) for answer in answers]


def main(arguments: list[str]) -> None:
    """Prints the errors, and the accuracies."""
    del arguments
    for width in _WIDTHS:
        for name, rows in _rows(width).items():
            of_output, of_input = _errors(rows.astype(np.float32))
            print(f"{width} values, {name}: {of_output:.1f} %, of its codes {of_input:.1f} %")
    for seed in _SEEDS:
        plain, in_float, in_integers = _accuracies(seed)
        print(f"seed {seed}: {plain:.2f} float, {in_float:.2f} in float32, {in_integers:.2f}")


if __name__ == "__main__":
    app.run(main)
