"""Means and largest values of windows, means of whole images, and values between pixels."""

import dataclasses
import functools
import math

import numpy as np

from sat_tf.exact.kernels.bilinear import AxisGrid, Places, interpolated, resized
from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.kernels.xnnpack import mean_multiplier, sums_near_halves
from sat_tf.exact.operations.operation import SELECTED, Made, Operation, Portability, enumerated
from sat_tf.exact.operations.windows import taps
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, grid_of
from sat_tf.exact.tflite.tensors import WIDE, Activation, Tensors, Window
from sat_tf.exact.tflite.writer import Operator, Writer, placement_options

_SHARE_OF_WIDE = 0.3  # of codes of 16 bits that rounding twice may move


@dataclasses.dataclass(frozen=True)
class _Pool(Operation):
    """A pooling over windows."""

    size: tuple[int, int]  # The size of a window, in rows and columns.
    window: Window  # Strides and padding.

    takes_wide = True

    def write(self, writer: Writer) -> None:
        options = {"filterHeight": self.size[0], "filterWidth": self.size[1]}
        options |= placement_options(self.window)
        writer.operator(self.operator, self.inputs, self.output, **options)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        codes, source = operator.fused_codes(), operator.source_codes()
        if codes and source and grid_of(codes) == grid_of(source):
            codes = source.clipped(Activation(operator.activation))
        size = operator.option("filterHeight"), operator.option("filterWidth")
        return cls((operator.source(),), operator.output.name, size, operator.window()), codes

    def expect_own_form(self, operator: OperatorView) -> None:
        operator.moved_codes()
        if operator.activation != Activation.NONE.value:
            raise NotUnderstoodError(f"it fuses an activation, {operator.activation}")

    def _clipped(self, graph: Tensors, values: np.ndarray) -> np.ndarray:
        """Clips the values where the operator fuses an activation."""
        if self.is_float(graph):
            return values
        codes = graph.codes(self.output)
        return np.clip(values, codes.lowest, codes.highest)


