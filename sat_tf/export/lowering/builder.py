"""Adds operations to a graph, and turns pending layers into tensors."""

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from sat_tf.export.lowering.codes import range_codes
from sat_tf.export.lowering.pending import (
    FinishedTensor,
    Lowered,
    PendingAveragePool,
    PendingConcatenation,
    PendingConstantSum,
    PendingFloatLayer,
    PendingFunction,
    PendingLinear,
    PendingMean,
    PendingPair,
    PendingPart,
    PendingRectifier,
    PendingSum,
    identity,
    window_mean,
)
from sat_tf.export.lowering.quantized_network import in_float32
from sat_tf.export.operations.add import Add, AddConstant
from sat_tf.export.operations.concatenate import Concatenate
from sat_tf.export.operations.float_layer import FloatCall, FloatLayer
from sat_tf.export.operations.linear import Linear, LinearKind
from sat_tf.export.operations.lookup import Lookup, table_of
from sat_tf.export.operations.mean import Mean
from sat_tf.export.operations.movements import StridedSlice
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.pairs import Pair, PairKind
from sat_tf.export.operations.pointwise import Pointwise, WithConstant
from sat_tf.export.operations.pools import AveragePool
from sat_tf.export.operations.quantize import Dequantize, Quantize, ShiftImage
from sat_tf.export.operations.shapes import Reshape
from sat_tf.export.operations.softmax import Softmax
from sat_tf.export.tflite.tensors import WHOLE, Codes, Tensor, Window
from sat_tf.qat.layout import call_name

# XNNPACK leaves a sum to other kernels, with another rounding, where a scale of what it adds is
# less than 2^-10 of its own. A summand of 2^-9 still counts hundredths of an output code.
_SMALLEST_SUMMAND = 2.0**-10
_COARSE_SUMMAND = 2.0**-9


