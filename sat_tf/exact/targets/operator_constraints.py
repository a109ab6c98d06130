"""The operators that the processors of targets compute, and the constraints on each."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from sat_tf.exact.kernels.functions import MOST_CLASSES
from sat_tf.exact.targets import constraints
from sat_tf.exact.targets.constraints import Constraint
from sat_tf.exact.targets.processors import PROCESSORS, Processor
from sat_tf.exact.tflite.contents import Contents, StoredOperator
from sat_tf.exact.tflite.value_tables import DECODE
from sat_tf.messages import first_ones
from sat_tf.messages.tables import Marked


@dataclasses.dataclass(frozen=True)
class CpuFallback:
    """An operator of a file that a target does not compute: an NPU leaves it to the CPU."""

    operator: str  # The operator's name.
    tensor: str  # The tensor that it makes.
    reason: str  # The reason, as the processor's compiler sees it.
    fix: str = ""  # The change that avoids it; "" where none is known.

    def __str__(self) -> str:
        line = f"{self.operator} {self.tensor}: {self.reason}"
        return f"{line}; {self.fix}." if self.fix else f"{line}."


# The number of operators that a line names.
_NAMED = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target(Processor):
    """A processor with the operators that it computes: one row of the table of targets."""

    # The operators that its processor computes, each with its own constraints; None where it
    # computes all of TFLite's.
    operators: Mapping[str, Sequence[Constraint]] | None = None
    constraints: Sequence[Constraint] = ()  # The constraints of all operators.

    def statements(self, left: Sequence[CpuFallback], count: int) -> list[Marked]:
        """States how many operators of a file its processor computes, and which the CPU does.

        Operators with the same reason share a line. The statements on a CPU only list the operators
        that it refuses.
        """
        if not left:
            run_on = "are those of" if self.confirmed_by else "run on"
            words = f"All {count} operators {run_on} {self.title}."
            return [Marked(words, "good")] if self.native else []
        names: dict[str, list[str]] = {}
        for fallback in left:
            name, why = str(fallback).split(": ", 1)
            names.setdefault(why, []).append(name)
        lines = (f"  {first_ones(alike, _NAMED)}: {why}" for why, alike in names.items())
        headline = Marked(self.shortfall(len(left), count), "watch")
        return [headline, *(Marked(line, "plain") for line in lines)]

    def cpu_fallback(self, contents: Contents) -> list[CpuFallback]:
        """Returns a file's operators that its processor leaves to the CPU, or refuses, in order."""
        fallbacks: list[CpuFallback] = []
        ends = _float_ends(contents)
        inputs = {tensor.name for tensor in contents.inputs}
        # A file that quantizes only weights, or has a float head, has no codes to end in.
        dequantized = (op.reads for op in contents.operators if op.name == "DEQUANTIZE")
        has_weights = any(t.data is not None for reads in dequantized for t in reads)
        otherwise = ACTIVATIONS if has_weights else QUANTIZED
        for operator in contents.operators:
            reason, fix = self._problem(operator)
            if not reason:
                continue
            if fix == INTEGER_OUTPUTS and not all(t.name in ends for t in operator.outputs):
                fix = otherwise
            reads_input = {tensor.name for tensor in operator.reads} <= inputs
            if operator.name == "QUANTIZE" and reads_input and fix != constraints.EIGHT_BITS:
                fix = INTEGER_INPUTS
            tensor_name = operator.outputs[0].name if operator.outputs else ""
            fallbacks.append(CpuFallback(operator.name, tensor_name, reason, fix))
        return fallbacks

    def _problem(self, operator: StoredOperator) -> tuple[str, str]:
        operators = self.operators
        if operators is not None and operator.name not in operators:
            fix = _FIXES.get(operator.name, "")
            values = operator.inputs[0] if operator.name == "GATHER" else None
            if values and values.data is not None and len(values.shape) > 1:
                fix = "the CPU looks up the rows of a table"
            elif operator.name in (*_LOOKS_UP, *_WORDS):
                fix = "quantize for this target"
                if self.native:  # files for other processors have tables
                    *words, last = (word for name, word in _WORDS.items() if name in operators)
                    fix += f", and use a function that it has: {', '.join(words)} or {last}"
            table = "sat-tf's table of " if self.confirmed_by else ""
            return f"{table}{self.title} has no {operator.name}", fix
        if not self.on_microcontrollers and any(tensor.index_bits for tensor in operator.reads):
            return f"{self.title} cannot expand its kernel by {DECODE}", _STORE_BYTES
        own_constraints = () if operators is None else operators[operator.name]
        for constraint in (*self.constraints, *own_constraints):
            try:
                failure = next(constraint(operator), None)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                # The file lacks tensors or options, or has them in another shape.
                return "it lacks tensors or options that its kernels read", "convert it again"
            if failure is not None:
                return failure
        return "", ""


