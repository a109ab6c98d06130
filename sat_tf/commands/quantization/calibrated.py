"""`sat-tf quantize` without a run: a model that is calibrated, and reconstructed, into a file."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf import output_folder
from sat_tf.commands.options import open_folder
from sat_tf.commands.quantization.pictures import Pictures
from sat_tf.commands.quantization.policy import feed_of
from sat_tf.commands.verification_table import print_certificate
from sat_tf.export.tflite.metadata import label_text
from sat_tf.interruption import Terminated
from sat_tf.messages import RunError, say
from sat_tf.output_folder import OutputFolder
from sat_tf.presentation.tables import Marked, marked_text
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.reconstruction.fitted import Fitted, fit

if TYPE_CHECKING:
    import tf_keras as keras

    from sat_tf.qat.reconstruction.checkpoint import Checkpoint

_BATCH_SIZE = 32


def write_calibrated(
    model: "keras.Model",
    policy: BitPolicy,
    pictures: Pictures,
    folder: OutputFolder,
    console: Console,
    *,
    steps: int,
    seed: int,
    output_type: str | None,
    resume: bool | None,
    is_verbose: bool,
) -> None:
    """Calibrates, exports and verifies, without a run.

    The folder gets a report too: with labels, the results and the answers are in it.

    Args:
        model: the float model.
        policy: states its input range.
        pictures: to calibrate and to measure on.
        folder: where the files go.
        console: where to show progress.
        steps: of reconstruction for each block; 0 for none.
        seed: of all that is drawn.
        output_type: see `sat_tf.export_tflite`.
        resume: go on with the reconstruction that the folder holds (True), begin a new one (False),
            or go on if there is one (None).
        is_verbose: print all that is to be known of the file.

    Raises:
        RunError: the folder holds a run, or nothing to resume.
        ValueError: the model has no integer form.
    """
    if folder.holds_run:
        raise RunError(
            f"{folder.path}: received the folder of a run, expected one for other files; name one "
            "with --out."
        )
    unfinished = folder.file(output_folder.UNFINISHED)
    if resume and not (steps and unfinished.is_file()):
        raise RunError(
            f"--resume: {folder.path}: received no unfinished reconstruction, expected one; leave "
            "out --resume to begin a new one."
        )
    if resume is False:
        unfinished.unlink(missing_ok=True)
    from sat_tf.export.snapping import snap_biases
    from sat_tf.qat.calibrate import calibrate
    from sat_tf.qat.images import fed_batches
    from sat_tf.qat.layout import GuessedClippingLevelsWarning
    from sat_tf.qat.reconstruction.checkpoint import Checkpoint
    from sat_tf.qat.scheme import quantize_model
    from sat_tf.report.certified_file import write_file
    from sat_tf.report.layers import SAMPLE, layer_rows
    from sat_tf.report.report import write_layers, write_report
    from sat_tf.report.results import Results, of_certificate

    begun = time.monotonic()
    say(console, f"Calibrating on {len(pictures.images):,} images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
        quantized = quantize_model(model, policy)
    feed = feed_of(policy, model)
    batches = fed_batches(pictures.images, feed)
    calibrate(quantized, batches, num_images=len(pictures.images), keep_function=True)
    checkpoint = Checkpoint(
        unfinished, say=lambda words: say(console, words), is_expected=bool(resume)
    )
    with _told_what_is_saved(checkpoint, folder) if steps else contextlib.nullcontext():
        fitted = None
        if steps:
            with open_folder(folder.path):  # before it is done, only its state is there
                fitted = _reconstructed(
                    quantized, model, pictures, feed, console, checkpoint, steps=steps, seed=seed
                )
        snap_biases(quantized)
        folder.start()  # what is there belongs to other pictures
        if fitted is not None:
            fitted.write(folder)
        options: dict[str, Any] = {"output_type": output_type}
        labels: Any = pictures.labels
        if len(model.outputs) == 1:  # as TFLite Metadata are
            options |= {"labels": pictures.class_names, "preprocessing": pictures.preprocessing}
        elif labels is not None:
            size = (pictures.num_classes,)
            labels = [labels if tuple(one.shape[1:]) == size else None for one in model.outputs]
        say(console, f"Exporting, and verifying on {len(pictures.held_out):,} images")
        report, certificate = write_file(
            folder,
            quantized,
            (pictures.held_out, labels),
            images_from=pictures.images_from,
            float_model=model,
            progress=True,
            **options,
        )
        with folder.written(output_folder.QUANTIZED_MODEL) as temporary:
            quantized.save(temporary)
        # Warnings of the certificate are printed with it.
        for warning in (text for text in report.warnings if text not in certificate.warnings):
            say(console, f"Note: {warning}")
        for statement in report.on_target:
            say(console, marked_text(statement))
        if is_verbose:
            print_certificate(certificate, str(folder.file(output_folder.TFLITE_MODEL)), console)
        else:
            must_be_seen = [Marked(f"Note: {text}", "watch") for text in certificate.warnings]
            notes = certificate.trained_notes + certificate.float_notes
            for note in [*(one for one in notes if one.kind == "bad"), *must_be_seen]:
                say(console, marked_text(note))
        if fitted is not None and fitted.kept and pictures.held_out is pictures.images:
            say(
                console,
                "Note: four in five of these pictures are those that it was fitted to; how it "
                "answers others stands above, behind its reconstruction.",
                style="yellow",
            )
        if pictures.preprocessing is not None:
            folder.write_text(output_folder.PREPROCESSING, pictures.preprocessing.to_json())
        write_layers(folder, layer_rows(quantized, feed(pictures.images[:SAMPLE])))
        if pictures.labels is not None:
            if pictures.class_names is not None:
                folder.write_text(output_folder.LABELS, label_text(pictures.class_names))
            results = Results(
                float_top1=certificate.top1["float"],
                quantized_top1=certificate.top1["quantized"],
                held_out_images=len(pictures.held_out),
                parameters=model.count_params(),
                seconds=time.monotonic() - begun,
                reconstruction=fitted,
                **of_certificate(certificate),
            )
            folder.write_json(output_folder.RESULTS, results.to_dict())
        write_report(folder)
    unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _told_what_is_saved(checkpoint: "Checkpoint", folder: OutputFolder) -> Iterator[None]:
    """Lets an interruption say what the same command goes on with, and what is lost."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        word = "terminated" if isinstance(interrupt, Terminated) else "interrupted"
        said = (
            f"saved in {folder.path}: {checkpoint.saved}; the same command goes on from there"
            if checkpoint.saved
            else "nothing is saved yet: the same command begins again"
        )
        raise type(interrupt)(f"{word}; {said}") from None


