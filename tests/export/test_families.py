"""Every family of models as an integer file."""

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf import models
from tests.export.zoo import make_realistic
from tests.models.small import build_small


@pytest.mark.thorough
@pytest.mark.parametrize("name", models.MODELS)
def test_xnnpack_computes_the_simulated_integers_of_every_family(name, tmp_path):
    keras.utils.set_random_seed(0)
    model = build_small(name)
    make_realistic(model)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 32, 3), dtype=np.uint8)
    sat_tf.calibrate(quantized, images)
    report = sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    assert report.float_operators == ["DEQUANTIZE classifier_float"]
    found = sat_tf.verify_tflite(quantized, tmp_path / "model.tflite", images[:4])
    assert found.runtimes["xnnpack"].codes_compared > 0
    assert found.runtimes["xnnpack"].codes_differing == 0
    assert found.runtimes["xnnpack"].delegation.partitions == 1
