"""The report of a run: one page that holds all there is to know of it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pydantic

from sat_tf.analysis.layer_table import LayerRow
from sat_tf.export.certificate.certificate import FloatNote
from sat_tf.export.certificate.page import float_notes
from sat_tf.messages import RunError, list_problems
from sat_tf.presentation import line_chart
from sat_tf.presentation.page import facts, page, row, table, text
from sat_tf.training.config.config import load_yaml
from sat_tf.training.report import curves
from sat_tf.training.report.results import MODELS, Results
from sat_tf.training.state import history, run_folder
from sat_tf.training.state.run_folder import RunFolder

_FLOAT_BYTES = 4
_Kind = TypeVar("_Kind")


def write_report(folder: RunFolder) -> None:
    """Writes report.html from the other files of a run folder.

    A run that has not finished has a report too: what is not there yet is left out.

    Raises:
        RunError: a file of the folder cannot be read, or the page not be written.
    """
    folder.write_text(run_folder.REPORT, report_page(folder))


def write_layers(folder: RunFolder, layers: Sequence[LayerRow]) -> None:
    """Writes the table of layers, from which `write_report` draws its own."""
    rows = [dataclasses.asdict(layer) for layer in layers]
    folder.write_json(run_folder.LAYERS, {"layers": rows})


def report_page(folder: RunFolder) -> str:
    """The HTML of the report; see `write_report`."""
    config = folder.read_text(run_folder.CONFIG)
    results = _read(folder, run_folder.RESULTS, Results)
    layers = _read(folder, run_folder.LAYERS, _Layers)
    certificate = folder.read_json(run_folder.CERTIFICATE)
    environment = folder.read_json(run_folder.ENVIRONMENT)
    epochs = history.from_csv(folder.read_text(run_folder.METRICS))
    steps = history.steps_from_csv(folder.read_text(run_folder.STEPS))
    sections = {
        "Accuracy": _accuracy(results) if results else "",
        "Learning curves": curves.curves(epochs, steps) if epochs or steps else "",
        "Layers": _layers(layers.layers) if layers else "",
        "Size": _sizes(results) if results else "",
        "Certificate": _certificate(certificate) if certificate else "",
        "Epochs": _epochs(epochs) if epochs else "",
        "Environment": facts(_flat(environment)) if environment else "",
        "Configuration": f"<pre>{text(config)}</pre>" if config else "",
    }
    body = [_verdict(results)]
    for title, section in sections.items():
        if section:
            body.append(f"<section>\n<h2>{title}</h2>\n{section}\n</section>")
    return page(f"Run {_name(config)}".strip(), body, _STYLE + line_chart.STYLE + curves.STYLE)


class _Layers(pydantic.BaseModel):
    """The file of layers."""

    layers: list[LayerRow]


def _verdict(results: Results | None) -> str:
    if results is None:
        return '<p class="verdict">Not finished</p><p>What follows is how far the run has come.</p>'
    if results.tflite_top1 is None:
        return (
            f'<p class="verdict">{100 * results.float_top1:.2f} % top-1</p>\n<p>The float model on '
            f"{results.held_out_images:,} held-out images; this run ends with it. Trained in "
            f"{_duration(results.seconds)}.</p>"
        )
    exact = results.codes_differing == 0
    # Top-1 of fewer images than the float model was measured on would not compare with its.
    on_all = results.verified_images == results.held_out_images
    trained = results.quantized_top1 if results.deployed_top1 is None else results.deployed_top1
    top1 = results.tflite_top1 if on_all or trained is None else trained
    what = "TFLite file" if top1 is results.tflite_top1 else "trained model"
    gained = 100 * (top1 - results.float_top1)
    return (
        f'<p class="verdict">{100 * top1:.2f} % top-1 in {results.file_bytes:,} '
        f"bytes</p>\n<p>The {what} on {results.held_out_images:,} held-out images; "
        f"the float model has {100 * results.float_top1:.2f} % ({gained:+.2f} points). "
        f'<span class="{"good" if exact else "bad"}">'
        f"{results.codes_differing:,} of {results.codes_compared:,} codes differ</span> between "
        f"LiteRT and the trained integers. Trained in {_duration(results.seconds)}.</p>"
    )


def _accuracy(results: Results) -> str:
    rows = []
    for name, title in MODELS.items():
        top1, top5 = (getattr(results, f"{name}_{metric}") for metric in ("top1", "top5"))
        images = results.verified_images if name == "tflite" else results.held_out_images
        if top1 is not None:
            rows.append(row([title], [_percent(top1), _percent(top5), f"{images:,}"]))
    head = ("model", "top-1", "top-5", "held-out images")
    return f'<div class="few">{table(head, rows, label="Accuracy", right=3)}</div>'


def _sizes(results: Results) -> str:
    as_floats = _FLOAT_BYTES * results.parameters
    sizes = {"Parameters": f"{results.parameters:,}", "As float32": f"{as_floats:,} bytes"}
    if results.file_bytes is not None:
        share = as_floats / results.file_bytes
        smaller = f", {share:.1f} times smaller" if share >= 1 else ""
        sizes["TFLite file"] = f"{results.file_bytes:,} bytes{smaller}"
        sizes["After gzip"] = f"{results.gzip_bytes:,} bytes"
    return facts(sizes)


def _layers(layers: Sequence[LayerRow]) -> str:
    head = ["layer", "kind", "grid", "weight bits", "codes used", "rescale"]
    head += ["activation bits", "clipping level", "codes used", "clipped", "parameters"]
    rows = [
        row(
            [
                f"<b>{text(layer.name)}</b>",
                text(layer.kind),
                text(layer.weight_grid or ""),
            ],
            [
                _number(layer.weight_bits),
                _used(layer.weight_codes_used, layer.weight_codes),
                f"{text(layer.rescale or '')} {_number(layer.rescale_constant)}",
                _number(layer.activation_bits),
                _number(layer.clipping_level),
                _used(layer.activation_codes_used, layer.activation_codes),
                _percent(layer.clipped),
                f"{layer.parameters:,}" if layer.parameters else "",
            ],
        )
        for layer in layers
    ]
    note = (
        "Codes used are those that occur, of all that the grid has. Rescale is SAT's, with the "
        "constant that the weights are multiplied by. Activations were measured on a few training "
        "images; clipped is the share of values at or beyond the clipping level."
    )
    return f"<p>{note}</p>" + table(head, rows, label="Layers", right=8)


def _certificate(certificate: Mapping[str, Any]) -> str:
    compared, differing = certificate["codes_compared"], certificate["codes_differing"]
    kind = "bad" if differing else "good"
    page_name, file_name = run_folder.CERTIFICATE_PAGE, run_folder.CERTIFICATE
    rows = {
        "SHA-256 of the file": str(certificate.get("sha256", "")),
        "Images": f"{certificate.get('num_images', 0):,}",
        "Other runtimes": ", ".join(
            f"{name}: {count.get('codes_differing', 0):,} of {count.get('codes_compared', 0):,} "
            "codes differ"
            for name, count in certificate.get("runtimes", {}).items()
            if name != "xnnpack"
        ),
        "Float operators": ", ".join(certificate.get("float_operators", [])),
        "Layers left float": ", ".join(certificate.get("islands", [])),
        "Notes": "; ".join(certificate.get("warnings", [])),
    }
    return (
        f'<p><span class="{kind}">{differing:,} of {compared:,} codes differ</span> between LiteRT '
        f"with XNNPACK and the integer simulation of the trained model. All tensors: "
        f'<a href="{page_name}">{page_name}</a>, <a href="{file_name}">{file_name}</a>.</p>'
        + float_notes(FloatNote(**note) for note in certificate.get("float_notes", []))
        + facts(rows)
    )


def _epochs(epochs: Sequence[history.EpochMetrics]) -> str:
    head = ["stage", "epoch", "step", "learning rate", "loss", "top-1", "top-5"]
    head += ["held-out loss", "held-out top-1", "held-out top-5", "seconds"]
    rows = [
        row(
            [text(epoch.stage)],
            [
                str(epoch.epoch),
                f"{epoch.step:,}",
                f"{epoch.learning_rate:.3g}",
                _number(epoch.loss),
                _percent(epoch.train_top1),
                _percent(epoch.train_top5),
                _number(epoch.held_out_loss),
                _percent(epoch.held_out_top1),
                _percent(epoch.held_out_top5),
                f"{epoch.seconds:.1f}",
            ],
        )
        for epoch in epochs
    ]
    listed = table(head, rows, label="Epochs", right=10)
    return f"<details><summary>{len(rows)} epochs, number by number</summary>\n{listed}</details>"


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.replace("_", " "): ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
        for name, value in values.items()
        if value is not None
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def _used(used: int | None, of: int | None) -> str:
    return "" if used is None else f"{used} of {of}"


def _duration(seconds: float) -> str:
    """In words.

    >>> _duration(59.6), _duration(119.7), _duration(7260)
    ('60 seconds', '2 minutes', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} seconds"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    return f"{minutes // 60} h {minutes % 60} min"


def _name(config: str) -> str:
    try:
        values = load_yaml(config)
    except ValueError:
        return ""
    return str(values.get("name", "")) if isinstance(values, dict) else ""


def _read(folder: RunFolder, name: str, kind: type[_Kind]) -> _Kind | None:
    values = folder.read_json(name)
    if not values:
        return None
    try:
        return pydantic.TypeAdapter(kind).validate_python(values)
    except pydantic.ValidationError as error:
        problems: Iterable[str] = [
            f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()
        ]
        raise RunError(list_problems(str(folder.file(name)), problems)) from error


_STYLE = """
section { margin-top: 1.8rem; } .few { max-width: 40rem; } a { color: var(--bars); }
pre { overflow-x: auto; font-size: .85em; line-height: 1.35; border: 1px solid var(--line);
  padding: .7rem; margin: 0; } summary { cursor: pointer; }
.wide { font-size: .86em; } .wide th, .wide td { padding-right: .5rem; }
.wide:focus-visible { outline: 2px solid var(--bars); }
td.number { white-space: nowrap; }
@media (max-width: 40rem) { main { padding: 1rem; } .verdict { font-size: 1.5rem; }
  td, th { white-space: nowrap; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin: 0 0 .4rem; } }
@media print { pre { white-space: pre-wrap; } h2 { break-after: avoid; } a { color: inherit; } }
"""