# Codes cannot stand for the results of these operators on float values.
_PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL")


def _float_ends(contents: Contents) -> set[str]:
    """Returns the float tensors made from codes after which nothing computes with codes again."""
    makes = collections.defaultdict[str, list[str]](list)
    ends: set[str] = set()
    for operator in reversed(contents.operators):
        output_names = [tensor.name for tensor in operator.outputs]
        is_product = operator.name in _PRODUCTS
        for tensor in operator.outputs:
            if tensor.type == "FLOAT32" and not is_product and ends.issuperset(makes[tensor.name]):
                ends.add(tensor.name)
        for tensor in operator.reads:
            makes[tensor.name] += output_names
    stands_for = set[str]()
    for operator in contents.operators:
        reads = {tensor.name for tensor in operator.reads}
        if operator.name == "DEQUANTIZE" or not stands_for.isdisjoint(reads):
            stands_for |= ends & {tensor.name for tensor in operator.outputs}
    return stands_for


# Fixes that make float tensors unnecessary: at the ends of a file, and within.
INTEGER_INPUTS = "use input_type='int8' in the policy"
INTEGER_OUTPUTS = "export with output_type='int8'"
QUANTIZED = "quantize the layer, or replace it"
# The fix that makes weights that operators dequantize unnecessary.
ACTIVATIONS = "quantize activations too: give the policy activation_bits, and leave float_head out"
# The operators of a function's table, and the operators that compute functions.
_LOOKS_UP = ("CAST", "GATHER")
_WORDS = {
    "ABS": "abs",
    "LOGISTIC": "sigmoid, swish",
    "HARD_SWISH": "hard-swish",
    "ELU": "elu (alpha 1)",
    "GELU": "gelu",
    "LEAKY_RELU": "LeakyReLU (slope above 0, at most 1)",
    "PRELU": "PReLU",
    "TANH": "tanh",
}
# The fixes that make other operators unnecessary.
_FIXES = {
    "DEQUANTIZE": INTEGER_OUTPUTS,
    "DEPTH_TO_SPACE": "use a transposed convolution or UpSampling2D",
    "SPACE_TO_DEPTH": "use a convolution with strides",
}

_STORE_BYTES = "export with pack='none'"

# The list of supported operators that Arm's compiler ethos-u-vela 5.2.0 writes.
_BYTES = constraints.of_types("INT8", "UINT8", fix=QUANTIZED)
_BYTE_WEIGHTS = constraints.weights_of("INT8", "UINT8", fix=_STORE_BYTES)
_ETHOS_WEIGHTS = (_BYTE_WEIGHTS, constraints.largest_sum_of_weights(8_323_072))
_SMALL_TYPES = constraints.of_types("INT8", "UINT8", "INT16", fix=QUANTIZED)

# Functions of one value.
_FUNCTIONS = ("HARD_SWISH", "LEAKY_RELU", "LOGISTIC", "PRELU", "TANH", "EXP", "LOG", "ABS", "RSQRT")
_OF_BYTES = ("ELU", "GELU")
_CLIPS = ("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1")
_MOVES = ("CONCATENATION", "PACK", "UNPACK", "SPLIT", "SPLIT_V", "SLICE", "REVERSE_V2", "TILE")
_SHAPES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
_PADS = ("PAD", "PADV2", "MIRROR_PAD")

