"""Which operations stand for a Keras layer: of linear layers, and of those that move codes."""

import dataclasses
import functools

import numpy as np
import tf_keras as keras

from sat_tf.export.lowering.builder import GraphBuilder
from sat_tf.export.operations import movements
from sat_tf.export.operations.linear import LinearKind
from sat_tf.export.operations.pools import MaxPool
from sat_tf.export.operations.shapes import Pad, Reshape
from sat_tf.export.operations.windows import transposed_size
from sat_tf.export.tflite.tensors import WHOLE, Window
from sat_tf.graph.operation_layers import (
    ChannelMax,
    DepthToSpace,
    Gather,
    Padding,
    Slice,
    SpaceToDepth,
)

# Layers of sequences, which are images with one row in the file.
ONE_DIMENSIONAL = (keras.layers.Conv1D, keras.layers.DepthwiseConv1D)  # Conv1DTranspose is a Conv1D


def linear_operation(
    layer: keras.layers.Layer, codes: np.ndarray, source: tuple[int, ...]
) -> tuple[LinearKind, np.ndarray, Window]:
    """The operation of a linear layer, its codes with the output channels last, and its window.

    Args:
        layer: the layer.
        codes: shaped like its kernel.
        source: shape of its input, without the batch dimension.
    """
    if isinstance(layer, keras.layers.Dense):
        if len(source) == 1:
            return LinearKind.FULLY_CONNECTED, codes, WHOLE
        return LinearKind.CONVOLUTION, codes[np.newaxis, np.newaxis], WHOLE
    sizes = [tuple(layer.strides), tuple(layer.dilation_rate)]
    one_row = isinstance(layer, ONE_DIMENSIONAL)
    if one_row:
        sizes, codes = [(1, *size) for size in sizes], codes[np.newaxis]
    window = Window(sizes[0], layer.padding.upper(), sizes[1])
    # A transposed convolution is a convolution to Keras's classes.
    if isinstance(layer, keras.layers.Conv1DTranspose | keras.layers.Conv2DTranspose):
        image = (1, *source) if one_row else source
        made = layer.compute_output_shape((None, *source))[1:]
        wanted = (1, *made) if one_row else tuple(made)
        usual = transposed_size(image[:2], codes.shape[:2], window)
        rows, columns = (int(size) - known for size, known in zip(wanted, usual, strict=False))
        window = dataclasses.replace(window, more=(rows, columns))
        codes, window = _for_xnnpack(np.swapaxes(codes, 2, 3), window, image[:2], wanted[:2])
        return LinearKind.TRANSPOSED, codes, window
    if isinstance(layer, keras.layers.DepthwiseConv1D | keras.layers.DepthwiseConv2D):
        return LinearKind.DEPTHWISE, codes.reshape(*codes.shape[:2], -1), window
    return LinearKind.CONVOLUTION, codes, window


