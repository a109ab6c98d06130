"""The table of TensorFlow operations: which layer does what each of them does, to the last bit."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.call_template import template_of
from sat_tf.qat.layer_plans import Call, Plan, step
from sat_tf.qat.operation_layers import Operation, Scaling, Slice

L = keras.layers


def plan_of_operation(call: Call) -> Plan | None:
    """The layers in the place of an operation; None where sat-tf has none."""
    if not _is_keras(call.node.outputs):  # it has several results
        return None
    find = _OPERATIONS.get(call.symbol)
    return (find(call) if find else None) or _as_it_is(call)


def _as_it_is(call: Call) -> Plan | None:
    """A layer that does nothing but the operation, to be left float or refused by its name."""
    tensors = list(call.node.keras_inputs)
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    try:
        arguments = template_of([list(call.node.call_args), call.node.call_kwargs], places)
    except TypeError:
        return None
    steps = [step(Operation, call.symbol, arguments)]
    return Plan(tensors, steps, takes_list=len(tensors) > 1)


def _is_keras(value: Any) -> bool:
    """Whether a value is a tensor of the model, and no number."""
    return hasattr(value, "_keras_history")


def _of_two(combining: Any, formula: str, reverse: str | None) -> Callable[[Call], Plan | None]:
    """A layer of two tensors, or of a tensor and a number in one of two formulas."""

    def find(call: Call) -> Plan | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        tensors = [value for value in (first, second) if _is_keras(value)]
        if len(tensors) == 2:
            fits = combining is not None and len(first.shape) == len(second.shape)
            same = fits and first.dtype == second.dtype
            return Plan(tensors, [step(combining)], takes_list=True) if same else None
        chosen = formula if _is_keras(first) else reverse
        if not tensors or chosen is None:
            return None
        return _scaled(tensors[0], chosen, second if _is_keras(first) else first)

    return find


def _scaled(tensor: Any, formula: str, number: Any) -> Plan | None:
    values = np.asarray(number)
    if values.dtype == object or not np.issubdtype(values.dtype, np.number):
        return None
    if values.size == 1:
        values = values.reshape(())
    elif values.shape[-1] != values.size or values.size != tensor.shape[-1]:
        return None
    else:
        values = values.reshape(-1)
    zero = formula in ("x * c", "x / c") and np.any(values == 0)
    if zero or not np.all(np.isfinite(values)):
        return None
    return Plan([tensor], [step(Scaling, formula, values.tolist())])


def _extremum(combining: Any, rectifies: bool) -> Callable[[Call], Plan | None]:
    def find(call: Call) -> Plan | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        if _is_keras(first) and _is_keras(second):
            return Plan([first, second], [step(combining)], takes_list=True)
        tensor, number = (first, second) if _is_keras(first) else (second, first)
        if rectifies and np.ndim(number) == 0 and float(number) == 0.0:
            return Plan([tensor], [step(L.ReLU)])
        return None

    return find


def _function(layer: Any, *args: Any, **settings: Any) -> Callable[[Call], Plan | None]:
    """A layer without other arguments than its tensor."""

    def find(call: Call) -> Plan | None:
        tensor = _first(call)
        return None if tensor is None else Plan([tensor], [step(layer, *args, **settings)])

    return find


def _first(call: Call) -> Any:
    """The operation's only tensor; None where it has others."""
    tensors = call.node.keras_inputs
    first = call.node.call_args[0] if call.node.call_args else None
    if first is None:
        first = next((v for v in call.node.call_kwargs.values() if _is_keras(v)), None)
    return first if _is_keras(first) and len(tensors) == 1 else None


def _negative(call: Call) -> Plan | None:
    return _scaled(call.argument(0, "x"), "x * c", -1.0)


def _sum(call: Call) -> Plan | None:
    tensors = call.argument(0, "inputs")
    return Plan(list(tensors), [step(L.Add)], takes_list=True) if len(tensors) > 1 else None


def _leaky(call: Call) -> Plan | None:
    return Plan([call.argument(0, "features")], [step(L.LeakyReLU, call.argument(1, "alpha", 0.2))])


