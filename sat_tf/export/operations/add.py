"""Sums: of two tensors, and of a tensor and a map that is the same for all images."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.kernels.xnnpack import summand_multipliers
from sat_tf.export.operations.builder import Draft, GraphBuilder, OperationDraft, Range, Shape
from sat_tf.export.operations.linear import identity
from sat_tf.export.operations.operation import (
    ROUNDED_ONCE,
    Constants,
    FileParts,
    Made,
    Numbers,
    Operation,
    TfTensor,
    clipped,
    code_ends,
    stored_codes,
    tf,
)
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors, range_codes
from sat_tf.export.tflite.writer import Operator, Writer, fused_activation

_ADD = Operator("ADD", 2, "AddOptions")
SUMS_ALIKE = "integers with multipliers of 20 bits, rounded half up, in all of XNNPACK's kernels"
# XNNPACK leaves a sum to other kernels, with another rounding, where a scale of what it adds is
# less than 2^-10 of its own. A summand of 2^-9 still counts hundredths of an output code.
_SMALLEST_SUMMAND = 2.0**-10
_COARSE_SUMMAND = 2.0**-9
# The same holds where such a scale is this many times its own.
LARGEST_SUMMAND = 256.0


def summand(builder: GraphBuilder, source: str, output: Codes) -> str:
    """The tensor itself, or one on a larger scale where the kernel of its sum needs that."""
    codes = builder.codes(source)
    if codes is None or codes.scale / output.scale >= _SMALLEST_SUMMAND:
        return source
    coarse = Codes(np.float32(_COARSE_SUMMAND * output.scale), 0)
    name, shape = builder.between(f"{source}_coarse"), builder.shape(source)
    return identity(source, shape[-1]).as_codes(builder, coarse, name, shape)


def sum_problem(summands: Sequence[Codes], output: Codes) -> str | None:
    """Why the kernel of a sum does not take its scales, with the fix; None where it does."""
    largest = max(float(codes.scale / output.scale) for codes in summands)
    if largest < LARGEST_SUMMAND:
        return None
    return (
        f"received a sum with scales {largest:.4g} times smaller than those of a tensor it adds, "
        f"expected less than {LARGEST_SUMMAND:g} times; its clipping level is much too small: "
        "call sat_tf.calibrate, or train longer."
    )


@dataclasses.dataclass(frozen=True)
class Add(OperationDraft):
    """Sum of two tensors, both codes or both float; as a draft, of any number of tensors."""

    keeps_stream = True
    operator = _ADD
    reads = ("ADD",)
    same_because = SUMS_ALIKE
    same_in_float_because = ROUNDED_ONCE
    rounds = True
    mixes = True
    fuses = True

    def placed(
        self,
        builder: GraphBuilder,
        inputs: tuple[str, ...],
        codes: Codes | None,
        name: str,
        shape: Shape,
    ) -> str:
        """Adds sums of two tensors at a time; the codes of all but the last cannot saturate."""
        total, *others, last = inputs
        for source in others:
            one, two = builder.codes(total), builder.codes(source)
            sizes = np.broadcast_shapes(builder.shape(total), builder.shape(source))
            between = None
            if one is not None and two is not None:
                low, high = np.add(one.real_range, two.real_range)
                between = range_codes(float(low), float(high))
                total, source = (summand(builder, each, between) for each in (total, source))
            partial = self._named((total, source), builder.between(f"{name}_partial"))
            total = builder.add(partial, sizes, between)
        inputs = (total, last)
        if codes is not None:
            inputs = (summand(builder, total, codes), summand(builder, last, codes))
        return builder.add(self._named(inputs, name), shape, codes)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        """See `Draft`."""
        ranges = np.array([codes_of(source).real_range for source in self.inputs])
        low, high = ranges.sum(axis=0)
        return float(low), float(high)

    def scale_problem(self, graph: Tensors) -> str | None:
        """See `Operation`."""
        return sum_problem([graph.codes(name) for name in self.inputs], graph.codes(self.output))

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `rounded_sum`."""
        first, second = inputs
        if self.is_float(graph):
            return np.asarray(first + second, np.float32)
        codes = [graph.codes(name) for name in self.inputs]
        return rounded_sum((first, second), codes, graph.codes(self.output), graph.kernels)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        fused = fused_activation(writer.tensors[self.output].codes)
        writer.operator(self.operator, self.inputs, self.output, **fused)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Sums of what operators have made: neither a constant nor places in a table."""
        pending = operator.tensor(0).name in operator.progress.pending
        return not pending and not operator.is_constant(1)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        codes = operator.fused_codes()
        if any((operator.source_codes(index) is None) != (codes is None) for index in (0, 1)):
            raise NotUnderstoodError("it adds codes and float values")
        return cls((operator.source(0), operator.source(1)), operator.output.name), codes

    def numbers(self, graph: Tensors) -> Numbers:
        """Multipliers, and the ends of the codes."""
        if self.is_float(graph):
            return {}
        output = graph.codes(self.output)
        multipliers = scaled_multipliers([graph.codes(name) for name in self.inputs], output)
        return {"multipliers": multipliers, **code_ends(output)}

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        return tf.add(*inputs) if self.is_float(graph) else computed_sum(constants, inputs)

    def on_reals(self, graph: Tensors, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        del graph
        return tf.add(*inputs)


@dataclasses.dataclass(frozen=True)
class AddConstant(Operation, Draft):
    """Sum of a tensor of codes and a map of codes that is the same for all images.

    Attributes:
        constant: integer codes; axes of size 1 are broadcast.
        scale: of the map, a float32 array without axes.
    """

    constant: np.ndarray
    scale: np.ndarray

    keeps_stream = True
    operator = _ADD
    reads = ("ADD",)
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
        if scale / codes.scale < _SMALLEST_SUMMAND:
            scale = np.float32(_COARSE_SUMMAND * codes.scale)
            constant = np.rint(self.values / scale).astype(np.int32)
        source = summand(builder, self.inputs[0], codes)
        operation = AddConstant((source,), name, constant, np.asarray(scale, np.float32))
        return builder.add(operation, shape, codes)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        """See `Draft`."""
        source = builder.dequantized(self.inputs[0])
        return builder.with_constant(source, Pointwise.SUM, self.values, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        """See `Draft`."""
        low, high = codes_of(self.inputs[0]).real_range
        return low + float(np.min(self.values)), high + float(np.max(self.values))

    def scale_problem(self, graph: Tensors) -> str | None:
        """See `Operation`."""
        summands = [*(graph.codes(name) for name in self.inputs), self.codes]
        return sum_problem(summands, graph.codes(self.output))

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `rounded_sum`."""
        codes = [graph.codes(self.inputs[0]), self.codes]
        summands = (*inputs, self.constant[np.newaxis])
        return rounded_sum(summands, codes, graph.codes(self.output), graph.kernels)

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
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
        """See `Operation`."""
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
        del graph, shares_kernel
        return FileParts(constants=1, data_bytes=int(self.constant.size))

    def numbers(self, graph: Tensors) -> Numbers:
        """The map, multipliers, and the ends of the codes."""
        output = graph.codes(self.output)
        summands = [graph.codes(self.inputs[0]), self.codes]
        return {
            "constant": self.constant.astype(np.float32),
            "multipliers": scaled_multipliers(summands, output),
            **code_ends(output),
        }

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        del graph
        (source,) = inputs
        return computed_sum(constants, (source, constants["constant"][np.newaxis]))

    def on_reals(self, graph: Tensors, *inputs: TfTensor) -> TfTensor:
        """See `Operation`: the converter stores the map with the codes of a FakeQuant."""
        del graph
        (source,), end = inputs, 127.0 * float(self.scale)
        values = tf.constant(self.constant.astype(np.float32) * self.scale)
        return source + tf.quantization.fake_quant_with_min_max_args(
            values, -end, end, num_bits=8, narrow_range=True
        )


