"""The certificate: LiteRT computes the integers of the trained model, counted code by code."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import pydantic

from sat_tf.exact.certificate.inputs import CheckedRange, ImagesFrom, kind_of_ranges
from sat_tf.exact.certificate.outputs import FEWEST_VALUES, MOST_ERROR, OutputCount
from sat_tf.exact.certificate.runtimes import (
    FEW_CODES,
    MOST_UNEXPLAINED,
    RUNTIMES,
    Hold,
    RuntimeCount,
    TensorCount,
    TrainedCount,
    are_portable,
    runtime_table,
    verdict_of,
)
from sat_tf.exact.litert.processes import Machine
from sat_tf.exact.targets.processors import DEFAULT_TARGET, saved_processor
from sat_tf.files import read_text, write_text
from sat_tf.messages import MOST_OF_A_FILE, ProblemsError
from sat_tf.presentation.overlay import BAD, GOOD, Mark, write_overlay
from sat_tf.presentation.tables import Cell, Displayed, Marked, Table, points
from sat_tf.validation import describe

# How far the file and a Keras model, float or quantized, may differ in accuracy, or in classes,
# before it is shown in amber and in red. What values may differ by stands in `outputs`.
ONE_POINT, FEW_POINTS = 0.01, 0.03
LOSS_RULE = (
    f"A loss beside the float model is amber where it is more than {100 * ONE_POINT:g} point, and "
    f"red where it is more than {100 * FEW_POINTS:g}: of accuracy or, without labels, of images "
    "with its class."
)
FLOAT_RULE = (
    f"{LOSS_RULE} Red is also accuracy or, without labels, classes that differ by more than "
    f"{100 * FEW_POINTS:g} points in any direction; of values, a channel that differs by more than "
    f"{MOST_ERROR:g} of its standard deviations (root mean square), or of which fewer than "
    f"{FEWEST_VALUES} different values are left. An output holds classes where a softmax, a "
    "sigmoid, labels or the float model's loss say so, else values; of many sigmoids, classes and "
    "values must both differ."
)
# The class of so many images may differ from the quantized model's, however few there are: they
# may be ties.
_FEW_PLACES = 5
# So many images tell whether answers are kept: the share that may differ is one of them. Whether
# codes are equal one image tells. Of an image with many answers, such as pixels, fewer images tell
# that answers part, and not that they are kept.
FEWEST_IMAGES = 30
# Once biases are those of the file, fewer codes of a convolution differ by themselves.
_SNAPPED = 0.005
# A sentence names so many of the tensors whose codes differ by themselves.
_MOST_NAMED = 5
# The headline is green where no larger share of a tensor saturates in the file and not in Keras.
MOST_SATURATED = 0.01

_Record = TypeVar("_Record")
_KINDS = ("good", "watch", "bad")
_LISTS_OF_NUMBERS = re.compile(r"\[[-\d,\s]*\]")


def kind_of_loss(lost: float) -> str:
    """The kind of a `Marked` loss of accuracy, as a share; see `LOSS_RULE`.

    >>> [kind_of_loss(lost) for lost in (-0.05, 0.01, 0.02, 0.3, float("nan"))]
    ['good', 'good', 'watch', 'bad', 'bad']
    """
    return "good" if lost <= ONE_POINT else "watch" if lost <= FEW_POINTS else "bad"


def severest(headlines: Iterable[Marked]) -> Marked | None:
    """The first of the headlines with the worst kind; None of none."""
    return max(headlines, key=lambda headline: _KINDS.index(headline.kind), default=None)


def _is_off(count: OutputCount, *, classes_differ: bool) -> bool:
    """Whether an output is another function than the reference's."""
    if count.values is None:
        return classes_differ
    # Numbers of sigmoids that are close may be on both sides of a half.
    return count.values.is_bad and (count.is_values or classes_differ)


