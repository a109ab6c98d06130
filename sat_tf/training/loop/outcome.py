"""The end of a run: export, verification, results and report."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sat_tf import output_folder
from sat_tf.exact.certificate.inputs import ImagesFrom
from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.evaluate import evaluate_tflite
from sat_tf.graph.network import Network
from sat_tf.messages import RunError, say
from sat_tf.messages.tables import marked_text
from sat_tf.output_folder import TFLITE_MODEL
from sat_tf.qat.inputs import takes_pixels
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import known_weights
from sat_tf.qat.reconstruction.fitted import Fitted
from sat_tf.report import report
from sat_tf.report.curves import epochs_table, learning_curves
from sat_tf.report.layers import SAMPLE, layer_rows
from sat_tf.report.report import write_file
from sat_tf.report.results import Results, of_certificate
from sat_tf.training.config import Config
from sat_tf.training.data.source import NO_LABEL
from sat_tf.training.loop.stage import Run
from sat_tf.training.run_folder import EPOCHS, EpochMetrics, RunFolder

_BATCH_SIZE = 64
# The file of a run is measured on all held-out images if they are no more, which takes a minute.
_MOST_MEASURED = 10_000


def write_tflite(run: Run) -> None:
    """Writes the TFLite file and its certificate, and measures the file on held-out images."""
    folder, source, config = run.folder, run.source, run.config.export
    quantized, path = run.models["quantized"], folder.file(TFLITE_MODEL)
    pixels, labels = source.held_out_sample(config.verify_images)
    run.say(f"file       exporting, and verifying on {len(pixels):,} held-out images")
    is_of_pixels = takes_pixels(Network(quantized))
    try:
        report, certificate = write_file(
            folder,
            quantized,
            (pixels if is_of_pixels else pixels.astype(np.float32), labels),
            images_from=ImagesFrom.held_out(source.name, config.verify_images, source.decoder),
            float_model=run.models["float"],
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
    run.of_file.update(of_certificate(certificate))
    num_held_out = run.num_held_out
    if certificate.num_images >= num_held_out or num_held_out > _MOST_MEASURED:
        return
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
    run.of_file.update(shares, tflite_images=measured.num_images)


def measure_layers(run: Run) -> None:
    """Writes the table of the quantized model's layers."""
    run.say("report     measuring each layer")
    sample = run.source.training_sample(SAMPLE, seed=run.config.seed)
    rows = layer_rows(run.models["quantized"], run.input_range.fed(sample))
    report.write_layers(run.folder, rows)


def write_results(run: Run) -> None:
    """Writes the results of a run."""
    metrics, stage = run.state.stages, run.config.stages.quantized
    entries: dict[str, Any] = {
        f"{name}_{share}": metrics[name].get(share)
        for name in metrics
        for share in ("top1", "top5")
    }
    for row in run.rows:
        if row.epoch == 0:  # only the start of the quantized stage is measured
            entries |= {"start_top1": row.held_out_top1, "start_top5": row.held_out_top5}
    entries["kept_epoch"] = metrics.get("quantized", {}).get("kept_epoch")
    results = Results(
        held_out_images=run.num_held_out,
        parameters=sum(inner_layer(layer).count_params() for layer in run.models["float"].layers),
        given_float_model=run.config.training.float_model is not None,
        learning_rate=stage.peak_learning_rate if stage is not None and stage.trains else None,
        reconstruction=Fitted.read(run.folder),
        **entries,
        **run.of_file,
        seconds=run.state.seconds_so_far(),
    )
    run.folder.write_json(output_folder.RESULTS, results.to_dict())


def write_report(folder: RunFolder, config: Config) -> None:
    """Writes report.html from the files of a run."""
    epochs, recipes = EpochMetrics.read(folder), config.recipes
    # These are given to a model in training besides the labels.
    of_recipes = {"the teacher": recipes.distillation, "smoothed labels": recipes.label_smoothing}
    targets = " and ".join(words for words, recipe in of_recipes.items() if recipe is not None)
    report.write_report(
        folder,
        name=config.name,
        is_run=folder.holds_run,
        weights_by=_weights(config.policy),
        curves=learning_curves(epochs, EPOCHS, targets=targets) if epochs else [],
        num_epochs=len(epochs),
        epochs=epochs_table(epochs, EPOCHS),
        environment=folder.environment,
        config=folder.read_text(output_folder.CONFIG),
    )


def _weights(policy: BitPolicy) -> str:
    """Names the quantizer of the weights of inner layers, and the reason for it."""
    name = known_weights(policy.to_dict())
    if policy.weight_quantizer is not None:
        return name
    is_best = name == known_weights({"weight_bits": policy.weight_bits})
    best = f", and it is the best known at {policy.weight_bits} bits" if is_best else ""
    return f"{name}: the policy names none{best}"
