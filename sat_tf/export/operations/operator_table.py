"""The operators that the writer uses: their versions, and what their options are called."""

from typing import NamedTuple

from sat_tf.export.operations.graph import LinearKind


class Operator(NamedTuple):
    """One operator of the schema.

    Attributes:
        version: the one that reads the types of sat-tf's files; older runtimes then refuse a file
            instead of misreading it.
        options: the schema's name of its builtin options.
    """

    version: int
    options: str


OPERATORS: dict[str, Operator] = {
    "CONV_2D": Operator(3, "Conv2DOptions"),
    "DEPTHWISE_CONV_2D": Operator(3, "DepthwiseConv2DOptions"),
    "FULLY_CONNECTED": Operator(4, "FullyConnectedOptions"),
    "ADD": Operator(2, "AddOptions"),
    "MEAN": Operator(2, "ReducerOptions"),
    "MAX_POOL_2D": Operator(2, "Pool2DOptions"),
    "AVERAGE_POOL_2D": Operator(2, "Pool2DOptions"),
    "CONCATENATION": Operator(2, "ConcatenationOptions"),
    "PAD": Operator(2, "PadOptions"),
    "RESHAPE": Operator(1, "ReshapeOptions"),
    "QUANTIZE": Operator(2, "QuantizeOptions"),
    "DEQUANTIZE": Operator(2, "DequantizeOptions"),
    "MAXIMUM": Operator(2, "MaximumMinimumOptions"),
    "MINIMUM": Operator(2, "MaximumMinimumOptions"),
    "MUL": Operator(2, "MulOptions"),
    "SOFTMAX": Operator(1, "SoftmaxOptions"),
    "TRANSPOSE_CONV": Operator(3, "TransposeConvOptions"),
    "SUB": Operator(2, "SubOptions"),
    "STRIDED_SLICE": Operator(2, "StridedSliceOptions"),
    "TRANSPOSE": Operator(2, "TransposeOptions"),
    "RESIZE_NEAREST_NEIGHBOR": Operator(3, "ResizeNearestNeighborOptions"),
    "CAST": Operator(1, "CastOptions"),
    "GATHER": Operator(2, "GatherOptions"),
    "DEPTH_TO_SPACE": Operator(1, "DepthToSpaceOptions"),
    "SPACE_TO_DEPTH": Operator(2, "SpaceToDepthOptions"),
    "REDUCE_MAX": Operator(2, "ReducerOptions"),
}

# Versions that read more: scales a row, a fused activation, and kernels of fewer bits than 8.
FULLY_CONNECTED_PER_CHANNEL = 12
TRANSPOSED_AND_FUSED = 4
PACKED = {
    LinearKind.CONVOLUTION: 7,
    LinearKind.DEPTHWISE: 7,
    LinearKind.FULLY_CONNECTED: 10,
}
