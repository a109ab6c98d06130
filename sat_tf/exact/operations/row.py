"""A row of the table of operators: a rule, a written form, and the reason why kernels agree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.tflite.tensors import Codes, dequantized


class Constant(NamedTuple):
    """A constant that an operator reads."""

    values: np.ndarray  # The values as the file has them.
    grid: Codes | None = None  # The grid of codes; None for numbers.

    @property
    def real(self) -> np.ndarray:
        """The real values of codes; numbers as they are."""
        return self.values if self.grid is None else dequantized(self.values, self.grid)


class Call(NamedTuple):
    """A call of an operator, with its operands in order."""

    kernels: KernelSet
    arrays: Sequence[np.ndarray]  # Stored integers with the batch dimension, or numbers.
    grids: Sequence[Codes | None]  # The grids of the arrays; None for numbers.
    made: Codes | None  # The grid of the output; None for float values.
    options: Mapping[str, Any]

    @property
    def output(self) -> Codes:
        """The grid of the output, where the output is codes."""
        return _expected(self.made)

    def grid(self, index: int = 0) -> Codes:
        """Returns the grid of a tensor of codes that it reads."""
        return _expected(self.grids[index])

    def codes(self, index: int = 0) -> np.ndarray:
        """Returns the codes, stored - zero_point, of a tensor that it reads."""
        return self.arrays[index].astype(np.int64) - self.grid(index).zero_point


def _expected(grid: Codes | None) -> Codes:
    if grid is None:
        raise TypeError("received float values, expected codes.")
    return grid


# The function that gives stored integers, in a list with an item for each tensor where the operator
# makes several. Raises ValueError where kernels do not take the operands.
Rule = Callable[[Call], Any]
# Values of int32 constants, and builtin options by their names.
Settings = tuple[Sequence[Any], dict[str, Any]]


class Written(NamedTuple):
    """The form of an operator that sat-tf writes."""

    version: int
    schema: str = ""  # The schema's name of its builtin options; "" where it has none.
    constants: tuple[str, ...] = ()  # The names of its constants.
    # The function that gives the constants and options of a layer's move, from the shape that it
    # reads, without the batch dimension, and the arguments of the move.
    settings: Callable[..., Settings] = lambda shape: ([], {})
    joins: bool = False  # Whether it reads any number of tensors, and not one.


class Row(NamedTuple):
    """An operator of TFLite's that one rule computes."""

    name: str
    rule: Rule
    options: tuple[str, ...] = ()  # The names of the options that its rule reads.
    # Why all kernels of XNNPACK give it the same codes; "" where that is not known.
    same_because: str = ""
    makes_several: bool = False
    of_one_value: bool = False  # Whether each code depends on one code, so that all can be tried.
    pads: bool = False  # Whether it puts zeros around the values.
    grid: Codes | None = None  # The grid of the output, where TFLite fixes it.
    written: Written | None = None  # The form in sat-tf's files; None for other tools' operators.
    # Why its kernels do not take the scales of its input and output, with the fix.
    problem: Callable[[np.float32, np.float32], str | None] = lambda source, output: None
