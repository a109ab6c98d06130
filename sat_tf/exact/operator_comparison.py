"""The operators of any tool's file, compared one by one with the known rounding of kernels."""

import collections
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from sat_tf.exact.certificate.proof import read_tflite
from sat_tf.exact.certificate.proof_images import GIVEN, ImagesFrom, checked_images, taken_by
from sat_tf.exact.certificate.rules import sentence
from sat_tf.exact.certificate.runtimes import USUAL_RUNTIMES, RuntimeKind, chosen, wrong_before
from sat_tf.exact.certificate.sequence import with_states
from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.litert.processes import refusals
from sat_tf.exact.litert.runtime import OneImageRuntime, Runtime, loaded
from sat_tf.exact.operations.graph import by_name
from sat_tf.exact.operations.graph_file import ForeignFile, read_foreign
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.tflite.contents import StoredOperator, read_contents
from sat_tf.exact.tflite.tensors import Image, Pixels, number_of, some_of
from sat_tf.messages import ProblemsError, first_ones
from sat_tf.messages.progress_bar import image_bar
from sat_tf.messages.tables import Cell, Column, Marked, RowTable, Table, digits


@dataclasses.dataclass
class Differences:
    """The number of values that differ between two tensors."""

    compared: int = 0  # The number of values.
    differing: int = 0  # The number of values that differ.
    largest: float = 0.0  # The largest difference, in codes, or in real values of a float tensor.

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        """Counts the values of one image."""
        distance = np.abs(computed.astype(np.float64) - expected.astype(np.float64))
        self.compared += computed.size
        self.differing += int(np.count_nonzero(computed != expected))
        self.largest = max(self.largest, float(np.max(distance, initial=0.0)))

    def __add__(self, other: "Differences") -> "Differences":
        largest = max(self.largest, other.largest)
        counts = self.compared + other.compared, self.differing + other.differing
        return Differences(*counts, largest)


@dataclasses.dataclass
class KernelCount:
    """The codes that a runtime makes for one operator."""

    # Its codes against its rules, on its own inputs; nothing is counted where it is only simulated.
    own: Differences = dataclasses.field(default_factory=Differences)
    # The codes of its rules, on the inputs that the operator has under XNNPACK here, against
    # XNNPACK's codes.
    beside_xnnpack: Differences = dataclasses.field(default_factory=Differences)


@dataclasses.dataclass(frozen=True)
class ComparedOperator:
    """An operator of a file."""

    number: int  # Its place in the file.
    kind: str  # The operator's name.
    tensor: str  # The name of the first tensor that it makes.
    multiply_adds: int  # Multiply-adds of an image, as far as shapes tell.
    reason: str  # Why it is not simulated; empty where it is.
    # The counts by the names of the runtimes; empty where it is not simulated.
    counts: Mapping[str, KernelCount]

    @property
    def name(self) -> str:
        """Its number, its kind and the tensor that it makes."""
        return f"{self.number} {self.kind} {self.short_tensor}"

    @property
    def short_tensor(self) -> str:
        """The first of the names that TensorFlow's converter joins to one."""
        return self.tensor.split(";")[0]

    def differs(self, runtime: str) -> bool:
        """Returns whether a runtime makes other codes than its rules, or than XNNPACK."""
        count = self.counts.get(runtime)
        return count is not None and bool(count.own.differing or count.beside_xnnpack.differing)


