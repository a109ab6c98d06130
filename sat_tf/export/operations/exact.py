"""The integer arithmetic of the file's kernels in TensorFlow, bit for bit, on any device.

Tensors hold codes, stored - zero_point, as float32, or real values where the graph keeps them
float. What an operation computes with, `constants_of` takes from the graph as arrays; `compute`
gets the same as tensors, so that they can change under a traced function.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.export.operations import arithmetic
from sat_tf.export.operations import graph as ir
from sat_tf.export.operations.arithmetic import largest_sums, requantization_multipliers
from sat_tf.export.operations.graph import Codes, Graph, LinearKind, Pointwise, Window
from sat_tf.export.operations.lookup import FIRST, Lookup
from sat_tf.export.operations.movements import Movement
from sat_tf.export.operations.pairs import Pair, PairKind, product_multiplier
from sat_tf.graph.network import call_on_floats
from sat_tf.qat.layout import inner_layer
from sat_tf.quantizers.input_range import PIXELS, InputRange


def _convolution(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    return tf.nn.conv2d(codes, kernel, window.strides, window.padding, dilations=window.dilation)


def _depthwise(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    rows, columns = window.strides
    if rows == columns:
        return tf.nn.depthwise_conv2d(
            codes, kernel, [1, rows, columns, 1], window.padding, dilations=window.dilation
        )
    # There is no kernel for such strides: all windows, of which some are taken.
    margins = [
        arithmetic.placement(*axis, window.padding)[0]
        for axis in zip(
            codes.shape[1:3], kernel.shape[:2], window.strides, window.dilation, strict=True
        )
    ]
    padded = tf.pad(codes, [(0, 0), *margins, (0, 0)])
    every = tf.nn.depthwise_conv2d(padded, kernel, [1, 1, 1, 1], "VALID", dilations=window.dilation)
    return every[:, ::rows, ::columns]


def _transposed(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    size = arithmetic.transposed_size(codes.shape[1:3], kernel.shape[:2], window)
    shape = tf.stack([tf.shape(codes)[0], *size, kernel.shape[2]])
    return tf.nn.conv2d_transpose(codes, kernel, shape, window.strides, window.padding)


def _matrix(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    del window
    return tf.matmul(codes, kernel)


SUMS = {
    LinearKind.CONVOLUTION: _convolution,
    LinearKind.TRANSPOSED: _transposed,
    LinearKind.DEPTHWISE: _depthwise,
    LinearKind.FULLY_CONNECTED: _matrix,
}

# Below this every integer is a float32, and sums of such products are exact in any order.
_EXACT_FLOAT32 = 2**24

# How wide the numbers of a linear layer have to be: those that the convolution sums up, and those
# that the bias is added to. The narrowest that is exact is chosen by the codes that are there.
_WIDTHS = ((tf.float32, tf.float32), (tf.float32, tf.float64), (tf.float64, tf.float64))

# By name: arrays of float32, float64 or int32, as NumPy has them, and as TensorFlow does.
Numbers = dict[str, np.ndarray | np.generic]
Constants = Mapping[str, Any]


@functools.singledispatch
def constants_of(operation: ir.Operation, graph: Graph) -> Numbers:
    """The numbers that an operation computes with."""
    raise TypeError(f"{type(operation).__name__}: not an operation of the deployed model.")


@functools.singledispatch
def compute(
    operation: ir.Operation, graph: Graph, constants: Constants, *inputs: tf.Tensor
) -> tf.Tensor:
    """What one operation makes of its inputs, float32 codes or real values; it has no gradient.

    Args:
        operation: the operation, of which only settings are used.
        graph: it is part of, of which only shapes are used.
        constants: tensors, named and shaped like the arrays of `constants_of`.
        *inputs: with the batch dimension first.
    """
    raise TypeError(f"{type(operation).__name__}: not an operation of the deployed model.")


def _ends(codes: Codes) -> Numbers:
    """The smallest and the largest code."""
    return {
        "lowest": np.float32(codes.lowest - codes.zero_point),
        "highest": np.float32(codes.highest - codes.zero_point),
    }


def _clipped(values: tf.Tensor, constants: Constants) -> tf.Tensor:
    return tf.clip_by_value(values, constants["lowest"], constants["highest"])


# -- linear layers -------------------------------------------------------------------------------


@constants_of.register
def _(operation: ir.Linear, graph: Graph) -> Numbers:
    if operation.real:
        scales = operation.along_channels(operation.scales.astype(np.float32))
        weights = operation.kernel.astype(np.float32) * scales
        channels = graph.tensors[operation.inputs[0]].shape[-1]
        kernel = _as_tensorflow(weights, operation.kind, channels)
        return {"kernel": kernel, "bias": operation.bias.astype(np.float32)}
    # Codes as they were before up-scaling: smaller sums, which float32 holds for longer.
    factors = np.maximum(np.gcd.reduce(operation.kernel, axis=operation.inner_axes), 1)
    kernel = operation.kernel // operation.along_channels(factors)
    channels = graph.tensors[operation.inputs[0]].shape[-1]
    return {
        "kernel": _as_tensorflow(kernel, operation.kind, channels).astype(np.float32),
        "factors": factors.astype(np.float64),
        "bias": operation.bias.astype(np.float64),
        "multipliers": requantization_multipliers(graph, operation),
        "width": np.int32(_width(graph, operation, factors)),
        **_ends(graph.codes(operation.output)),
    }


def _as_tensorflow(kernel: np.ndarray, kind: LinearKind, channels: int) -> np.ndarray:
    if kind is LinearKind.DEPTHWISE:
        return kernel.reshape(*kernel.shape[:2], channels, -1)
    if kind is LinearKind.TRANSPOSED:
        return np.moveaxis(kernel, 0, 2)
    return np.moveaxis(kernel, 0, -1)


def _width(graph: Graph, operation: ir.Linear, factors: np.ndarray) -> int:
    """Which of `_WIDTHS` is exact for every input."""
    largest = largest_sums(graph, operation)
    # With both summands exact, their float32 sum is rounded once, as the kernel does it.
    if np.max(largest) < _EXACT_FLOAT32 and np.all(np.float32(operation.bias) == operation.bias):
        return 0
    return 1 if np.max(largest // factors) < _EXACT_FLOAT32 else 2


@compute.register
def _(operation: ir.Linear, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    if operation.real:
        products = SUMS[operation.kind](source, constants["kernel"], operation.window)
        return products + constants["bias"]

    def accumulators(sum_type: tf.DType, bias_type: tf.DType) -> tf.Tensor:
        """Σ code · input code + bias as the nearest float32."""
        kernel = tf.cast(constants["kernel"], sum_type)
        sums = SUMS[operation.kind](tf.cast(source, sum_type), kernel, operation.window)
        factors = tf.cast(constants["factors"], bias_type)
        bias = tf.cast(constants["bias"], bias_type)
        return tf.cast(tf.cast(sums, bias_type) * factors + bias, tf.float32)

    widths = [functools.partial(accumulators, *types) for types in _WIDTHS]
    product = tf.switch_case(constants["width"], widths) * constants["multipliers"]
    return _clipped(tf.round(product), constants)


# -- sums and means ------------------------------------------------------------------------------


@constants_of.register
def _(operation: ir.Add, graph: Graph) -> Numbers:
    if graph.is_float(operation):
        return {}
    output = graph.codes(operation.output)
    summands = [graph.codes(name) for name in operation.inputs]
    multipliers, shift = arithmetic.summand_multipliers(summands, output)
    # Powers of two only move the binary point of a float64.
    return {"multipliers": np.ldexp(multipliers.astype(np.float64), -shift), **_ends(output)}


@compute.register
def _(operation: ir.Add, graph: Graph, constants: Constants, *summands: tf.Tensor) -> tf.Tensor:
    if graph.is_float(operation):
        return tf.add_n(summands)
    return _rounded_sum(constants, summands)


@constants_of.register
def _(operation: ir.AddConstant, graph: Graph) -> Numbers:
    output = graph.codes(operation.output)
    summands = (graph.codes(operation.inputs[0]), operation.codes)
    multipliers, shift = arithmetic.summand_multipliers(summands, output)
    return {
        "constant": operation.constant.astype(np.float32),
        "multipliers": np.ldexp(multipliers.astype(np.float64), -shift),
        **_ends(output),
    }


@compute.register
def _(
    operation: ir.AddConstant, graph: Graph, constants: Constants, source: tf.Tensor
) -> tf.Tensor:
    return _rounded_sum(constants, (source, constants["constant"][tf.newaxis]))


def _rounded_sum(constants: Constants, summands: Sequence[tf.Tensor]) -> tf.Tensor:
    """Σ multiplier · code, rounded half up and clipped."""
    multipliers = tf.unstack(constants["multipliers"], len(summands))
    total = tf.constant(0.5, tf.float64)
    for codes, multiplier in zip(summands, multipliers, strict=True):
        total += tf.cast(codes, tf.float64) * multiplier
    return _clipped(tf.cast(tf.floor(total), tf.float32), constants)


@constants_of.register
def _(operation: Pair, graph: Graph) -> Numbers:
    if graph.is_float(operation) or operation.kind.keeps_grid:
        return {}
    output = graph.codes(operation.output)
    one, other = (graph.codes(name) for name in operation.inputs)
    if operation.kind is PairKind.PRODUCT:
        return {"multiplier": product_multiplier((one, other), output), **_ends(output)}
    multipliers, shift = arithmetic.summand_multipliers((one, other), output)
    multipliers = np.ldexp(multipliers.astype(np.float64), -shift)
    return {"multipliers": multipliers * [1.0, -1.0], **_ends(output)}


@compute.register
def _(operation: Pair, graph: Graph, constants: Constants, *inputs: tf.Tensor) -> tf.Tensor:
    if graph.is_float(operation) or operation.kind.keeps_grid:
        return PAIRS[operation.kind](*inputs)
    if operation.kind is PairKind.PRODUCT:
        product = inputs[0] * inputs[1] * constants["multiplier"]
        return _clipped(tf.round(product), constants)
    return _rounded_sum(constants, inputs)


PAIRS = {
    PairKind.DIFFERENCE: tf.subtract,
    PairKind.PRODUCT: tf.multiply,
    PairKind.MAXIMUM: tf.maximum,
    PairKind.MINIMUM: tf.minimum,
}


@constants_of.register
def _(operation: ir.Mean, graph: Graph) -> Numbers:
    if graph.is_float(operation):
        return {}
    source, output = graph.codes(operation.inputs[0]), graph.codes(operation.output)
    rows, columns, _ = graph.tensors[operation.inputs[0]].shape
    count = rows * columns
    multiplier, offset = arithmetic.mean_multiplier(source, output, count)
    return {
        "stored_zeros": np.float64(count * source.zero_point),
        "multiplier": multiplier,
        "offset": offset,
        "zero_point": np.float32(output.zero_point),
        **_ends(output),
    }


@compute.register
def _(operation: ir.Mean, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    if graph.is_float(operation):
        return tf.reduce_mean(source, [1, 2], keepdims=operation.keep_dims)
    sums = tf.reduce_sum(tf.cast(source, tf.float64), [1, 2], keepdims=operation.keep_dims)
    stored_sums = tf.cast(sums + constants["stored_zeros"], tf.float32)
    # Each result is rounded to float32 by itself, also where a compiler would fuse the two.
    wide = tf.cast(stored_sums, tf.float64) * tf.cast(constants["multiplier"], tf.float64)
    product = tf.cast(tf.cast(wide, tf.float32), tf.float64)
    stored = tf.cast(product + tf.cast(constants["offset"], tf.float64), tf.float32)
    return _clipped(tf.round(stored) - constants["zero_point"], constants)


@constants_of.register
def _(operation: ir.AveragePool, graph: Graph) -> Numbers:
    if graph.is_float(operation):
        return {}
    return {"zero_point": np.float32(graph.codes(operation.output).zero_point)}


@compute.register
def _(
    operation: ir.AveragePool, graph: Graph, constants: Constants, source: tf.Tensor
) -> tf.Tensor:
    window = operation.window
    if graph.is_float(operation):
        return tf.nn.avg_pool2d(source, operation.size, window.strides, window.padding)
    # Means of small integers: their product with the count is nearly the sum, which is an integer.
    inside = tf.ones_like(source[:1, :, :, :1])
    ones = tf.ones([*operation.size, 1, 1])
    counts = tf.nn.conv2d(inside, ones, window.strides, window.padding)
    stored = source + constants["zero_point"]
    means = tf.nn.avg_pool2d(stored, operation.size, window.strides, window.padding)
    totals = tf.round(means * counts)
    halves = tf.floor(counts / 2.0)
    rounded = tf.sign(totals) * tf.floor((tf.abs(totals) + halves + 0.25) / counts)
    return rounded - constants["zero_point"]


# -- what only moves codes -----------------------------------------------------------------------


@constants_of.register(ir.Concatenate)
@constants_of.register(ir.Island)
@constants_of.register(ir.MaxPool)
@constants_of.register(Movement)
@constants_of.register(ir.Pad)
@constants_of.register(ir.Reshape)
@constants_of.register(ir.Softmax)
def _(operation: ir.Operation, graph: Graph) -> Numbers:
    del operation, graph
    return {}


@compute.register
def _(operation: ir.MaxPool, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    window = operation.window
    return tf.nn.max_pool2d(source, operation.size, window.strides, window.padding)


@compute.register
def _(
    operation: ir.Concatenate, graph: Graph, constants: Constants, *parts: tf.Tensor
) -> tf.Tensor:
    return tf.concat(parts, operation.axis + 1)


@compute.register
def _(operation: ir.Pad, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return tf.pad(source, [(0, 0), *operation.margins])


@compute.register
def _(operation: ir.Reshape, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return tf.reshape(source, [-1, *graph.tensors[operation.output].shape])


@compute.register
def _(operation: Movement, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return operation.on_tensor(source)


@constants_of.register
def _(operation: Lookup, graph: Graph) -> Numbers:
    source, output = graph.codes(operation.inputs[0]), graph.codes(operation.output)
    codes = operation.table.astype(np.float32) - np.float32(output.zero_point)
    return {"codes": codes, "first": np.int32(FIRST + source.zero_point)}


@compute.register
def _(operation: Lookup, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return tf.gather(constants["codes"], tf.cast(source, tf.int32) + constants["first"])


# -- between codes and real values ---------------------------------------------------------------


@constants_of.register
def _(operation: ir.ShiftImage, graph: Graph) -> Numbers:
    change = _range_of(operation, graph).change
    unit = np.float32(graph.image(operation.inputs[0]).scale) * change.ratio
    return {
        # One and the same product for codes of real values, whose ties are those of QUANTIZE.
        "per_unit": np.asarray(np.float32(1.0) / unit.astype(np.float32), np.float32),
        "shift": np.asarray(change.shift, np.float32),
        **_ends(graph.codes(operation.output)),
    }


@compute.register
def _(operation: ir.ShiftImage, graph: Graph, constants: Constants, image: tf.Tensor) -> tf.Tensor:
    codes = tf.round((image - constants["shift"]) * constants["per_unit"])
    if _range_of(operation, graph).reversed_channels:
        codes = tf.reverse(codes, axis=[-1])
    return _clipped(codes, constants)


def _range_of(operation: ir.ShiftImage, graph: Graph) -> InputRange:
    return graph.image(operation.inputs[0]).range or PIXELS


@constants_of.register
def _(operation: ir.Dequantize, graph: Graph) -> Numbers:
    return {"scale": np.float32(graph.codes(operation.inputs[0]).scale)}


@compute.register
def _(operation: ir.Dequantize, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return source * constants["scale"]


@constants_of.register
def _(operation: ir.Quantize, graph: Graph) -> Numbers:
    codes = graph.codes(operation.output)
    low, high = np.float32(-128 - codes.zero_point), np.float32(127 - codes.zero_point)
    return {"inverse_scale": np.float32(1.0) / codes.scale, "lowest": low, "highest": high}


@compute.register
def _(operation: ir.Quantize, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return _clipped(tf.round(source * constants["inverse_scale"]), constants)


@compute.register
def _(operation: ir.Island, graph: Graph, constants: Constants, *sources: tf.Tensor) -> tf.Tensor:
    return call_on_floats(operation.node, inner_layer(operation.node.layer), list(sources))


# -- float operations ----------------------------------------------------------------------------

POINTWISE = {
    Pointwise.MAXIMUM: tf.maximum,
    Pointwise.MINIMUM: tf.minimum,
    Pointwise.PRODUCT: tf.multiply,
    Pointwise.SUM: tf.add,
}


@constants_of.register
def _(operation: ir.WithConstant, graph: Graph) -> Numbers:
    return {"constant": operation.constant}


@compute.register
def _(
    operation: ir.WithConstant, graph: Graph, constants: Constants, source: tf.Tensor
) -> tf.Tensor:
    return POINTWISE[operation.kind](source, constants["constant"])


@compute.register
def _(operation: ir.Softmax, graph: Graph, constants: Constants, source: tf.Tensor) -> tf.Tensor:
    return tf.nn.softmax(source)
