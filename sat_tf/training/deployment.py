"""The TFLite file of a run, and its certificate."""

import numpy as np
import tf_keras as keras

import sat_tf
from sat_tf.data.source import ImageSource
from sat_tf.export.certificate import Certificate
from sat_tf.export.deployed import DeployedModel
from sat_tf.export.file import ExportReport
from sat_tf.qat.model_inputs import input_types
from sat_tf.qat.network import Network
from sat_tf.training.errors import RunError
from sat_tf.training.fed_source import pixels_of
from sat_tf.training.run_folder import CERTIFICATE, TFLITE_MODEL, RunFolder


def deploy(
    model: keras.Model,
    source: ImageSource,
    folder: RunFolder,
    *,
    float_head: bool,
    verify_images: int,
    float_model: keras.Model | None = None,
) -> tuple[ExportReport, Certificate]:
    """Writes the TFLite file of a quantized model into its run folder, and the certificate.

    Args:
        model: the quantized model, or its deployed one.
        source: the data set.
        folder: of the run.
        float_head: see `sat_tf.export_tflite`.
        verify_images: how many held-out images to verify with, at most.
        float_model: that of the run, to compare the file with.

    Returns:
        The export's report and the certificate.

    Raises:
        RunError: the model has no integer form.
    """
    path = folder.file(TFLITE_MODEL)
    pixels, labels = pixels_of(source).held_out_sample(verify_images)
    quantized = model.quantized if isinstance(model, DeployedModel) else model
    takes_pixels = set(input_types(Network(quantized)).values()) == {"uint8"}
    images = pixels if takes_pixels else pixels.astype(np.float32)
    try:
        report = sat_tf.export_tflite(model, path, float_head=float_head)
        certificate = sat_tf.verify_tflite(
            model,
            path,
            images,
            labels,
            float_model=float_model,
            certificate_path=folder.file(CERTIFICATE),
        )
    except ValueError as error:
        raise RunError(f"{error}\nThe trained models are in {folder.path}.") from error
    return report, certificate
