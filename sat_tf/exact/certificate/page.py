"""The tables of a certificate, and its page: one file, without scripts and anything to load."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from markupsafe import Markup

from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.outputs import OutputCount
from sat_tf.exact.certificate.portability import PortabilityClaim
from sat_tf.exact.certificate.record import CertificateRecord, RuntimeCount
from sat_tf.exact.certificate.rules import sentence
from sat_tf.exact.certificate.runtimes import RUNTIMES, runtime_title
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.operations.operation import Basis
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.presentation.charts import histogram
from sat_tf.presentation.tables import Cell, Column, Marked, Table, digits, percent, render

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
    return render(
        "exact/certificate/page.html",
        certificate=certificate,
        rules=rules,
        target=saved_processor(certificate.target).title,
        titles=MODEL_TITLES,
        outputs=_outputs(certificate),
        models={
            name: title
            for name, title in MODEL_TITLES.items()
            if any(name in shares for shares in certificate.accuracy.values())
        },
        sides=[_REFERENCE_TITLES[certificate.reference]]
        + ["the float model"] * bool(certificate.float_outputs),
        runtimes=_runtimes(certificate),
        kernel_sets=XNNPACK_SETS,
        codes_on=_codes_on,
        trained={tensor.name: tensor for tensor in certificate.trained},
        codes_differing=codes_differing(certificate),
        histogram=histogram,
        weights=_weights,
    )


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
            _RuntimeRow(runtime_title(name), name, count, count.top1)
            for name, count in certificate.runtimes.items()
        ],
    )


def output_table(certificate: CertificateRecord) -> Table[OutputCount]:
    """Returns the outputs, as a terminal shows them."""

    def right(count: OutputCount) -> float | None:
        return certificate.accuracy.get(count.name, {}).get("tflite")

    def same(count: OutputCount) -> float | None:
        return None if count.is_values else count.agreement

    reference = _REFERENCE_TITLES[certificate.reference]
    columns: list[Column[OutputCount]] = [
        Column("output", lambda count: count.name, wrap="fold"),
        Column("right, LiteRT", right, _SHARE, number=True),
        Column(f"same class as {reference}", same, _SHARE, number=True),
        Column("mean difference", lambda count: count.mean_difference, _FOUR, number=True),
        Column("largest difference", lambda count: count.largest_difference, _FOUR, number=True),
    ]
    return Table(columns=columns, rows=certificate.xnnpack.outputs)


def _outputs(certificate: CertificateRecord) -> list[tuple[OutputCount, ...]]:
    """Each output beside every model, where there is more to say than of runtimes; else none."""
    counts, beside_float = certificate.xnnpack.outputs, certificate.float_outputs
    plain = all(len(count.shape) == 1 and not count.is_values for count in counts)
    if not beside_float and len(counts) < 2 and plain:
        return []
    return list(zip(counts, beside_float, strict=False) if beside_float else zip(counts))


def _codes_on(
    certificate: CertificateRecord, claim: PortabilityClaim, kernels: KernelSet
) -> Marked:
    """How many codes of operators differ on other processors, as far as that was simulated."""
    if claim.is_float:
        return Marked("not compared", "plain")
    if claim.is_behind_float:
        return Marked("not known", "watch")
    if claim.basis == Basis.IMAGES.value and kernels is not XNNPACK_SETS[0]:
        for runtime in RUNTIMES.values():
            is_other = runtime.is_simulated and runtime.kernels is kernels
            if is_other and runtime.name in certificate.runtimes:
                tensors = certificate.runtimes[runtime.name].tensors
                of_claim = [tensor for tensor in tensors if tensor.name in claim.tensors]
                codes = sum(tensor.codes_differing for tensor in of_claim)
                compared = sum(tensor.codes_compared for tensor in of_claim)
                return Marked(f"{sentence('counted', codes, compared)} differ", "watch")
        return Marked("may differ", "watch")
    count = claim.differing.get(kernels.name, 0)
    return Marked(f"{count:,} differ", "bad") if count else Marked("the same", "plain")


def _weights(counts: dict[int, int]) -> Markup | str:
    if not counts:
        return ""
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
