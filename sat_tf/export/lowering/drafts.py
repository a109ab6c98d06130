"""Drafts, which are layers without a grid yet, and the builder that turns them into operations.

The quantizer after a layer decides on which grid the layer computes. Until then the layer is a
draft: an operation without inputs and output, or a separate class where one layer becomes several
operations. A draft itself defines how it becomes a tensor of codes or of float values.
"""

import abc
import dataclasses
from collections.abc import Callable, Collection

import numpy as np

from sat_tf.core.grid import SMALLEST_RANGE, scale_and_zero_point, wide_scale
from sat_tf.exact.operations.conversions import Dequantize, Quantize, Requantize
from sat_tf.exact.operations.operation import Constant, Operation
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.tflite.tensors import WIDE, Activation, Codes, Tensor, free_name

# The codes of 16 bits for one of 8: a power of two, so that scales are exact.
_FINER = np.float32(128.0)

Range = tuple[float, float]
Shape = tuple[int, ...]


def range_codes(lowest: float, highest: float, bits: int = 8) -> Codes:
    """Returns codes of some bits for an observed range; zero is exactly one of them."""
    lowest, highest = min(lowest, 0.0), max(highest, 0.0)
    if bits == WIDE:
        is_range = highest - lowest >= SMALLEST_RANGE
        return Codes.wide(np.float32(wide_scale(lowest, highest, max) if is_range else 2.0**-15))
    if highest - lowest < SMALLEST_RANGE:
        return Codes(np.float32(1.0 / 255.0), -128)
    scale, zero_point = scale_and_zero_point(lowest, highest, np.rint)
    return Codes(np.float32(scale), int(np.clip(zero_point, -128, 127)))


@dataclasses.dataclass(frozen=True)
class Affine:
    """A slope and an offset for each channel, float64: y = slope · x + offset."""

    slope: np.ndarray  # The slopes.
    offset: np.ndarray  # The offsets.
    # The mean of x, where a normalization's statistics are known: there y must be exact.
    mean: np.ndarray
    deviation: np.ndarray  # The standard deviation of x; infinite where unknown.


class Draft(abc.ABC):
    """A layer that is lowered except for the grid of its result."""

    inputs: tuple[str, ...]  # Names of the tensors that it reads.
    tensor: str = ""  # The name of its tensor, where that exists already; otherwise "".

    @property
    def rounds_parts(self) -> bool:
        """Whether it computes with its inputs as codes of its own grid, as in training."""
        return False

    @property
    def keeps_stream(self) -> bool:
        """Whether its float stream stays one, unless a quantizer of its own follows."""
        return False

    def takes_floats(self, codes: Codes) -> bool:
        """Returns whether it makes these codes itself from float inputs."""
        return False

    def finer(self, codes: Codes) -> Codes:
        """Returns the codes of 16 bits that it makes for a QUANTIZE to these of 8."""
        lowest = 0 if codes.lowest == codes.zero_point else -(2**15)
        return Codes.wide(np.float32(codes.scale / _FINER), lowest, unit=codes.unit)

    @abc.abstractmethod
    def lower(self, builder: "GraphBuilder", output: Tensor) -> str:
        """Adds operations that make `output`, codes from codes or floats; returns its name."""

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        """Returns the smallest and the largest value that it can have."""
        return codes_of(self.inputs[0]).real_range


