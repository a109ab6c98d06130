"""Which saved models tf_keras may load without running code that came with them.

tf_keras takes functions and classes out of a file by name: the Python code of a Lambda layer is in
the file itself, any module that a file names is imported, and any function of TensorFlow can be
called while the model is being built, those that write files among them. `problems` lets through
what is known to compute on tensors alone, and names all else.
"""

import re
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sat_tf.loading.model_file import Part, parts

SWITCH = (
    "if you trust whoever made it, load it with --trust_model (in Python safe_mode=False; in a "
    "configuration training.trust_model: true)"
)

# Of tf_keras, by where their names are public.
_CLASSES_IN = (
    "layers",
    "initializers",
    "regularizers",
    "constraints",
    "losses",
    "metrics",
    "optimizers",
    "optimizers.schedules",
    "optimizers.legacy",
    "mixed_precision",
)
_FUNCTIONS_IN = (
    *("activations", "initializers", "regularizers", "constraints"),
    *("losses", "metrics"),
)
# Classes that tf_keras knows and has no public name for, and the schedules of TFMOT's pruning.
_OTHER_CLASSES = frozenset(
    {
        *("Functional", "Sequential", "Model", "InputLayer", "InputSpec", "TFOpLambda"),
        *("SlicingOpLambda", "SyncBatchNormalization", "BatchNormalizationV1"),
        *("BatchNormalizationV2", "BatchNormalizationBase", "GRUV1", "GRUV2", "LSTMV1", "LSTMV2"),
        *("ConstantSparsity", "PolynomialDecay"),
        *("GRUCellV1", "GRUCellV2", "LSTMCellV1", "LSTMCellV2", "CuDNNGRU", "CuDNNLSTM"),
    }
)
# What stands for a value: a tensor, an array, a tuple, a shape.
_VALUES = frozenset(
    {
        *("__tensor__", "__numpy__", "__bytes__", "__tuple__", "__ellipsis__", "TensorShape"),
        *("TypeSpec", "CompositeTensor", "__wrapped__"),
    }
)
_NO_FUNCTIONS = frozenset({"get", "serialize", "deserialize"})

# Whole rooms of TensorFlow whose functions take tensors and give tensors, and what else is in them:
# state, functions as arguments, decoders of files.
_TENSOR_ROOMS = (
    *("math.", "linalg.", "bitwise.", "signal.", "quantization.", "__operators__.", "nn."),
    *("image.", "random.", "keras.activations."),
)
_NOT_IN_ROOMS = re.compile(
    r"experimental|rnn|generator|candidate_sampler|set_seed|[de][ne]code|jpeg|custom|batch_function|serialize|"
    r"activations\.get$",
    re.IGNORECASE,
)
_TENSOR_FUNCTIONS = """
abs acos acosh add add_n argmax argmin argsort asin asinh atan atan2 atanh batch_to_space
bitcast boolean_mask broadcast_dynamic_shape broadcast_to cast clip_by_norm clip_by_value
complex concat constant convert_to_tensor cos cosh cumsum divide dynamic_partition
dynamic_stitch einsum ensure_shape equal exp expand_dims extract_volume_patches eye fill
floor gather gather_nd greater greater_equal histogram_fixed_width identity identity_n
less less_equal linspace logical_and logical_not logical_or matmul maximum meshgrid
minimum multiply negative norm not_equal one_hot ones ones_like pad pow range rank realdiv
reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod
reduce_sum repeat reshape reverse reverse_sequence roll round saturate_cast scalar_mul
scatter_nd searchsorted sequence_mask shape shape_n sigmoid sign sin sinh size slice sort
space_to_batch space_to_batch_nd split sqrt square squeeze stack stop_gradient
strided_slice subtract tan tanh tensor_scatter_nd_add tensor_scatter_nd_max
tensor_scatter_nd_min tensor_scatter_nd_sub tensor_scatter_nd_update tensordot tile
transpose truediv truncatediv truncatemod unravel_index unstack where zeros zeros_like
dtypes.cast dtypes.complex dtypes.saturate_cast
"""

# Of sat-tf: a layer that calls a function of TensorFlow by its name.
_OPERATION = "sat_tf>Operation"


class UntrustedModelError(ValueError):
    """A model would run code that came with it; the message says which, and names the switch."""


def check(config: Mapping[str, Any]) -> None:
    """Raises UntrustedModelError where loading a configuration with tf_keras could run code.

    Args:
        config: of the model, as it is in the file.

    Raises:
        ValueError: it is nested without end.
    """
    found = list(dict.fromkeys(_problems(config)))
    if found:
        raise UntrustedModelError(untrusted(found))


