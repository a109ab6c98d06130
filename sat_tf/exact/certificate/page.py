"""The tables of a certificate, and its page: one file, without scripts and anything to load."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.outputs import OutputCount
from sat_tf.exact.certificate.portability import PortabilityClaim
from sat_tf.exact.certificate.record import CertificateRecord, RuntimeCount, TensorCodes
from sat_tf.exact.certificate.rules import sentence
from sat_tf.exact.certificate.runtimes import RUNTIMES
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.operations.operation import Basis
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.presentation.charts import histogram
from sat_tf.presentation.tables import Cell, Column, Marked, Table, digits, percent, render_page

# The models that are compared, by their names in a certificate.
MODEL_TITLES = {
    "quantized": "Keras",
    "simulation": "simulation",
    "tflite": "LiteRT",
    "float": "float model",
}
# The model that outputs are compared with, by its name in a certificate.
_REFERENCE_TITLES = {"keras": "Keras", "simulation": "the simulation"}
_FOUR = digits(".4g")
# Missing where an output is a number, not a class.
_SHARE = percent(missing="–")


def certificate_page(certificate: CertificateRecord) -> str:
    """Returns HTML that shows all of a certificate."""
    return render_page(
        "exact/certificate/page.html",
        certificate=certificate,
        rules=rules,
        trained_differing=percent(4)(certificate.trained_differing) if certificate.trained else "",
        facts={
            "File": f"{certificate.bytes:,} bytes, {certificate.gzip_bytes:,} after gzip",
            "SHA-256": certificate.sha256,
            "Model": certificate.model,
            "Target": saved_processor(certificate.target).title,
            "Operators": ", ".join(
                f"{count} {name}" for name, count in certificate.operators.items()
            ),
            "Float operators": ", ".join(certificate.float_operators) or "none",
            "Layers left float": ", ".join(certificate.float_layers),
            "SHA-256 of the images": certificate.images_sha256,
            "Pictures": certificate.images_from.decoder,
            "Top-1": ", ".join(
                f"{MODEL_TITLES.get(name, name)} {100 * share:.2f} %"
                for name, share in certificate.top1.items()
            ),
            "Versions": ", ".join(
                f"{name} {version}" for name, version in certificate.versions.items()
            ),
            "Notes": "; ".join(certificate.warnings),
        },
        tables={
            "outputs": _outputs(certificate),
            "runtimes": _runtimes(certificate),
            "portability": _portability(certificate),
            "tensors": _tensors(certificate),
            "rules": rules.rule_table(),
        },
    )


# -- runtimes --------------------------------------------------------------------------------------


class _RuntimeRow(NamedTuple):
    title: str  # Of a runtime, or of a model that only classifies.
    name: str  # Of the runtime.
    counts: RuntimeCount | None  # What was counted of it; None for such a model.
    top1: float | None  # Share of images that it classifies right.


def _runtime_columns(certificate: CertificateRecord) -> list[Column[_RuntimeRow]]:
    counts = certificate.runtimes.values()

    def of_count(show: Callable[[RuntimeCount], Cell]) -> Callable[[_RuntimeRow], Cell]:
        return lambda row: "" if row.counts is None else show(row.counts)

    def differing(row: _RuntimeRow) -> Cell:
        if row.counts is None:
            return ""
        # Only that of XNNPACK must be 0.
        bad = "bad" if row.name == "xnnpack" else "watch"
        words = sentence("counted", row.counts.codes_differing, row.counts.codes_compared)
        return Marked(words, bad if row.counts.codes_differing else "good")

    def not_as_simulated(count: RuntimeCount) -> Cell:
        if not count.own:
            return "simulated" if count.is_simulated else ""
        words = sentence("counted", count.own_differing, count.own_compared)
        return Marked(words, "watch" if count.own_differing else "good")

    def largest_error(count: RuntimeCount) -> Cell:
        values = [output.values for output in count.outputs if output.values is not None]
        return _FOUR(max(value.channels[0].error for value in values))

    of = _REFERENCE_TITLES[certificate.reference]
    columns: list[Column[_RuntimeRow]] = [
        Column("runtime", lambda row: row.title, wrap="fold"),
        Column("codes differing", differing, number=True),
    ]
    if any(count.own or count.is_simulated for count in counts):
        columns.append(Column("not as simulated", of_count(not_as_simulated), number=True))
    columns += [
        Column("first that differs", of_count(lambda c: c.first_differing or "none"), wrap="fold"),
        Column("top-1", lambda row: row.top1, percent(), number=True),
    ]
    outputs = [output for count in counts for output in count.outputs]
    if outputs and all(output.is_values for output in outputs):
        columns.append(Column(f"from {of}, std. dev.", of_count(largest_error), number=True))
    else:
        same = of_count(lambda count: _SHARE(count.agreement))
        columns.append(Column(f"classes of {of}", same, number=True))
    largest = of_count(lambda count: _FOUR(count.largest_output_difference))
    return [*columns, Column("largest difference", largest, number=True)]


def runtime_table(certificate: CertificateRecord) -> Table[Any]:
    """Returns the runtimes by their names, and below them what models classify."""
    rows = [
        _RuntimeRow(name, name, count, count.top1) for name, count in certificate.runtimes.items()
    ]
    rows += [
        _RuntimeRow(title, "", None, certificate.top1[name])
        for name, title in MODEL_TITLES.items()
        if name in certificate.top1 and name != "tflite"  # which is the runtime xnnpack
    ]
    return Table(columns=_runtime_columns(certificate), rows=rows)


def _runtimes(certificate: CertificateRecord) -> Table[_RuntimeRow]:
    """The runtimes by their titles, and what XNNPACK has taken of each."""

    def pieces(row: _RuntimeRow) -> str:
        if row.counts is None or row.counts.delegation is None:
            return ""
        taken = row.counts.delegation
        piece = f"piece{'s' if taken.partitions != 1 else ''}"
        return f"{taken.delegated} of {taken.operators} in {taken.partitions} {piece}"

    return Table(
        columns=[*_runtime_columns(certificate), Column("operators in XNNPACK", pieces)],
        rows=[
            _RuntimeRow(RUNTIMES[name].title, name, count, count.top1)
            for name, count in certificate.runtimes.items()
        ],
    )


# -- outputs ---------------------------------------------------------------------------------------


def _accuracy_column(certificate: CertificateRecord, model: str) -> Column[int]:
    """The share of places that a model of `MODEL_TITLES` classifies right, output by output."""
    counts = certificate.xnnpack.outputs

    def right(index: int) -> float | None:
        return certificate.accuracy.get(counts[index].name, {}).get(model)

    return Column(f"right, {MODEL_TITLES[model]}", right, _SHARE, number=True)


def _difference_columns(side: str, counts: Sequence[OutputCount]) -> list[Column[int]]:
    """How outputs differ from those of another model."""

    def same(index: int) -> float | None:
        return None if counts[index].is_values else counts[index].agreement

    return [
        Column(f"same class as {side}", same, _SHARE, number=True),
        Column("mean difference", lambda i: counts[i].mean_difference, _FOUR, number=True),
        Column("largest difference", lambda i: counts[i].largest_difference, _FOUR, number=True),
    ]


def output_table(certificate: CertificateRecord) -> Table[int]:
    """Returns the outputs, as a terminal shows them."""
    counts = certificate.xnnpack.outputs
    columns: list[Column[int]] = [
        Column("output", lambda index: counts[index].name, wrap="fold"),
        _accuracy_column(certificate, "tflite"),
        *_difference_columns(_REFERENCE_TITLES[certificate.reference], counts),
    ]
    return Table(columns=columns, rows=range(len(counts)))


def _outputs(certificate: CertificateRecord) -> Table[int]:
    """The outputs, where there is more to say than the table of runtimes does."""
    counts = certificate.xnnpack.outputs
    plain = all(len(count.shape) == 1 and not count.is_values for count in counts)
    if not certificate.float_outputs and len(counts) < 2 and plain:
        return Table(columns=[], rows=[])
    sides = {_REFERENCE_TITLES[certificate.reference]: counts}
    if certificate.float_outputs:
        sides["the float model"] = certificate.float_outputs

    def read_as(index: int) -> str:
        count = counts[index]
        by = f", by the {count.classes_by}" if count.classes_by else ""
        return "values" if count.is_values else f"classes of {sentence('places', count)}{by}"

    columns: list[Column[int]] = [
        Column("output", lambda index: Marked(counts[index].name, "name")),
        Column("shape", lambda index: counts[index].shape, _shape),
        Column("read as", read_as),
        *(
            _accuracy_column(certificate, model)
            for model in MODEL_TITLES
            if any(model in shares for shares in certificate.accuracy.values())
        ),
    ]
    for side, of_side in sides.items():
        channels = [
            "–" if each.values is None else sentence("channels", each.values) for each in of_side
        ]
        columns += _difference_columns(side, of_side)
        columns.append(Column(f"channels beside {side}", channels.__getitem__, wrap="fold"))
    columns.append(
        Column("standard deviation", lambda index: counts[index].spread, _FOUR, number=True)
    )
    return Table(columns=columns, rows=range(len(counts)))


# -- processors ------------------------------------------------------------------------------------


def _portability(certificate: CertificateRecord) -> Table[PortabilityClaim]:
    def differing(kernels: KernelSet) -> Column[PortabilityClaim]:
        # How many codes differ on the images, as far as that was simulated.
        simulated = [
            certificate.runtimes[each.name].tensors
            for each in RUNTIMES.values()
            if each.is_simulated and each.kernels is kernels and each.name in certificate.runtimes
        ]

        def show(claim: PortabilityClaim) -> Cell:
            if claim.is_float:
                return "not compared"
            if claim.is_behind_float:
                return Marked("not known", "watch")
            if claim.basis == Basis.IMAGES.value and kernels is not XNNPACK_SETS[0]:
                if not simulated:
                    return Marked("may differ", "watch")
                tensors = [tensor for tensor in simulated[0] if tensor.name in claim.tensors]
                codes = sum(tensor.codes_differing for tensor in tensors)
                compared = sum(tensor.codes_compared for tensor in tensors)
                return Marked(f"{sentence('counted', codes, compared)} differ", "watch")
            count = claim.differing.get(kernels.name, 0)
            return Marked(f"{count:,} differ", "bad") if count else "the same"

        return Column(kernels.title, show)

    columns: list[Column[PortabilityClaim]] = [
        Column("operators", lambda claim: claim.operators.replace("_2D", ""), wrap="fold"),
        Column("how many", lambda claim: len(claim.tensors), digits(","), number=True),
        Column("how that is known", lambda claim: claim.basis),
        Column("inputs tried", lambda claim: claim.inputs or None, digits(","), number=True),
        *map(differing, XNNPACK_SETS),
        Column("because", lambda claim: claim.why, wrap="fold"),
    ]
    return Table(columns=columns, rows=certificate.portability)


# -- tensors ---------------------------------------------------------------------------------------


def _tensors(certificate: CertificateRecord) -> Table[TensorCodes]:
    def used(tensor: TensorCodes) -> Markup:
        last = tensor.first + len(tensor.counts) - 1
        return histogram(tensor.counts, f"codes {tensor.first} to {last}")

    columns: list[Column[TensorCodes]] = [
        Column("tensor", lambda tensor: Marked(tensor.name, "name")),
        Column("operator", lambda tensor: tensor.operator.replace("_2D", "")),
        Column("shape", lambda tensor: tensor.shape, _shape),
        Column("bits", lambda tensor: tensor.bits),
        Column(
            "codes used", lambda tensor: f"{tensor.codes_used} of {len(tensor.counts)}", number=True
        ),
        Column("", used),
        Column("weights used", lambda tensor: len(tensor.weights) or None, number=True),
        Column("", lambda tensor: _weights(tensor.weights) if tensor.weights else None),
    ]
    columns += [
        _differing(name, differing) for name, differing in codes_differing(certificate).items()
    ]
    trained = {tensor.name: tensor for tensor in certificate.trained}
    if not trained:
        return Table(columns=columns, rows=certificate.codes)
    columns.append(
        _differing("Keras", {tensor.name: tensor.codes_differing for tensor in certificate.trained})
    )

    def by_itself(tensor: TensorCodes) -> Cell:
        count = trained.get(tensor.name)
        if count is None or not count.alone_compared:
            return ""
        share = f"{100 * count.alone_share:.3g} %"
        return Marked(share, "bad") if count.is_unexplained else share

    def saturated(tensor: TensorCodes) -> str:
        count = trained.get(tensor.name)
        if count is None or not count.saturated:
            return ""
        worst = f"{100 * count.worst_share:.3g} % of channel {count.worst_channel}"
        return f"{count.saturated:,} ({worst})"

    columns.append(Column("by itself", by_itself, number=True))
    columns.append(Column("saturated", saturated, number=True))
    return Table(columns=columns, rows=certificate.codes)


def _weights(counts: dict[int, int]) -> Markup:
    lowest, highest = min(counts), max(counts)
    # The DoReFa grid has odd codes only.
    stride = math.gcd(*(code - lowest for code in sorted(counts))) or 1
    places = [counts.get(code, 0) for code in range(lowest, highest + 1, stride)]
    return histogram(places, f"weight codes {lowest} to {highest}, {stride} apart")


def codes_differing(certificate: CertificateRecord) -> dict[str, dict[str, int]]:
    """Returns how many codes of each tensor differ, by runtime."""
    return {
        runtime: {tensor.name: tensor.codes_differing for tensor in count.tensors}
        for runtime, count in certificate.runtimes.items()
    }


def _differing(runtime: str, differing: Mapping[str, int]) -> Column[TensorCodes]:
    """How many codes of each tensor differ, marked where it should be none."""

    def show(count: int | None) -> Cell:
        if count is None:
            return ""
        return Marked(f"{count:,}", "bad") if count and runtime == "xnnpack" else f"{count:,}"

    return Column(
        f"differing, {runtime}", lambda tensor: differing.get(tensor.name), show, number=True
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
