"""The road of `sat-tf quantize`: calibrate, reconstruct, fine-tune, export, verify, report."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf import output_folder
from sat_tf.commands.images import QuantizationImages
from sat_tf.commands.policy import feed_of
from sat_tf.commands.verification_table import print_certificate
from sat_tf.exact.tflite.metadata import label_text
from sat_tf.exact.tflite.preprocessing import COVERING
from sat_tf.interruption import ending_of
from sat_tf.messages import RunError, first_ones, reason_of, say
from sat_tf.output_folder import OutputFolder
from sat_tf.presentation.progress_bar import image_bar
from sat_tf.presentation.tables import Marked, marked_text
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.reconstruction.fitted import Fitted, fit

if TYPE_CHECKING:
    import tf_keras as keras

    from sat_tf.qat.finetune import FineTuned
    from sat_tf.qat.reconstruction.fit import Checkpoint

_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationSettings:
    """What is done to a calibrated model before it is exported, and how it is told."""

    steps: int  # Of reconstruction for each block; 0 for none.
    epochs: int  # Of training; 0 for none.
    row: str  # What the float model's outputs are: see `finetune.row_of`.
    learning_rate: float | None  # The highest of the training; None has a trial choose it.
    seed: int  # Of all that is drawn.
    output_type: str | None  # See `sat_tf.export_tflite`.
    # Go on with what the folder holds unfinished (True), begin anew (False), or go on if there is
    # something (None).
    resume: bool | None
    is_verbose: bool  # Print all that is to be known of the file.


def write_quantized(
    model: "keras.Model",
    policy: BitPolicy,
    pictures: QuantizationImages,
    folder: OutputFolder,
    console: Console,
    settings: QuantizationSettings,
) -> None:
    """Quantizes a model, exports it, verifies the file, and writes results and a report."""
    if folder.holds_run:
        raise RunError(
            f"{folder.path}: received the folder of a run, expected one for other files; name one "
            "with --out."
        )
    from sat_tf.qat.finetune import remove_backups

    unfinished, backups = folder.file(output_folder.UNFINISHED), folder.file(output_folder.BACKUPS)
    if settings.resume and not (
        (settings.steps and unfinished.is_file()) or (settings.epochs and backups.is_dir())
    ):
        what = " or training" if settings.epochs else ""
        raise RunError(
            f"--resume: {folder.path}: received no unfinished reconstruction{what}, expected one; "
            "leave out --resume to begin a new one."
        )
    if settings.resume is False:
        unfinished.unlink(missing_ok=True)
        remove_backups(backups)
    from sat_tf.export.lowering.pipeline import snap_biases
    from sat_tf.qat.calibrate import calibrate
    from sat_tf.qat.images import fed_batches
    from sat_tf.qat.layout import GuessedClippingLevelsWarning
    from sat_tf.qat.reconstruction.fit import Checkpoint
    from sat_tf.qat.scheme import quantize_model
    from sat_tf.report.layers import SAMPLE, layer_rows
    from sat_tf.report.report import write_file, write_layers, write_report
    from sat_tf.report.results import Results, of_certificate
    from sat_tf.report.training import of_training

    begun = time.monotonic()
    held_out = pictures.held_out
    say(console, f"Calibrating on {len(pictures.images):,} images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
        quantized = quantize_model(model, policy)
    feed = feed_of(policy, model)
    batches = fed_batches(pictures.images, feed)
    calibrate(quantized, batches, num_images=len(pictures.images), keep_function=True)
    checkpoint = Checkpoint(
        unfinished, say=lambda words: say(console, words), is_expected=bool(settings.resume)
    )
    fitted, tuned = None, None
    with _saying_what_is_saved(checkpoint, folder), folder.opened():
        # Before all is done, only what an interrupted command goes on with is there.
        if settings.steps:
            fitted = _reconstructed(quantized, model, pictures, feed, console, checkpoint, settings)
        if settings.epochs:
            tuned = _trained(quantized, model, pictures, folder, console, checkpoint, settings)
        snap_biases(quantized)
        folder.start()  # what is there belongs to other pictures
        if fitted is not None:
            fitted.write(folder)
        preprocessing = COVERING if pictures.training.array is None else None
        class_names = pictures.training.class_names or None
        options: dict[str, Any] = {"output_type": settings.output_type}
        labels: Any = held_out.labels
        if len(model.outputs) == 1:  # as TFLite Metadata are
            options |= {"labels": class_names, "preprocessing": preprocessing}
        elif labels is not None:
            size = (pictures.num_classes,)
            labels = [labels if tuple(one.shape[1:]) == size else None for one in model.outputs]
        if tuned is not None and labels is None:
            # It tells the certificate that its outputs are classes: they were learned as such.
            model.compile(loss="sparse_categorical_crossentropy")
        say(console, f"Exporting, and verifying on {len(held_out.images):,} images")
        report, certificate = write_file(
            folder,
            quantized,
            (held_out.images, labels),
            images_from=held_out.source,
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
        if settings.is_verbose:
            print_certificate(certificate, str(folder.file(output_folder.TFLITE_MODEL)), console)
        else:
            must_be_seen = [Marked(f"Note: {text}", "watch") for text in certificate.warnings]
            notes = certificate.trained_notes + certificate.float_notes
            for note in [*(one for one in notes if one.kind == "bad"), *must_be_seen]:
                say(console, marked_text(note))
        if fitted is not None and fitted.kept and held_out.images is pictures.images:
            say(
                console,
                "Note: four in five of these pictures are those that it was fitted to; how it "
                "answers others stands above, behind its reconstruction.",
                style="yellow",
            )
        if preprocessing is not None:
            folder.write_text(output_folder.PREPROCESSING, preprocessing.to_json())
        write_layers(folder, layer_rows(quantized, feed(pictures.images[:SAMPLE])))
        if held_out.labels is not None and class_names is not None:
            folder.write_text(output_folder.LABELS, label_text(class_names))
        if held_out.labels is not None or tuned is not None:
            score = "agreement" if held_out.labels is None else "top1"
            of_models: dict[str, Any] = {}
            if held_out.labels is not None:
                of_models = {
                    "float_top1": certificate.top1["float"],
                    "quantized_top1": certificate.top1["quantized"],
                }
            if tuned is not None:
                kept = tuned.epochs[tuned.kept_epoch]
                of_models = {f"quantized_{score}": kept.score} | of_models
                of_models |= {
                    f"start_{score}": tuned.epochs[0].score,
                    "learning_rate": tuned.learning_rate,
                    "tried_learning_rates": tuned.tried or None,
                    "kept_epoch": tuned.kept_epoch,
                }
            results = Results(
                held_out_images=len(held_out.images),
                parameters=model.count_params(),
                seconds=time.monotonic() - begun,
                given_float_model=True,
                reconstruction=fitted,
                **of_models,
                **of_certificate(certificate),
            )
            folder.write_json(output_folder.RESULTS, results.to_dict())
        write_report(folder, **({} if tuned is None else of_training(tuned, results)))
    unfinished.unlink(missing_ok=True)
    remove_backups(backups)


@contextlib.contextmanager
def _saying_what_is_saved(checkpoint: "Checkpoint", folder: OutputFolder) -> Iterator[None]:
    """Lets an interruption say what the same command goes on with, and what is lost."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        word, _ = ending_of(interrupt)
        said = (
            f"saved in {folder.path}: {checkpoint.saved}; the same command goes on from there"
            if checkpoint.saved
            else "nothing is saved yet: the same command begins again"
        )
        raise type(interrupt)(f"{word}; {said}") from None


