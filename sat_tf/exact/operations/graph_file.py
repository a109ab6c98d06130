"""Writing a graph as a TFLite file, and reading graphs from files, also of other tools."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from sat_tf.exact.operations import conversions
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.operations.native import Lookup, RowLookup, Softmax
from sat_tf.exact.operations.operation import SELECTED, Basis, Made, Operation, Portability
from sat_tf.exact.operations.pairs import Pair
from sat_tf.exact.operations.pools import AveragePool, MaxPool, Mean, ResizeBilinear
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.exact.operations.tabled import ROWS, Computed, Moved, Reshape
from sat_tf.exact.tflite import contents as file_contents
from sat_tf.exact.tflite.contents import Contents, NotUnderstoodError, StoredOperator, StoredTensor
from sat_tf.exact.tflite.input_range import KEPT_TYPES
from sat_tf.exact.tflite.operator_view import OperatorView, ReadingProgress, codes_of
from sat_tf.exact.tflite.tensors import WIDE, Codes, Image, Tensor, Tensors, is_one_state
from sat_tf.exact.tflite.writer import Writer
from sat_tf.messages import first_ones, printable, shortened

# -- operators whose arithmetic is unknown ---------------------------------------------------------

# The text between the name of a float layer's output and the numbers of its other tensors.
INNER_NAME = "/island_"
# Every processor makes the same values with these operators.
_SELECTING = (
    *("CAST", "CONCATENATION", "EMBEDDING_LOOKUP", "EQUAL", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
    *("NOT_EQUAL", "ONE_HOT", "PACK", "PAD", "PADV2", "RESHAPE", "REVERSE_V2", "SELECT"),
    *("SELECT_V2", "SHAPE", "SLICE", "SPLIT", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE"),
    "UNPACK",
)


@dataclasses.dataclass(frozen=True)
class NotSimulated(Operation):
    """An operator of a file whose arithmetic is unknown; only runtimes run it."""

    kind: str  # The operator's name.

    is_simulated = False

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.kind,)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> NoReturn:
        """Raises ValueError: its arithmetic is unknown."""
        raise ValueError(
            f"{self.output}: received a graph with an operator that the simulator does not know, "
            "expected its result to be given; simulate the graph of the Keras model instead."
        )

    def write(self, writer: Writer) -> None:
        self.simulate(writer.graph)


@dataclasses.dataclass(frozen=True)
class FloatLayerOperator(NotSimulated):
    """An operator of a layer that is left float."""

    layer: str  # The layer that it is part of.

    def portability(self, graph: Tensors) -> Portability:
        if self.kind in _SELECTING:
            return Portability(Basis.RULE, SELECTED)
        return super().portability(graph)

    @property
    def float_layer(self) -> str:
        return self.layer

    @property
    def operators(self) -> tuple[str, ...]:
        return (f"float {self.layer}",)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """Reads any operator without integers."""
        stored, progress = operator.stored, operator.progress
        layer = layer_of(stored, progress)
        if layer is None:
            raise NotUnderstoodError(f"{operator.name}: it belongs to no layer that is left float")
        inputs = [tensor for tensor in stored.reads if tensor.values is None]
        where = f"{operator.name} {operator.output.name}"
        if any(tensor.scales.size for tensor in (*stored.outputs, *inputs)):
            raise NotUnderstoodError(f"{where}: it is left float, and has codes")
        if any(tensor.name not in progress.known for tensor in inputs):
            raise NotUnderstoodError(f"{where}: its tensors are not in order")
        names = tuple(tensor.name for tensor in inputs)
        if not progress.known.isdisjoint(output.name for output in stored.outputs):
            raise NotUnderstoodError(f"{where}: its tensors are not in order")
        # It may make several tensors; each is an operation here.
        *first_outputs, last_output = stored.outputs
        for output in first_outputs:
            progress.operations.append(cls(names, output.name, operator.name, layer))
            progress.tensors[output.name] = Tensor(output.name, output.shape[1:], None)
        return cls(names, last_output.name, operator.name, layer), None


def layer_of(operator: StoredOperator, progress: ReadingProgress) -> str | None:
    """Returns the layer left float to which an operator belongs, if any."""
    names = {tensor.name.rsplit(INNER_NAME, 1)[0] for tensor in operator.outputs}
    is_float_layer = len(names) == 1 and names <= progress.float_layers.keys()
    return progress.float_layers[next(iter(names))] if is_float_layer else None


# -- files of sat-tf -------------------------------------------------------------------------------

# An operator is read as the first of these that recognizes it. The operators of `Moved` and
# `Computed` are rows of `tabled.ROWS`; each other operation is a row by itself.
OPERATIONS: list[type[Operation]] = [
    *(Linear, RowLookup, Lookup, Pair, Mean, MaxPool, AveragePool, ResizeBilinear),
    *(Moved, Reshape, Computed),
    *(conversions.ShiftImage, conversions.Quantize, conversions.ShiftOutput),
    *(conversions.Requantize, conversions.Dequantize),
    Softmax,
    Lstm,
    FloatLayerOperator,
]


def serialize(graph: Graph, metadata: Mapping[str, bytes], *, resizable: bool = False) -> bytes:
    """Writes the file of a deployed graph; `resizable` says that the batch size, 1, is free."""
    writer = Writer(graph, resizable=resizable)
    for operation in graph.operations:
        writer.begin(operation.output)
        operation.write(writer)
    return writer.finish(graph.outputs, metadata, graph.keys)


def read_graph(content: bytes, name: str) -> Graph:
    """Reads the graph of a file that sat-tf has written, without its Keras model.

    A file does not hold the units of real values (all are 1 here), the usual sums of layers, and
    warnings. `simulate` gives the same tensors as for the graph that was written.
    """
    try:
        with file_contents.unpacked(content, name) as model:
            contents = file_contents.understood(model)
            layers = (contents.settings or {}).get("islands", {})
            if not isinstance(layers, dict):  # older files list layers, the names of their tensors
                layers = {tensor: tensor for tensor in layers}
            by_tensor = {str(tensor): str(layer) for tensor, layer in layers.items()}
            graph = _graph(contents, name, by_tensor)
            graph = dataclasses.replace(graph, keys=file_contents.signature_names(model))
            return _with_states(graph, (contents.settings or {}).get("states", {}))
    except NotUnderstoodError as error:
        raise ValueError(
            f"{name}: received a file that sat_tf.export_tflite did not write ({error}), expected "
            "one that it wrote; export the model with it, or compare the operators of any tool's "
            "file with sat_tf.export.compare_operators."
        ) from error


def check_ends(contents: Contents) -> None:
    """Raises NotUnderstoodError unless a file has inputs and outputs."""
    if not contents.inputs or not contents.outputs:
        raise NotUnderstoodError(
            f"it has {len(contents.inputs)} inputs and {len(contents.outputs)} outputs, expected "
            "at least one of each"
        )


def _with_states(graph: Graph, states: Any) -> Graph:
    """The graph of a file with the states that its settings name."""
    called = dict(zip(graph.keys[1] or graph.outputs, graph.outputs, strict=True))
    try:
        by_tensor = {called[output]: str(name) for output, name in states.items()}
        graph = dataclasses.replace(graph, states=by_tensor)
        are_states = all(is_one_state(*ends) for ends in graph.state_ends.values())
    except (AttributeError, KeyError, TypeError):
        are_states = False
    if not are_states or len({*graph.states.values()}) < len(graph.states):
        raise NotUnderstoodError("its states are no outputs and inputs of one grid")
    return graph


# The types of inputs that are codes, with the smallest and the largest zero point.
_INPUT_TYPES = {"UINT8": (0, 255), "INT8": (-128, 127), "INT16": (0, 0)}


def _graph(contents: Contents, name: str, float_layers: dict[str, str]) -> Graph:
    check_ends(contents)
    for image in contents.inputs:
        if not image.scales.size and image.type.lower() in KEPT_TYPES:
            continue
        lowest, highest = _INPUT_TYPES.get(image.type, (0, -1))  # other types have none
        points, scales = image.zero_points, image.scales
        is_grid = points.size == 1 and lowest <= points[0] <= highest
        if not (is_grid and np.isfinite(scales[0]) and scales[0] > 0):
            raise NotUnderstoodError(
                f"its input is {image.type} with the scales {first_ones(scales)} and the zero "
                f"points {first_ones(points)}, expected one of each, of {', '.join(_INPUT_TYPES)}"
            )
    progress = ReadingProgress(tuple(contents.inputs), float_layers)
    for index, operator in enumerate(contents.operators):
        view = OperatorView(operator, progress)
        if layer_of(operator, progress) is not None:
            if (reading := FloatLayerOperator.read(view)) is not None:
                _add(reading, view)
            continue
        try:
            if (operation := read_operation(view, is_own=True)) is not None:
                _check_shape(operation, progress)
        except NotUnderstoodError as error:
            names = " ".join([operator.name, *(output.name for output in operator.outputs)])
            raise NotUnderstoodError(f"operator {index}, {names}: {error}") from error
    for end in contents.outputs:
        if end.name not in progress.tensors:
            raise NotUnderstoodError(f"nothing makes its output {end.name}")
    # Runtimes leave out an operator that nothing reads, so that there are no codes to compare.
    read_names = {tensor.name for operator in contents.operators for tensor in operator.reads}
    read_names |= {end.name for end in contents.outputs}
    for index, operator in enumerate(contents.operators):
        if read_names.isdisjoint(output.name for output in operator.outputs):
            where = f"operator {index}, {operator.name}"
            raise NotUnderstoodError(f"{where}: nothing reads what it makes")
    return _assembled(contents, name, progress)


def _assembled(contents: Contents, name: str, progress: ReadingProgress) -> Graph:
    """The graph of the operators that have been read."""
    output, *outputs = (end.name for end in contents.outputs)
    return Graph(
        name=name,
        tensors=progress.tensors,
        operations=tuple(progress.operations),
        images=tuple(input_image(image, progress) for image in contents.inputs),
        output=output,
        more_outputs=tuple(outputs),
    )


def input_image(found: StoredTensor, progress: ReadingProgress) -> Image:
    """Returns an input of a file as callers see it, once the file's operators are read."""
    shape, dtype = found.shape[1:], found.type.lower()
    if found.scales.size:
        bits = WIDE if dtype == "int16" else 8
        grid = found.scales[0], int(found.zero_points[0])
        return Image(found.name, shape, *grid, type=dtype, bits=bits)
    readers = [operation for operation in progress.operations if found.name in operation.inputs]
    are_numbers = found.holds_numbers or any(reader.reads_numbers for reader in readers)
    if are_numbers or not any(reader.is_simulated for reader in readers):
        return Image(found.name, shape, None, type=dtype)
    # Its codes, where the first operation on it quantizes it.
    grids = (progress.tensors[reader.output].codes for reader in readers if reader.is_simulated)
    codes = next(filter(None, grids), Codes(np.float32(1.0 / 128.0), 0))
    return Image(found.name, shape, codes.scale, codes.zero_point, type=dtype, bits=codes.bits)