def untrusted(problems: list[str]) -> str:
    """The refusal, with all its reasons and the switch."""
    return (
        f"received a model that runs code when it is loaded: {'; '.join(problems)}; expected "
        f"layers of Keras and sat-tf alone; {SWITCH}."
    )


def _problems(config: Mapping[str, Any]) -> Iterator[str]:
    # With compile=False nobody reads it.
    config = {key: value for key, value in config.items() if key != "compile_config"}
    known = _known_classes()
    for part in parts(config):
        problem = _problem(part, known)
        if problem is not None:
            yield f"{part.name}: {problem}" if part.name else problem


def _problem(part: Part, known: frozenset[str]) -> str | None:
    kind = part.class_name
    if kind in _SPECIAL:
        return _SPECIAL[kind](part)
    if kind in _VALUES:
        return None
    if kind == "function":
        return _function_problem(part)
    elsewhere = bool(part.module) and not _is_keras(part.module)
    # tf_keras asks for the class name only where there is no registered one.
    name = kind if part.registered_name is None and not elsewhere else part.registered_name
    if _is_registered(name):
        return _operation_problem(part) if name == _OPERATION else None
    if elsewhere:
        return f"{kind} of the module {part.module}, which would be imported"
    # Without a module, tf_keras looks a name up in its own tables alone.
    if kind not in known or part.registered_name not in (None, kind):
        return f"{kind}, which is no layer of Keras, and no class that is registered with it"
    return None


def _function_problem(part: Part) -> str | None:
    name = part.config
    if isinstance(name, str):
        if _is_registered(name):
            return None
        public = not part.module or part.module == "builtins" or _is_keras(part.module)
        if public and name in _known_functions():
            return None
    where = f" of the module {part.module}" if part.module else ""
    return f"the function {name!r}{where}"


def _code(part: Part) -> str:
    return "a Lambda layer, whose Python code is in the file"


def _operation_problem(part: Part) -> str | None:
    name = part.config.get("function") if isinstance(part.config, Mapping) else None
    if isinstance(name, str):
        modern = name.removeprefix("compat.v1.")
        if modern.startswith(_TENSOR_ROOMS) and not _NOT_IN_ROOMS.search(modern):
            return None
        if modern in _TENSOR_FUNCTIONS.split():
            return None
    return f"TensorFlow's function {name!r}, which may do more than compute on tensors"


def _lookup_problem(part: Part) -> str | None:
    words = part.config.get("vocabulary") if isinstance(part.config, Mapping) else None
    return f"a vocabulary in the file {words!r}" if isinstance(words, str) else None


def _refused(part: Part) -> str:
    return f"{part.class_name}, which calls what the file names"


# Classes of tf_keras that take more out of a file than numbers.
_SPECIAL: dict[str, Callable[[Part], str | None]] = {
    "Lambda": _code,
    "__lambda__": lambda part: "a Python lambda, whose code is in the file",
    "TFOpLambda": _operation_problem,
    "SlicingOpLambda": _operation_problem,
    "StringLookup": _lookup_problem,
    "IntegerLookup": _lookup_problem,
    "TextVectorization": _lookup_problem,
    **dict.fromkeys(
        (
            *("ClassMethod", "InstanceMethod", "InstanceProperty", "TensorFlowOpLayer"),
            *("__typespec__", "AddMetric", "AddLoss", "DenseFeatures", "SequenceFeatures"),
        ),
        _refused,
    ),
}


def _is_keras(module: str) -> bool:
    return module.split(".")[0] in ("keras", "tf_keras")


def _is_registered(name: Any) -> bool:
    """Whether running code has registered a class or function, or has it in a scope."""
    import tf_keras as keras

    if not isinstance(name, str):
        return False
    return keras.saving.get_registered_object(name) is not None


def _known_classes() -> frozenset[str]:
    return _OTHER_CLASSES | {
        name
        for room in _rooms(_CLASSES_IN)
        for name, value in vars(room).items()
        if isinstance(value, type)
    }


def _known_functions() -> set[str]:
    return {
        name
        for room in _rooms(_FUNCTIONS_IN)
        for name, value in vars(room).items()
        if callable(value) and name not in _NO_FUNCTIONS
    }


def _rooms(names: tuple[str, ...]) -> Iterator[types.ModuleType]:
    import tf_keras as keras

    for name in names:
        room: Any = keras
        for word in name.split("."):
            room = getattr(room, word)
        yield room
