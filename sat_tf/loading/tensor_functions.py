"""The functions of TensorFlow that only compute on tensors, so that any file may name them."""

import contextlib
import contextvars
import re
from collections.abc import Iterator
from typing import Any

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

# Keras calls the constructors of layers, which cannot be told otherwise who made the file.
_MAKER_IS_TRUSTED = contextvars.ContextVar("sat_tf_maker_is_trusted", default=False)


class CalledFunction(str):
    """The name of a function that Python code has called, or a trusted file has named.

    The mark stays on copies that are made of a layer's configuration in Python. In a file there is
    plain text in its place, which is checked again when it is read.
    """

    __slots__ = ()


def computes_on_tensors(name: Any) -> bool:
    """Whether a function of TensorFlow takes tensors, returns tensors, and does nothing else.

    >>> computes_on_tensors("math.sin"), computes_on_tensors("io.write_file")
    (True, False)
    """
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
