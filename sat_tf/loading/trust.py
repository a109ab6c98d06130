"""Tells saved models that Keras may load without running code that came with them.

Keras takes functions and classes out of a file by name: the Python code of a Lambda layer is in the
file itself, a module that a file names is imported, by tf_keras and by Keras 3 before 3.9, and any
function of TensorFlow can be called while the model is being built, including those that write
files. `check` accepts what is known to only compute on tensors, and names everything else.
"""

import contextlib
import contextvars
import operator
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sat_tf.loading.model_file import Entry, parts

SWITCH = (
    "if you trust whoever made it, load it with --trust_model (in Python safe_mode=False; in a "
    "configuration training.trust_model: true)"
)

# The names of Keras are public in these modules; not each release has all of them.
_SHARED_IN = ("initializers", "regularizers", "constraints", "losses", "metrics")
_CLASSES_IN = (
    *("layers", "mixed_precision", "optimizers", "optimizers.schedules", "optimizers.legacy"),
    *("dtype_policies", "quantizers", "random"),  # of Keras 3
    *_SHARED_IN,
)
_FUNCTIONS_IN = ("activations", *_SHARED_IN)
# Classes that Keras knows and has no public name for, and the schedules of TFMOT's pruning.
_OTHER_CLASSES = frozenset(
    {
        *("Functional", "Sequential", "Model", "InputLayer", "InputSpec", "TFOpLambda"),
        *("SlicingOpLambda", "SyncBatchNormalization", "BatchNormalizationV1"),
        *("BatchNormalizationV2", "BatchNormalizationBase", "GRUV1", "GRUV2", "LSTMV1", "LSTMV2"),
        *("ConstantSparsity", "PolynomialDecay"),
        *("GRUCellV1", "GRUCellV2", "LSTMCellV1", "LSTMCellV2", "CuDNNGRU", "CuDNNLSTM"),
    }
)
# Values have these classes: tensors, arrays, slices, tuples, shapes.
_VALUES = frozenset(
    {
        *("__tensor__", "__numpy__", "__bytes__", "__tuple__", "__ellipsis__", "TensorShape"),
        *("TypeSpec", "CompositeTensor", "__wrapped__", "__keras_tensor__", "__slice__"),
    }
)
_FUNCTION_MODULES = (
    *("", "builtins", "keras.ops", "keras.ops.nn"),
    *(f"{keras}.{module}" for keras in ("keras", "tf_keras") for module in _FUNCTIONS_IN),
)
_NO_FUNCTIONS = frozenset({"get", "serialize", "deserialize"})
# Layers of Keras 3 that hold programs: of PyTorch, JAX and TensorFlow.
PROGRAMS = ("TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer")


class UntrustedModelError(ValueError):
    """A model would run code that came with it; the message says which, and names the switch."""


def check(config: Mapping[str, Any], keras: types.ModuleType) -> None:
    """Raises UntrustedModelError where loading a configuration with a Keras could run code."""
    # Keras does not read it with compile=False.
    config = {key: value for key, value in config.items() if key != "compile_config"}
    keras_names = _keras_classes(keras)
    problems: dict[str, None] = {}  # each once
    for entry in parts(config):
        if problem := _problem(entry, keras, keras_names):
            problems[f"{entry.name}: {problem}" if entry.name else problem] = None
    if problems:
        raise UntrustedModelError(
            f"received a model that runs code when it is loaded: {'; '.join(problems)}; expected "
            f"layers of Keras and sat-tf, or classes that you have registered; {SWITCH}."
        )


