"""A quantized model in a folder: its file and certificate, and the report, a page about it all."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pydantic
import tf_keras as keras

from sat_tf import output_folder
from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.certificate import Certificate
from sat_tf.exact.certificate.proof_images import ImagesFrom
from sat_tf.exact.certificate.rules import severest
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.exact.tflite.metadata import lines_of
from sat_tf.export.export import ExportReport, export_tflite
from sat_tf.export.verify import verify_tflite
from sat_tf.messages import first_ones
from sat_tf.messages.tables import Column, Marked, Table, digits, percent, plain, render
from sat_tf.output_folder import OutputFolder
from sat_tf.qat.finetune import FineTuned
from sat_tf.qat.reconstruction.fitted import Fitted
from sat_tf.report.curves import CHARTS, HELD_OUT, LOSS, EpochValue, epochs_table, learning_curves
from sat_tf.report.layer_table import LayerRow
from sat_tf.report.results import ModelAccuracy, Results

_Kind = TypeVar("_Kind")


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
    """Exports a model into a folder, verifies the file, and writes its certificate next to it."""
    path = folder.file(output_folder.TFLITE_MODEL)
    images, labels = sample
    report = export_tflite(model, path, **options)
    certificate = verify_tflite(
        model,
        path,
        images,
        labels,
        float_model=float_model,
        certificate_path=folder.file(output_folder.CERTIFICATE),
        images_from=images_from,
        progress=progress,
    )
    return report, certificate


def write_report(folder: OutputFolder, **of_run: Any) -> None:
    """Writes report.html from the other files of a folder, without what an unfinished run lacks."""
    results = _of_file(folder, output_folder.RESULTS, Results, "results")
    layers = folder.read_values(output_folder.LAYERS, _Layers, "a row for each layer").layers
    certificate = _of_file(folder, output_folder.CERTIFICATE, Certificate, "a certificate")
    fitted = Fitted.read(folder)
    differing = certificate.differing if certificate else results.differing if results else None
    verb = "Reconstructed" if fitted and fitted.kept else "Calibrated"
    nothing = ("name", "is_run", "curves", "epochs", "num_epochs", "trial", "weights_by")
    values: dict[str, Any] = {
        # A folder without a run has none of these to show.
        **dict.fromkeys((*nothing, "environment", "config")),
        "verb": "Trained" if of_run.get("num_epochs") else verb,
        "results": results,
        "accuracies": _accuracies(results) if results else "",
        "percent": percent(),
        "severest": severest,
        "unlabelled": _unlabelled(certificate) if certificate else None,
        "fitted": fitted,
        "layers": Table(columns=_LAYER, rows=layers).to_html("Layers") if layers else "",
        "class_names": lines_of(folder.read_text(output_folder.LABELS)),
        "preprocessing": folder.preprocessing,
        "certificate": certificate,
        "differing": differing,
        "rules": rules,
        "first_ones": first_ones,
        "saved_processor": saved_processor,
    }
    page = render("report/report.html", **(values | of_run))
    # The page comes last: it marks the run of the folder as finished.
    folder.write_text(output_folder.REPORT, page)


def write_layers(folder: OutputFolder, layers: Sequence[LayerRow]) -> None:
    """Writes the table of layers, from which `write_report` draws its own."""
    rows = [dataclasses.asdict(layer) for layer in layers]
    folder.write_json(output_folder.LAYERS, {"layers": rows})


def _of_file(folder: OutputFolder, name: str, schema: type[_Kind], expected: str) -> _Kind | None:
    """The contents of a file that only a finished run has; None without it."""
    return folder.read_values(name, schema, expected) if folder.file(name).exists() else None


class _Layers(pydantic.BaseModel):
    """The file of layers."""

    layers: list[LayerRow] = []


def _accuracies(results: Results) -> str:
    columns: list[Column[ModelAccuracy]] = [
        Column("model", lambda row: row.title),
        Column(results.score.title, lambda row: row.share, _percent, number=True),
        Column("top-5", lambda row: row.top5, _percent, number=True),
        Column("held-out images", lambda row: row.images, digits(","), number=True),
    ]
    table = Table(columns=columns, rows=results.accuracies()).without_empty("")
    return table.to_html(results.score.title)


def of_training(tuned: FineTuned, results: Results) -> dict[str, Any]:
    """The values of the report's template that a training fills."""
    title, number = results.score.title, digits(".4g")
    score = f"{title.capitalize()} in percent"
    metrics = {
        "epoch": EpochValue("epoch"),
        "learning_rate": EpochValue("learning rate", number),
        "loss": EpochValue("loss", number, "", LOSS, "training"),
        "score": EpochValue(f"held-out {title}", percent(), "", score, "held out", HELD_OUT),
        "held_out_loss": EpochValue("held-out loss", number, "", LOSS, "held out", HELD_OUT),
    }
    curves = learning_curves(
        tuned.epochs,
        metrics,
        {LOSS: CHARTS[LOSS], score: (100.0, {})},
        across="epoch",
        targets="the answers of the float model",
    )
    return {
        "trial": tuned.trial,
        "curves": curves,
        "num_epochs": len(tuned.epochs) - 1,
        "epochs": epochs_table(tuned.epochs, metrics),
    }


def headline_of_folder(folder: OutputFolder) -> Marked | None:
    """The `headline_of` the file in a folder."""
    certificate = _of_file(folder, output_folder.CERTIFICATE, Certificate, "a certificate")
    results = _of_file(folder, output_folder.RESULTS, Results, "results")
    return headline_of(certificate, results)


def headline_of(certificate: Certificate | None, results: Results | None) -> Marked | None:
    """The verdict on a file: the worst of the headlines about it; None without any.

    The certificate's headline is about the images of its verification, that of the results about
    all held-out ones.
    """
    headlines = [certificate.verdict] if certificate else []
    if results and (loss := results.loss):
        of = f"{results.score.title} compared with the float model"
        on = f"on {results.held_out_images:,} held-out images"
        headlines.append(Marked(f"{loss.words} of {of}, {on}", loss.kind))
    return severest(headlines)


def _unlabelled(certificate: Certificate) -> Marked:
    """The headline where no accuracy was measured: what the file keeps of the float model."""
    headline, differing = rules.FLOAT.headline(certificate), certificate.differing
    if headline is None:
        style = "plain" if differing.kind == "good" else differing.kind
        return Marked("Accuracy is not measured", style)
    return headline._replace(kind=(severest([headline, differing]) or headline).kind)


def _used(used: int | None, of: int | None) -> str:
    return "" if used is None else f"{used} of {of}"


_percent, _number = percent(), digits(".4g")
_LAYER: list[Column[LayerRow]] = [
    Column("layer", lambda layer: Marked(layer.name, "name")),
    Column("kind", lambda layer: layer.kind),
    Column("grid", lambda layer: layer.weight_grid),
    *(
        Column(title, value, show, number=True)
        for title, value, show in (
            ("weight bits", lambda layer: layer.weight_bits, _number),
            ("codes used", lambda lay: _used(lay.weight_codes_used, lay.weight_codes), plain),
            ("rescale", lambda lay: f"{lay.rescale or ''} {_number(lay.rescale_constant)}", plain),
            ("activation bits", lambda layer: layer.activation_bits, _number),
            ("clipping level", lambda layer: layer.clipping_level, _number),
            ("codes used", lambda la: _used(la.activation_codes_used, la.activation_codes), plain),
            ("clipped", lambda layer: layer.clipped, _percent),
            ("parameters", lambda layer: layer.parameters or None, digits(",")),
        )
    ),
]
