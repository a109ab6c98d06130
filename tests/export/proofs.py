"""The way of most tests here: a float model, quantized and calibrated, its file, and the proof."""

import pathlib
from typing import Any

import numpy as np
import tf_keras as keras

import sat_tf
from sat_tf.export.certificate.certificate import Certificate
from sat_tf.export.export import ExportReport
from tests.export.zoo import images_for


def calibrated(
    model: keras.Model, policy: sat_tf.BitPolicy | int = 4, images: Any = None
) -> keras.Model:
    """The model as a policy quantizes it, on random images unless others are given."""
    images = images_for(model).astype(np.float32) if images is None else images
    return sat_tf.calibrate(sat_tf.quantize_model(model, policy), images, progress=False)


def proved(
    quantized: keras.Model, path: pathlib.Path, images: Any = None, **settings: Any
) -> tuple[ExportReport, Certificate]:
    """The report and the certificate of the file of a model, no code of which differs."""
    report = sat_tf.export_tflite(quantized, path)
    images = images_for(quantized, 16) if images is None else images
    found = sat_tf.verify_tflite(quantized, path, images, progress=False, **settings)
    assert found.codes_differing == 0
    return report, found