class GraphBuilder:
    """Collects the tensors and operations of a graph; `layer_names` are only the layers' own."""

    def __init__(self, layer_names: Collection[str] = ()) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.operations: list[Operation] = []
        self._layer_names = frozenset(layer_names)
        self._floats: dict[str, str] = {}
        self._wide: dict[str, str] = {}

    def tensor(self, name: str, shape: Shape, codes: Codes | None) -> str:
        """Adds a tensor; returns its name."""
        self.tensors[name] = Tensor(name, shape, codes)
        return name

    def add(self, operation: Operation, shape: Shape, codes: Codes | None) -> str:
        """Adds an operation and the tensor it makes; returns the tensor's name."""
        self.operations.append(operation)
        return self.tensor(operation.output, shape, codes)

    def move(self, operation: Operation, shape: Shape) -> str:
        """Adds an operation that makes its tensor from the codes of its input as they are."""
        return self.add(operation, shape, self.codes(operation.inputs[0]))

    def shape(self, name: str) -> Shape:
        """Returns the shape of a tensor, without the batch dimension."""
        return self.tensors[name].shape

    def codes(self, name: str) -> Codes | None:
        """Returns the codes of a tensor; None where it is float."""
        return self.tensors[name].codes

    def between(self, name: str) -> str:
        """Returns an unused name, close to `name`, for a tensor that no layer makes."""
        return free_name(name, self._layer_names | self.tensors.keys())

    def materialize(self, draft: Draft, output: Tensor) -> str:
        """Adds the operations that make a draft's tensor; returns the tensor's name."""
        some_float = any(self.codes(source) is None for source in draft.inputs)
        if output.codes and some_float and not draft.takes_floats(output.codes):
            return self.quantized(draft, output)
        grids = map(self.codes, draft.inputs)
        reads_wide = any(grid and grid.bits == WIDE for grid in grids)
        narrows = reads_wide and not draft.rounds_parts
        if output.codes and output.codes.bits != WIDE and narrows:
            return self._narrowed(draft, output, output.codes)
        return draft.lower(self, output)

    def _narrowed(self, draft: Draft, output: Tensor, codes: Codes) -> str:
        """Adds codes of 16 bits, unless they exist, and makes codes of 8 of them, clipped."""
        source = draft.tensor
        if source:
            codes = dataclasses.replace(codes, scale=np.float32(codes.real_scale), unit=1.0)
        else:
            name, fine = self.between(f"{output.name}_wide"), draft.finer(codes)
            source = draft.lower(self, dataclasses.replace(output, name=name, codes=fine))
        grid, made = self.tensors[source].codes, codes.whole
        # Codes of 16 bits that end above the lowest code need no clipping there.
        if grid and grid.real_range[0] > codes.real_range[0] - codes.real_scale / 2.0:
            made = dataclasses.replace(made, lowest=codes.lowest)
        operation: Operation = Requantize((source,), output.name)
        for kind, end in ((Pointwise.MAXIMUM, "lowest"), (Pointwise.MINIMUM, "highest")):
            if (code := getattr(codes, end)) == getattr(made, end):
                continue
            name = self.between(f"{output.name}_to_{end}")
            source = self.add(dataclasses.replace(operation, output=name), output.shape, made)
            array = np.full((1,) * (len(output.shape) + 1), code, np.int8)
            constant = Constant(array, Codes(codes.scale, codes.zero_point))
            operation = Pair((source,), output.name, kind, constant)
            made = dataclasses.replace(made, **{end: code})
        return self.add(operation, output.shape, made)

    def widened(self, source: str) -> str:
        """Returns the tensor with the values of codes as codes of 16 bits, exactly; adds it once.

        A code of 8 bits, which is at most 255 from 0, is 128 of these.
        """
        codes = self.codes(source)
        if codes is None or codes.bits == WIDE:
            return source
        if source not in self._wide:
            fine = Codes.wide(np.float32(codes.scale / _FINER), unit=codes.unit)
            operation = Requantize((source,), self.between(f"{source}_wide"))
            self._wide[source] = self.add(operation, self.shape(source), fine)
        return self._wide[source]

    def dequantized(self, source: str) -> str:
        """Returns the float tensor with the real values of `source`; adds it once."""
        shape, codes = self.shape(source), self.codes(source)
        if codes is None:
            return source
        if source not in self._floats:
            dequantize = Dequantize((source,), self.between(f"{source}_float"))
            real = self.add(dequantize, shape, None)
            if codes.unit != 1.0:
                name = self.between(f"{source}_real")
                real = self.with_constant(real, Pointwise.PRODUCT, codes.unit, name, shape)
            self._floats[source] = real
        return self._floats[source]

    def drop_unread_images(self) -> None:
        """Removes codes of images that nothing reads: other codes of the image are read instead."""
        read_names = {name for operation in self.operations for name in operation.inputs}
        for operation in list(self.operations):
            if operation.of_input and operation.output not in read_names:
                self.operations.remove(operation)
                del self.tensors[operation.output]

    def quantized(self, draft: Draft, output: Tensor) -> str:
        """Adds the codes of a draft's float tensor, clipped where int8 does not saturate."""
        name, shape, codes = output.name, output.shape, output.codes
        if codes is None:
            raise TypeError(f"{name}: the codes of a float tensor.")
        source = draft.lower(self, Tensor(self.between(f"{name}_float"), shape, None))
        low, high = codes.real_range
        if codes.lowest != codes.whole.lowest:
            lower = self.between(f"{name}_lower")
            source = self.with_constant(source, Pointwise.MAXIMUM, low, lower, shape)
        if codes.highest != codes.whole.highest:
            upper = self.between(f"{name}_upper")
            source = self.with_constant(source, Pointwise.MINIMUM, high, upper, shape)
        # The operation knows real values only, so the tensor is stored in real units.
        stored = dataclasses.replace(codes, scale=np.float32(codes.real_scale), unit=1.0)
        return self.add(Quantize((source,), name), shape, stored)

    def with_constant(
        self, source: str, kind: Pointwise, constant: np.ndarray | float, name: str, shape: Shape
    ) -> str:
        """Adds an operation of float values and a constant; returns the tensor's name."""
        values = Constant(np.asarray(constant, np.float32))
        operation = Pair((source,), name, kind, values)
        return self.add(operation, shape, None)


