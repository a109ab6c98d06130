"""Five networks of TFMOT, whose operators are compared with each runtime that runs here."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.export import compare_operators

L = keras.layers


def _conv(tensor, layer):
    return L.ReLU()(L.BatchNormalization()(layer(tensor)))


def _keyword():
    image = keras.Input((49, 10, 1))
    tensor = _conv(image, L.Conv2D(16, (10, 4), strides=2, padding="same", use_bias=False))
    tensor = _conv(tensor, L.DepthwiseConv2D(3, padding="same", use_bias=False))
    tensor = L.Flatten()(L.AveragePooling2D((25, 5))(tensor))
    return keras.Model(image, L.Dense(12, activation="softmax")(tensor))


def _residual():
    image = keras.Input((16, 16, 3))
    stem = _conv(image, L.Conv2D(16, 3, padding="same"))
    tensor = _conv(stem, L.Conv2D(16, 3, padding="same"))
    tensor = L.BatchNormalization()(L.Conv2D(16, 3, padding="same")(tensor))
    tensor = L.Flatten()(L.AveragePooling2D(8)(L.ReLU()(L.Add()([tensor, stem]))))
    return keras.Model(image, L.Dense(10)(tensor))


def _joined():
    image = keras.Input((16, 16, 3))
    parts = [_conv(image, L.Conv2D(8, size, padding="same", use_bias=False)) for size in (1, 3)]
    tensor = L.GlobalAveragePooling2D()(L.MaxPooling2D()(L.Concatenate()(parts)))
    return keras.Model(image, L.Dense(4)(tensor))


def _application(name):
    settings = {"alpha": 0.35 if name == "MobileNetV2" else 0.25, "weights": None, "classes": 10}
    return getattr(keras.applications, name)((32, 32, 3), **settings)


NETWORKS = {
    "keyword": _keyword,
    "residual": _residual,
    "joined": _joined,
    "mobilenet_v1": lambda: _application("MobileNet"),
    "mobilenet_v2": lambda: _application("MobileNetV2"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NETWORKS)
def test_files_of_tfmot_are_computed_by_the_rules_of_kernels(name, tmp_path):
    keras.utils.set_random_seed(0)
    model = tfmot.quantization.keras.quantize_model(NETWORKS[name]())
    images = np.random.default_rng(0).uniform(-1.0, 1.0, (16, *model.input_shape[1:]))
    for _ in range(3):  # as a training would, it shows the quantizers what they quantize
        model(images.astype(np.float32), training=True)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    path = tmp_path / "tfmot.tflite"
    path.write_bytes(converter.convert())
    found = compare_operators(
        path, images[:2], runtimes=("builtin", "reference", "arm_xnnpack"), progress=False
    )
    assert found.multiply_adds_simulated == 1.0
    for runtime in ("xnnpack", "builtin", "reference"):
        assert found.total(runtime).own.compared > 1_000
        assert found.total(runtime).own.differing == 0
    missing = {one.kind for one in found.operators if not one.counts}
    assert missing <= {"DEQUANTIZE", "SHAPE", "STRIDED_SLICE", "PACK"}
