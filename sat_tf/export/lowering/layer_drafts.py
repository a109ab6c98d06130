"""The drafts of layers: linear ones, means, combinations of several tensors, and functions."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sat_tf.core.grid import int8_codes
from sat_tf.core.recurrence import parts_of_gates
from sat_tf.exact.kernels.kernel_sets import KERNEL_SETS
from sat_tf.exact.operations.arithmetic import LOWEST, overflow_on_arm
from sat_tf.exact.operations.linear import Linear
from sat_tf.exact.operations.native import FRACTIONS, NATIVE, STORED, Lookup, Softmax, takes_grid
from sat_tf.exact.operations.operation import Constant, Operation
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.pools import AveragePool
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.exact.operations.tabled import (
    Computed,
    Reshape,
    joined,
    matrix_product,
    moved,
    sloped,
    table_of,
)
from sat_tf.exact.operations.windows import LinearKind, placement
from sat_tf.exact.tflite.tensors import WHOLE, WIDE, Codes, Tensor, Window
from sat_tf.export.lowering.drafts import (
    Affine,
    Draft,
    GraphBuilder,
    OperationDraft,
    Range,
    Shape,
    range_codes,
)
from sat_tf.export.lowering.float_layer import FloatCall, FloatLayer
from sat_tf.graph.layers.kind import NativeFunction


def _scaled_spread(spread: np.ndarray | float, slope: np.ndarray) -> np.ndarray:
    """Returns a spread times |slope|: 0 for a slope of 0, even if the spread is infinite."""
    return np.where(slope == 0.0, 0.0, spread) * np.abs(slope)


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
        """Returns a layer whose values are unknown, from codes with the output channels last."""
        kernel = codes if kind is LinearKind.DEPTHWISE else np.moveaxis(codes, -1, 0)
        return cls((source,), Linear((), "", kind, kernel, scales, bias, window))

    def folded(self, behind: Affine) -> "LinearDraft":
        """Returns the layer and the normalization after it, as one linear layer.

        The sign of γ goes into the codes and its size into the scales, so that weights stay on
        their lattice and nothing is rounded again. A channel with γ = 0 has codes 0.
        """
        slope = behind.slope
        spread = _scaled_spread(behind.deviation, slope)
        center = np.where(np.isinf(spread), 0.0, slope * (behind.mean - self.operation.bias))
        return self.scaled(slope, behind.offset)._with(center=center, spread=spread)

    def scaled(self, slope: np.ndarray, offset: np.ndarray) -> "LinearDraft":
        """Returns the layer times `slope` plus `offset`: y = slope · (Ξ x) + offset."""
        linear = self.operation
        count = linear.scales.size
        slope, offset = np.broadcast_to(slope, count), np.broadcast_to(offset, count)
        signs = linear.along_channels(np.sign(slope).astype(linear.kernel.dtype))
        return self._with(
            kernel=linear.kernel * signs,
            scales=linear.scales * np.where(slope == 0.0, 1.0, np.abs(slope)),
            bias=linear.bias * slope + offset,
            center=linear.center * slope,
            spread=_scaled_spread(linear.spread, slope),
        )

    def seen_within(self, low: float, high: float) -> "LinearDraft":
        """Returns the same layer, known to give values within a range.

        Where nothing better is known, the ends of the range are two deviations from its middle.
        """
        linear = self.operation
        unknown = np.isinf(linear.spread)
        return self._with(
            center=np.where(unknown, (low + high) / 2.0 - linear.bias, linear.center),
            spread=np.where(unknown, (high - low) / 4.0, linear.spread),
        )

    def _with(self, **arrays: Any) -> "LinearDraft":
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

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        """See `Draft`; one factor and one constant a channel are two float operations."""
        linear, name = self.operation, output.name
        if output.codes or not linear.is_pointwise:
            return super().lower(builder, output)
        source = builder.dequantized(self.inputs[0])
        product = builder.between(f"{name}_product")
        slope = linear.kernel.reshape(-1) * linear.scales
        builder.with_constant(source, Pointwise.PRODUCT, slope, product, output.shape)
        return builder.with_constant(product, Pointwise.SUM, linear.bias, name, output.shape)

    def placed(self, builder: GraphBuilder, inputs: tuple[str, ...], output: Tensor) -> str:
        """See `OperationDraft`; the units of the codes that it reads and makes go into scales."""
        linear, (source,), codes, name = self.operation, inputs, output.codes, output.name
        if codes is not None and codes.bits == WIDE:
            source = builder.widened(source)
        grid = builder.codes(source)
        if grid is None and codes is not None:
            raise TypeError(f"{name}: codes of a float tensor.")
        # Float values are real ones already.
        units = [1.0 if side is None or codes is None else side.unit for side in (grid, codes)]
        # Convolutions need rows and columns; on other tensors they are 1x1 and take any.
        on_images = linear.kind is not LinearKind.FULLY_CONNECTED
        if on_images and len(builder.shape(source)) != 3:
            reshape = Reshape((source,), builder.between(f"{name}_input"))
            source = builder.move(reshape, _image(builder.shape(source)))
        reshapes = on_images and len(output.shape) != 3
        if reshapes:
            name = builder.between(f"{name}_image")
        operation = dataclasses.replace(
            linear,
            inputs=(source,),
            output=name,
            scales=linear.scales * (units[0] / units[1]),
            bias=linear.bias / units[1],
            center=linear.center / units[1],
            spread=linear.spread / units[1],
            real=codes is None,
        )
        builder.add(operation, _image(output.shape) if reshapes else output.shape, codes)
        return builder.move(Reshape((name,), output.name), output.shape) if reshapes else name


def _image(shape: Shape) -> Shape:
    """Returns rows, columns and channels for a tensor with other axes before the channels."""
    return (1, math.prod(shape[:-1]), shape[-1])


def identity(source: str, num_channels: int) -> LinearDraft:
    """Returns the 1x1 depthwise convolution with code 1 and scale 1: exact requantization."""
    return window_mean(source, num_channels, (1, 1), WHOLE)


def channel_mean(source: str, num_channels: int) -> LinearDraft:
    """Returns the mean over the channels, as a 1x1 convolution with one channel left."""
    ones, scales = np.ones((1, 1, num_channels, 1), np.int32), np.full(1, 1.0 / num_channels)
    return LinearDraft.of_codes(source, LinearKind.CONVOLUTION, ones, scales, np.zeros(1))


def window_mean(
    source: str, num_channels: int, size: tuple[int, int], window: Window
) -> LinearDraft:
    """Returns average pooling without padding, as a depthwise convolution."""
    ones = np.ones((*size, num_channels), np.int32)
    scales, bias = np.full(num_channels, 1.0 / (size[0] * size[1])), np.zeros(num_channels)
    return LinearDraft.of_codes(source, LinearKind.DEPTHWISE, ones, scales, bias, window)


class Materialized(Draft):
    """A layer whose tensor exists already: another grid is a requantization of the tensor."""

    def __init__(self, tensor: str) -> None:
        self.tensor, self.inputs = tensor, (tensor,)

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        if output.codes is None:
            return builder.dequantized(self.tensor)
        return builder.materialize(identity(self.tensor, output.shape[-1]), output)


# -- means ----------------------------------------------------------------------------------------


class MeanDraft(OperationDraft):
    """The mean over rows and columns."""

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        """See `Draft`.

        MEAN clips only where int8 does: a convolution makes other codes.
        """
        codes, (source,) = output.codes, self.inputs
        if codes is None:
            return super().lower(builder, output)
        grid = builder.codes(source)
        negative = grid is None or grid.lowest < grid.zero_point
        whole = codes.whole
        saturates = codes.highest == whole.highest
        saturates &= codes.lowest == whole.lowest or not negative
        if codes.unit == 1.0 and saturates:
            return super().lower(builder, output)
        rows, columns, channels = builder.shape(source)
        return window_mean(source, channels, (rows, columns), WHOLE).lower(builder, output)


class Strip(NamedTuple):
    """Adjacent windows along an axis that lie equally far inside an image."""

    start: int  # The first place that they read.
    stop: int  # The place after the last one.
    size: int  # The number of places that each reads.
    stride: int  # The distance from one window to the next.
    windows: int  # The number of windows.


def strips(length: int, size: int, stride: int) -> list[Strip]:
    """Returns the windows of SAME padding along an axis, without the padding."""
    (front, _), count = placement(length, size, stride, 1, "SAME")
    starts = [place * stride - front for place in range(count)]
    inner_starts = [start for start in starts if 0 <= start <= length - size]
    joined = []
    for start in starts:
        if start not in inner_starts:
            clipped_start, stop = max(start, 0), min(start + size, length)
            joined.append(Strip(clipped_start, stop, stop - clipped_start, 1, 1))
        elif start == inner_starts[0]:
            joined.append(Strip(start, inner_starts[-1] + size, size, stride, len(inner_starts)))
    return joined


# The largest number of parts in which an image is pooled: windows of 7x7 have as many.
_MOST_PARTS = 49


@dataclasses.dataclass(frozen=True)
class AveragePoolDraft(OperationDraft):
    """Means of windows, each without its padding.

    They become convolutions of parts of the image, where there are not too many parts: these
    convolutions are exact, and fast.
    """

    operation: AveragePool

    def parts(self, shape: Shape) -> tuple[list[Strip], list[Strip]] | None:
        """Returns the windows pooled together, by rows and columns; None where too many."""
        axes = zip(shape, self.operation.size, self.operation.window.strides, strict=False)
        rows, columns = (strips(*axis) for axis in axes)
        return (rows, columns) if len(rows) * len(columns) <= _MOST_PARTS else None

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        """See `Draft`.

        A depthwise convolution divides by one number, so that windows which reach equally far
        beyond the image are pooled together, and joined. AVERAGE_POOL_2D, for too many parts, is
        slow, and rounds to the codes that it reads.
        """
        (source,), name, codes = self.inputs, output.name, output.codes
        if codes is None:
            return super().lower(builder, output)
        grid, sizes = builder.codes(source), builder.shape(source)
        if grid is None:
            raise TypeError(f"{name}: the codes of a mean of float values.")
        axis_strips = self.parts(sizes)
        if axis_strips is None:
            # The kernel rounds means to a grid of 8 bits; they are requantized to the output's.
            fine = range_codes(*grid.real_range)
            if grid.real_scale > fine.real_scale:
                requantized = Tensor(builder.between(f"{name}_fine"), sizes, fine)
                source, grid = identity(source, sizes[-1]).lower(builder, requantized), fine
            coarse = Tensor(builder.between(f"{name}_mean"), output.shape, grid)
            self.placed(builder, (source,), coarse)
            return identity(coarse.name, sizes[-1]).lower(builder, output)
        down, across = axis_strips
        bands = []
        for row in down:
            band = name if len(down) == 1 else builder.between(f"{name}_rows")
            tiles = []
            for column in across:
                tile = band if len(across) == 1 else builder.between(f"{name}_part")
                ends = ((row.start, row.stop), (column.start, column.stop), (0, sizes[-1]))
                tile_input, size = source, tuple(stop - start for start, stop in ends)
                if size != sizes:
                    slices = tuple((start, stop, 1) for start, stop in ends)
                    tile_input = builder.between(f"{name}_input")
                    builder.move(moved("STRIDED_SLICE", source, tile_input, sizes, slices), size)
                window = Window((row.stride, column.stride))
                mean = window_mean(tile_input, sizes[-1], (row.size, column.size), window)
                tile_shape = (row.windows, column.windows, sizes[-1])
                tiles.append(mean.lower(builder, Tensor(tile, tile_shape, codes)))
            if len(across) > 1:
                shape = (row.windows, *output.shape[1:])
                builder.add(joined(tiles, band, 1), shape, codes)
            bands.append(band)
        if len(down) > 1:
            builder.add(joined(bands, name, 0), output.shape, codes)
        return name


@dataclasses.dataclass(frozen=True)
class RecurrenceDraft(Draft):
    """An LSTM, whose operation makes and reads the codes of one grid."""

    inputs: tuple[str, ...]  # The tensor of its steps.
    # The weights of the inputs and of the hidden state, (inputs, 4 · units) and (units, 4 · units).
    weights: tuple[np.ndarray, ...]
    weight_bits: int
    bias: np.ndarray | None  # (4 · units,), or None.
    cell_bits: int  # The bits of the cell state in front of its point.

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        """See `Draft`: its kernel reads and makes codes alone."""
        source, codes = builder.codes(self.inputs[0]), output.codes
        if source is None or codes is None:
            raise TypeError(f"{output.name}: float values of an LSTM, expected codes.")
        pairs = [
            [int8_codes(gate, self.weight_bits) for gate in parts_of_gates(weights)]
            for weights in self.weights
        ]
        units = self.weights[1].shape[0]
        kernels, scales = zip(
            *(
                (
                    np.concatenate([np.asarray(of_gate).T for of_gate, _ in of_part]),
                    np.repeat([np.float32(scale) for _, scale in of_part], units),
                )
                for of_part in pairs
            ),
            strict=True,
        )
        bias = np.zeros(len(scales[0])) if self.bias is None else self.bias.astype(np.float64)
        operation = Lstm(
            self.inputs,
            output.name,
            kernels=tuple(kernel.astype(np.int32) for kernel in kernels),
            scales=scales,
            bias=np.rint(bias / (float(source.scale) * scales[0])).astype(np.int64),
            cell_bits=self.cell_bits,
            clip=0,
            hidden=codes,
            state=codes,
            made=codes,
        )
        return builder.add(operation, output.shape, codes)


# -- combinations of several tensors ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PairDraft(OperationDraft):
    """A combination of two tensors, or of more unless it is a difference."""

    operation: Pair

    keeps_stream = True

    @classmethod
    def of(cls, kind: Pointwise, inputs: tuple[str, ...] = ()) -> "PairDraft":
        """Returns the draft of an operation."""
        return cls(inputs, Pair((), "", kind))

    def placed(self, builder: GraphBuilder, inputs: tuple[str, ...], output: Tensor) -> str:
        """Adds operations on two tensors at a time; only the codes of the last can saturate.

        The codes of operations that select values are the same between as at the end.
        """
        combined, *middle, last = inputs
        for source in middle:
            grids = builder.codes(combined), builder.codes(source)
            codes = output.codes if self.operation.keeps_grid else None
            if not self.operation.keeps_grid and grids[0] is not None and grids[1] is not None:
                bits = output.codes.bits if output.codes else 8
                codes = range_codes(*self._range(grids[0].real_range, grids[1].real_range), bits)
            shape = np.broadcast_shapes(builder.shape(combined), builder.shape(source))
            partial = Tensor(builder.between(f"{output.name}_partial"), shape, codes)
            combined = self._combined(builder, (combined, source), partial)
        return self._combined(builder, (combined, last), output)

    def _combined(self, builder: GraphBuilder, sources: tuple[str, ...], output: Tensor) -> str:
        """Adds the operation on two tensors, as its kernel takes them."""
        if output.codes and self.operation.kind in (Pointwise.SUM, Pointwise.DIFFERENCE):
            sources = tuple(summand(builder, source, output.codes) for source in sources)
        return super().placed(builder, sources, output)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        return functools.reduce(self._range, (codes_of(name).real_range for name in self.inputs))

    def _range(self, first_range: Range, second_range: Range) -> Range:
        """Returns the range of results, made from ends: results are monotonic in either value."""
        pointwise = self.operation.kind
        ends = pointwise.on_arrays(np.reshape(first_range, (2, 1)), np.asarray(second_range))
        return float(np.min(ends)), float(np.max(ends))


# XNNPACK leaves a sum to other kernels, with another rounding, where the scale of a summand is less
# than this share of the sum's. A coarse summand still counts hundredths of an output code.
_SMALLEST_SUMMAND = 2.0**-10
_COARSE_SUMMAND = 2.0**-9


def summand(builder: GraphBuilder, source: str, output: Codes) -> str:
    """Returns the tensor, or one on a larger scale where the kernel of its sum needs that."""
    codes = builder.codes(source)
    is_wide = output.bits == WIDE  # whose kernels take smaller summands
    if codes is None or is_wide or codes.scale / output.scale >= _SMALLEST_SUMMAND:
        return source
    coarse = Codes(np.float32(_COARSE_SUMMAND * output.scale), 0)
    requantized = Tensor(builder.between(f"{source}_coarse"), builder.shape(source), coarse)
    return identity(source, requantized.shape[-1]).lower(builder, requantized)


@dataclasses.dataclass(frozen=True)
class SumWithMap(Draft):
    """The sum of a tensor and a map of codes that is the same for all images."""

    inputs: tuple[str, ...]
    codes: np.ndarray  # Integers; axes of size 1 are broadcast.
    scale: np.float32  # The scale of the map.

    keeps_stream = True

    @property
    def values(self) -> np.ndarray:
        """The map in real values."""
        return np.asarray(self.codes * self.scale, np.float32)

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        """See `Draft`; a map of very small values gets a larger scale, as in `summand`.

        Values that saturate whatever they are added to, as those of a mask do, count as the least
        of these: kernels take no larger scale.
        """
        name, shape, codes = output.name, output.shape, output.codes
        if codes is None:
            source = builder.dequantized(self.inputs[0])
            return builder.with_constant(source, Pointwise.SUM, self.values, name, shape)
        scale, constant = self.scale, self.codes
        (low, high), grid = codes.real_range, builder.codes(self.inputs[0])
        ends = grid.real_range if grid else (low, high)
        saturating = low - ends[1] - 2.0 * codes.real_scale, high - ends[0] + 2.0 * codes.real_scale
        clipped = np.clip(self.values, *saturating)
        if np.any(clipped != self.values):
            # Sums of 16 bits take no scale that is 256 times as large as theirs.
            most = 127.0 if codes.bits != WIDE else 2.0**15 - 1.0
            scale = np.float32(np.max(np.abs(clipped)) / most)
            constant = np.rint(clipped / scale)
        if scale / codes.scale < _SMALLEST_SUMMAND:
            scale = np.float32(_COARSE_SUMMAND * codes.scale)
            constant = np.rint(clipped / scale)
        source = summand(builder, self.inputs[0], codes)
        grid_of_map = Codes(scale, 0)
        if codes.bits == WIDE:
            source, grid_of_map = builder.widened(source), Codes.wide(scale)
        map_of_codes = Constant(constant.astype(grid_of_map.dtype)[np.newaxis], grid_of_map)
        operation = Pair((source,), name, Pointwise.SUM, map_of_codes)
        return builder.add(operation, shape, codes)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = codes_of(self.inputs[0]).real_range
        return low + float(np.min(self.values)), high + float(np.max(self.values))


@dataclasses.dataclass(frozen=True)
class MeanOfTensors(Draft):
    """The mean of several tensors: their sum, divided by a requantization."""

    inputs: tuple[str, ...]

    keeps_stream = True

    @property
    def total(self) -> PairDraft:
        """The sum of the tensors."""
        return PairDraft.of(Pointwise.SUM, self.inputs)

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        name, shape, codes = output.name, output.shape, output.codes
        # The sum's scale is larger by the divisor, so that its codes are those of the mean.
        count = len(self.inputs)
        larger = codes and dataclasses.replace(codes, scale=np.float32(codes.scale * count))
        sums = self.total.lower(builder, Tensor(builder.between(f"{name}_sum"), shape, larger))
        if codes is None:
            return builder.with_constant(sums, Pointwise.PRODUCT, 1.0 / count, name, shape)
        mean = identity(sums, shape[-1]).scaled(np.asarray(1.0 / count), np.zeros(()))
        return mean.lower(builder, output)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = self.total.worst_range(codes_of)
        return low / len(self.inputs), high / len(self.inputs)


@dataclasses.dataclass(frozen=True)
class MatrixProductDraft(Draft):
    """The product of matrices in two tensors."""

    inputs: tuple[str, ...]
    depth: int  # The number of products that it adds up for each value.
    transposed: bool  # Whether the second one is transposed.
    call: Callable[..., FloatCall]  # The call of the layer itself on float tensors.

    keeps_stream = True

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        if output.codes is None:
            reals = tuple(map(builder.dequantized, self.inputs))
            operation: Operation = FloatLayer(reals, output.name, (self.call(*reals),))
        else:
            first, second = self.inputs
            codes, grid = builder.codes(first), builder.codes(second)
            if codes and grid and overflow_on_arm(codes, grid):
                narrow = self._narrow(builder, second, grid)
                first, second = narrow if first == second else first, narrow
            if output.codes.bits == WIDE:
                first, second = map(builder.widened, (first, second))
            operation = matrix_product(first, second, output.name, transposed=self.transposed)
        return builder.add(operation, output.shape, output.codes)

    def _narrow(self, builder: GraphBuilder, source: str, grid: Codes) -> str:
        """Adds the codes from -127 on, where training clips: int8 saturates one code below."""
        shape = builder.shape(source)
        end = np.full((1,) * (len(shape) + 1), LOWEST + 1, np.int8)
        constant = Constant(end, Codes(grid.scale, grid.zero_point))
        name = builder.between(f"{source}_narrow")
        operation = Pair((source,), name, Pointwise.MAXIMUM, constant)
        return builder.add(operation, shape, dataclasses.replace(grid, lowest=LOWEST + 1))

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = PairDraft.of(Pointwise.PRODUCT, self.inputs).worst_range(codes_of)
        return self.depth * low, self.depth * high


class OnOneGrid(Draft):
    """Parts that get the grid of the whole: joined, or reduced to the largest or smallest values.

    `whole` is the draft of the operation on the parts, without inputs; each part comes with the
    float tensor that it becomes.
    """

    def __init__(self, whole: OperationDraft, *parts: tuple[Draft, Tensor]) -> None:
        self.whole, self.parts = whole, parts
        self.inputs = tuple(source for draft, _ in parts for source in draft.inputs)

    @property
    def rounds_parts(self) -> bool:
        """See `Draft`: a mean of rounded values is another one than the rounded mean."""
        return self.whole.operation.averages

    def takes_floats(self, codes: Codes) -> bool:
        """See `Draft`: QUANTIZE cannot make codes with a unit, and no part alone has one."""
        return codes.unit == 1.0

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        tensors = []
        for draft, float_tensor in self.parts:
            tensor, codes = draft.tensor, output.codes
            if codes is None:
                tensor = draft.lower(builder, float_tensor)
            elif not tensor or builder.codes(tensor) != codes:
                # A part that exists already, such as a pooled tensor, keeps its name.
                exists = float_tensor.name in builder.tensors
                name = builder.between(f"{float_tensor.name}_part") if exists else float_tensor.name
                tensor = builder.materialize(draft, Tensor(name, float_tensor.shape, codes))
            tensors.append(tensor)
        return self.whole.placed(builder, tuple(tensors), output)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = zip(*(draft.worst_range(codes_of) for draft, _ in self.parts), strict=True)
        return min(low), max(high)


# -- functions of one value ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ComputedFunction(Draft):
    """A function other than a rectifier: a table, or operators of TensorFlow's converter."""

    inputs: tuple[str, ...]  # The tensor that it reads.
    # The function on single values; None where it does not work on each value alone.
    function: Callable[[np.ndarray], np.ndarray] | None
    call: Callable[[str], FloatCall]  # The call of the layer itself on a float tensor.

    keeps_stream = True

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        name, source, codes = output.name, builder.codes(self.inputs[0]), output.codes
        if codes is None:
            real = builder.dequantized(self.inputs[0])
            return builder.add(FloatLayer((real,), name, (self.call(real),)), output.shape, None)
        if self.function is None or source is None:
            return builder.quantized(self, output)
        values = ((STORED - source.zero_point) * np.float32(source.real_scale)).astype(np.float32)
        # Values are rounded half up, as quantizers do.
        unrounded = np.asarray(self.function(values), np.float32) / np.float32(codes.real_scale)
        rounded = np.floor(unrounded + np.float32(0.5)) + codes.zero_point
        table = np.clip(rounded, codes.lowest, codes.highest).astype(np.int8)
        return builder.add(Lookup(self.inputs, name, table), output.shape, codes)