def _beside_float(
    count: OutputCount, right: Mapping[str, float], *, several: bool
) -> tuple[Marked, Marked]:
    """What an output keeps of the float model, in short and in all; see `FLOAT_RULE`.

    Accuracy tells it, or without labels its classes, or its values.
    """
    values_are_off = count.values is not None and count.values.is_bad
    agreement = 1.0 if count.agreement is None else count.agreement
    has_classes = count.agreement is not None and not count.is_values
    share = f"{100 * agreement:.2f} % of {count.places:,} {count.what}"
    parts, classes_differ = [], not agreement >= 1.0 - FEW_POINTS
    if "float" in right:
        lost, accuracy = right["float"] - right["tflite"], f"{100 * right['tflite']:.2f} % right"
        # Where labels tell which of two classes is right, accuracy says what another one costs.
        classes_differ = not abs(lost) <= FEW_POINTS
        short = f"{accuracy}, {100 * lost:.2f} points below the float model"
        kind = kind_of_loss(lost)
        parts.append(
            f"{accuracy}, the float model {100 * right['float']:.2f} % ({points(-lost)} points)"
        )
    elif has_classes:
        short = f"{share} have the class of the float model"
        is_near = count.values is not None and not values_are_off
        kind = "good" if is_near else kind_of_loss(1.0 - agreement)
    else:
        short = "values as the float model's"
        if values_are_off:
            short = "values are off beside the float model"
        kind = "bad" if values_are_off else "good"
    if has_classes:
        parts.append(f"the same class as the float model for {share}")
    if not right:
        spread = f"their standard deviation is {count.spread:.4g}"
        parts.append(
            f"values differ from the float model's by {count.mean_difference:.4g} in the mean and "
            f"{count.largest_difference:.4g} at most ({count.values or spread})"
        )
    if count.agreement is not None and count.is_values:
        parts.append(f"if the channels are classes, which nothing says, the same one for {share}")
    is_bad = _is_off(count, classes_differ=classes_differ)
    if "float" in right:
        is_bad |= classes_differ
    where = f"{count.name}: " if several else ""
    words = f"Beside the float model: {where}{'; '.join(parts)}"
    return Marked(short, kind), Marked(words, "bad" if is_bad else kind)


PARTING_RULE = (
    f"Answers part where more than {100 * FEW_POINTS:g} % of images, pixels, rows or boxes, and "
    f"more than {_FEW_PLACES} of them, have another class than from the quantized Keras model; of "
    "values, where a channel is off by the rule for values; of sigmoids, where both hold. Fewer "
    f"than {FEWEST_IMAGES} answers cannot tell, and of fewer than {FEWEST_IMAGES} images the "
    "headline is not green."
)


@dataclasses.dataclass(frozen=True)
class TensorCodes:
    """The codes that a tensor uses, counted in the simulation over all images."""

    name: str  # Of the tensor.
    operator: str  # That makes it.
    shape: tuple[int, ...]  # Without the batch dimension.
    bits: int  # That its codes need.
    step: float  # Real value of one code in the units of the file.
    zero_point: int  # The stored integer of real 0.
    lowest: int  # Smallest stored integer.
    counts: list[int]  # How often each stored integer from `lowest` on occurs.
    sha256: str  # Hash of all of them, as int8, image by image.
    # How often each weight code of the operator occurs, without the factor that codes are
    # multiplied by; empty where it has no weights.
    weights: dict[int, int]

    @property
    def codes_used(self) -> int:
        """How many different codes occur."""
        return sum(count > 0 for count in self.counts)