@dataclasses.dataclass(frozen=True, repr=False)
class OperatorComparison(RowTable):
    """The operators of a file in order, each compared on the inputs that it has there.

    It proves nothing about a file: it says what was compared, and where kernels differ.
    """

    file: str  # The file's name.
    num_images: int  # The number of images on which it was run.
    images_from: str  # The source of the images.
    operators: tuple[ComparedOperator, ...]  # All operators of the file.
    runtimes: tuple[str, ...]  # The names of the compared runtimes, "xnnpack" first.
    refused: Mapping[str, str]  # Why other runtimes do not run the file, by name.
    # Differences of the file's outputs from XNNPACK's, by the names of the runtimes that run it.
    outputs: Mapping[str, Differences]
    more_graphs: tuple[str, ...] = ()  # Graphs after the first; only the first is compared.
    warnings: tuple[str, ...] = ()  # Facts to know about the file.

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("operator", "kind", "tensor", "multiply_adds", "reason", "runtime"),
        *("compared", "differing", "largest"),
        *("beside_xnnpack_compared", "beside_xnnpack_differing", "beside_xnnpack_largest"),
    )
    _width: ClassVar[int] = 140
    _page: ClassVar[str] = "exact/operators.html"

    @property
    def simulated(self) -> list[ComparedOperator]:
        """The operators that were compared."""
        return [operator for operator in self.operators if operator.counts]

    @property
    def multiply_adds_simulated(self) -> float | None:
        """The compared operators' share of all known multiply-adds, in [0, 1]; None without any."""
        total = sum(operator.multiply_adds for operator in self.operators)
        return sum(operator.multiply_adds for operator in self.simulated) / total if total else None

    def total(self, runtime: str) -> KernelCount:
        """Adds up the counts of all operators."""
        counts = [operator.counts[runtime] for operator in self.simulated]
        from_rules = sum((count.own for count in counts), Differences())
        beside = sum((count.beside_xnnpack for count in counts), Differences())
        return KernelCount(from_rules, beside)

    def first_differing(self, runtime: str) -> ComparedOperator | None:
        """Returns the first operator whose codes by a runtime are not its rules' or XNNPACK's."""
        return next((operator for operator in self.operators if operator.differs(runtime)), None)

    @property
    def first(self) -> ComparedOperator | None:
        """The first operator that differs in any runtime."""
        return next((op for op in self.operators if any(map(op.differs, self.runtimes))), None)

    def runtimes_of(self, operator: ComparedOperator) -> list[str]:
        """Returns the runtimes in which an operator is the first that differs."""
        return [name for name in self.runtimes if self.first_differing(name) is operator]

    @property
    def is_explained(self) -> bool:
        """Whether every code that a runtime made is the one that its rules give."""
        return not any(self.total(name).own.differing for name in self.runtimes)

    def to_rows(self) -> list[dict[str, Any]]:
        """Returns a row for each operator and runtime; only one where it is not simulated."""
        rows: list[tuple[Any, ...]] = []
        for op in self.operators:
            about = (op.number, op.kind, op.tensor, op.multiply_adds, op.reason)
            if not op.counts:
                rows.append((*about, *[None] * 7))
            for name, count in op.counts.items():
                from_rules, beside = map(dataclasses.astuple, (count.own, count.beside_xnnpack))
                rows.append((*about, name, *from_rules, *beside))
        return [dict(zip(self.COLUMNS, row, strict=True)) for row in rows]

    def _headline(self) -> Cell:
        return sentence("operators_headline", self)

    def _notes(self) -> list[Cell]:
        """Says how each runtime differs, or why it does not run the file, and what is left out."""

        def colour(name: str) -> str:
            differs = "bad" if self.total(name).own.differing else "watch"
            return "good" if self.first_differing(name) is None else differs

        missing = collections.defaultdict[tuple[str, str], list[ComparedOperator]](list)
        for operator in self.operators:
            if not operator.counts:
                missing[operator.kind, operator.reason].append(operator)
        return [
            sentence("extent", self),
            *(Marked(sentence("runtime", self, name), colour(name)) for name in self.runtimes),
            *(sentence("does_not_run", self, name) for name in self.refused),
            *(sentence("not_simulated", self, operators) for operators in missing.values()),
            *(sentence("not_compared", self, graph) for graph in self.more_graphs),
            *(Marked(sentence("warning", self, warning), "watch") for warning in self.warnings),
            sentence("reach", self),
        ]

    def _tables(self) -> Mapping[str, Table[ComparedOperator]]:
        firsts = {name: self.first_differing(name) for name in self.runtimes}

        def column_of(name: str) -> Column[ComparedOperator]:
            def differing(operator: ComparedOperator) -> Cell:
                if name not in operator.counts:
                    return ""
                count = operator.counts[name]
                unexplained = count.own.differing
                differences = count.own if unexplained else count.beside_xnnpack
                if not differences.differing:
                    return Marked("0", "good")
                words = f"{differences.differing:,} by {differences.largest:.4g}"
                words += " from the simulation" if unexplained and name != "xnnpack" else ""
                words += ", first" if operator is firsts[name] else ""
                return Marked(words, "bad" if unexplained else "watch")

            return Column(name, differing, number=True)

        def adds(operator: ComparedOperator) -> int | None:
            return operator.multiply_adds or None

        def codes(operator: ComparedOperator) -> int | None:
            return max((count.own.compared for count in operator.counts.values()), default=None)

        columns: list[Column[ComparedOperator]] = [
            Column("", lambda row: row.number, str, number=True),
            Column("operator", lambda row: row.kind),
            Column("tensor", lambda row: row.short_tensor, wrap="fold"),
            Column("multiply-adds", adds, digits(","), number=True),
            Column("simulated", lambda row: row.reason or "yes", wrap="fold"),
            Column("codes", codes, digits(","), number=True),
            *map(column_of, self.runtimes),
        ]
        return {"Operators": Table(columns=columns, rows=self.operators)}


