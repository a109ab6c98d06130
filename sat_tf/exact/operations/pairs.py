"""Layers of several tensors: joined, or put together value by value; sums with a constant."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from sat_tf.exact.operations.builder import Draft, GraphBuilder, OperationDraft, Range, Shape
from sat_tf.exact.operations.linear import identity
from sat_tf.exact.operations.operation import SELECTED, Made
from sat_tf.exact.operations.pointwise import (
    COARSE_SUMMAND,
    SMALLEST_SUMMAND,
    OfTwo,
    Pointwise,
    WithConstant,
)
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView
from sat_tf.exact.tflite.tensors import Codes, Tensors, range_codes
from sat_tf.exact.tflite.writer import Operator, Writer, fused_activation


@dataclasses.dataclass(frozen=True)
class Pair(OfTwo, OperationDraft):
    """An operation of two tensors; a draft may have more of them, but for a difference."""

    keeps_stream = True
    mixes = True

    @property
    def selects(self) -> bool:
        return self.kind.selects

    def placed(
        self,
        builder: GraphBuilder,
        inputs: tuple[str, ...],
        codes: Codes | None,
        name: str,
        shape: Shape,
    ) -> str:
        """Adds operations of two tensors at a time; the codes of all but the last cannot saturate.

        Those of what selects values are the same between as at the end.
        """
        first, *others, last = inputs
        for other in others:
            one, two = builder.codes(first), builder.codes(other)
            sizes = np.broadcast_shapes(builder.shape(first), builder.shape(other))
            between = codes if self.keeps_grid else None
            if not self.keeps_grid and one is not None and two is not None:
                between = range_codes(*_range(self.kind, one.real_range, two.real_range))
            read = self._taken(builder, (first, other), between)
            partial = self._named(read, builder.between(f"{name}_partial"))
            first = builder.add(partial, sizes, between)
        read = self._taken(builder, (first, last), codes)
        return builder.add(self._named(read, name), shape, codes)

    def _taken(
        self, builder: GraphBuilder, inputs: tuple[str, ...], codes: Codes | None
    ) -> tuple[str, ...]:
        """The tensors, as the kernel that makes these codes of them takes them."""
        if codes is None or self.kind not in (Pointwise.SUM, Pointwise.DIFFERENCE):
            return inputs
        return tuple(summand(builder, source, codes) for source in inputs)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        ranges = [codes_of(source).real_range for source in self.inputs]
        return functools.reduce(functools.partial(_range, self.kind), ranges)

    def write(self, writer: Writer) -> None:
        fused = fused_activation(writer.graph.tensors[self.output].codes)
        options = {} if self.kind.selects else fused
        writer.operator(self.kind.operator, self.inputs, self.output, **options)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Two tensors that operators have made: neither a constant nor places in a table."""
        is_place = operator.tensor(0).name in operator.progress.pending
        return not (is_place or operator.is_constant(0) or operator.is_constant(1))

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        kind = Pointwise(operator.name)
        codes = operator.codes() if kind.selects else operator.fused_codes()
        names = (operator.source(0), operator.source(1))
        if any((operator.source_codes(index) is None) != (codes is None) for index in (0, 1)):
            raise NotUnderstoodError("it combines codes and float values")
        if kind.selects:
            codes = operator.selected_codes()
        return cls(names, operator.output.name, kind), codes


def _range(kind: Pointwise, first: Range, second: Range) -> Range:
    """The range of what two ranges make: each kind is monotonic in either, so that ends make it."""
    ends = kind.on_arrays(np.reshape(first, (2, 1)), np.asarray(second))
    return float(np.min(ends)), float(np.max(ends))


def summand(builder: GraphBuilder, source: str, output: Codes) -> str:
    """The tensor itself, or one on a larger scale where the kernel of its sum needs that."""
    codes = builder.codes(source)
    if codes is None or codes.scale / output.scale >= SMALLEST_SUMMAND:
        return source
    coarse = Codes(np.float32(COARSE_SUMMAND * output.scale), 0)
    name, shape = builder.between(f"{source}_coarse"), builder.shape(source)
    return identity(source, shape[-1]).as_codes(builder, coarse, name, shape)


