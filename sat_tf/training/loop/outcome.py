"""The end of a run: export, verification, results and report."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf import output_folder
from sat_tf.exact.certificate.inputs import ImagesFrom
from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.evaluate import evaluate_tflite
from sat_tf.graph.network import Network
from sat_tf.loading.load import load_model
from sat_tf.messages import RunError, say
from sat_tf.output_folder import TFLITE_MODEL
from sat_tf.presentation.tables import marked_text
from sat_tf.qat.inputs import takes_pixels
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import known_weights
from sat_tf.qat.reconstruction.fitted import Fitted
from sat_tf.report import report
from sat_tf.report.curves import epochs_table, learning_curves
from sat_tf.report.layers import SAMPLE, layer_rows
from sat_tf.report.report import write_file
from sat_tf.report.results import Results, of_certificate
from sat_tf.training import run_folder
from sat_tf.training.config import Config
from sat_tf.training.data.source import NO_LABEL
from sat_tf.training.loop.stage import Run
from sat_tf.training.run_folder import EPOCHS, EpochMetrics, RunFolder, RunState

_BATCH_SIZE = 64
# The file of a run is measured on all held-out images if they are no more, which takes a minute.
_MOST_MEASURED = 10_000


def conclude(run: Run, state: RunState, model: keras.Model, *, parameters: int) -> Results:
    """Exports and verifies the model of a run, and writes its results and report."""
    folder, stage = run.folder, run.config.stages.quantized
    accuracies: dict[str, Any] = {
        f"{stage}_{metric}": metrics.get(metric)
        for stage, metrics in state.stages.items()
        for metric in ("top1", "top5")
    }
    num_held_out = int(state.stages["float"].get("images", run.source.num_test))
    training: dict[str, Any] = {}
    if stage is not None and stage.trains:
        training = {
            "learning_rate": stage.peak_learning_rate,
            "kept_epoch": state.stages["quantized"].get("kept_epoch"),
        }
        # These have the digits of the file, because a resumed run has no others.
        for row in EpochMetrics.read(folder):
            if (row.stage, row.epoch) == ("quantized", 0):
                training |= {"start_top1": row.held_out_top1, "start_top5": row.held_out_top5}
    results = Results(
        held_out_images=num_held_out,
        parameters=parameters,
        **accuracies,
        given_float_model=run.config.training.float_model is not None,
        **training,
        reconstruction=Fitted.read(folder),
        **({} if stage is None else _of_file(run, model, num_held_out)),
        seconds=state.seconds_so_far(),
    )
    folder.write_json(output_folder.RESULTS, results.to_dict())
    if stage is not None:
        run.say("report     measuring each layer")
        sample = run.source.training_sample(SAMPLE, seed=run.config.seed)
        report.write_layers(folder, layer_rows(model, run.input_range.fed(sample)))
    write_report(folder, run.config)
    shutil.rmtree(folder.file(run_folder.CHECKPOINTS), ignore_errors=True)
    folder.file(output_folder.UNFINISHED).unlink(missing_ok=True)
    return results


def _of_file(run: Run, quantized: keras.Model, num_held_out: int) -> dict[str, Any]:
    """Writes the file and its certificate; returns their entries in the results."""
    folder, source, config = run.folder, run.source, run.config.export
    path = folder.file(TFLITE_MODEL)
    floats = folder.file(output_folder.FLOAT_MODEL)
    is_safe = not run.config.training.trust_model
    float_model = load_model(floats, safe_mode=is_safe) if floats.is_file() else None
    pixels, labels = source.held_out_sample(config.verify_images)
    run.say(f"file       exporting, and verifying on {len(pixels):,} held-out images")
    is_of_pixels = takes_pixels(Network(quantized))
    try:
        report, certificate = write_file(
            folder,
            quantized,
            (pixels if is_of_pixels else pixels.astype(np.float32), labels),
            images_from=ImagesFrom.held_out(source.name, config.verify_images, source.decoder),
            float_model=float_model,
            progress=True,
            float_head=config.float_head,
            pack=config.pack,
            target=run.config.policy.processor.name,
            softmax=config.softmax,
            output_type=config.output_type,
            labels=source.class_names,
            preprocessing=source.preprocessing if is_of_pixels else None,
        )
    except ValueError as error:
        raise RunError(f"{error}\nThe trained models are in {folder.path}.") from error
    for note in certificate.trained_notes + certificate.float_notes:
        say(run.console, marked_text(note))
    for warning in report.warnings:
        run.say(f"Note: {warning}")
    for statement in report.on_target:
        run.say(statement.words)
    entries = of_certificate(certificate)
    if certificate.num_images >= num_held_out or num_held_out > _MOST_MEASURED:
        return entries
    run.say(f"file       measuring its top-1 on all {num_held_out:,} held-out images")
    dtype = read_subject(path).graph.images[0].type
    batches = source.held_out_batches(batch_size=_BATCH_SIZE)

    def examples() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for pixels, labels in batches.as_numpy_iterator():
            pixels, labels = pixels[labels != NO_LABEL], labels[labels != NO_LABEL]
            yield pixels.astype(dtype), labels

    tops = (1, 5) if source.num_classes > 5 else (1,)
    measured = evaluate_tflite(path, examples(), top=tops, progress=True)
    shares = {"tflite_top1": measured.top[1], "tflite_top5": measured.top.get(5)}
    return {**entries, **shares, "tflite_images": measured.num_images}


def write_report(folder: RunFolder, config: Config) -> None:
    """Writes report.html from the files of a run."""
    epochs = EpochMetrics.read(folder)
    results = Results.read(folder) if folder.file(output_folder.RESULTS).exists() else None
    of_run: dict[str, Any] = {
        "name": config.name,
        "is_run": folder.holds_run,
        "curves": learning_curves(epochs, EPOCHS, targets=_targets(config)) if epochs else [],
        "num_epochs": len(epochs),
        "epochs": epochs_table(epochs, EPOCHS),
        "environment": folder.environment,
        "config": folder.read_text(output_folder.CONFIG),
    }
    if results is not None and (results.rate() or results.kept()):
        of_run["training"] = {
            "Learning rate": results.rate(),
            "Weights of epoch": results.kept(),
            "Weights by": _weights(config.policy),
        }
    report.write_report(folder, **of_run, **({"verb": "Trained"} if epochs else {}))


def _weights(policy: BitPolicy) -> str:
    """Names the quantizer of the weights of inner layers, and the reason for it."""
    name = known_weights(policy.to_dict())
    if policy.weight_quantizer is not None:
        return name
    is_best = name == known_weights({"weight_bits": policy.weight_bits})
    best = f", and it is the best known at {policy.weight_bits} bits" if is_best else ""
    return f"{name}: the policy names none{best}"


def _targets(config: Config) -> str:
    """Names the targets that recipes give a model in training besides the labels."""
    recipes = config.recipes
    targets = {"the teacher": recipes.distillation, "smoothed labels": recipes.label_smoothing}
    return " and ".join(words for words, recipe in targets.items() if recipe is not None)