def _reconstructed(
    quantized: "keras.Model",
    model: "keras.Model",
    pictures: QuantizationImages,
    feed: Callable[[np.ndarray], np.ndarray],
    console: Console,
    checkpoint: "Checkpoint",
    settings: QuantizationSettings,
) -> Fitted | None:
    """Fits a calibrated model in place, and says what it gains; None where it stays as it is."""
    import tf_keras as keras

    from sat_tf.exact.top_k import classes_of
    from sat_tf.export.lowering.pipeline import snap_biases
    from sat_tf.qat.images import fed_batches

    labels = pictures.held_out.labels

    def measure() -> dict[str, float]:
        if labels is None:
            return {}
        snap_biases(quantized)
        size = (pictures.num_classes,)
        (of_classes,) = (one for one in quantized.outputs if tuple(one.shape[1:]) == size)
        classifier = keras.Model(quantized.inputs, of_classes)
        batches = fed_batches(pictures.held_out.images, feed, batch_size=_BATCH_SIZE)
        found = classifier.predict(batches, verbose=0)
        return {"top1": float(np.mean(classes_of(found) == labels))}

    say(console, f"Reconstructing, {settings.steps} steps a block")
    try:
        fitted = fit(
            quantized,
            model,
            fed_batches(pictures.images, feed),
            num_images=len(pictures.images),
            steps=settings.steps,
            seed=settings.seed,
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


def _trained(
    quantized: "keras.Model",
    model: "keras.Model",
    pictures: QuantizationImages,
    folder: OutputFolder,
    console: Console,
    checkpoint: "Checkpoint",
    settings: QuantizationSettings,
) -> "FineTuned":
    """Trains a calibrated model in place, and says what that gains."""
    import tensorflow as tf
    import tf_keras as keras

    from sat_tf.export.lowering.pipeline import snap_biases
    from sat_tf.qat.finetune import finetune

    if pictures.training.labels is None:
        say(
            console,
            "No labels: the float model is the only teacher, and agreement is the share of its "
            "answers.",
        )
        if settings.row == "logits":
            say(
                console,
                "Note: the outputs are taken for logits of classes, which nothing in the model "
                "tells from coordinates and other values; leave out --epochs where they are such.",
                style="yellow",
            )
    # One without an integer form is refused before it is trained.
    snap_biases(quantized)
    batch_size = min(_BATCH_SIZE, len(pictures.training))
    total = settings.epochs * (len(pictures.training) // batch_size) * batch_size

    saved = [0]  # epochs

    def note(epochs: int) -> None:
        saved.append(epochs)
        checkpoint.saved = f"{epochs} of {settings.epochs} epochs of the training"

    with image_bar("training", total) as advance:

        def begin(epoch: int, logs: Any) -> None:
            if epoch > saved[-1]:  # of an earlier process
                advance.skip(epoch * total // settings.epochs)
                note(epoch)

        told = keras.callbacks.LambdaCallback(
            on_epoch_begin=begin,
            on_train_batch_end=lambda batch, logs: advance(batch_size),
            on_epoch_end=lambda epoch, logs: note(epoch + 1),
        )
        try:
            tuned = finetune(
                quantized,
                model,
                pictures.training,
                pictures.training.labels,
                held_out=(pictures.held_out.images, pictures.held_out.labels),
                sample=pictures.images,
                epochs=settings.epochs,
                learning_rate=settings.learning_rate,
                batch_size=batch_size,
                seed=settings.seed,
                row=settings.row,
                folder=folder.file(output_folder.BACKUPS),
                is_expected=bool(settings.resume) and not settings.steps,
                finish=snap_biases,
                say=lambda words: say(console, words),
                callbacks=[told],
            )
        except tf.errors.OpError as error:
            if str(folder.path) not in error.message:
                raise
            raise RunError(
                f"{folder.path}: can no longer be written to ({reason_of(error)}), expected a "
                "writable folder until the end; free some space, or fix its permissions.\nThen "
                "the same command goes on from the last epoch."
            ) from error
    epoch = tuned.kept_epoch
    which = f"that of epoch {epoch}" if epoch else "the one before training: no epoch was better"
    say(console, f"Kept is the best model on the held-out pictures, {which}.")
    if tuned.passed_over:
        paths = getattr(pictures.training, "paths", tuned.passed_over)
        names = first_ones([str(paths[place]) for place in tuned.passed_over])
        count = f"{len(tuned.passed_over):,} pictures to train on"
        say(console, f"Note: {count} could not be read: {names}", style="yellow")
    return tuned
