"""Trains a Keras 3 model in low bits on any backend, and exports an integer TFLite file with proof.

A small convolutional network learns scikit-learn's digits in float, gets quantizers, is trained on
with Keras 3's own `fit`, and is exported and verified: a minute or two on two cores, nothing to
download.

    python examples/keras3_finetune.py
    python examples/keras3_finetune.py --backend=jax --bits=2 --epochs=8
"""

import os
import pathlib
from typing import Any

import numpy as np
from absl import app, flags

_BACKEND = flags.DEFINE_enum(
    "backend", None, ["tensorflow", "jax", "torch"], "Keras 3's; else that of KERAS_BACKEND."
)
_BITS = flags.DEFINE_integer("bits", 4, "Of weights and activations.", lower_bound=1, upper_bound=8)
_FLOAT_EPOCHS = flags.DEFINE_integer("float_epochs", 6, "Of the float model.", lower_bound=1)
_EPOCHS = flags.DEFINE_integer("epochs", 4, "Of the quantized model.", lower_bound=0)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Images a step.", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "runs/keras3_digits", "Folder for the models.")

_SEED = 0
_SIZE = 16
_VERIFIED = 64


def main(argv: list[str]) -> None:
    """Trains in float, quantizes, trains on, exports and verifies."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if _BACKEND.value:
        os.environ["KERAS_BACKEND"] = _BACKEND.value  # Keras reads it when it is imported
    import keras

    import sat_tf
    from sat_tf.training import data

    folder = pathlib.Path(_OUTPUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(_SEED)
    digits = data.load_digits(_SIZE)
    train = digits.train_images.astype(np.float32), digits.train_labels
    test = digits.test_images.astype(np.float32), digits.test_labels

    model = network(keras)
    print(f"Keras {keras.__version__} on {keras.backend.backend()}")
    fit(keras, model, train, _FLOAT_EPOCHS.value, 3e-3)
    print(f"float: {accuracy(model, test):.2f} %")

    policy = sat_tf.BitPolicy.mobile(_BITS.value)
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, train[0][:256])
    if _EPOCHS.value:
        # A small rate, because the model is trained already; and an epoch counts only if it is
        # better than the start, so that training cannot make it worse.
        best = folder / "best.weights.h5"
        quantized.save_weights(best)
        keep = keras.callbacks.ModelCheckpoint(
            best,
            monitor="val_accuracy",
            save_best_only=True,
            save_weights_only=True,
            initial_value_threshold=accuracy(quantized, test) / 100,
        )
        watched = {"validation_data": test, "callbacks": [keep]}
        fit(keras, quantized, train, _EPOCHS.value, 3e-4, **watched)
        quantized.load_weights(best)
    quantized.save(folder / "quantized.keras")  # loads on any backend, after import sat_tf
    path = folder / "model.tflite"
    sat_tf.export_tflite(quantized, path)
    certificate = sat_tf.verify_tflite(
        quantized, path, digits.test_images[:_VERIFIED], digits.test_labels[:_VERIFIED]
    )
    print(f"{_BITS.value} bits: {accuracy(quantized, test):.2f} %")
    print(certificate)
    print(f"wrote {path} ({path.stat().st_size:,} bytes) and {folder / 'quantized.keras'}")


def network(keras: Any) -> Any:
    """Three convolutions with BatchNormalization and a classifier, for pixels of 0 to 255."""
    image = keras.Input((_SIZE, _SIZE, 3), name="image")
    x = image
    for index, filters in enumerate((16, 32, 32)):
        strides = 2 if index else 1
        conv = keras.layers.Conv2D(filters, 3, strides, "same", use_bias=False)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(conv(x)))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(10, name="logits")(x), name="digits")


def fit(keras: Any, model: Any, train: Any, epochs: int, rate: float, **options: Any) -> None:
    """Trains a model, with a progress bar, down to a rate of 0."""
    steps = epochs * -(-len(train[0]) // _BATCH_SIZE.value)
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    model.fit(*train, batch_size=_BATCH_SIZE.value, epochs=epochs, verbose=2, **options)


def accuracy(model: Any, test: Any) -> float:
    """Per cent of the held-out images that a model answers right."""
    answers = np.argmax(model.predict(test[0], verbose=0), axis=-1)
    return 100.0 * float(np.mean(answers == test[1]))


if __name__ == "__main__":
    app.run(main)
