"""The networks of `keras.applications` train in 4 bits, and their files compute the same codes."""

import keras
import numpy as np
import pytest

import sat_tf
from sat_tf.keras3.conversion.twin import twin_of

# One of each family that `sat_tf.from_keras3` takes, with the smallest images that it takes.
FAMILIES = {
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
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
    extra = {"include_preprocessing": False} if "NetV2B" in name or "V3" in name[-8:] else {}
    if name == "InceptionV3":
        extra = {}
    build = getattr(keras.applications, name)
    model = build(
        input_shape=(size, size, 3), weights=None, classes=10, classifier_activation=None, **extra
    )
    images, labels = images_for(size), np.arange(8) % 10
    policy = sat_tf.BitPolicy.mobile(4, unsupported="float")
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, images)
    found = keras.ops.convert_to_numpy(quantized(images, training=False))
    expected = twin_of(quantized)(images, training=False).numpy()
    assert np.max(np.abs(found - expected)) <= 0.05 * np.max(np.abs(expected))
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(quantized.train_on_batch(images, labels))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    certificate = sat_tf.verify_tflite(
        quantized, tmp_path / "model.tflite", images.astype(np.uint8)
    )
    assert (certificate.codes_differing, certificate.codes_compared > 1000) == (0, True)
