"""The networks of `keras.applications` train in 4 bits, and their files compute the same codes."""

import keras
import numpy as np
import pytest

import sat_tf
from sat_tf.keras3.conversion.twin import proof_of

# One of each family that `sat_tf.from_keras3` takes, with the smallest images that it takes.
FAMILIES = {
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 64,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "Xception": 71,
    "NASNetMobile": 32,
    "VGG16": 32,
    "ConvNeXtTiny": 32,
}
QUICK = ("MobileNet",)


def images_for(size, count=8):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3)).astype(np.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in QUICK else pytest.mark.slow)
        for name in FAMILIES
    ],
)
def test_a_network_trains_a_step_and_no_code_of_its_file_differs(name, tmp_path):
    keras.utils.set_random_seed(0)
    size = FAMILIES[name]
    build = getattr(keras.applications, name)
    model = build(input_shape=(size, size, 3), weights=None, classes=10, classifier_activation=None)
    images, labels = images_for(size), np.arange(8) % 10
    policy = sat_tf.BitPolicy.mobile(4, unsupported="float")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, images)
    proof = proof_of(quantized)
    assert proof.layer_difference <= 1e-5
    assert proof.codes_differing <= 1000  # of millions, all of them ties
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(quantized.train_on_batch(images, labels))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    certificate = sat_tf.verify_tflite(
        quantized, tmp_path / "model.tflite", images.astype(np.uint8)
    )
    assert (certificate.codes_differing, certificate.codes_compared > 1000) == (0, True)
