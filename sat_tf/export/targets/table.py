"""The operators that the processors of targets compute, and the constraints on each."""

from collections.abc import Mapping, Sequence

from sat_tf.export.targets.constraints import (
    Constraint,
    gathers_by_batch,
    grown_by_strides,
    images_of_three_axes,
    largest_sum_of_weights,
    no_fused_activation,
    no_packed_products,
    of_types,
    one_dilation,
    one_of_a_batch,
    one_scale,
    pooled_windows,
    quantized,
    reduced_axes,
    same_grids,
    scales_by,
    scales_to_at_most,
    slices_by_one,
    small_strides,
    strided_slice,
    strides,
    values_at_most,
    weights_of,
)
from sat_tf.export.targets.target import INTEGER_OUTPUTS, QUANTIZED, Target
from sat_tf.targets import PROCESSORS, Processor

_STORE_BYTES = "export with pack='none'"
_ETHOS_SUM = 8_323_072

_BYTES = of_types("INT8", "UINT8", fix=QUANTIZED)
_BYTE_WEIGHTS = weights_of("INT8", "UINT8", fix=_STORE_BYTES)
_ETHOS_WEIGHTS = (_BYTE_WEIGHTS, largest_sum_of_weights(_ETHOS_SUM))
_SMALL_TYPES = of_types("INT8", "UINT8", "INT16", fix=QUANTIZED)

# Functions of one value.
_FUNCTIONS = ("HARD_SWISH", "LEAKY_RELU", "LOGISTIC", "PRELU", "TANH", "EXP", "LOG", "ABS", "RSQRT")
_OF_BYTES = ("ELU", "GELU")
_CLIPS = ("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1")
_MOVES = ("CONCATENATION", "PACK", "UNPACK", "SPLIT", "SPLIT_V", "SLICE", "REVERSE_V2", "TILE")
_SHAPES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
_PADS = ("PAD", "PADV2", "MIRROR_PAD")

_U55: Mapping[str, tuple[Constraint, ...]] = {
    "CONV_2D": (*_ETHOS_WEIGHTS, strides(3, more_where_valid=True)),
    "DEPTHWISE_CONV_2D": (*_ETHOS_WEIGHTS, strides(3, more_where_valid=False)),
    "FULLY_CONNECTED": _ETHOS_WEIGHTS,
    "TRANSPOSE_CONV": (*_ETHOS_WEIGHTS, small_strides, grown_by_strides),
    "AVERAGE_POOL_2D": (
        _SMALL_TYPES,
        strides(3, more_where_valid=True),
        pooled_windows(largest_padded=8),
    ),
    "MAX_POOL_2D": (
        _SMALL_TYPES,
        strides(3, more_where_valid=True),
        pooled_windows(largest_padded=None),
    ),
    "MEAN": (_SMALL_TYPES, one_of_a_batch, reduced_axes(largest=4096)),
    "RESIZE_BILINEAR": (_SMALL_TYPES, one_of_a_batch, scales_by(2, 4, 8, half_pixels=(2,))),
    "RESIZE_NEAREST_NEIGHBOR": (_SMALL_TYPES, one_of_a_batch, scales_by(2, 4, 8)),
    "STRIDED_SLICE": (_SMALL_TYPES, strided_slice),
    "MAXIMUM": (_SMALL_TYPES, same_grids),
    "MINIMUM": (_SMALL_TYPES, same_grids),
    **dict.fromkeys((*_FUNCTIONS, *_CLIPS, *_MOVES, *_PADS), (_SMALL_TYPES,)),
    **dict.fromkeys(_OF_BYTES, (_BYTES,)),
    **dict.fromkeys(("ADD", "SUB", "MUL", "TRANSPOSE", *_SHAPES), ()),
    **dict.fromkeys(("QUANTIZE", "SOFTMAX", "SQUARED_DIFFERENCE"), (_SMALL_TYPES,)),
    **dict.fromkeys(("ARG_MAX", "BATCH_MATMUL", "SUM"), ()),
    **{
        name: (_SMALL_TYPES, strides(3, more_where_valid=False))
        for name in ("REDUCE_MAX", "REDUCE_MIN")
    },
}
_POWERS_OF_TWO = tuple(2**power for power in range(11))
_U85: Mapping[str, tuple[Constraint, ...]] = {
    **_U55,
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"), _ETHOS_WEIGHTS),
    "TRANSPOSE_CONV": (*_ETHOS_WEIGHTS, grown_by_strides),
    "AVERAGE_POOL_2D": (pooled_windows(largest_padded=8),),
    "MAX_POOL_2D": (pooled_windows(largest_padded=None),),
    "RESIZE_BILINEAR": (scales_by(*_POWERS_OF_TWO),),
    "RESIZE_NEAREST_NEIGHBOR": (scales_to_at_most(1024),),
    "REDUCE_MAX": (),
    "REDUCE_MIN": (),
    "CAST": (),
    "GATHER": (gathers_by_batch,),
}
_ETHOS_TYPES = of_types("INT8", "UINT8", "INT16", "INT32", fix=INTEGER_OUTPUTS)

