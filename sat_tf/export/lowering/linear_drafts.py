"""Drafts that become linear operations: layers with weights, requantizations and means."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.operations.pairs import Concatenate, Pointwise
from sat_tf.exact.operations.pools import AveragePool
from sat_tf.exact.operations.tabled import Reshape, moved
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.tensors import WHOLE, Codes, Window
from sat_tf.export.lowering.drafts import (
    Affine,
    Draft,
    GraphBuilder,
    OperationDraft,
    Range,
    Shape,
    range_codes,
)


@dataclasses.dataclass(frozen=True)
class LinearDraft(OperationDraft):
    """A linear layer, whose operation has scales and biases of real values."""

    operation: Linear

    @classmethod
    def of_codes(
        cls,
        source: str,
        kind: LinearKind,
        codes: np.ndarray,
        scales: np.ndarray,
        bias: np.ndarray,
        window: Window = WHOLE,
    ) -> "LinearDraft":
        """A layer of whose values nothing is known; its codes have output channels last."""
        kernel = codes if kind is LinearKind.DEPTHWISE else np.moveaxis(codes, -1, 0)
        unknown = np.zeros(scales.size), np.full(scales.size, np.inf)
        return cls((source,), Linear((), "", kind, kernel, scales, bias, *unknown, window))

    def folded(self, behind: Affine) -> "LinearDraft":
        """The layer and the normalization behind it, as one linear layer.

        The sign of γ goes into the codes and its size into the scales, so that weights stay on
        their lattice and nothing is rounded again. A channel with γ = 0 has codes 0.

        >>> codes, ones = np.array([[3, 1, 2]]), np.ones(3)
        >>> one = LinearDraft.of_codes("x", LinearKind.FULLY_CONNECTED, codes, ones, ones)
        >>> slope, offset = np.array([2.0, -0.5, 0.0]), np.array([0.0, 0.0, 7.0])
        >>> folded = one.folded(Affine(slope, offset, np.zeros(3), np.ones(3))).operation
        >>> folded.kernel.T.tolist(), folded.scales.tolist(), folded.bias.tolist()
        ([[3, -1, 0]], [2.0, 0.5, 1.0], [2.0, -0.5, 7.0])
        """
        slope = behind.slope
        spread = np.where(slope == 0.0, 0.0, np.abs(slope) * behind.deviation)
        center = np.where(np.isinf(spread), 0.0, slope * (behind.mean - self.operation.bias))
        return self.scaled(slope, behind.offset)._with(center=center, spread=spread)

    def scaled(self, slope: np.ndarray, offset: np.ndarray) -> "LinearDraft":
        """See `Draft`: y = slope · (Ξ x) + offset."""
        linear = self.operation
        count = linear.scales.size
        slope, offset = np.broadcast_to(slope, count), np.broadcast_to(offset, count)
        signs = linear.along_channels(np.sign(slope).astype(linear.kernel.dtype))
        return self._with(
            kernel=linear.kernel * signs,
            scales=linear.scales * np.where(slope == 0.0, 1.0, np.abs(slope)),
            bias=linear.bias * slope + offset,
            center=linear.center * slope,
            spread=linear.spread * np.abs(slope),
        )

    def seen_within(self, low: float, high: float) -> "LinearDraft":
        """See `Draft`: where nothing better is known, the ends are two deviations away."""
        linear = self.operation
        unknown = np.isinf(linear.spread)
        return self._with(
            center=np.where(unknown, (low + high) / 2.0 - linear.bias, linear.center),
            spread=np.where(unknown, (high - low) / 4.0, linear.spread),
        )

    def _with(self, **arrays: np.ndarray) -> "LinearDraft":
        operation = dataclasses.replace(self.operation, **arrays)
        return dataclasses.replace(self, operation=operation)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        linear = self.operation
        codes = np.moveaxis(linear.kernel, linear.channel_axis, -1)
        codes = codes.reshape(-1, codes.shape[-1]).astype(np.float64)
        ends = np.array(codes_of(self.inputs[0]).real_range)[:, np.newaxis, np.newaxis] * codes
        low = np.min(ends, axis=0).sum(axis=0) * linear.scales + linear.bias
        high = np.max(ends, axis=0).sum(axis=0) * linear.scales + linear.bias
        return float(np.min(low)), float(np.max(high))

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        """See `Draft`; one factor and one constant a channel are two float operations."""
        linear, source = self.operation, builder.dequantized(self.inputs[0])
        if not linear.is_pointwise:
            return self.placed(builder, (source,), None, name, shape)
        product = builder.between(f"{name}_product")
        slope = linear.kernel.reshape(-1) * linear.scales
        builder.with_constant(source, Pointwise.PRODUCT, slope, product, shape)
        return builder.with_constant(product, Pointwise.SUM, linear.bias, name, shape)

    def placed(
        self,
        builder: GraphBuilder,
        inputs: tuple[str, ...],
        codes: Codes | None,
        name: str,
        shape: Shape,
    ) -> str:
        """See `OperationDraft`; the units of the codes that it reads and makes go into scales."""
        linear, (source,), output = self.operation, inputs, name
        grid = builder.codes(source)
        if grid is None and codes is not None:
            raise TypeError(f"{name}: codes of a float tensor.")
        # Float values are real ones already.
        units = [1.0 if each is None or codes is None else each.unit for each in (grid, codes)]
        # Convolutions need rows and columns; those of other tensors are 1x1 and take any.
        on_images = linear.kind is not LinearKind.FULLY_CONNECTED
        if on_images and len(builder.shape(source)) != 3:
            reshape = Reshape((source,), builder.between(f"{name}_input"))
            source = builder.move(reshape, _image(builder.shape(source)))
        if on_images and len(shape) != 3:
            output = builder.between(f"{name}_image")
        operation = dataclasses.replace(
            linear,
            inputs=(source,),
            output=output,
            scales=linear.scales * (units[0] / units[1]),
            bias=linear.bias / units[1],
            center=linear.center / units[1],
            spread=linear.spread / units[1],
            real=codes is None,
        )
        builder.add(operation, _image(shape) if output != name else shape, codes)
        return name if output == name else builder.move(Reshape((output,), name), shape)


def _image(shape: Shape) -> Shape:
    """Rows, columns and channels for a tensor with other axes beside the channels."""
    return (1, math.prod(shape[:-1]), shape[-1])


def identity(source: str, num_channels: int) -> LinearDraft:
    """The 1x1 depthwise convolution with code 1 and scale 1: exact requantization."""
    return window_mean(source, num_channels, (1, 1), WHOLE)


def channel_mean(source: str, num_channels: int) -> LinearDraft:
    """The mean over the channels, as a 1x1 convolution with one of them left."""
    ones, scales = np.ones((1, 1, num_channels, 1), np.int32), np.full(1, 1.0 / num_channels)
    return LinearDraft.of_codes(source, LinearKind.CONVOLUTION, ones, scales, np.zeros(1))


def window_mean(
    source: str, num_channels: int, size: tuple[int, int], window: Window
) -> LinearDraft:
    """Average pooling without padding, as a depthwise convolution."""
    ones = np.ones((*size, num_channels), np.int32)
    scales, bias = np.full(num_channels, 1.0 / (size[0] * size[1])), np.zeros(num_channels)
    return LinearDraft.of_codes(source, LinearKind.DEPTHWISE, ones, scales, bias, window)


def whole_mean(source: str, shape: Shape) -> LinearDraft:
    """The mean over rows and columns, as one window of a depthwise convolution."""
    rows, columns, channels = shape
    return window_mean(source, channels, (rows, columns), WHOLE)


class Materialized(Draft):
    """A layer whose tensor exists already: another grid is a requantization of it."""

    def __init__(self, tensor: str) -> None:
        self.tensor, self.inputs = tensor, (tensor,)

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        return identity(self.tensor, shape[-1]).as_codes(builder, codes, name, shape)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        return builder.dequantized(self.tensor)


# -- means ----------------------------------------------------------------------------------------


class MeanDraft(OperationDraft):
    """The mean over rows and columns."""

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`.

        MEAN clips where int8 does, and nowhere else: other codes are made by a convolution.
        """
        (source,) = self.inputs
        grid = builder.codes(source)
        negative = grid is None or grid.lowest < grid.zero_point
        saturates = codes.highest == 127 and (codes.lowest == -128 or not negative)
        if codes.unit == 1.0 and saturates:
            return super().as_codes(builder, codes, name, shape)
        return whole_mean(source, builder.shape(source)).as_codes(builder, codes, name, shape)