@dataclasses.dataclass(frozen=True)
class OperationDraft(Draft):
    """A layer that becomes one operation, whatever the grid of its result."""

    inputs: tuple[str, ...]
    operation: Operation  # The operation, without inputs and output.

    def placed(self, builder: GraphBuilder, inputs: tuple[str, ...], output: Tensor) -> str:
        """Adds the operation on these inputs, which makes this tensor; returns its name."""
        if output.codes and output.codes.bits == WIDE:
            inputs = tuple(map(builder.widened, inputs))
        operation = dataclasses.replace(self.operation, inputs=inputs, output=output.name)
        return builder.add(operation, output.shape, output.codes)

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        sources = self.inputs if output.codes else tuple(map(builder.dequantized, self.inputs))
        return self.placed(builder, sources, output)


@dataclasses.dataclass(frozen=True)
class Rectified(Draft):
    """A rectifier that no quantizer makes: the positive part of a layer, up to a ceiling.

    It is float, or a part of a concatenation, whose grid it then gets.
    """

    inputs: tuple[str, ...]  # The inputs of the rectified layer.
    rectified: Draft  # The layer that is rectified.
    ceiling: float | None = None  # The largest value; None without a ceiling.

    def takes_floats(self, codes: Codes) -> bool:
        """See `Draft`: without a ceiling, codes from 0 on are those of the rectified layer."""
        return self.ceiling is None

    def lower(self, builder: GraphBuilder, output: Tensor) -> str:
        name, shape, codes = output.name, output.shape, output.codes
        if codes and self.ceiling is None:
            clipped = Tensor(name, shape, codes.clipped(Activation.RELU))
            return builder.materialize(self.rectified, clipped)
        if codes:  # the highest code need not be the ceiling
            return builder.quantized(self, output)
        input_tensor = Tensor(builder.between(f"{name}_input"), shape, None)
        real = self.rectified.lower(builder, input_tensor)
        lower = name if self.ceiling is None else builder.between(f"{name}_lower")
        builder.with_constant(real, Pointwise.MAXIMUM, 0.0, lower, shape)
        if self.ceiling is None:
            return lower
        return builder.with_constant(lower, Pointwise.MINIMUM, self.ceiling, name, shape)

    def worst_range(self, codes_of: Callable[[str], Codes]) -> Range:
        return 0.0, max(self.rectified.worst_range(codes_of)[1], 0.0)
