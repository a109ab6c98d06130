"""Keras 3 models on their way to a phone."""

import numpy as np
import pytest

import sat_tf
from tests.keras3 import models


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build", [models.mobile, pytest.param(models.functions, marks=pytest.mark.slow)]
)
def test_a_keras_3_model_becomes_an_integer_file_with_its_codes(build, tmp_path):
    model = sat_tf.from_keras3(build())
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8))
    shape = (32, *model.input_shape[1:])
    images = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    sat_tf.calibrate(quantized, images.astype(np.float32))
    report = sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    assert {name.split()[0] for name in report.float_operators} == {"DEQUANTIZE"}  # the logits
    found = sat_tf.verify_tflite(quantized, tmp_path / "model.tflite", images)
    assert found.codes_differing == 0
    assert found.runtimes["xnnpack"].codes_compared > 0
