"""A row of the table of operators: what one computes, how it is written, and why kernels agree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.tflite.tensors import Codes, dequantized


class Constant(NamedTuple):
    """A constant that an operator reads."""

    values: np.ndarray  # As the file has them.
    grid: Codes | None = None  # Of codes; None for numbers.

    @property
    def real(self) -> np.ndarray:
        """The real values of codes; numbers as they are."""
        return self.values if self.grid is None else dequantized(self.values, self.grid)


class Call(NamedTuple):
    """An operator, and all that it reads, in order."""

    kernels: KernelSet
    arrays: Sequence[np.ndarray]  # Stored integers with the batch dimension, or numbers.
    grids: Sequence[Codes | None]  # Of these; None for numbers.
    made: Codes | None  # The grid of what it makes.
    options: Mapping[str, Any]

    @property
    def output(self) -> Codes:
        """The grid of what it makes, where that is codes."""
        return _expected(self.made)

    def grid(self, index: int = 0) -> Codes:
        """The grid of a tensor of codes that it reads."""
        return _expected(self.grids[index])

    def codes(self, index: int = 0) -> np.ndarray:
        """Codes, stored - zero_point, of a tensor that it reads."""
        return self.arrays[index].astype(np.int64) - self.grid(index).zero_point


def _expected(grid: Codes | None) -> Codes:
    if grid is None:
        raise TypeError("received float values, expected codes.")
    return grid


# Gives stored integers, in a list for each tensor where the operator makes several. Raises
# ValueError where kernels do not take what it reads.
Rule = Callable[[Call], Any]
# Values of int32 constants, and builtin options by their names.
Settings = tuple[Sequence[Any], dict[str, Any]]


class Written(NamedTuple):
    """The form of an operator that sat-tf writes."""

    version: int
    schema: str = ""  # The schema's name of its builtin options; "" where it has none.
    constants: tuple[str, ...] = ()  # The names of its constants.
    # Of a move that layers become, its constants and options, for the shape that it reads, without
    # the batch dimension, and the arguments of the layer's move.
    settings: Callable[..., Settings] = lambda shape: ([], {})


class Row(NamedTuple):
    """An operator of TFLite's that one rule computes."""

    name: str
    rule: Rule
    options: tuple[str, ...] = ()  # The names of its options that count.
    # Why all kernels of XNNPACK give it the same codes; "" where that is not known.
    same_because: str = ""
    makes_several: bool = False
    of_one_value: bool = False  # It makes each code of one, so that 256 of them tell all.
    pads: bool = False  # It puts zeros around.
    grid: Codes | None = None  # That its kernels give what they make, where TFLite fixes it.
    written: Written | None = None  # None where other tools alone write it.
    # Why its kernels do not take the scales of its input and output, with the fix.
    problem: Callable[[np.float32, np.float32], str | None] = lambda source, output: None
