"""Layers of a quantized model in a graph: codes of weights, grids of outputs, operations."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.grid import LARGEST_INT8
from sat_tf.export.operations import movements
from sat_tf.export.operations.builder import Affine, GraphBuilder
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.pools import MaxPool
from sat_tf.export.operations.windows import LinearKind, ends_early, placement, transposed_size
from sat_tf.export.tflite.tensors import WHOLE, Codes, Window
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import KernelForm
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import ActivationQuantizer


class KernelOutline(NamedTuple):
    """Placeholders for the codes and scales of a layer where only their number matters."""

    codes: np.ndarray  # Integers, shaped like the Keras kernel.
    scales: np.ndarray  # One an output channel.


def integer_kernel(wrapper: QuantizedLayer) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of a layer's effective weights: Ξ = code · scale.

    They come from its quantizer, and are checked here, in the one place that files get them from.
    The codes are shaped like the Keras kernel, with a scale for each output channel.
    """
    quantizer, layer = wrapper.quantize_config.weights, wrapper.layer
    if quantizer is None or quantizer.num_bits is None:
        raise TypeError(f"{layer.name}: received weights without codes, expected quantized ones.")
    latent = tf.convert_to_tensor(layer_kinds.kernel_of(layer), tf.float32)
    weights = quantizer.integer_weights(latent, wrapper.kernel_variables)
    effective = wrapper.effective_kernel()
    codes, scales = weights.codes.numpy(), tf.cast(weights.scales, tf.float64).numpy()
    # TensorFlow takes a large layer to all cores. Both sides are a few float32 roundings away from
    # the exact product, and the smallest scale is a 127th of the largest weight or more.
    products = tf.cast(weights.codes, tf.float32) * tf.constant(scales, tf.float32)
    size = tf.abs(effective)
    limit = 1e-5 * size + 1e-6 * tf.reduce_max(size)
    if not tf.reduce_all(tf.abs(products - effective) <= limit):
        raise ArithmeticError(f"{layer.name}: codes and scales do not give the effective weights.")
    largest = int(np.max(np.abs(codes), initial=0))
    if largest > LARGEST_INT8:
        raise ArithmeticError(
            f"{layer.name}: received codes up to {largest}, expected at most {LARGEST_INT8} to fit "
            "int8."
        )
    return codes, np.array(layer_kinds.along_channels(layer, scales, codes.shape), np.float64)


def codes_of(
    quantizer: ActivationQuantizer, variables: Mapping[str, Any], *, unit_free: bool
) -> Codes:
    """Storage of what a quantizer makes.

    A range that is symmetric around 0 is stored as it is: at 8 bits int8 saturates at its top,
    and one code below its bottom, at -128. Any other one is stored with its highest code at 127:
    int8 saturates exactly where the quantizer clips at the top, and a fused activation, a table or
    a QUANTIZE where it clips at the bottom.

    With fewer bits, and `unit_free` as only linear layers read it, a range with two ends is stored
    so that its larger end is at 1 or -1, where a fused activation clips, and the smaller one at the
    end of int8, which saturates there.
    """
    found = quantizer.code_range(variables)
    scale, (lowest, highest) = np.float32(found.scale), found.ends
    fills_int8 = highest - lowest == 2 * LARGEST_INT8 + 1
    has_two_ends = quantizer.is_symmetric and lowest < 0
    if not has_two_ends or fills_int8:
        return Codes(scale, found.zero_point, lowest=LARGEST_INT8 - (highest - lowest))
    if quantizer.is_unit:
        return Codes(scale, 0, lowest, highest)
    if unit_free:
        larger = max(-lowest, highest)
        # The zero point by which the smaller end is at that of int8.
        at_end = {0: 0, 1: -LARGEST_INT8 - 1 - lowest, -1: LARGEST_INT8 - highest}
        zero_point = at_end[int(np.sign(highest + lowest))]
        return Codes(
            np.float32(1.0 / larger),
            zero_point,
            zero_point + lowest,
            zero_point + highest,
            unit=larger * float(scale),
        )
    return Codes(scale, 0)


def observed_range(wrapper: QuantizedLayer) -> tuple[float, float] | None:
    """The range that the observer of the layer's output has seen; None without one."""
    quantizer = wrapper.quantize_config.output
    if quantizer is None or not quantizer.observes_range:
        return None
    variables = {name: float(v.numpy()) for name, v in wrapper.output_variables.items()}
    if variables["observations"] == 0.0:
        return None
    return variables["lowest"], variables["highest"]


# -- operations ---------------------------------------------------------------------------------


def affine(norm: keras.layers.Layer) -> Affine:
    """Slope γ / sqrt(σ² + ε), offset β - slope · μ; γ = 1 and β = 0 where it has none."""
    statistics = Statistics.of(norm)
    mean, variance = statistics.mean, statistics.variance
    gamma = 1.0 if norm.gamma is None else norm.gamma.numpy().astype(np.float64)
    beta = 0.0 if norm.beta is None else norm.beta.numpy().astype(np.float64)
    slope = gamma / np.sqrt(statistics.square)
    return Affine(slope, beta - slope * mean, mean, np.sqrt(np.maximum(variance, 0.0)))


