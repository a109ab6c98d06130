"""The largest value and the mean of each window of an image."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.operation import (
    SELECTED,
    Constants,
    Made,
    Numbers,
    Operation,
    TfTensor,
    fake_quantized,
)
from sat_tf.export.operations.windows import taps
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Tensors, Window
from sat_tf.export.tflite.writer import Operator, Writer, placement_options


@dataclasses.dataclass(frozen=True)
class _Pool(Operation):
    """A pooling over windows.

    Attributes:
        size: of a window, in rows and columns.
        window: strides and padding.
    """

    size: tuple[int, int]
    window: Window

    @property
    def keeps_grid(self) -> bool:
        """See `Operation`."""
        return True

    def write(self, writer: Writer) -> None:
        """See `Operation`."""
        writer.operator(
            self.operator,
            self.inputs,
            self.output,
            filterHeight=self.size[0],
            filterWidth=self.size[1],
            **placement_options(self.window),
        )

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """See `Operation`."""
        operator.expect(fusedActivationFunction=0, otherwise="it fuses an activation:")
        operation = cls(
            (operator.source(),),
            operator.output.name,
            size=(operator.option("filterHeight"), operator.option("filterWidth")),
            window=operator.window(),
        )
        return operation, operator.moved_codes()


@dataclasses.dataclass(frozen=True)
class MaxPool(_Pool):
    """Largest value in a window."""

    operator = Operator("MAX_POOL_2D", 2, "Pool2DOptions")
    reads = ("MAX_POOL_2D",)
    same_in_float_because = SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """The largest value; padding is never that."""
        del graph
        (source,) = inputs
        lowest = np.iinfo(np.int32).min if source.dtype.kind == "i" else -np.inf
        views = taps(source, self.size, self.window, fill=lowest)
        result = next(views).copy()
        for view in views:
            np.maximum(result, view, out=result)
        return result

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        import tensorflow as tf

        del graph
        window = self.window
        return lambda source: tf.nn.max_pool2d(source, self.size, window.strides, window.padding)


@dataclasses.dataclass(frozen=True)
class AveragePool(_Pool):
    """Mean of a window without its padding, on the grid of the input, as the builtin kernel rounds.

    XNNPACK leaves it to that kernel.
    """

    operator = Operator("AVERAGE_POOL_2D", 2, "Pool2DOptions")
    reads = ("AVERAGE_POOL_2D",)
    mixes = True
    same_because = "XNNPACK leaves it to the builtin kernels, which divide integers alike"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `rounded_means`."""
        totals, counts = self._sums(*inputs)
        if self.is_float(graph):
            return np.asarray(totals / counts.astype(np.float32), np.float32)
        return rounded_means(totals, counts)

    def _sums(self, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The sum of the values in each window, and their number, without padding."""
        inside = np.ones((1, *source.shape[1:3], 1), np.int32)
        totals, counts = (
            functools.reduce(np.add, taps(values, self.size, self.window, fill=0))
            for values in (source, inside)
        )
        return totals, counts

    def numbers(self, graph: Tensors) -> Numbers:
        """The zero point."""
        if self.is_float(graph):
            return {}
        return {"zero_point": np.float32(graph.codes(self.output).zero_point)}

    def compute(self, graph: Tensors, constants: Constants, *inputs: TfTensor) -> TfTensor:
        """See `Operation`."""
        import tensorflow as tf

        (source,), window = inputs, self.window
        if self.is_float(graph):
            return tf.nn.avg_pool2d(source, self.size, window.strides, window.padding)
        # Means of small integers: their product with the count is nearly the sum, an integer.
        inside = tf.ones_like(source[:1, :, :, :1])
        ones = tf.ones([*self.size, 1, 1])
        counts = tf.nn.conv2d(inside, ones, window.strides, window.padding)
        stored = source + constants["zero_point"]
        means = tf.nn.avg_pool2d(stored, self.size, window.strides, window.padding)
        totals = tf.round(means * counts)
        halves = tf.floor(counts / 2.0)
        rounded = tf.sign(totals) * tf.floor((tf.abs(totals) + halves + 0.25) / counts)
        return rounded - constants["zero_point"]

    def keras_function(self, graph: Tensors) -> Callable[..., TfTensor]:
        """See `Operation`."""
        import tensorflow as tf

        codes, window = graph.tensors[self.output].codes, self.window
        return lambda source: fake_quantized(
            codes, tf.nn.avg_pool2d(source, self.size, window.strides, window.padding)
        )


def rounded_means(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Integer means of stored integers, halves away from zero."""
    return np.asarray(np.sign(totals) * ((np.abs(totals) + counts // 2) // counts), np.int32)
