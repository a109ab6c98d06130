"""Sums of a tensor and a map that is the same for all images, and means of several tensors."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.builder import Draft, GraphBuilder, Range, Shape
from sat_tf.export.operations.linear import identity
from sat_tf.export.operations.operation import (
    FileParts,
    Made,
    Operation,
)
from sat_tf.export.operations.pairs import (
    COARSE_SUMMAND,
    ON_CODES,
    SMALLEST_SUMMAND,
    SUMS_ALIKE,
    Pair,
    summand,
)
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Writer, fused_activation

_SUM = ON_CODES[Pointwise.SUM]


@dataclasses.dataclass(frozen=True)
class AddConstant(Operation, Draft):
    """Sum of a tensor of codes and a map of codes that is the same for all images."""

    constant: np.ndarray  # Integer codes; axes of size 1 are broadcast.
    scale: np.ndarray  # Of the map, a float32 array without axes.

    keeps_stream = True
    operator = Pointwise.SUM.operator
    same_because = SUMS_ALIKE
    rounds = True
    fuses = True

    @property
    def codes(self) -> Codes:
        """How the map is stored."""
        return Codes(np.float32(self.scale), 0)

    @property
    def values(self) -> np.ndarray:
        """The map in real values."""
        return np.asarray(self.constant * np.float32(self.scale), np.float32)

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`; a map of very small values gets a larger scale, as `summand`."""
        scale, constant = np.float32(self.scale), self.constant
        if scale / codes.scale < SMALLEST_SUMMAND:
            scale = np.float32(COARSE_SUMMAND * codes.scale)
            constant = np.rint(self.values / scale).astype(np.int32)
        source = summand(builder, self.inputs[0], codes)
        operation = AddConstant((source,), name, constant, np.asarray(scale, np.float32))
        return builder.add(operation, shape, codes)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        source = builder.dequantized(self.inputs[0])
        return builder.with_constant(source, Pointwise.SUM, self.values, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        low, high = codes_of(self.inputs[0]).real_range
        return low + float(np.min(self.values)), high + float(np.max(self.values))

    def _grids(self, graph: Tensors) -> tuple[list[Codes], Codes]:
        return [graph.codes(self.inputs[0]), self.codes], graph.codes(self.output)

    def scale_problem(self, graph: Tensors) -> str | None:
        return _SUM.problem(*self._grids(graph))

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """Computes a sum of two tensors, of which the constant is one."""
        summands = (*inputs, self.constant[np.newaxis])
        return _SUM.stored(summands, *self._grids(graph), graph.kernels)

    def write(self, writer: Writer) -> None:
        fused = fused_activation(writer.tensors[self.output].codes)
        codes = self.constant.astype(np.int8)[np.newaxis]
        constant = writer.constant(f"{self.output}/constant", codes, self.scale)
        writer.operator(self.operator, [*self.inputs, constant], self.output, **fused)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Sums of codes and a constant."""
        pending = operator.tensor(0).name in operator.progress.pending
        return not pending and operator.is_constant(1) and operator.codes() is not None

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        stored, constant = operator.tensor(1), operator.constant(1, "INT8")
        if operator.source_codes() is None or stored.scales.size != 1 or any(stored.zero_points):
            raise NotUnderstoodError("its constant is not codes of one scale with zero point 0")
        if constant.shape[:1] != (1,):
            raise NotUnderstoodError("its constant is not the same for all images")
        scale = np.asarray(stored.scales[0], np.float32)
        codes = constant[0].astype(np.int32)
        operation = cls((operator.source(),), operator.output.name, codes, scale)
        return operation, operator.fused_codes()

    def file_parts(self, graph: Tensors, *, shares_kernel: bool = False) -> FileParts:
        """A byte for each code of the map."""
        return FileParts(constants=1, data_bytes=int(self.constant.size))


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