def _reconstructed(
    quantized: "keras.Model",
    model: "keras.Model",
    pictures: Pictures,
    feed: Callable[[np.ndarray], np.ndarray],
    console: Console,
    checkpoint: "Checkpoint",
    *,
    steps: int,
    seed: int,
) -> Fitted | None:
    """Fits a calibrated model in place, and says what it gains; None where it stays as it is."""
    import tf_keras as keras

    from sat_tf.export.snapping import snap_biases
    from sat_tf.qat.images import fed_batches
    from sat_tf.top_k import classes_of

    labels = pictures.labels

    def measure() -> dict[str, float]:
        if labels is None:
            return {}
        snap_biases(quantized)
        size = (pictures.num_classes,)
        (of_classes,) = (one for one in quantized.outputs if tuple(one.shape[1:]) == size)
        classifier = keras.Model(quantized.inputs, of_classes)
        batches = fed_batches(pictures.held_out, feed, batch_size=_BATCH_SIZE)
        found = classifier.predict(batches, verbose=0)
        return {"top1": float(np.mean(classes_of(found) == labels))}

    say(console, f"Reconstructing, {steps} steps a block")
    try:
        fitted = fit(
            quantized,
            model,
            fed_batches(pictures.images, feed),
            num_images=len(pictures.images),
            steps=steps,
            seed=seed,
            measure=measure,
            keep_better=True,
            checkpoint=checkpoint,
        )
    except RunError:
        raise  # there is nothing to resume
    except ValueError as error:
        say(console, f"Note: calibrated only. {error}", style="yellow")
        return None
    say(console, f"Reconstructed {fitted.how}: {fitted.gained}")
    return fitted
