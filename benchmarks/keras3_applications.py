"""Quantizes, trains and exports one network of each family of `keras.applications` in Keras 3.

Random weights, the smallest images that the network takes, 4 bits everywhere but at the ends: what
counts is that it can be quantized, that its twin computes the same, that a step of training is
finite, and that no code of its file differs.

    python benchmarks/keras3_applications.py
    python benchmarks/keras3_applications.py --models MobileNetV2 --again
"""

import pathlib
import tempfile
import warnings
from typing import Any

import each_application

RESULTS = pathlib.Path(__file__).parent / "results" / "keras3_applications.csv"

# One of each family that `sat_tf.from_keras3` takes, and the rows and columns of its images.
FAMILIES = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 64,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}
_IMAGES = 8


def make_row(name: str) -> dict[str, Any]:
    """Quantizes a network of Keras 3, trains it for a step, exports and verifies it."""
    import keras
    import numpy as np

    import sat_tf
    from sat_tf.keras3.incoming import translated
    from sat_tf.keras3.proof import prove
    from sat_tf.keras3.quantized_layer import QuantizedLayer

    warnings.simplefilter("ignore")  # of untrained statistics
    keras.utils.set_random_seed(0)
    size = FAMILIES[name]
    build = getattr(keras.applications, name)
    model = build(input_shape=(size, size, 3), weights=None, classes=10, classifier_activation=None)
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (_IMAGES, size, size, 3), dtype=np.uint8)
    images, labels = pixels.astype(np.float32), np.arange(_IMAGES)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4, unsupported="float"))
    sat_tf.calibrate(quantized, images)
    proof = prove(translated(quantized, is_twin=True))
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    loss = float(quantized.train_on_batch(images, labels))
    with tempfile.TemporaryDirectory() as folder:
        sat_tf.export_tflite(quantized, f"{folder}/model.tflite")
        certificate = sat_tf.verify_tflite(quantized, f"{folder}/model.tflite", pixels)
    return {
        "model": name,
        "image size": size,
        "quantized layers": sum(isinstance(layer, QuantizedLayer) for layer in quantized.layers),
        "largest difference of a layer": f"{proof.layer_difference:.1e}",
        "loss is finite": bool(np.isfinite(loss)),
        "codes compared": certificate.codes_compared,
        "codes differing": certificate.codes_differing,
    }


if __name__ == "__main__":
    each_application.main(
        __file__,
        __doc__,
        results=RESULTS,
        make_row=make_row,
        names=list(FAMILIES),
    )
