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
from sat_tf.exact.certificate.inputs import ImagesFrom
from sat_tf.exact.certificate.rules import severest
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.exact.tflite.metadata import lines_of
from sat_tf.exact.top_k import AGREEMENT, TOP1
from sat_tf.export.export import ExportReport, export_tflite
from sat_tf.export.verify import verify_tflite
from sat_tf.messages import first_ones
from sat_tf.output_folder import OutputFolder
from sat_tf.presentation.tables import Column, Marked, Table, digits, percent, plain, render
from sat_tf.qat.reconstruction.fitted import Fitted
from sat_tf.report.layers import LayerRow
from sat_tf.report.results import ModelAccuracy, Results

_Kind = TypeVar("_Kind")
_FLOAT_BYTES = 4
_NAMED_CLASSES = 20


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
    """Exports a model into a folder and verifies the file, whose certificate is beside it."""
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
    values: dict[str, Any] = {
        # A folder of no run has none of these to show.
        "name": "",
        "is_run": False,
        "curves": [],
        "training": {},
        "epochs": "",
        "num_epochs": 0,
        "environment": {},
        "config": "",
        "verb": "Reconstructed" if fitted and fitted.kept else "Calibrated",
        **(_of_results(results, differing) if results else _NO_RESULTS),
        "unlabelled": _unlabelled(certificate) if certificate else None,
        "reconstruction": {"Method": fitted.how, "Before and after": fitted.gained}
        if fitted
        else {},
        "layers": Table(columns=_LAYER, rows=layers).to_html("Layers") if layers else "",
        "images": _images(folder, certificate),
        "certificate": certificate,
        "certificate_facts": _certificate(certificate) if certificate else {},
        "differing": differing,
        "rules": rules,
    }
    page = render("report/report.html", **(values | of_run))
    # The page comes last: a folder with it is one whose run is finished.
    folder.write_text(output_folder.REPORT, page)


_NO_RESULTS: dict[str, Any] = {
    "verdict": {},
    "accuracy": "",
    "of_models": "",
    "caveat": "",
    "sizes": {},
}


def write_layers(folder: OutputFolder, layers: Sequence[LayerRow]) -> None:
    """Writes the table of layers, from which `write_report` draws its own."""
    rows = [dataclasses.asdict(layer) for layer in layers]
    folder.write_json(output_folder.LAYERS, {"layers": rows})


def _of_file(folder: OutputFolder, name: str, kind: type[_Kind], expected: str) -> _Kind | None:
    """The contents of a file that only a finished run has; None without it."""
    return folder.read_values(name, kind, expected) if folder.file(name).exists() else None


class _Layers(pydantic.BaseModel):
    """The file of layers."""

    layers: list[LayerRow] = []


def _of_results(results: Results, differing: Marked | None) -> dict[str, Any]:
    """The values of the template that results give: the first lines, accuracies and sizes."""
    verdict: dict[str, Any] = {
        "images": f"{results.held_out_images:,}",
        "float": _percent(results.float_top1),
        "duration": _duration(results.seconds),
        "file": None,
    }
    as_floats = _FLOAT_BYTES * results.parameters
    sizes = {"Parameters": f"{results.parameters:,}", "As float32": f"{as_floats:,} bytes"}
    if results.file_bytes is not None:
        share = as_floats / results.file_bytes
        smaller = f", {share:.1f} times smaller" if share >= 1 else ""
        sizes["TFLite file"] = f"{results.file_bytes:,} bytes{smaller}"
        sizes["After gzip"] = f"{results.gzip_bytes:,} bytes"
    shipped, loss = results.shipped, results.loss
    if shipped is not None and loss is not None:
        verdict |= {
            "file": f"{results.file_bytes:,}",
            "share": _percent(shipped.share),
            "score": results.score.title,
            "what": "TFLite file" if shipped.title.startswith("TFLite") else "trained model",
            "kind": (severest(filter(None, [loss, differing])) or loss).kind,
            "lost": "",
        }
        if results.float_top1 is not None:
            verdict["gained"] = loss
            verdict["lost"] = "" if loss.kind == "good" else f"{loss.words.lstrip('-+')} lost"
    columns: list[Column[ModelAccuracy]] = [
        Column("model", lambda row: row.title),
        Column(results.score.title, lambda row: row.share, _percent, number=True),
        Column("top-5", lambda row: row.top5, _percent, number=True),
        Column("held-out images", lambda row: row.images, digits(","), number=True),
    ]
    accuracies = Table(columns=columns, rows=results.accuracies()).without_empty("")
    return {
        "verdict": verdict,
        "accuracy": accuracies.to_html(_OF_MODELS[results.score]),
        "of_models": _OF_MODELS[results.score],
        "caveat": results.caveat(),
        "sizes": sizes,
    }


def headline_of(folder: OutputFolder) -> Marked | None:
    """The verdict on the file in a folder, whose kind is that of the worst headline in it.

    The certificate's is about the images that it was verified on, the report's about all held-out
    ones. None without a file.
    """
    certificate = _of_file(folder, output_folder.CERTIFICATE, Certificate, "a certificate")
    results = _of_file(folder, output_folder.RESULTS, Results, "results")
    found = [certificate.verdict] if certificate else []
    if results and (loss := results.loss):
        of = f"{results.score.title} beside the float model"
        on = f"on {results.held_out_images:,} held-out images"
        found.append(Marked(f"{loss.words} of {of}, {on}", loss.kind))
    return severest(found)


def _unlabelled(certificate: Certificate) -> Marked:
    """The headline where no accuracy was measured: what the file keeps of the float model."""
    kept, differing = rules.FLOAT.headline(certificate), certificate.differing
    if kept is None:
        kind = "plain" if differing.kind == "good" else differing.kind
        return Marked("Accuracy is not measured", kind)
    return kept._replace(kind=(severest([kept, differing]) or kept).kind)


def _images(folder: OutputFolder, certificate: Certificate | None) -> dict[str, str]:
    """Facts that the run has written down: its classes, and how pictures become its input."""
    names = lines_of(folder.read_text(output_folder.LABELS))
    preprocessing = folder.preprocessing
    facts = {"Classes": f"{len(names):,}: {first_ones(names, _NAMED_CLASSES)}"} if names else {}
    if preprocessing is not None:
        facts["Preprocessing"] = preprocessing.describe()
    if certificate and certificate.images_from.decoder:
        facts["Held-out pictures"] = f"{certificate.images_from.decoder}, as by every other command"
    return facts


def _used(used: int | None, of: int | None) -> str:
    return "" if used is None else f"{used} of {of}"


_percent, _number = percent(), digits(".4g")
# The title of what the models of a run are compared by.
_OF_MODELS = {TOP1: "Accuracy", AGREEMENT: "Agreement with the float model"}
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


def _certificate(certificate: Certificate) -> dict[str, str]:
    return {
        "SHA-256 of the file": certificate.sha256,
        "Target": saved_processor(certificate.target).title,
        "Images": f"{certificate.num_images:,}",
        "Other runtimes": ", ".join(
            f"{name}: {rules.sentence('codes_headline', certificate, count)}"
            for name, count in certificate.runtimes.items()
            if name != "xnnpack"
        ),
        "Float operators": ", ".join(certificate.float_operators),
        "Layers left float": ", ".join(certificate.float_layers),
        "Notes": "; ".join(certificate.warnings),
    }


def _duration(seconds: float) -> str:
    """In words.

    >>> _duration(1.2), _duration(59.6), _duration(119.7), _duration(7260)
    ('1 second', '60 seconds', '2 minutes', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    return f"{minutes // 60} h {minutes % 60} min"
