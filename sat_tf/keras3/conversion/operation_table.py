"""The table of Keras 3 operations, such as `x + y`, and what tf_keras has for each of them."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.keras3.conversion.activations import ACTIVATIONS

# Types of tensors, with how far two ways to compute one may be apart: two units in the last place,
# as a fraction of the largest value.
LOWER_PRECISIONS = {"float16": 2**-9, "bfloat16": 2**-6}

# The counterpart of an operation: takes its tensors and constants in its order and by its names.
Function = Callable[..., Any]


def is_known(operation: Any) -> bool:
    """Whether the table has a row for this Keras 3 operation."""
    return _is_operation_of_keras(operation) and type(operation).__name__ in _ROWS


def make_function(operation: Any, node: Any) -> Function:
    """The counterpart of a Keras 3 operation in tf_keras.

    Where tf_keras has a layer for it, that layer, with the operation's name.

    Args:
        operation: the operation, one that `is_known`.
        node: its call in the graph of the Keras 3 model.
    """
    with _computing_in(str(node.outputs[0].dtype)):
        return _ROWS[type(operation).__name__](operation, node)


@contextlib.contextmanager
def _computing_in(dtype: str) -> Iterator[None]:
    """Has layers that are made within compute in a lower precision, as operations do."""
    if dtype not in LOWER_PRECISIONS:
        yield
        return
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy(f"mixed_{dtype}")
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(before)


def _is_operation_of_keras(operation: Any) -> bool:
    return type(operation).__module__.startswith(("keras.src.ops.", "keras.src.activations."))


def _tensors(node: Any) -> list[Any]:
    return list(node.arguments.keras_tensors)


def _merge(layer: str, function: Function) -> Callable[[Any, Any], Function]:
    """A layer for two tensors of one rank and type, a function for anything else."""

    def make(operation: Any, node: Any) -> Function:
        tensors, output = _tensors(node), node.outputs[0]
        alike = {(len(tensor.shape), tensor.dtype) for tensor in [*tensors, output]}
        if layer and len(tensors) == 2 and len(alike) == 1 and len(output.shape) > 1:
            made = getattr(keras.layers, layer)(name=operation.name)
            return lambda x1, x2: made([x1, x2])
        return lambda x1, x2: function(_typed(x1, output.dtype), _typed(x2, output.dtype))

    return make


def _comparison(function: Function) -> Callable[[Any, Any], Function]:
    """A function of two operands in the type that Keras 3 promotes both to; it gives truths."""

    def make(operation: Any, node: Any) -> Function:
        given = [*node.arguments.args, *node.arguments.kwargs.values()]
        dtype = keras3.backend.result_type(*(getattr(one, "dtype", type(one)) for one in given))
        return lambda x1, x2: function(_typed(x1, dtype), _typed(x2, dtype))

    return make


def _where(operation: Any, node: Any) -> Function:
    dtype = node.outputs[0].dtype

    def where(condition: Any, x1: Any, x2: Any) -> Any:
        return tf.where(tf.cast(condition, "bool"), _typed(x1, dtype), _typed(x2, dtype))

    return where


def _typed(value: Any, dtype: str) -> Any:
    """A tensor or constant in the type that Keras 3 promotes both operands to."""
    if hasattr(value, "dtype") and not isinstance(value, np.ndarray | np.generic):
        return value if value.dtype.name == dtype else tf.cast(value, dtype)
    array = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype)
    return float(array) if array.ndim == 0 and tf.as_dtype(dtype).is_floating else array


def _activation(name: str) -> Callable[[Any, Any], Function]:
    return lambda operation, node: keras.layers.Activation(ACTIVATIONS[name], name=operation.name)


def _plain(function: Function, *attributes: str) -> Callable[[Any, Any], Function]:
    """A function of one tensor, with settings of the same names in both."""

    def make(operation: Any, node: Any) -> Function:
        settings = {name: getattr(operation, name) for name in attributes}
        return lambda x: function(x, **settings)

    return make


def _reduction(function: Function, layer: str) -> Callable[[Any, Any], Function]:
    """A reduction; over rows and columns a layer."""

    def make(operation: Any, node: Any) -> Function:
        axis, keepdims = operation.axis, operation.keepdims
        rank = len(_tensors(node)[0].shape)
        axes = sorted(one % rank for one in np.atleast_1d(axis)) if axis is not None else None
        if layer and rank == 4 and axes == [1, 2]:
            return getattr(keras.layers, layer)(
                keepdims=keepdims, data_format="channels_last", name=operation.name
            )
        return lambda x: function(x, axis=axis, keepdims=keepdims)

    return make


def _reshape(operation: Any, node: Any) -> Function:
    shape, source = tuple(operation.newshape), _tensors(node)[0].shape
    rest = [size for size in shape[1:] if size != -1]
    known = None not in source[1:] and source[0] is None
    keeps_batch = shape[0] == -1 and len(rest) == len(shape) - 1
    if known and keeps_batch and int(np.prod(rest)) == int(np.prod(source[1:])):
        return keras.layers.Reshape(shape[1:], name=operation.name)
    return lambda x: tf.reshape(x, [-1 if size is None else size for size in shape])


def _transpose(operation: Any, node: Any) -> Function:
    axes = operation.axes
    if axes is not None and len(axes) > 1 and axes[0] == 0:
        return keras.layers.Permute(tuple(axes[1:]), name=operation.name)
    return lambda x: tf.transpose(x, axes)


def _concatenate(operation: Any, node: Any) -> Function:
    dtype = node.outputs[0].dtype
    if len(_tensors(node)) > 1 and {tensor.dtype for tensor in _tensors(node)} == {dtype}:
        return keras.layers.Concatenate(axis=operation.axis, name=operation.name)
    return lambda xs: tf.concat([_typed(x, dtype) for x in xs], axis=operation.axis)


def _pooling(layer: str) -> Callable[[Any, Any], Function]:
    def make(operation: Any, node: Any) -> Function:
        return getattr(keras.layers, f"{layer}{len(_tensors(node)[0].shape) - 2}D")(
            operation.pool_size,
            operation.strides,
            operation.padding,
            data_format=operation.data_format or "channels_last",
            name=operation.name,
        )

    return make


def _resize(operation: Any, node: Any) -> Function:
    if operation.crop_to_aspect_ratio or operation.pad_to_aspect_ratio:
        raise ValueError("received an image resized with its aspect ratio kept; use a layer")
    if operation.data_format not in (None, "channels_last"):
        raise ValueError(f"received data_format={operation.data_format!r}, use channels_last")
    return lambda images: tf.image.resize(
        images, operation.size, operation.interpolation, antialias=operation.antialias
    )


def _pad(operation: Any, node: Any) -> Function:
    widths = operation.pad_width

    def pad(x: Any, constant_values: Any = None) -> Any:
        value = 0 if constant_values is None else constant_values
        return tf.pad(x, widths, operation.mode.upper(), value)

    return pad


def _split(operation: Any, node: Any) -> Function:
    sections, axis = operation.indices_or_sections, operation.axis
    if not isinstance(sections, int):
        ends = [*sections, _tensors(node)[0].shape[axis]]
        sections = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return lambda x: tf.split(x, sections, axis=axis)


def _clip(operation: Any, node: Any) -> Function:
    dtype = node.outputs[0].dtype
    low, high = (np.asarray(end, dtype) for end in (operation.x_min, operation.x_max))
    return lambda x: tf.clip_by_value(x, low, high)


def _get_item(operation: Any, node: Any) -> Function:
    return lambda x, key: x[tuple(key) if isinstance(key, list) else key]


def _gelu(operation: Any, node: Any) -> Function:
    if operation.approximate:
        return lambda x: tf.nn.gelu(x, approximate=True)
    return keras.layers.Activation("gelu", name=operation.name)


def _with_name(made: Callable[[Any, str], Function]) -> Callable[[Any, Any], Function]:
    return lambda operation, node: made(operation, operation.name)


def _normalize(operation: Any, node: Any) -> Function:
    if operation.order != 2:
        raise ValueError(f"received a normalization of order {operation.order}, expected 2")
    epsilon = keras.backend.epsilon() if operation.epsilon is None else operation.epsilon
    return lambda x: tf.math.l2_normalize(x, axis=operation.axis, epsilon=epsilon**2)


def _squeeze(axis: int | Sequence[int] | None) -> list[int]:
    return [] if axis is None else [int(one) for one in np.atleast_1d(axis)]


_ROWS: dict[str, Callable[[Any, Any], Function]] = {
    **{
        name: _merge(layer, function)
        for name, layer, function in (
            ("Add", "Add", tf.add),
            ("Subtract", "Subtract", tf.subtract),
            ("Multiply", "Multiply", tf.multiply),
            ("Divide", "", tf.divide),
            ("TrueDivide", "", tf.divide),
            ("Maximum", "Maximum", tf.maximum),
            ("Minimum", "Minimum", tf.minimum),
            ("Power", "", tf.pow),
            ("Matmul", "", tf.matmul),
        )
    },
    **{
        name: _activation(keras3)
        for name, keras3 in (
            ("HardSigmoid", "hard_sigmoid"),
            ("HardSilu", "hard_silu"),
            ("LogSigmoid", "log_sigmoid"),
            ("Selu", "selu"),
            ("Sigmoid", "sigmoid"),
            ("Silu", "silu"),
            ("Softplus", "softplus"),
            ("Softsign", "softsign"),
            ("Tanh", "tanh"),
            ("TanhShrink", "tanh_shrink"),
        )
    },
    **{
        name: _comparison(function)
        for name, function in (
            ("Equal", tf.equal),
            ("Greater", tf.greater),
            ("GreaterEqual", tf.greater_equal),
            ("Less", tf.less),
            ("LessEqual", tf.less_equal),
            ("LogicalAnd", tf.logical_and),
            ("LogicalOr", tf.logical_or),
            ("NotEqual", tf.not_equal),
        )
    },
    **{
        name: _plain(function)
        for name, function in (
            ("Abs", tf.abs),
            ("Absolute", tf.abs),
            ("Exp", tf.exp),
            ("Floor", tf.floor),
            ("Log", tf.math.log),
            ("LogicalNot", tf.logical_not),
            ("Negative", tf.negative),
            ("Reciprocal", tf.math.reciprocal),
            ("Rsqrt", tf.math.rsqrt),
            ("Sqrt", tf.sqrt),
            ("Square", tf.square),
            ("StopGradient", tf.stop_gradient),
        )
    },
    **{
        name: _reduction(function, layer)
        for name, function, layer in (
            ("Amax", tf.reduce_max, "GlobalMaxPooling2D"),
            ("Max", tf.reduce_max, "GlobalMaxPooling2D"),
            ("Mean", tf.reduce_mean, "GlobalAveragePooling2D"),
            ("Min", tf.reduce_min, ""),
            ("Prod", tf.reduce_prod, ""),
            ("Sum", tf.reduce_sum, ""),
        )
    },
    "AveragePool": _pooling("AveragePooling"),
    "Cast": _plain(tf.cast, "dtype"),
    "Clip": _clip,
    "Concatenate": _concatenate,
    "DepthToSpace": lambda op, node: lambda x: tf.nn.depth_to_space(x, op.block_size),
    "Elu": _with_name(lambda op, name: keras.layers.ELU(op.alpha, name=name)),
    "ExpandDims": _plain(tf.expand_dims, "axis"),
    "Gelu": _gelu,
    "GetItem": _get_item,
    "LeakyRelu": _with_name(lambda op, name: keras.layers.LeakyReLU(op.negative_slope, name=name)),
    "LogSoftmax": _plain(tf.nn.log_softmax, "axis"),
    "MaxPool": _pooling("MaxPooling"),
    "Normalize": _normalize,
    "Pad": _pad,
    "ReLU": _with_name(
        lambda op, name: keras.layers.ReLU(op.max_value, op.negative_slope, op.threshold, name=name)
    ),
    "Relu": _with_name(lambda op, name: keras.layers.ReLU(name=name)),
    "Relu6": _with_name(lambda op, name: keras.layers.ReLU(6.0, name=name)),
    "Reshape": _reshape,
    "Resize": _resize,
    "Softmax": _with_name(lambda op, name: keras.layers.Softmax(op.axis, name=name)),
    "SpaceToDepth": lambda op, node: lambda x: tf.nn.space_to_depth(x, op.block_size),
    "Split": _split,
    "Squeeze": lambda op, node: lambda x: tf.squeeze(x, _squeeze(op.axis)),
    "Stack": lambda op, node: lambda x: tf.stack(x, axis=op.axis),
    "Transpose": _transpose,
    "Where": _where,
}
