"""Operations that compute values one by one, or that sat-tf leaves float: rows of the registry."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sat_tf.graph.operations.operation import (
    MOST_AXES,
    Finder,
    OldCall,
    OperationKind,
    Replacement,
    Twin,
    constant_of,
    is_keras,
    layer_class,
    new_layer,
    number_of,
    one_layer,
    only_tensor,
    typed,
    with_settings,
)

# -- layers of tf_keras for calls of TensorFlow's functions ----------------------------------------


def _layers_of_two(
    combining: str, formula: str, reverse: str | None, call: OldCall
) -> Replacement | None:
    """A layer of two tensors, or of a tensor and a number in one of two formulas."""
    x, y = call.argument(0, "x"), call.argument(1, "y")
    tensors = [value for value in (x, y) if is_keras(value)]
    if len(tensors) == 2:
        fits = combining and len(x.shape) == len(y.shape)
        same = fits and x.dtype == y.dtype
        return Replacement(tensors, [new_layer(combining)], takes_list=True) if same else None
    used_formula = formula if is_keras(x) else reverse
    if not tensors or used_formula is None:
        return None
    return _scaled(tensors[0], used_formula, y if is_keras(x) else x)


# Arguments of tf.linalg.matmul after its two tensors.
_OPTIONS = (
    *("transpose_a", "transpose_b", "adjoint_a", "adjoint_b"),
    *("a_is_sparse", "b_is_sparse", "output_type"),
)


def _matrices(call: OldCall) -> Replacement | None:
    """The product of matrices in two tensors of one rank."""
    x, y = call.argument(0, "a"), call.argument(1, "b")
    options = {name: call.argument(place, name) for place, name in enumerate(_OPTIONS, start=2)}
    transposed = bool(options.pop("transpose_b"))
    if any(options.values()) or not (is_keras(x) and is_keras(y)) or x.dtype != y.dtype:
        return None
    if len(x.shape) != len(y.shape) or not 3 <= len(x.shape) <= MOST_AXES:
        return None
    return Replacement([x, y], [new_layer("MatrixProduct", transposed)], takes_list=True)


def _scaled(tensor: Any, formula: str, number: Any) -> Replacement | None:
    values = constant_of(number)
    if values is None or values.ndim > len(tensor.shape):
        return None
    if values.size == 1:
        values = values.reshape(())
    elif values.shape[-1] != values.size or values.size != tensor.shape[-1]:
        return _with_map(tensor, formula, values)
    else:
        values = values.reshape(-1)
    zero = formula in ("x * c", "x / c") and np.any(values == 0)
    if zero or not np.all(np.isfinite(values)):
        return None
    return one_layer(tensor, "Scaling", formula, values.tolist())


def _with_map(tensor: Any, formula: str, values: np.ndarray) -> Replacement | None:
    """A sum or difference with numbers that are the same for all images."""
    rank = len(tensor.shape)
    if not 0 < values.ndim <= rank or not np.all(np.isfinite(values)):
        return None
    values = values.reshape((1,) * (rank - values.ndim) + values.shape)
    fits = all(size in (1, extent) for size, extent in zip(values.shape, tensor.shape, strict=True))
    if not fits or values.shape[0] != 1:
        return None
    values = values[0].astype(np.float32)
    layers = {
        "x + c": [new_layer("ConstantSum", values)],
        "x - c": [new_layer("ConstantSum", -values)],
        "c - x": [
            new_layer("Scaling", "x * c", -1.0, suffix="negative"),
            new_layer("ConstantSum", values),
        ],
    }
    return Replacement([tensor], layers[formula]) if formula in layers else None


def _with_constant(formula: str, call: OldCall) -> Replacement | None:
    """A layer of two tensors that is called with one, and with a constant of its rank."""
    operands = call.node.call_args[0]
    if not isinstance(operands, list | tuple) or len(operands) != 2:
        return None
    (tensor, constant), number = operands, constant_of(operands[1])
    if formula == "x + c" and number is None:
        (tensor, constant), number = (constant, tensor), constant_of(tensor)
    if number is None or not is_keras(tensor) or number.ndim != len(tensor.shape):
        return None
    return _scaled(tensor, formula, number)


def _biased(call: OldCall) -> Replacement | None:
    tensor, bias = call.argument(0, "value"), constant_of(call.argument(1, "bias"))
    if str(call.argument(2, "data_format")).startswith("NC") or bias is None or bias.ndim != 1:
        return None
    return _scaled(tensor, "x + c", bias)


# A tensor, and the ends that its values are clipped to; infinite ends clip nothing.
_Ends = tuple[Any, float, float]


@dataclasses.dataclass(frozen=True)
class _Clipping:
    """A finder for calls that clip a tensor, or that take the extreme values of two."""

    ends: Callable[[OldCall], _Ends | None]  # Gives the ends that the call clips to.
    of_two: str = ""  # The name of the layer for two tensors; "" without one.

    def __call__(self, call: OldCall) -> Replacement | None:
        x, y = call.argument(0, "x"), call.argument(1, "y")
        if self.of_two and is_keras(x) and is_keras(y):
            return Replacement([x, y], [new_layer(self.of_two)], takes_list=True)
        clipped = self.ends(call)
        if clipped is None:
            return None
        tensor, low, high = clipped
        # The clipping is merged with those in front of it; from 0 it is a rectifier.
        while (inner := _ends_of_maker(call, tensor)) is not None:
            tensor, lower, higher = inner
            low, high = min(max(lower, low), high), min(max(higher, low), high)
        if low == math.inf or high == -math.inf:
            return None  # it makes everything infinite
        floor, ceiling = (None if math.isinf(end) else end for end in (low, high))
        if floor is None and ceiling is None:
            return one_layer(tensor, "Activation", "linear")
        if floor == 0.0 and high > 0.0:
            return one_layer(tensor, "ReLU", ceiling)
        return one_layer(tensor, "Clip", floor, ceiling)


def _ends_of_maker(call: OldCall, tensor: Any) -> _Ends | None:
    """The ends of the clipping that a tensor comes from, if it does."""
    maker = call.maker_of(tensor)
    if maker is None:
        return None
    if maker.symbol:
        find = _FINDERS.get(maker.symbol)
        return find.ends(maker) if isinstance(find, _Clipping) else None
    from sat_tf.graph.layers.activations import ends_of_rectifier

    ends = ends_of_rectifier(maker.layer)
    if ends is None:
        return None
    return maker.node.call_args[0], ends[0], math.inf if ends[1] is None else ends[1]


def _ends_of_extremum(is_lowest: bool, call: OldCall) -> _Ends | None:
    x, y = call.argument(0, "x"), call.argument(1, "y")
    tensor, bound = (x, y) if is_keras(x) else (y, x)
    number = number_of(bound)
    if number is None or not is_keras(tensor):
        return None
    return (tensor, number, math.inf) if is_lowest else (tensor, -math.inf, number)


def _ends_of_clip(call: OldCall) -> _Ends | None:
    tensor = call.argument(0, "t")
    low = number_of(call.argument(1, "clip_value_min"))
    high = number_of(call.argument(2, "clip_value_max"))
    if low is None or high is None or low > high or not is_keras(tensor):
        return None
    return tensor, low, high


def _rectified(high: float) -> _Clipping:
    return _Clipping(lambda call: None if (x := only_tensor(call)) is None else (x, 0.0, high))


def _sum(call: OldCall) -> Replacement | None:
    tensors = list(call.argument(0, "inputs"))
    if len(tensors) < 2 or not all(map(is_keras, tensors)):
        return None
    return Replacement(tensors, [new_layer("Add")], takes_list=True)


def _leaky(call: OldCall) -> Replacement | None:
    return one_layer(call.argument(0, "features"), "LeakyReLU", call.argument(1, "alpha", 0.2))


def _gelu(call: OldCall) -> Replacement | None:
    function = _function("gelu_by_tanh" if call.argument(1, "approximate", False) else "gelu")
    return one_layer(call.argument(0, "features"), "Activation", function)


def _softmax(call: OldCall) -> Replacement | None:
    axis = call.argument(1, "axis", -1)
    return one_layer(call.argument(0, "logits"), "Softmax", -1 if axis is None else axis)


def _cast(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "x")
    same = is_keras(tensor) and tensor.dtype == call.node.outputs.dtype
    return one_layer(tensor, "Activation", "linear") if same else None


def _activation(name: str, call: OldCall) -> Replacement | None:
    tensor = only_tensor(call)
    return None if tensor is None else one_layer(tensor, "Activation", _function(name))


def _function(name: str) -> Any:
    """An activation function of tf_keras, by its name in Keras 3 or else of our own."""
    from sat_tf.graph.layers.activations import ACTIVATIONS, OF_KERAS3

    return OF_KERAS3.get(name) or ACTIVATIONS[name].function


# Layers of tf_keras, by their names, that stand for an operation where an input is a constant.
LAYERS: dict[str, Finder] = {
    "Add": partial(_with_constant, "x + c"),
    "Subtract": partial(_with_constant, "x - c"),
}

# -- Keras 3, for calls of TensorFlow's functions --------------------------------------------------


def _on_first(name: str, keras3: Any, *args: Any, **options: Any) -> Any:
    """Keras 3's function of one tensor, which TensorFlow's functions call by different names."""
    (tensor,) = (*args, *options.values())
    return getattr(keras3.ops, name)(tensor)


def _on_two(name: str, keras3: Any, x: Any, y: Any) -> Any:
    """Keras 3's function of two tensors, or of one and numbers in its type."""
    dtype = keras3.backend.standardize_dtype(getattr(x, "dtype", None) or y.dtype)
    operands = [np.asarray(v, dtype) if isinstance(v, list) else v for v in (x, y)]
    return getattr(keras3.ops, name)(*operands)