def linear_operation(
    layer: keras.layers.Layer, codes: np.ndarray, source: tuple[int, ...]
) -> tuple[LinearKind, np.ndarray, Window]:
    """The operation of a linear layer, its codes with the output channels last, and its window."""
    kernel = layer_kinds.quantized_kernel(layer)
    if kernel is None or kernel.form is KernelForm.DENSE:
        if len(source) == 1:
            return LinearKind.FULLY_CONNECTED, codes, WHOLE
        return LinearKind.CONVOLUTION, codes[np.newaxis, np.newaxis], WHOLE
    sizes = [tuple(layer.strides), tuple(layer.dilation_rate)]
    one_row, image = kernel.one_dimensional, source
    if one_row:
        sizes, codes, image = [(1, *size) for size in sizes], codes[np.newaxis], (1, *source)
    window = Window(sizes[0], layer.padding.upper(), sizes[1])
    if kernel.transposed:
        wanted = tuple(layer.compute_output_shape((None, *source))[1:])
        if one_row:
            wanted = (1, *wanted)
        usual = transposed_size(image[:2], codes.shape[:2], window)
        rows, columns = (int(size) - known for size, known in zip(wanted, usual, strict=False))
        window = dataclasses.replace(window, more=(rows, columns))
        codes, window = _for_xnnpack(np.swapaxes(codes, 2, 3), window, image[:2], wanted[:2])
        return LinearKind.TRANSPOSED, codes, window
    # VALID for SAME that pads nothing: earlier releases of XNNPACK compute some of SAME wrongly.
    axes = zip(image, codes.shape[:2], window.strides, window.dilation, strict=False)
    pads = any(any(placement(*axis, window.padding)[0]) for axis in axes)
    if not pads and ends_early(image[:2], codes.shape[:2], window):
        window = dataclasses.replace(window, padding="VALID")
    if kernel.depthwise:
        return LinearKind.DEPTHWISE, codes.reshape(*codes.shape[:2], -1), window
    return LinearKind.CONVOLUTION, codes, window


def _for_xnnpack(
    codes: np.ndarray, window: Window, image: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[np.ndarray, Window]:
    """The same transposed convolution in a form that XNNPACK takes.

    With SAME it takes no kernel that is smaller than a stride, and leaves the operator to the
    builtin kernels, which round twice. Where nothing is cut off, VALID is equivalent; elsewhere
    zeros around the kernel make it as large as the stride.
    """
    axes = list(zip(image, codes.shape[:2], window.strides, wanted, strict=True))
    if window.padding == "VALID" or all(kernel >= stride for _, kernel, stride, _ in axes):
        return codes, window
    if not any(_cut_off(size, kernel, stride, made) for size, kernel, stride, made in axes):
        window = dataclasses.replace(window, padding="VALID", more=(0, 0))
        usual = transposed_size(image, codes.shape[:2], window)
        rows, columns = (made - known for made, known in zip(wanted, usual, strict=True))
        return codes, dataclasses.replace(window, more=(rows, columns))
    margins = [_zeros_around(*axis) for axis in axes]
    return np.pad(codes, (*margins, (0, 0), (0, 0))), window


def _cut_off(size: int, kernel: int, stride: int, made: int) -> int:
    """How much of what a kernel reaches is beyond the ends of the output: TensorFlow's rule."""
    return max((size - 1) * stride + kernel - made, 0)


def _zeros_around(size: int, kernel: int, stride: int, made: int) -> tuple[int, int]:
    """How many zeros in front of a kernel and behind it make it no smaller than the stride."""
    if kernel >= stride:
        return 0, 0
    start = _cut_off(size, kernel, stride, made) // 2
    # The zeros change what SAME cuts off at the start, by just as many as are put in front.
    return next(
        (front, length - kernel - front)
        for length in range(stride, 3 * stride + 1)
        for front in range(length - kernel + 1)
        if _cut_off(size, length, stride, made) // 2 == start + front
    )


def moved(
    layer: keras.layers.Layer, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    """Adds what a layer of data movement does; returns its tensor's name."""
    for move in layer_kinds.moves_of(layer, builder.tensors[source].shape, shape):
        name = builder.between(f"{layer.name}_{move.suffix}") if move.suffix else layer.name
        if move.operator == MaxPool.operator.name:
            size, strides, padding = move.arguments
            operation: Operation = MaxPool((source,), name, size, Window(strides, padding))
        else:
            read = builder.shape(source)
            operation = movements.moved(move.operator, source, name, read, *move.arguments)
        source = builder.move(operation, shape if move.shape is None else move.shape)
    return source