def read_operation(view: OperatorView, *, is_own: bool) -> Operation | None:
    """Adds and returns the operation of an operator; None where more of its operators follow."""
    operator, progress = view.stored, view.progress
    classes = [cls for cls in OPERATIONS if operator.name in (cls.writes if is_own else cls.reads)]
    if not classes:
        raise NotUnderstoodError("not an operator of sat-tf")
    if len(operator.outputs) != 1 or not operator.inputs:
        raise NotUnderstoodError(f"it makes {len(operator.outputs)} tensors")
    (output,) = operator.outputs
    if not output.name:  # Tensors that runtimes add have no name either.
        raise NotUnderstoodError("its tensor has no name")
    if output.name in progress.known or output.values is not None:
        raise NotUnderstoodError("something else has made its tensor")
    operation_class = next((cls for cls in classes if cls.recognizes(view)), None)
    if operation_class is None:
        raise NotUnderstoodError("no operation of sat-tf has it in this form")
    reading = operation_class.read(view)
    if reading is None:
        return None
    if is_own:
        reading[0].expect_own_form(view)
    _add(reading, view)
    if problem := reading[0].bits_problem(Graph("", progress.tensors, (), (), "")):
        raise NotUnderstoodError(problem)
    return reading[0]


def _add(reading: tuple[Operation, Codes | None], view: OperatorView) -> None:
    (operation, codes), output = reading, view.stored.outputs[-1]
    view.progress.operations.append(operation)
    view.progress.tensors[output.name] = Tensor(output.name, output.shape[1:], codes)


