"""Codes that Keras and the file compute differently because biases are integers.

Families are trained on the digits, quantized, calibrated, and trained once more for an epoch;
architectures of `tf_keras.applications` have random weights and are calibrated on smooth noise.
For each: the share of all codes that differ from those of the file, and, of the tensor where it is
largest, the share that differs where its operator reads the codes of Keras itself, so that nothing
adds up; then both once `snap_biases` has moved the biases to those of the file.

    python benchmarks/biases.py
    python benchmarks/biases.py --families=resnet18 --applications= --bits=4
"""

import pathlib
from typing import Any

import numpy as np
import rich.console
import tf_keras as keras
from absl import app, flags
from full_size import smooth_images
from rows import as_table, write_csv

import sat_tf
from sat_tf.training import models
from sat_tf.training.data.digits import load_digits

_SMALL = "mobilenet_v1,mobilenet_v2,resnet18,preresnet50,vgg16_bn"
_LARGE = "MobileNetV2,EfficientNetB0,InceptionV3,ResNet50,DenseNet121"
_FAMILIES = flags.DEFINE_list("families", _SMALL, "families to train")
_APPLICATIONS = flags.DEFINE_list("applications", _LARGE, "architectures with random weights")
_BITS = flags.DEFINE_multi_integer("bits", [8, 4, 2], "of weights and activations")
_EPOCHS = flags.DEFINE_integer("epochs", 12, "of the float models", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", "runs/biases", "where to write files")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/biases.csv", "where to write")

_WIDTH = 0.25
_IMAGES, _LARGE_IMAGES, _LARGE_SIZE = 256, 8, 96


def _trained(name: str, bits: int) -> tuple[keras.Model, np.ndarray]:
    """A quantized family that has learned the digits, and pictures that it has not seen."""
    keras.utils.set_random_seed(0)
    digits = load_digits(32)
    images = digits.train_images.astype(np.float32)
    model = models.build(name, image_size=32, num_classes=10, width_multiplier=_WIDTH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(images, digits.train_labels, 64, _EPOCHS.value, verbose=0)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(bits))
    sat_tf.calibrate(quantized, images[:512], progress=False)
    quantized.compile(keras.optimizers.Adam(3e-4), loss)
    quantized.fit(images, digits.train_labels, 64, verbose=0)
    return quantized, digits.test_images[:_IMAGES]


def _random(name: str, bits: int) -> tuple[keras.Model, np.ndarray]:
    """A quantized architecture with random weights, and noise that it was not calibrated on."""
    keras.utils.set_random_seed(0)
    shape = (_LARGE_SIZE, _LARGE_SIZE, 3)
    make = getattr(keras.applications, name)
    model = make(weights=None, input_shape=shape, classifier_activation=None)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(bits))
    images = smooth_images(32 + _LARGE_IMAGES, _LARGE_SIZE)
    sat_tf.calibrate(quantized, images[:32].astype(np.float32), progress=False)
    return quantized, images[32:]


def _measured(quantized: keras.Model, images: np.ndarray, path: pathlib.Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for state in ("as trained", "snapped"):
        if state == "snapped":
            sat_tf.export.snap_biases(quantized)
        sat_tf.export_tflite(quantized, path)
        certificate = sat_tf.verify_tflite(
            quantized, path, images, runtimes=["xnnpack"], progress=False
        )
        worst = max(certificate.trained, key=lambda tensor: tensor.alone_share)
        found |= {
            f"differing %, {state}": f"{100 * certificate.trained_differing:.3f}",
            f"by itself %, {state}": f"{100 * worst.alone_share:.3f}",
            f"where, {state}": worst.name,
            f"largest channel the same %, {state}": f"{100 * (certificate.agreement or 0):.1f}",
            f"LiteRT differing, {state}": certificate.codes_differing,
        }
    return found


def main(argv: list[str]) -> None:
    """Measures every model at all bits, writing the CSV after each; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    console, rows = rich.console.Console(), []
    path = pathlib.Path(_FOLDER.value) / "model.tflite"
    path.parent.mkdir(parents=True, exist_ok=True)
    makers = [
        *((name, "digits", _trained) for name in _FAMILIES.value),
        *((name, "random", _random) for name in _APPLICATIONS.value),
    ]
    for name, weights, make in makers:
        for bits in _BITS.value:
            row = {"model": name, "weights": weights, "bits": bits}
            rows.append({**row, **_measured(*make(name, bits), path)})
            write_csv(rows, _OUTPUT.value)
            console.print(" ".join(map(str, rows[-1].values())))
    shown = [name for name in rows[0] if not name.startswith(("where", "LiteRT"))]
    console.print(as_table(rows, "Codes of Keras that differ from the file's", shown))


if __name__ == "__main__":
    app.run(main)
