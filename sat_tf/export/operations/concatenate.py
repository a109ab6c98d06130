"""Tensors joined along an axis."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.builder import Draft, GraphBuilder, OperationDraft, Range, Shape
from sat_tf.export.operations.operation import SELECTED, Made
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView
from sat_tf.export.tflite.tensors import Codes, Tensors
from sat_tf.export.tflite.writer import Operator, Writer


@dataclasses.dataclass(frozen=True)
class Concatenate(OperationDraft):
    """Tensors on one grid, joined along an axis."""

    axis: int  # Along which, counted without the batch dimension.

    operator = Operator("CONCATENATION", 2, "ConcatenationOptions")
    mixes = True
    same_in_float_because = SELECTED

    @property
    def keeps_grid(self) -> bool:
        return True

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
