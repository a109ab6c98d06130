"""The certificate as a page to read: one file, without scripts and without anything to load."""

import math
import os
import pathlib
from collections.abc import Sequence

from markupsafe import Markup

from sat_tf.exact.certificate.certificate import FLOAT_RULE, PARTING_RULE, Certificate, TensorCodes
from sat_tf.exact.certificate.outputs import OutputCount
from sat_tf.exact.certificate.runtimes import (
    MODEL_TITLES,
    NOT_SAID,
    REFERENCE_TITLES,
    RUNTIMES,
    Hold,
    RuntimeRow,
    runtime_columns,
    shown_share,
    verdict_of,
)
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.operations.operation import Basis
from sat_tf.files import check_writable, write_text
from sat_tf.presentation.charts import histogram
from sat_tf.presentation.tables import Cell, Column, Marked, Table, digits, percent, render_page


def check_certificate_path(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """The paths of a certificate and of its page: the page has the suffix .html."""
    path = check_writable(path)
    beside = path.with_suffix(".html")
    if beside == path:
        raise ValueError(
            f"{path}: received the name of a page, expected that of a JSON file; the page goes "
            "beside it: end the name with .json."
        )
    return path, check_writable(beside)


def write_both(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Writes a certificate and, beside it, its page; each file appears whole, or not at all."""
    path, beside = check_certificate_path(path)
    certificate.write(path)
    write_text(beside, certificate_page(certificate))


def certificate_page(certificate: Certificate) -> str:
    """HTML that shows all of a certificate."""
    return render_page(
        "exact/certificate/page.html",
        certificate=certificate,
        float_rule=FLOAT_RULE,
        verdict=certificate.verdict,
        num_images=f"{certificate.num_images:,}",
        first=certificate.runtimes["xnnpack"].first_differing,
        parting_rule=PARTING_RULE,
        trained_differing=percent(4)(certificate.trained_differing) if certificate.trained else "",
        facts={
            "File": f"{certificate.bytes:,} bytes, {certificate.gzip_bytes:,} after gzip",
            "SHA-256": certificate.sha256,
            "Model": certificate.model,
            "Target": certificate.target_title,
            "Operators": ", ".join(
                f"{count} {name}" for name, count in certificate.operators.items()
            ),
            "Float operators": ", ".join(certificate.float_operators) or "none",
            "Layers left float": ", ".join(certificate.islands),
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
        outputs=_outputs(certificate),
        runtimes=_runtimes(certificate).to_html("Runtimes"),
        refused={RUNTIMES[name].title: why for name, why in certificate.refused.items()},
        holds=_holds(certificate).to_html("Where this holds") if certificate.holds else "",
        holds_verdict=verdict_of(certificate.holds),
        not_said=NOT_SAID,
        tensors=_tensors(certificate).to_html("Tensors"),
    )


def _outputs(certificate: Certificate) -> str:
    """A table of the outputs, where there is more to say than the table of runtimes does."""
    counts = certificate.runtimes["xnnpack"].outputs
    plain = all(len(count.shape) == 1 and not count.is_values for count in counts)
    if not certificate.float_outputs and len(counts) < 2 and plain:
        return ""
    models = [
        name for name in MODEL_TITLES if any(name in a for a in certificate.accuracy.values())
    ]
    sides = {REFERENCE_TITLES[certificate.reference]: counts}
    if certificate.float_outputs:
        sides["the float model"] = certificate.float_outputs

    def read_as(index: int) -> str:
        count = counts[index]
        by = f", by the {count.classes_by}" if count.classes_by else ""
        return "values" if count.is_values else f"classes of {count.places:,} {count.what}{by}"

    columns: list[Column[int]] = [
        Column("output", lambda index: Marked(counts[index].name, "name")),
        Column("shape", lambda index: counts[index].shape, _shape),
        Column("read as", read_as),
        *(accuracy_column(certificate, name) for name in models),
    ]
    for side, compared in sides.items():
        channels = ["–" if each.values is None else str(each.values) for each in compared]
        columns += difference_columns(side, compared)
        columns.append(Column(f"channels beside {side}", channels.__getitem__, wrap="fold"))
    columns.append(
        Column("standard deviation", lambda index: counts[index].spread, _FOUR, number=True)
    )
    return Table(columns=columns, rows=range(len(counts))).to_html("Outputs")


def accuracy_column(certificate: Certificate, model: str) -> Column[int]:
    """The share of places that a model of `MODEL_TITLES` classifies right, output by output."""
    counts = certificate.runtimes["xnnpack"].outputs

    def right(index: int) -> float | None:
        return certificate.accuracy.get(counts[index].name, {}).get(model)

    return Column(f"right, {MODEL_TITLES[model]}", right, shown_share, number=True)


def difference_columns(side: str, found: Sequence[OutputCount]) -> list[Column[int]]:
    """How outputs differ from those of another model."""

    def same(index: int) -> float | None:
        return None if found[index].is_values else found[index].agreement

    return [
        Column(f"same class as {side}", same, shown_share, number=True),
        Column("mean difference", lambda i: found[i].mean_difference, _FOUR, number=True),
        Column("largest difference", lambda i: found[i].largest_difference, _FOUR, number=True),
    ]


def _runtimes(certificate: Certificate) -> Table[RuntimeRow]:
    def pieces(row: RuntimeRow) -> str:
        if row.found is None or row.found.delegation is None:
            return ""
        taken = row.found.delegation
        piece = f"piece{'s' if taken.partitions != 1 else ''}"
        return f"{taken.delegated} of {taken.operators} in {taken.partitions} {piece}"

    return Table(
        columns=[
            *runtime_columns(certificate.runtimes, certificate.reference),
            Column("operators in XNNPACK", pieces),
        ],
        rows=[
            RuntimeRow(RUNTIMES[name].title, name, count, count.top1)
            for name, count in certificate.runtimes.items()
        ],
    )


def _holds(certificate: Certificate) -> Table[Hold]:
    def differing(kernels: KernelSet) -> Column[Hold]:
        # How many codes differ on the images, as far as that was simulated.
        simulated = [
            certificate.runtimes[each.name].tensors
            for each in RUNTIMES.values()
            if each.is_simulated and each.kernels is kernels and each.name in certificate.runtimes
        ]

        def show(hold: Hold) -> Cell:
            if hold.is_float:
                return "not compared"
            if hold.basis == Basis.BEHIND_FLOAT.value:
                return Marked("not known", "watch")
            if hold.basis == Basis.IMAGES.value and kernels is not XNNPACK_SETS[0]:
                if not simulated:
                    return Marked("may differ", "watch")
                tensors = [tensor for tensor in simulated[0] if tensor.name in hold.tensors]
                codes = sum(tensor.codes_differing for tensor in tensors)
                compared = sum(tensor.codes_compared for tensor in tensors)
                return Marked(f"{codes:,} of {compared:,} differ", "watch")
            count = hold.differing.get(kernels.name, 0)
            return Marked(f"{count:,} differ", "bad") if count else "the same"

        return Column(kernels.title, show)

    columns: list[Column[Hold]] = [
        Column("operators", lambda hold: hold.operators.replace("_2D", ""), wrap="fold"),
        Column("how many", lambda hold: len(hold.tensors), digits(","), number=True),
        Column("how that is known", lambda hold: hold.basis),
        Column("inputs tried", lambda hold: hold.inputs or None, digits(","), number=True),
        *map(differing, XNNPACK_SETS),
        Column("because", lambda hold: hold.why, wrap="fold"),
    ]
    return Table(columns=columns, rows=certificate.holds)


def _tensors(certificate: Certificate) -> Table[TensorCodes]:
    def used(tensor: TensorCodes) -> Markup:
        first = tensor.lowest - tensor.zero_point
        return histogram(tensor.counts, f"codes {first} to {first + len(tensor.counts) - 1}")

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
    counts = {name: count.tensors for name, count in certificate.runtimes.items()}
    if certificate.trained:
        counts["Keras"] = list(certificate.trained)
    for name, tensors in counts.items():
        columns.append(
            _differing(name, {tensor.name: tensor.codes_differing for tensor in tensors})
        )
    trained = {tensor.name: tensor for tensor in certificate.trained}

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

    if trained:
        columns.append(Column("by itself", by_itself, number=True))
        columns.append(Column("saturated", saturated, number=True))
    return Table(columns=columns, rows=certificate.codes)


def _weights(counts: dict[int, int]) -> Markup:
    lowest, highest = min(counts), max(counts)
    # The DoReFa grid has odd codes only.
    stride = math.gcd(*(code - lowest for code in sorted(counts))) or 1
    places = [counts.get(code, 0) for code in range(lowest, highest + 1, stride)]
    return histogram(places, f"weight codes {lowest} to {highest}, {stride} apart")


def _differing(runtime: str, differing: dict[str, int]) -> Column[TensorCodes]:
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


_FOUR = digits(".4g")
