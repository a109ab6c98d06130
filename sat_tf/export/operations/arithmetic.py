"""The integer arithmetic of LiteRT's kernels, in NumPy, bit for bit.

All of it is XNNPACK's, but for `requantize_builtin` and `rounded_means`, which are those of the
builtin kernels. Stored integers come in and go out as int32 arrays; accumulators are exact.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from sat_tf.export.operations.graph import Codes, Graph, Kernels, Linear, LinearKind, Window

# Below this every integer is a float32, and sums of such products are exact in any order.
_EXACT_FLOAT32 = 2**24
_MULTIPLIER_BITS = 20
_MANTISSA_BITS = 31


def requantize(sums: np.ndarray, multipliers: np.ndarray, codes: Codes) -> np.ndarray:
    """Sums to stored integers: one float32 product, round half to even, clip.

    Args:
        sums: exact integers, channels on the last axis.
        multipliers: float32, one a channel.
        codes: of the output.
    """
    product = sums.astype(np.float32) * multipliers.astype(np.float32)
    return stored_codes(np.rint(product), codes)


def requantize_builtin(sums: np.ndarray, multipliers: np.ndarray, codes: Codes) -> np.ndarray:
    """Sums to stored integers as the builtin kernels do on x86: fixed point, rounded twice, clip.

    The multiplier is m · 2^e with m an integer of 31 bits. The product with m is rounded to the
    upper 32 bits, the shift by e rounds again, both half up:

        (((sum << max(e, 0)) · m + 2^30) >> 31 + 2^(s-1)) >> s,   s = max(-e, 0)

    Args:
        sums: exact integers, channels on the last axis; shifted, they fit int32.
        multipliers: positive float64, one a channel.
        codes: of the output.
    """
    fractions, exponents = np.frexp(multipliers)
    mantissas = np.floor(np.ldexp(fractions, _MANTISSA_BITS) + 0.5).astype(np.int64)
    carried = mantissas == 1 << _MANTISSA_BITS
    mantissas, exponents = np.where(carried, mantissas >> 1, mantissas), exponents + carried
    left, right = (np.maximum(shifts, 0).astype(np.int64) for shifts in (exponents, -exponents))
    products = (sums.astype(np.int64) << left) * mantissas
    rounded = (products + (1 << (_MANTISSA_BITS - 1))) >> _MANTISSA_BITS
    return stored_codes((rounded + ((1 << right) >> 1)) >> right, codes)


REQUANTIZE = {Kernels.XNNPACK: requantize, Kernels.BUILTIN: requantize_builtin}


def stored_codes(rounded: np.ndarray, codes: Codes) -> np.ndarray:
    """Rounded codes as stored integers, clipped."""
    low, high = codes.lowest - codes.zero_point, codes.highest - codes.zero_point
    return np.clip(rounded, low, high).astype(np.int32) + codes.zero_point


def add(
    first: np.ndarray, second: np.ndarray, first_codes: Codes, second_codes: Codes, output: Codes
) -> np.ndarray:
    """The sum of two tensors: multipliers of 20 bits, round half up, clip."""
    summands = (first_codes, second_codes)
    multipliers, shift = summand_multipliers(summands, output)
    total = np.full(first.shape, 1 << (shift - 1), np.int64)
    for stored, codes, multiplier in zip((first, second), summands, multipliers, strict=True):
        total = total + (stored.astype(np.int64) - codes.zero_point) * multiplier
    return stored_codes(total >> shift, output)


def summand_multipliers(summands: Sequence[Codes], output: Codes) -> tuple[np.ndarray, int]:
    """What a sum multiplies the codes of its inputs by, int64, and by how many bits it shifts."""
    ratios = [np.float32(codes.scale / output.scale) for codes in summands]
    shift = _MULTIPLIER_BITS - (int(np.frexp(max(ratios))[1]) - 1)
    return np.rint(np.ldexp(np.array(ratios, np.float64), shift)).astype(np.int64), shift


def mean(stored: np.ndarray, source: Codes, output: Codes, *, keep_dims: bool) -> np.ndarray:
    """The mean over rows and columns: an exact sum, one float32 product, round half to even."""
    count = stored.shape[1] * stored.shape[2]
    sums = np.sum(stored, axis=(1, 2), dtype=np.int64, keepdims=keep_dims)
    multiplier, offset = mean_multiplier(source, output, count)
    rounded = np.rint(sums.astype(np.float32) * multiplier + offset)
    return np.clip(rounded, output.lowest, output.highest).astype(np.int32)


def mean_multiplier(source: Codes, output: Codes, count: int) -> tuple[np.float32, np.float32]:
    """What a mean multiplies the sum of `count` stored integers by, and what it adds then."""
    multiplier = np.float32(source.scale / output.scale) * (np.float32(1.0) / np.float32(count))
    # The zero points are one float32 offset of the product.
    offset = np.float32(output.zero_point) - np.float32(
        np.float32(count * source.zero_point) * multiplier
    )
    return multiplier, offset


def sums(
    stored: np.ndarray, zero_point: int, kernel: np.ndarray, kind: LinearKind, window: Window
) -> np.ndarray:
    """Σ code · (stored - zero_point) of a linear layer; exact.

    Args:
        stored: (n, rows, columns, channels), or (n, channels) for a matrix product.
        zero_point: of the input.
        kernel: integer codes as `LinearKind` lays them out.
        kind: which operation.
        window: strides, padding and dilation.

    Returns:
        Integers in float64 or float32, which holds them exactly.
    """
    codes = stored - zero_point
    if kind is LinearKind.DEPTHWISE:
        return products(codes, kernel.astype(np.int32), kind, window)
    widest = max(127 - zero_point, zero_point + 128)
    magnitudes = np.abs(kernel.reshape(kernel.shape[0], -1).astype(np.int64))
    reach = np.max(np.sum(magnitudes, axis=1), initial=0) * widest
    exact = np.float32 if reach < _EXACT_FLOAT32 else np.float64
    return products(codes.astype(exact), kernel.astype(exact), kind, window)


def products(
    values: np.ndarray, kernel: np.ndarray, kind: LinearKind, window: Window
) -> np.ndarray:
    """Σ kernel · value of a linear layer, in the type that both have."""
    if kind is LinearKind.DEPTHWISE:
        return _depthwise_products(values, kernel, window)
    if kind is LinearKind.TRANSPOSED:
        return _transposed_products(values, kernel, window)
    if kind is LinearKind.CONVOLUTION:
        groups = values.shape[-1] // kernel.shape[-1]
        if groups > 1:
            parts = zip(
                np.split(values, groups, axis=-1), np.split(kernel, groups, axis=0), strict=True
            )
            return np.concatenate([products(*part, kind, window) for part in parts], axis=-1)
        values = _patches(values, kernel.shape[1:3], window)
    return np.asarray(values @ kernel.reshape(kernel.shape[0], -1).T)


def max_pool(stored: np.ndarray, size: tuple[int, int], window: Window) -> np.ndarray:
    """The largest value in each window; padding never wins."""
    lowest = np.iinfo(np.int32).min if stored.dtype.kind == "i" else -np.inf
    views = _taps(stored, size, window, fill=lowest)
    result = next(views).copy()
    for view in views:
        np.maximum(result, view, out=result)
    return result


def window_sums(
    stored: np.ndarray, size: tuple[int, int], window: Window
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the values in each window, and how many they are; padding is none of them."""
    inside = np.ones((1, *stored.shape[1:3], 1), np.int32)
    totals, counts = (
        functools.reduce(np.add, _taps(values, size, window, fill=0)) for values in (stored, inside)
    )
    return totals, counts


