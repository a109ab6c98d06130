"""Files of any tool: their operators, compared one by one with what kernels are known to round."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from sat_tf.atomic_file import expect_path
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.certificate.inputs import GIVEN, checked_images
from sat_tf.export.certificate.proof import existing_file
from sat_tf.export.certificate.runtimes import RUNTIMES, USUAL_RUNTIMES, RuntimeKind, chosen
from sat_tf.export.kernels import kernel_sets
from sat_tf.export.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.export.litert.micro import MicroRuntime
from sat_tf.export.litert.processes import loaded, refusals
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.graph_file import ForeignFile, read_foreign
from sat_tf.export.operations.operation import Operation
from sat_tf.export.tflite.contents import StoredOperator, read_contents
from sat_tf.export.tflite.images import Pixels, arrays_of, number_of, some_of
from sat_tf.export.tflite.tensors import Image
from sat_tf.messages import list_problems, say
from sat_tf.presentation.progress_bar import image_bar
from sat_tf.presentation.tables import Cell, Column, Marked, RowTable, Table, percent

# The types that tell an operator on codes from others.
_CODES = "INT8"
_OTHER_CODES = ("UINT8", "INT16")
_PIXEL_ENDS = 255.0


@dataclasses.dataclass(frozen=True)
class AnyFile:
    """A TFLite file that any tool may have written.

    Attributes:
        path: of the file.
        content: the file.
        read: its operators, as far as they are known.
    """

    path: pathlib.Path
    content: bytes
    read: ForeignFile

    @property
    def image(self) -> Image:
        """Its only input."""
        return self.read.graph.images[0]

    def taken(self, images: np.ndarray) -> np.ndarray:
        """Pixels as values of its input; any other array as it is.

        What range a file wants its pixels in, it does not say: they are spread over all codes of
        the input, or over 0 to 1 where it is float and nothing quantizes it.
        """
        image = self.image
        if images.dtype != np.uint8 or image.type == "uint8":
            return images
        if image.is_kept and image.type == "float32":
            return images.astype(np.float32) / np.float32(_PIXEL_ENDS)
        return image.drawn(images)


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Whether a TFLite file was written by another tool than `sat_tf.export_tflite`."""
    path = existing_file(path)
    return not read_contents(path.read_bytes(), str(path)).is_ours


def read_any_file(path: str | os.PathLike[str]) -> AnyFile:
    """A file whose operators can be compared.

    Raises:
        ValueError: it is not a TFLite file; it has several graphs, or several inputs; it takes
            several images at a time; it computes with no int8 codes.
    """
    path = existing_file(expect_path(path))
    content = path.read_bytes()
    found = read_foreign(content, str(path))
    if problems := _problems(found):
        raise ValueError(list_problems(str(path), problems))
    return AnyFile(path, content, found)


def _problems(found: ForeignFile) -> list[str]:
    """Why the operators of a file cannot be compared."""
    inputs = found.contents.inputs
    problems = []
    if len(inputs) > 1:
        problems.append(
            f"received a file with {len(inputs)} inputs, expected one; convert a model with one."
        )
    for tensor in inputs:
        if tensor.shape[:1] != (1,):
            problems.append(
                f"received the input {tensor.name} of shape {tensor.shape}, expected one image at "
                "a time, (1, ...); convert the model for that."
            )
    types = {one.type for op in found.contents.operators for one in op.outputs if one.scales.size}
    if _CODES in types:
        return problems
    if others := sorted(types.intersection(_OTHER_CODES)):
        problems.append(
            f"received a file that computes with {' and '.join(others)} codes, expected int8; "
            "convert the model with TensorFlow 2 and TFLITE_BUILTINS_INT8."
        )
        return problems
    constants = [one for one in found.contents.tensors if one.data is not None and one.scales.size]
    weights = ", and only its weights are integers (dynamic range)" if constants else ""
    problems.append(
        f"received a float file: all that its operators make is float{weights}, expected int8 "
        "codes, of which there are none to compare; convert the model with a representative data "
        "set."
    )
    return problems


# -- what is counted -------------------------------------------------------------------------------


