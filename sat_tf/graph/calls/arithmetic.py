"""Calls of TensorFlow that compute values one by one, as layers."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.counterparts import ACTIVATIONS, by_call
from sat_tf.graph.layers.activations import OF_KERAS3, absolute, gelu_by_tanh
from sat_tf.graph.operation_layers import (
    Clip,
    ConstantSum,
    Scaling,
    StopGradient,
)
from sat_tf.graph.replacement import (
    Finder,
    OldCall,
    Replacement,
    constant_of,
    is_keras,
    new_layer,
    number_of,
    of_one_tensor,
    one_layer,
    only_tensor,
)

L = keras.layers


def _of_two(combining: Any, formula: str, reverse: str | None) -> Finder:
    """A layer of two tensors, or of a tensor and a number in one of two formulas."""

    def find(call: OldCall) -> Replacement | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        tensors = [value for value in (first, second) if is_keras(value)]
        if len(tensors) == 2:
            fits = combining is not None and len(first.shape) == len(second.shape)
            same = fits and first.dtype == second.dtype
            return Replacement(tensors, [new_layer(combining)], takes_list=True) if same else None
        chosen = formula if is_keras(first) else reverse
        if not tensors or chosen is None:
            return None
        return _scaled(tensors[0], chosen, second if is_keras(first) else first)

    return find


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
    return one_layer(tensor, Scaling, formula, values.tolist())


def _with_map(tensor: Any, formula: str, values: np.ndarray) -> Replacement | None:
    """A sum or difference with numbers that are the same for all images."""
    rank = len(tensor.shape)
    if not 0 < values.ndim <= rank or not np.all(np.isfinite(values)):
        return None
    values = values.reshape((1,) * (rank - values.ndim) + values.shape)
    fits = all(size in (1, known) for size, known in zip(values.shape, tensor.shape, strict=True))
    if not fits or values.shape[0] != 1:
        return None
    values = values[0].astype(np.float32)
    layers = {
        "x + c": [new_layer(ConstantSum, values)],
        "x - c": [new_layer(ConstantSum, -values)],
        "c - x": [
            new_layer(Scaling, "x * c", -1.0, suffix="negative"),
            new_layer(ConstantSum, values),
        ],
    }
    return Replacement([tensor], layers[formula]) if formula in layers else None


def _with_constant(formula: str) -> Finder:
    """A layer of two tensors that is called with one, and with a constant of its rank."""

    def find(call: OldCall) -> Replacement | None:
        given = call.node.call_args[0]
        if not isinstance(given, list | tuple) or len(given) != 2:
            return None
        (first, second), number = given, constant_of(given[1])
        if formula == "x + c" and number is None:
            (first, second), number = (second, first), constant_of(first)
        if number is None or not is_keras(first) or number.ndim != len(first.shape):
            return None
        return _scaled(first, formula, number)

    return find


def _biased(call: OldCall) -> Replacement | None:
    tensor, bias = call.argument(0, "value"), constant_of(call.argument(1, "bias"))
    if str(call.argument(2, "data_format")).startswith("NC") or bias is None or bias.ndim != 1:
        return None
    return _scaled(tensor, "x + c", bias)


def _extremum(combining: Any) -> Finder:
    """The largest or the smallest of two tensors, or of a tensor and a number."""

    def find(call: OldCall) -> Replacement | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        if is_keras(first) and is_keras(second):
            return Replacement([first, second], [new_layer(combining)], takes_list=True)
        return _clipped(call)

    return find


# A tensor, and the ends that its values are clipped to.
_Ends = tuple[Any, float | None, float | None]


def _clipped(call: OldCall) -> Replacement | None:
    """A clipping merged with those in front of it; from 0 it is a rectifier."""
    found = _ends(call)
    if found is None:
        return None
    tensor, low, high = found
    while (inner := _ends_of_maker(call, tensor)) is not None:
        tensor, lower, higher = inner
        low, high = _within(lower, low, high, default=low), _within(higher, low, high, default=high)
    low, high = None if low == -math.inf else low, None if high == math.inf else high
    if math.inf in (low, high) or -math.inf in (low, high):
        return None  # it makes everything infinite
    if low is None and high is None:
        return one_layer(tensor, L.Activation, "linear")
    if low == 0.0 and (high is None or high > 0.0):
        return one_layer(tensor, L.ReLU, high)
    return one_layer(tensor, Clip, low, high)


def _within(
    value: float | None, low: float | None, high: float | None, *, default: float | None
) -> float | None:
    """An inner end, clipped to the outer ends."""
    if value is None:
        return default
    value = value if low is None else max(value, low)
    return value if high is None else min(value, high)


def _ends_of_maker(call: OldCall, tensor: Any) -> _Ends | None:
    """The ends of the clipping that a tensor comes from, if it does."""
    if not any(node is tensor.node for node in call.nodes):
        return None
    maker = OldCall(tensor.node, call.nodes)
    if maker.node.is_input:
        return None
    if isinstance(maker.layer, L.ReLU | L.Activation) and layer_kinds.rectifies(maker.layer):
        return maker.node.call_args[0], 0.0, layer_kinds.rectifier_ceiling(maker.layer)
    return _ends(maker)


def _ends(call: OldCall) -> _Ends | None:
    find = _CLIPPINGS.get(call.symbol)
    return find(call) if find else None


def _ends_of_extremum(is_lowest: bool) -> Callable[[OldCall], _Ends | None]:
    def find(call: OldCall) -> _Ends | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        tensor, other = (first, second) if is_keras(first) else (second, first)
        number = number_of(other)
        if number is None or not is_keras(tensor):
            return None
        return (tensor, number, None) if is_lowest else (tensor, None, number)

    return find


def _ends_of_clip(call: OldCall) -> _Ends | None:
    tensor = call.argument(0, "t")
    low = number_of(call.argument(1, "clip_value_min"))
    high = number_of(call.argument(2, "clip_value_max"))
    if low is None or high is None or low > high or not is_keras(tensor):
        return None
    return tensor, low, high


def _ends_of_rectifier(high: float | None) -> Callable[[OldCall], _Ends | None]:
    def find(call: OldCall) -> _Ends | None:
        tensor = only_tensor(call)
        return None if tensor is None else (tensor, 0.0, high)

    return find


_CLIPPINGS: dict[str, Callable[[OldCall], _Ends | None]] = by_call(
    {
        "maximum": _ends_of_extremum(is_lowest=True),
        "minimum": _ends_of_extremum(is_lowest=False),
        "clip": _ends_of_clip,
        "relu": _ends_of_rectifier(None),
        "relu6": _ends_of_rectifier(6.0),
    }
)


def _negative(call: OldCall) -> Replacement | None:
    return _scaled(call.argument(0, "x"), "x * c", -1.0)


def _sum(call: OldCall) -> Replacement | None:
    tensors = list(call.argument(0, "inputs"))
    if len(tensors) < 2 or not all(map(is_keras, tensors)):
        return None
    return Replacement(tensors, [new_layer(L.Add)], takes_list=True)


def _square(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "x")
    return Replacement([tensor, tensor], [new_layer(L.Multiply)], takes_list=True)


def _leaky(call: OldCall) -> Replacement | None:
    return one_layer(call.argument(0, "features"), L.LeakyReLU, call.argument(1, "alpha", 0.2))


def _gelu(call: OldCall) -> Replacement | None:
    if call.argument(1, "approximate", False):
        return one_layer(call.argument(0, "features"), L.Activation, gelu_by_tanh)
    return one_layer(call.argument(0, "features"), L.Activation, "gelu")


def _softmax(call: OldCall) -> Replacement | None:
    axis = call.argument(1, "axis", -1)
    return one_layer(call.argument(0, "logits"), L.Softmax, -1 if axis is None else axis)


def _cast(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "x")
    same = is_keras(tensor) and tensor.dtype == call.node.outputs.dtype
    return one_layer(tensor, L.Activation, "linear") if same else None


# Layers that stand for an operation where one of their inputs is a constant.
LAYERS: dict[type, Finder] = {
    L.Add: _with_constant("x + c"),
    L.Subtract: _with_constant("x - c"),
}

CALLS: dict[str, Finder] = by_call(
    {
        **{name: of_one_tensor(L.Activation, OF_KERAS3[name]) for name in ACTIVATIONS},
        "add": _of_two(L.Add, "x + c", "x + c"),
        "subtract": _of_two(L.Subtract, "x - c", "c - x"),
        "multiply": _of_two(L.Multiply, "x * c", "x * c"),
        "divide": _of_two(None, "x / c", None),
        "negative": _negative,
        "add_n": _sum,
        "bias_add": _biased,
        "square": _square,
        "maximum": _extremum(L.Maximum),
        "minimum": _extremum(L.Minimum),
        "relu": _clipped,
        "relu6": _clipped,
        "clip": _clipped,
        "abs": of_one_tensor(L.Activation, absolute),
        "leaky_relu": _leaky,
        "elu": of_one_tensor(L.Activation, "elu"),
        "gelu": _gelu,
        "softmax": _softmax,
        "cast": _cast,
        "identity": of_one_tensor(L.Activation, "linear"),
        "stop_gradient": of_one_tensor(StopGradient),
    }
)