def rounded_means(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Integer means of stored integers, halves away from zero."""
    return np.asarray(np.sign(totals) * ((np.abs(totals) + counts // 2) // counts), np.int32)


def _depthwise_products(values: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
    multiplier = kernel.shape[-1] // values.shape[-1]
    total: np.ndarray | None = None
    taps = kernel.reshape(-1, kernel.shape[-1])
    for tap, view in zip(taps, _taps(values, kernel.shape[:2], window, fill=0), strict=True):
        repeated = np.repeat(view, multiplier, axis=-1) if multiplier > 1 else view
        product = repeated * tap
        total = product if total is None else np.add(total, product, out=total)
    if total is None:
        raise ValueError("received an empty kernel, expected at least one weight.")
    return total


def _transposed_products(values: np.ndarray, kernel: np.ndarray, window: Window) -> np.ndarray:
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


def transposed_size(sizes: Sequence[int], kernel: Sequence[int], window: Window) -> tuple[int, ...]:
    """Rows and columns that a transposed convolution makes of an image.

    Keras's rule without `output_padding`, and `window.more` of them.
    """
    extra = [max(length - stride, 0) for length, stride in zip(kernel, window.strides, strict=True)]
    return tuple(
        size * stride + (longer if window.padding == "VALID" else 0) + more
        for size, stride, longer, more in zip(
            sizes, window.strides, extra, window.more, strict=True
        )
    )


def _patches(values: np.ndarray, size: tuple[int, ...], window: Window) -> np.ndarray:
    """(n, rows, columns, k_rows · k_columns · channels), in the order of the kernel's axes."""
    views = list(_taps(values, size, window, fill=0))
    return views[0] if len(views) == 1 else np.concatenate(views, axis=-1)


def _taps(
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


def largest_sums(graph: Graph, linear: Linear) -> np.ndarray:
    """The largest magnitude that Σ codes · input code can have, a channel."""
    source = graph.codes(linear.inputs[0])
    widest = max(source.highest - source.zero_point, source.zero_point - source.lowest)
    magnitudes = np.abs(linear.kernel.astype(np.int64))
    return np.asarray(np.sum(magnitudes, axis=linear.inner_axes) * widest)


def requantization_multipliers(graph: Graph, linear: Linear) -> np.ndarray:
    """Output codes of one accumulator unit, a channel: the products that its kernel computes.

    XNNPACK does so in float32, the builtin kernels in float64.
    """
    source, output = graph.codes(linear.inputs[0]), graph.codes(linear.output)
    if linear.kernels is Kernels.BUILTIN:
        scales = linear.scales.astype(np.float32).astype(np.float64)
        return np.asarray(float(source.scale) * scales / float(output.scale))
    product = source.scale * linear.scales.astype(np.float32)
    return np.asarray(product / output.scale, np.float32)
