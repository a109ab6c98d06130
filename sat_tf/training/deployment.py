"""The TFLite file of a run, and its certificate."""

import numpy as np
import tf_keras as keras

import sat_tf
from sat_tf.data import ImageSet
from sat_tf.data.choice import spread_evenly
from sat_tf.export.certificate import Certificate
from sat_tf.export.file import ExportReport
from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import CERTIFICATE, TFLITE_MODEL, RunFolder


def verification_images(images: ImageSet, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Held-out images and labels to verify with: all, or so many, spread evenly over the set."""
    chosen = spread_evenly(len(images.test_labels), most)
    return images.test_images[chosen], images.test_labels[chosen]


def deploy(
    model: keras.Model, images: ImageSet, folder: RunFolder, *, float_head: bool, verify_images: int
) -> tuple[ExportReport, Certificate]:
    """Writes the TFLite file of a quantized model into its run folder, and the certificate.

    Args:
        model: the quantized model, or its deployed one.
        images: the data set.
        folder: of the run.
        float_head: see `sat_tf.export_tflite`.
        verify_images: how many held-out images to verify with, at most.

    Returns:
        The export's report and the certificate.

    Raises:
        RunError: the model has no integer form.
    """
    path = folder.file(TFLITE_MODEL)
    pixels, labels = verification_images(images, verify_images)
    try:
        report = sat_tf.export_tflite(model, path, float_head=float_head)
        certificate = sat_tf.verify_tflite(
            model, path, pixels, labels, certificate_path=folder.file(CERTIFICATE)
        )
    except ValueError as error:
        raise RunError(f"{error}\nThe trained models are in {folder.path}.") from error
    return report, certificate