_STRIDES = constraints.strides(3, more_where_valid=False)
_LARGE_STRIDES = constraints.strides(3, more_where_valid=True)
_POOLED = constraints.pooled_windows(largest_padded=None)
_PADDED = constraints.pooled_windows(largest_padded=8)
_U55: Mapping[str, tuple[Constraint, ...]] = {
    "CONV_2D": (*_ETHOS_WEIGHTS, _LARGE_STRIDES),
    "DEPTHWISE_CONV_2D": (*_ETHOS_WEIGHTS, _STRIDES),
    "FULLY_CONNECTED": _ETHOS_WEIGHTS,
    "TRANSPOSE_CONV": (*_ETHOS_WEIGHTS, constraints.small_strides, constraints.grown_by_strides),
    "AVERAGE_POOL_2D": (_SMALL_TYPES, _LARGE_STRIDES, _PADDED),
    "MAX_POOL_2D": (_SMALL_TYPES, _LARGE_STRIDES, _POOLED),
    "MEAN": (_SMALL_TYPES, constraints.one_of_a_batch, constraints.reduced_axes(largest=4096)),
    "RESIZE_BILINEAR": (
        _SMALL_TYPES,
        constraints.one_of_a_batch,
        constraints.scales_by(2, 4, 8, half_pixels=(2,)),
    ),
    "RESIZE_NEAREST_NEIGHBOR": (
        _SMALL_TYPES,
        constraints.one_of_a_batch,
        constraints.scales_by(2, 4, 8),
    ),
    "STRIDED_SLICE": (_SMALL_TYPES, constraints.strided_slice),
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), (_SMALL_TYPES, constraints.same_grids)),
    **dict.fromkeys((*_FUNCTIONS, *_CLIPS, *_MOVES, *_PADS), (_SMALL_TYPES,)),
    **dict.fromkeys((*_OF_BYTES, "BATCH_MATMUL"), (_BYTES,)),
    **dict.fromkeys(("ADD", "ARG_MAX", "MUL", "SUB", "SUM", "TRANSPOSE"), ()),
    **dict.fromkeys(_SHAPES, ()),
    **dict.fromkeys(("QUANTIZE", "SOFTMAX", "SQUARED_DIFFERENCE"), (_SMALL_TYPES,)),
    **dict.fromkeys(("REDUCE_MAX", "REDUCE_MIN"), (_SMALL_TYPES, _STRIDES)),
}
_U85: Mapping[str, tuple[Constraint, ...]] = {
    **_U55,
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"), _ETHOS_WEIGHTS),
    "TRANSPOSE_CONV": (*_ETHOS_WEIGHTS, constraints.grown_by_strides),
    "AVERAGE_POOL_2D": (_PADDED,),
    "MAX_POOL_2D": (_POOLED,),
    "RESIZE_BILINEAR": (constraints.scales_by(*(2**power for power in range(11))),),
    "RESIZE_NEAREST_NEIGHBOR": (constraints.scales_to_at_most(1024),),
    **dict.fromkeys(("BATCH_MATMUL", "CAST", "REDUCE_MAX", "REDUCE_MIN"), ()),
    "GATHER": (constraints.gathers_by_batch,),
}
_ETHOS_TYPES = constraints.of_types("INT8", "UINT8", "INT16", "INT32", fix=INTEGER_OUTPUTS)

# -- TFLite's int8 specification ------------------------------------------------------------------
# https://developers.google.com/edge/litert/quantization/quantization_spec lists the operators below
# with their tensors; the table of TFLite's quantizer has the same for others, but for LSTM, SVDF,
# WHERE and variables: tensorflow/lite/tools/optimize/operator_property.cc.

