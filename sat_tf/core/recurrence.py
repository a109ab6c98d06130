"""An LSTM in the fixed point of integer kernels, differentiable.

What a gate sums up is a multiple of 2^-12 in [-8, 8), and the cell state a multiple of 2^(b-15) in
[-2^b, 2^b), for b bits in front of its point, from 0 to 6. Rounding passes gradients as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import on_int8_codes, round_half_up
from sat_tf.core.tensors import Namespace, Tensor, namespace

GATES = 4  # input, forget, cell and output, in this order
_SUM_BITS, _MOST_CELL_BITS, _WIDTH = 3, 6, 15

# A function of one tensor.
Function = Callable[[Tensor], Tensor]


class Functions(NamedTuple):
    """The functions of kernels, for all 2^16 numbers of 16 bits in ascending order, float32."""

    sigmoid: np.ndarray  # (2^16,), of numbers with 3 bits in front of their point.
    tanh: np.ndarray  # (7, 2^16), of numbers with 0 to 6 bits.


def on_codes_of_gates(weights: Tensor) -> Tensor:
    """Weights (inputs, gates · units) rounded to their `grid.int8_codes`, a scale for each gate."""
    n = namespace(weights)
    return n.concatenate([on_int8_codes(part) for part in parts_of_gates(weights)], axis=1)


def parts_of_gates(weights: Any) -> list[Any]:
    """The parts of the gates, along the last axis of weights or of sums."""
    units = weights.shape[-1] // GATES
    return [weights[..., units * gate : units * (gate + 1)] for gate in range(GATES)]


def cell_bits(largest: Any) -> Any:
    """The bits in front of the point of a cell state with a largest magnitude; all of 6 at 0.

    >>> [int(cell_bits(largest)) for largest in (0.0, 0.7, 1.0, 1.1, 33.0, 1e9)]
    [6, 0, 0, 1, 6, 6]
    """
    n = namespace(largest)
    ends = n.constant([2.0**bits for bits in range(_MOST_CELL_BITS)], "float32")
    bits = n.sum(n.cast(largest > ends, "int32"))
    return n.where(largest > 0.0, bits, _MOST_CELL_BITS)


class _FixedPoint:
    """The arithmetic of kernels; without functions of kernels, that of real numbers."""

    def __init__(self, n: Namespace, functions: Functions | None, largest: Any) -> None:
        self.is_real, self._n = functions is None, n
        if functions is not None:
            self._sigmoids = n.constant(functions.sigmoid, "float32")
            self._tanhs = n.constant(functions.tanh.reshape(-1), "float32")
            self._bits = cell_bits(largest)
            powers = [2.0**bits for bits in range(_MOST_CELL_BITS + 1)]
            self._cell_end = n.take(n.constant(powers, "float32"), self._bits, axis=0)

    def sums(self, x: Tensor) -> Tensor:
        """A part of what a gate sums up."""
        return x if self.is_real else self._rounded(x, 2.0**_SUM_BITS)

    def clipped_sums(self, x: Tensor) -> Tensor:
        """All that a gate sums up."""
        return x if self.is_real else self._clipped(x, 2.0**_SUM_BITS)

    def cell(self, x: Tensor) -> Tensor:
        """A part of the cell state."""
        return x if self.is_real else self._rounded(x, self._cell_end)

    def clipped_cell(self, x: Tensor) -> Tensor:
        """The cell state."""
        return x if self.is_real else self._clipped(x, self._cell_end)

    def sigmoid(self, x: Tensor) -> Tensor:
        """The sigmoid of what a gate sums up."""
        smooth = 0.5 + 0.5 * self._n.tanh(0.5 * x)
        return smooth if self.is_real else self._looked_up(x, 2.0**_SUM_BITS, 0, smooth)

    def tanh(self, x: Tensor) -> Tensor:
        """The tanh of what a gate sums up."""
        smooth = self._n.tanh(x)
        if self.is_real:
            return smooth
        return self._looked_up(x, 2.0**_SUM_BITS, _SUM_BITS, smooth, self._tanhs)

    def tanh_of_cell(self, x: Tensor) -> Tensor:
        """The tanh of the cell state."""
        smooth = self._n.tanh(x)
        if self.is_real:
            return smooth
        return self._looked_up(x, self._cell_end, self._bits, smooth, self._tanhs)

    def _rounded(self, x: Tensor, end: Any) -> Tensor:
        unit = end * 2.0**-_WIDTH
        return straight_through(round_half_up(x / unit) * unit, x)

    def _clipped(self, x: Tensor, end: Any) -> Tensor:
        return self._n.clip(x, -end, end * (1.0 - 2.0**-_WIDTH))

    def _looked_up(
        self, x: Tensor, end: Any, row: Any, smooth: Tensor, table: Tensor | None = None
    ) -> Tensor:
        place = self._n.cast(x * (2.0**_WIDTH / end), "int32") + (2 * row + 1) * 2**_WIDTH
        table = self._sigmoids if table is None else table
        return straight_through(self._n.take(table, place, axis=0), smooth)


def hidden_states(
    inputs: Tensor,
    kernel: Tensor,
    recurrent: Tensor,
    bias: Tensor | None,
    quantize: Function,
    functions: Functions | None = None,
    largest: Any = None,
) -> tuple[Tensor, Tensor]:
    """The hidden states of all steps, from states of 0, and the cell states, not yet clipped.

    With gates i, f, g, o of the inputs x and the hidden state h, all of them float32:

        i, f, o = sigmoid(x W + h R + b), g = tanh(x W + h R + b)
        c = f c + i g,  h = quantize(o tanh(c))

    Inputs are (batch, steps, inputs), the kernel (inputs, 4 · units), the recurrent one (units,
    4 · units), and both results (batch, steps, units). With the functions of kernels, all is
    rounded as these do; the largest magnitude of a cell state gives its bits: see `cell_bits`.
    """
    n = namespace(inputs)
    fixed = _FixedPoint(n, functions, largest)
    from_inputs = n.matmul(inputs, kernel)
    from_inputs = fixed.sums(from_inputs if bias is None else from_inputs + bias)
    states: list[Tensor] = []
    cells: list[Tensor] = []
    cell = None
    for step in range(inputs.shape[1]):
        total = from_inputs[:, step]
        if states:
            total = total + fixed.sums(n.matmul(states[-1], recurrent))
        opens, keeps, new, shows = parts_of_gates(fixed.clipped_sums(total))
        unclipped = fixed.cell(fixed.sigmoid(opens) * fixed.tanh(new))
        if cell is not None:
            unclipped = unclipped + fixed.cell(fixed.sigmoid(keeps) * cell)
        cell = fixed.clipped_cell(unclipped)
        states.append(quantize(fixed.sigmoid(shows) * fixed.tanh_of_cell(cell)))
        cells.append(unclipped)
    return n.stack(states, axis=1), n.stack(cells, axis=1)