@dataclasses.dataclass(frozen=True)
class NativeDraft(Draft):
    """A function that was trained to be computed by its own operator.

    It becomes the operator where that takes the grids, and int8 clips its codes as the quantizer
    does; otherwise it is lowered as for other processors.
    """

    inputs: tuple[str, ...]  # The tensor that it reads.
    native: NativeFunction  # The operator.
    older: Draft  # The draft without this operator.
    slopes: np.ndarray | None = None  # The slopes of PRELU, float32.

    @property
    def keeps_stream(self) -> bool:
        """See `Draft`: a layer with weights may be shared, and its quantizer then follows it."""
        return self.slopes is None

    def finer(self, codes: Codes) -> Codes:
        return super().finer(codes) if self.native.ends is None else FRACTIONS

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        source, codes = builder.codes(self.inputs[0]), output.codes
        if source and codes and WIDE in (source.bits, codes.bits):
            return self._of_wide(builder, output, codes)
        operation = self._of_codes(source, codes, output.name) if source and codes else None
        if operation is None:
            return self.older.lower(builder, output)
        return builder.add(operation, output.shape, codes)

    def _of_wide(self, builder: GraphBuilder, output: Tensor, codes: Codes) -> str:
        """Adds the operator on codes of 16 bits, and for a swish the product with its input."""
        source, native = builder.widened(self.inputs[0]), self.native
        name = builder.between(f"{output.name}_gate") if native.is_gate else output.name
        operation: Operation = Softmax((source,), name)
        if native.operator != Softmax.operator.name:
            operation = Computed((source,), name, native.operator, options=native.settings)
        if not native.is_gate:
            return builder.add(operation, output.shape, codes)
        factors = source, builder.add(operation, output.shape, FRACTIONS)
        return PairDraft.of(Pointwise.PRODUCT, factors).lower(builder, output)

    def _of_codes(self, source: Codes, codes: Codes, name: str) -> Operation | None:
        if source.unit != 1.0 or codes.unit != 1.0:
            return None
        if self.slopes is not None:
            if (codes.lowest, codes.highest) != (-128, 127):
                return None
            slopes, scale = map(np.asarray, int8_codes(self.slopes))
            return sloped(self.inputs[0], name, slopes.astype(np.int8), np.float32(scale))
        operator, settings = self.native.operator, self.native.settings
        if not takes_grid(operator, codes):
            return None
        if operator == Softmax.operator.name:
            return Softmax(self.inputs, name)
        if NATIVE[operator].problem(source.scale, codes.scale) is not None:
            return None
        whole = dataclasses.replace(codes, lowest=-128, highest=127)
        for kernels in KERNEL_SETS.values():
            table = table_of(operator, tuple(settings.items()), source, whole, kernels)
            if np.min(table) < codes.lowest or np.max(table) > codes.highest:
                return None
        return Computed(self.inputs, name, operator, options=settings)
