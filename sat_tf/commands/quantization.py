"""The steps of `sat-tf quantize`: calibrate, reconstruct, fine-tune, export, verify, report."""

import argparse
import dataclasses
import functools
import platform
import shutil
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf import output_folder
from sat_tf.commands.images import QuantizationImages
from sat_tf.commands.policy import feed_of
from sat_tf.commands.verification_table import print_certificate
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.tflite.c_source import array_source, header_source
from sat_tf.exact.tflite.metadata import label_text
from sat_tf.exact.tflite.preprocessing import COVERING
from sat_tf.exact.top_k import classes_of
from sat_tf.export.lowering.pipeline import snap_biases
from sat_tf.files import read_bytes, remove_folder
from sat_tf.interruption import ending_of
from sat_tf.messages import RunError, first_ones, reason_of, say
from sat_tf.messages.progress_bar import image_bar
from sat_tf.messages.tables import Marked, marked_text
from sat_tf.output_folder import OutputFolder
from sat_tf.qat.calibrate import calibrate
from sat_tf.qat.finetune import FineTuned, finetune
from sat_tf.qat.images import fed_batches
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.reconstruction.fit import Checkpoint
from sat_tf.qat.reconstruction.fitted import Fitted, fit
from sat_tf.qat.scheme import quantize_model
from sat_tf.report.layer_table import SAMPLE, layer_rows
from sat_tf.report.report import of_training, write_file, write_layers, write_report
from sat_tf.report.results import Results, of_certificate