@dataclasses.dataclass
class Differences:
    """How many values of two tensors differ.

    Attributes:
        compared: how many values.
        differing: how many of them differ.
        largest: the largest difference, in codes, or in real values of a float tensor.
    """

    compared: int = 0
    differing: int = 0
    largest: float = 0.0

    def add(self, expected: np.ndarray, found: np.ndarray) -> None:
        """Counts the values of one image."""
        distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
        self.compared += found.size
        self.differing += int(np.count_nonzero(found != expected))
        self.largest = max(self.largest, float(np.max(distance, initial=0.0)))

    def __add__(self, other: "Differences") -> "Differences":
        largest = max(self.largest, other.largest)
        counts = self.compared + other.compared, self.differing + other.differing
        return Differences(*counts, largest)


@dataclasses.dataclass
class KernelCount:
    """The codes that a runtime makes of one operator.

    Attributes:
        own: of what it made on its own inputs, from the simulation with its own rules: nothing is
            counted where it is only simulated.
        beside_xnnpack: of what its rules make of the inputs that the operator has under XNNPACK
            here, from what XNNPACK made.
    """

    own: Differences = dataclasses.field(default_factory=Differences)
    beside_xnnpack: Differences = dataclasses.field(default_factory=Differences)


@dataclasses.dataclass(frozen=True)
class ComparedOperator:
    """An operator of a file.

    Attributes:
        number: its place in the file.
        kind: its name.
        tensor: the name of the first tensor that it makes.
        multiply_adds: of an image, as far as its shapes tell.
        reason: why it is not simulated; empty where it is.
        counts: by the names of the runtimes; empty where it is not simulated.
    """

    number: int
    kind: str
    tensor: str
    multiply_adds: int
    reason: str
    counts: Mapping[str, KernelCount]

    @property
    def name(self) -> str:
        """It in words."""
        return f"{self.number} {self.kind} {self.short_tensor}"

    @property
    def short_tensor(self) -> str:
        """The first of the names that TensorFlow's converter joins to one."""
        return self.tensor.split(";")[0]

    def differs(self, runtime: str) -> bool:
        """Whether a runtime makes other codes than its rules say, or than XNNPACK does."""
        count = self.counts.get(runtime)
        return count is not None and bool(count.own.differing or count.beside_xnnpack.differing)