def _problem(entry: Entry, keras: types.ModuleType, keras_names: frozenset[str]) -> str | None:
    """Says what is wrong with any of the ways in which Keras may read a part.

    Without a module, and in SavedModels, it looks for the class name; otherwise for the registered
    name first, then for the class name. Each of the two must be trusted.
    """
    class_name, registered_name = entry.class_name, entry.registered_name
    if class_name == "function":
        return _function_problem(entry, keras)
    if class_name in _VALUES and not entry.module and registered_name is None:
        return None
    for name in dict.fromkeys((class_name, registered_name)):
        check = _SPECIAL.get(name) if isinstance(name, str) else None
        problem = check(entry) if check else None
        if problem is not None:
            return problem
    resolved = _registered(registered_name, keras)
    if isinstance(resolved, type):
        if class_name in (registered_name, str(registered_name).split(">")[-1], resolved.__name__):
            return None
        return f"{class_name}, which is not what is registered as {registered_name}"
    if entry.module and entry.module.split(".")[0] not in ("keras", "tf_keras"):
        return f"{class_name} of the module {entry.module}, which loading may import"
    # A name without a module is looked up by Keras only in its own tables.
    is_class = class_name in keras_names or isinstance(_registered(class_name, keras), type)
    if registered_name not in (None, class_name):
        return f"{class_name}, registered as {registered_name}, which Keras does not know"
    if not (is_class or _is_operation(entry, keras)):
        return f"{class_name}, which is neither a class of Keras nor registered with it"
    return None


def _is_operation(entry: Entry, keras: types.ModuleType) -> bool:
    """Whether a part is an operation of Keras 3, which has no public name; imports nothing."""
    named = getattr(sys.modules.get(entry.module), entry.class_name, None)
    return isinstance(named, type) and issubclass(named, getattr(keras, "Operation", ()))


def _function_problem(entry: Entry, keras: types.ModuleType) -> str | None:
    name = entry.config
    if isinstance(name, str):
        resolved = _registered(name, keras)
        if resolved is not None and not isinstance(resolved, type):
            return None
        # A function that is not found by its name is looked for by its registered name.
        is_named_once = entry.registered_name in (None, name, "function")
        functions = [vars(module).get(name) for module in _modules(_FUNCTIONS_IN, keras)]
        is_known = name not in _NO_FUNCTIONS and any(map(callable, functions))
        if entry.module in _FUNCTION_MODULES and is_named_once and is_known:
            return None
    where = f" of the module {entry.module}" if entry.module else ""
    alias = entry.registered_name
    also = f", also called {alias!r}," if alias not in (None, name, "function") else ""
    return f"the function {name!r}{also}{where}"


def _operation_problem(entry: Entry) -> str | None:
    name = entry.config.get("function") if isinstance(entry.config, Mapping) else None
    if computes_on_tensors(name):
        return None
    return f"TensorFlow's function {name!r}, which may do more than compute on tensors"


def _vocabulary_problem(part: Entry) -> str | None:
    """Says which file a layer would read its vocabulary from."""
    words = part.config.get("vocabulary") if isinstance(part.config, Mapping) else None
    return f"a vocabulary in the file {words!r}" if isinstance(words, str) else None


# Classes of Keras that read more from a file than numbers.
_SPECIAL: dict[str, Callable[[Entry], str | None]] = {
    "Lambda": lambda entry: "a Lambda layer, whose Python code is in the file",
    "__lambda__": lambda entry: "a Python lambda, whose code is in the file",
    **dict.fromkeys(PROGRAMS, lambda entry: f"{entry.class_name}, which holds a program"),
    # A layer of sat-tf calls a function of TensorFlow by its name, too.
    **dict.fromkeys(("TFOpLambda", "SlicingOpLambda", "sat_tf>Operation"), _operation_problem),
    **dict.fromkeys(("StringLookup", "IntegerLookup", "TextVectorization"), _vocabulary_problem),
    **dict.fromkeys(
        (
            *("ClassMethod", "InstanceMethod", "InstanceProperty", "TensorFlowOpLayer"),
            *("__typespec__", "AddMetric", "AddLoss", "DenseFeatures", "SequenceFeatures"),
        ),
        lambda entry: f"{entry.class_name}, which calls what the file names",
    ),
}


def _registered(name: Any, keras: Any) -> Any:
    """The class or function that running code has registered, or has in a scope; otherwise None."""
    return keras.saving.get_registered_object(name) if isinstance(name, str) else None


