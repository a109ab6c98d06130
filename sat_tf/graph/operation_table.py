"""The table of TensorFlow operations: which layer computes each of them, bit for bit."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.operation_layers import (
    ChannelMax,
    ChannelMean,
    Clip,
    ConstantSum,
    DepthToSpace,
    Gather,
    Padding,
    Scaling,
    Slice,
    SpaceToDepth,
    StopGradient,
    TensorFlowOperation,
    absolute,
)
from sat_tf.graph.replacement import (
    Finder,
    OldCall,
    Replacement,
    new_layer,
    one_layer,
    pooled_in_rows,
    pooled_whole_row,
)
from sat_tf.graph.templates import template_of
from sat_tf.loading.tensor_functions import CalledFunction

L = keras.layers


def replacement_of_operation(call: OldCall) -> Replacement | None:
    """The layers that replace an operation; None where sat-tf has none."""
    find = _OPERATIONS.get(call.symbol)
    replacement = find(call) if find else None
    if replacement is None and _is_keras(call.node.outputs):  # one result, not a list
        return _as_it_is(call)
    return replacement


def _as_it_is(call: OldCall) -> Replacement | None:
    """A layer for the operation itself, to be left float or refused by its name."""
    tensors = list(call.node.keras_inputs)
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    try:
        arguments = template_of([list(call.node.call_args), call.node.call_kwargs], places)
    except TypeError:
        return None
    layers = [new_layer(TensorFlowOperation, CalledFunction(call.symbol), arguments)]
    return Replacement(tensors, layers, takes_list=len(tensors) > 1)


def _is_keras(value: Any) -> bool:
    """Whether a value is a tensor of the model, not a number."""
    return hasattr(value, "_keras_history")


def _constant(value: Any) -> np.ndarray | None:
    """Numbers as an array; None for anything else, such as tensors of the model."""
    if value is None or any(map(_is_keras, tf.nest.flatten(value))):
        return None
    array = np.asarray(value)
    return array if np.issubdtype(array.dtype, np.number) else None


def _number(value: Any) -> float | None:
    """One number; None for anything else."""
    array = _constant(value)
    return None if array is None or array.ndim or np.isnan(array) else float(array)


def _axis(tensor: Any, value: Any) -> int | None:
    """An axis behind the batch, counted with it; None for the batch, and for anything else."""
    axis = _constant(value)
    if axis is None or axis.ndim or axis.dtype.kind not in "iu":
        return None
    return int(axis) % len(tensor.shape) or None


def _of_two(combining: Any, formula: str, reverse: str | None) -> Finder:
    """A layer of two tensors, or of a tensor and a number in one of two formulas."""

    def find(call: OldCall) -> Replacement | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        tensors = [value for value in (first, second) if _is_keras(value)]
        if len(tensors) == 2:
            fits = combining is not None and len(first.shape) == len(second.shape)
            same = fits and first.dtype == second.dtype
            return Replacement(tensors, [new_layer(combining)], takes_list=True) if same else None
        chosen = formula if _is_keras(first) else reverse
        if not tensors or chosen is None:
            return None
        return _scaled(tensors[0], chosen, second if _is_keras(first) else first)

    return find


def _scaled(tensor: Any, formula: str, number: Any) -> Replacement | None:
    values = _constant(number)
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
        (first, second), number = given, _constant(given[1])
        if formula == "x + c" and number is None:
            (first, second), number = (second, first), _constant(first)
        if number is None or not _is_keras(first) or number.ndim != len(first.shape):
            return None
        return _scaled(first, formula, number)

    return find


def _biased(call: OldCall) -> Replacement | None:
    tensor, bias = call.argument(0, "value"), _constant(call.argument(1, "bias"))
    if str(call.argument(2, "data_format")).startswith("NC") or bias is None or bias.ndim != 1:
        return None
    return _scaled(tensor, "x + c", bias)


def _extremum(combining: Any) -> Finder:
    """The largest or the smallest of two tensors, or of a tensor and a number."""

    def find(call: OldCall) -> Replacement | None:
        first, second = call.argument(0, "x"), call.argument(1, "y")
        if _is_keras(first) and _is_keras(second):
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
        tensor, other = (first, second) if _is_keras(first) else (second, first)
        number = _number(other)
        if number is None or not _is_keras(tensor):
            return None
        return (tensor, number, None) if is_lowest else (tensor, None, number)

    return find


def _ends_of_clip(call: OldCall) -> _Ends | None:
    tensor = call.argument(0, "t")
    low = _number(call.argument(1, "clip_value_min"))
    high = _number(call.argument(2, "clip_value_max"))
    if low is None or high is None or low > high or not _is_keras(tensor):
        return None
    return tensor, low, high


def _ends_of_rectifier(high: float | None) -> Callable[[OldCall], _Ends | None]:
    def find(call: OldCall) -> _Ends | None:
        tensor = _first(call)
        return None if tensor is None else (tensor, 0.0, high)

    return find


_CLIPPINGS: dict[str, Callable[[OldCall], _Ends | None]] = {
    "math.maximum": _ends_of_extremum(is_lowest=True),
    "math.minimum": _ends_of_extremum(is_lowest=False),
    "clip_by_value": _ends_of_clip,
    "nn.relu": _ends_of_rectifier(None),
    "nn.relu6": _ends_of_rectifier(6.0),
}


def _function(layer: Any, *args: Any, **settings: Any) -> Finder:
    """A layer of one tensor and no other arguments."""

    def find(call: OldCall) -> Replacement | None:
        tensor = _first(call)
        return None if tensor is None else one_layer(tensor, layer, *args, **settings)

    return find


def _first(call: OldCall) -> Any:
    """The operation's only tensor; None where it has others."""
    tensors = call.node.keras_inputs
    first = call.node.call_args[0] if call.node.call_args else None
    if first is None:
        first = next((v for v in call.node.call_kwargs.values() if _is_keras(v)), None)
    return first if _is_keras(first) and len(tensors) == 1 else None