@dataclasses.dataclass(frozen=True, repr=False)
class OperatorComparison(RowTable):
    """The operators of a file in order, each compared on the inputs that it has there.

    It proves nothing of a file: it says what was compared, and where kernels part.

    Attributes:
        file: its name.
        num_images: how many images it was run on.
        images_from: where they come from.
        operators: all of the file.
        runtimes: the names of those that were compared, "xnnpack" first.
        refused: why others do not run the file, by their names.
        outputs: of the whole file from those of XNNPACK, by the names of the runtimes that run.
    """

    file: str
    num_images: int
    images_from: str
    operators: tuple[ComparedOperator, ...]
    runtimes: tuple[str, ...]
    refused: Mapping[str, str]
    outputs: Mapping[str, Differences]

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("operator", "kind", "tensor", "multiply_adds", "reason", "runtime"),
        *("compared", "differing", "largest"),
        *("beside_xnnpack_compared", "beside_xnnpack_differing", "beside_xnnpack_largest"),
    )
    _width: ClassVar[int] = 140

    @property
    def simulated(self) -> list[ComparedOperator]:
        """The operators that were compared."""
        return [operator for operator in self.operators if operator.counts]

    @property
    def multiply_adds_simulated(self) -> float | None:
        """Their share of all multiply-adds that are known, in [0, 1]; None where there are none."""
        known = sum(operator.multiply_adds for operator in self.operators)
        return sum(operator.multiply_adds for operator in self.simulated) / known if known else None

    def total(self, runtime: str) -> KernelCount:
        """The counts of all operators."""
        counts = [operator.counts[runtime] for operator in self.simulated]
        own = sum((count.own for count in counts), Differences())
        beside = sum((count.beside_xnnpack for count in counts), Differences())
        return KernelCount(own, beside)

    def first_differing(self, runtime: str) -> ComparedOperator | None:
        """The first operator of which a runtime makes other codes than its rules or XNNPACK."""
        return next((one for one in self.operators if one.differs(runtime)), None)

    @property
    def is_explained(self) -> bool:
        """Whether every code that a runtime made is the one that its rules give."""
        return not any(self.total(name).own.differing for name in self.runtimes)

    def to_rows(self) -> list[dict[str, Any]]:
        """One for each operator and runtime; of an operator that is not simulated, one in all."""
        rows: list[tuple[Any, ...]] = []
        for one in self.operators:
            about = (one.number, one.kind, one.tensor, one.multiply_adds, one.reason)
            if not one.counts:
                rows.append((*about, *[None] * 7))
            for name, count in one.counts.items():
                pair = (count.own, count.beside_xnnpack)
                found = [(each.compared, each.differing, each.largest) for each in pair]
                rows.append((*about, name, *found[0], *found[1]))
        return [dict(zip(self.COLUMNS, row, strict=True)) for row in rows]

    def _headline(self) -> Cell:
        known = self.multiply_adds_simulated
        share = "" if known is None else f", {percent(1)(known)} of the multiply-adds"
        return (
            f"{self.file}: {len(self.simulated)} of {len(self.operators)} operators simulated"
            f"{share}, on {self.num_images} images ({self.images_from})"
        )

    def _notes(self) -> list[Cell]:
        lines: list[Cell] = [self._note_on(name) for name in self.runtimes]
        lines += [
            f"{RUNTIMES[name].title} does not run it: {why}" for name, why in self.refused.items()
        ]
        missing = collections.Counter(
            (one.kind, one.reason) for one in self.operators if not one.counts
        )
        for (kind, reason), count in missing.items():
            work = sum(one.multiply_adds for one in self.operators if _is(one, kind, reason))
            share = f", {work:,} multiply-adds" if work else ""
            lines.append(f"Not simulated: {count} {kind}{share}: {reason}")
        lines.append(
            "Each operator is compared on the inputs that it has in this file. Nothing is said of "
            "inputs that these images do not reach, nor of an NPU, which has not run here."
        )
        return lines

    def _note_on(self, name: str) -> Cell:
        total, first = self.total(name), self.first_differing(name)
        said, kind = [], "good"
        if total.own.compared:
            differing = f"{total.own.differing:,} of {total.own.compared:,}"
            said.append(f"{differing} codes differ from the simulation")
        if name != "xnnpack":
            beside = total.beside_xnnpack
            differing = f"{beside.differing:,} of {beside.compared:,}"
            said.append(f"for the same inputs, {differing} codes are not XNNPACK's")
        if first is not None:
            kind = "bad" if total.own.differing else "watch"
            said.append(f"the first operator that differs is {first.name}")
        if name in self.outputs and name != "xnnpack":
            found = self.outputs[name]
            differing = f"{found.differing:,} of {found.compared:,}"
            said.append(f"of the whole file, {differing} values of the output are not XNNPACK's")
        return Marked(f"{RUNTIMES[name].title}: {'; '.join(said)}", kind)

    def _tables(self) -> Mapping[str, Table[ComparedOperator]]:
        firsts = {name: self.first_differing(name) for name in self.runtimes}

        def counted(name: str) -> Column[ComparedOperator]:
            return Column(
                name, lambda one: _cell(one, name, is_first=one is firsts[name]), number=True
            )

        all_adds = sum(one.multiply_adds for one in self.operators)
        columns: list[Column[ComparedOperator]] = [
            Column("", lambda one: one.number, str, number=True),
            Column("operator", lambda one: one.kind),
            Column("tensor", lambda one: one.short_tensor, wrap="fold"),
            Column(
                "multiply-adds",
                lambda one: one.multiply_adds / all_adds if one.multiply_adds else None,
                percent(1),
                number=True,
                least_width=100,
            ),
            Column("simulated", lambda one: one.reason or "yes", wrap="fold"),
            Column(
                "codes", _codes_compared, lambda count: f"{count:,}" if count else "", number=True
            ),
            *map(counted, self.runtimes),
        ]
        return {"Operators": Table(columns=columns, rows=self.operators)}

    def print_to(self, console: Console) -> None:
        """Prints the operators, and what is said of each runtime."""
        say(console, self._headline())
        for table in self._tables().values():
            console.print(table.for_width(console.width).to_rich())
        for note in self._notes():
            words, kind = note if isinstance(note, Marked) else (note, "")
            say(console, words, style=_STYLES.get(kind))


_STYLES = {"good": "green", "watch": "yellow", "bad": "red"}


def _is(operator: ComparedOperator, kind: str, reason: str) -> bool:
    return not operator.counts and (operator.kind, operator.reason) == (kind, reason)


def _codes_compared(operator: ComparedOperator) -> int:
    return max((count.own.compared for count in operator.counts.values()), default=0)


