"""The route by TensorFlow's converter: a deployed graph as real values and FakeQuants."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.operations import conversions, native, pairs, pools, tabled
from sat_tf.exact.operations.graph import Graph, wide_tensors
from sat_tf.exact.operations.linear import Linear, map_linear
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.windows import LinearKind, transposed_size
from sat_tf.exact.tflite.tensors import Activation, dequantized
from sat_tf.export.lowering.float_layer import FloatLayer, run_converter
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from sat_tf.messages import ModelError, did_you_mean, first_ones

# The statement of an export's report on the file of the second route.
CONVERTED = (
    "route='converter': the file is not certified; TensorFlow's converter has written it from the "
    "same graph, and has decided which operators it leaves float. verify_tflite reads files of "
    "route='direct' only"
)


def to_keras(model: keras.Model) -> keras.Model:
    """Builds the deployed model from FakeQuant operations, for `tf.lite.TFLiteConverter`.

        converter = tf.lite.TFLiteConverter.from_keras_model(to_keras(model))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()

    gives an int8 model with the codes of `sat_tf.export_tflite(..., pack="none")`, its input and
    output float32 unless the converter is told otherwise. Use it where other tools need to see the
    graph, or add to it; `export_tflite` is faster, and `verify_tflite` reads only its files. Layers
    that are left float are part of it as they are; the converter may quantize them too, and may
    leave operations next to them float, without saying so.

    Args:
        model: a model quantized by sat-tf, without float streams.

    Returns:
        A model for conversion only: its weights are constants. Input: pixels on the grid of the
        file, scale · (pixel - zero point); output: the quantized model's, on the grid of its
        codes.

    Raises:
        ValueError: the model has no integer form, or has float streams: the converter would
            quantize their sums on its own scales. Lists every problem with its fix.
    """
    return keras_of_graph(with_own_names(deployed_graph(Network(model), pack="none")))


def keras_of_graph(graph: Graph) -> keras.Model:
    """Builds the model of `to_keras` for a deployed graph."""
    # A float stream mixes values of tensors of codes, before any layer left float.
    behind_float_layers, problems = set[str](), []
    for operation in filter(lambda operation: operation.is_float(graph), graph.operations):
        if operation.float_layer is not None or behind_float_layers.intersection(operation.inputs):
            behind_float_layers.add(operation.output)
        elif len(operation.inputs) > 1 or operation.averages:
            problems.append(
                f"{operation.output}: received a float stream, which the converter quantizes on "
                "scales of its own; requantize the model with stream_bits=8, or use "
                "sat_tf.export_tflite."
            )
    problems += [
        f"{operation.output}: received {', '.join(operation.operators)}, which TensorFlow's "
        "converter does not write from a model of sat-tf; use sat_tf.export_tflite."
        for operation in graph.operations
        if type(operation) not in ON_REALS
    ]
    if wide := wide_tensors(graph):
        problems.append(
            f"{first_ones(wide)}: received codes of 16 bits, which TensorFlow's converter does not "
            "write from a model of sat-tf; use sat_tf.export_tflite."
        )
    if problems:
        raise ModelError(graph.name, problems)
    keys = graph.keys[0] or tuple(image.name for image in graph.images)
    images = {
        image.name: keras.Input(
            image.shape, name=key, dtype=image.type if image.is_kept else "float32"
        )
        for image, key in zip(graph.images, keys, strict=True)
    }
    tensors: dict[str, Any] = dict(images)
    for operation in map_linear(graph.operations, _without_twins()):
        layer = _FakeQuantized(operation, graph)
        tensors[operation.output] = layer([tensors[name] for name in operation.inputs])
    outputs, inputs = [tensors[name] for name in graph.outputs], [*images.values()]
    if len(inputs) == len(outputs) == 1:
        return keras.Model(inputs[0], outputs[0], name=graph.name)
    return keras.Model(inputs, outputs, name=graph.name)


def _without_twins() -> Callable[[Linear], Linear]:
    """Returns a function that makes equal requantizations of one tensor differ, one by one.

    The converter would merge these into one, which then has no codes and stays float. The same
    slope is written as 127 / 127, 126 / 126, and so on; each is exact, as there is no bias.
    """
    seen: collections.Counter[tuple[str, int]] = collections.Counter()

    def apart(linear: Linear) -> Linear:
        codes, scales = np.unique(linear.kernel), np.unique(linear.scales)
        has_one_slope = linear.is_pointwise and len(codes) == len(scales) == 1 and codes[0] > 1
        if not has_one_slope or np.any(linear.bias):
            return linear
        twins = linear.inputs[0], linear.kernel.size
        code = int(codes[0]) - seen[twins]
        seen[twins] += 1
        scales = (linear.scales * (codes[0] / code)).astype(np.float32)
        return dataclasses.replace(linear, kernel=np.full_like(linear.kernel, code), scales=scales)

    return apart


class _FakeQuantized(keras.layers.Layer):
    """One operation, with the FakeQuant that makes TensorFlow's converter store its codes.

    The converter fuses the activation before a FakeQuant into the operator.
    """

    def __init__(self, operation: Operation, graph: Graph) -> None:
        super().__init__(name=operation.output, trainable=False)
        self._operation, self._graph = operation, graph

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        operation, codes = self._operation, self._graph.tensors[self._operation.output].codes
        values = ON_REALS[type(operation)](operation, self._graph, *inputs)
        # Selected values keep their grid by themselves, except where several tensors are joined.
        if codes is None or (operation.selects and not operation.joins):
            return values
        fuses = type(operation) in _FUSING
        if fuses and codes.activation is Activation.RELU:
            values = tf.nn.relu(values)
        elif fuses and codes.activation is Activation.UNIT:
            values = tf.clip_by_value(values, -1.0, 1.0)
        low, high = ((end - codes.zero_point) * float(codes.scale) for end in (-128, 127))
        return tf.quantization.fake_quant_with_min_max_args(values, low, high, num_bits=8)


# -- operations on real values ------------------------------------------------------------------


def _on_one_scale(values: np.ndarray, end: float) -> tf.Tensor:
    return tf.quantization.fake_quant_with_min_max_args(
        tf.constant(values), -end, end, num_bits=8, narrow_range=True
    )


def _linear(op: Linear, graph: Graph, x: tf.Tensor) -> tf.Tensor:
    """Computes a linear layer, with a FakeQuant from which the converter takes its codes."""
    kernel, window, scales, bias = op.real_kernel, op.window, op.scales.astype(np.float32), op.bias
    if not op.real:
        bias = bias * (float(graph.codes(op.inputs[0]).scale) * scales.astype(np.float64))
    bias, ends = bias.astype(np.float32), 127.0 * scales
    is_matrix, is_depthwise = (
        op.kind is member for member in (LinearKind.FULLY_CONNECTED, LinearKind.DEPTHWISE)
    )
    if is_matrix and np.all(ends == ends[0]):
        return tf.matmul(x, _on_one_scale(kernel.T, float(ends[0]))) + bias
    if is_matrix:
        # The converter takes only one scale for a matrix, so this is a convolution of one pixel.
        x = tf.reshape(x, [-1, 1, 1, kernel.shape[1]])
        kernel = kernel[:, np.newaxis, np.newaxis, :]
    # The converter takes the channels of a depthwise FakeQuant from this shape only; with another
    # one it writes wrong codes, or leaves the layer float.
    channels_last = kernel[:, :, np.newaxis, :] if is_depthwise else np.moveaxis(kernel, 0, -1)
    weights = tf.quantization.fake_quant_with_min_max_vars_per_channel(
        tf.constant(channels_last), -ends, ends, num_bits=8, narrow_range=True
    )
    if is_depthwise:
        channels = x.shape[-1]
        # tf.nn.depthwise_conv2d dilates by moving pixels around, which the converter leaves float.
        values = tf.raw_ops.DepthwiseConv2dNative(
            input=x,
            filter=tf.reshape(weights, [*kernel.shape[:2], channels, kernel.shape[-1] // channels]),
            strides=[1, *window.strides, 1],
            padding=window.padding,
            dilations=[1, *window.dilation, 1],
        )
    elif op.kind is LinearKind.TRANSPOSED:
        size = transposed_size(x.shape[1:3], kernel.shape[1:3], window)
        values = tf.nn.conv2d_transpose(
            x,
            tf.transpose(weights, (0, 1, 3, 2)),  # a FakeQuant has its channels last
            tf.stack([tf.shape(x)[0], *size, len(kernel)]),
            window.strides,
            window.padding,
        )
    else:
        values = tf.nn.conv2d(x, weights, window.strides, window.padding, dilations=window.dilation)
    return (tf.reshape(values, [-1, len(kernel)]) if is_matrix else values) + bias


def _looked_up(op: native.Lookup, graph: Graph, x: tf.Tensor) -> tf.Tensor:
    source, output = graph.codes(op.inputs[0]), graph.codes(op.output)
    places = tf.cast(tf.round(x / source.scale), tf.int32) + (
        source.zero_point + len(op.table) // 2
    )
    return tf.gather(tf.constant(dequantized(op.table, output)), places)


def _rows(op: native.RowLookup, graph: Graph, ids: tf.Tensor) -> tf.Tensor:
    scale = graph.codes(op.output).scale
    table = _on_one_scale(op.table * scale, 127.0 * float(scale))
    return tf.gather(table, tf.cast(ids, tf.int32))


def _pair(op: pairs.Pair, graph: Graph, *tensors: tf.Tensor) -> tf.Tensor:
    if op.constant is None:
        return _FUNCTIONS[op.kind.value](*tensors)
    values, grid = op.constant.real, op.constant.grid
    if grid:
        values = _on_one_scale(values[0], 127.0 * float(grid.scale))
    return _FUNCTIONS[op.kind.value](*tensors, values)


def _tabled(op: tabled.Tabled, graph: Graph, *tensors: tf.Tensor) -> tf.Tensor:
    constants = (constant.real for constant in op.constants if constant)
    return _FUNCTIONS[op.name](*tensors, *constants, **op.options)


# TensorFlow's functions, by the names of operators.
_FUNCTIONS: Mapping[str, Callable[..., tf.Tensor]] = {
    "MAXIMUM": tf.maximum,
    "MINIMUM": tf.minimum,
    "MUL": tf.multiply,
    "ADD": tf.add,
    "SUB": tf.subtract,
    "ABS": tf.abs,
    "LOGISTIC": tf.math.sigmoid,
    "TANH": tf.math.tanh,
    "ELU": tf.nn.elu,
    "GELU": tf.nn.gelu,
    "HARD_SWISH": lambda x: x * tf.nn.relu6(x + 3.0) / 6.0,
    "LEAKY_RELU": tf.nn.leaky_relu,
    "PRELU": lambda x, slopes: tf.where(x < 0.0, slopes * x, x),
    "RSQRT": tf.math.rsqrt,
    "BATCH_MATMUL": lambda x, y, adjX, adjY: tf.linalg.matmul(
        x, y, transpose_a=adjX, transpose_b=adjY
    ),
    "STRIDED_SLICE": lambda x, *at, beginMask, endMask: tf.strided_slice(
        x, *at, beginMask, endMask
    ),
    "TRANSPOSE": tf.transpose,
    "RESIZE_NEAREST_NEIGHBOR": lambda x, size, **_: tf.image.resize(x, size, "nearest"),
    "DEPTH_TO_SPACE": lambda x, blockSize: tf.nn.depth_to_space(x, blockSize),
    "SPACE_TO_DEPTH": lambda x, blockSize: tf.nn.space_to_depth(x, blockSize),
    "GATHER": lambda x, indices, axis: tf.gather(x, indices, axis=axis),
    "REDUCE_MAX": lambda x, axes, keepDims: tf.reduce_max(x, axes, keepDims),
    "PAD": tf.pad,
    "CONCATENATION": lambda *tensors, axis: tf.concat(tensors, axis),
}
_FUSING = (Linear, pairs.Pair)  # operations with a fused activation
# The functions of the operations that layers become: from the operation, its graph and inputs.
ON_REALS: dict[type[Operation], Callable[..., tf.Tensor]] = {
    conversions.ShiftImage: lambda op, graph, x: x,
    conversions.Quantize: lambda op, graph, x: x,
    conversions.Dequantize: lambda op, graph, x: tf.identity(x),
    Linear: _linear,
    pairs.Pair: _pair,
    pools.Mean: lambda op, graph, x: tf.reduce_mean(x, [1, 2], keepdims=op.keep_dims),
    pools.MaxPool: lambda op, graph, x: tf.nn.max_pool2d(
        x, op.size, op.window.strides, op.window.padding
    ),
    pools.AveragePool: lambda op, graph, x: tf.nn.avg_pool2d(
        x, op.size, op.window.strides, op.window.padding
    ),
    pools.ResizeBilinear: lambda op, graph, x: tf.compat.v1.image.resize_bilinear(
        x, op.size, op.align_corners, half_pixel_centers=op.half_pixel_centers
    ),
    native.Softmax: lambda op, graph, x: tf.nn.softmax(x),
    native.Lookup: _looked_up,
    native.RowLookup: _rows,
    FloatLayer: lambda op, graph, *inputs: op.function()(*inputs),
    tabled.Computed: _tabled,
    tabled.Moved: _tabled,
    tabled.Reshape: lambda op, graph, x: tf.reshape(x, [-1, *graph.tensors[op.output].shape]),
}


# -- the file ------------------------------------------------------------------------------------


def route_problems(route: object, settings: FileSettings, *, has_metadata: bool) -> list[str]:
    """Lists why a file cannot be written by a route, with the fix."""
    if not isinstance(route, str) or route not in ("direct", "converter"):
        hint = did_you_mean(str(route), ("direct", "converter"))
        return [f"route: received {route!r}, expected 'direct' or 'converter'. {hint}"]
    if route == "direct":
        return []
    plain, direct_settings = FileSettings(), []
    for name in ("pack", "float_head", "resizable", "output_type"):
        value, default = getattr(settings, name), getattr(plain, name)
        if value != default and (name, value) != ("pack", "none"):
            direct_settings.append(f"{name}={value!r}")
    if settings.states:
        direct_settings.append("states")
    if has_metadata:
        direct_settings.append("labels, a description or preprocessing")
    return [
        f"route='converter' with {setting}: received a setting of route='direct'; leave one out."
        for setting in direct_settings
    ]


def converted(graph: Graph) -> bytes:
    """Returns the file that TensorFlow's converter writes from a deployed graph."""
    converter = tf.lite.TFLiteConverter.from_keras_model(keras_of_graph(graph))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    types = sorted({image.type for image in graph.images if not image.is_kept})
    try:
        if len(types) > 1:
            raise ValueError(f"it has one type for all inputs, and these are {' and '.join(types)}")
        if types:
            converter.inference_input_type = tf.as_dtype(types[0])
        return run_converter(converter)
    except ValueError as error:
        raise ModelError(
            graph.name,
            f"received a model that TensorFlow's converter does not convert ({error}), expected "
            "one that it does; use route='direct'.",
        ) from error
