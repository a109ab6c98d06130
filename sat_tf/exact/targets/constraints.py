"""The conditions of NPUs' compilers: the reason why an operator fails one, and what to change."""

import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.tflite.contents import StoredOperator
from sat_tf.messages import first_ones

# A function that says why an operator fails a condition, "" where it does not; and what to change.
Constraint = Callable[[StoredOperator], tuple[str, str]]
_Settings = ParamSpec("_Settings")

_MET = "", ""
_IMAGE_AXES = 4
_NO_CODES = ("INT32", "INT64", "BOOL")
# The largest relative error of a bias's scale from the sum's: files hold both as float32.
_ROUNDED = 2.0**-16


def with_settings(
    check: Callable[Concatenate[StoredOperator, _Settings], tuple[str, str]],
) -> Callable[_Settings, Constraint]:
    """Returns a function that makes a constraint from settings, as `strides(3)` is one."""
    return lambda *settings, **named: lambda operator: check(operator, *settings, **named)


@with_settings
def of_types(
    operator: StoredOperator, *types: str, fix: str, scaled: bool = False, only: slice | None = None
) -> tuple[str, str]:
    """Non-constant tensors, or only some inputs, have one of some types, and a scale."""
    moved = [*(tensor for tensor in operator.reads if tensor.data is None), *operator.outputs]
    for tensor in operator.reads[only] if only else moved:
        if tensor.type not in types:
            return f"its tensor {tensor.name} is {tensor.type}, it takes {', '.join(types)}", fix
        if scaled and not tensor.scales.size:
            return f"its tensor {tensor.name} has no scale", fix
    return _MET


@with_settings
def output_grid(operator: StoredOperator, scale: float, zero_point: int) -> tuple[str, str]:
    """The output has this scale and this zero point."""
    output = operator.outputs[0]
    grid = *output.scales.tolist(), *output.zero_points.tolist()
    if grid == (scale, zero_point):
        return _MET
    return (
        f"its output has the scale {first_ones(output.scales)} and the zero point "
        f"{first_ones(output.zero_points)}, expected {scale} and {zero_point}",
        "convert it again",
    )


@with_settings
def symmetric_weights(operator: StoredOperator, *, axis: int) -> tuple[str, str]:
    """The kernel has codes from -127 to 127 around 0, and the bias has the scale of the sum."""
    source, kernel, *biases = operator.reads
    if operator.name == "TRANSPOSE_CONV":
        source, *biases = biases
    if (codes := kernel.values) is None:
        return "its weights are not constant", ""
    if np.any(kernel.zero_points):
        return "its weights have other zero points than 0", "quantize them symmetrically"
    if kernel.scales.size > 1 and kernel.axis != axis:
        return f"its weights have scales along axis {kernel.axis}, expected {axis}", ""
    if codes.min(initial=0) < -127:
        return "its weights reach -128, expected -127 to 127", "quantize them symmetrically"
    for bias in biases:
        unit = source.scales * kernel.scales
        if bias.type != "INT32" or np.any(bias.zero_points):
            return f"its bias is {bias.type}, expected INT32 with the zero point 0", ""
        if not np.allclose(bias.scales, unit, rtol=_ROUNDED, atol=0.0):
            return "the scale of its bias is not that of the input times that of the weights", ""
    return _MET


@with_settings
def weights_of(operator: StoredOperator, *types: str, fix: str) -> tuple[str, str]:
    """The kernel has one of some types, and is a constant."""
    kernel = operator.reads[1]
    if kernel.data is None:
        return "its weights are made by another operator", ""
    if kernel.type in types:
        return _MET
    return f"its weights are {kernel.type}, it takes {', '.join(types)}", fix


def no_packed_products(operator: StoredOperator) -> tuple[str, str]:
    """The kernel of a matrix product is not packed."""
    kernel = operator.reads[1]
    if kernel.type not in ("INT4", "INT2"):
        return _MET
    return f"its weights are {kernel.type}, it takes INT8", "export with pack='none'"


@with_settings
def largest_sum_of_weights(operator: StoredOperator, limit: int) -> tuple[str, str]:
    """The magnitudes of the weights of one output add up to at most `limit`."""
    if (codes := operator.reads[1].values) is None:
        return _MET
    axis = codes.ndim - 1 if operator.name == "DEPTHWISE_CONV_2D" else 0
    axes = tuple(index for index in range(codes.ndim) if index != axis)
    sums = np.abs(codes.astype(np.int64)).sum(axis=axes)
    if sums.max(initial=0) <= limit:
        return _MET
    return f"the magnitudes of its weights add up to {sums.max():,}, above {limit:,}", ""


def _option(operator: StoredOperator, name: str, default: Any = 1) -> Any:
    return getattr(operator.options, name, default)


@with_settings
def strides(operator: StoredOperator, largest: int, *, more_where_valid: bool) -> tuple[str, str]:
    """The strides are at most `largest`; windows without padding or dilation may have any."""
    stride = _option(operator, "strideH"), _option(operator, "strideW")
    dilation = _option(operator, "dilationHFactor"), _option(operator, "dilationWFactor")
    valid = _option(operator, "padding") == tfl.Padding.VALID and dilation == (1, 1)
    if max(stride) <= largest or (more_where_valid and valid):
        return _MET
    return (
        f"its strides are {stride[0]}x{stride[1]}, at most {largest}",
        f"use strides of at most {largest}, or global pooling for windows as large as images",
    )