def _squared_difference(keras3: Any, x: Any, y: Any) -> Any:
    return keras3.ops.square(_on_two("subtract", keras3, x, y))


def _along_last(name: str, keras3: Any, logits: Any, axis: int | None = None) -> Any:
    return getattr(keras3.ops, name)(logits, axis=-1 if axis is None else axis)


def _l2_normalize(keras3: Any, x: Any, axis: Any = None, epsilon: float = 1e-12) -> Any:
    ops, axes = keras3.ops, tuple(axis) if isinstance(axis, list) else axis
    squares = ops.sum(ops.square(x), axes, keepdims=True)
    return ops.multiply(x, ops.rsqrt(ops.maximum(squares, epsilon)))


def _matmul(
    keras3: Any,
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    *flags: Any,
    **options: Any,
) -> Any:
    if any(flags) or any(options.values()):
        raise ValueError("tf.matmul: expected real, dense matrices.")
    a, b = (
        keras3.ops.swapaxes(x, -1, -2) if turned else x
        for x, turned in ((a, transpose_a), (b, transpose_b))
    )
    return keras3.ops.matmul(a, b)


def _clip(keras3: Any, t: Any, clip_value_min: Any, clip_value_max: Any) -> Any:
    return keras3.ops.clip(t, clip_value_min, clip_value_max)


