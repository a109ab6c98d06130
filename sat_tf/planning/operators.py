"""Operations of a deployed graph as operators of a TFLite file."""

import re

from sat_tf.export import graph as ir
from sat_tf.export.lookup import Lookup
from sat_tf.export.movements import Movement
from sat_tf.export.pairs import Pair
from sat_tf.qat.layout import inner_layer

_NAMES: dict[type, str] = {
    ir.ShiftImage: "QUANTIZE",
    ir.AddConstant: "ADD",
    ir.Mean: "MEAN",
    ir.Concatenate: "CONCATENATION",
    ir.MaxPool: "MAX_POOL_2D",
    ir.AveragePool: "AVERAGE_POOL_2D",
}


def operator_names(operation: ir.Operation) -> tuple[str, ...]:
    """What the file calls the operators of an operation; of an island, its layer's class."""
    if isinstance(operation, ir.Linear | ir.WithConstant | Pair):
        return (operation.kind.value,)
    if isinstance(operation, ir.Island):
        return (f"float {type(inner_layer(operation.node.layer)).__name__}",)
    if isinstance(operation, Lookup):
        return "CAST", "ADD", "GATHER"
    if isinstance(operation, Movement):
        return (operation.operator,)
    kind = type(operation)
    name = _NAMES.get(kind) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).upper()
    return (name,)