@dataclasses.dataclass(frozen=True, repr=False)
class Certificate(Displayed):
    """The proof `verify_tflite` gives, in two parts.

    `runtimes` says whether LiteRT computes the integers of the deployed model, which is exact
    with XNNPACK or not at all. `trained` says how far the deployed model is from the Keras model,
    whose biases need not be on the grid of a file: `sat_tf.export.snap_biases` brings them there.

    Attributes:
        model: name of the Keras model.
        file: name of the TFLite file.
        bytes: its size.
        gzip_bytes: its size after gzip.
        sha256: its hash.
        operators: how many operators of each kind.
        float_operators: the operators that read or make float tensors, with the tensor they make.
        islands: the layers that are left float; tensors behind them are compared given the
            runtime's outputs of these layers.
        versions: of the packages and the platform.
        num_images: how many images were run.
        images_sha256: hash of their bytes.
        images_from: where they come from.
        reference: "keras" where outputs are compared with those of the Keras model, else
            "simulation".
        agreement: share of images, or of the pixels, rows or boxes of them, with the same class in
            the reference and in LiteRT; the smallest of several outputs, which `runtimes` lists one
            by one; None where no output has classes.
        top1: share of these classified right, by "quantized" (Keras), "simulation", "tflite"
            (LiteRT with XNNPACK) and "float", where there is a float model; empty without labels,
            and with those of several outputs.
        runtimes: the comparison with the simulation, by runtime. Only "xnnpack", the one LiteRT
            uses by itself, must be exact.
        refused: why other runtimes do not run the file, by runtime.
        codes: which codes every integer tensor uses, producers first.
        trained: the comparison of the Keras model with the simulation, for every integer tensor
            that one of its layers makes. Empty without the Keras model.
        warnings: what to know about the file.
        accuracy: `top1` of every output that has labels, by its name.
        float_model: name of the float model that the file is compared with; None without one.
        float_outputs: each output of the file, as LiteRT with XNNPACK computes it, against that of
            the float model, on the same images; empty without one.
        machine: where LiteRT ran; None in certificates of earlier versions.
        holds: on which processors each operator has these codes, and why; empty in certificates of
            earlier versions.
        target: the processor that the file is for; that of LiteRT's kernels where it says nothing.
        elsewhere: the operators that an NPU leaves to the CPU, each with why and what to change, by
            the targets for which `sat-tf verify` has looked.
        input_ranges: the range of each image input, and what tells that the float model was trained
            with it; empty of a file alone, which knows nothing of that model, and in certificates
            of earlier versions.
        has_biases_of_file: whether the Keras model has taken the biases of the file, as with
            `snap_biases=True`; False where nothing differs, and in those of earlier versions.
    """

    model: str
    file: str
    bytes: int
    gzip_bytes: int
    sha256: str
    operators: dict[str, int]
    float_operators: list[str]
    islands: list[str]
    versions: dict[str, str]
    num_images: Annotated[int, pydantic.Field(ge=1)]
    images_sha256: str
    images_from: ImagesFrom
    reference: str
    agreement: float | None
    top1: dict[str, float]
    runtimes: dict[str, RuntimeCount]
    refused: dict[str, str]
    codes: list[TensorCodes]
    trained: list[TrainedCount]
    warnings: list[str]
    # These have defaults, as a new field needs one, so that older certificates can be read.
    accuracy: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    float_model: str | None = None
    float_outputs: list[OutputCount] = dataclasses.field(default_factory=list)
    machine: Machine | None = None
    holds: list[Hold] = dataclasses.field(default_factory=list)
    target: str = DEFAULT_TARGET
    elsewhere: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    input_ranges: list[CheckedRange] = dataclasses.field(default_factory=list)
    has_biases_of_file: bool = False

    @property
    def codes_compared(self) -> int:
        """Stored integers compared between LiteRT with XNNPACK and the simulation."""
        return self.runtimes["xnnpack"].codes_compared

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return self.runtimes["xnnpack"].codes_differing

    @property
    def tensors(self) -> list[TensorCount]:
        """The comparison with XNNPACK by tensor."""
        return self.runtimes["xnnpack"].tensors

    @property
    def float_verdict(self) -> str:
        """The comparison of float values beside the outputs; empty without any."""
        if len(self.float_operators) < 2:
            return ""
        xnnpack = self.runtimes["xnnpack"]
        return (
            f"{xnnpack.float_values_compared:,} float values, which no runtime computes exactly, "
            f"differ by at most {xnnpack.largest_float_difference:.3g}"
        )

    @property
    def _beside_float(self) -> list[tuple[Marked, Marked]]:
        """What each output keeps of the float model; not red where its answers are too few."""
        pairs, several = [], len(self.float_outputs) > 1
        for count in self.float_outputs:
            notes = _beside_float(count, self.accuracy.get(count.name, {}), several=several)
            short, note = (
                note._replace(kind="watch") if note.kind == "bad" and self._are_few(count) else note
                for note in notes
            )
            pairs.append((short, note))
        return pairs

    @property
    def float_notes(self) -> list[Marked]:
        """The comparison of the file with the float model, one line an output; see `FLOAT_RULE`."""
        return [note for _, note in self._beside_float]

    @property
    def few_images(self) -> str:
        """Says that there are too few images to judge answers; empty where there are enough.

        Also empty where no other model's answers are compared: codes are equal or not.
        """
        is_compared = self.reference == "keras" or self.float_outputs
        if self.num_images >= FEWEST_IMAGES or not is_compared:
            return ""
        images = "1 image" if self.num_images == 1 else f"{self.num_images} images"
        return f"{images} cannot tell whether answers are kept, {FEWEST_IMAGES} or more can"

    def _are_few(self, count: OutputCount) -> bool:
        """Whether an output has too few answers to be red; see `FEWEST_IMAGES`."""
        return max(count.places, self.num_images) < FEWEST_IMAGES

    @property
    def of_float(self) -> Marked | None:
        """Says what the output that loses most keeps of the float model; see `LOSS_RULE`.

        Random images may be near to many ties: nothing about them is red.
        """
        most = severest(short for short, _ in self._beside_float)
        is_red_by_chance = most and most.kind == "bad" and self.images_from.seed is not None
        return most._replace(kind="watch") if most and is_red_by_chance else most

    @property
    def statements(self) -> list[Marked]:
        """All that is to be known beside the verdict, in the order in which it is shown."""
        return [
            *self.trained_notes,
            *self.float_notes,
            *(one.statement for one in self.input_ranges),
            *(
                Marked(f"{RUNTIMES[name].title} does not run the file: {why}", "plain")
                for name, why in self.refused.items()
            ),
            *([verdict_of(self.holds)] if self.holds else []),
            *([Marked(self.measured_on, "plain")] if self.measured_on else []),
            *([Marked(self.beyond_proof, "watch")] if self.beyond_proof else []),
            *(Marked(line, "watch") for line in self.left_to_the_cpu),
            *(Marked(f"Note: {warning}", "watch") for warning in self.warnings),
        ]

    @property
    def left_to_the_cpu(self) -> list[str]:
        """The operators that targets leave to the CPU: how many, and a line for each."""
        lines, count = [], sum(self.operators.values())
        for name, found in self.elsewhere.items():
            if found:
                lines.append(saved_processor(name).shortfall(len(found), count))
                lines += found
        return lines

    @property
    def _outputs_beside_keras(self) -> list[OutputCount]:
        """The outputs, as they compare with the quantized Keras model's; none without it."""
        return self.runtimes["xnnpack"].outputs if self.reference == "keras" else []

    @property
    def parting(self) -> list[str]:
        """How outputs of the file part from the quantized Keras model's; see `PARTING_RULE`."""
        sentences = []
        for count in self._outputs_beside_keras:
            differing = round((1.0 - (count.agreement or 0.0)) * count.places)
            classes_differ = differing > max(FEW_POINTS * count.places, _FEW_PLACES)
            if self._are_few(count) or not _is_off(count, classes_differ=classes_differ):
                continue
            classes = f"another class for {differing:,} of {count.places:,} {count.what}"
            values = f"values differ by {count.values}"
            sentences.append(f"{count.name}: {values if count.is_values else classes}")
        return sentences

    @property
    def saturated(self) -> int:
        """Values of the Keras model that the file saturates, and Keras does not."""
        return sum(tensor.saturated for tensor in self.trained)

    @property
    def trained_notes(self) -> list[Marked]:
        """Sentences on where the file computes something else than the quantized Keras model.

        In red where its answers part, except on random images, which may be near to many ties.
        """
        kind = "watch" if self.images_from.seed is not None else "bad"
        rounds = not self.has_biases_of_file and any(
            t.explained_share and t.alone_share > _SNAPPED for t in self.trained
        )
        why = (
            "; the file has rounded biases and the model has not: export with snap_biases=True, or "
            "call sat_tf.export.snap_biases(model), and the model has those of its file"
        ) * rounds
        notes = [Marked(f"The file's answers part: {text}{why}", kind) for text in self.parting]
        for count in self._outputs_beside_keras:
            if count.ties and not count.is_values:
                words = (
                    f"{count.name}: {count.ties:,} of {count.places:,} {count.what} have several "
                    "largest values in the file, whose codes have 8 bits, and one in Keras; their "
                    "class is the first of these. Where a float layer at the end is of use, "
                    "float_head=True (export.float_head of a run) tells them apart"
                )
                is_much = count.ties > ONE_POINT * count.places
                notes.append(Marked(words, "watch" if is_much else "plain"))
        if self.saturated:
            most = max(self.trained, key=lambda tensor: tensor.saturated_share)
            words = (
                f"{self.saturated:,} values of Keras are beyond the range that was observed, where "
                f"the file saturates: {100 * most.saturated_share:.2g} % of those of {most.name}, "
                f"and {100 * most.worst_share:.2g} % of those of its channel {most.worst_channel}; "
                "call sat_tf.calibrate(model, images, clipping_levels=False) with more images, "
                "which widens the range to what they reach, and export it again"
            )
            notes.append(Marked(words, "watch" if self._saturates else "plain"))
        makers = {tensor.name: f"{tensor.name} ({tensor.operator})" for tensor in self.codes}
        unexplained = [tensor for tensor in self.trained if tensor.is_unexplained]
        first = next((tensor for tensor in self.trained if tensor.alone_differing), None)
        if first and not unexplained and self.trained_differing > MOST_UNEXPLAINED:
            begin = why or (
                f": {first.alone_differing:,} of {first.alone_compared:,} codes of "
                f"{makers[first.name]} do by themselves, at ties or by a rounded constant, and "
                "what reads them follows"
            )
            words = f"{100 * self.trained_differing:.3g} % of the codes of Keras differ{begin}"
            notes.append(Marked(words, "plain" if why else "watch"))
        if unexplained:
            named = [
                f"{makers[tensor.name]} {100 * tensor.alone_share:.3g} %"
                for tensor in unexplained[:_MOST_NAMED]
            ]
            words = (
                "More codes differ from what Keras makes of the same inputs than rounding of "
                f"biases explains: {', '.join(named)}"
            )
            if more := len(unexplained) - len(named):
                words += f" and {more} more tensors"
            notes.append(Marked(words, "watch"))
        return notes

    @property
    def is_exact(self) -> bool:
        """Whether nothing is wrong: no code differs, and no note on the Keras model is red."""
        notes = (*self.trained_notes, *(one.statement for one in self.input_ranges))
        return not self.codes_differing and all(note.kind != "bad" for note in notes)

    @property
    def verdict(self) -> Marked:
        """Says what is lost of the float model, where it is more than a point, and `differing`."""
        kept, differing = self.of_float, self.differing
        if kept is None or kept.kind == "good":
            return differing
        kind = max(kept.kind, differing.kind, key=_KINDS.index)
        return Marked(f"{kept.words}; {differing.words}", kind)

    @property
    def differing(self) -> Marked:
        """How many codes differ, and on which architecture, where others have other kernels.

        It is good only where the answers of the file are those of the quantized Keras model too, on
        enough images to tell.
        """
        words = f"{self.runtimes['xnnpack'].differing} codes differ"
        kind = "good"
        if self.machine is not None and not self.is_portable:
            words += f" on {self.machine.architecture}"
            kind = "watch"
        if self.parting or self._saturates:
            what = "its answers part from" if self.parting else "it saturates values of"
            words, kind = f"{words}, but {what} the trained model", "watch"
        if self.few_images and not self.parting:
            words, kind = f"{words}; {self.few_images}", "watch"
        if (of_ranges := kind_of_ranges(self.input_ranges)) != "good":
            how = "wrong" if of_ranges == "bad" else "checked by nothing"
            words, kind = f"{words}; the input range is {how}", "watch"
        return Marked(words, kind if self.is_exact else "bad")

    @property
    def _saturates(self) -> bool:
        """Whether more than 1 % of a tensor saturate; where Keras clips too, nothing differs."""
        return any(
            tensor.saturated > max(MOST_SATURATED * tensor.codes_compared, FEW_CODES)
            and tensor.codes_differing
            for tensor in self.trained
        )

    @property
    def measured_on(self) -> str:
        """The machine that LiteRT ran on, in a sentence; empty where it is not recorded."""
        if self.machine is None:
            return ""
        sets = ", ".join(self.machine.instruction_sets)
        return (
            f"Measured on {self.machine.architecture}{f' ({sets})' if sets else ''}; the delegate "
            f"that LiteRT uses by itself there: {self.machine.delegate}."
        )

    @property
    def target_title(self) -> str:
        """The target as sentences call it; its name where another version made the certificate."""
        return saved_processor(self.target).title

    @property
    def beyond_proof(self) -> str:
        """The sentence on what is not proved of the processor of the file; empty for a CPU."""
        processor = saved_processor(self.target)
        if not processor.native:
            return ""
        if processor.confirmed_by:
            return (
                f"The file is for {processor.title}, whose reference kernels are among the "
                "runtimes that are listed; it lets a processor round otherwise, and none was here."
            )
        return (
            f"The file is for {processor.title}, which was not here: codes were compared on the "
            "kernels of the runtimes that are listed, and how it rounds itself is not among them."
        )

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK computes these codes on all processors: all operators are said to."""
        return are_portable(self.holds)

    @property
    def trained_differing(self) -> float:
        """Share of the codes of the Keras model that differ from the simulation, in [0, 1].

        Values that the file saturates, and Keras does not, are among them.
        """
        compared = sum(tensor.codes_compared for tensor in self.trained)
        return sum(tensor.codes_differing for tensor in self.trained) / max(compared, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = dataclasses.asdict(self)
        totals = ("codes_compared", "codes_differing", "first_differing")
        for name, count in self.runtimes.items():
            found = {total: getattr(count, total) for total in totals}
            values["runtimes"][name] = {**found, **values["runtimes"][name]}
        return {
            "codes_compared": self.codes_compared,
            "codes_differing": self.codes_differing,
            "trained_differing": self.trained_differing if self.trained else None,
            "saturated": self.saturated if self.trained else None,
            "verdict": self.verdict._asdict(),
            "few_images": self.few_images,
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
        text = _LISTS_OF_NUMBERS.sub(lambda found: " ".join(found[0].split()), text)
        write_text(path, text + "\n")

    def write_overlay(self, path: str | os.PathLike[str]) -> None:
        """Writes what was measured of each tensor, for Model Explorer to show on the file.

        Nodes have the codes that differ with XNNPACK, the bits of their codes, how many occur and
        their range; red ones differ.

        Args:
            path: of a .json file.

        Raises:
            ValueError: the path cannot be written.
        """
        codes = {tensor.name: tensor for tensor in self.codes}
        marks = {}
        for count in self.runtimes["xnnpack"].tensors:
            words = f"{count.codes_differing:,} of {count.codes_compared:,} codes differ"
            if tensor := codes.get(count.name):
                first = tensor.lowest - tensor.zero_point
                low, high = (tensor.step * n for n in (first, first + len(tensor.counts) - 1))
                words += f"; {tensor.bits} bits, {tensor.codes_used} codes occur, "
                words += f"{low:.4g} to {high:.4g}"
            marks[count.name] = Mark(words, BAD if count.codes_differing else GOOD)
        write_overlay(path, "codes with XNNPACK", marks)

    def _headline(self) -> Marked:
        images = f"{self.num_images:,} image{'' if self.num_images == 1 else 's'}"
        return Marked(f"{self.verdict.words} ({self.file}, {images})", self.verdict.kind)

    def _tables(self) -> dict[str, Table[Any]]:
        return {"Runtimes": runtime_table(self.runtimes, self.reference, self.top1)}

    def _notes(self) -> Sequence[Cell]:
        return self.statements


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate in a JSON file.

    Raises:
        ValueError: there is no such file, or it holds no certificate; lists all that it lacks.
    """
    path = pathlib.Path(path)
    values = read_json(path, "sat-tf verify")
    fields = {field.name for field in dataclasses.fields(Certificate)}
    if not isinstance(values, dict) or fields.isdisjoint(values):
        raise ValueError(
            f"{path}: received JSON that is no certificate, expected the one that sat-tf verify "
            "has written; pass its certificate.json."
        )
    fix = "Expected a certificate of this version; create it again with sat-tf verify."
    certificate = as_record(Certificate, values, path, fix)
    if "xnnpack" not in certificate.runtimes:
        raise ValueError(
            f"{path}: received a certificate without XNNPACK, expected one that sat-tf verify has "
            "written; create it again."
        )
    return certificate


def read_json(path: pathlib.Path, author: str, again: str = "") -> Any:
    """The values in the certificate that a command or a script has written as JSON."""
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
    """The record of a class in the values of a JSON file."""
    try:
        return pydantic.TypeAdapter(record).validate_python(values)
    except pydantic.ValidationError as error:
        raise ProblemsError(str(path), describe(error), fix, most=MOST_OF_A_FILE) from error