def _cell(operator: ComparedOperator, runtime: str, *, is_first: bool) -> Cell:
    """How many codes differ and by how much: "first" marks the first operator where any does."""
    if runtime not in operator.counts:
        return ""
    count = operator.counts[runtime]
    unexplained = count.own.differing
    found = count.own if unexplained else count.beside_xnnpack
    if not found.differing:
        return Marked("0", "good")
    words = f"{found.differing:,} by {found.largest:.4g}"
    words += " from the simulation" if unexplained and runtime != "xnnpack" else ""
    return Marked(words + (", first" if is_first else ""), "bad" if unexplained else "watch")


# -- the comparison --------------------------------------------------------------------------------


def compare_operators(
    path: str | os.PathLike[str] | AnyFile,
    images: np.ndarray,
    *,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    images_from: ImagesFrom = GIVEN,
    progress: bool = True,
) -> OperatorComparison:
    """Compares the operators of any int8 TFLite file with runtimes, each on its own inputs.

    An operator that sat-tf simulates is given what the runtime made of the operators before it, so
    that one that differs, or is unknown, spoils none behind it. Its result is compared with what
    the runtime made, by the rules of that runtime's kernels; and XNNPACK's inputs are given to the
    rules of all others, which shows where they part from XNNPACK.

    Args:
        path: a TFLite file of any tool with one input, and int8 tensors.
        images: (n, ...) uint8 pixels, spread over the codes of the input; or real values, or codes.
        runtimes: names of runtimes; see `sat_tf.verify_tflite`.
        images_from: where the images come from.
        progress: show a bar.

    Returns:
        An `OperatorComparison`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images, an unknown runtime, or a file whose operators cannot be compared or
            that LiteRT does not run; lists every problem with its fix.
    """
    file = path if isinstance(path, AnyFile) else read_any_file(path)
    image = file.image
    given = file.taken(images) if isinstance(images, np.ndarray) else images
    taken, problems = checked_images(given, [image.shape], [image.type], [image.is_kept])
    if problems:
        raise ValueError(list_problems("compare_operators", problems))
    pixels = image.taken(arrays_of(taken)[0])
    kinds = chosen(runtimes)
    running, refused = _running(file, [kind for kind in kinds if not kind.is_simulated])
    compared = [kind for kind in kinds if kind.is_simulated or kind.name in running]
    counter = _Counter(file.read, compared, running)
    with image_bar(file.path.name, number_of(pixels), shown=progress) as advance:
        for index in range(number_of(pixels)):
            counter.add(some_of(pixels, index, index + 1))
            advance(1)
    return OperatorComparison(
        file=file.path.name,
        num_images=number_of(pixels),
        images_from=images_from.description,
        operators=tuple(counter.operators),
        runtimes=tuple(kind.name for kind in compared),
        refused=refused,
        outputs=counter.outputs,
    )


def _running(
    file: AnyFile, kinds: list[RuntimeKind]
) -> tuple[dict[str, Runtime | MicroRuntime], dict[str, str]]:
    """The runtimes that run a file, keeping every tensor, and why the others do not."""
    reasons = refusals(file.content, [kind.name for kind in kinds])
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    if "xnnpack" in refused:
        raise ValueError(
            f"{file.path}: received a TFLite file that LiteRT does not run "
            f"({refused['xnnpack']}), expected one that it does; convert the model again."
        )
    for kind in kinds:
        if reason := file.read.graph.ends_process(kind.kernels):
            refused.setdefault(kind.name, reason)
    names = [kind.name for kind in kinds if kind.name not in refused]
    return {name: loaded(file.content, name, keep_tensors=True) for name in names}, refused