@dataclasses.dataclass(frozen=True)
class MeanOfTensors(Draft):
    """The mean of several tensors: their sum, divided by a requantization."""

    inputs: tuple[str, ...]

    keeps_stream = True

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`."""
        # The sum on a scale larger by the divisor: its codes are those of the mean.
        count = len(self.inputs)
        larger = dataclasses.replace(codes, scale=np.float32(codes.scale * count))
        sums = Add(self.inputs, "").as_codes(builder, larger, builder.between(f"{name}_sum"), shape)
        mean = identity(sums, shape[-1])
        mean = dataclasses.replace(mean, scales=mean.scales / count)
        return mean.as_codes(builder, codes, name, shape)

    def as_float(self, builder: GraphBuilder, name: str, shape: Shape) -> str:
        """See `Draft`."""
        sources = tuple(map(builder.dequantized, self.inputs))
        sums = Add(sources, "").as_float(builder, builder.between(f"{name}_sum"), shape)
        share = 1.0 / len(self.inputs)
        return builder.with_constant(sums, Pointwise.PRODUCT, share, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        """See `Draft`."""
        ranges = np.array([codes_of(source).real_range for source in self.inputs])
        low, high = ranges.sum(axis=0) / len(self.inputs)
        return float(low), float(high)


def rounded_sum(
    summands: Sequence[np.ndarray], inputs: Sequence[Codes], output: Codes, kernels: KernelSet
) -> np.ndarray:
    """The sum of two tensors of stored integers, rounded as the kernels do it."""
    codes = [
        stored.astype(np.int64) - grid.zero_point
        for stored, grid in zip(summands, inputs, strict=True)
    ]
    made = kernels.summed(codes, [grid.scale for grid in inputs], output.scale)
    return stored_codes(made, output)


def scaled_multipliers(summands: Sequence[Codes], output: Codes) -> np.ndarray:
    """The multipliers and the shift in one, for `computed_sum`."""
    scales = [codes.scale for codes in summands]
    multipliers, shift = summand_multipliers(scales, output.scale)
    # Powers of two only move the binary point of a float64.
    return np.asarray(np.ldexp(multipliers.astype(np.float64), -shift))


def computed_sum(constants: Constants, summands: Sequence[TfTensor]) -> TfTensor:
    """Σ multiplier · code in TensorFlow, rounded half up and clipped."""
    multipliers = tf.unstack(constants["multipliers"], len(summands))
    total = tf.constant(0.5, tf.float64)
    for codes, multiplier in zip(summands, multipliers, strict=True):
        total += tf.cast(codes, tf.float64) * multiplier
    return clipped(tf.cast(tf.floor(total), tf.float32), constants)
