"""An LSTM in the fixed point of integer kernels, differentiable.

What a gate sums up is a multiple of 2^-12 in [-8, 8), and the cell state a multiple of 2^(b-15) in
[-2^b, 2^b), for b bits in front of its point, from 0 to 6. Rounding passes gradients as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import on_int8_codes, round_half_up
from sat_tf.core.tensor_ops import Namespace, Tensor, namespace

GATES = 4  # input, forget, cell and output, in this order
_SUM_BITS, _MOST_CELL_BITS, _WIDTH = 3, 6, 15
_END_OF_SUM = 2.0**_SUM_BITS

# A function of one tensor.
Function = Callable[[Tensor], Tensor]


class Functions(NamedTuple):
    """The functions of kernels, for all 2^16 numbers of 16 bits in ascending order, float32."""

    sigmoid: np.ndarray  # (2^16,), of numbers with 3 bits in front of their point.
    tanh: np.ndarray  # (7, 2^16), of numbers with 0 to 6 bits.


def on_codes_of_gates(weights: Tensor, num_bits: int = 8) -> Tensor:
    """Weights (inputs, gates · units) rounded to their `grid.int8_codes`, a scale for each gate."""
    n = namespace(weights)
    gates = [on_int8_codes(matrix, num_bits) for matrix in parts_of_gates(weights)]
    return n.concatenate(gates, axis=1)


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


class _Reals:
    """The arithmetic of real numbers."""

    def __init__(self, n: Namespace, units: int) -> None:
        self._n = n
        # A sigmoid is (1 + tanh(x / 2)) / 2, so that one function computes all gates.
        halves = [0.5, 0.5, 1.0, 0.5]
        self._halves = n.constant(np.repeat(halves, units), "float32")
        self._offsets = 1.0 - self._halves

    def part(self, x: Tensor) -> Tensor:
        """The part of the inputs, or of the hidden state, in the sums of gates."""
        return x

    def gates(self, sums: Tensor) -> Tensor:
        """The gates: sigmoids, and the tanh of the third."""
        return self._halves * self._n.tanh(self._halves * sums) + self._offsets

    def product(self, gate: Tensor, x: Tensor) -> Tensor:
        """A part of the cell state."""
        return gate * x

    def cell(self, x: Tensor) -> Tensor:
        """The cell state, clipped."""
        return x

    def tanh(self, cell: Tensor) -> Tensor:
        """The tanh of the cell state."""
        return self._n.tanh(cell)


class _FixedPoint(_Reals):
    """The arithmetic of kernels."""

    def __init__(self, n: Namespace, units: int, functions: Functions, largest: Tensor) -> None:
        super().__init__(n, units)
        rows = [functions.sigmoid, *functions.tanh]
        self._table = n.constant(np.concatenate(rows), "float32")
        of_sum, bits = 1 + _SUM_BITS, cell_bits(largest)
        self._rows = n.constant(np.repeat([0, 0, of_sum, 0], units), "int32")
        self._row_of_cell = 1 + bits
        powers = [2.0**bits for bits in range(_MOST_CELL_BITS + 1)]
        self._end_of_cell = n.take(n.constant(powers, "float32"), bits, axis=0)

    def part(self, x: Tensor) -> Tensor:
        return self._rounded(x, _END_OF_SUM)

    def gates(self, sums: Tensor) -> Tensor:
        sums = self._clipped(sums, _END_OF_SUM)
        return self._looked_up(sums, _END_OF_SUM, self._rows, super().gates(sums))

    def product(self, gate: Tensor, x: Tensor) -> Tensor:
        return self._rounded(gate * x, self._end_of_cell)

    def cell(self, x: Tensor) -> Tensor:
        return self._clipped(x, self._end_of_cell)

    def tanh(self, cell: Tensor) -> Tensor:
        return self._looked_up(cell, self._end_of_cell, self._row_of_cell, super().tanh(cell))

    def _rounded(self, x: Tensor, end: Any) -> Tensor:
        unit = end * 2.0**-_WIDTH
        return straight_through(round_half_up(x / unit) * unit, x)

    def _clipped(self, x: Tensor, end: Any) -> Tensor:
        return self._n.clip(x, -end, end * (1.0 - 2.0**-_WIDTH))

    def _looked_up(self, x: Tensor, end: Any, row: Tensor, smooth: Tensor) -> Tensor:
        place = self._n.cast(x * (2.0**_WIDTH / end), "int32") + (2 * row + 1) * 2**_WIDTH
        return straight_through(self._n.take(self._table, place, axis=0), smooth)


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
    n, units = namespace(inputs), recurrent.shape[0]
    numbers = _Reals(n, units)
    if functions is not None:
        numbers = _FixedPoint(n, units, functions, largest)

    def step(states: Any, sums_of_inputs: Tensor) -> Any:
        hidden, cell = states
        sums = sums_of_inputs + numbers.part(n.matmul(hidden, recurrent))
        opens, keeps, new, shows = parts_of_gates(numbers.gates(sums))
        cell = numbers.product(opens, new) + numbers.product(keeps, numbers.cell(cell))
        return quantize(shows * numbers.tanh(numbers.cell(cell))), cell

    products = n.matmul(inputs, kernel)
    sums = numbers.part(products if bias is None else products + bias)
    sums = n.transpose(sums, (1, 0, 2))
    zeros = 0.0 * n.ones_like(sums[0, :, :units])
    hidden, cell = n.scan(step, (zeros, zeros), sums)
    return n.transpose(hidden, (1, 0, 2)), n.transpose(cell, (1, 0, 2))