def _for_xnnpack(
    codes: np.ndarray, window: Window, image: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[np.ndarray, Window]:
    """The same transposed convolution in a form that XNNPACK takes.

    With SAME it takes no kernel that is smaller than a stride, and leaves the operator to the
    builtin kernels, which round twice. Where nothing is cut off VALID says the same; elsewhere
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


@functools.singledispatch
def moved(
    layer: keras.layers.Layer, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    """Adds what a layer of data movement does; returns its tensor's name.

    Args:
        layer: the layer; one without an operation of its own gives the values another shape.
        builder: where the operations go.
        source: the tensor it reads.
        shape: of what it makes, without the batch dimension.
    """
    return builder.move(Reshape((source,), layer.name), shape)


@moved.register
def _(
    layer: keras.layers.MaxPooling2D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    window = Window(tuple(layer.strides), layer.padding.upper())
    return builder.move(MaxPool((source,), layer.name, tuple(layer.pool_size), window), shape)


@moved.register
def _(
    layer: keras.layers.GlobalMaxPooling2D,
    builder: GraphBuilder,
    source: str,
    shape: tuple[int, ...],
) -> str:
    rows, columns, channels = builder.tensors[source].shape
    name = layer.name if layer.keepdims else builder.between(f"{layer.name}_pixel")
    largest = MaxPool((source,), name, (rows, columns), WHOLE)
    pixel = builder.move(largest, (1, 1, channels))
    return pixel if layer.keepdims else builder.move(Reshape((pixel,), layer.name), shape)


@moved.register
def _(
    layer: keras.layers.ZeroPadding2D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    margins = (*map(tuple, layer.padding), (0, 0))
    return builder.move(Pad((source,), layer.name, margins), shape)


@moved.register
def _(
    layer: keras.layers.ZeroPadding1D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    length, channels = builder.tensors[source].shape
    image = builder.between(f"{layer.name}_input")
    builder.move(Reshape((source,), image), (1, length, channels))
    padded = builder.between(f"{layer.name}_image")
    margins = ((0, 0), tuple(layer.padding), (0, 0))
    builder.move(Pad((image,), padded, margins), (1, *shape))
    return builder.move(Reshape((padded,), layer.name), shape)


@moved.register
def _(
    layer: keras.layers.Cropping2D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    rows, columns = (_without(*margin) for margin in layer.cropping)
    kept = (rows, columns, (None, None, None))
    return builder.move(movements.Slice((source,), layer.name, kept), shape)


@moved.register
def _(
    layer: keras.layers.Cropping1D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    kept = (_without(*layer.cropping), (None, None, None))
    return builder.move(movements.Slice((source,), layer.name, kept), shape)


@moved.register
def _(layer: Slice, builder: GraphBuilder, source: str, shape: tuple[int, ...]) -> str:
    kept = tuple((first, stop, step) for first, stop, step in layer.slices)
    if not layer.dropped:
        return builder.move(movements.Slice((source,), layer.name, kept), shape)
    part = builder.between(f"{layer.name}_part")
    sizes = [range(size)[slice(*k)] for size, k in zip(_shape(builder, source), kept, strict=True)]
    builder.move(movements.Slice((source,), part, kept), tuple(map(len, sizes)))
    return builder.move(Reshape((part,), layer.name), shape)


@moved.register
def _(
    layer: keras.layers.Permute, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    return builder.move(movements.Transpose((source,), layer.name, tuple(layer.dims)), shape)


@moved.register
def _(
    layer: keras.layers.UpSampling2D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    rows, columns, _ = shape
    return builder.move(movements.Resize((source,), layer.name, (rows, columns)), shape)


@moved.register
def _(
    layer: keras.layers.Resizing, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    size = (int(layer.height), int(layer.width))
    return builder.move(movements.Resize((source,), layer.name, size), shape)


@moved.register
def _(
    layer: keras.layers.UpSampling1D, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    length, channels = _shape(builder, source)
    image = builder.between(f"{layer.name}_input")
    builder.move(Reshape((source,), image), (1, length, channels))
    made = builder.between(f"{layer.name}_image")
    builder.move(movements.Resize((image,), made, (1, length * int(layer.size))), (1, *shape))
    return builder.move(Reshape((made,), layer.name), shape)


@moved.register
def _(layer: DepthToSpace, builder: GraphBuilder, source: str, shape: tuple[int, ...]) -> str:
    return builder.move(movements.DepthToSpace((source,), layer.name, layer.block_size), shape)


@moved.register
def _(layer: SpaceToDepth, builder: GraphBuilder, source: str, shape: tuple[int, ...]) -> str:
    return builder.move(movements.SpaceToDepth((source,), layer.name, layer.block_size), shape)


@moved.register
def _(layer: Padding, builder: GraphBuilder, source: str, shape: tuple[int, ...]) -> str:
    margins = tuple((before, behind) for before, behind in layer.margins)
    return builder.move(Pad((source,), layer.name, margins), shape)


@moved.register
def _(layer: Gather, builder: GraphBuilder, source: str, shape: tuple[int, ...]) -> str:
    indices = tuple(layer.indices)
    return builder.move(movements.Gather((source,), layer.name, indices, layer.axis), shape)


@moved.register
def _(layer: ChannelMax, builder: GraphBuilder, source: str, shape: tuple[int, ...]) -> str:
    return builder.move(movements.ChannelMax((source,), layer.name), shape)


def _shape(builder: GraphBuilder, source: str) -> tuple[int, ...]:
    return builder.tensors[source].shape


def _without(first: int, last: int) -> tuple[int | None, int | None, None]:
    """A slice without so many values at its ends."""
    return (first or None, -last or None, None)