# The types by which operators on codes are recognized.
_CODES = {"INT8", "INT16"}
_OTHER_CODES = ("UINT8",)
_WITHOUT_VALUES = ("RESOURCE", "VARIANT", "STRING")
_PIXEL_ENDS = 255.0


@dataclasses.dataclass(frozen=True)
class AnyFile(ForeignFile):
    """A TFLite file that any tool may have written, and its operators, as far as they are known."""

    path: pathlib.Path  # The file's path.
    content: bytes  # The file's bytes.

    def taken(self, images: Any) -> Any:
        """Returns pixels as values of the input, or of each in a list; other values as they are.

        A file does not say which range of pixels it takes: they are spread over all codes of the
        input, or over 0 to 1 where it is float and nothing quantizes it.
        """

        def taken_by_one(image: Image, values: Any) -> Any:
            is_pixels = isinstance(values, np.ndarray) and values.dtype == np.uint8
            if not is_pixels or image.type == "uint8":
                return values
            if image.is_kept and image.type == "float32":
                return values.astype(np.float32) / np.float32(_PIXEL_ENDS)
            return image.drawn(values)

        inputs = self.graph.frame_inputs
        try:
            if len(inputs) == 1:
                return taken_by_one(inputs[0], images)
            if not isinstance(images, list | tuple) or len(images) != len(inputs):
                return images
            return list(map(taken_by_one, inputs, images))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Returns whether another tool than `sat_tf.export_tflite` wrote a TFLite file."""
    return not read_contents(read_tflite(path), str(path)).is_ours


def read_any_file(path: str | os.PathLike[str], states: Mapping[str, str] | None = None) -> AnyFile:
    """Reads a file whose operators can be compared: it takes one image, and has int8 codes.

    `states` has the input that each output is fed back to; see `compare_operators`.
    """
    content, problems = read_tflite(path), []
    foreign = read_foreign(content, str(path), states)
    for tensor in foreign.contents.inputs:
        about = f"received the input {tensor.name}"
        if tensor.shape[:1] != (1,) or min(tensor.shape) < 1:
            problems.append(
                f"{about} of shape {tensor.shape}, expected one image, (1, ...), with sizes of at "
                "least 1; convert the model for that."
            )
        elif not np.all(np.isfinite(tensor.scales) & (tensor.scales > 0)):
            problems.append(
                f"{about} with the scale {first_ones(tensor.scales)}, expected one above 0; "
                "convert the model again."
            )
    tensors = [tensor for op in foreign.contents.operators for tensor in op.outputs]
    types = {tensor.type for tensor in tensors if tensor.scales.size}
    other_types = sorted(types.intersection(_OTHER_CODES))
    if types.isdisjoint(_CODES) and other_types:
        problems.append(
            f"received a file that computes with {' and '.join(other_types)} codes, expected int8; "
            "convert the model with TensorFlow 2 and TFLITE_BUILTINS_INT8."
        )
    elif types.isdisjoint(_CODES):
        constants = [tensor for tensor in foreign.contents.tensors if tensor.data is not None]
        is_dynamic = any(tensor.scales.size for tensor in constants)
        weights = ", and only its weights are integers (dynamic range)" if is_dynamic else ""
        problems.append(
            f"received a float file: all that its operators make is float{weights}, expected int8 "
            "codes, of which there are none to compare; convert the model with a representative "
            "data set."
        )
    if problems:
        raise ProblemsError(str(path), problems)
    return AnyFile(**vars(foreign), path=pathlib.Path(path), content=content)


# -- the comparison --------------------------------------------------------------------------------


def compare_operators(
    path: str | os.PathLike[str] | AnyFile,
    images: np.ndarray | Sequence[np.ndarray],
    *,
    states: Mapping[str, str] | None = None,
    runtimes: Iterable[str] = USUAL_RUNTIMES,
    images_from: ImagesFrom = GIVEN,
    progress: bool = True,
) -> OperatorComparison:
    """Compares the operators of any int8 TFLite file with runtimes, each on its own inputs.

    An operator that sat-tf simulates gets the runtime's results of the operators before it, so that
    one that differs, or is unknown, does not affect the operators after it. Its result, by the
    rules of that runtime's kernels, is compared with the runtime's; and the rules of all other
    runtimes get XNNPACK's inputs, which shows where they differ from XNNPACK.

    Args:
        path: a TFLite file of any tool with int8 tensors.
        images: (n, ...) uint8 pixels, spread over the codes of the input; or real values, or codes.
            For several inputs a list, in the order of the file's.
        states: the input that each output is fed back to: the images are then frames of a sequence
            for the other inputs, from states of real 0 on, which XNNPACK reaches.
        runtimes: names of runtimes; see `sat_tf.verify_tflite`.
        images_from: the source of the images.
        progress: show a bar.

    Returns:
        An `OperatorComparison`. A difference is counted in it, not raised.

    Raises:
        ValueError: bad images, an unknown runtime, or a file whose operators cannot be compared or
            that LiteRT does not run; lists every problem with its fix.
    """
    file = path if isinstance(path, AnyFile) else read_any_file(path, states)
    frames = dataclasses.replace(file.graph, images=file.graph.frame_inputs)
    arrays, problems = checked_images(file.taken(images), frames.images)
    if problems:
        raise ProblemsError(f"compare_operators: {file.path}", problems)
    pixels = taken_by(frames, arrays)
    specs, refused = chosen(runtimes), dict[str, str]()
    local_runtimes = [spec for spec in specs if not spec.is_simulated]
    reasons = refusals(file.content, [spec.name for spec in local_runtimes])
    if reasons["xnnpack"] is not None:
        raise ValueError(
            f"{file.path}: received a TFLite file that LiteRT does not run "
            f"({reasons['xnnpack']}), expected one that it does; convert the model again."
        )
    for spec in local_runtimes:
        if reason := reasons[spec.name] or file.graph.ends_process(spec.kernels):
            refused[spec.name] = reason
    if file.graph.states:
        pixels = with_states(file.graph, file.content, pixels, simulated=False)
    compared = [spec for spec in specs if spec.name not in refused]
    running = {
        spec.name: loaded(file.content, spec.name, keep_tensors=True)
        for spec in compared
        if not spec.is_simulated
    }
    counter = _Counter(file, compared, running)
    with image_bar(file.path.name, number_of(pixels), shown=progress) as advance:
        for index in range(number_of(pixels)):
            counter.add(some_of(pixels, index, index + 1))
            advance(1)
    return OperatorComparison(
        file=file.path.name,
        num_images=number_of(pixels),
        images_from=images_from.description,
        operators=tuple(counter.operators),
        runtimes=tuple(spec.name for spec in compared),
        refused=refused,
        outputs=counter.outputs,
        more_graphs=file.contents.more_graphs,
        warnings=(
            *wrong_before(file.contents),
            *filter(None, (operation.warning() for operation in file.graph.operations)),
        ),
    )


_Arrays = list[np.ndarray]
# The tensors that a runtime has kept, by their places in the file.
_Kept = Mapping[int, np.ndarray]


class _Counter:
    """Compares every operator of a file, image by image."""

    def __init__(
        self,
        file: ForeignFile,
        specs: list[RuntimeKind],
        running: Mapping[str, Runtime | OneImageRuntime],
    ) -> None:
        self._file, self._runtimes, self._running = file, specs, running
        self._delegated = cast(Runtime, running["xnnpack"]).delegated
        self._graph = file.graph
        tensors = file.contents.tensors
        self._places = {tensor.name: index for index, tensor in enumerate(tensors)}
        # LiteRT ends the process that asks for the values of a resource.
        self._numeric = [
            i for i, tensor in enumerate(tensors) if tensor.type not in _WITHOUT_VALUES
        ]
        by_output = {operation.output: operation for operation in file.graph.operations}
        self._operations: dict[int, list[Operation]] = {}
        self.operators: list[ComparedOperator] = []
        self.outputs = {name: Differences() for name in running}
        for number, stored in enumerate(file.contents.operators):
            reason = _reason(stored, by_output, file)
            if not reason:
                self._operations[number] = [by_output[tensor.name] for tensor in stored.outputs]
            kind = f"{stored.name} {stored.custom}".strip()
            tensor = stored.outputs[0].name if stored.outputs else ""
            counts = {} if reason else {spec.name: KernelCount() for spec in specs}
            adds = stored.multiply_adds
            self.operators.append(ComparedOperator(number, kind, tensor, adds, reason, counts))

    def add(self, image: Pixels) -> None:
        """Runs one image in every runtime, and counts."""
        tensors_of = {}
        for name, runtime in self._running.items():
            runtime.run(image)
            tensors_of[name] = runtime.kept(self._numeric)
        by_xnnpack = tensors_of["xnnpack"]
        for name, values in tensors_of.items():
            for place in (self._places[output] for output in self._file.graph.outputs):
                if place in values and place in by_xnnpack:
                    self.outputs[name].add(by_xnnpack[place], values[place])
        # Tensors have the shapes that they have here: the file's may be open.
        shapes = {
            name: by_xnnpack[place].shape[1:]
            for name, place in self._places.items()
            if place in by_xnnpack
        }
        tensors = {
            name: dataclasses.replace(tensor, shape=shapes.get(name, tensor.shape))
            for name, tensor in self._file.graph.tensors.items()
        }
        self._graph = dataclasses.replace(self._file.graph, tensors=tensors)
        for number, operations in list(self._operations.items()):
            try:
                with np.errstate(all="ignore"):  # scales may be non-finite
                    for operation in operations:
                        self._count(number, operation, image, tensors_of)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                # Sizes that a file computes are known only here.
                del self._operations[number]
                reason = f"its simulation does not take what it reads here: {error}"
                operator = self.operators[number]
                self.operators[number] = dataclasses.replace(operator, reason=reason, counts={})

    def _count(
        self, number: int, operation: Operation, image: Pixels, tensors_of: Mapping[str, _Kept]
    ) -> None:
        """Adds an image to the counts of an operator, from what each runtime computed for it."""
        counts, output = self.operators[number].counts, self._places[operation.output]
        simulated: dict[str, np.ndarray] = {}  # from XNNPACK's inputs, by kernel set
        inputs = {name: self._inputs(operation, image, kept) for name, kept in tensors_of.items()}
        xnnpack_inputs, by_xnnpack = inputs["xnnpack"], tensors_of["xnnpack"].get(output)
        if xnnpack_inputs is None or by_xnnpack is None:
            return
        for spec in self._runtimes:
            kernels, count = spec.kernels, counts[spec.name]
            if kernels in XNNPACK_SETS and number not in self._delegated:
                # XNNPACK leaves the operator to the builtin kernels.
                is_here = kernels is kernel_sets.of_this_machine()
                builtin = kernel_sets.builtin_of_this_machine()
                kernels = builtin if is_here else kernel_sets.BUILTIN_ARM
            if kernels.name not in simulated:
                expected = self._simulate(operation, kernels, xnnpack_inputs, by_xnnpack)
                simulated[kernels.name] = expected
            expected = simulated[kernels.name]
            count.beside_xnnpack.add(by_xnnpack, expected)
            reads, computed = inputs.get(spec.name), tensors_of.get(spec.name, {}).get(output)
            if reads is None or computed is None:
                continue
            if not all(map(np.array_equal, reads, xnnpack_inputs)):
                expected = self._simulate(operation, kernels, reads, computed)
            count.own.add(expected, computed)

    def _simulate(
        self, operation: Operation, kernels: KernelSet, inputs: _Arrays, computed: np.ndarray
    ) -> np.ndarray:
        """Computes the result of kernels for inputs, in the shape of a runtime's result."""
        expected = operation.simulate(self._graph.on(kernels), *inputs)
        if operation.reshapes and expected.size == computed.size:
            expected = expected.reshape(computed.shape)
        if expected.shape != computed.shape:
            raise ValueError(f"it makes the shape {computed.shape}, expected {expected.shape}")
        return expected

    def _inputs(self, operation: Operation, image: Pixels, values: _Kept) -> _Arrays | None:
        """Returns the tensors that an operation reads in a runtime; None where one is missing."""
        images, arrays = by_name(image, self._file.graph), []
        for name in operation.inputs:
            array = images[name] if name in images else values.get(self._places[name])
            if array is None:
                return None
            # Pixels become codes by an operation that knows their type; codes are int32.
            widened = array.dtype.kind in "iu" and not operation.of_input
            arrays.append(array.astype(np.int32) if widened else array)
        return arrays


def _reason(stored: StoredOperator, operations: Mapping[str, Operation], file: ForeignFile) -> str:
    """Says why an operator is not compared; empty where it is."""
    inputs = [tensor for tensor in stored.reads if tensor.data is None]
    if not any(tensor.scales.size for tensor in stored.outputs):
        makes_floats = any(tensor.type == "FLOAT32" for tensor in stored.outputs)
        reads_codes = any(tensor.scales.size for tensor in inputs)
        return "it is float" if makes_floats and not reads_codes else "it makes no codes"
    for output in stored.outputs:
        if reason := file.reasons.get(output.name):
            return reason
        if output.name not in operations:
            return "it is part of the operator that reads it"
    return ""
