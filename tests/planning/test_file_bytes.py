"""How far estimated bytes are from those of real files."""

import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf import BitPolicy, models
from tests.export import zoo
from tests.planning.models import convolutions

# Nothing that is decided by an estimate hangs on more.
_LARGE, _LARGE_FILE = 0.03, 100_000
# Small files are tables of the flatbuffer for the most part.
_SMALL = 0.10


def exported_bytes(model, policy, path):
    quantized = sat_tf.quantize_model(model, policy)
    sat_tf.calibrate(quantized, zoo.images_for(model).astype(np.float32))
    return sat_tf.export_tflite(quantized, path).bytes


def assert_near(planned, real):
    assert abs(planned / real - 1.0) < (_LARGE if real > _LARGE_FILE else _SMALL), (planned, real)


def test_small_files_are_within_a_tenth(tmp_path):
    policy = BitPolicy.mobile(4)
    model = convolutions()
    assert_near(sat_tf.explain(model, policy).bytes, exported_bytes(model, policy, tmp_path / "m"))


@pytest.mark.slow
@pytest.mark.parametrize("family", models.MODELS)
@pytest.mark.parametrize("bits", [4, 8])
def test_files_of_the_families_are_within_3_percent(family, bits, tmp_path):
    options = {"hidden_units": 64} if "vgg" in family else {}
    model = models.build(
        family, image_size=32, num_classes=10, width_multiplier=0.5, seed=0, **options
    )
    policy = BitPolicy.mobile(bits, weight_range="channel" if bits == 8 else "layer")
    planned = sat_tf.explain(model, policy).bytes
    assert_near(planned, exported_bytes(model, policy, tmp_path / "model.tflite"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mobilenet_v2", "resnet18", "preresnet50"])
def test_float_files_are_within_3_percent(family):
    model = models.build(family, image_size=32, num_classes=10, width_multiplier=0.5, seed=0)
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    assert_near(sat_tf.explain(model).float_bytes, len(content))
