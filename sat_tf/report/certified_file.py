"""A file in a folder, and its certificate beside it."""

from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.export.certificate.certificate import Certificate
from sat_tf.export.certificate.inputs import ImagesFrom
from sat_tf.export.export import ExportReport, export_tflite
from sat_tf.export.verify import verify_tflite
from sat_tf.output_folder import CERTIFICATE, TFLITE_MODEL, OutputFolder


def write_file(
    folder: OutputFolder,
    model: keras.Model,
    sample: tuple[np.ndarray, Any],
    *,
    images_from: ImagesFrom,
    float_model: keras.Model | None,
    progress: bool = False,
    **options: Any,
) -> tuple[ExportReport, Certificate]:
    """Exports a model into a folder and verifies the file, whose certificate is beside it."""
    path, (images, labels) = folder.file(TFLITE_MODEL), sample
    report = export_tflite(model, path, **options)
    certificate = verify_tflite(
        model,
        path,
        images,
        labels,
        float_model=float_model,
        certificate_path=folder.file(CERTIFICATE),
        images_from=images_from,
        progress=progress,
    )
    return report, certificate