class Strip(NamedTuple):
    """Windows along an axis that lie equally far inside an image, beside each other."""

    start: int  # The first place that they read.
    stop: int  # Behind the last.
    size: int  # How many places each reads.
    stride: int  # From one to the next.
    count: int  # How many they are.


def strips(length: int, size: int, stride: int) -> list[Strip]:
    """The windows of SAME padding along an axis, without the padding.

    >>> [(strip.start, strip.stop, strip.size, strip.count) for strip in strips(6, 3, 1)]
    [(0, 2, 2, 1), (0, 6, 3, 4), (4, 6, 2, 1)]
    """
    count = -(-length // stride)
    front = max((count - 1) * stride + size - length, 0) // 2
    starts = [place * stride - front for place in range(count)]
    inside = [start for start in starts if 0 <= start <= length - size]
    joined = []
    for start in starts:
        if start not in inside:
            first, stop = max(start, 0), min(start + size, length)
            joined.append(Strip(first, stop, stop - first, 1, 1))
        elif start == inside[0]:
            joined.append(Strip(start, inside[-1] + size, size, stride, len(inside)))
    return joined


# An image is pooled in at most so many parts, which are those of windows of 7x7.
_MOST_PARTS = 49


@dataclasses.dataclass(frozen=True)
class AveragePoolDraft(OperationDraft):
    """Means of windows, each without its padding.

    They become convolutions of parts of the image, where these are not too many: they are exact,
    and fast.
    """

    operation: AveragePool

    stays_float = True

    def parts(self, shape: Shape) -> tuple[list[Strip], list[Strip]] | None:
        """The windows pooled together, by rows and columns; None where they are too many."""
        strides = self.operation.window.strides
        rows, columns = (
            strips(*axis) for axis in zip(shape, self.operation.size, strides, strict=False)
        )
        return (rows, columns) if len(rows) * len(columns) <= _MOST_PARTS else None

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`.

        A depthwise convolution divides by one number, so that windows which reach equally far
        beyond the image are pooled together, and joined. AVERAGE_POOL_2D, where there are too many,
        rounds to the codes that it reads, and slowly.
        """
        (source,) = self.inputs
        sizes = builder.shape(source)
        parts = self.parts(sizes)
        if parts is None:
            # Means on a grid of 8 bits, to which their kernel rounds, and these on another one.
            grid = builder.codes(source)
            if grid is None:
                raise TypeError(f"{name}: the codes of a mean of float values.")
            fine = range_codes(*grid.real_range)
            if grid.real_scale > fine.real_scale:
                requantized = identity(source, shape[-1])
                source, grid = builder.between(f"{name}_fine"), fine
                requantized.as_codes(builder, fine, source, sizes)
            coarse = self.placed(builder, (source,), grid, builder.between(f"{name}_mean"), shape)
            return identity(coarse, shape[-1]).as_codes(builder, codes, name, shape)
        down, across = parts
        bands = []
        for row in down:
            band = name if len(down) == 1 else builder.between(f"{name}_rows")
            tiles = []
            for column in across:
                tile = band if len(across) == 1 else builder.between(f"{name}_part")
                ends = ((row.start, row.stop), (column.start, column.stop), (0, sizes[-1]))
                read, size = source, tuple(stop - start for start, stop in ends)
                if size != sizes:
                    slices = tuple((start, stop, 1) for start, stop in ends)
                    read = builder.between(f"{name}_input")
                    builder.move(moved("STRIDED_SLICE", source, read, sizes, slices), size)
                window = Window((row.stride, column.stride))
                mean = window_mean(read, sizes[-1], (row.size, column.size), window)
                tile_shape = (row.count, column.count, sizes[-1])
                tiles.append(mean.as_codes(builder, codes, tile, tile_shape))
            if len(across) > 1:
                builder.add(Concatenate(tuple(tiles), band, 1), (row.count, *shape[1:]), codes)
            bands.append(band)
        if len(down) > 1:
            builder.add(Concatenate(tuple(bands), name, 0), shape, codes)
        return name