def _gelu(call: Call) -> Plan | None:
    if call.argument(1, "approximate", False):
        return Plan([call.argument(0, "features")], [step(L.Activation, gelu_by_tanh)])
    return Plan([call.argument(0, "features")], [step(L.Activation, "gelu")])


@keras.utils.register_keras_serializable(package="sat_tf")
def gelu_by_tanh(x: tf.Tensor) -> tf.Tensor:
    """GELU in the form 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    return tf.nn.gelu(x, approximate=True)


def _clip(call: Call) -> Plan | None:
    low, high = call.argument(1, "clip_value_min"), call.argument(2, "clip_value_max")
    numbers = np.ndim(low) == 0 and np.ndim(high) == 0 and not (_is_keras(low) or _is_keras(high))
    if numbers and float(low) == 0.0 and float(high) > 0.0:
        return Plan([call.argument(0, "t")], [step(L.ReLU, float(high))])
    return None


def _softmax(call: Call) -> Plan | None:
    axis = call.argument(1, "axis", -1)
    return Plan([call.argument(0, "logits")], [step(L.Softmax, -1 if axis is None else axis)])


def _reshaped(call: Call) -> Plan | None:
    """Whatever gives each image another shape, as far as the shape of the result says it."""
    tensor = call.argument(0, "tensor", call.node.call_kwargs.get("input"))
    if not _is_keras(tensor) or _moves_batch(tensor, call):
        return None
    return Plan([tensor], [step(L.Reshape, call.shape)])


def _moves_batch(tensor: Any, call: Call) -> bool:
    """Whether pixels could go from one image to another, or nobody knows."""
    if tensor.shape[0] != call.node.outputs.shape[0] or None in (*tensor.shape[1:], *call.shape):
        return True
    before, after = (math.prod(map(int, shape)) for shape in (tensor.shape[1:], call.shape))
    return before != after


def _transposed(call: Call) -> Plan | None:
    order = call.argument(1, "perm")
    if order is None or next(iter(order)) != 0:
        return None
    return Plan([call.argument(0, "a")], [step(L.Permute, tuple(order)[1:])])


def _padded(call: Call) -> Plan | None:
    margins = np.asarray(call.argument(1, "paddings")).tolist()
    mode = call.argument(2, "mode", "CONSTANT")
    plain = mode.upper() == "CONSTANT" and not call.argument(4, "constant_values", 0)
    if not plain or margins[0] != [0, 0] or margins[-1] != [0, 0]:
        return None
    tensor, inner = call.argument(0, "tensor"), tuple(tuple(margin) for margin in margins[1:-1])
    if len(inner) == 2:
        return Plan([tensor], [step(L.ZeroPadding2D, inner)])
    return Plan([tensor], [step(L.ZeroPadding1D, inner[0])]) if len(inner) == 1 else None


def _joined(call: Call) -> Plan | None:
    tensors, axis = call.argument(0, "values"), call.argument(1, "axis")
    if not isinstance(tensors, list | tuple) or not all(map(_is_keras, tensors)) or axis == 0:
        return None
    return Plan(list(tensors), [step(L.Concatenate, axis)], takes_list=True)


def _pooled(layer: Any) -> Callable[[Call], Plan | None]:
    def find(call: Call) -> Plan | None:
        tensor, axes = call.argument(0, "input_tensor"), call.argument(1, "axis")
        axes = sorted(np.atleast_1d(np.asarray(axes, object)).tolist()) if axes is not None else []
        if len(tensor.shape) != 4 or axes not in ([1, 2], [-3, -2]):
            return None
        return Plan([tensor], [step(layer, keepdims=bool(call.argument(2, "keepdims", False)))])

    return find


def _resized(call: Call) -> Plan | None:
    tensor = call.argument(0, "images")
    method = str(call.argument(2, "method", "bilinear"))
    options = ("preserve_aspect_ratio", "antialias")
    if any(call.argument(3 + index, name, False) for index, name in enumerate(options)):
        return None
    rows, columns = call.shape[:2]
    if len(tensor.shape) != 4 or None in (rows, columns) or method not in _METHODS:
        return None
    factors = _whole_factors(tensor.shape[1:3], (rows, columns))
    if method == "nearest" and factors:
        return Plan([tensor], [step(L.UpSampling2D, factors)])
    return Plan([tensor], [step(L.Resizing, rows, columns, method)])


_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian")


def _whole_factors(
    before: Sequence[int | None], after: Sequence[int | None]
) -> tuple[int, ...] | None:
    factors = []
    for small, large in zip(before, after, strict=True):
        if small is None or large is None or large % small:
            return None
        factors.append(large // small)
    return tuple(factors)


def _sliced(call: Call) -> Plan | None:
    """x[:, 1:-1, ::2], x[..., :3], x[:, 0]: slices and integers that leave the batch alone."""
    tensor, wanted = call.argument(0, "tensor"), call.argument(1, "slice_spec")
    wanted = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
    rank = len(tensor.shape)
    if wanted.count(Ellipsis) > 1 or any(value is None for value in wanted):
        return None
    if Ellipsis not in wanted:
        wanted.append(Ellipsis)
    at = wanted.index(Ellipsis)
    wanted[at : at + 1] = [slice(None)] * (rank - len(wanted) + 1)
    batch, *others = [_bounds(value) for value in wanted]
    if batch != [None, None, None] or any(bounds is None for bounds in others):
        return None
    dropped = [axis for axis, value in enumerate(wanted[1:]) if not isinstance(value, slice | dict)]
    return Plan([tensor], [step(Slice, others, dropped)])


def _bounds(value: Any) -> list[int | None] | None:
    """Start, stop and step of what stands between the commas; None where they are no numbers."""
    if isinstance(value, dict):  # as Keras keeps slices
        value = slice(value.get("start"), value.get("stop"), value.get("step"))
    if isinstance(value, slice):
        bounds = [value.start, value.stop, value.step]
        known = all(bound is None or isinstance(bound, int | np.integer) for bound in bounds)
        if not known or (value.step is not None and value.step < 1):
            return None
        return [None if bound is None else int(bound) for bound in bounds]
    if isinstance(value, int | np.integer):
        return [int(value), int(value) + 1 if value != -1 else None, None]
    return None


def _cast(call: Call) -> Plan | None:
    tensor = call.argument(0, "x")
    same = _is_keras(tensor) and tensor.dtype == call.node.outputs.dtype
    return Plan([tensor], [step(L.Activation, "linear")]) if same else None


_OPERATIONS: dict[str, Callable[[Call], Plan | None]] = {
    "__operators__.add": _of_two(L.Add, "x + c", "x + c"),
    "math.add": _of_two(L.Add, "x + c", "x + c"),
    "math.subtract": _of_two(L.Subtract, "x - c", "c - x"),
    "math.multiply": _of_two(L.Multiply, "x * c", "x * c"),
    "math.truediv": _of_two(None, "x / c", None),
    "math.divide": _of_two(None, "x / c", None),
    "math.negative": _negative,
    "math.add_n": _sum,
    "math.maximum": _extremum(L.Maximum, rectifies=True),
    "math.minimum": _extremum(L.Minimum, rectifies=False),
    "nn.relu": _function(L.ReLU),
    "nn.relu6": _function(L.ReLU, 6.0),
    "clip_by_value": _clip,
    "nn.leaky_relu": _leaky,
    "nn.elu": _function(L.Activation, "elu"),
    "nn.selu": _function(L.Activation, "selu"),
    "nn.gelu": _gelu,
    "nn.silu": _function(L.Activation, "swish"),
    "math.sigmoid": _function(L.Activation, "sigmoid"),
    "math.tanh": _function(L.Activation, "tanh"),
    "math.softplus": _function(L.Activation, "softplus"),
    "nn.softsign": _function(L.Activation, "softsign"),
    "nn.softmax": _softmax,
    "reshape": _reshaped,
    "expand_dims": _reshaped,
    "squeeze": _reshaped,
    "compat.v1.squeeze": _reshaped,
    "transpose": _transposed,
    "compat.v1.transpose": _transposed,
    "compat.v1.pad": _padded,
    "concat": _joined,
    "math.reduce_mean": _pooled(L.GlobalAveragePooling2D),
    "math.reduce_max": _pooled(L.GlobalMaxPooling2D),
    "image.resize": _resized,
    "__operators__.getitem": _sliced,
    "cast": _cast,
    "identity": _function(L.Activation, "linear"),
}