@dataclasses.dataclass(frozen=True)
class MaxPool(_Pool):
    """Largest value in a window."""

    operator = Operator("MAX_POOL_2D", 2, "Pool2DOptions")
    same_in_float_because = SELECTED
    moves = True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`: padding is never the largest value."""
        (source,) = inputs
        lowest = np.iinfo(np.int32).min if source.dtype.kind == "i" else -np.inf
        views = taps(source, self.size, self.window, fill=lowest)
        largest = next(views).copy()
        for view in views:
            np.maximum(largest, view, out=largest)
        return self._clipped(graph, largest)


@dataclasses.dataclass(frozen=True)
class AveragePool(_Pool):
    """Mean of a window without its padding, by the builtin kernel, to which XNNPACK leaves it."""

    operator = Operator("AVERAGE_POOL_2D", 2, "Pool2DOptions")
    keeps_grid = True
    same_because = "XNNPACK leaves it to the builtin kernels, which divide integers alike"
    averages = True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """Divides the sum of the values in each window by their number, which excludes padding."""
        (source,) = inputs
        ones = np.ones((1, *source.shape[1:3], 1), np.int32)
        totals, counts = (
            functools.reduce(np.add, taps(values, self.size, self.window, fill=0))
            for values in (source, ones)
        )
        if self.is_float(graph):
            return np.asarray(totals / counts.astype(np.float32), np.float32)
        # Halves are rounded away from zero.
        means = np.sign(totals) * ((np.abs(totals) + counts // 2) // counts)
        return self._clipped(graph, np.asarray(means, np.int32))


@dataclasses.dataclass(frozen=True)
class ResizeBilinear(Operation):
    """Codes interpolated between neighbouring pixels, on the grid of the input, rounded once."""

    size: tuple[int, int]  # Rows and columns of the result.
    # Whether pixels are placed by their centers, as in TensorFlow 2 and Keras.
    half_pixel_centers: bool = True
    align_corners: bool = False  # Whether the first and the last pixels coincide.

    operator = Operator("RESIZE_BILINEAR", 3, "ResizeBilinearOptions")
    num_constants = 1  # the size
    rounds = True
    keeps_grid = True
    averages = True

    def grids(self, graph: Tensors) -> tuple[AxisGrid, AxisGrid]:
        """Returns how the result's rows and columns lie over the input's."""
        (rows, columns, _), (new_rows, new_columns) = graph.tensors[self.inputs[0]].shape, self.size
        flags = self.half_pixel_centers, self.align_corners
        return AxisGrid(rows, new_rows, *flags), AxisGrid(columns, new_columns, *flags)

    def _places(self, graph: Tensors, kernels: KernelSet) -> tuple[Places, Places]:
        rows, columns = map(kernels.interpolation.places, self.grids(graph))
        return rows, columns

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """See `Operation`: every place is known, and sums of integers are the same everywhere."""

        def positions(kernels: KernelSet, _: np.ndarray) -> np.ndarray:
            bits = kernels.interpolation.bits
            axes = [axis.positions(bits) for axis in self._places(graph, kernels)]
            return np.concatenate(axes)

        total = sum(self.size)
        return enumerated(np.arange(total), positions, "places", total=total)

    def ends_process(self, graph: Tensors, kernels: KernelSet) -> str | None:
        """See `Operation`: places of rounded steps may lie beyond the image."""
        if self.is_float(graph):
            return None
        grids = zip(self.grids(graph), self._places(graph, kernels), strict=True)
        beyond = next((grid for grid, axis in grids if np.any(axis.low >= grid.before)), None)
        if beyond is None:
            return None
        return (
            f"its kernel of RESIZE_BILINEAR reads beyond images of {beyond.before:,} pixels that "
            f"become {beyond.after:,}"
        )

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (source,) = inputs
        if self.is_float(graph):
            return interpolated(source, *self.grids(graph))
        return resized(source, *self._places(graph, graph.kernels), graph.kernels.interpolation)

    def write(self, writer: Writer) -> None:
        size = writer.constant(f"{self.output}/size", np.array(self.size, np.int32))
        options = {"halfPixelCenters": self.half_pixel_centers, "alignCorners": self.align_corners}
        writer.operator(self.operator, [*self.inputs, size], self.output, **options)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        size = operator.constant(1, "INT32").tolist()
        if len(operator.tensor(0).shape) != 4 or len(size) != 2:
            raise NotUnderstoodError("it does not resize images")
        half, corners = operator.option("halfPixelCenters"), operator.option("alignCorners")
        names = (operator.source(),), operator.output.name
        return cls(*names, (size[0], size[1]), bool(half), bool(corners)), operator.moved_codes()

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return 8  # bytes of the size


@dataclasses.dataclass(frozen=True)
class Mean(Operation):
    """The mean over rows and columns; in files of other tools, over any axes."""

    keep_dims: bool = False  # Whether the axes stay, with size 1.
    axes: tuple[int, ...] = (1, 2)  # The axes, counted with the batch.

    operator = Operator("MEAN", 2, "ReducerOptions")
    num_constants = 1  # the axes
    rounds = True
    averages = True
    takes_wide = True

    def share_rounded_otherwise(self, graph: Tensors) -> float:
        """See `Operation`: kernels for 16 bits round twice, the first time to half a code or so."""
        return _SHARE_OF_WIDE if WIDE in self.bits(graph) else 0.0

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`: an exact sum, rounded as the kernels do."""
        (source,) = inputs
        if self.is_float(graph):
            return np.asarray(np.mean(source, self.axes, np.float32, keepdims=self.keep_dims))
        axes = tuple(sorted(axis % source.ndim for axis in self.axes))
        count = math.prod(source.shape[axis] for axis in axes)
        sums = np.sum(source, axis=axes, dtype=np.int64, keepdims=self.keep_dims)
        # The builtin kernels include one for images alone.
        of_images = self.keep_dims and source.ndim == 4 and axes == (1, 2)
        return self._of_sums(graph, np.asarray(sums), count, graph.kernels, of_images)

    def _of_sums(
        self, graph: Tensors, sums: np.ndarray, count: int, kernels: KernelSet, of_images: bool
    ) -> np.ndarray:
        """Computes means from the sums of `count` stored integers."""
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        scales, zeros = (source.scale, output.scale), (source.zero_point, output.zero_point)
        rounded = kernels.on(output.bits).mean(sums, count, scales, zeros, of_images)
        return np.clip(rounded, output.lowest, output.highest).astype(np.int32)

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """See `Operation`: every sum of its codes is known."""
        if WIDE in self.bits(graph):
            return super().portability_of_codes(graph)
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        rows, columns, _ = graph.tensors[self.inputs[0]].shape
        count = rows * columns
        multiplier = mean_multiplier(source.scale, output.scale, count)
        zero_points, ends = (source.zero_point, output.zero_point), (output.lowest, output.highest)
        near = sums_near_halves(multiplier, count, zero_points, ends)
        return enumerated(
            near[(near >= count * source.lowest) & (near <= count * source.highest)],
            lambda kernels, sums: self._of_sums(graph, sums, count, kernels, False),
            "sums",
            total=count * (source.highest - source.lowest) + 1,
        )

    def write(self, writer: Writer) -> None:
        axes = writer.constant(f"{self.output}/axes", np.array(self.axes, np.int32))
        writer.operator(self.operator, [*self.inputs, axes], self.output, keepDims=self.keep_dims)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        axes = operator.constant(1, "INT32", "INT64").reshape(-1).tolist()
        codes, source = operator.codes(), operator.source_codes()
        if (codes is None) != (source is None):
            raise NotUnderstoodError("it makes codes of float values, or float values of codes")
        if codes and source and source.lowest >= source.zero_point:
            # The mean of values that are never negative has no code below 0.
            codes = dataclasses.replace(codes, lowest=codes.zero_point)
        keep = bool(operator.option("keepDims"))
        return cls((operator.source(),), operator.output.name, keep, tuple(axes)), codes

    def expect_own_form(self, operator: OperatorView) -> None:
        if self.axes != (1, 2):
            raise NotUnderstoodError(f"its axes are {[*self.axes]}, expected rows and columns")