# -- tf_keras, for calls of Keras 3's operations ---------------------------------------------------


def _layer(name: str, *settings: str) -> Callable[[Any], Twin]:
    """A layer with these settings of the operation, in the layer's order."""
    return lambda call: new_layer(name, *(getattr(call.operation, setting) for setting in settings))


def _merge(call: Any) -> Twin:
    """A layer of that name, if there is one, for two tensors of one rank and type."""
    name, dtype = call.row.class_name, call.outputs[0].dtype
    alike = {(len(tensor.shape), tensor.dtype) for tensor in [*call.tensors, call.outputs[0]]}
    is_layer = name in ("Add", "Maximum", "Minimum", "Multiply", "Subtract")
    if is_layer and len(call.tensors) == 2 and len(alike) == 1 and len(call.outputs[0].shape) > 1:
        layer = layer_class(name)(name=call.operation.name)
        return lambda x1, x2: layer([x1, x2])
    function = call.function
    return lambda x1, x2: function(typed(x1, dtype), typed(x2, dtype))


def _of_type(dtype: str, call: Any) -> Twin:
    """A function of two operands in a type; by default the one that Keras 3 promotes both to."""
    function = call.function
    common_type = dtype or call.promoted_type
    return lambda x1, x2: function(typed(x1, common_type), typed(x2, common_type))


def _where(call: Any) -> Twin:
    import tensorflow as tf

    dtype = call.outputs[0].dtype
    return lambda condition, x1, x2: tf.where(
        tf.cast(condition, "bool"), typed(x1, dtype), typed(x2, dtype)
    )


