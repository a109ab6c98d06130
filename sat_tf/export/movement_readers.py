"""What the operators of a file that move codes, or look them up, are in the graph."""

from collections.abc import Callable

import numpy as np

from sat_tf.export import graph as ir
from sat_tf.export import movements
from sat_tf.export.contents import NotUnderstoodError
from sat_tf.export.graph import Codes
from sat_tf.export.lookup import FIRST, Lookup
from sat_tf.export.operator_view import OperatorView

# What an operator becomes: the operation, and the codes of its tensor.
Made = tuple[ir.Operation, Codes | None]


def moved_codes(operator: OperatorView) -> Codes | None:
    """The codes of the input, which the output shares."""
    codes, source = operator.codes(), operator.source_codes()
    if (codes and (codes.step, codes.zero_point)) != (source and (source.step, source.zero_point)):
        raise NotUnderstoodError("it changes the step or the zero point")
    return source


def _slice(operator: OperatorView) -> Made:
    begin, end, strides = (operator.constant(index, "INT32") for index in (1, 2, 3))
    whole = (operator.option("beginMask"), operator.option("endMask"), strides[0]) == (1, 1, 1)
    masks = ("ellipsisMask", "newAxisMask", "shrinkAxisMask")
    if not whole or any(map(operator.option, masks)) or operator.option("offset"):
        raise NotUnderstoodError("it takes some images, or other axes than there are")
    slices = tuple(zip(begin[1:].tolist(), end[1:].tolist(), strides[1:].tolist(), strict=True))
    return movements.Slice((operator.source(),), operator.output.name, slices), moved_codes(
        operator
    )


def _transpose(operator: OperatorView) -> Made:
    batch, *order = operator.constant(1, "INT32").tolist()
    if batch != 0:
        raise NotUnderstoodError("it moves the batch")
    made = movements.Transpose((operator.source(),), operator.output.name, tuple(order))
    return made, moved_codes(operator)


def _enlarge(operator: OperatorView) -> Made:
    operator.expect(alignCorners=False, halfPixelCenters=True, otherwise="it places pixels by")
    rows, columns = operator.constant(1, "INT32").tolist()
    made = movements.Resize((operator.source(),), operator.output.name, (rows, columns))
    return made, moved_codes(operator)


def _blocks(operator: OperatorView) -> Made:
    kind = _BLOCKS[operator.stored.name]
    size = operator.option("blockSize")
    return kind((operator.source(),), operator.output.name, size), moved_codes(operator)


_BLOCKS = {
    "DEPTH_TO_SPACE": movements.DepthToSpace,
    "SPACE_TO_DEPTH": movements.SpaceToDepth,
}


def _channel_max(operator: OperatorView) -> Made:
    axes, last = operator.constant(1, "INT32").tolist(), len(operator.output.shape) - 1
    if axes != [last] or not operator.option("keepDims"):
        raise NotUnderstoodError(f"its axes are {axes}, expected the channels, [{last}]")
    return movements.ChannelMax((operator.source(),), operator.output.name), moved_codes(operator)


def _gather(operator: OperatorView) -> Made:
    if operator.is_constant(0):
        return _lookup(operator)
    indices, axis = operator.constant(1, "INT32"), operator.option("axis")
    size = operator.tensor(0).shape[axis] if axis > 0 else 0
    within = indices.ndim == 1 and np.all((indices >= 0) & (indices < size))
    if not within or operator.option("batchDims"):
        raise NotUnderstoodError("it takes other parts than those of an axis of each image")
    numbers = tuple(indices.tolist())
    made = movements.Gather((operator.source(),), operator.output.name, numbers, axis - 1)
    return made, moved_codes(operator)


def _lookup(operator: OperatorView) -> Made:
    table, codes = operator.constant(0, "INT8"), operator.codes()
    source, added = operator.progress.places.get(operator.tensor(1).name, ("", 0))
    if table.shape != (2 * FIRST,) or added != FIRST or codes is None:
        raise NotUnderstoodError("it looks up something else than each code in a table of 256")
    codes = Codes(codes.step, codes.zero_point, int(np.min(table)), int(np.max(table)))
    return Lookup((source,), operator.output.name, table), codes


def read_places(operator: OperatorView) -> tuple[str, int] | None:
    """The codes that an operator makes int32 of, and what has been added; None for any other."""
    if operator.stored.name == "CAST":
        if operator.source_codes() is None or operator.output.type != "INT32":
            raise NotUnderstoodError("it does not make int32 of codes")
        return operator.source(), 0
    first = operator.stored.inputs[0]
    if operator.stored.name != "ADD" or first is None or first.name not in operator.progress.places:
        return None
    source, added = operator.progress.places[first.name]
    return source, added + int(operator.constant(1, "INT32"))


MOVEMENT_READERS: dict[str, Callable[[OperatorView], Made]] = {
    "STRIDED_SLICE": _slice,
    "TRANSPOSE": _transpose,
    "RESIZE_NEAREST_NEIGHBOR": _enlarge,
    "GATHER": _gather,
    "DEPTH_TO_SPACE": _blocks,
    "SPACE_TO_DEPTH": _blocks,
    "REDUCE_MAX": _channel_max,
}
