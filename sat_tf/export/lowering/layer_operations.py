"""The operations of a Keras layer: linear ones, normalizations, and those that move codes."""

import dataclasses

import numpy as np
import tf_keras as keras

from sat_tf.export.operations.builder import Affine, GraphBuilder
from sat_tf.export.operations.table import MOVES
from sat_tf.export.operations.windows import LinearKind, transposed_size
from sat_tf.export.tflite.tensors import WHOLE, Window
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import KernelForm


def affine(norm: keras.layers.Layer) -> Affine:
    """Slope γ / sqrt(σ² + ε), offset β - slope · μ; γ = 1 and β = 0 where it has none."""
    mean = norm.moving_mean.numpy().astype(np.float64)
    variance = norm.moving_variance.numpy().astype(np.float64)
    gamma = 1.0 if norm.gamma is None else norm.gamma.numpy().astype(np.float64)
    beta = 0.0 if norm.beta is None else norm.beta.numpy().astype(np.float64)
    slope = gamma / np.sqrt(variance + norm.epsilon)
    return Affine(slope, beta - slope * mean, mean, np.sqrt(np.maximum(variance, 0.0)))


def linear_operation(
    layer: keras.layers.Layer, codes: np.ndarray, source: tuple[int, ...]
) -> tuple[LinearKind, np.ndarray, Window]:
    """The operation of a linear layer, its codes with the output channels last, and its window.

    Args:
        layer: the layer.
        codes: shaped like its kernel.
        source: shape of its input, without the batch dimension.
    """
    kernel = layer_kinds.quantized_kernel(layer)
    if kernel is None or kernel.form is KernelForm.DENSE:
        if len(source) == 1:
            return LinearKind.FULLY_CONNECTED, codes, WHOLE
        return LinearKind.CONVOLUTION, codes[np.newaxis, np.newaxis], WHOLE
    sizes = [tuple(layer.strides), tuple(layer.dilation_rate)]
    one_row = kernel.one_dimensional
    if one_row:
        sizes, codes = [(1, *size) for size in sizes], codes[np.newaxis]
    window = Window(sizes[0], layer.padding.upper(), sizes[1])
    if kernel.transposed:
        image = (1, *source) if one_row else source
        made = layer.compute_output_shape((None, *source))[1:]
        wanted = (1, *made) if one_row else tuple(made)
        usual = transposed_size(image[:2], codes.shape[:2], window)
        rows, columns = (int(size) - known for size, known in zip(wanted, usual, strict=False))
        window = dataclasses.replace(window, more=(rows, columns))
        codes, window = _for_xnnpack(np.swapaxes(codes, 2, 3), window, image[:2], wanted[:2])
        return LinearKind.TRANSPOSED, codes, window
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
    """Adds what a layer of data movement does; returns its tensor's name.

    Args:
        layer: the layer.
        builder: where the operations go.
        source: the tensor it reads.
        shape: of what it makes, without the batch dimension.
    """
    for move in layer_kinds.moves_of(layer, builder.tensors[source].shape, shape):
        name = builder.between(f"{layer.name}_{move.suffix}") if move.suffix else layer.name
        operation = MOVES[move.operator].of_move(source, name, *move.arguments)
        source = builder.move(operation, shape if move.shape is None else move.shape)
    return source