def _clip_twin(call: Any) -> Twin:
    function, ends = call.function, (call.operation.x_min, call.operation.x_max)
    low, high = (np.asarray(end, call.outputs[0].dtype) for end in ends)
    return lambda x: function(x, low, high)


def _gelu_twin(call: Any) -> Twin:
    function = call.function
    if call.operation.approximate:
        return lambda x: function(x, approximate=True)
    return new_layer("Activation", "gelu")


def _normalize(call: Any) -> Twin:
    import tf_keras as keras

    operation, function = call.operation, call.function
    if operation.order != 2:
        raise ValueError(f"received a normalization of order {operation.order}, expected 2")
    epsilon = keras.backend.epsilon() if operation.epsilon is None else operation.epsilon
    return lambda x: function(x, axis=operation.axis, epsilon=epsilon**2)


# -- rows ------------------------------------------------------------------------------------------


def _one(name: str, *calls: str, **fields: Any) -> OperationKind:
    """An operation of one tensor."""
    defaults = {"keras3": partial(_on_first, name), "twin": with_settings()}
    return OperationKind(name, calls, **{**defaults, **fields})


def _two(name: str, *calls: str, twin: Any = _merge, **fields: Any) -> OperationKind:
    """An operation of two tensors, or of one and numbers."""
    return OperationKind(name, calls, **{"keras3": partial(_on_two, name), "twin": twin, **fields})


def _activated(name: str, *calls: str) -> OperationKind:
    """An operation that both Kerases have as an activation function."""

    def twin(call: Any) -> Twin:
        return new_layer("Activation", _function(name))

    return _one(name, *calls, layers=partial(_activation, name), twin=twin)


_LARGER = _Clipping(partial(_ends_of_extremum, True), "Maximum")
_SMALLER = _Clipping(partial(_ends_of_extremum, False), "Minimum")
_MATRICES = (
    "sat-tf multiplies two tensors of one rank, of 3 to 5, the second transposed by transpose_b or "
    "not; transpose the first by tf.transpose, and multiply by constants in a Dense"
)
_CLIPPED = "sat-tf takes two tensors, or a tensor and one number"
_SUMMED = (
    "sat-tf takes tensors of one rank, and finite numbers: one, one a channel, or a map as large "
    "as an image"
)

# Functions that have one name in TensorFlow and Keras 3, and no layers.
_LEFT_FLOAT = "cos erf exp floor log logical_not reciprocal rsqrt sign sin sqrt"
_COMPARISONS = "equal greater greater_equal less less_equal not_equal"