class _Counter:
    """Compares every operator of a file, image by image.

    Args:
        file: its operators.
        kinds: the runtimes to compare, XNNPACK first.
        running: those of them that run here.
    """

    def __init__(
        self,
        file: ForeignFile,
        kinds: list[RuntimeKind],
        running: Mapping[str, Runtime | MicroRuntime],
    ) -> None:
        self._file, self._kinds, self._running = file, kinds, running
        xnnpack = running["xnnpack"]
        self._delegated = xnnpack.delegated if isinstance(xnnpack, Runtime) else set[int]()
        tensors = file.contents.tensors
        self._places = {tensor.name: index for index, tensor in enumerate(tensors)}
        made = {operation.output: operation for operation in file.graph.operations}
        self._operations: dict[int, Operation] = {}
        self.operators: list[ComparedOperator] = []
        self.outputs = {name: Differences() for name in running}
        for number, stored in enumerate(file.contents.operators):
            operation = made.get(stored.outputs[0].name) if stored.outputs else None
            reason = _reason(stored, operation, file)
            if not reason and operation is not None:
                self._operations[number] = operation
            self.operators.append(
                ComparedOperator(
                    number=number,
                    kind=stored.name,
                    tensor=stored.outputs[0].name if stored.outputs else "",
                    multiply_adds=stored.multiply_adds,
                    reason=reason,
                    counts={} if reason else {kind.name: KernelCount() for kind in kinds},
                )
            )

    def add(self, image: Pixels) -> None:
        """Runs one image in every runtime, and counts."""
        kept = {}
        for name, runtime in self._running.items():
            runtime.run(image)
            kept[name] = runtime.kept(range(len(self._file.contents.tensors)))
        for name, values in kept.items():
            for output in self._file.graph.outputs:
                place = self._places[output]
                if place in values and place in kept["xnnpack"]:
                    self.outputs[name].add(kept["xnnpack"][place], values[place])
        for number, operation in self._operations.items():
            self._count(number, operation, image, kept)

    def _count(
        self,
        number: int,
        operation: Operation,
        image: Pixels,
        kept: Mapping[str, Mapping[int, np.ndarray]],
    ) -> None:
        counts, output = self.operators[number].counts, self._places[operation.output]
        simulated: dict[str, np.ndarray] = {}  # of XNNPACK's inputs, by the kernels
        inputs = {name: self._inputs(operation, image, values) for name, values in kept.items()}
        first = inputs["xnnpack"]
        if first is None or output not in kept["xnnpack"]:
            return
        for kind in self._kinds:
            kernels, count = self._kernels(kind, number), counts[kind.name]
            if kernels.name not in simulated:
                simulated[kernels.name] = self._simulate(operation, kernels, first)
            count.beside_xnnpack.add(kept["xnnpack"][output], simulated[kernels.name])
            own = inputs.get(kind.name)
            if own is None or output not in kept[kind.name]:
                continue
            same = all(map(np.array_equal, own, first))
            expected = simulated[kernels.name]
            if not same:
                expected = self._simulate(operation, kernels, own)
            count.own.add(expected, kept[kind.name][output])

    def _kernels(self, kind: RuntimeKind, number: int) -> KernelSet:
        """A runtime's rules for an operator, which XNNPACK may leave to the builtin kernels."""
        if kind.kernels not in XNNPACK_SETS or number in self._delegated:
            return kind.kernels
        is_here = kind.kernels is kernel_sets.of_this_machine()
        return kernel_sets.builtin_of_this_machine() if is_here else kernel_sets.BUILTIN_ARM

    def _simulate(
        self, operation: Operation, kernels: KernelSet, inputs: list[np.ndarray]
    ) -> np.ndarray:
        return operation.simulate(self._file.graph.on(kernels), *inputs)

    def _inputs(
        self, operation: Operation, image: Pixels, values: Mapping[int, np.ndarray]
    ) -> list[np.ndarray] | None:
        """The tensor that an operation reads in a runtime; None where that does not hand it out."""
        images = [one.name for one in self._file.graph.images]
        found = []
        for name in operation.inputs:
            is_image = name in images
            array = (
                arrays_of(image)[images.index(name)] if is_image else values.get(self._places[name])
            )
            if array is None:
                return None
            # Pixels become codes by an operation that knows their type; codes are int32.
            widened = array.dtype.kind in "iu" and not operation.of_input
            found.append(array.astype(np.int32) if widened else array)
        return found


def _reason(stored: StoredOperator, operation: Operation | None, file: ForeignFile) -> str:
    """Why an operator is not compared; empty where it is."""
    given = [one for one in stored.reads if one.data is None]
    if not any(one.scales.size for one in stored.outputs):
        makes_floats = any(one.type == "FLOAT32" for one in stored.outputs)
        reads_codes = any(one.scales.size for one in given)
        return "it is float" if makes_floats and not reads_codes else "it makes no codes"
    if reason := file.reasons.get(stored.outputs[0].name):
        return reason
    return "" if operation is not None else "it is part of the operator that reads it"
