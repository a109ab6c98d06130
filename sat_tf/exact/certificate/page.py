"""The tables of a certificate, and its page: one file that has no scripts and loads nothing."""

import math
from typing import Any

from markupsafe import Markup

from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.outputs import OutputCount
from sat_tf.exact.certificate.record import CertificateRecord, RuntimeCount
from sat_tf.exact.certificate.runtimes import PortabilityClaim, runtime_title
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.operations.operation import Basis
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.messages.charts import histogram
from sat_tf.messages.tables import Cell, Column, Marked, Table, digits, percent, render

# The model that outputs are compared with, by its name in a certificate.
_REFERENCE_TITLES = {"keras": "Keras", "simulation": "the simulation"}
_FOUR = digits(".4g")
# A share is missing where an output is a number, not a class.
_SHARE = percent(missing="–")
_Runtime = tuple[str, RuntimeCount]


def certificate_page(certificate: CertificateRecord) -> str:
    """Returns HTML that shows all of a certificate."""
    page = render(
        "exact/certificate/page.html",
        certificate=certificate,
        rules=rules,
        target=saved_processor(certificate.target).title,
        outputs=_outputs(certificate),
        models={
            name: title
            for name, title in rules.MODEL_TITLES.items()
            if any(name in shares for shares in certificate.accuracy.values())
        },
        sides=[_REFERENCE_TITLES[certificate.reference]]
        + ["the float model"] * bool(certificate.float_outputs),
        runtimes=runtime_table(certificate, titled=True),
        kernel_sets=XNNPACK_SETS,
        codes_on=_codes_on,
        trained={tensor.name: tensor for tensor in certificate.trained},
        codes_differing=codes_differing(certificate),
        histogram=histogram,
        weights=_weights,
    )
    return str(page)


def runtime_table(certificate: CertificateRecord, *, titled: bool = False) -> Table[Any]:
    """Returns the table of runtimes by name, or by title with the operators that XNNPACK takes."""

    def differing(row: _Runtime) -> Cell:
        name, count = row
        # Only XNNPACK's count must be 0.
        colour = rules.CODES.rules[0].headline if name == "xnnpack" else rules.RUNTIMES.note
        words = rules.sentence("counted", count.codes_differing, count.codes_compared)
        return Marked(words, colour if count.codes_differing else rules.CODES.rules[1].headline)

    def not_as_simulated(row: _Runtime) -> Cell:
        _, count = row
        if not count.own:
            return "simulated" if count.is_simulated else ""
        words = rules.sentence("counted", count.own_differing, count.own_compared)
        return Marked(words, rules.RUNTIMES.note if count.own_differing else rules.GREEN)

    def largest_error(row: _Runtime) -> float:
        values = [output.values for output in row[1].outputs if output.values is not None]
        return max(value.channels[0].error for value in values)

    def agreement(row: _Runtime) -> float | None:
        return row[1].agreement

    def largest_difference(row: _Runtime) -> float:
        return row[1].largest_output_difference

    def taken(row: _Runtime) -> str:
        extent = row[1].delegation
        return f"{extent.delegated} of {extent.operators} in {extent.partitions}" if extent else ""

    of = _REFERENCE_TITLES[certificate.reference]
    counts = certificate.runtimes.values()
    columns: list[Column[_Runtime]] = [
        Column("runtime", lambda row: runtime_title(row[0]) if titled else row[0], wrap="fold"),
        Column("codes differing", differing, number=True),
    ]
    if any(count.own or count.is_simulated for count in counts):
        columns.append(Column("not as simulated", not_as_simulated, number=True))
    columns += [
        Column("first that differs", lambda row: row[1].first_differing or "none", wrap="fold"),
        Column("top-1", lambda row: row[1].top1, percent(), number=True),
    ]
    outputs = [output for count in counts for output in count.outputs]
    if outputs and all(output.is_values for output in outputs):
        columns.append(Column(f"from {of}, std. dev.", largest_error, _FOUR, number=True))
    else:
        columns.append(Column(f"classes of {of}", agreement, _SHARE, number=True))
    columns.append(Column("largest difference", largest_difference, _FOUR, number=True))
    if titled:
        columns.append(Column("operators in XNNPACK, in pieces", taken))
    return Table(columns=columns, rows=list(certificate.runtimes.items()))


def _outputs(certificate: CertificateRecord) -> list[tuple[OutputCount, ...]]:
    """Returns the counts of each output by model; empty where the runtimes' counts say it all."""
    counts, beside_float = certificate.xnnpack.outputs, certificate.float_outputs
    plain = all(len(count.shape) == 1 and not count.is_values for count in counts)
    if not beside_float and len(counts) < 2 and plain:
        return []
    return list(zip(counts, beside_float, strict=False) if beside_float else zip(counts))


def _codes_on(claim: PortabilityClaim, kernels: KernelSet) -> Marked:
    """Returns how many codes of operators differ with other kernels, as far as that is known."""
    if claim.is_float:
        return Marked("not compared", "plain")
    colour = rules.PORTABILITY.rules[0].headline
    if claim.is_behind_float:
        return Marked("not known", colour)
    if claim.basis == Basis.IMAGES.value and kernels is not XNNPACK_SETS[0]:
        return Marked("may differ", colour)
    count = claim.differing.get(kernels.name, 0)
    return Marked(f"{count:,} differ", colour) if count else Marked("the same", "plain")


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
