"""The table of Keras 3 operations, such as `x + y`, and what tf_keras has for each of them."""

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import counterparts
from sat_tf.graph.layers.activations import OF_KERAS3

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


def _merge(function: Function, name: str) -> Callable[[Any, Any], Function]:
    """A layer, if there is one of that name, for two tensors of one rank and type, else a function.

    Args:
        function: the function of TensorFlow.
        name: of the operation's class in Keras 3.
    """
    layer = getattr(keras.layers, name, None)

    def make(operation: Any, node: Any) -> Function:
        tensors, output = _tensors(node), node.outputs[0]
        alike = {(len(tensor.shape), tensor.dtype) for tensor in [*tensors, output]}
        if layer and len(tensors) == 2 and len(alike) == 1 and len(output.shape) > 1:
            made = layer(name=operation.name)
            return lambda x1, x2: made([x1, x2])
        return lambda x1, x2: function(_typed(x1, output.dtype), _typed(x2, output.dtype))

    return make


def _comparison(function: Function, name: str) -> Callable[[Any, Any], Function]:
    """A function of two operands in the type that Keras 3 promotes both to; it gives truths."""
    del name

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
    return lambda operation, node: keras.layers.Activation(OF_KERAS3[name], name=operation.name)


def _plain(function: Function, *attributes: str) -> Callable[[Any, Any], Function]:
    """A function of one tensor, with settings of the same names in both."""

    def make(operation: Any, node: Any) -> Function:
        settings = {name: getattr(operation, name) for name in attributes}
        return lambda x: function(x, **settings)

    return make


_POOLINGS = {"Max": "GlobalMaxPooling2D", "Mean": "GlobalAveragePooling2D"}


def _reduction(function: Function, name: str) -> Callable[[Any, Any], Function]:
    """A reduction; over rows and columns a layer, if there is one."""
    layer = _POOLINGS.get(name)

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


def _counterparts(rows: counterparts.Rows, form: Callable[..., Any]) -> dict[str, Any]:
    """Makers of TensorFlow's functions, by the classes of Keras 3's operations."""
    found = {counterparts.class_name(name): row.calls[0] for name, row in rows.items()}
    return {name: form(operator.attrgetter(symbol)(tf), name) for name, symbol in found.items()}


# Operations of Keras 3 that compute the same as others.
_SYNONYMS = {"Absolute": "Abs", "Amax": "Max", "TrueDivide": "Divide"}

_ROWS: dict[str, Callable[[Any, Any], Function]] = {
    **_counterparts(counterparts.OF_ONE, lambda function, name: _plain(function)),
    **_counterparts(counterparts.OF_TWO, _merge),
    **_counterparts(counterparts.COMPARISONS, _comparison),
    **_counterparts(counterparts.REDUCTIONS, _reduction),
    **{
        counterparts.class_name(name): _activation(name)
        for name in (
            *counterparts.ACTIVATIONS,
            *("hard_sigmoid", "hard_silu", "log_sigmoid", "tanh_shrink"),
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
_ROWS |= {name: _ROWS[other] for name, other in _SYNONYMS.items()}
