"""An operator of another tool's file as a function of arrays, and what it reads."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from sat_tf.export.operations.float_layer import NotSimulated
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView, codes_of
from sat_tf.export.tflite.tensors import Codes, Tensors

# Arrays of stored integers of whole tensors, with the batch dimension, to those of the output.
Function = Callable[[Tensors, Sequence[np.ndarray]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rule(NotSimulated):
    """An operator that is only read, never written: its arithmetic is a function."""

    function: Function  # Of the tensors of `inputs`; the kernels are the graph's.

    is_simulated = True

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return self.function(graph, inputs)


# The rule that an operator of a foreign file stands for, and the codes that it makes.
Read = tuple[Rule, Codes]


class Operand(NamedTuple):
    """A tensor of codes that an operator reads."""

    name: str  # Of what an operator or the caller makes; "" for a constant.
    codes: Codes  # How it is stored.
    value: np.ndarray | None  # Stored integers of a constant, int32; None for any other.


def operand(view: OperatorView, index: int = 0) -> Operand:
    """An input of an operator.

    Raises:
        NotUnderstoodError: it is float, or nothing makes it.
    """
    tensor = view.tensor(index)
    is_constant = tensor.data is not None
    codes = codes_of(tensor) if is_constant else view.source_codes(index)
    if codes is None:
        raise NotUnderstoodError("it reads float values")
    if is_constant:
        return Operand("", codes, view.constant(index, "INT8").astype(np.int32))
    return Operand(view.source(index), codes, None)


def operands(view: OperatorView) -> list[Operand]:
    """All inputs of an operator."""
    return [operand(view, index) for index in range(len(view.stored.inputs))]


def made_codes(view: OperatorView) -> Codes:
    """How the output is stored, with the ends of a fused activation where the operator has one.

    Raises:
        NotUnderstoodError: it is float.
    """
    fuses = hasattr(view.stored.options, "fusedActivationFunction")
    codes = view.fused_codes() if fuses else view.codes()
    if codes is None:
        raise NotUnderstoodError("it makes float values")
    return codes


def rule(view: OperatorView, read: Sequence[Operand], function: Function) -> Rule:
    """The rule of an operator, whose function takes constants as it takes other tensors."""

    def whole(graph: Tensors, arrays: Sequence[np.ndarray]) -> np.ndarray:
        given = iter(arrays)
        return function(graph, [next(given) if one.value is None else one.value for one in read])

    names = tuple(one.name for one in read if one.value is None)
    return Rule(names, view.output.name, view.name, whole)