def _check_shape(operation: Operation, progress: ReadingProgress) -> None:
    """Compares its tensor's shape with its result's for an empty batch, which costs nothing.

    Operations that move values get two images, of zeros and of ones, and must not mix the images.
    """
    shapes = {image.name: image.shape[1:] for image in progress.images}
    shapes |= {name: tensor.shape for name, tensor in progress.tensors.items()}
    graph = Graph("", progress.tensors, (), (), "")
    count = 2 if operation.moves else 0
    images = [np.zeros((count, *shapes[name]), np.int32) for name in operation.inputs]
    for array in images:
        array[1:] = 1
    try:
        result = operation.simulate(graph, *images)
        second_result = operation.simulate(graph, *(array[1:] for array in images))
    except (ValueError, IndexError, TypeError, ArithmeticError) as error:
        raise NotUnderstoodError(f"its tensors do not fit each other: {error}") from error
    if result.shape[1:] != shapes[operation.output]:
        raise NotUnderstoodError(
            f"its tensor has the shape {shapes[operation.output]}, expected {result.shape[1:]}"
        )
    if not np.array_equal(result[1:], second_result):
        raise NotUnderstoodError("it moves values from one image to another")


# -- files of any tool -----------------------------------------------------------------------------

_MOST_OF_A_REASON = 80


