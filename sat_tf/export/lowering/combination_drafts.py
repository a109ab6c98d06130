"""Drafts of layers of several tensors: combined value by value or joined, sums with a constant."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from sat_tf.exact.operations.pairs import COARSE_SUMMAND, SMALLEST_SUMMAND, Pair, Pointwise
from sat_tf.exact.operations.row import Constant
from sat_tf.exact.tflite.tensors import Codes
from sat_tf.export.lowering.drafts import (
    Draft,
    GraphBuilder,
    OperationDraft,
    Range,
    Shape,
    range_codes,
)
from sat_tf.export.lowering.linear_drafts import identity


@dataclasses.dataclass(frozen=True)
class PairDraft(OperationDraft):
    """Values of two tensors, or of more, but for a difference."""

    operation: Pair

    keeps_stream = True

    @classmethod
    def of(cls, kind: Pointwise, inputs: tuple[str, ...] = ()) -> "PairDraft":
        """The draft of an operation."""
        return cls(inputs, Pair((), "", kind))

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
            grids = builder.codes(first), builder.codes(other)
            sizes = np.broadcast_shapes(builder.shape(first), builder.shape(other))
            between = codes if self.operation.keeps_grid else None
            if not self.operation.keeps_grid and grids[0] is not None and grids[1] is not None:
                between = range_codes(*self._range(grids[0].real_range, grids[1].real_range))
            partial = builder.between(f"{name}_partial")
            first = self._combined(builder, (first, other), between, partial, sizes)
        return self._combined(builder, (first, last), codes, name, shape)

    def _combined(
        self,
        builder: GraphBuilder,
        inputs: tuple[str, str],
        codes: Codes | None,
        name: str,
        shape: Shape,
    ) -> str:
        """Adds the operation of two tensors, as its kernel takes them."""
        read: tuple[str, ...] = inputs
        if codes is not None and self.operation.kind in (Pointwise.SUM, Pointwise.DIFFERENCE):
            read = tuple(summand(builder, source, codes) for source in inputs)
        return super().placed(builder, read, codes, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        return functools.reduce(self._range, (codes_of(each).real_range for each in self.inputs))

    def _range(self, first: Range, second: Range) -> Range:
        """The range of what two ranges make: it is monotonic in either, so that ends make it."""
        kind = self.operation.kind
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
class SumWithMap(Draft):
    """The sum of a tensor and a map of codes that is the same for all images."""

    inputs: tuple[str, ...]
    codes: np.ndarray  # Integers; axes of size 1 are broadcast.
    scale: np.float32  # Of the map.

    keeps_stream = True

    @property
    def values(self) -> np.ndarray:
        """The map in real values."""
        return np.asarray(self.codes * self.scale, np.float32)

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`; a map of very small values gets a larger scale, as `summand`."""
        scale, constant = self.scale, self.codes
        if scale / codes.scale < SMALLEST_SUMMAND:
            scale = np.float32(COARSE_SUMMAND * codes.scale)
            constant = np.rint(self.values / scale)
        source = summand(builder, self.inputs[0], codes)
        map_of_codes = Constant(constant.astype(np.int8)[np.newaxis], Codes(scale, 0))
        operation = Pair((source,), name, Pointwise.SUM, map_of_codes)
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

    @property
    def total(self) -> PairDraft:
        """Their sum."""
        return PairDraft.of(Pointwise.SUM, self.inputs)

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        # The sum on a scale larger by the divisor: its codes are those of the mean.
        count, channels = len(self.inputs), shape[-1]
        larger = dataclasses.replace(codes, scale=np.float32(codes.scale * count))
        sums = self.total.as_codes(builder, larger, builder.between(f"{name}_sum"), shape)
        share, zeros = np.full(channels, 1.0 / count), np.zeros(channels)
        return identity(sums, channels).scaled(share, zeros).as_codes(builder, codes, name, shape)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        sums = self.total.as_float(builder, builder.between(f"{name}_sum"), shape)
        share = 1.0 / len(self.inputs)
        return builder.with_constant(sums, Pointwise.PRODUCT, share, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = self.total.worst_range(codes_of)
        return low / len(self.inputs), high / len(self.inputs)


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of several on one grid, with the name and the shape of the tensor it becomes."""

    draft: Draft
    name: str
    shape: Shape


class OnOneGrid(Draft):
    """Parts that get the grid of the whole: joined, or the largest or smallest values of them.

    `whole` is what is done with them, as the draft of an operation without inputs.
    """

    def __init__(self, whole: OperationDraft, *parts: Part) -> None:
        self.whole, self.parts = whole, parts
        self.inputs = tuple(source for part in parts for source in part.draft.inputs)

    def takes_floats(self, codes: Codes) -> bool:
        """See `Draft`: QUANTIZE cannot make codes with a unit, and no part alone has one."""
        return codes.unit == 1.0

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        tensors = []
        for part in self.parts:
            tensor = part.draft.tensor
            if not tensor or builder.codes(tensor) != codes:
                # A part that exists already, such as a pooled tensor, keeps its name.
                exists = part.name in builder.tensors
                tensor = builder.between(f"{part.name}_part") if exists else part.name
                tensor = builder.materialize(part.draft, codes, tensor, part.shape)
            tensors.append(tensor)
        return self.whole.placed(builder, tuple(tensors), codes, name, shape)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        tensors = tuple(part.draft.as_float(builder, part.name, part.shape) for part in self.parts)
        return self.whole.placed(builder, tensors, None, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = zip(*(part.draft.worst_range(codes_of) for part in self.parts), strict=True)
        return min(low), max(high)