_CODES = (constraints.of_types("INT8", scaled=True, fix=INTEGER_OUTPUTS),)
_INT8_WEIGHTS = constraints.weights_of("INT8", fix=_STORE_BYTES)
# These inputs have codes; the others are indices or conditions, or the output has other numbers.
_FIRST_CODES, _SECOND_CODES, _CHOSEN_CODES = (
    (constraints.of_types("INT8", scaled=True, only=slice(*places), fix=QUANTIZED),)
    for places in ((0, 1), (1, 2), (1, 3))
)
# Operators whose inputs and outputs have one scale and one zero point.
_OF_ONE_GRID = (
    *("AVERAGE_POOL_2D", "MAX_POOL_2D", "CONCATENATION", "MAXIMUM", "MINIMUM", "RESHAPE"),
    *("SQUEEZE", "TRANSPOSE", "SLICE", "PAD", "PADV2", "RESIZE_BILINEAR"),
    *("SPACE_TO_DEPTH", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"),
    # The quantizer's table adds these.
    *("BROADCAST_TO", "DEPTH_TO_SPACE", "EXPAND_DIMS", "MIRROR_PAD", "PACK", "UNPACK"),
    *("REDUCE_MAX", "REDUCE_MIN", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SPLIT", "SPLIT_V"),
    *("STRIDED_SLICE", "TILE"),
)
_OF_ANY_GRIDS = (
    *("ADD", "SUB", "MUL", "MEAN", "SUM"),
    # The quantizer's table adds these.
    *("ABS", "BATCH_MATMUL", "GELU", "HARD_SWISH", "LEAKY_RELU", "PRELU", "REDUCE_PROD"),
    *("RELU", "RELU6", "RELU_N1_TO_1", "RSQRT", "SQUARED_DIFFERENCE"),
)
_INT8: Mapping[str, tuple[Constraint, ...]] = {
    **dict.fromkeys(_OF_ANY_GRIDS, _CODES),
    **dict.fromkeys(_OF_ONE_GRID, (*_CODES, constraints.same_grids)),
    **dict.fromkeys(
        ("CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"),
        (*_CODES, _INT8_WEIGHTS, constraints.symmetric_weights(axis=0)),
    ),
    "DEPTHWISE_CONV_2D": (*_CODES, _INT8_WEIGHTS, constraints.symmetric_weights(axis=3)),
    **dict.fromkeys(("LOGISTIC", "SOFTMAX"), (*_CODES, constraints.output_grid(1 / 256, -128))),
    "LOG_SOFTMAX": (*_CODES, constraints.output_grid(16 / 256, 127)),
    **dict.fromkeys(("TANH", "L2_NORMALIZATION"), (*_CODES, constraints.output_grid(1 / 128, 0))),
    # Files may also take pixels, and make codes, as uint8.
    "QUANTIZE": (constraints.of_types("INT8", "UINT8", scaled=True, fix=QUANTIZED),),
    **dict.fromkeys(("GATHER", "GATHER_ND"), (*_FIRST_CODES, constraints.same_grids)),
    **dict.fromkeys(("FILL", "SCATTER_ND"), (*_SECOND_CODES, constraints.same_grids)),
    "SELECT": (*_CHOSEN_CODES, constraints.same_grids),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL"), _FIRST_CODES),
    **dict.fromkeys(("GREATER", "GREATER_EQUAL", "ARG_MAX", "SHAPE"), _FIRST_CODES),
}

_NOT_INT16 = constraints.of_types(*("FLOAT32", "INT8", "INT32", "INT64", "BOOL"), fix=QUANTIZED)
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
    "FULLY_CONNECTED": (constraints.no_packed_products,),
    "SOFTMAX": (constraints.few_classes(MOST_CLASSES),),
    # Their kernels have no int16.
    **dict.fromkeys(("GATHER", "REDUCE_MAX", "REDUCE_MIN"), (_NOT_INT16,)),
}

# The operators that each processor computes, with their own constraints, and the constraints of all
# of them. A processor with None computes all of TFLite's operators.
_OPERATORS: Mapping[str, tuple[Mapping[str, Sequence[Constraint]] | None, Sequence[Constraint]]] = {
    "litert": (None, ()),
    "micro": (_MICRO, ()),
    "ethos-u55": (_U55, (_ETHOS_TYPES,)),
    "ethos-u65": (_U55, (_ETHOS_TYPES,)),
    "ethos-u85": (_U85, (_ETHOS_TYPES,)),
    "int8": (_INT8, ()),
}
TARGETS: Mapping[str, Target] = {
    name: Target(**vars(processor), operators=operators, constraints=of_all)
    for name, processor in PROCESSORS.items()
    for operators, of_all in [_OPERATORS[name]]
}
