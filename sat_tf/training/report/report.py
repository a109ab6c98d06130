"""The report of a run: one HTML page with everything about it."""

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import pydantic

from sat_tf import output_folder
from sat_tf.analysis.code_use import LayerRow
from sat_tf.export.certificate.certificate import (
    FLOAT_RULE,
    LOSS_RULE,
    Certificate,
    severest,
    worst,
)
from sat_tf.export.tflite.metadata import lines_of
from sat_tf.messages import first_ones
from sat_tf.presentation.charts import Line, LineChart, Point, save_charts
from sat_tf.presentation.page import render_page
from sat_tf.presentation.tables import Column, Marked, Table, digits, percent, plain
from sat_tf.qat.policy_fields import known_weights
from sat_tf.training.config.config import load_yaml
from sat_tf.training.data.source import AGREEMENT, TOP1
from sat_tf.training.report.results import ModelAccuracy, Results
from sat_tf.training.state import run_folder
from sat_tf.training.state.history import (
    ACCURACY,
    EPOCHS,
    LOSS,
    RATE,
    SAME_ANSWERS,
    STEPS,
    EpochMetrics,
    StepMetrics,
)
from sat_tf.training.state.reconstruction import Fitted
from sat_tf.training.state.run_folder import RunFolder, read_trials

_Kind = TypeVar("_Kind")
_FLOAT_BYTES = 4
_NAMED_CLASSES = 20


