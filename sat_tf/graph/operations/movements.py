"""Operations that move values: rows of the registry."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from sat_tf.graph.operations.operation import (
    Finder,
    OldCall,
    OperationKind,
    Replacement,
    Twin,
    axis_of,
    constant_of,
    is_keras,
    new_layer,
    number_of,
    one_layer,
    only_tensor,
    typed,
    with_settings,
)

# -- layers of tf_keras for calls of TensorFlow's functions ----------------------------------------


def _reshaped(call: OldCall) -> Replacement | None:
    """Any change of the shape of each image that the shape of the result determines."""
    tensor = call.argument(0, "tensor", call.node.call_kwargs.get("input"))
    if not is_keras(tensor) or tensor.shape[0] != call.node.outputs.shape[0]:
        return None
    if None in (*tensor.shape[1:], *call.shape):
        return None
    before, after = (math.prod(map(int, shape)) for shape in (tensor.shape[1:], call.shape))
    # Otherwise pixels would move from one image to another.
    return one_layer(tensor, "Reshape", call.shape) if before == after else None


def _transposed(call: OldCall) -> Replacement | None:
    order = call.argument(1, "perm")
    if order is None or next(iter(order)) != 0:
        return None
    return Replacement([call.argument(0, "a")], [new_layer("Permute", tuple(order)[1:])])


def _padded(call: OldCall) -> Replacement | None:
    tensor, paddings = call.argument(0, "tensor"), constant_of(call.argument(1, "paddings"))
    mode = call.argument(2, "mode", "CONSTANT")
    zeros = number_of(call.argument(4, "constant_values", 0)) == 0.0
    if paddings is None or not zeros or mode.upper() != "CONSTANT" or np.any(paddings[0]):
        return None
    margins = [tuple(margin) for margin in paddings[1:].tolist()]
    *inner, channels = margins
    if channels == (0, 0) and len(inner) == 2:
        return one_layer(tensor, "ZeroPadding2D", tuple(inner))
    if channels == (0, 0) and len(inner) == 1:
        return one_layer(tensor, "ZeroPadding1D", inner[0])
    return one_layer(tensor, "Padding", margins)


def _joined(call: OldCall) -> Replacement | None:
    tensors, axis = call.argument(0, "values"), call.argument(1, "axis")
    if not isinstance(tensors, list | tuple) or not all(map(is_keras, tensors)) or axis == 0:
        return None
    return Replacement(list(tensors), [new_layer("Concatenate", axis)], takes_list=True)


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
    count = len(tensors)
    parts = [new_layer("Reshape", shape, suffix=f"part_{i}", reads=(i,)) for i in range(count)]
    joined = new_layer("Concatenate", place, reads=tuple(range(count, 2 * count)))
    return Replacement(list(tensors), [*parts, joined])


def _divided(drops_axis: bool, call: OldCall) -> Replacement | None:
    """A slice for each of several outputs, along an axis that these keep or drop."""
    tensor, outputs = call.argument(0, "value"), call.node.outputs
    axis = axis_of(tensor, call.argument(2, "axis", 0))
    if axis is None:
        return None
    sizes = [1 if drops_axis else output.shape[axis] for output in outputs]
    if None in sizes:
        return None
    ends = np.cumsum(sizes).tolist()
    dropped = [axis - 1] if drops_axis else []
    layers = [
        new_layer(
            "Slice",
            _slices(tensor, axis, *bounds, None),
            dropped,
            suffix=f"part_{index}",
            reads=(0,),
        )
        for index, bounds in enumerate(zip([0, *ends], ends, strict=False))
    ]
    return Replacement([tensor], layers)


def _slices(tensor: Any, axis: int, *bounds: int | None) -> list[list[int | None]]:
    """Slices of all axes except the batch: a part of one axis, and the others whole."""
    axes = range(1, len(tensor.shape))
    return [list(bounds) if index == axis else [None, None, None] for index in axes]


def _gathered(axis_at: int, call: OldCall) -> Replacement | None:
    """Parts by constant indices; one index, or equally spaced ones, as a slice."""
    tensor, indices = call.argument(0, "params"), constant_of(call.argument(1, "indices"))
    axis = axis_of(tensor, call.argument(axis_at, "axis", 0)) if is_keras(tensor) else None
    if indices is None or axis is None or call.argument(axis_at + 1, "batch_dims", 0):
        return None
    size = tensor.shape[axis]
    small = indices.size and np.min(indices) >= 0 and (size is None or np.max(indices) < size)
    if not small or indices.ndim > 1:
        return None
    start, stride = int(indices.flat[0]), int(np.diff(indices.flat[:2])[:1].sum()) or 1
    if indices.ndim == 0 or (stride > 0 and np.all(np.diff(indices) == stride)):
        stop = start + (indices.size - 1) * stride + 1
        slices = _slices(tensor, axis, start, stop, stride)
        return one_layer(tensor, "Slice", slices, [] if indices.ndim else [axis - 1])
    return one_layer(tensor, "Gather", indices.tolist(), axis - 1)


def _rolled(call: OldCall) -> Replacement | None:
    """The same values in another order along one axis."""
    tensor, shift = call.argument(0, "input"), constant_of(call.argument(1, "shift"))
    axis = axis_of(tensor, call.argument(2, "axis")) if is_keras(tensor) else None
    size = tensor.shape[axis] if axis else None
    if size is None or shift is None or shift.ndim:
        return None
    order = np.roll(np.arange(size), int(shift)).tolist()
    return one_layer(tensor, "Gather", order, axis - 1) if axis else None


def _moved_blocks(layer: str, call: OldCall) -> Replacement | None:
    tensor, size = only_tensor(call), number_of(call.argument(1, "block_size"))
    formats = [call.argument(at, "data_format", "NHWC") for at in (2, 3)]
    if tensor is None or size is None or "NCHW" in formats:
        return None
    return one_layer(tensor, layer, int(size))


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
        return one_layer(tensor, "UpSampling2D", factors)
    return one_layer(tensor, "Resizing", rows, columns, method)


def _resized_nearest(call: OldCall) -> Replacement | None:
    """The older form, whose pixels are centered only with `half_pixel_centers`."""
    tensor, rows, columns = call.argument(0, "images"), *call.shape[:2]
    if call.argument(2, "align_corners", False) or None in (rows, columns):
        return None
    factors = _whole_factors(tensor.shape[1:3], (rows, columns))
    if factors:
        return one_layer(tensor, "UpSampling2D", factors)
    if call.argument(4, "half_pixel_centers", False):
        return one_layer(tensor, "Resizing", rows, columns, "nearest")
    return None


_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian")


def _whole_factors(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, ...] | None:
    sizes = list(zip(before, after, strict=True))
    if any(None in pair or pair[1] % pair[0] for pair in sizes):
        return None
    return tuple(large // small for small, large in sizes)


def _sliced(call: OldCall) -> Replacement | None:
    """x[:, 1:-1, ::2], x[..., :3], x[:, 0]: slices and integers that leave the batch alone."""
    tensor, spec = call.argument(0, "tensor"), call.argument(1, "slice_spec")
    spec = list(spec) if isinstance(spec, list | tuple) else [spec]
    rank = len(tensor.shape)
    if spec.count(Ellipsis) > 1 or any(value is None for value in spec):
        return None
    if Ellipsis not in spec:
        spec.append(Ellipsis)
    ellipsis_axis = spec.index(Ellipsis)
    spec[ellipsis_axis : ellipsis_axis + 1] = [slice(None)] * (rank - len(spec) + 1)
    batch, *slices = [_bounds(value) for value in spec]
    if batch != [None, None, None] or any(bounds is None for bounds in slices):
        return None
    dropped = [axis for axis, value in enumerate(spec[1:]) if not isinstance(value, slice | dict)]
    return one_layer(tensor, "Slice", slices, dropped)


def _bounds(value: Any) -> list[int | None] | None:
    """Start, stop and step of one index; None where they are not constant integers."""
    if isinstance(value, dict):  # as Keras keeps slices
        value = slice(value.get("start"), value.get("stop"), value.get("step"))
    if isinstance(value, slice):
        bounds = [value.start, value.stop, value.step]
        is_constant = all(bound is None or isinstance(bound, int | np.integer) for bound in bounds)
        if not is_constant or (value.step is not None and value.step < 1):
            return None
        return [None if bound is None else int(bound) for bound in bounds]
    if isinstance(value, int | np.integer):
        return [int(value), int(value) + 1 if value != -1 else None, None]
    return None


def _repeated(call: OldCall) -> Replacement:
    """A vector for each of several steps: a sequence of one, made longer."""
    tensor = call.node.call_args[0]
    row = new_layer("Reshape", (1, tensor.shape[-1] or -1), suffix="row")
    return Replacement([tensor], [row, new_layer("UpSampling1D", call.layer.n)])


# Finders for layers of tf_keras, by their names, that other layers' moves replace.
LAYERS: dict[str, Finder] = {"RepeatVector": _repeated}

# -- Keras 3, for calls of TensorFlow's functions --------------------------------------------------


def _item_of(x: Any, key: Any) -> Any:
    return x[tuple(key) if isinstance(key, list) else key]


def _resize(keras3: Any, images: Any, size: Any, method: str = "bilinear", **options: Any) -> Any:
    return keras3.ops.image.resize(images, tuple(size), interpolation=method, **options)


def _pad(
    keras3: Any,
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    _: Any = None,
    constant_values: Any = 0,
) -> Any:
    if mode.upper() == "CONSTANT":
        return keras3.ops.pad(tensor, paddings, constant_values=constant_values)
    return keras3.ops.pad(tensor, paddings, mode=mode.lower())


def _depth_to_space(keras3: Any, input: Any, block_size: int, data_format: str = "NHWC") -> Any:
    del data_format  # sat-tf's layers have the channels last
    ops, size = keras3.ops, block_size
    rows, columns, channels = ops.shape(input)[1:]
    blocks = ops.reshape(input, (-1, rows, columns, size, size, channels // size**2))
    moved = ops.transpose(blocks, (0, 1, 3, 2, 4, 5))
    return ops.reshape(moved, (-1, rows * size, columns * size, channels // size**2))


def _space_to_depth(keras3: Any, input: Any, block_size: int, data_format: str = "NHWC") -> Any:
    ops, size = keras3.ops, block_size
    rows, columns, channels = ops.shape(input)[1:]
    blocks = ops.reshape(input, (-1, rows // size, size, columns // size, size, channels))
    moved = ops.transpose(blocks, (0, 1, 3, 2, 4, 5))
    return ops.reshape(moved, (-1, rows // size, columns // size, channels * size**2))


def _gather(keras3: Any, params: Any, indices: Any, axis: int = 0, batch_dims: int = 0) -> Any:
    del batch_dims  # 0 in sat-tf's layers
    return keras3.ops.take(params, np.asarray(indices, np.int32), axis=axis)


def _squeeze(keras3: Any, input: Any, axis: Any = None, *_: Any) -> Any:
    return keras3.ops.squeeze(input, tuple(axis) if isinstance(axis, list) else axis)


def _transpose(keras3: Any, a: Any, perm: Any = None, conjugate: bool = False) -> Any:
    del conjugate  # it leaves real numbers as they are
    return keras3.ops.transpose(a, perm)


# -- tf_keras, for calls of Keras 3's operations ---------------------------------------------------


def _reshape_twin(call: Any) -> Twin:
    shape, source = tuple(call.operation.newshape), call.tensors[0].shape
    sizes = [size for size in shape[1:] if size != -1]
    has_known_sizes = None not in source[1:] and source[0] is None
    keeps_batch = shape[0] == -1 and len(sizes) == len(shape) - 1
    if has_known_sizes and keeps_batch and int(np.prod(sizes)) == int(np.prod(source[1:])):
        return new_layer("Reshape", shape[1:])
    function = call.function
    return lambda x: function(x, [-1 if size is None else size for size in shape])


def _transpose_twin(call: Any) -> Twin:
    axes, function = call.operation.axes, call.function
    if axes is not None and len(axes) > 1 and axes[0] == 0:
        return new_layer("Permute", tuple(axes[1:]))
    return lambda x: function(x, axes)


def _concatenate_twin(call: Any) -> Twin:
    axis, dtype, function = call.operation.axis, call.outputs[0].dtype, call.function
    if len(call.tensors) > 1 and {tensor.dtype for tensor in call.tensors} == {dtype}:
        return new_layer("Concatenate", axis=axis)
    return lambda xs: function([typed(x, dtype) for x in xs], axis=axis)


def _resize_twin(call: Any) -> Twin:
    operation, function = call.operation, call.function
    if operation.crop_to_aspect_ratio or operation.pad_to_aspect_ratio:
        raise ValueError("received an image resized with its aspect ratio kept; use a layer")
    if operation.data_format not in (None, "channels_last"):
        raise ValueError(f"received data_format={operation.data_format!r}, use channels_last")
    return lambda images: function(
        images, operation.size, operation.interpolation, antialias=operation.antialias
    )


def _pad_twin(call: Any) -> Twin:
    import tensorflow as tf

    widths, mode = call.operation.pad_width, call.operation.mode.upper()

    def pad(x: Any, constant_values: Any = None) -> Any:
        return tf.pad(x, widths, mode, 0 if constant_values is None else constant_values)

    return pad


def _split_twin(call: Any) -> Twin:
    sections, axis = call.operation.indices_or_sections, call.operation.axis
    if not isinstance(sections, int):
        ends = [*sections, call.tensors[0].shape[axis]]
        sections = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    function = call.function
    return lambda x: function(x, sections, axis=axis)


def _squeeze_twin(call: Any) -> Twin:
    axis, function = call.operation.axis, call.function
    axes = [] if axis is None else [int(index) for index in np.atleast_1d(axis)]
    return lambda x: function(x, axes)


# -- rows ------------------------------------------------------------------------------------------

_PIECES = "sat-tf takes parts of known sizes along an axis after the batch"
_GATHERED = "sat-tf takes a number or a list of numbers, 0 and above, along an axis after the batch"


def _of_blocks(name: str, layer: str, keras3: Any) -> tuple[OperationKind, OperationKind]:
    fix, layers = "sat-tf takes images with the channels last", partial(_moved_blocks, layer)
    twin = with_settings("block_size")
    row = OperationKind(name, (f"nn.{name}",), fix, layers, keras3, twin)
    return row, OperationKind(f"{name}_v1", (f"compat.v1.nn.{name}",), fix, layers)


# A call of "compat.v1" whose arguments have another order has a row of its own.
OPERATIONS = (
    OperationKind(
        "concatenate",
        ("concat",),
        fix="sat-tf joins tensors of the model, along any dimension but the batch",
        layers=_joined,
        keras3=lambda keras3, values, axis: keras3.ops.concatenate(values, axis=axis),
        twin=_concatenate_twin,
    ),
    *_of_blocks("depth_to_space", "DepthToSpace", _depth_to_space),
    OperationKind(
        "expand_dims",
        ("expand_dims",),
        layers=_reshaped,
        keras3=lambda keras3, input, axis: keras3.ops.expand_dims(input, axis),
        twin=with_settings("axis"),
    ),
    OperationKind("gather", ("gather",), fix=_GATHERED, layers=partial(_gathered, 3)),
    OperationKind(
        "gather_v1",
        ("compat.v1.gather",),
        fix=_GATHERED,
        layers=partial(_gathered, 4),
        keras3=_gather,
    ),
    OperationKind(
        "get_item",
        ("__operators__.getitem",),
        fix="sat-tf takes numbers and slices of positive strides after the batch, as in "
        "x[:, 1:, ::2]; tf.expand_dims adds dimensions",
        layers=_sliced,
        keras3=lambda keras3, x, key: _item_of(x, key),
        twin=lambda call: _item_of,
    ),
    OperationKind(
        "pad",
        ("compat.v1.pad",),
        fix="sat-tf takes zeros, on any axis but the batch",
        layers=_padded,
        keras3=_pad,
        twin=_pad_twin,
    ),
    OperationKind(
        "reshape",
        ("reshape",),
        fix="sat-tf takes shapes whose sizes after the batch are known, and that leave each image "
        "its values",
        layers=_reshaped,
        keras3=lambda keras3, tensor, shape: keras3.ops.reshape(tensor, tuple(shape)),
        twin=_reshape_twin,
    ),
    OperationKind(
        "resize",
        ("image.resize",),
        fix="sat-tf takes it to sizes that are known, without antialias and preserve_aspect_ratio",
        layers=_resized,
        keras3=_resize,
        twin=_resize_twin,
    ),
    OperationKind(
        "resize_nearest_v1",
        ("compat.v1.image.resize_nearest_neighbor",),
        fix="use tf.image.resize(x, size, 'nearest')",
        layers=_resized_nearest,
    ),
    OperationKind(
        "roll",
        ("roll",),
        fix="sat-tf takes a number along one axis after the batch, whose size is known",
        layers=_rolled,
    ),
    *_of_blocks("space_to_depth", "SpaceToDepth", _space_to_depth),
    OperationKind(
        "split", ("split",), fix=_PIECES, layers=partial(_divided, False), twin=_split_twin
    ),
    OperationKind(
        "squeeze",
        ("squeeze", "compat.v1.squeeze"),
        layers=_reshaped,
        keras3=_squeeze,
        twin=_squeeze_twin,
    ),
    OperationKind(
        "stack",
        ("stack",),
        fix="sat-tf takes tensors of known sizes, along an axis after the batch",
        layers=_stacked,
        keras3=lambda keras3, values, axis=0: keras3.ops.stack(values, axis),
        twin=with_settings("axis"),
    ),
    OperationKind(
        "tile", ("tile",), keras3=lambda keras3, input, multiples: keras3.ops.tile(input, multiples)
    ),
    OperationKind(
        "transpose",
        ("transpose", "compat.v1.transpose"),
        fix="sat-tf takes orders that leave the batch in front",
        layers=_transposed,
        keras3=_transpose,
        twin=_transpose_twin,
    ),
    OperationKind("unstack", ("unstack",), fix=_PIECES, layers=partial(_divided, True)),
)
