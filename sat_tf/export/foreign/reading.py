"""Reads a file of any tool, each operator by itself, so that an unknown one spoils no other."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping

from sat_tf.export.foreign import arithmetic
from sat_tf.export.operations.float_layer import NotSimulated
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.graph_file import check_ends, input_image, read_operation
from sat_tf.export.operations.movements import MOVES, Moved, Reshape
from sat_tf.export.operations.operation import Made
from sat_tf.export.tflite.contents import (
    Contents,
    NotUnderstoodError,
    StoredOperator,
    StoredTensor,
    of_any_tool,
    unpacked,
)
from sat_tf.export.tflite.operator_view import OperatorView, Progress, codes_of
from sat_tf.export.tflite.tensors import Tensor
from sat_tf.messages import printable, shortened

_MOST_OF_A_REASON = 80

# These read operators in forms that sat-tf does not write; None is left to sat-tf's operations.
_READERS: Mapping[str, Callable[[OperatorView], Made]] = {
    **dict.fromkeys(MOVES.keys() - Moved.reads, Moved.read),
    **dict.fromkeys(("SQUEEZE", "EXPAND_DIMS"), Reshape.read),
    **dict.fromkeys(arithmetic.RULES, arithmetic.Computed.read),
    "FULLY_CONNECTED": arithmetic.RowProduct.read,
}


@dataclasses.dataclass(frozen=True)
class ForeignFile:
    """A file that any tool may have written, as far as its operators are known."""

    contents: Contents  # What is in it; names of tensors are made distinct.
    graph: Graph  # Its operations; those that are not simulated are `NotSimulated`.
    reasons: Mapping[str, str]  # Why an operator is not simulated, by the tensors that it makes.


def read_foreign(content: bytes, name: str) -> ForeignFile:
    """Reads the first graph of a file of any tool."""
    try:
        with unpacked(content, name) as model:
            contents = of_any_tool(model)
            check_ends(contents)
    except NotUnderstoodError as error:
        raise ValueError(
            f"{name}: received a TFLite file whose operators cannot be compared one by one "
            f"({error}); convert the model with inputs of one size."
        ) from error
    progress = Progress(contents.inputs, is_foreign=True)
    reasons: dict[str, str] = {}
    for image in contents.inputs:
        if image.type == "INT8":
            _note(image, progress)
    for operator in contents.operators:
        for place, output in enumerate(operator.outputs):
            reason = _reason_not_to_read(operator, place, progress)
            if reason is not None:
                reasons[output.name] = reason
    graph = Graph(
        name=name,
        tensors=progress.tensors,
        operations=tuple(progress.operations),
        images=tuple(input_image(found, progress) for found in contents.inputs),
        output=contents.outputs[0].name,
        more_outputs=tuple(end.name for end in contents.outputs[1:]),
    )
    return ForeignFile(contents, graph, reasons)


def _reason_not_to_read(operator: StoredOperator, place: int, progress: Progress) -> str | None:
    """Reads an operator for one of the tensors that it makes; why it is not simulated, or None."""
    known, count = dict(progress.tensors), len(progress.operations)
    output = operator.outputs[place]
    others = [one for one in operator.reads if one.data is None and one.name not in progress.known]
    others = [one for one in others if one.name not in progress.pending]
    try:
        move, is_float = MOVES.get(operator.name), output.type == "FLOAT32"
        if len(operator.outputs) != 1 and not (move and move.makes_several):
            raise NotUnderstoodError(f"it makes {len(operator.outputs)} tensors")
        view = OperatorView(dataclasses.replace(operator, outputs=(output,)), progress, place)
        read_operation(view, None if is_float else _READERS.get(operator.name))
        return None
    except NotUnderstoodError as error:
        reason = f"it reads {others[0].type} values" if others else str(error)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        why = shortened(printable(f"{type(error).__name__}: {error}"), _MOST_OF_A_REASON)
        reason = f"its options or its tensors are not those that its kernels take ({why})"
    progress.tensors.clear()
    progress.tensors.update(known)
    del progress.operations[count:]
    read = tuple(one.name for one in operator.reads if one.name in progress.known)
    progress.operations.append(NotSimulated(read, output.name, operator.name))
    _note(output, progress)
    return reason


def _note(tensor: StoredTensor, progress: Progress) -> None:
    """Adds a tensor that operations may read; none reads codes of other types than int8."""
    with contextlib.suppress(NotUnderstoodError):
        progress.tensors[tensor.name] = Tensor(tensor.name, tensor.shape[1:], codes_of(tensor))
