"""The mean over rows and columns."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.kernels.xnnpack import mean_multiplier, sums_near_halves
from sat_tf.export.operations.builder import GraphBuilder, OperationDraft, Shape
from sat_tf.export.operations.linear import Linear, window_mean
from sat_tf.export.operations.movements import Reshape
from sat_tf.export.operations.operation import (
    Made,
    Operation,
    Portability,
    enumerated,
)
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import WHOLE, Codes, Tensor, Tensors
from sat_tf.export.tflite.writer import Operator, Writer


@dataclasses.dataclass(frozen=True)
class Mean(OperationDraft):
    """Mean over rows and columns."""

    keep_dims: bool = False  # Rows and columns stay, with size 1.

    operator = Operator("MEAN", 2, "ReducerOptions")
    num_constants = 1  # the axes
    rounds = True
    mixes = True

    def as_codes(self, builder: GraphBuilder, codes: Codes, name: str, shape: Shape) -> str:
        """See `Draft`.

        MEAN clips where int8 does, and nowhere else: other codes are made by a convolution.
        """
        read = builder.codes(self.inputs[0])
        negative = read is None or read.lowest < read.zero_point
        saturates = codes.highest == 127 and (codes.lowest == -128 or not negative)
        if codes.unit == 1.0 and saturates:
            return self.placed(builder, self.inputs, codes, name, shape)
        return self._as_linear(builder.tensors).as_codes(builder, codes, name, shape)

    def _as_linear(self, tensors: Mapping[str, Tensor]) -> Linear:
        """The same mean as one window of a depthwise convolution."""
        rows, columns, channels = tensors[self.inputs[0]].shape
        return window_mean(self.inputs[0], channels, (rows, columns), WHOLE)

    def on_shared_grid(self, tensors: dict[str, Tensor]) -> list[Operation]:
        """See `Operation`: a convolution, which is rounded alike everywhere, and a mean's shape."""
        convolution, made = self._as_linear(tensors), self.output
        if self.keep_dims:
            return [dataclasses.replace(convolution, output=made)]
        image = f"{made}_image"
        while image in tensors:
            image += "_"
        channels = tensors[self.inputs[0]].shape[-1]
        tensors[image] = Tensor(image, (1, 1, channels), tensors[made].codes)
        return [dataclasses.replace(convolution, output=image), Reshape((image,), made)]

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """An exact sum, rounded as the kernels do it."""
        (source,) = inputs
        if self.is_float(graph):
            real = np.mean(source, axis=(1, 2), dtype=np.float32, keepdims=self.keep_dims)
            return np.asarray(real)
        codes, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        return rounded_mean(source, codes, output, keep_dims=self.keep_dims, kernels=graph.kernels)

    def portability(self, graph: Tensors) -> Portability:
        """Every sum of its codes is known."""
        if self.is_float(graph):
            return super().portability(graph)
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        rows, columns, _ = graph.tensors[self.inputs[0]].shape
        count = rows * columns
        multiplier = mean_multiplier(source.scale, output.scale, count)
        zero_points, ends = (source.zero_point, output.zero_point), (output.lowest, output.highest)
        near = sums_near_halves(multiplier, count, zero_points, ends)
        return enumerated(
            near[(near >= count * source.lowest) & (near <= count * source.highest)],
            lambda kernels, sums: of_sums(sums, count, source, output, kernels),
            "sums",
            total=count * (source.highest - source.lowest) + 1,
        )

    def write(self, writer: Writer) -> None:
        axes = writer.constant(f"{self.output}/axes", np.array([1, 2], np.int32))
        writer.operator(self.operator, [*self.inputs, axes], self.output, keepDims=self.keep_dims)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        axes = operator.constant(1, "INT32")
        if not np.array_equal(axes, [1, 2]):
            raise NotUnderstoodError(f"its axes are {axes}, expected rows and columns")
        codes, source = operator.codes(), operator.source_codes()
        if codes and source and source.lowest >= source.zero_point:
            # The mean of what is never negative has no code below 0.
            codes = dataclasses.replace(codes, lowest=codes.zero_point)
        keep = bool(operator.option("keepDims"))
        return cls((operator.source(),), operator.output.name, keep_dims=keep), codes


def rounded_mean(
    stored: np.ndarray, source: Codes, output: Codes, *, keep_dims: bool, kernels: KernelSet
) -> np.ndarray:
    """The mean over rows and columns of stored integers."""
    count = stored.shape[1] * stored.shape[2]
    sums = np.sum(stored, axis=(1, 2), dtype=np.int64, keepdims=keep_dims)
    return of_sums(np.asarray(sums), count, source, output, kernels, keep_dims=keep_dims)


def of_sums(
    sums: np.ndarray,
    count: int,
    source: Codes,
    output: Codes,
    kernels: KernelSet,
    *,
    keep_dims: bool = False,
) -> np.ndarray:
    """The same of the sums of `count` stored integers."""
    scales, zeros = (source.scale, output.scale), (source.zero_point, output.zero_point)
    rounded = kernels.mean(sums, count, scales, zeros, keep_dims)
    return np.clip(rounded, output.lowest, output.highest).astype(np.int32)
