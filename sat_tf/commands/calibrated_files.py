"""The files of a model that is calibrated on pictures, without a run."""

import dataclasses
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf.commands.verification_table import print_certificate
from sat_tf.data.source import spread_evenly
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.tflite.metadata import label_text
from sat_tf.messages import RunError, say
from sat_tf.preprocessing import COVERING, Preprocessing
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.state import run_folder
from sat_tf.training.state.run_folder import RunFolder

if TYPE_CHECKING:
    import tf_keras as keras


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures of a folder that cannot be trained on, for the input of a model.

    Attributes:
        images: uint8, to calibrate on.
        held_out: uint8, to verify and measure on; those that it was calibrated on where there are
            no classes.
        labels: of those held out, for the only output with as many classes; None where they are
            not the model's classes.
        class_names: in the order of the labels; None where there are none.
        images_from: where those held out come from.
        why_not: why they cannot be trained on, in words.
        preprocessing: how they have been prepared.
    """

    images: np.ndarray
    held_out: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    images_from: ImagesFrom
    why_not: str
    preprocessing: Preprocessing = COVERING

    def held_out_sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes images as a source does, without labels where there are none."""
        chosen = spread_evenly(len(self.held_out), most)
        return self.held_out[chosen], None if self.labels is None else self.labels[chosen]


def write_calibrated(
    model: "keras.Model",
    policy: BitPolicy,
    pictures: Pictures,
    folder: RunFolder,
    console: Console,
) -> bool:
    """Calibrates, exports and verifies, without a run; returns whether the certificate is exact.

    The folder gets a report too: with labels, the results and the answers are in it.
    """
    if folder.holds_run:
        raise RunError(
            f"{folder.path}: received the folder of a run, expected one for other files; name one "
            "with --out."
        )
    from sat_tf.analysis.code_use import layer_rows
    from sat_tf.export.snapping import snap_biases
    from sat_tf.qat.calibrate import calibrate
    from sat_tf.qat.layout import GuessedClippingLevelsWarning
    from sat_tf.qat.scheme import quantize_model
    from sat_tf.training.loop.outcome import of_certificate, write_file
    from sat_tf.training.loop.stage import SAMPLE
    from sat_tf.training.report.report import write_layers, write_report
    from sat_tf.training.report.results import Results
    from sat_tf.training.state.classifier_file import ends_in_softmax

    begun = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
        quantized = quantize_model(model, policy)
    feed = policy.range_of(model.input_names[0]).fed
    fed = feed(pictures.images)
    calibrate(quantized, fed, num_images=len(fed), keep_function=True)
    snap_biases(quantized)
    folder.start()  # what is there belongs to other pictures
    options: dict[str, Any] = {}
    labels: Any = pictures.labels
    if len(model.outputs) == 1:  # as TFLite Metadata are, and a softmax that is asked for
        options["softmax"] = ends_in_softmax(model)
        options |= {"labels": pictures.class_names, "preprocessing": pictures.preprocessing}
    elif labels is not None:
        size = (len(pictures.class_names or ()),)
        labels = [labels if tuple(one.shape[1:]) == size else None for one in model.outputs]
    report, certificate = write_file(
        folder,
        quantized,
        pictures.held_out,
        labels,
        images_from=pictures.images_from,
        float_model=model,
        feed=feed,
        class_names=pictures.class_names,
        progress=True,
        **options,
    )
    with folder.written(run_folder.QUANTIZED_MODEL) as temporary:
        quantized.save(temporary)
    # Warnings of the certificate are printed with it.
    for warning in (text for text in report.warnings if text not in certificate.warnings):
        say(console, f"Note: {warning}")
    print_certificate(certificate, str(folder.file(run_folder.TFLITE_MODEL)), console)
    folder.write_text(run_folder.PREPROCESSING, pictures.preprocessing.to_json())
    write_layers(folder, layer_rows(quantized, feed(pictures.images[:SAMPLE])))
    if pictures.labels is not None:
        if pictures.class_names is not None:
            folder.write_text(run_folder.LABELS, label_text(pictures.class_names))
        results = Results(
            float_top1=certificate.top1["float"],
            quantized_top1=certificate.top1["quantized"],
            held_out_images=len(pictures.held_out),
            parameters=model.count_params(),
            seconds=time.monotonic() - begun,
            **of_certificate(certificate),
        )
        folder.write_json(run_folder.RESULTS, results.to_dict())
    write_report(folder)
    return certificate.is_exact