def write_curves(folder: RunFolder) -> None:
    """Writes curves.png, the loss and the accuracy of a run that has trained.

    Raises:
        RunError: a table of the folder cannot be read, or the picture cannot be written.
    """
    epochs = EpochMetrics.read(folder)
    if not epochs:
        return
    settings = _settings(folder)
    curves = learning_curves(epochs, StepMetrics.read(folder), targets=_targets(settings))
    shown = (ACCURACY, SAME_ANSWERS, LOSS)
    drawn = [one for title in shown for one in curves if one.title == title]
    with folder.written(run_folder.CURVES) as temporary:
        save_charts(drawn, str(settings.get("name", "")), temporary)


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The configuration of a run; empty where it cannot be read, and is shown as it is written."""
    try:
        settings = load_yaml(folder.read_text(output_folder.CONFIG))
    except ValueError:
        settings = None
    return settings if isinstance(settings, dict) else {}


def _weights(settings: Mapping[str, Any]) -> str:
    """What quantizes the weights of inner layers, and why; "" where the run says no bits."""
    policy = settings.get("policy")
    if not isinstance(policy, dict) or policy.get("weight_bits") is None:
        return ""
    bits, name = policy["weight_bits"], known_weights(policy)
    if policy.get("weight_quantizer") is not None:
        return name
    is_best = name == known_weights({"weight_bits": bits})
    best = f", and it is the best known at {bits} bits" if is_best else ""
    return f"{name}: the policy names none{best}"


def write_report(folder: RunFolder) -> None:
    """Writes report.html from the other files of a run folder.

    An unfinished run has a report too, without what is missing, and so have files of a model that
    was calibrated without a run.

    Raises:
        RunError: a file of the folder cannot be read, or the page cannot be written.
    """
    config = folder.read_text(output_folder.CONFIG)
    settings = _settings(folder)
    results = _of_file(folder, output_folder.RESULTS, Results, "results")
    layers = folder.read_values(output_folder.LAYERS, _Layers, "a row for each layer").layers
    certificate = _of_file(folder, output_folder.CERTIFICATE, Certificate, "a certificate")
    epochs = EpochMetrics.read(folder)
    steps = StepMetrics.read(folder)
    curves = learning_curves(epochs, steps, targets=_targets(settings)) if epochs or steps else []
    name = str(settings.get("name", ""))
    training: dict[str, str] = {}
    if results:
        trial = read_trials(folder).get("quantized")
        training = {
            "Learning rate": results.rate(),
            "Trial": trial.in_words() if trial else "",
            "Weights of epoch": results.kept(),
        }
    if any(training.values()):
        training["Weights by"] = _weights(settings)
    fitted = Fitted.read(folder)
    differing = results.differing if results else None
    if certificate:
        differing = certificate.differing
    page = render_page(
        "training/report/report.html",
        name=name,
        verdict=_verdict(results, differing) if results else {},
        unlabelled=_unlabelled(certificate) if certificate else None,
        is_run=bool(config),
        made="Trained" if epochs else "Reconstructed" if fitted and fitted.kept else "Calibrated",
        reconstruction={"Method": fitted.how, "Before and after": fitted.gained} if fitted else {},
        accuracy=_accuracy(results) if results else "",
        of_models=_OF_MODELS[results.score] if results else "",
        curves=[chart.to_figure() for chart in curves],
        caveat=results.caveat() if results else "",
        training={name: words for name, words in training.items() if words},
        layers=Table(columns=_LAYER, rows=layers).to_html("Layers") if layers else "",
        images=_images(folder, certificate),
        sizes=_sizes(results) if results else {},
        certificate=certificate,
        certificate_facts=_certificate(certificate) if certificate else {},
        differing=differing,
        float_rule=FLOAT_RULE,
        loss_rule=LOSS_RULE,
        num_epochs=len(epochs),
        epochs=Table(columns=_EPOCH, rows=epochs).without_empty("").to_html("Epochs"),
        environment=_flat(folder.read_json(run_folder.ENVIRONMENT) or {}),
        config=config,
    )
    # The page comes last: a folder with it is one whose run is finished.
    folder.write_text(output_folder.REPORT, page)


def write_layers(folder: RunFolder, layers: Sequence[LayerRow]) -> None:
    """Writes the table of layers, from which `write_report` draws its own."""
    rows = [dataclasses.asdict(layer) for layer in layers]
    folder.write_json(output_folder.LAYERS, {"layers": rows})


def _of_file(folder: RunFolder, name: str, kind: type[_Kind], expected: str) -> _Kind | None:
    """The contents of a file that only a finished run has; None without it."""
    return folder.read_values(name, kind, expected) if folder.file(name).exists() else None


class _Layers(pydantic.BaseModel):
    """The file of layers."""

    layers: list[LayerRow] = []


def _verdict(results: Results, differing: Marked | None) -> dict[str, Any]:
    """The first lines of the report."""
    shipped, loss = results.shipped, results.loss
    found: dict[str, Any] = {
        "images": f"{results.held_out_images:,}",
        "float": _percent(results.float_top1),
        "duration": _duration(results.seconds),
        "file": None,
    }
    if shipped is None or loss is None:
        return found
    found |= {
        "file": f"{results.file_bytes:,}",
        "share": _percent(shipped.share),
        "score": results.score.title,
        "what": "TFLite file" if shipped.title.startswith("TFLite") else "trained model",
        "kind": worst([loss.kind, *([differing.kind] if differing else [])]),
        "lost": "",
    }
    if results.float_top1 is not None:
        found["gained"] = loss
        found["lost"] = "" if loss.kind == "good" else f"{loss.words.lstrip('-+')} lost"
    return found


def headline_of(folder: RunFolder) -> Marked | None:
    """The verdict on the file in a folder, whose kind is that of the worst headline in it.

    The certificate's is about the images that it was verified on, the report's about all held-out
    ones. None without a file.

    Raises:
        RunError: a file of the folder cannot be read.
    """
    certificate = _of_file(folder, output_folder.CERTIFICATE, Certificate, "a certificate")
    results = _of_file(folder, output_folder.RESULTS, Results, "results")
    found = [certificate.verdict] if certificate else []
    if results and (loss := results.loss):
        of = f"{results.score.title} beside the float model"
        on = f"on {results.held_out_images:,} held-out images"
        found.append(Marked(f"{loss.words} of {of}, {on}", loss.kind))
    return severest(found)


def _accuracy(results: Results) -> str:
    """The table of the models that were measured."""
    columns: list[Column[ModelAccuracy]] = [
        Column("model", lambda row: row.title),
        Column(results.score.title, lambda row: row.share, _percent, number=True),
        Column("top-5", lambda row: row.top5, _percent, number=True),
        Column("held-out images", lambda row: row.images, digits(","), number=True),
    ]
    table = Table(columns=columns, rows=results.accuracies()).without_empty("")
    return table.to_html(_OF_MODELS[results.score])


def _unlabelled(certificate: Certificate) -> Marked:
    """The headline where no accuracy was measured: what the file keeps of the float model."""
    kept, differing = certificate.of_float, certificate.differing
    if kept is None:
        kind = "plain" if differing.kind == "good" else differing.kind
        return Marked("Accuracy is not measured", kind)
    return kept._replace(kind=worst([kept.kind, differing.kind]))


def _images(folder: RunFolder, certificate: Certificate | None) -> dict[str, str]:
    """Facts that the run has written down: its classes, and how pictures become its input."""
    names = lines_of(folder.read_text(output_folder.LABELS))
    preprocessing = folder.preprocessing
    facts = {"Classes": f"{len(names):,}: {first_ones(names, _NAMED_CLASSES)}"} if names else {}
    if preprocessing is not None:
        facts["Preprocessing"] = preprocessing.describe()
    if certificate and certificate.images_from.decoder:
        facts["Held-out pictures"] = f"{certificate.images_from.decoder}, as by every other command"
    return facts


def _sizes(results: Results) -> dict[str, str]:
    as_floats = _FLOAT_BYTES * results.parameters
    sizes = {"Parameters": f"{results.parameters:,}", "As float32": f"{as_floats:,} bytes"}
    if results.file_bytes is not None:
        share = as_floats / results.file_bytes
        smaller = f", {share:.1f} times smaller" if share >= 1 else ""
        sizes["TFLite file"] = f"{results.file_bytes:,} bytes{smaller}"
        sizes["After gzip"] = f"{results.gzip_bytes:,} bytes"
    return sizes


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
_EPOCH: list[Column[EpochMetrics]] = [
    Column(metric.title, operator.attrgetter(name), metric.show, number=name != "stage")
    for name, metric in EPOCHS.items()
]


def _certificate(certificate: Certificate) -> dict[str, str]:
    return {
        "SHA-256 of the file": certificate.sha256,
        "Target": certificate.target_title,
        "Images": f"{certificate.num_images:,}",
        "Other runtimes": ", ".join(
            f"{name}: {count.differing} codes differ"
            for name, count in certificate.runtimes.items()
            if name != "xnnpack"
        ),
        "Float operators": ", ".join(certificate.float_operators),
        "Layers left float": ", ".join(certificate.islands),
        "Notes": "; ".join(certificate.warnings),
    }


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.replace("_", " "): ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value)
        for name, value in values.items()
        if value is not None
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


def _targets(settings: Mapping[str, Any]) -> str:
    """Names the targets that recipes give a model in training beside the labels."""
    recipes = settings.get("recipes")
    if not isinstance(recipes, dict) or not _has_labels(settings):
        return ""
    found = {"the teacher": "distillation", "smoothed labels": "label_smoothing"}
    return " and ".join(words for words, recipe in found.items() if recipes.get(recipe))


def _has_labels(settings: Mapping[str, Any]) -> bool:
    """Whether the images of a configuration have labels."""
    data = settings.get("data")
    options = data.get("options") if isinstance(data, dict) else None
    return not isinstance(options, dict) or options.get("labelled") is not False


# The charts of metrics, by their titles: what they show in words, what values are multiplied by,
# and how they are drawn.
_CHARTS: dict[str, tuple[str, float, dict[str, Any]]] = {
    LOSS: ("loss", 1.0, {"logarithmic": True}),
    ACCURACY: ("accuracy in percent", 100.0, {"least": 0.0, "most": 100.0}),
    SAME_ANSWERS: ("agreement in percent", 100.0, {"least": 0.0, "most": 100.0}),
    RATE: ("learning rate", 1.0, {"from_zero": True}),
}
# This stands below the chart of a run whose training asks for more than the labels, or for less.
_OTHER_LOSS = (
    "The two losses are not to be compared: the held-out one is of the labels alone, that of "
    "training has {}."
)


def learning_curves(
    epochs: Sequence[EpochMetrics], steps: Sequence[StepMetrics], *, targets: str = ""
) -> list[LineChart]:
    """Loss, accuracy, learning rate and clipping levels over all stages, with a gap between stages.

    Args:
        epochs: the rows of the metrics file; they give the held-out images.
        steps: the rows of the steps file; without any, the epochs' means are drawn.
        targets: what is asked of the model in training beside the labels, in words; "" for nothing.
    """
    starts = _starts(epochs, steps)
    stages = [(float(start), name.replace("_", " ")) for name, start in starts.items()]

    lines: dict[str, list[Line]] = {title: [] for title in _CHARTS}
    for name, metric in EPOCHS.items():
        if not metric.chart:
            continue
        by_step = [step for step, other in STEPS.items() if other == metric]
        found = [
            (row.stage, row.step_of_run, getattr(row, step)) for step in by_step for row in steps
        ]
        by_epoch = [(row.stage, starts[row.stage] + row.step, getattr(row, name)) for row in epochs]
        unit = _CHARTS[metric.chart][1]
        if points := _points(found, unit) or _points(by_epoch, unit):
            lines[metric.chart].append(dataclasses.replace(metric.line, points=points))
    levels = clipping_lines(steps)
    num_levels = len({name for row in steps for name in row.clipping_levels})
    some = f" Of {num_levels} tensors, those that move most are named." if levels else ""
    return [
        *(
            LineChart(
                title=title,
                lines=lines[title],
                stages=stages,
                summary=_ends(what, lines[title]),
                caption=_OTHER_LOSS.format(targets) if targets and title == LOSS else "",
                **options,
            )
            for title, (what, _, options) in _CHARTS.items()
            if lines[title] or title not in (ACCURACY, SAME_ANSWERS)
        ),
        LineChart(
            title="Clipping levels",
            lines=levels,
            stages=stages,
            logarithmic=True,
            summary=_ends("clipping levels", [line for line in levels if not line.dashed]) + some,
            caption=some.strip() if num_levels > _MOST_MOVING else "",
        ),
    ]


_MOVING = ("var(--kind0)", "var(--kind1)", "var(--kind2)", "var(--kind3)")
_MOST_MOVING = len(_MOVING)


def clipping_lines(steps: Sequence[StepMetrics]) -> list[Line]:
    """The clipping levels that move most; of many, also their largest, median and smallest.

    How far a level moves is the ratio of its largest and its smallest value in the run.
    """
    names = list(dict.fromkeys(name for row in steps for name in row.clipping_levels))
    of_name = {
        name: _points(
            [(row.stage, row.step_of_run, row.clipping_levels.get(name)) for row in steps]
        )
        for name in names
    }
    moved = sorted(names, key=lambda name: -_span(of_name[name]))[:_MOST_MOVING]
    lines = [
        Line(label=name, points=of_name[name], colour=colour)
        for name, colour in zip(sorted(moved, key=names.index), _MOVING, strict=False)
    ]
    if len(names) <= _MOST_MOVING:
        return lines

    def over_layers(value: Callable[[Collection[float]], float]) -> list[Point]:
        return _points(
            [
                (row.stage, row.step_of_run, value(row.clipping_levels.values()))
                for row in steps
                if row.clipping_levels
            ]
        )

    smallest, largest = over_layers(min), over_layers(max)
    between = (largest[-1][0], math.nan)
    return [
        Line(
            label=f"median of {len(names)}",
            points=over_layers(statistics.median),
            colour="var(--soft)",
        ),
        Line(
            label="smallest and largest",
            points=[*largest, between, *smallest],
            colour="var(--soft)",
            dashed=True,
        ),
        *lines,
    ]


def _span(points: Sequence[Point]) -> float:
    levels = [level for _, level in points if level > 0]  # also leaves NaN out
    return math.log(max(levels) / min(levels)) if levels else 0.0


def _points(values: Sequence[tuple[str, int, float | None]], unit: float = 1.0) -> list[Point]:
    """Points from stage, step and value, times `unit`, with a gap where another stage begins."""
    points: list[Point] = []
    last = None
    for stage, step, value in values:
        if value is None:
            continue
        if last not in (None, stage):
            points.append((float(step), math.nan))
        points.append((float(step), unit * value))
        last = stage
    return points


def _ends(what: str, lines: Sequence[Line]) -> str:
    """The first and the last value of each line, in words."""
    ends = [
        f"{line.label} from {line.points[0][1]:.4g} to {line.points[-1][1]:.4g}" for line in lines
    ]
    return f"The {what} over the steps of the run: {'; '.join(ends)}." if ends else ""


def _starts(epochs: Sequence[EpochMetrics], steps: Sequence[StepMetrics]) -> dict[str, int]:
    """The step of the run after which each stage starts, in order."""
    lengths: dict[str, int] = {}
    places = [(row.stage, row.step) for row in epochs] + [(row.stage, row.step) for row in steps]
    for stage, step in places:
        lengths[stage] = max(lengths.get(stage, 0), step)
    starts, before = {}, 0
    for stage, length in lengths.items():
        starts[stage] = before
        before += length
    return starts
