"""The end of a run: export, proof, results, curves and report."""

import shutil
from typing import Any

import tf_keras as keras
from rich.markup import escape

from sat_tf.analysis.layers import layer_rows
from sat_tf.export.deployed import DeployedModel
from sat_tf.training import run_folder
from sat_tf.training.curves import draw_curves
from sat_tf.training.deployment import deploy
from sat_tf.training.report import write_layers, write_report
from sat_tf.training.results import Results
from sat_tf.training.run_state import RunState
from sat_tf.training.stage import SAMPLE, Run


def conclude(run: Run, state: RunState, model: keras.Model | None, *, parameters: int) -> Results:
    """Exports and verifies the model of a run, and writes its results, curves and report.

    Args:
        run: whose stages are done.
        state: what they have achieved.
        model: the quantized model, or its deployed one; None where the run ends in floats.
        parameters: of the float model.

    Raises:
        RunError: the model has no integer form.
    """
    folder = run.folder
    tuned = folder.file(run_folder.TUNED_MODEL)
    if tuned.is_file():
        tuned.replace(folder.file(run_folder.QUANTIZED_MODEL))
    with folder.written(run_folder.CURVES) as temporary:
        draw_curves(run.rows, run.config.name, temporary)
    accuracies: dict[str, Any] = {
        f"{name}_{metric}": state.stages[stage][metric]
        for name, stage in (
            ("float", "float"),
            ("quantized", "quantized"),
            ("deployed", "deploy_tail"),
        )
        if stage in state.stages
        for metric in ("top1", "top5")
    }
    results = Results(
        held_out_images=run.source.num_test,
        parameters=parameters,
        **accuracies,
        **({} if model is None else _of_file(run, model)),
        seconds=state.seconds_so_far(),
    )
    folder.write_json(run_folder.RESULTS, results.to_dict())
    if model is not None:
        quantized = model.quantized if isinstance(model, DeployedModel) else model
        sample = run.source.training_sample(SAMPLE, seed=run.config.seed)
        write_layers(folder, layer_rows(quantized, sample))
    write_report(folder)
    shutil.rmtree(folder.file(run_folder.CHECKPOINTS), ignore_errors=True)
    return results


def _of_file(run: Run, model: keras.Model) -> dict[str, Any]:
    """Writes the file and its certificate; what the results say of them."""
    config = run.config.export
    floats = run.folder.file(run_folder.FLOAT_MODEL)
    report, certificate = deploy(
        model,
        run.source,
        run.folder,
        float_head=config.float_head,
        verify_images=config.verify_images,
        float_model=keras.models.load_model(floats, compile=False) if floats.is_file() else None,
    )
    for note in certificate.float_notes:
        style = "red" if note.is_bad else None
        text = f"Beside the float model: {escape(note.text)}"
        run.console.print(text, style=style, highlight=False, soft_wrap=True)
    for warning in report.warnings:
        run.console.print(f"Note: {escape(warning)}", highlight=False, soft_wrap=True)
    return {
        "tflite_top1": certificate.top1["tflite"],
        "verified_images": min(config.verify_images, run.source.num_test),
        "file_bytes": report.bytes,
        "gzip_bytes": report.gzip_bytes,
        "codes_compared": certificate.codes_compared,
        "codes_differing": certificate.codes_differing,
        "trained_differing": certificate.trained_differing,
    }