def _negative(call: OldCall) -> Replacement | None:
    return _scaled(call.argument(0, "x"), "x * c", -1.0)


def _sum(call: OldCall) -> Replacement | None:
    tensors = list(call.argument(0, "inputs"))
    if len(tensors) < 2 or not all(map(_is_keras, tensors)):
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


@keras.utils.register_keras_serializable(package="sat_tf")
def gelu_by_tanh(x: tf.Tensor) -> tf.Tensor:
    """GELU in the form 0.5 x (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))."""
    return tf.nn.gelu(x, approximate=True)


def _softmax(call: OldCall) -> Replacement | None:
    axis = call.argument(1, "axis", -1)
    return one_layer(call.argument(0, "logits"), L.Softmax, -1 if axis is None else axis)


def _reshaped(call: OldCall) -> Replacement | None:
    """Any change of the shape of each image that the shape of the result determines."""
    tensor = call.argument(0, "tensor", call.node.call_kwargs.get("input"))
    if not _is_keras(tensor) or _moves_batch(tensor, call):
        return None
    return one_layer(tensor, L.Reshape, call.shape)


def _moves_batch(tensor: Any, call: OldCall) -> bool:
    """Whether pixels may move from one image to another."""
    if tensor.shape[0] != call.node.outputs.shape[0] or None in (*tensor.shape[1:], *call.shape):
        return True
    before, after = (math.prod(map(int, shape)) for shape in (tensor.shape[1:], call.shape))
    return before != after


def _transposed(call: OldCall) -> Replacement | None:
    order = call.argument(1, "perm")
    if order is None or next(iter(order)) != 0:
        return None
    return Replacement([call.argument(0, "a")], [new_layer(L.Permute, tuple(order)[1:])])


def _padded(call: OldCall) -> Replacement | None:
    tensor, paddings = call.argument(0, "tensor"), _constant(call.argument(1, "paddings"))
    mode = call.argument(2, "mode", "CONSTANT")
    zeros = _number(call.argument(4, "constant_values", 0)) == 0.0
    if paddings is None or not zeros or mode.upper() != "CONSTANT" or np.any(paddings[0]):
        return None
    margins = [tuple(margin) for margin in paddings[1:].tolist()]
    *inner, channels = margins
    if channels == (0, 0) and len(inner) == 2:
        return one_layer(tensor, L.ZeroPadding2D, tuple(inner))
    if channels == (0, 0) and len(inner) == 1:
        return one_layer(tensor, L.ZeroPadding1D, inner[0])
    return one_layer(tensor, Padding, margins)


