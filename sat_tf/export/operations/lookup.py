"""Functions of one value on codes: 256 integers in a table."""

import dataclasses
from collections.abc import Callable

import numpy as np

from sat_tf.export.operations.graph import Codes, Operation

# What is added to a stored integer to find its place in the table.
FIRST = 128


@dataclasses.dataclass(frozen=True)
class Lookup(Operation):
    """stored = table[stored of the input + 128]: exact in every runtime, whatever the function.

    Attributes:
        table: int8, 256 stored integers.
    """

    table: np.ndarray

    def on_array(self, stored: np.ndarray) -> np.ndarray:
        """The stored integers of the output."""
        return np.asarray(self.table.astype(np.int32)[stored + FIRST])


def table_of(
    function: Callable[[np.ndarray], np.ndarray], source: Codes, output: Codes
) -> np.ndarray:
    """The table of a function of real values, rounded half up as the quantizers do, and clipped.

    >>> codes = Codes(np.float32(0.5), 0)
    >>> table_of(np.abs, codes, codes)[[0, 127, 128, 130]].tolist()
    [127, 1, 0, 2]
    """
    stored = np.arange(-FIRST, FIRST)
    real = ((stored - source.zero_point) * np.float32(source.real_scale)).astype(np.float32)
    made = np.asarray(function(real), np.float32) / np.float32(output.real_scale)
    rounded = np.floor(made + np.float32(0.5)) + output.zero_point
    return np.clip(rounded, output.lowest, output.highest).astype(np.int8)
