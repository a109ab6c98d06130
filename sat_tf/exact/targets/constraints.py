"""The conditions of NPUs' compilers: the reason why an operator fails one, and what to change."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.tflite.contents import StoredOperator
from sat_tf.messages import first_ones

# Why an operator fails a condition, and what to change. Only the first reason counts: the lines
# after it may rely on the condition.
Failures = Iterator[tuple[str, str]]
Constraint = Callable[[StoredOperator], Failures]
_Settings = ParamSpec("_Settings")

_IMAGE_AXES = 4
_NO_CODES = ("INT32", "INT64", "BOOL")
# The largest relative error of a bias's scale from the sum's: files hold both as float32.
_ROUNDED = 2.0**-16
# The fix that makes tensors of 16 bits unnecessary.
EIGHT_BITS = "give the layers around it activation_bits=8"


def with_settings(
    check: Callable[Concatenate[StoredOperator, _Settings], Failures],
) -> Callable[_Settings, Constraint]:
    """Returns a function that makes a constraint from settings, as `strides(3)` is one."""
    return lambda *settings, **named: lambda operator: check(operator, *settings, **named)


@with_settings
def of_types(
    operator: StoredOperator, *types: str, fix: str, scaled: bool = False, only: slice | None = None
) -> Failures:
    """Non-constant tensors, or only some inputs, have one of some types, and a scale."""
    moved = [*(tensor for tensor in operator.reads if tensor.data is None), *operator.outputs]
    for tensor in operator.reads[only] if only else moved:
        if tensor.type not in types:
            reason = f"its tensor {tensor.name} is {tensor.type}, it takes {', '.join(types)}"
            yield reason, EIGHT_BITS if tensor.type == "INT16" else fix
        if scaled and not tensor.scales.size:
            yield f"its tensor {tensor.name} has no scale", fix


@with_settings
def output_grid(operator: StoredOperator, scale: float, zero_point: int) -> Failures:
    """The output has this scale and this zero point."""
    output = operator.outputs[0]
    grid = *output.scales.tolist(), *output.zero_points.tolist()
    if grid != (scale, zero_point):
        yield (
            f"its output has the scale {first_ones(output.scales)} and the zero point "
            f"{first_ones(output.zero_points)}, expected {scale} and {zero_point}",
            "convert it again",
        )


@with_settings
def symmetric_weights(operator: StoredOperator, *, axis: int) -> Failures:
    """The kernel has codes from -127 to 127 around 0, and the bias has the scale of the sum."""
    source, kernel, *biases = operator.reads
    if operator.name == "TRANSPOSE_CONV":
        source, *biases = biases
    if (codes := kernel.values) is None:
        yield "its weights are not constant", ""
        return
    if np.any(kernel.zero_points):
        yield "its weights have other zero points than 0", "quantize them symmetrically"
    if kernel.scales.size > 1 and kernel.axis != axis:
        yield f"its weights have scales along axis {kernel.axis}, expected {axis}", ""
    if codes.min(initial=0) < -127:
        yield "its weights reach -128, expected -127 to 127", "quantize them symmetrically"
    for bias in biases:
        unit = source.scales * kernel.scales
        if bias.type != "INT32" or np.any(bias.zero_points):
            yield f"its bias is {bias.type}, expected INT32 with the zero point 0", ""
        if not np.allclose(bias.scales, unit, rtol=_ROUNDED, atol=0.0):
            yield "the scale of its bias is not that of the input times that of the weights", ""


@with_settings
def weights_of(operator: StoredOperator, *types: str, fix: str) -> Failures:
    """The kernel has one of some types, and is a constant."""
    kernel = operator.reads[1]
    if kernel.data is None:
        yield "its weights are made by another operator", ""
    if kernel.type not in types:
        yield f"its weights are {kernel.type}, it takes {', '.join(types)}", fix


def no_packed_products(operator: StoredOperator) -> Failures:
    """The kernel of a matrix product is not packed."""
    kernel = operator.reads[1]
    if kernel.type in ("INT4", "INT2"):
        yield f"its weights are {kernel.type}, it takes INT8", "export with pack='none'"


@with_settings
def few_classes(operator: StoredOperator, limit: int) -> Failures:
    """A softmax of codes is over at most `limit` values."""
    (output,) = operator.outputs
    if output.scales.size and output.shape[-1] > limit:
        why = "as its kernel ends the process where more are about equally likely"
        yield f"it is over {output.shape[-1]:,} values, it takes {limit}, {why}", "use fewer"


@with_settings
def largest_sum_of_weights(operator: StoredOperator, limit: int) -> Failures:
    """The magnitudes of the weights of one output add up to at most `limit`."""
    if (codes := operator.reads[1].values) is None:
        return
    axis = codes.ndim - 1 if operator.name == "DEPTHWISE_CONV_2D" else 0
    axes = tuple(index for index in range(codes.ndim) if index != axis)
    sums = np.abs(codes.astype(np.int64)).sum(axis=axes)
    if sums.max(initial=0) > limit:
        yield f"the magnitudes of its weights add up to {sums.max():,}, above {limit:,}", ""


def _option(operator: StoredOperator, name: str, default: Any = 1) -> Any:
    return getattr(operator.options, name, default)


@with_settings
def strides(operator: StoredOperator, largest: int, *, more_where_valid: bool) -> Failures:
    """The strides are at most `largest`; windows without padding or dilation may have any."""
    stride = _option(operator, "strideH"), _option(operator, "strideW")
    dilation = _option(operator, "dilationHFactor"), _option(operator, "dilationWFactor")
    valid = _option(operator, "padding") == tfl.Padding.VALID and dilation == (1, 1)
    if max(stride) > largest and not (more_where_valid and valid):
        yield (
            f"its strides are {stride[0]}x{stride[1]}, at most {largest}",
            f"use strides of at most {largest}, or global pooling for windows as large as images",
        )


@with_settings
def pooled_windows(operator: StoredOperator, *, largest_padded: int | None) -> Failures:
    """A window has at most 256 rows and 256 x 256 values; padded ones may have another limit."""
    size = _option(operator, "filterHeight"), _option(operator, "filterWidth")
    padded = _option(operator, "padding") == tfl.Padding.SAME
    if padded and largest_padded is not None:
        fits, limit = max(size) <= largest_padded, f"{largest_padded}x{largest_padded}"
    else:
        fits, limit = math.prod(size) <= 256 * 256 and size[0] <= 256, "256x256"
    if not fits:
        yield f"its window is {size[0]}x{size[1]}, at most {limit}", "pool in two steps"


@with_settings
def reduced_axes(operator: StoredOperator, *, largest: int) -> Failures:
    """The axes of a mean are shorter than `largest`, and exclude the batch."""
    source, axes = operator.reads[:2]
    if (numbers := axes.values) is None:
        yield "its axes are not constant", ""
        return
    rank = len(source.shape)
    reduced = sorted(int(axis) % rank for axis in numbers.reshape(-1))
    if 0 in reduced:
        yield "it reduces the batch", ""
    if any(source.shape[axis] >= largest for axis in reduced):
        yield f"it reduces an axis of {largest} or more", "pool before it"
    if rank - 1 in reduced and rank > 2 and 1 not in source.shape[-3:]:
        yield "it reduces the channels", ""


def one_of_a_batch(operator: StoredOperator) -> Failures:
    """The batch has one image."""
    source = operator.reads[0]
    if len(source.shape) == _IMAGE_AXES and source.shape[0] != 1:
        yield f"it reads {source.shape[0]} images, it takes one", "write the file for one image"


@with_settings
def scales_by(
    operator: StoredOperator, *factors: int, half_pixels: tuple[int, ...] | None = None
) -> Failures:
    """Images grow by one of some factors, the same for rows and columns that are more than one.

    Operators with `halfPixelCenters` have the factors `half_pixels`, unless these are None.
    """
    before, after = operator.reads[0].shape[1:3], operator.outputs[0].shape[1:3]
    if before in ((1, 1), after):
        return
    less = int(_option(operator, "alignCorners", default=False))
    ratios = {
        (new - less) / max(old - less, 1)
        for old, new in zip(before, after, strict=True)
        if (old, new) != (1, 1)
    }
    allowed = factors
    if half_pixels is not None and _option(operator, "halfPixelCenters", default=False):
        allowed = half_pixels
    if len(ratios) > 1 or not ratios <= {*allowed}:
        listed = ", ".join(map(str, allowed))
        yield f"{_resizes(before, after)}, it takes factors of {listed}", f"resize by {listed}"


@with_settings
def scales_to_at_most(operator: StoredOperator, limit: int) -> Failures:
    """Images become at most `limit` times as large."""
    before, after = operator.reads[0].shape[1:3], operator.outputs[0].shape[1:3]
    if any(new > limit * old for old, new in zip(before, after, strict=True)):
        yield f"{_resizes(before, after)}, at most {limit} times", "resize by less"


def _resizes(before: tuple[int, ...], after: tuple[int, ...]) -> str:
    return f"it resizes {before[0]}x{before[1]} to {after[0]}x{after[1]}"


def small_strides(operator: StoredOperator) -> Failures:
    """The strides of a transposed convolution are both 1 or both 2, or 1 where there is one row."""
    kernel, source = operator.reads[1:3]
    stride = _option(operator, "strideH"), _option(operator, "strideW")
    flat = [source.shape[axis] == kernel.shape[axis] == 1 for axis in (1, 2)]
    allowed = {(1, 1), (2, 2), *([(1, 2)] if flat[0] else []), *([(2, 1)] if flat[1] else [])}
    if stride not in allowed:
        yield f"its strides are {stride[0]}x{stride[1]}, at most 2x2", "use strides of 2"


def grown_by_strides(operator: StoredOperator) -> Failures:
    """The output of a transposed convolution has the size that padding gives it."""
    kernel, source = operator.reads[1:3]
    strides = _option(operator, "strideH"), _option(operator, "strideW")
    is_same = _option(operator, "padding") == tfl.Padding.SAME
    expected = tuple(
        size * stride + (0 if is_same else max(window - stride, 0))
        for size, stride, window in zip(source.shape[1:3], strides, kernel.shape[1:3], strict=True)
    )
    shape = operator.outputs[0].shape
    if shape[1:3] != expected:
        yield f"it makes {shape[1]}x{shape[2]}, expected {expected[0]}x{expected[1]}", ""


def strided_slice(operator: StoredOperator) -> Failures:
    """Steps are positive constants."""
    if (steps := operator.reads[3].values) is None:
        yield "its steps are not constant", ""
    elif np.any(steps < 1):
        yield "it runs backwards", ""


def same_grids(operator: StoredOperator) -> Failures:
    """All codes that it reads and makes have one scale and one zero point."""
    tensors = (*operator.reads, *operator.outputs)
    codes = (tensor for tensor in tensors if tensor.type not in _NO_CODES)
    grids = {(tensor.scales.tobytes(), tensor.zero_points.tobytes()) for tensor in codes}
    if len(grids) != 1:
        yield "its tensors have different scales", ""


def gathers_by_batch(operator: StoredOperator) -> Failures:
    """The axis is the number of batch dimensions."""
    axis, batch = _option(operator, "axis", 0), _option(operator, "batchDims", 0)
    if axis != batch:
        yield f"it gathers along axis {axis}, expected {batch}", ""