def _keras_classes(keras: types.ModuleType) -> frozenset[str]:
    """The names of the classes of Keras that may be in a file."""
    return _OTHER_CLASSES | {
        name
        for module in _modules(_CLASSES_IN, keras)
        for name, value in vars(module).items()
        if isinstance(value, type)
    }


def _modules(names: tuple[str, ...], keras: types.ModuleType) -> Iterator[types.ModuleType]:
    for name in names:
        with contextlib.suppress(AttributeError):
            yield operator.attrgetter(name)(keras)


# -- functions of TensorFlow -----------------------------------------------------------------------

# Modules of TensorFlow whose functions take tensors and return tensors, and the exceptions in them:
# state, functions as arguments, decoders of files.
_TENSOR_MODULES = (
    *("math.", "linalg.", "bitwise.", "signal.", "quantization.", "__operators__.", "nn."),
    *("image.", "random.", "keras.activations."),
)
_EXCEPTIONS = re.compile(
    r"experimental|rnn|generator|candidate_sampler|set_seed|[de][ne]code|jpeg|custom|batch_function|"
    r"serialize|activations\.get$",
    re.IGNORECASE,
)
_TENSOR_FUNCTIONS = """
abs acos acosh add add_n argmax argmin argsort asin asinh atan atan2 atanh batch_to_space bitcast
boolean_mask broadcast_dynamic_shape broadcast_to cast clip_by_norm clip_by_value complex concat
constant convert_to_tensor cos cosh cumsum divide dynamic_partition dynamic_stitch einsum
ensure_shape equal exp expand_dims extract_volume_patches eye fill floor gather gather_nd greater
greater_equal histogram_fixed_width identity identity_n less less_equal linspace logical_and
logical_not logical_or matmul maximum meshgrid minimum multiply negative norm not_equal one_hot ones
ones_like pad pow range rank realdiv reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean
reduce_min reduce_prod reduce_sum repeat reshape reverse reverse_sequence roll round saturate_cast
scalar_mul scatter_nd searchsorted sequence_mask shape shape_n sigmoid sign sin sinh size slice sort
space_to_batch space_to_batch_nd split sqrt square squeeze stack stop_gradient strided_slice
subtract tan tanh tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min
tensor_scatter_nd_sub tensor_scatter_nd_update tensordot tile transpose truediv truncatediv
truncatemod unravel_index unstack where zeros zeros_like dtypes.cast dtypes.complex
dtypes.saturate_cast
"""

# Keras calls the constructors of layers, which cannot be told otherwise who made the file.
_MAKER_IS_TRUSTED = contextvars.ContextVar("sat_tf_maker_is_trusted", default=False)


class CalledFunction(str):
    """The name of a function that Python code has called, or a trusted file has named.

    The mark stays on copies that are made of a layer's configuration in Python. In a file there is
    plain text in its place, which is checked again when it is read.
    """

    __slots__ = ()


def computes_on_tensors(name: Any) -> bool:
    """Whether a function of TensorFlow takes tensors, returns tensors, and does nothing else."""
    if not isinstance(name, str):
        return False
    modern = name.removeprefix("compat.v1.")
    if modern.startswith(_TENSOR_MODULES) and not _EXCEPTIONS.search(modern):
        return True
    return modern in _TENSOR_FUNCTIONS.split()


def expect_allowed(name: Any) -> CalledFunction:
    """The name of a function that a layer may call, marked as one."""
    is_trusted = _MAKER_IS_TRUSTED.get() or isinstance(name, CalledFunction)
    if isinstance(name, str) and (is_trusted or computes_on_tensors(name)):
        return CalledFunction(name)
    raise ValueError(
        f"function={name!r}: received a function that may do more than compute on tensors, "
        "expected one of TensorFlow's that does not; if you trust whoever made the model, load it "
        "with sat_tf.loading.load.load_model(path, safe_mode=False); in a model of your own, call "
        "the function itself"
    )


@contextlib.contextmanager
def trusted_maker() -> Iterator[None]:
    """A scope in which layers may call any function, as those of a trusted file do."""
    token = _MAKER_IS_TRUSTED.set(True)
    try:
        yield
    finally:
        _MAKER_IS_TRUSTED.reset(token)