def _joined(call: OldCall) -> Replacement | None:
    tensors, axis = call.argument(0, "values"), call.argument(1, "axis")
    if not isinstance(tensors, list | tuple) or not all(map(_is_keras, tensors)) or axis == 0:
        return None
    return Replacement(list(tensors), [new_layer(L.Concatenate, axis)], takes_list=True)


def _stacked(call: OldCall) -> Replacement | None:
    """Tensors concatenated along a new axis."""
    tensors, axis = call.argument(0, "values"), _number(call.argument(1, "axis", 0))
    if not isinstance(tensors, list | tuple) or not all(map(_is_keras, tensors)) or axis is None:
        return None
    rank = len(call.shape) + 1
    place = int(axis) % rank
    if len(tensors) < 2 or place == 0 or None in call.shape:
        return None
    shape = (*call.shape[: place - 1], 1, *call.shape[place:])
    reshapes = [new_layer(L.Reshape, shape, suffix=f"part_{i}") for i in range(len(tensors))]
    joined = [new_layer(L.Concatenate, place)]
    return Replacement(list(tensors), joined, takes_list=True, fronts=dict(enumerate(reshapes)))


def _split(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "value")
    axis = _axis(tensor, call.argument(2, "axis", 0))
    if axis is None:
        return None
    sizes = [output.shape[axis] for output in call.node.outputs]
    if None in sizes:
        return None
    ends = np.cumsum(sizes).tolist()
    return _parts(tensor, axis, list(zip([0, *ends], ends, strict=False)), drops=False)


def _unstacked(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "value")
    axis = _axis(tensor, call.argument(2, "axis", 0))
    if axis is None:
        return None
    bounds = [(index, index + 1) for index in range(len(call.node.outputs))]
    return _parts(tensor, axis, bounds, drops=True)


def _parts(
    tensor: Any, axis: int, bounds: Sequence[tuple[int, int]], *, drops: bool
) -> Replacement:
    """A slice for each of several outputs."""
    dropped = [axis - 1] if drops else []
    layers = [
        new_layer(Slice, _slices(tensor, axis, *ends, None), dropped, suffix=f"part_{index}")
        for index, ends in enumerate(bounds)
    ]
    return Replacement([tensor], layers, beside=True)


def _slices(tensor: Any, axis: int, *bounds: int | None) -> list[list[int | None]]:
    """Slices of all axes but the batch: a part of one axis, and the others whole."""
    axes = range(1, len(tensor.shape))
    return [list(bounds) if one == axis else [None, None, None] for one in axes]


def _gathered(axis_at: int) -> Finder:
    """Parts by constant indices; one index, or equally spaced ones, as a slice."""

    def find(call: OldCall) -> Replacement | None:
        tensor, indices = call.argument(0, "params"), _constant(call.argument(1, "indices"))
        axis = _axis(tensor, call.argument(axis_at, "axis", 0)) if _is_keras(tensor) else None
        if indices is None or axis is None or call.argument(axis_at + 1, "batch_dims", 0):
            return None
        size = tensor.shape[axis]
        small = indices.size and np.min(indices) >= 0 and (size is None or np.max(indices) < size)
        if not small or indices.ndim > 1:
            return None
        first, stride = int(indices.flat[0]), int(np.diff(indices.flat[:2])[:1].sum()) or 1
        if indices.ndim == 0 or (stride > 0 and np.all(np.diff(indices) == stride)):
            stop = first + (indices.size - 1) * stride + 1
            slices = _slices(tensor, axis, first, stop, stride)
            return one_layer(tensor, Slice, slices, [] if indices.ndim else [axis - 1])
        return one_layer(tensor, Gather, indices.tolist(), axis - 1)

    return find