@dataclasses.dataclass(frozen=True)
class ForeignFile:
    """A file that any tool may have written, as far as its operators are known."""

    contents: Contents  # The file's contents; names of tensors are made distinct.
    graph: Graph  # Its operations; the ones that are not simulated are `NotSimulated`.
    reasons: Mapping[str, str]  # Why an operator is not simulated, by the tensors that it makes.


def read_foreign(content: bytes, name: str, states: Mapping[str, str] | None = None) -> ForeignFile:
    """Reads the first graph of a file of any tool, with `states` from outputs to inputs."""
    try:
        with file_contents.unpacked(content, name) as model:
            contents = file_contents.of_any_tool(model)
            check_ends(contents)
    except NotUnderstoodError as error:
        raise ValueError(
            f"{name}: received a TFLite file whose operators cannot be compared one by one "
            f"({error}); convert the model with inputs of one size."
        ) from error
    progress = ReadingProgress(contents.inputs)
    reasons: dict[str, str] = {}
    for image in contents.inputs:
        if image.type in ("INT8", "INT16"):
            _note(image, progress)
    for operator in contents.operators:
        for place, output in enumerate(operator.outputs):
            reason = _refusal(operator, place, progress)
            if reason is not None:
                reasons[output.name] = reason
    graph = _assembled(contents, name, progress)
    try:
        return ForeignFile(contents, _with_states(graph, states) if states else graph, reasons)
    except NotUnderstoodError as error:
        inputs = ", ".join(image.name for image in graph.images)
        raise ValueError(
            f"{name}: received the states {states}, expected pairs of an output "
            f"({', '.join(graph.outputs)}) and an input ({inputs}), both int8 of one shape, scale "
            "and zero point, because codes are fed back unchanged; name these."
        ) from error


def _refusal(operator: StoredOperator, place: int, progress: ReadingProgress) -> str | None:
    """Reads an operator for one tensor that it makes; returns why it is not simulated, or None."""
    tensors_before, count = dict(progress.tensors), len(progress.operations)
    output = operator.outputs[place]
    known = progress.known | progress.pending.keys()
    unknown = [
        tensor
        for tensor in operator.reads
        if tensor.data is None and tensor.name not in known and not tensor.is_variable
    ]
    try:
        row = ROWS.get(operator.name)
        if len(operator.outputs) != 1 and not (row and row.makes_several):
            raise NotUnderstoodError(f"it makes {len(operator.outputs)} tensors")
        view = OperatorView(dataclasses.replace(operator, outputs=(output,)), progress, place)
        read_operation(view, is_own=False)
        return None
    except NotUnderstoodError as error:
        reason = f"it reads {unknown[0].type} values" if unknown else str(error)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = shortened(printable(f"{type(error).__name__}: {error}"), _MOST_OF_A_REASON)
        reason = f"its options or its tensors are not those that its kernels take ({why})"
    progress.tensors.clear()
    progress.tensors.update(tensors_before)
    del progress.operations[count:]
    read_names = tuple(tensor.name for tensor in operator.reads if tensor.name in progress.known)
    progress.operations.append(NotSimulated(read_names, output.name, operator.name))
    _note(output, progress)
    return reason


def _note(tensor: StoredTensor, progress: ReadingProgress) -> None:
    """Adds a tensor that operations may read; none reads codes of other types than int8."""
    with contextlib.suppress(NotUnderstoodError):
        progress.tensors[tensor.name] = Tensor(tensor.name, tensor.shape[1:], codes_of(tensor))