OF_ONE = (
    *(_one(name, f"math.{name}") for name in _LEFT_FLOAT.split()),
    _one("abs", "math.abs", "abs", layers=partial(_activation, "absolute"), synonyms=("Absolute",)),
    _one(
        "negative",
        "math.negative",
        layers=lambda call: _scaled(call.argument(0, "x"), "x * c", -1.0),
    ),
    _one(
        "square",
        "math.square",
        layers=lambda call: Replacement(
            [call.argument(0, "x")] * 2, [new_layer("Multiply")], takes_list=True
        ),
    ),
    _one(
        "stop_gradient",
        "stop_gradient",
        layers=lambda call: one_layer(call.argument(0, "input"), "StopGradient"),
    ),
    _activated("selu", "nn.selu"),
    _activated("sigmoid", "math.sigmoid"),
    _activated("silu", "nn.silu"),
    _activated("softplus", "math.softplus"),
    _activated("softsign", "nn.softsign"),
    _activated("tanh", "math.tanh"),
)
OF_TWO = (
    _two(
        "add",
        "math.add",
        "__operators__.add",
        fix=_SUMMED,
        layers=partial(_layers_of_two, "Add", "x + c", "x + c"),
    ),
    _two(
        "divide",
        "math.divide",
        "math.truediv",
        fix="sat-tf divides by numbers: one, or one a channel",
        layers=partial(_layers_of_two, "", "x / c", None),
        synonyms=("TrueDivide",),
    ),
    _two("matmul", "linalg.matmul", keras3=_matmul, fix=_MATRICES, layers=_matrices),
    _two("maximum", "math.maximum", fix=_CLIPPED, layers=_LARGER),
    _two("minimum", "math.minimum", fix=_CLIPPED, layers=_SMALLER),
    _two(
        "multiply",
        "math.multiply",
        fix="sat-tf multiplies tensors of one rank, and by numbers other than 0: one, or one a "
        "channel",
        layers=partial(_layers_of_two, "Multiply", "x * c", "x * c"),
    ),
    _two("power", "math.pow", fix="a square is x * x"),
    _two(
        "subtract",
        "math.subtract",
        fix=_SUMMED,
        layers=partial(_layers_of_two, "Subtract", "x - c", "c - x"),
    ),
    _two("logical_and", "math.logical_and", twin=partial(_of_type, "bool")),
    _two("logical_or", "math.logical_or", twin=partial(_of_type, "bool")),
    *(_two(name, f"math.{name}", twin=partial(_of_type, "")) for name in _COMPARISONS.split()),
)
# Operations with settings of their own, and those that TensorFlow has no function for.
_OTHERS = (
    OperationKind("add_n", ("math.add_n",), layers=_sum),
    OperationKind("bias_add", ("nn.bias_add",), fix="write x + bias", layers=_biased),
    OperationKind(
        "cast",
        ("cast",),
        fix="sat-tf takes casts to the type that a tensor has",
        layers=_cast,
        keras3=lambda keras3, x, dtype: keras3.ops.cast(x, dtype),
        twin=with_settings("dtype"),
    ),
    OperationKind(
        "clip",
        ("clip_by_value",),
        fix="sat-tf takes one number for each end, the second not below the first",
        layers=_Clipping(_ends_of_clip),
        keras3=_clip,
        twin=_clip_twin,
    ),
    OperationKind("conv", ("nn.conv2d", "compat.v1.nn.conv2d"), "use keras.layers.Conv2D"),
    OperationKind("depthwise_conv", ("nn.depthwise_conv2d",), "use keras.layers.DepthwiseConv2D"),
    OperationKind("dropout", ("nn.dropout",), "use keras.layers.Dropout"),
    _one("elu", "nn.elu", layers=partial(_activation, "elu"), twin=_layer("ELU", "alpha")),
    OperationKind(
        "gelu",
        ("nn.gelu",),
        layers=_gelu,
        keras3=lambda keras3, features, approximate=False: keras3.ops.gelu(features, approximate),
        twin=_gelu_twin,
    ),
    *map(_activated, ("hard_sigmoid", "hard_silu", "log_sigmoid", "tanh_shrink")),
    OperationKind(
        "identity",
        ("identity",),
        layers=partial(_activation, "linear"),
        keras3=lambda keras3, input: input + 0.0,
    ),
    OperationKind(
        "leaky_relu",
        ("nn.leaky_relu",),
        layers=_leaky,
        keras3=lambda keras3, features, alpha=0.2: keras3.ops.leaky_relu(features, alpha),
        twin=_layer("LeakyReLU", "negative_slope"),
    ),
    _one(
        "log_softmax",
        "nn.log_softmax",
        keras3=partial(_along_last, "log_softmax"),
        twin=with_settings("axis"),
    ),
    OperationKind("normalize", ("math.l2_normalize",), keras3=_l2_normalize, twin=_normalize),
    _one("relu", "nn.relu", layers=_rectified(math.inf), twin=lambda call: new_layer("ReLU")),
    _one("relu6", "nn.relu6", layers=_rectified(6.0), twin=lambda call: new_layer("ReLU", 6.0)),
    # Keras 3 has no function of this name; a ReLU with settings calls this operation.
    OperationKind("ReLU", twin=_layer("ReLU", "max_value", "negative_slope", "threshold")),
    _one(
        "softmax",
        "nn.softmax",
        layers=_softmax,
        keras3=partial(_along_last, "softmax"),
        twin=_layer("Softmax", "axis"),
    ),
    OperationKind("squared_difference", ("math.squared_difference",), keras3=_squared_difference),
    _one(
        "where",
        "where",
        keras3=lambda keras3, condition, x, y: keras3.ops.where(condition, x, y),
        twin=_where,
    ),
)
OPERATIONS = (*OF_ONE, *OF_TWO, *_OTHERS)
_FINDERS = {call: row.layers for row in OPERATIONS for call in row.calls}
