"""The ordinary route: a deployed graph as Keras operations that TensorFlow's converter reads."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations import graph as ir
from sat_tf.export.operations.arithmetic import transposed_size
from sat_tf.export.operations.exact import PAIRS, POINTWISE
from sat_tf.export.operations.graph import Activation, Codes, Graph, LinearKind, Window
from sat_tf.export.operations.lookup import FIRST, Lookup
from sat_tf.export.operations.movements import Movement
from sat_tf.export.operations.pairs import Pair
from sat_tf.graph.network import call_on_floats
from sat_tf.messages import list_problems
from sat_tf.qat.layout import inner_layer


def to_keras(model: keras.Model) -> keras.Model:
    """The deployed model as a Keras model of FakeQuant operations, for `tf.lite.TFLiteConverter`.

        converter = tf.lite.TFLiteConverter.from_keras_model(to_keras(model))
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()

    gives an int8 model with the codes of `sat_tf.export_tflite`, its input and output float32
    unless the converter is told otherwise. Use it where other tools need to see the graph, or add
    to it; `export_tflite` is faster, and `verify_tflite` reads only its files. Layers that are left
    float are part of it as they are; the converter may quantize them too, and what stands next to
    them may become float: it says nothing of it.

    Args:
        model: a model quantized by sat-tf, without float streams.

    Returns:
        A model for conversion only: its weights are constants. Input: pixels on the grid of the
        file, scale · (pixel - zero point); output:
        what the quantized model gives, on the grid of its codes.

    Raises:
        ValueError: the model has no integer form, or has float streams: the converter would
            quantize their sums on scales of its own. Lists every problem with its fix.
    """
    return keras_of_graph(deployed_graph(model))


def keras_of_graph(graph: Graph) -> keras.Model:
    """What `to_keras` gives, of a deployed graph.

    Raises:
        ValueError: it has float streams.
    """
    streams = list(_float_streams(graph))
    if streams:
        problems = [
            f"{name}: received a float stream, which the converter quantizes on scales of its own; "
            "requantize the model with stream_bits=8, or use sat_tf.export_tflite."
            for name in streams
        ]
        raise ValueError(list_problems(f"model {graph.name!r}", problems))
    images = [keras.Input(image.shape, name=image.name) for image in graph.images]
    tensors: dict[str, Any] = {tensor.name: tensor for tensor in images}
    for operation in _told_apart(graph.operations):
        inputs = [tensors[name] for name in operation.inputs]
        made = _Step(_function(operation, graph), name=operation.output)
        tensors[operation.output] = made(inputs)
    outputs = [tensors[name] for name in graph.outputs]
    if len(images) == len(outputs) == 1:
        return keras.Model(images[0], outputs[0], name=graph.name)
    return keras.Model(images, outputs, name=graph.name)


def _float_streams(graph: Graph) -> Iterator[str]:
    """The float tensors that come from codes alone, and are more than one of their tensors."""
    combining = (ir.Add, Pair, ir.Mean, ir.AveragePool, ir.Concatenate)
    behind_islands: set[str] = set()
    for operation in graph.operations:
        if not graph.is_float(operation):
            continue
        if isinstance(operation, ir.Island) or behind_islands.intersection(operation.inputs):
            behind_islands.add(operation.output)
        elif isinstance(operation, combining):
            yield operation.output


def _told_apart(operations: Iterable[ir.Operation]) -> Iterator[ir.Operation]:
    """The operations, with no two re-quantizations of a tensor alike before their own quantizers.

    The converter would merge these into one, which then has no codes and stays float. The same
    slope is written as 127 / 127, 126 / 126, and so on; it is exact in each, as they have no bias.
    """
    seen: collections.Counter[tuple[str, int]] = collections.Counter()
    for operation in operations:
        if isinstance(operation, ir.Linear) and _is_identity(operation):
            key = operation.inputs[0], operation.kernel.size
            code = int(operation.kernel.flat[0]) - seen[key]
            seen[key] += 1
            factor = operation.kernel.flat[0] / code
            scales = (operation.scales * factor).astype(np.float32)
            kernel = np.full_like(operation.kernel, code)
            operation = dataclasses.replace(operation, kernel=kernel, scales=scales)
        yield operation


def _is_identity(operation: ir.Linear) -> bool:
    depthwise = operation.kind is LinearKind.DEPTHWISE and operation.kernel.shape[:2] == (1, 1)
    return (
        depthwise
        and not np.any(operation.bias)
        and operation.kernel.size > 0
        and operation.kernel.flat[0] > 1
        and bool(np.all(operation.kernel == operation.kernel.flat[0]))
        and bool(np.all(operation.scales == operation.scales[0]))
    )


class _Step(keras.layers.Layer):
    """One operation of the graph."""

    def __init__(self, function: Callable[..., tf.Tensor], name: str) -> None:
        super().__init__(name=name, trainable=False)
        self._function = function

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        return self._function(*inputs)


def _fused(codes: Codes | None, tensor: tf.Tensor) -> tf.Tensor:
    """The activation that the converter fuses into the operation before it."""
    if codes is None:
        return tensor
    if codes.activation is Activation.RELU:
        return tf.nn.relu(tensor)
    if codes.activation is Activation.UNIT:
        return tf.clip_by_value(tensor, -1.0, 1.0)
    return tensor


def _stored_as(codes: Codes | None, tensor: tf.Tensor) -> tf.Tensor:
    """The FakeQuant that makes the converter store a tensor with these codes, if it has any."""
    if codes is None:
        return tensor
    low, high = ((end - codes.zero_point) * float(codes.scale) for end in (-128, 127))
    return tf.quantization.fake_quant_with_min_max_args(tensor, low, high, num_bits=8)


@functools.singledispatch
def _function(operation: ir.Operation, graph: Graph) -> Callable[..., tf.Tensor]:
    raise TypeError(f"{type(operation).__name__}: not an operation of the converter route.")


@_function.register
def _(operation: ir.Linear, graph: Graph) -> Callable[..., tf.Tensor]:
    scales = operation.scales.astype(np.float32)
    kernel = operation.kernel.astype(np.float32) * operation.along_channels(scales)
    product = _PRODUCTS[operation.kind]

    def run(source: tf.Tensor) -> tf.Tensor:
        return product(source, kernel, 127.0 * scales, operation.window) + bias.astype(np.float32)

    if operation.real:
        bias = operation.bias
        return run
    bias = operation.bias * (
        float(graph.codes(operation.inputs[0]).scale) * scales.astype(np.float64)
    )
    codes = graph.codes(operation.output)
    return lambda source: _stored_as(codes, _fused(codes, run(source)))


def _convolution(x: tf.Tensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> tf.Tensor:
    weights = _on_channels(np.moveaxis(kernel, 0, -1), ends)
    return tf.nn.conv2d(x, weights, window.strides, window.padding, dilations=window.dilation)


def _depthwise(x: tf.Tensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> tf.Tensor:
    # The converter takes the channels of a depthwise FakeQuant from this shape only; with another
    # one it writes wrong codes, or leaves the layer float.
    weights = _on_channels(kernel[:, :, np.newaxis, :], ends)
    channels = x.shape[-1]
    weights = tf.reshape(weights, [*kernel.shape[:2], channels, kernel.shape[-1] // channels])
    # tf.nn.depthwise_conv2d dilates by moving pixels around, which the converter leaves float.
    return tf.raw_ops.DepthwiseConv2dNative(
        input=x,
        filter=weights,
        strides=[1, *window.strides, 1],
        padding=window.padding,
        dilations=[1, *window.dilation, 1],
    )


def _transposed(x: tf.Tensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> tf.Tensor:
    # The FakeQuant has its channels last, where the operation does not want them.
    weights = tf.transpose(_on_channels(np.moveaxis(kernel, 0, -1), ends), (0, 1, 3, 2))
    size = transposed_size(x.shape[1:3], kernel.shape[1:3], window)
    shape = tf.stack([tf.shape(x)[0], *size, kernel.shape[0]])
    return tf.nn.conv2d_transpose(x, weights, shape, window.strides, window.padding)


def _matrix(x: tf.Tensor, kernel: np.ndarray, ends: np.ndarray, window: Window) -> tf.Tensor:
    if np.any(ends != ends[0]):
        # The converter takes one scale only for a matrix, so that it is a convolution of one pixel.
        pixels = tf.reshape(x, [-1, 1, 1, kernel.shape[1]])
        sums = _convolution(pixels, kernel[:, np.newaxis, np.newaxis, :], ends, window)
        return tf.reshape(sums, [-1, kernel.shape[0]])
    end = float(ends[0])
    weights = tf.quantization.fake_quant_with_min_max_args(
        tf.constant(kernel.T), -end, end, num_bits=8, narrow_range=True
    )
    return tf.matmul(x, weights)


def _on_channels(kernel: np.ndarray, ends: np.ndarray) -> tf.Tensor:
    return tf.quantization.fake_quant_with_min_max_vars_per_channel(
        tf.constant(kernel), -ends, ends, num_bits=8, narrow_range=True
    )


_PRODUCTS = {
    LinearKind.CONVOLUTION: _convolution,
    LinearKind.TRANSPOSED: _transposed,
    LinearKind.DEPTHWISE: _depthwise,
    LinearKind.FULLY_CONNECTED: _matrix,
}


@_function.register
def _(operation: ir.Add, graph: Graph) -> Callable[..., tf.Tensor]:
    codes = graph.tensors[operation.output].codes
    return lambda first, second: _stored_as(codes, _fused(codes, first + second))


@_function.register
def _(operation: ir.AddConstant, graph: Graph) -> Callable[..., tf.Tensor]:
    codes, end = graph.codes(operation.output), 127.0 * float(operation.scale)
    values = operation.constant.astype(np.float32) * operation.scale

    def add(source: tf.Tensor) -> tf.Tensor:
        constant = tf.quantization.fake_quant_with_min_max_args(
            tf.constant(values), -end, end, num_bits=8, narrow_range=True
        )
        return _stored_as(codes, _fused(codes, source + constant))

    return add


@_function.register
def _(operation: Pair, graph: Graph) -> Callable[..., tf.Tensor]:
    codes, function = graph.tensors[operation.output].codes, PAIRS[operation.kind]
    if operation.kind.keeps_grid:
        return function
    return lambda first, second: _stored_as(codes, _fused(codes, function(first, second)))


@_function.register
def _(operation: Movement, graph: Graph) -> Callable[..., tf.Tensor]:
    return operation.on_tensor


@_function.register
def _(operation: Lookup, graph: Graph) -> Callable[..., tf.Tensor]:
    source, output = graph.codes(operation.inputs[0]), graph.codes(operation.output)
    values = (operation.table.astype(np.float32) - output.zero_point) * output.scale

    def look_up(tensor: tf.Tensor) -> tf.Tensor:
        places = tf.cast(tf.round(tensor / source.scale), tf.int32) + (source.zero_point + FIRST)
        return _stored_as(output, tf.gather(tf.constant(values), places))

    return look_up


@_function.register
def _(operation: ir.Mean, graph: Graph) -> Callable[..., tf.Tensor]:
    codes = graph.tensors[operation.output].codes
    return lambda source: _stored_as(
        codes, tf.reduce_mean(source, [1, 2], keepdims=operation.keep_dims)
    )


@_function.register
def _(operation: ir.MaxPool, graph: Graph) -> Callable[..., tf.Tensor]:
    window = operation.window
    return lambda source: tf.nn.max_pool2d(source, operation.size, window.strides, window.padding)


@_function.register
def _(operation: ir.AveragePool, graph: Graph) -> Callable[..., tf.Tensor]:
    codes, window = graph.tensors[operation.output].codes, operation.window
    return lambda source: _stored_as(
        codes, tf.nn.avg_pool2d(source, operation.size, window.strides, window.padding)
    )


@_function.register
def _(operation: ir.Concatenate, graph: Graph) -> Callable[..., tf.Tensor]:
    codes = graph.tensors[operation.output].codes
    return lambda *parts: _stored_as(codes, tf.concat(parts, operation.axis + 1))


@_function.register
def _(operation: ir.Pad, graph: Graph) -> Callable[..., tf.Tensor]:
    return lambda source: tf.pad(source, [(0, 0), *operation.margins])


@_function.register
def _(operation: ir.Reshape, graph: Graph) -> Callable[..., tf.Tensor]:
    shape = graph.tensors[operation.output].shape
    return lambda source: tf.reshape(source, [-1, *shape])


@_function.register
def _(operation: ir.ShiftImage, graph: Graph) -> Callable[..., tf.Tensor]:
    codes = graph.codes(operation.output)
    return lambda source: _stored_as(codes, source)


@_function.register
def _(operation: ir.Dequantize, graph: Graph) -> Callable[..., tf.Tensor]:
    return tf.identity


@_function.register
def _(operation: ir.WithConstant, graph: Graph) -> Callable[..., tf.Tensor]:
    function, constant = POINTWISE[operation.kind], operation.constant.astype(np.float32)
    return lambda source: function(source, constant)


@_function.register
def _(operation: ir.Quantize, graph: Graph) -> Callable[..., tf.Tensor]:
    codes = graph.codes(operation.output)
    return lambda source: _stored_as(codes, source)


@_function.register
def _(operation: ir.Island, graph: Graph) -> Callable[..., tf.Tensor]:
    node = operation.node
    return lambda *sources: call_on_floats(node, inner_layer(node.layer), list(sources))


@_function.register
def _(operation: ir.Softmax, graph: Graph) -> Callable[..., tf.Tensor]:
    return tf.nn.softmax