@with_settings
def pooled_windows(operator: StoredOperator, *, largest_padded: int | None) -> tuple[str, str]:
    """A window has at most 256 rows and 256 x 256 values; padded ones may have another limit."""
    size = _option(operator, "filterHeight"), _option(operator, "filterWidth")
    padded = _option(operator, "padding") == tfl.Padding.SAME
    if padded and largest_padded is not None:
        fits, limit = max(size) <= largest_padded, f"{largest_padded}x{largest_padded}"
    else:
        fits, limit = math.prod(size) <= 256 * 256 and size[0] <= 256, "256x256"
    if fits:
        return _MET
    return f"its window is {size[0]}x{size[1]}, at most {limit}", "pool in two steps"


@with_settings
def reduced_axes(operator: StoredOperator, *, largest: int) -> tuple[str, str]:
    """The axes of a mean are shorter than `largest`, and exclude the batch."""
    source, axes = operator.reads[:2]
    if (numbers := axes.values) is None:
        return "its axes are not constant", ""
    rank = len(source.shape)
    reduced = sorted(int(axis) % rank for axis in numbers.reshape(-1))
    if 0 in reduced:
        return "it reduces the batch", ""
    if any(source.shape[axis] >= largest for axis in reduced):
        return f"it reduces an axis of {largest} or more", "pool before it"
    if rank - 1 in reduced and rank > 2 and 1 not in source.shape[-3:]:
        return "it reduces the channels", ""
    return _MET


def one_of_a_batch(operator: StoredOperator) -> tuple[str, str]:
    """The batch has one image."""
    source = operator.reads[0]
    if len(source.shape) != _IMAGE_AXES or source.shape[0] == 1:
        return _MET
    return f"it reads {source.shape[0]} images, it takes one", "write the file for one image"


@with_settings
def scales_by(
    operator: StoredOperator, *factors: int, half_pixels: tuple[int, ...] | None = None
) -> tuple[str, str]:
    """Images grow by one of some factors, the same for rows and columns that are more than one.

    Operators with `halfPixelCenters` have the factors `half_pixels`, unless these are None.
    """
    before, after = operator.reads[0].shape[1:3], operator.outputs[0].shape[1:3]
    if before in ((1, 1), after):
        return _MET
    less = int(_option(operator, "alignCorners", default=False))
    ratios = {
        (new - less) / max(old - less, 1)
        for old, new in zip(before, after, strict=True)
        if (old, new) != (1, 1)
    }
    allowed = factors
    if half_pixels is not None and _option(operator, "halfPixelCenters", default=False):
        allowed = half_pixels
    if len(ratios) == 1 and ratios <= {*allowed}:
        return _MET
    listed = ", ".join(map(str, allowed))
    return f"{_resizes(before, after)}, it takes factors of {listed}", f"resize by {listed}"


@with_settings
def scales_to_at_most(operator: StoredOperator, limit: int) -> tuple[str, str]:
    """Images become at most `limit` times as large."""
    before, after = operator.reads[0].shape[1:3], operator.outputs[0].shape[1:3]
    if all(new <= limit * old for old, new in zip(before, after, strict=True)):
        return _MET
    return f"{_resizes(before, after)}, at most {limit} times", "resize by less"


def _resizes(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    return f"it resizes {before[0]}x{before[1]} to {after[0]}x{after[1]}"


def small_strides(operator: StoredOperator) -> tuple[str, str]:
    """The strides of a transposed convolution are both 1 or both 2, or 1 where there is one row."""
    kernel, source = operator.reads[1:3]
    stride = _option(operator, "strideH"), _option(operator, "strideW")
    flat = [source.shape[axis] == kernel.shape[axis] == 1 for axis in (1, 2)]
    allowed = {(1, 1), (2, 2), *([(1, 2)] if flat[0] else []), *([(2, 1)] if flat[1] else [])}
    if stride in allowed:
        return _MET
    return f"its strides are {stride[0]}x{stride[1]}, at most 2x2", "use strides of 2"


def grown_by_strides(operator: StoredOperator) -> tuple[str, str]:
    """The output of a transposed convolution has the size that padding gives it."""
    kernel, source = operator.reads[1:3]
    by_axis = _option(operator, "strideH"), _option(operator, "strideW")
    same = _option(operator, "padding") == tfl.Padding.SAME
    expected = tuple(
        size * stride + (0 if same else max(window - stride, 0))
        for size, stride, window in zip(source.shape[1:3], by_axis, kernel.shape[1:3], strict=True)
    )
    shape = operator.outputs[0].shape
    if shape[1:3] == expected:
        return _MET
    return f"it makes {shape[1]}x{shape[2]}, expected {expected[0]}x{expected[1]}", ""


def strided_slice(operator: StoredOperator) -> tuple[str, str]:
    """Steps are positive constants."""
    if (steps := operator.reads[3].values) is None:
        return "its steps are not constant", ""
    return ("it runs backwards", "") if np.any(steps < 1) else _MET


def same_grids(operator: StoredOperator) -> tuple[str, str]:
    """All codes that it reads and makes have one scale and one zero point."""
    tensors = [
        tensor for tensor in (*operator.reads, *operator.outputs) if tensor.type not in _NO_CODES
    ]
    grids = {(tensor.scales.tobytes(), tensor.zero_points.tobytes()) for tensor in tensors}
    return _MET if len(grids) == 1 else ("its tensors have different scales", "")


def gathers_by_batch(operator: StoredOperator) -> tuple[str, str]:
    """The axis is the number of batch dimensions."""
    axis, batch = _option(operator, "axis", 0), _option(operator, "batchDims", 0)
    if axis == batch:
        return _MET
    return f"it gathers along axis {axis}, expected {batch}", ""