_BATCH_SIZE = 32
_BACKUPS = "training_backup"  # a folder: an interrupted training, which no start moves aside


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationRun:
    """The quantization of a float model: its policy, its pictures, and the folder for its files."""

    model: keras.Model
    policy: BitPolicy
    pictures: QuantizationImages
    folder: OutputFolder
    console: Console
    row: str  # The kind of the float model's outputs: see `row_of`.
    steps: int  # Steps of reconstruction for each block; 0 for none.
    arguments: argparse.Namespace  # The arguments of the command.

    def write(self) -> tuple[Certificate, Results | None]:
        """Quantizes the model, exports it, verifies the file, and writes results and a report.

        Without labels and without training there are no results.
        """
        self._expect_unfinished()
        begun, pictures, folder = time.monotonic(), self.pictures, self.folder
        unfinished = folder.file(output_folder.UNFINISHED)
        backups = folder.file(_BACKUPS)
        if self.arguments.resume is False:
            unfinished.unlink(missing_ok=True)
            if backups.is_dir():
                shutil.rmtree(backups)
        say(self.console, f"Calibrating on {len(pictures.images):,} images")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
            quantized = quantize_model(self.model, self.policy)
        images = pictures.images
        calibrate(quantized, images, num_images=len(images), keep_function=True)
        feed = feed_of(self.policy, self.model)
        checkpoint = Checkpoint(
            unfinished,
            say=functools.partial(say, self.console),
            is_expected=bool(self.arguments.resume),
        )
        fitted, tuned = None, None
        try:
            with folder.opened():
                # Until all is done, the folder has only what an interrupted command goes on with.
                if self.steps:
                    fitted = self._reconstruct(quantized, feed, checkpoint)
                if self.arguments.epochs:
                    tuned = self._train(quantized, checkpoint)
                self._snap_biases(quantized)
                folder.start()  # old files belong to other pictures
                if fitted is not None:
                    fitted.write(folder)
                certificate = self._export(quantized, is_trained=tuned is not None)
                if fitted is not None and fitted.kept and pictures.held_out.images is images:
                    self._note(
                        "the model was fitted to most of these pictures; the line of its "
                        "reconstruction, above, tells how it answers others."
                    )
                write_layers(folder, layer_rows(quantized, feed(images[:SAMPLE])))
                measured: dict[str, Any] = {}
                has_labels = pictures.held_out.labels is not None
                if tuned is not None:
                    score = "top1" if has_labels else "agreement"
                    measured = {
                        f"quantized_{score}": tuned.epochs[tuned.kept_epoch].score,
                        f"start_{score}": tuned.epochs[0].score,
                        "learning_rate": tuned.learning_rate,
                        "tried_learning_rates": tuned.tried or None,
                        "kept_epoch": tuned.kept_epoch,
                    }
                if has_labels:
                    measured["float_top1"] = certificate.top1["float"]
                    measured["quantized_top1"] = certificate.top1["quantized"]
                results = Results(
                    held_out_images=len(pictures.held_out.images),
                    parameters=self.model.count_params(),
                    seconds=time.monotonic() - begun,
                    given_float_model=True,
                    reconstruction=fitted,
                    **measured,
                    **of_certificate(certificate),
                )
                if measured:
                    folder.write_json(output_folder.RESULTS, results.to_dict())
                write_report(folder, **({} if tuned is None else of_training(tuned, results)))
        except KeyboardInterrupt as interrupt:
            saved = "nothing is saved yet: the same command begins again"
            if checkpoint.saved:
                saved = f"saved in {folder.path}: {checkpoint.saved}; the same command goes on"
            raise type(interrupt)(f"{ending_of(interrupt)[0]}; {saved}") from None
        unfinished.unlink(missing_ok=True)
        remove_folder(backups)
        return certificate, results if measured else None

    def _snap_biases(self, quantized: keras.Model) -> None:
        snap_biases(quantized, pack=self.arguments.pack)

    def _note(self, text: str) -> None:
        say(self.console, f"Note: {text}", style="yellow")

    def _expect_unfinished(self) -> None:
        """Refuses the folder of a run, and --resume without anything to resume."""
        folder = self.folder
        if folder.file(output_folder.CONFIG).is_file():
            raise RunError(
                f"{folder.path}: received the folder of a run, expected one for other files; name "
                "one with --out."
            )
        is_reconstructing = self.steps and folder.file(output_folder.UNFINISHED).is_file()
        is_training = self.arguments.epochs and folder.file(_BACKUPS).is_dir()
        if self.arguments.resume and not (is_reconstructing or is_training):
            what = " or training" if self.arguments.epochs else ""
            raise RunError(
                f"--resume: {folder.path}: received no unfinished reconstruction{what}, expected "
                "one; leave out --resume to begin a new one."
            )

    def _export(self, quantized: keras.Model, *, is_trained: bool) -> Certificate:
        """Writes the file, its certificate and the model; prints notes on them."""
        pictures, held_out, folder = self.pictures, self.pictures.held_out, self.folder
        preprocessing = COVERING if pictures.training.array is None else None
        class_names = pictures.training.class_names or None
        options: dict[str, Any] = {
            "output_type": self.arguments.output_type,
            "pack": self.arguments.pack,
        }
        labels: Any = held_out.labels
        if len(self.model.outputs) == 1:  # TFLite Metadata describe one output
            options |= {"labels": class_names, "preprocessing": preprocessing}
        elif labels is not None:
            size = (pictures.num_classes,)
            shapes = [tuple(output.shape[1:]) for output in self.model.outputs]
            labels = [labels if shape == size else None for shape in shapes]
        if is_trained and labels is None:
            # The loss tells the certificate that outputs are classes: they were learned as such.
            self.model.compile(loss="sparse_categorical_crossentropy")
        say(self.console, f"Exporting, and verifying on {len(held_out.images):,} images")
        report, certificate = write_file(
            folder,
            quantized,
            (held_out.images, labels),
            images_from=held_out.source,
            float_model=self.model,
            progress=True,
            **options,
        )
        if self.policy.processor.on_microcontrollers:
            content = read_bytes(folder.file(output_folder.TFLITE_MODEL))
            sizes = len(content), report.operators, report.arena_bytes, platform.machine()
            folder.write_text(output_folder.C_ARRAY, array_source(content))
            folder.write_text(output_folder.C_HEADER, header_source(quantized.name, *sizes))
        with folder.written(output_folder.QUANTIZED_MODEL) as temporary:
            quantized.save(temporary)
        if preprocessing is not None:
            folder.write_text(output_folder.PREPROCESSING, preprocessing.to_json())
        if held_out.labels is not None and class_names is not None:
            folder.write_text(output_folder.LABELS, label_text(class_names))
        # Warnings of the certificate are printed with it.
        for warning in (text for text in report.warnings if text not in certificate.warnings):
            say(self.console, f"Note: {warning}")
        for statement in report.on_target:
            say(self.console, marked_text(statement))
        if self.arguments.verbose:
            path = str(folder.file(output_folder.TFLITE_MODEL))
            print_certificate(certificate, path, self.console)
            return certificate
        notes = certificate.trained_notes + certificate.float_notes
        must_be_seen = [Marked(f"Note: {text}", "watch") for text in certificate.warnings]
        for note in [*(note for note in notes if note.kind == "bad"), *must_be_seen]:
            say(self.console, marked_text(note))
        return certificate

    def _reconstruct(
        self,
        quantized: keras.Model,
        feed: Callable[[np.ndarray], np.ndarray],
        checkpoint: Checkpoint,
    ) -> Fitted | None:
        """Fits a calibrated model in place, and prints the gain; None where it cannot be fitted."""
        pictures = self.pictures

        def measure() -> dict[str, float]:
            if pictures.held_out.labels is None:
                return {}
            self._snap_biases(quantized)
            size = (pictures.num_classes,)
            (of_classes,) = (head for head in quantized.outputs if tuple(head.shape[1:]) == size)
            classifier = keras.Model(quantized.inputs, of_classes)
            batches = fed_batches(pictures.held_out.images, feed, batch_size=_BATCH_SIZE)
            classes = classes_of(classifier.predict(batches, verbose=0))
            return {"top1": float(np.mean(classes == pictures.held_out.labels))}

        say(self.console, f"Reconstructing, {self.steps} steps a block")
        try:
            fitted = fit(
                quantized,
                self.model,
                pictures.images,
                num_images=len(pictures.images),
                steps=self.steps,
                seed=self.arguments.seed,
                measure=measure,
                keep_better=True,
                checkpoint=checkpoint,
            )
        except RunError:
            raise  # there is nothing to resume
        except ValueError as error:
            self._note(f"calibrated only. {error}")
            return None
        say(self.console, f"Reconstructed {fitted.how}: {fitted.gained}")
        return fitted

    def _train(self, quantized: keras.Model, checkpoint: Checkpoint) -> FineTuned:
        """Trains a calibrated model in place, and prints which epoch is kept."""
        pictures, training, folder = self.pictures, self.pictures.training, self.folder
        if training.labels is None:
            say(
                self.console,
                "No labels: the float model is the only teacher, and agreement is the share of its "
                "answers.",
            )
            if self.row == "logits":
                self._note(
                    "the outputs are taken for logits of classes, which nothing in the model tells "
                    "from coordinates and other values; leave out --epochs where they are such."
                )
        # A model without an integer form is refused before it is trained.
        self._snap_biases(quantized)
        batch_size = min(_BATCH_SIZE, len(training))
        total = self.arguments.epochs * (len(training) // batch_size) * batch_size
        saved = [0]  # epochs

        def note(epochs: int) -> None:
            saved.append(epochs)
            checkpoint.saved = f"{epochs} of {self.arguments.epochs} epochs of the training"

        with image_bar("training", total) as advance:

            def begin(epoch: int, logs: Any) -> None:
                if epoch > saved[-1]:  # an earlier process has trained so far
                    advance.skip(epoch * total // self.arguments.epochs)
                    note(epoch)

            told = keras.callbacks.LambdaCallback(
                on_epoch_begin=begin,
                on_train_batch_end=lambda batch, logs: advance(batch_size),
                on_epoch_end=lambda epoch, logs: note(epoch + 1),
            )
            try:
                tuned = finetune(
                    quantized,
                    self.model,
                    training,
                    training.labels,
                    held_out=(pictures.held_out.images, pictures.held_out.labels),
                    sample=pictures.images,
                    epochs=self.arguments.epochs,
                    learning_rate=self.arguments.learning_rate,
                    transition_rate=self.arguments.transition_rate,
                    batch_size=batch_size,
                    seed=self.arguments.seed,
                    folder=folder.file(_BACKUPS),
                    is_expected=bool(self.arguments.resume) and not self.steps,
                    finish=self._snap_biases,
                    say=functools.partial(say, self.console),
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
        say(
            self.console,
            "Kept is the best model on the held-out pictures, that of epoch "
            f"{tuned.kept_epoch}; 0 is the one before training.",
        )
        if tuned.passed_over:
            paths = getattr(training, "paths", tuned.passed_over)
            names = first_ones([str(paths[place]) for place in tuned.passed_over])
            count = f"{len(tuned.passed_over):,} pictures to train on"
            self._note(f"{count} could not be read: {names}")
        return tuned
