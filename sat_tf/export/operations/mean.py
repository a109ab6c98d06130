"""The mean over axes."""

import dataclasses
import math
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
    """The mean over rows and columns; in files of other tools, over any axes."""

    keep_dims: bool = False  # The axes stay, with size 1.
    axes: tuple[int, ...] = (1, 2)  # Counted with the batch.

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
            real = np.mean(source, axis=self.axes, dtype=np.float32, keepdims=self.keep_dims)
            return np.asarray(real)
        axes = tuple(sorted(axis % source.ndim for axis in self.axes))
        count = math.prod(source.shape[axis] for axis in axes)
        sums = np.sum(source, axis=axes, dtype=np.int64, keepdims=self.keep_dims)
        # Builtin kernels have one of their own for images alone.
        of_images = self.keep_dims and source.ndim == 4 and axes == (1, 2)
        return self._of_sums(graph, np.asarray(sums), count, graph.kernels, of_images)

    def _of_sums(
        self,
        graph: Tensors,
        sums: np.ndarray,
        count: int,
        kernels: KernelSet,
        of_images: bool = False,
    ) -> np.ndarray:
        """Means of the sums of `count` stored integers."""
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        scales, zeros = (source.scale, output.scale), (source.zero_point, output.zero_point)
        rounded = kernels.mean(sums, count, scales, zeros, of_images)
        return np.clip(rounded, output.lowest, output.highest).astype(np.int32)

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
            lambda kernels, sums: self._of_sums(graph, sums, count, kernels),
            "sums",
            total=count * (source.highest - source.lowest) + 1,
        )

    def write(self, writer: Writer) -> None:
        axes = writer.constant(f"{self.output}/axes", np.array(self.axes, np.int32))
        writer.operator(self.operator, [*self.inputs, axes], self.output, keepDims=self.keep_dims)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        axes = operator.constant(1, "INT32", "INT64").reshape(-1).tolist()
        if not operator.progress.is_foreign and axes != [1, 2]:
            raise NotUnderstoodError(f"its axes are {axes}, expected rows and columns")
        codes, source = operator.codes(), operator.source_codes()
        if codes and source and source.lowest >= source.zero_point:
            # The mean of what is never negative has no code below 0.
            codes = dataclasses.replace(codes, lowest=codes.zero_point)
        keep = bool(operator.option("keepDims"))
        return cls((operator.source(),), operator.output.name, keep, tuple(axes)), codes