_EDGE_TPU_OTHERS = (
    *("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "RSQRT", "SUM"),
    *("LOGISTIC", "TANH", "PRELU", "RELU", "RELU6", "RELU_N1_TO_1", "L2_NORMALIZATION"),
    *("PAD", "PACK", "SLICE", "SPLIT", "SPACE_TO_DEPTH", "TRANSPOSE", "QUANTIZE"),
    *("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "REDUCE_MAX", "REDUCE_MIN"),
    *_SHAPES,
)
_EDGE_TPU: Mapping[str, tuple[Constraint, ...]] = {
    "CONV_2D": (_BYTE_WEIGHTS, one_dilation),
    "DEPTHWISE_CONV_2D": (_BYTE_WEIGHTS, one_dilation),
    "FULLY_CONNECTED": (_BYTE_WEIGHTS, one_scale),
    "TRANSPOSE_CONV": (_BYTE_WEIGHTS,),
    "AVERAGE_POOL_2D": (no_fused_activation,),
    "MAX_POOL_2D": (no_fused_activation,),
    "CONCATENATION": (no_fused_activation,),
    "MEAN": (reduced_axes(largest=2**31),),
    "SOFTMAX": (values_at_most(16_000),),
    "STRIDED_SLICE": (slices_by_one,),
    **dict.fromkeys(_EDGE_TPU_OTHERS, ()),
}

_LINEAR = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
_ANDROID_OTHERS = (
    *("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"),
    *("AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION", "SPLIT", "SLICE", "STRIDED_SLICE"),
    *("LOGISTIC", "TANH", "HARD_SWISH", "ELU", "LEAKY_RELU", "PRELU", "GELU", "SOFTMAX"),
    *("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"),
    *("PAD", "PADV2", "MIRROR_PAD", "TRANSPOSE", "PACK", "UNPACK", "QUANTIZE"),
    *(*_CLIPS, *_SHAPES),
)
_ANDROID: Mapping[str, tuple[Constraint, ...]] = {
    **dict.fromkeys(_LINEAR, (_BYTE_WEIGHTS,)),
    **dict.fromkeys(_ANDROID_OTHERS, ()),
}

# A file with each operator was opened in `tflite-micro`; applications register custom ones.
_MICRO_OTHERS = (
    *("ADD", "ADD_N", "SUB", "MUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM"),
    *("ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGISTIC"),
    *("NEG", "PRELU", "RELU", "RELU6", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH"),
    *("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "SELECT_V2"),
    *("LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "REDUCE_ALL", "IF", "WHILE", "CALL_ONCE"),
    *("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "BATCH_MATMUL", "SVDF"),
    *("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"),
    *("MEAN", "SUM", "CUMSUM", "REDUCE_MAX", "REDUCE_MIN", "ARG_MAX", "ARG_MIN"),
    *("L2_NORMALIZATION", "LOG_SOFTMAX", "SOFTMAX", "SQUARED_DIFFERENCE"),
    *("CONCATENATION", "PACK", "UNPACK", "SPLIT", "SPLIT_V", "SLICE", "STRIDED_SLICE"),
    *("BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"),
    *("BROADCAST_ARGS", "BROADCAST_TO", "FILL", "REVERSE_V2", "SHAPE", "TRANSPOSE", "ZEROS_LIKE"),
    *("EMBEDDING_LOOKUP", "GATHER", "GATHER_ND", "DYNAMIC_UPDATE_SLICE"),
    *("ASSIGN_VARIABLE", "READ_VARIABLE", "VAR_HANDLE", "UNIDIRECTIONAL_SEQUENCE_LSTM"),
    *("CAST", "DEQUANTIZE", "QUANTIZE", "CUSTOM"),
    *(*_SHAPES, *_PADS),
)
_MICRO: Mapping[str, tuple[Constraint, ...]] = {
    **dict.fromkeys(_MICRO_OTHERS, ()),
    "FULLY_CONNECTED": (no_packed_products,),
}

# The operators that a processor computes, each with its own constraints, and those of all. Those
# with None, and those that are not here, compute all of TFLite's.
_OPERATORS: Mapping[str, tuple[Mapping[str, Sequence[Constraint]] | None, Sequence[Constraint]]] = {
    "micro": (_MICRO, ()),
    "ethos-u55": (_U55, (_ETHOS_TYPES,)),
    "ethos-u65": (_U55, (_ETHOS_TYPES,)),
    "ethos-u85": (_U85, (_ETHOS_TYPES,)),
    "edgetpu": (_EDGE_TPU, (_BYTES, images_of_three_axes)),
    "android-npu": (_ANDROID, (_BYTES, quantized(fix=QUANTIZED))),
}


def _target(processor: Processor) -> Target:
    operators, constraints = _OPERATORS.get(processor.name, (None, ()))
    return Target(**vars(processor), operators=operators, constraints=constraints)


TARGETS: Mapping[str, Target] = {name: _target(processor) for name, processor in PROCESSORS.items()}
