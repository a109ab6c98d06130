"""Functions of one value: by an operator of their own, by a table, or by TensorFlow."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.core.grid import int8_codes
from sat_tf.exact.kernels.kernel_sets import KERNEL_SETS
from sat_tf.exact.operations.native import (
    NATIVE,
    STORED,
    Lookup,
    Softmax,
    takes_grid,
)
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.tabled import Computed, sloped, table_of
from sat_tf.exact.tflite.tensors import Codes
from sat_tf.export.lowering.drafts import Draft, GraphBuilder, Shape
from sat_tf.export.lowering.float_layer import FloatCall, FloatLayer
from sat_tf.graph.layers.kind import NativeFunction


def rounded_table(
    function: Callable[[np.ndarray], np.ndarray], source: Codes, output: Codes
) -> np.ndarray:
    """The table of a function of real values, rounded half up as the quantizers do, and clipped.

    >>> codes = Codes(np.float32(0.5), 0)
    >>> rounded_table(np.abs, codes, codes)[[0, 127, 128, 130]].tolist()
    [127, 1, 0, 2]
    """
    real = ((STORED - source.zero_point) * np.float32(source.real_scale)).astype(np.float32)
    made = np.asarray(function(real), np.float32) / np.float32(output.real_scale)
    rounded = np.floor(made + np.float32(0.5)) + output.zero_point
    return np.clip(rounded, output.lowest, output.highest).astype(np.int8)


@dataclasses.dataclass(frozen=True)
class ComputedFunction(Draft):
    """A function other than a rectifier: a table, or what TensorFlow's converter makes of it."""

    inputs: tuple[str, ...]  # The tensor that it reads.
    # The same on single values, where it works on each of them alone.
    function: Callable[[np.ndarray], np.ndarray] | None
    call: Callable[[str], FloatCall]  # The call of the layer itself on a float tensor.

    keeps_stream = True

    def lower(self, builder: GraphBuilder, codes: Codes | None, name: str, shape: Shape) -> str:
        if codes is None:
            real = builder.dequantized(self.inputs[0])
            return builder.add(FloatLayer((real,), name, (self.call(real),)), shape, None)
        source = builder.codes(self.inputs[0])
        if self.function is None or source is None:
            real = self.lower(builder, None, builder.between(f"{name}_float"), shape)
            return builder.quantized(real, codes, name, shape)
        table = rounded_table(self.function, source, codes)
        return builder.add(Lookup(self.inputs, name, table), shape, codes)


@dataclasses.dataclass(frozen=True)
class NativeDraft(Draft):
    """A function that was trained to be computed by an operator of its own.

    It is that where the operator takes the grids, and int8 clips its codes as the quantizer does;
    else what it is for other processors.
    """

    inputs: tuple[str, ...]  # The tensor that it reads.
    native: NativeFunction  # The operator.
    older: Draft  # What it is without it.
    slopes: np.ndarray | None = None  # Of PRELU, float32.

    @property
    def keeps_stream(self) -> bool:
        """See `Draft`: a layer with weights may be shared, and its quantizer is then behind it."""
        return self.slopes is None

    def lower(self, builder: GraphBuilder, codes: Codes | None, name: str, shape: Shape) -> str:
        source = builder.codes(self.inputs[0])
        operation = self._of_codes(source, codes, name) if source and codes else None
        if operation is None:
            return self.older.lower(builder, codes, name, shape)
        return builder.add(operation, shape, codes)

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
            made = table_of(operator, settings, source, whole, kernels)
            if np.min(made) < codes.lowest or np.max(made) > codes.highest:
                return None
        return Computed(self.inputs, name, operator, options=settings)
