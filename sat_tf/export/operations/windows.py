"""Kernels moved over images: where they lie, and sums of products, in NumPy and in TensorFlow."""

from collections.abc import Iterator, Sequence

import numpy as np

from sat_tf.export.operations.operation import TfTensor
from sat_tf.export.tflite.tensors import Window


def placement(
    length: int, kernel: int, stride: int, dilation: int, padding: str
) -> tuple[tuple[int, int], int]:
    """Margins of one axis, and how many windows fit: TensorFlow's rule."""
    extent = (kernel - 1) * dilation + 1
    if padding == "VALID":
        return (0, 0), (length - extent) // stride + 1
    outputs = -(-length // stride)
    total = max((outputs - 1) * stride + extent - length, 0)
    return (total // 2, total - total // 2), outputs


def transposed_size(sizes: Sequence[int], kernel: Sequence[int], window: Window) -> tuple[int, ...]:
    """Rows and columns that a transposed convolution makes of an image.

    Keras's rule without `output_padding`, plus `window.more`.
    """
    extra = [max(length - stride, 0) for length, stride in zip(kernel, window.strides, strict=True)]
    return tuple(
        size * stride + (longer if window.padding == "VALID" else 0) + more
        for size, stride, longer, more in zip(
            sizes, window.strides, extra, window.more, strict=True
        )
    )


def taps(
    values: np.ndarray, size: tuple[int, ...], window: Window, fill: float
) -> Iterator[np.ndarray]:
    """For every position in the kernel, the values that it meets."""
    margins, outputs = zip(
        *(
            placement(length, kernel, stride, dilation, window.padding)
            for length, kernel, stride, dilation in zip(
                values.shape[1:3], size, window.strides, window.dilation, strict=True
            )
        ),
        strict=True,
    )
    if any(any(margin) for margin in margins):
        values = np.pad(values, ((0, 0), *margins, (0, 0)), constant_values=fill)
    for row in range(size[0]):
        for column in range(size[1]):
            slices = (
                slice(
                    start * dilation,
                    start * dilation + (output - 1) * stride + 1,
                    stride,
                )
                for start, dilation, output, stride in zip(
                    (row, column), window.dilation, outputs, window.strides, strict=True
                )
            )
            yield values[(slice(None), *slices)]


def patches(values: np.ndarray, size: tuple[int, ...], window: Window) -> np.ndarray:
    """(n, rows, columns, k_rows · k_columns · channels), in the order of the kernel's axes."""
    views = list(taps(values, size, window, fill=0))
    return views[0] if len(views) == 1 else np.concatenate(views, axis=-1)


def depthwise_products(values: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    """Every channel with its own kernels, (rows, columns, outputs)."""
    multiplier = kernel.shape[-1] // values.shape[-1]
    total: np.ndarray | None = None
    weights = kernel.reshape(-1, kernel.shape[-1])
    for tap, view in zip(weights, taps(values, kernel.shape[:2], window, fill=0), strict=True):
        repeated = np.repeat(view, multiplier, axis=-1) if multiplier > 1 else view
        product = repeated * tap
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ValueError("received an empty kernel, expected at least one weight.")
    return total


def transposed_products(values: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    """Every pixel puts its multiple of the kernel into the output, strides apart."""
    sizes = values.shape[1:3]
    full = [
        (size - 1) * stride + length
        for size, stride, length in zip(sizes, window.strides, kernel.shape[1:3], strict=True)
    ]
    wanted = transposed_size(sizes, kernel.shape[1:3], window)
    total = np.zeros((len(values), *map(max, full, wanted), len(kernel)), values.dtype)
    for row in range(kernel.shape[1]):
        for column in range(kernel.shape[2]):
            places = tuple(
                slice(start, start + (size - 1) * stride + 1, stride)
                for start, size, stride in zip((row, column), sizes, window.strides, strict=True)
            )
            total[(slice(None), *places)] += values @ kernel[:, row, column].T
    # What SAME leaves out at the ends, as for the convolution that this one is the transpose of.
    rows, columns = (max(a - b, 0) // 2 for a, b in zip(full, wanted, strict=True))
    return total[:, rows : rows + wanted[0], columns : columns + wanted[1]]


def convolved(values: TfTensor, kernel: TfTensor, window: Window) -> TfTensor:
    """In TensorFlow, with a kernel (rows, columns, inputs, outputs)."""
    import tensorflow as tf

    return tf.nn.conv2d(values, kernel, window.strides, window.padding, dilations=window.dilation)


def depthwise_convolved(values: TfTensor, kernel: TfTensor, window: Window) -> TfTensor:
    """In TensorFlow, with a kernel (rows, columns, inputs, multiplier)."""
    import tensorflow as tf

    rows, columns = window.strides
    if rows == columns:
        return tf.nn.depthwise_conv2d(
            values, kernel, [1, rows, columns, 1], window.padding, dilations=window.dilation
        )
    # No kernel takes such strides: compute all windows, and keep some.
    margins = [
        placement(*axis, window.padding)[0]
        for axis in zip(
            values.shape[1:3], kernel.shape[:2], window.strides, window.dilation, strict=True
        )
    ]
    padded = tf.pad(values, [(0, 0), *margins, (0, 0)])
    every = tf.nn.depthwise_conv2d(padded, kernel, [1, 1, 1, 1], "VALID", dilations=window.dilation)
    return every[:, ::rows, ::columns]


def transposed_convolved(values: TfTensor, kernel: TfTensor, window: Window) -> TfTensor:
    """In TensorFlow, with a kernel (rows, columns, outputs, inputs)."""
    import tensorflow as tf

    size = transposed_size(values.shape[1:3], kernel.shape[:2], window)
    shape = tf.stack([tf.shape(values)[0], *size, kernel.shape[2]])
    return tf.nn.conv2d_transpose(values, kernel, shape, window.strides, window.padding)
