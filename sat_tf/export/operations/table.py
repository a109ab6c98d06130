"""The table of operations: adding one is a file of its own, and a row here."""

from sat_tf.export.operations.float_layer import FloatLayer, FloatLayerOperator
from sat_tf.export.operations.linear import Linear
from sat_tf.export.operations.lookup import Lookup
from sat_tf.export.operations.movements import Moved, Reshape
from sat_tf.export.operations.native import Native, Sloped, Softmax
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.pairs import Concatenate, Pair
from sat_tf.export.operations.pointwise import WithConstant
from sat_tf.export.operations.pools import AveragePool, MaxPool, Mean, ResizeBilinear
from sat_tf.export.operations.quantize import (
    Dequantize,
    Quantize,
    Requantize,
    ShiftImage,
    ShiftOutput,
)
from sat_tf.export.tflite.operator_view import OperatorView

OPERATIONS: list[type[Operation]] = [
    Linear,
    Pair,
    Mean,
    MaxPool,
    AveragePool,
    ResizeBilinear,
    Concatenate,
    Moved,
    Reshape,
    Lookup,
    Native,
    Sloped,
    ShiftImage,
    Quantize,
    ShiftOutput,
    Requantize,
    Dequantize,
    WithConstant,
    Softmax,
    FloatLayer,
    FloatLayerOperator,
]


def readers_of(name: str) -> list[type[Operation]]:
    """The operations that read operators of a name of the schema."""
    return [operation for operation in OPERATIONS if name in operation.reads]


def reader_of(operator: OperatorView) -> type[Operation] | None:
    """The operation that an operator of a file is part of; None where sat-tf does not write it."""
    return next((one for one in readers_of(operator.name) if one.recognizes(operator)), None)
