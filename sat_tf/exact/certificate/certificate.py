"""The certificate: LiteRT computes the integers of the trained model, counted code by code."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import pydantic

from sat_tf.exact.certificate import rules
from sat_tf.exact.certificate.page import certificate_page, runtime_table
from sat_tf.exact.certificate.record import CertificateRecord
from sat_tf.files import check_writable, read_text, write_text
from sat_tf.messages import ProblemsError
from sat_tf.messages.charts import BAD, GOOD, Mark, write_overlay
from sat_tf.messages.tables import Cell, Displayed, Marked, Table
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

    def write_overlay(self, path: str | os.PathLike[str]) -> None:
        """Writes the measurements of each tensor, for Model Explorer to show on the file.

        Nodes show how many codes differ with XNNPACK, the bits of the codes, how many occur and
        their range; nodes whose codes differ are red.

        Args:
            path: the path of a .json file.

        Raises:
            ValueError: the path cannot be written.
        """
        codes = {tensor.name: tensor for tensor in self.codes}
        marks = {}
        for count in self.tensors:
            words = rules.sentence("codes_headline", self, count)
            if tensor := codes.get(count.name):
                low, high = (
                    tensor.step * (tensor.first + end) for end in (0, len(tensor.counts) - 1)
                )
                words += f"; {tensor.bits} bits, {tensor.codes_used} codes occur, "
                words += f"{low:.4g} to {high:.4g}"
            marks[count.name] = Mark(words, BAD if count.codes_differing else GOOD)
        write_overlay(path, "codes with XNNPACK", marks)

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