@dataclasses.dataclass(frozen=True)
class AddConstant(Draft):
    """The sum of a tensor and a map of codes that is the same for all images."""

    inputs: tuple[str, ...]
    constant: np.ndarray  # Integer codes; axes of size 1 are broadcast.
    scale: np.float32  # Of the map.

    keeps_stream = True

    @property
    def values(self) -> np.ndarray:
        """The map in real values."""
        return np.asarray(self.constant * self.scale, np.float32)

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`; a map of very small values gets a larger scale, as `summand`."""
        scale, constant = self.scale, self.constant
        if scale / codes.scale < SMALLEST_SUMMAND:
            scale = np.float32(COARSE_SUMMAND * codes.scale)
            constant = np.rint(self.values / scale)
        source = summand(builder, self.inputs[0], codes)
        constant = constant.astype(np.int8)[np.newaxis]
        operation = WithConstant((source,), name, Pointwise.SUM, constant, Codes(scale, 0))
        return builder.add(operation, shape, codes)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        source = builder.dequantized(self.inputs[0])
        return builder.with_constant(source, Pointwise.SUM, self.values, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = codes_of(self.inputs[0]).real_range
        return low + float(np.min(self.values)), high + float(np.max(self.values))


@dataclasses.dataclass(frozen=True)
class MeanOfTensors(Draft):
    """The mean of several tensors: their sum, divided by a requantization."""

    inputs: tuple[str, ...]

    keeps_stream = True

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        # The sum on a scale larger by the divisor: its codes are those of the mean.
        count = len(self.inputs)
        larger = dataclasses.replace(codes, scale=np.float32(codes.scale * count))
        total = Pair(self.inputs, "", Pointwise.SUM)
        sums = total.as_codes(builder, larger, builder.between(f"{name}_sum"), shape)
        mean = identity(sums, shape[-1])
        mean = dataclasses.replace(mean, scales=mean.scales / count)
        return mean.as_codes(builder, codes, name, shape)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        sources = tuple(map(builder.dequantized, self.inputs))
        total = Pair(sources, "", Pointwise.SUM)
        sums = total.as_float(builder, builder.between(f"{name}_sum"), shape)
        share = 1.0 / len(self.inputs)
        return builder.with_constant(sums, Pointwise.PRODUCT, share, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = Pair(self.inputs, "", Pointwise.SUM).worst_range(codes_of)
        return low / len(self.inputs), high / len(self.inputs)


@dataclasses.dataclass(frozen=True)
class Concatenate(OperationDraft):
    """Tensors on one grid, joined along an axis."""

    axis: int  # Along which, counted without the batch dimension.

    operator = Operator("CONCATENATION", 2, "ConcatenationOptions")
    mixes = True
    keeps_grid = True
    same_in_float_because = SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return np.concatenate(inputs, axis=self.axis + 1)

    def write(self, writer: Writer) -> None:
        writer.operator(self.operator, self.inputs, self.output, axis=self.axis + 1)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        operator.expect(fusedActivationFunction=0, otherwise="it fuses an activation:")
        names = [operator.source(index) for index in range(len(operator.stored.inputs))]
        codes = operator.selected_codes()
        dimensions = len(operator.output.shape)
        axis = operator.option("axis") % dimensions
        if axis == 0:
            raise NotUnderstoodError("it joins images, not their parts")
        return cls(tuple(names), operator.output.name, axis - 1), codes


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of several on one grid, with the name and the shape of the tensor it becomes."""

    draft: Draft
    name: str
    shape: Shape


@dataclasses.dataclass(frozen=True)
class OnOneGrid(Draft):
    """Parts that get the grid of the whole: joined, or the largest or smallest values of them."""

    inputs: tuple[str, ...]  # Those of the parts.
    parts: tuple[Part, ...]  # In order.
    operation: OperationDraft  # What is done with them, without inputs.

    def takes_floats(self, codes: Codes) -> bool:
        """See `Draft`: QUANTIZE cannot make codes with a unit, and no part alone has one."""
        return codes.unit == 1.0

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        parts = []
        for part in self.parts:
            tensor = part.draft.tensor
            if not tensor or builder.codes(tensor) != codes:
                # A part that exists already, such as a pooled tensor, keeps its name.
                exists = part.name in builder.tensors
                tensor = builder.between(f"{part.name}_part") if exists else part.name
                tensor = builder.materialize(part.draft, codes, tensor, part.shape)
            parts.append(tensor)
        return self.operation.placed(builder, tuple(parts), codes, name, shape)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        parts = tuple(part.draft.as_float(builder, part.name, part.shape) for part in self.parts)
        return self.operation.placed(builder, parts, None, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = zip(*(part.draft.worst_range(codes_of) for part in self.parts), strict=True)
        return min(low), max(high)
