"""The certificate: LiteRT computes the integers of the trained model, counted code by code."""

import dataclasses
import json
import math
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic
from markupsafe import Markup

from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.output_comparison import OutputCount
from sat_tf.exact.certificate.record import CertificateRecord, RuntimeCount
from sat_tf.exact.certificate.runtimes import PortabilityClaim, runtime_title
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.operations.operation import Basis
from sat_tf.exact.targets.processors import saved_processor
from sat_tf.files import check_writable, read_text, write_text
from sat_tf.messages import ProblemsError
from sat_tf.messages.charts import histogram
from sat_tf.messages.tables import Cell, Column, Displayed, Marked, Table, digits, percent, render
from sat_tf.messages.validation import describe

_Record = TypeVar("_Record")
_LISTS_OF_NUMBERS = re.compile(r"\[[-\d,\s]*\]")


@dataclasses.dataclass(frozen=True, repr=False)
class Certificate(Displayed, CertificateRecord):
    """The proof `verify_tflite` gives, in two parts.

    `runtimes` says whether LiteRT computes the integers of the deployed model, which is exact
    with XNNPACK or not at all. `trained` says how far the deployed model is from the Keras model,
    whose biases need not be on the grid of a file: `sat_tf.export.snap_biases` brings them there.
    """

    @property
    def verdict(self) -> Marked:
        """The headline: the loss against the float model, and the number of codes that differ."""
        return rules.verdict(self)

    @property
    def differing(self) -> Marked:
        """The headline on codes: how many differ, and what keeps it from being green."""
        return rules.codes_headline(self)

    @property
    def is_exact(self) -> bool:
        """Whether nothing is wrong: no code differs, and the rest of `differing` is not red."""
        return self.differing.kind != "bad"

    @property
    def statements(self) -> list[Marked]:
        """All sentences other than the verdict, in the order in which they are shown."""
        return rules.notes_on(self)

    @property
    def trained_notes(self) -> list[Marked]:
        """Sentences on the differences between the file and the quantized Keras model."""
        return rules.notes_on(self, rules.BESIDE_KERAS)

    @property
    def float_notes(self) -> list[Marked]:
        """The comparison of the file with the float model, one line for each output."""
        return rules.FLOAT.notes(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        values = dataclasses.asdict(self)
        totals = ("codes_compared", "codes_differing", "first_differing")
        for name, count in self.runtimes.items():
            counts = {total: getattr(count, total) for total in totals}
            values["runtimes"][name] = {**counts, **values["runtimes"][name]}
        if values["sequence"] is None:  # as for files from before states
            del values["sequence"]
        else:
            values["states_notes"] = [note._asdict() for note in rules.STATES.notes(self)]
        return {
            "codes_compared": self.codes_compared,
            "codes_differing": self.codes_differing,
            "trained_differing": self.trained_differing if self.trained else None,
            "saturated": self.saturated if self.trained else None,
            "verdict": self.verdict._asdict(),
            "few_images": rules.few_images(self),
            "trained_notes": [note._asdict() for note in self.trained_notes],
            "is_portable": self.is_portable,
            "float_notes": [note._asdict() for note in self.float_notes],
            **values,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the certificate as JSON; the file appears whole, or not at all.

        Raises:
            ValueError: the path cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=2)
        # A line for each of 256 counts would hide the rest.
        text = _LISTS_OF_NUMBERS.sub(lambda numbers: " ".join(numbers[0].split()), text)
        write_text(path, text + "\n")

    def _headline(self) -> Marked:
        words = f"{self.verdict.words} ({self.file}, {self.num_images:,} images)"
        return Marked(words, self.verdict.kind)

    def _tables(self) -> dict[str, Table[Any]]:
        return {"Runtimes": runtime_table(self)}

    def _notes(self) -> Sequence[Cell]:
        top1 = [f"top-1: {rules.sentence('top1', self)}"] if self.top1 else []
        return [*self.statements, *top1]


def check_certificate_path(path: str | os.PathLike[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """Returns the paths of a certificate and of its page: the page has the suffix .html."""
    path = check_writable(path)
    if path.suffix == ".html":
        raise ValueError(
            f"{path}: received the name of a page, expected that of a JSON file; the page goes "
            "beside it: end the name with .json."
        )
    return path, check_writable(path.with_suffix(".html"))


def write_both(certificate: Certificate, path: str | os.PathLike[str]) -> None:
    """Writes a certificate and, beside it, its page; each file appears whole, or not at all."""
    path, beside = check_certificate_path(path)
    certificate.write(path)
    write_text(beside, certificate_page(certificate))


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """Returns the certificate in a JSON file.

    Raises:
        ValueError: there is no such file, or it holds no certificate; lists all that it lacks.
    """
    path = pathlib.Path(path)
    values = read_json(path, "sat-tf verify")
    fix = "Expected a certificate of this version; create it again with sat-tf verify."
    certificate = as_record(Certificate, values, path, fix)
    if "xnnpack" not in certificate.runtimes:
        raise ValueError(
            f"{path}: received a certificate without XNNPACK, expected one that sat-tf verify has "
            "written; create it again."
        )
    return certificate


def read_json(path: pathlib.Path, author: str, again: str = "") -> Any:
    """Returns the values in the certificate that a command or a script has written as JSON."""
    expected = f"expected the certificate that {author} has written"
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; {expected}.") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: received a file that is not JSON ({error}), {expected}{again}."
        ) from error


def as_record(record: type[_Record], values: Any, path: pathlib.Path, fix: str) -> _Record:
    """Returns the record of a class in the values of a JSON file."""
    try:
        return pydantic.TypeAdapter(record).validate_python(values)
    except pydantic.ValidationError as error:
        raise ProblemsError(str(path), describe(error), fix) from error


# -- the page: one file that has no scripts and loads nothing --------------------------------------

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

    def taken(row: _Runtime) -> str:
        extent = row[1].delegation
        return f"{extent.delegated} of {extent.operators} in {extent.partitions}" if extent else ""

    def largest_difference(row: _Runtime) -> float:
        return row[1].largest_output_difference

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
        of_classes = f"classes of {of}"
        columns.append(Column(of_classes, lambda row: row[1].agreement, _SHARE, number=True))
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
