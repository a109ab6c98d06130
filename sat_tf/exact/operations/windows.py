"""Kernels moved over images: where they lie, and sums of products."""

import enum
from collections.abc import Iterator, Sequence

import numpy as np

from sat_tf.exact.tflite.tensors import Window

# Below this, float32 holds every integer, and sums of integer products are exact in any order.
EXACT_FLOAT32 = 2**24


class LinearKind(enum.Enum):
    """The linear operations, by how their kernel codes are laid out."""

    CONVOLUTION = "CONV_2D"  # (outputs, rows, columns, inputs of its group)
    TRANSPOSED = "TRANSPOSE_CONV"  # (outputs, rows, columns, inputs)
    DEPTHWISE = "DEPTHWISE_CONV_2D"  # (rows, columns, outputs), outputs = inputs · multiplier
    FULLY_CONNECTED = "FULLY_CONNECTED"  # (outputs, inputs)


def placement(
    length: int, kernel: int, stride: int, dilation: int, padding: str
) -> tuple[tuple[int, int], int]:
    """Returns the margins of one axis, and how many windows fit, by TensorFlow's rule."""
    extent = (kernel - 1) * dilation + 1
    if padding == "VALID":
        return (0, 0), (length - extent) // stride + 1
    outputs = -(-length // stride)
    total = max((outputs - 1) * stride + extent - length, 0)
    return (total // 2, total - total // 2), outputs


def ends_early(sizes: Sequence[int], kernel: Sequence[int], window: Window) -> bool:
    """Returns whether the windows of SAME end before the last row or column of an image.

    A stride is then larger than the kernel, and XNNPACK before LiteRT 2.2.0, in TensorFlow 2.21
    too, takes the rest of the image for a padding below 0: it computes other values. It computes
    kernels of one pixel, and pooling, correctly.
    """
    if window.padding != "SAME" or tuple(kernel) == (1, 1):
        return False
    axes = zip(sizes, kernel, window.strides, window.dilation, strict=True)
    return any(
        (-(-size // stride) - 1) * stride + dilation * (length - 1) + 1 < size
        for size, length, stride, dilation in axes
    )


def transposed_size(sizes: Sequence[int], kernel: Sequence[int], window: Window) -> tuple[int, ...]:
    """Returns a transposed convolution's rows and columns: Keras's rule plus `window.more`."""
    is_valid = window.padding == "VALID"
    axes = zip(sizes, window.strides, kernel, window.more, strict=True)
    return tuple(
        size * stride + is_valid * max(length - stride, 0) + surplus
        for size, stride, length, surplus in axes
    )


def taps(
    values: np.ndarray, size: tuple[int, ...], window: Window, fill: float
) -> Iterator[np.ndarray]:
    """Yields the values that each position in the kernel meets."""
    axes = zip(values.shape[1:3], size, window.strides, window.dilation, strict=True)
    margins, outputs = zip(*(placement(*axis, window.padding) for axis in axes), strict=True)
    if any(any(margin) for margin in margins):
        values = np.pad(values, ((0, 0), *margins, (0, 0)), constant_values=fill)
    for places in np.ndindex(*size):
        axes = zip(places, window.dilation, outputs, window.strides, strict=True)
        slices = (
            slice(start * dilation, start * dilation + (output - 1) * stride + 1, stride)
            for start, dilation, output, stride in axes
        )
        yield values[(slice(None), *slices)]


def depthwise_products(values: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    """Multiplies every channel with its own kernels, (rows, columns, outputs)."""
    multiplier = kernel.shape[-1] // values.shape[-1]
    if not kernel.size:
        raise ValueError("received an empty kernel, expected at least one weight.")
    views = taps(values, kernel.shape[:2], window, fill=0)
    pairs = zip(views, kernel.reshape(-1, kernel.shape[-1]), strict=True)
    total: np.ndarray | None = None
    product: np.ndarray | None = None
    for view, tap in pairs:
        repeated = view if multiplier == 1 else np.repeat(view, multiplier, axis=-1)
        product = np.multiply(repeated, tap, out=product)
        if total is None:
            total, product = product, None
        else:
            total += product
    return np.asarray(total)


def transposed_products(values: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    """Adds every pixel's multiple of the kernel to the output, strides apart."""
    sizes = values.shape[1:3]
    full = [
        (size - 1) * stride + length
        for size, stride, length in zip(sizes, window.strides, kernel.shape[1:3], strict=True)
    ]
    output_sizes = transposed_size(sizes, kernel.shape[1:3], window)
    total = np.zeros((len(values), *map(max, full, output_sizes), len(kernel)), values.dtype)
    for row, column in np.ndindex(*kernel.shape[1:3]):
        places = tuple(
            slice(start, start + (size - 1) * stride + 1, stride)
            for start, size, stride in zip((row, column), sizes, window.strides, strict=True)
        )
        total[(slice(None), *places)] += values @ kernel[:, row, column].T
    # SAME leaves out the ends, as in the convolution of which this one is the transpose.
    rows, columns = (max(a - b, 0) // 2 for a, b in zip(full, output_sizes, strict=True))
    return total[:, rows : rows + output_sizes[0], columns : columns + output_sizes[1]]


def is_small_depthwise(
    size: tuple[int, ...], read: tuple[int, ...], made: tuple[int, ...], window: Window
) -> bool:
    """Returns whether LiteRT chooses its kernel for depthwise convolutions of 3x3."""
    stride, other_stride = window.strides
    if size != (3, 3) or (stride, window.dilation) not in ((1, (1, 1)), (2, (1, 1))):
        return False
    (*sizes, channels), (*places, outputs) = read, made
    if other_stride != stride or channels != outputs or channels % 8:
        return False
    missing = [(out - 1) * stride + 3 - has for out, has in zip(places, sizes, strict=True)]
    before, other_before = (max(count, 0) // 2 for count in missing)
    if before != other_before or before > 1 or max(missing) > 2 * before:
        return False
    return before == 0 or 1 not in sizes or sizes[0] == sizes[1]


def sums(
    stored: np.ndarray,
    zero_point: int,
    kernel: np.ndarray,
    kind: LinearKind,
    window: Window,
    bias: np.ndarray | int = 0,
    sizes: np.ndarray | None = None,
) -> np.ndarray:
    """Computes Σ code · (stored - zero_point) + bias of a linear layer; exact.

    `sizes` are the `magnitudes` of the kernel, for a caller that knows them.
    """
    is_depthwise = kind is LinearKind.DEPTHWISE
    codes, bias = stored - np.int32(zero_point), np.asarray(bias)
    widest = max(int(np.max(codes, initial=0)), -int(np.min(codes, initial=0)))
    sizes = magnitudes(kernel, kind) if sizes is None else sizes
    reach = widest * int(np.max(sizes, initial=0)) + float(np.max(np.abs(bias), initial=0))
    types = (np.int32, np.int64) if is_depthwise else (np.float32, np.float64)
    exact = types[int(reach >= (2**31 if is_depthwise else EXACT_FLOAT32))]
    of_codes = codes.astype(exact, copy=False), kernel.astype(exact)
    totals = products(*of_codes, kind, window, exact=not is_depthwise)
    if bias.dtype.kind == "f":  # biases are real numbers until they are rounded
        return np.asarray(totals + bias)
    totals += bias.astype(exact)
    return totals


def magnitudes(kernel: np.ndarray, kind: LinearKind) -> np.ndarray:
    """Returns Σ |code| of each output channel."""
    channel = kernel.ndim - 1 if kind is LinearKind.DEPTHWISE else 0
    axes = tuple(axis for axis in range(kernel.ndim) if axis != channel)
    return np.asarray(np.sum(np.abs(kernel.astype(np.int64)), axis=axes))


def products(
    values: np.ndarray, kernel: np.ndarray, kind: LinearKind, window: Window, exact: bool = False
) -> np.ndarray:
    """Computes Σ kernel · value of a linear layer, in their type; `exact`: in any order."""
    if kind is LinearKind.DEPTHWISE:
        return depthwise_products(values, kernel, window)
    if kind is LinearKind.TRANSPOSED:
        return transposed_products(values, kernel, window)
    if kind is LinearKind.CONVOLUTION:
        groups = values.shape[-1] // kernel.shape[-1]
        if groups > 1:
            splits = np.split(values, groups, axis=-1), np.split(kernel, groups, axis=0)
            by_group = (products(*of, kind, window, exact) for of in zip(*splits, strict=True))
            return np.concatenate(list(by_group), axis=-1)
        # (n, rows, columns, k_rows · k_columns · channels), in the order of the kernel's axes.
        views = list(taps(values, kernel.shape[1:3], window, fill=0))
        values = views[0] if len(views) == 1 else np.concatenate(views, axis=-1)
    kernel = kernel.reshape(kernel.shape[0], -1)
    if exact:  # one product, where NumPy makes one for each row, in up to ten times the time
        rows = values.reshape(-1, values.shape[-1]) @ kernel.T
        return np.asarray(rows.reshape(*values.shape[:-1], len(kernel)))
    return np.asarray(values @ kernel.T)