def _rolled(call: OldCall) -> Replacement | None:
    """The same values in another order along one axis."""
    tensor, shift = call.argument(0, "input"), _constant(call.argument(1, "shift"))
    axis = _axis(tensor, call.argument(2, "axis")) if _is_keras(tensor) else None
    size = tensor.shape[axis] if axis else None
    if size is None or shift is None or shift.ndim:
        return None
    order = np.roll(np.arange(size), int(shift)).tolist()
    return one_layer(tensor, Gather, order, axis - 1) if axis else None


def _moved_blocks(layer: Any) -> Finder:
    def find(call: OldCall) -> Replacement | None:
        tensor, size = _first(call), _number(call.argument(1, "block_size"))
        formats = [call.argument(at, "data_format", "NHWC") for at in (2, 3)]
        if tensor is None or size is None or "NCHW" in formats:
            return None
        return one_layer(tensor, layer, int(size))

    return find


def _reduced(spatial: Any, channel: Any) -> Finder:
    """A mean or maximum over the pixels of each image, or over the channels of each pixel."""

    def find(call: OldCall) -> Replacement | None:
        tensor, axis = call.argument(0, "input_tensor"), _constant(call.argument(1, "axis"))
        keepdims = bool(call.argument(2, "keepdims", call.node.call_kwargs.get("keep_dims")))
        if axis is None:
            return None
        rank = len(tensor.shape)
        axes = sorted({int(one) % rank for one in np.atleast_1d(axis)})
        if axes == [1, 2] and rank == 4:
            return one_layer(tensor, spatial, keepdims=keepdims)
        if axes == [1] and rank == 3:
            return Replacement([tensor], pooled_whole_row(tensor, spatial, keepdims=keepdims))
        if axes != [rank - 1] or rank < 2:
            return None
        if keepdims:
            return one_layer(tensor, channel)
        inner = call.shape
        if not inner or inner.count(None) > 1:
            return None
        shape = [-1 if size is None else size for size in inner]
        return Replacement(
            [tensor], [new_layer(channel, suffix="channel"), new_layer(L.Reshape, shape)]
        )

    return find


def _pooled(layer: Any) -> Finder:
    """Pooling by its window, strides and padding."""

    def find(call: OldCall) -> Replacement | None:
        size, strides = call.argument(1, "ksize"), call.argument(2, "strides")
        if str(call.argument(4, "data_format")).startswith("NC"):
            return None
        return _pooled_by(call, layer, size, strides, call.argument(3, "padding"))

    return find


def _pooled_by_kind(call: OldCall) -> Replacement | None:
    """`tf.nn.pool`, which has the kind of pooling as an argument."""
    window, kind = call.argument(1, "window_shape"), call.argument(2, "pooling_type")
    rates = [call.argument(4, "dilation_rate"), call.argument(8, "dilations")]
    plain = all(rate is None or np.all(np.asarray(rate) == 1) for rate in rates)
    first = str(call.argument(7, "data_format")).startswith("NC")
    layer = {"MAX": L.MaxPooling2D, "AVG": L.AveragePooling2D}.get(kind)
    if layer is None or first or not plain:
        return None
    strides = call.argument(5, "strides")
    padding = call.argument(3, "padding")
    return _pooled_by(call, layer, window, 1 if strides is None else strides, padding)


def _pooled_by(
    call: OldCall, layer: Any, size: Any, strides: Any, padding: Any
) -> Replacement | None:
    tensor = _first(call)
    if tensor is None or str(padding).lower() not in ("same", "valid"):
        return None
    inner = len(tensor.shape) - 2
    sizes, strides = (_along_images(value, inner) for value in (size, strides))
    if sizes is None or strides is None or inner not in (1, 2):
        return None
    padding = str(padding).lower()
    if inner == 1:
        return Replacement(
            [tensor], pooled_in_rows(call, tensor, layer, sizes[0], strides[0], padding)
        )
    return one_layer(tensor, layer, sizes, strides, padding)


