"""Calls of TensorFlow that move values, as layers."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph.counterparts import by_call
from sat_tf.graph.operation_layers import (
    DepthToSpace,
    Gather,
    Padding,
    Slice,
    SpaceToDepth,
)
from sat_tf.graph.replacement import (
    Finder,
    OldCall,
    Replacement,
    axis_of,
    constant_of,
    is_keras,
    new_layer,
    number_of,
    one_layer,
    only_tensor,
)

L = keras.layers


def _reshaped(call: OldCall) -> Replacement | None:
    """Any change of the shape of each image that the shape of the result determines."""
    tensor = call.argument(0, "tensor", call.node.call_kwargs.get("input"))
    if not is_keras(tensor) or _moves_batch(tensor, call):
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
    tensor, paddings = call.argument(0, "tensor"), constant_of(call.argument(1, "paddings"))
    mode = call.argument(2, "mode", "CONSTANT")
    zeros = number_of(call.argument(4, "constant_values", 0)) == 0.0
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
    if not isinstance(tensors, list | tuple) or not all(map(is_keras, tensors)) or axis == 0:
        return None
    return Replacement(list(tensors), [new_layer(L.Concatenate, axis)], takes_list=True)


def _stacked(call: OldCall) -> Replacement | None:
    """Tensors concatenated along a new axis."""
    tensors, axis = call.argument(0, "values"), number_of(call.argument(1, "axis", 0))
    if not isinstance(tensors, list | tuple) or not all(map(is_keras, tensors)) or axis is None:
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
    axis = axis_of(tensor, call.argument(2, "axis", 0))
    if axis is None:
        return None
    sizes = [output.shape[axis] for output in call.node.outputs]
    if None in sizes:
        return None
    ends = np.cumsum(sizes).tolist()
    return _parts(tensor, axis, list(zip([0, *ends], ends, strict=False)), drops=False)


def _unstacked(call: OldCall) -> Replacement | None:
    tensor = call.argument(0, "value")
    axis = axis_of(tensor, call.argument(2, "axis", 0))
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
        tensor, indices = call.argument(0, "params"), constant_of(call.argument(1, "indices"))
        axis = axis_of(tensor, call.argument(axis_at, "axis", 0)) if is_keras(tensor) else None
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
    tensor, shift = call.argument(0, "input"), constant_of(call.argument(1, "shift"))
    axis = axis_of(tensor, call.argument(2, "axis")) if is_keras(tensor) else None
    size = tensor.shape[axis] if axis else None
    if size is None or shift is None or shift.ndim:
        return None
    order = np.roll(np.arange(size), int(shift)).tolist()
    return one_layer(tensor, Gather, order, axis - 1) if axis else None


def _moved_blocks(layer: Any) -> Finder:
    def find(call: OldCall) -> Replacement | None:
        tensor, size = only_tensor(call), number_of(call.argument(1, "block_size"))
        formats = [call.argument(at, "data_format", "NHWC") for at in (2, 3)]
        if tensor is None or size is None or "NCHW" in formats:
            return None
        return one_layer(tensor, layer, int(size))

    return find


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


def _repeated(call: OldCall) -> Replacement:
    """A vector for each of several steps: a sequence of one, made longer."""
    tensor = call.node.call_args[0]
    row = new_layer(L.Reshape, (1, tensor.shape[-1] or -1), suffix="row")
    return Replacement([tensor], [row, new_layer(L.UpSampling1D, call.layer.n)])


# Layers that are moves of others.
LAYERS: dict[type, Finder] = {L.RepeatVector: _repeated}

CALLS: dict[str, Finder] = by_call(
    {
        "reshape": _reshaped,
        "expand_dims": _reshaped,
        "squeeze": _reshaped,
        "transpose": _transposed,
        "pad": _padded,
        "concatenate": _joined,
        "stack": _stacked,
        "split": _split,
        "unstack": _unstacked,
        "gather": _gathered(axis_at=3),
        "gather_v1": _gathered(axis_at=4),
        "roll": _rolled,
        "depth_to_space": _moved_blocks(DepthToSpace),
        "depth_to_space_v1": _moved_blocks(DepthToSpace),
        "space_to_depth": _moved_blocks(SpaceToDepth),
        "space_to_depth_v1": _moved_blocks(SpaceToDepth),
        "resize": _resized,
        "resize_nearest_v1": _resized_nearest,
        "get_item": _sliced,
    }
)