class GraphBuilder:
    """Collects the tensors and operations of a graph.

    Args:
        layer_names: names that only the layers themselves may give to their tensors.
    """

    def __init__(self, layer_names: Collection[str] = ()) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.operations: list[Operation] = []
        self._layer_names = frozenset(layer_names)
        self._floats: dict[str, str] = {}

    def tensor(self, name: str, shape: tuple[int, ...], codes: Codes | None) -> str:
        """Adds a tensor; returns its name."""
        self.tensors[name] = Tensor(name, shape, codes)
        return name

    def add(self, operation: Operation, shape: tuple[int, ...], codes: Codes | None) -> str:
        """Adds an operation and the tensor it makes; returns the tensor's name."""
        self.operations.append(operation)
        return self.tensor(operation.output, shape, codes)

    def move(self, operation: Operation, shape: tuple[int, ...]) -> str:
        """Adds an operation that makes its tensor from the codes of its input as they are."""
        return self.add(operation, shape, self.tensors[operation.inputs[0]].codes)

    def between(self, name: str) -> str:
        """An unused name, close to the one given, for a tensor that no layer of the model makes."""
        while name in self.tensors or name in self._layer_names:
            name += "_"
        return name

    def materialize(self, pending: Lowered, codes: Codes, name: str, shape: tuple[int, ...]) -> str:
        """Adds what makes a tensor of codes of a pending layer; returns the tensor's name."""
        some_float = any(self.tensors[source].codes is None for source in pending.sources)
        # QUANTIZE cannot make codes with a unit, and no part alone has one.
        if isinstance(pending, PendingConcatenation) and not (some_float and codes.unit != 1.0):
            parts = tuple(self._part(part, codes) for part in pending.parts)
            return self._joined(pending, parts, name, shape, codes)
        if isinstance(pending, PendingRectifier) and pending.ceiling is None:
            return self.materialize(pending.rectified, codes.rectified(), name, shape)
        if some_float:
            real = self.as_float(pending, self.between(f"{name}_float"), shape)
            return self._quantize(real, codes, name, shape)
        if isinstance(pending, PendingFunction):
            return self._function(pending, codes, name, shape)
        if isinstance(pending, PendingAveragePool):
            return self._average(pending, codes, name, shape)
        if isinstance(pending, FinishedTensor):
            pending = identity(pending.source, shape[-1])
        if isinstance(pending, PendingMean) and not self._means_saturate(pending.source, codes):
            pending = self._mean_as_linear(pending)
        if isinstance(pending, PendingLinear):
            return self._linear(pending, codes, name, shape)
        if isinstance(pending, PendingMean):
            return self.add(Mean(pending.sources, name, pending.keep_dims), shape, codes)
        if isinstance(pending, PendingPair):
            return self._pair(pending, codes, name, shape)
        if isinstance(pending, PendingConstantSum):
            return self._constant_sum(pending, codes, name, shape)
        if isinstance(pending, PendingSum) and pending.divisor > 1:
            # The sum on a scale larger by the divisor: its codes are those of the mean.
            larger = dataclasses.replace(codes, scale=np.float32(codes.scale * pending.divisor))
            sums = self.between(f"{name}_sum")
            total = self.materialize(PendingSum(pending.sources), larger, sums, shape)
            mean = identity(total, shape[-1])
            scales = mean.channels.scales / pending.divisor
            channels = dataclasses.replace(mean.channels, scales=scales)
            return self._linear(dataclasses.replace(mean, channels=channels), codes, name, shape)
        first, second = self._two_summands(pending.sources, name)
        summands = (self._summand(first, codes), self._summand(second, codes))
        return self.add(Add(summands, name), shape, codes)

    def as_float(self, pending: Lowered, name: str, shape: tuple[int, ...]) -> str:
        """Adds what makes a float tensor of a pending layer; returns the tensor's name."""
        if isinstance(pending, FinishedTensor):
            return self.dequantized(pending.source)
        if isinstance(pending, PendingConcatenation):
            parts = tuple(
                self.as_float(part.pending, part.name, part.shape) for part in pending.parts
            )
            return self._joined(pending, parts, name, shape, None)
        if isinstance(pending, PendingFloatLayer):
            return self.add(FloatLayer(pending.sources, name, pending.calls), shape, None)
        if isinstance(pending, PendingRectifier):
            return self._float_rectifier(pending, name, shape)
        if isinstance(pending, PendingLinear) and not pending.is_pointwise:
            return self._linear(pending, None, name, shape)
        sources = tuple(self.dequantized(source) for source in pending.sources)
        if isinstance(pending, PendingLinear):
            return self._float_normalization(pending, sources[0], name, shape)
        if isinstance(pending, PendingAveragePool):
            return self.add(AveragePool(sources, name, pending.size, pending.window), shape, None)
        if isinstance(pending, PendingMean):
            return self.add(Mean(sources, name, pending.keep_dims), shape, None)
        if isinstance(pending, PendingFunction):
            layer = in_float32(pending.node, [self.tensors[source].shape for source in sources])
            calls = (FloatCall(call_name(pending.node), pending.node, layer, sources),)
            return self.add(FloatLayer(sources, name, calls), shape, None)
        if isinstance(pending, PendingConstantSum):
            return self._with_constant(sources[0], Pointwise.SUM, pending.values, name, shape)
        if isinstance(pending, PendingPair):
            return self._pair(dataclasses.replace(pending, sources=sources), None, name, shape)
        if pending.divisor > 1:
            total = self.as_float(PendingSum(sources), self.between(f"{name}_sum"), shape)
            return self._with_constant(total, Pointwise.PRODUCT, 1.0 / pending.divisor, name, shape)
        first, second = self._two_summands(sources, name)
        return self.add(Add((first, second), name), shape, None)

    def dequantized(self, source: str) -> str:
        """The float tensor with the real values of `source`; made once."""
        if self.tensors[source].codes is None:
            return source
        if source not in self._floats:
            shape, codes = self.tensors[source].shape, self.tensors[source].codes
            dequantize = Dequantize((source,), self.between(f"{source}_float"))
            self._floats[source] = self.add(dequantize, shape, None)
            if codes is not None and codes.unit != 1.0:
                name = self.between(f"{source}_real")
                self._floats[source] = self._with_constant(
                    self._floats[source], Pointwise.PRODUCT, codes.unit, name, shape
                )
        return self._floats[source]

    def drop_unread_images(self) -> None:
        """Leaves out codes of images that nothing reads: others of the image are read instead."""
        read = {name for operation in self.operations for name in operation.inputs}
        for operation in list(self.operations):
            if isinstance(operation, ShiftImage) and operation.output not in read:
                self.operations.remove(operation)
                del self.tensors[operation.output]

    def softmax(self, source: str) -> str:
        """The probabilities over the last axis of `source`, in float; returns their tensor."""
        name = self.between(f"{source}_probabilities")
        return self.add(Softmax((self.dequantized(source),), name), self._shape(source), None)

    def _joined(
        self,
        pending: PendingConcatenation,
        parts: tuple[str, ...],
        name: str,
        shape: tuple[int, ...],
        codes: Codes | None,
    ) -> str:
        """Parts on one grid, as one tensor."""
        if pending.kind is None:
            return self.add(Concatenate(parts, name, pending.axis), shape, codes)
        picked, *others = parts
        for index, part in enumerate(others, start=1):
            last = index == len(others)
            made = name if last else self.between(f"{name}_partial")
            sizes = np.broadcast_shapes(self._shape(picked), self._shape(part))
            picked = self.add(Pair((picked, part), made, pending.kind), sizes, codes)
        return picked

    def _pair(
        self, pending: PendingPair, codes: Codes | None, name: str, shape: tuple[int, ...]
    ) -> str:
        """A difference, or a product of two tensors at a time."""
        first, *others, last = pending.sources
        for other in others:
            one, two = self.tensors[first], self.tensors[other]
            sizes = np.broadcast_shapes(one.shape, two.shape)
            between = None
            if one.codes is not None and two.codes is not None:
                ends = np.outer(one.codes.real_range, two.codes.real_range)
                between = range_codes(float(np.min(ends)), float(np.max(ends)))
            partial = Pair((first, other), self.between(f"{name}_partial"), pending.kind)
            first = self.add(partial, sizes, between)
        inputs = (first, last)
        if codes is not None and pending.kind is PairKind.DIFFERENCE:
            inputs = (self._summand(first, codes), self._summand(last, codes))
        return self.add(Pair(inputs, name, pending.kind), shape, codes)

    def _function(
        self, pending: PendingFunction, codes: Codes, name: str, shape: tuple[int, ...]
    ) -> str:
        """A function of codes: a table, or what TensorFlow's converter makes of it."""
        source = self.tensors[pending.source].codes
        if pending.function is None or source is None:
            real = self.as_float(pending, self.between(f"{name}_float"), shape)
            return self._quantize(real, codes, name, shape)
        table = table_of(pending.function, source, codes)
        return self.add(Lookup((pending.source,), name, table), shape, codes)

    def _part(self, part: PendingPart, codes: Codes) -> str:
        """A part of a concatenation on the grid of the whole; returns its tensor's name."""
        pending = part.pending
        if isinstance(pending, FinishedTensor) and self.tensors[pending.source].codes == codes:
            return pending.source
        # A part that exists already, such as a pooled tensor, keeps its name.
        name = self.between(f"{part.name}_part") if part.name in self.tensors else part.name
        return self.materialize(pending, codes, name, part.shape)

    def _average(
        self, pending: PendingAveragePool, codes: Codes, name: str, shape: tuple[int, ...]
    ) -> str:
        """Means of windows beyond the image, by depthwise convolutions of parts of it.

        One such convolution divides by one number, so that windows which reach equally far beyond
        the image are pooled together, and joined. AVERAGE_POOL_2D, where there are too many, rounds
        to the codes that it reads, and slowly.
        """
        sizes = self._shape(pending.source)
        found = pending.parts(sizes)
        if found is None:
            return self._rounded_average(pending, codes, name, shape)
        down, across = found
        joined = []
        for row in down:
            rows = name if len(down) == 1 else self.between(f"{name}_rows")
            parts = []
            for column in across:
                part = rows if len(across) == 1 else self.between(f"{name}_part")
                ends = ((row.start, row.stop), (column.start, column.stop), (0, sizes[-1]))
                source = self._cut(pending.source, ends, self.between(f"{name}_input"))
                window = Window((row.stride, column.stride))
                mean = window_mean(source, sizes[-1], (row.size, column.size), window)
                parts.append(self._linear(mean, codes, part, (row.made, column.made, sizes[-1])))
            if len(across) > 1:
                self.add(Concatenate(tuple(parts), rows, 1), (row.made, *shape[1:]), codes)
            joined.append(rows)
        if len(down) > 1:
            self.add(Concatenate(tuple(joined), name, 0), shape, codes)
        return name

    def _cut(self, source: str, ends: tuple[tuple[int, int], ...], name: str) -> str:
        """A part of a tensor, from start to stop along each axis; itself where that is all."""
        shape = tuple(stop - start for start, stop in ends)
        if shape == self._shape(source):
            return source
        slices = tuple((start, stop, 1) for start, stop in ends)
        return self.move(StridedSlice((source,), name, slices), shape)

    def _rounded_average(
        self, pending: PendingAveragePool, codes: Codes, name: str, shape: tuple[int, ...]
    ) -> str:
        """Means on a grid of 8 bits, to which their kernel rounds, and these on another one."""
        source = self.tensors[pending.source]
        if source.codes is None:
            raise TypeError(f"{name}: the codes of a mean of float values.")
        read, grid = pending.source, source.codes
        fine = range_codes(*grid.real_range)
        if grid.real_scale > fine.real_scale:
            read, grid = self.between(f"{name}_fine"), fine
            self._linear(identity(pending.source, source.shape[-1]), fine, read, source.shape)
        operation = AveragePool((read,), self.between(f"{name}_mean"), pending.size, pending.window)
        mean = self.add(operation, shape, grid)
        return self._linear(identity(mean, shape[-1]), codes, name, shape)

    def _two_summands(self, sources: tuple[str, ...], name: str) -> tuple[str, str]:
        """The sum of all tensors but the last, whose codes cannot saturate, and the last."""
        total = sources[0]
        for source in sources[1:-1]:
            first, second = self.tensors[total], self.tensors[source]
            shape = np.broadcast_shapes(first.shape, second.shape)
            codes = None
            if first.codes is not None and second.codes is not None:
                low, high = np.add(first.codes.real_range, second.codes.real_range)
                codes = range_codes(float(low), float(high))
                total, source = self._summand(total, codes), self._summand(source, codes)
            operation = Add((total, source), self.between(f"{name}_partial"))
            total = self.add(operation, shape, codes)
        return total, sources[-1]

    def _means_saturate(self, source: str, codes: Codes) -> bool:
        """Whether MEAN itself makes these codes: it clips where int8 does, and nowhere else."""
        read = self.tensors[source].codes
        negative = read is None or read.lowest < read.zero_point
        return codes.unit == 1.0 and codes.highest == 127 and (codes.lowest == -128 or not negative)

    def _mean_as_linear(self, pending: PendingMean) -> PendingLinear:
        """The same mean as one window of a depthwise convolution."""
        rows, columns, channels = self._shape(pending.source)
        return window_mean(pending.source, channels, (rows, columns), WHOLE)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def _linear(
        self, pending: PendingLinear, codes: Codes | None, name: str, shape: tuple[int, ...]
    ) -> str:
        """A linear operation that makes these codes, or float values from real ones."""
        source = self.tensors[pending.source]
        units = source.codes.unit if source.codes else 1.0, codes.unit if codes else 1.0
        read, written = pending.source, name
        if codes is None:
            read = self.dequantized(read)
        elif source.codes is None:
            raise TypeError(f"{name}: codes of a float tensor.")
        # Convolutions need rows and columns; those of other tensors are 1x1 and take any.
        on_images = pending.kind is not LinearKind.FULLY_CONNECTED
        if on_images and len(source.shape) != 3:
            shaped = self.between(f"{name}_input")
            read = self.move(Reshape((read,), shaped), _image(source.shape))
        if on_images and len(shape) != 3:
            written = self.between(f"{name}_image")
        operation = Linear(
            (read,),
            written,
            kind=pending.kind,
            kernel=pending.kernel(),
            scales=pending.channels.scales * (units[0] / units[1]),
            bias=pending.channels.bias / units[1],
            center=pending.channels.center / units[1],
            spread=pending.channels.spread / units[1],
            window=pending.window,
            real=codes is None,
        )
        self.add(operation, _image(shape) if written != name else shape, codes)
        if written != name:
            self.move(Reshape((written,), name), shape)
        return name

    def _summand(self, source: str, output: Codes) -> str:
        """The tensor itself, or one on a larger scale where the sum's kernel needs it."""
        codes = self.tensors[source].codes
        if codes is None or codes.scale / output.scale >= _SMALLEST_SUMMAND:
            return source
        coarse = Codes(np.float32(_COARSE_SUMMAND * output.scale), 0)
        name, shape = self.between(f"{source}_coarse"), self._shape(source)
        return self._linear(identity(source, shape[-1]), coarse, name, shape)

    def _constant_sum(
        self, pending: PendingConstantSum, codes: Codes, name: str, shape: tuple[int, ...]
    ) -> str:
        scale, constant = pending.scale, pending.codes
        if scale / codes.scale < _SMALLEST_SUMMAND:
            scale = np.float32(_COARSE_SUMMAND * codes.scale)
            constant = np.rint(pending.values / scale).astype(np.int32)
        source = self._summand(pending.source, codes)
        operation = AddConstant((source,), name, constant, np.asarray(scale, np.float32))
        return self.add(operation, shape, codes)

    def _float_normalization(
        self, pending: PendingLinear, source: str, name: str, shape: tuple[int, ...]
    ) -> str:
        slope = pending.channels.codes.reshape(-1) * pending.channels.scales
        product = self.between(f"{name}_product")
        self._with_constant(source, Pointwise.PRODUCT, slope, product, shape)
        return self._with_constant(product, Pointwise.SUM, pending.channels.bias, name, shape)

    def _float_rectifier(self, pending: PendingRectifier, name: str, shape: tuple[int, ...]) -> str:
        real = self.as_float(pending.rectified, self.between(f"{name}_input"), shape)
        if pending.ceiling is None:
            return self._with_constant(real, Pointwise.MAXIMUM, 0.0, name, shape)
        lower = self.between(f"{name}_lower")
        self._with_constant(real, Pointwise.MAXIMUM, 0.0, lower, shape)
        return self._with_constant(lower, Pointwise.MINIMUM, pending.ceiling, name, shape)

    def _quantize(self, source: str, codes: Codes, name: str, shape: tuple[int, ...]) -> str:
        """Float to codes, clipped before where int8 does not saturate."""
        low, high = codes.real_range
        if codes.lowest != -128:
            lower = self.between(f"{name}_lower")
            source = self._with_constant(source, Pointwise.MAXIMUM, low, lower, shape)
        if codes.highest != 127:
            upper = self.between(f"{name}_upper")
            source = self._with_constant(source, Pointwise.MINIMUM, high, upper, shape)
        # The operation knows real values only, so the tensor is stored in real units.
        stored = dataclasses.replace(codes, scale=np.float32(codes.real_scale), unit=1.0)
        return self.add(Quantize((source,), name), shape, stored)

    def _with_constant(
        self,
        source: str,
        kind: Pointwise,
        constant: np.ndarray | float,
        name: str,
        shape: tuple[int, ...],
    ) -> str:
        operation = WithConstant((source,), name, kind, np.asarray(constant, np.float32))
        return self.add(operation, shape, None)


def _image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Rows, columns and channels for a tensor with other axes beside the channels."""
    return (1, math.prod(shape[:-1]), shape[-1])