def _along_images(value: Any, inner: int) -> tuple[int, ...] | None:
    """A window's sizes in rows and columns; None where batch or channels have others than 1."""
    sizes = np.atleast_1d(np.asarray(value)).tolist()
    if len(sizes) == inner + 2 and sizes[0] == sizes[-1] == 1:
        sizes = sizes[1:-1]
    sizes = sizes * inner if len(sizes) == 1 else sizes
    return tuple(sizes) if len(sizes) == inner else None


def _resized(call: OldCall) -> Replacement | None:
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
        return one_layer(tensor, L.UpSampling2D, factors)
    return one_layer(tensor, L.Resizing, rows, columns, method)


def _resized_nearest(call: OldCall) -> Replacement | None:
    """The older form, whose pixels are centered only with `half_pixel_centers`."""
    tensor, rows, columns = call.argument(0, "images"), *call.shape[:2]
    if call.argument(2, "align_corners", False) or None in (rows, columns):
        return None
    factors = _whole_factors(tensor.shape[1:3], (rows, columns))
    if factors:
        return one_layer(tensor, L.UpSampling2D, factors)
    if call.argument(4, "half_pixel_centers", False):
        return one_layer(tensor, L.Resizing, rows, columns, "nearest")
    return None


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


def _sliced(call: OldCall) -> Replacement | None:
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
    return one_layer(tensor, Slice, others, dropped)


def _bounds(value: Any) -> list[int | None] | None:
    """Start, stop and step of one index; None where they are not constant integers."""
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


def _cast(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "x")
    same = _is_keras(tensor) and tensor.dtype == call.node.outputs.dtype
    return one_layer(tensor, L.Activation, "linear") if same else None


# Layers that stand for an operation where one of their inputs is a constant.
LAYERS: dict[type, Finder] = {
    L.Add: _with_constant("x + c"),
    L.Subtract: _with_constant("x - c"),
}

_OPERATIONS: dict[str, Finder] = {
    "__operators__.add": _of_two(L.Add, "x + c", "x + c"),
    "math.add": _of_two(L.Add, "x + c", "x + c"),
    "math.subtract": _of_two(L.Subtract, "x - c", "c - x"),
    "math.multiply": _of_two(L.Multiply, "x * c", "x * c"),
    "math.truediv": _of_two(None, "x / c", None),
    "math.divide": _of_two(None, "x / c", None),
    "math.negative": _negative,
    "math.add_n": _sum,
    "nn.bias_add": _biased,
    "math.square": _square,
    "math.maximum": _extremum(L.Maximum),
    "math.minimum": _extremum(L.Minimum),
    "nn.relu": _clipped,
    "nn.relu6": _clipped,
    "clip_by_value": _clipped,
    "math.abs": _function(L.Activation, absolute),
    "abs": _function(L.Activation, absolute),
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
    "stack": _stacked,
    "split": _split,
    "unstack": _unstacked,
    "gather": _gathered(axis_at=3),
    "compat.v1.gather": _gathered(axis_at=4),
    "roll": _rolled,
    "nn.depth_to_space": _moved_blocks(DepthToSpace),
    "compat.v1.nn.depth_to_space": _moved_blocks(DepthToSpace),
    "nn.space_to_depth": _moved_blocks(SpaceToDepth),
    "compat.v1.nn.space_to_depth": _moved_blocks(SpaceToDepth),
    "math.reduce_mean": _reduced(L.GlobalAveragePooling2D, ChannelMean),
    "math.reduce_max": _reduced(L.GlobalMaxPooling2D, ChannelMax),
    **{
        f"{prefix}nn.{kind}_pool{rank}": _pooled(layer)
        for prefix in ("", "compat.v1.")
        for kind, layer in (("max", L.MaxPooling2D), ("avg", L.AveragePooling2D))
        for rank in ("", "1d", "2d")
    },
    "compat.v1.nn.pool": _pooled_by_kind,
    "image.resize": _resized,
    "compat.v1.image.resize_nearest_neighbor": _resized_nearest,
    "__operators__.getitem": _sliced,
    "cast": _cast,
    "identity": _function(L.Activation, "linear"),
    "stop_gradient": _function(StopGradient),
}
