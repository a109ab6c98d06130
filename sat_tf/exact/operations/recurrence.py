"""The fused LSTM: int8 codes and weights, and a cell state of 16 bits."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.kernels import fixed_point, functions, gates
from sat_tf.exact.kernels.gates import Gates
from sat_tf.exact.operations import windows
from sat_tf.exact.operations.operation import Basis, Made, Operation, Portability, stored_codes
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.tflite.contents import NotUnderstoodError, StoredTensor
from sat_tf.exact.tflite.operator_view import OperatorView, codes_of, grid_of
from sat_tf.exact.tflite.tensors import WHOLE, WIDE, Codes, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer

_NAME = "UNIDIRECTIONAL_SEQUENCE_LSTM"
# The operator's tensors, by their places. Gates are in the order input, forget, cell, output.
_KERNELS, _RECURRENT, _BIASES = range(1, 5), range(5, 9), range(12, 16)
_HIDDEN_STATE, _CELL_STATE = 18, 19
# Tensors of forms that are not simulated.
_VARIANTS = {
    "peepholes": range(9, 12),
    "a projection": range(16, 18),
    "layer normalization": range(20, 24),
}
_NUM_TENSORS = (20, 24)  # without and with places for layer normalization
_NUM_INTERMEDIATES = 5  # the last one has the grid of the hidden state
# Sums that are shifted to the left stay below this, so that nothing overflows in int32.
_LARGEST_SUM = 2**30
_SMALLEST_SCALE = 2.0**-30


@dataclasses.dataclass(frozen=True)
class Lstm(Operation):
    """An LSTM over all steps of a sequence, from states that are zero at its start.

    With gates i, f, g, o of the inputs x and the hidden state h, where · multiplies matrices:

        i, f, o = sigmoid(W · x + R · h + b), g = tanh(W · x + R · h + b)
        c = f c + i g, clipped; h = o tanh(c)

    Where a file of another tool couples the input gate with the forget gate, i = 1 - f. Runtimes
    keep c and h from one run to the next until they are told to reset them, as `litert.runtime`
    does each time.
    """

    # Codes of the inputs' and of the hidden state's weights: (gates, units) as rows, and columns.
    kernels: tuple[np.ndarray, np.ndarray]
    scales: tuple[np.ndarray, np.ndarray]  # The scale of each row.
    bias: np.ndarray  # An integer for each row.
    cell_bits: int  # The bits of the cell state in front of its point.
    clip: int  # The largest magnitude of the cell state, in codes; 0 where it is not clipped.
    # The hidden state's grid in the intermediate tensor, in its own, and in the output, which holds
    # the same codes. Files of TensorFlow's converter may have three different grids.
    hidden: Codes
    state: Codes
    made: Codes
    # The numbers of steps and of sequences in the file, where steps are the first dimension of its
    # tensors; None where sequences are.
    time_first: tuple[int, int] | None = None

    operator = Operator(_NAME, 1, "UnidirectionalSequenceLSTMOptions")
    rounds = True
    num_constants = 13  # of gates; states and intermediate tensors take the bytes of one more
    takes_one_image = True  # the states have the batch of the file
    same_because = (
        "XNNPACK leaves it to the builtin kernels, which compute it in integers with the same "
        "rounding, with and without vectors"
    )

    # -- in words --------------------------------------------------------------------------------

    @property
    def units(self) -> int:
        """The number of its units."""
        return self.kernels[1].shape[1]

    def weights_title(self) -> str:
        codes = np.concatenate(self.kernels, axis=1)
        return f"{np.min(codes)} to {np.max(codes)}"

    @property
    def num_weights(self) -> int:
        return sum(kernel.size for kernel in self.kernels)

    def multiply_adds(self, graph: Tensors) -> int:
        steps = self.time_first[0] if self.time_first else graph.tensors[self.output].shape[0]
        return steps * self.num_weights

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """See `Operation`: vectors of Arm add two products in 16 bits, which -128 · -128 leaves."""
        if any(np.any(kernel == -128) for kernel in self.kernels):
            return Portability(Basis.IMAGES, "Arm's vectors do not hold products with weights -128")
        return super().portability_of_codes(graph)

    def share_rounded_otherwise(self, graph: Tensors) -> float:
        """See `Operation`: kernels round twice what gates sum up, and training once.

        That moves each of the sums of four gates by up to half a unit of 2^-12, and so does the
        rounding of biases; a hidden state moves as far, and each code is that much nearer to a tie.
        """
        unit = 2.0 ** (gates.GATE_BITS - functions.WIDTH_16)
        return min(len(_KERNELS) * unit / float(graph.codes(self.output).scale), 1.0)

    def warning(self) -> str | None:
        """See `Operation`: the hidden state changes its grid, and with it all values."""
        grids = [grid_of(codes) for codes in (self.hidden, self.state, self.made)]
        if len(set(grids)) == 1:
            return None
        computed, state, output = (f"{grid[0]:.6g} and {grid[1]}" for grid in grids if grid)
        return (
            f"{self.output}: codes of its hidden state have the scale and the zero point "
            f"{computed} where LiteRT computes them, {state} where the next step reads them, and "
            f"{output} in the output: the file changes values, in every runtime, without a word. "
            "TensorFlow's converter does so where, for example, a concatenation or a sum reads the "
            "output; put a Dense layer between them, and convert the model again"
        )

    def real_bias(self, graph: Tensors) -> tuple[np.ndarray, np.ndarray]:
        """Returns the real values of its biases, and of one unit of each."""
        units = float(graph.codes(self.inputs[0]).scale) * self.scales[0].astype(np.float64)
        return self.bias * units, units

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return 4 * self.bias.size + (0 if shares_kernel else self.num_weights)

    # -- in NumPy --------------------------------------------------------------------------------

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`; raises ValueError for other steps than those of a file's time-major."""
        (source,) = inputs
        if self.time_first and source.shape[:2] != self.time_first:
            raise ValueError(
                f"{self.output}: received {source.shape[0]} steps of {source.shape[1]} sequences, "
                f"expected {' of '.join(map(str, self.time_first))}, as the file has steps first; "
                "simulate one image at a time."
            )
        rules = graph.kernels.gates
        grid = self.state if rules.takes_grid_of_state else self.hidden
        steps = source if self.time_first else np.moveaxis(source, 1, 0)
        from_inputs = functions.in_int16(self._part(0, steps, graph.codes(self.inputs[0])))
        states = np.empty((*steps.shape[:2], self.units), np.int32)
        hidden = np.full(states.shape[1:], self.state.zero_point, np.int32)
        cell = np.zeros(hidden.shape, np.int64)
        for step, sums_of_inputs in enumerate(from_inputs):
            total = rules.summed(sums_of_inputs, self._part(1, hidden, self.state))
            cell, output = self._new_cell(total, cell, rules)
            product = rules.sigmoid(output) * rules.tanh(cell, self.cell_bits)
            codes = fixed_point.rescaled(product, rules.to_codes(grid.scale))
            states[step] = hidden = stored_codes(codes, grid)
        return states if self.time_first else np.moveaxis(states, 0, 1)

    def _new_cell(
        self, total: np.ndarray, cell: np.ndarray, rules: Gates
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the next cell state, and the sums of the output gate, from those of all gates."""
        *opening, forget, new, output = np.split(total, len(self.bias) // self.units, axis=-1)
        keeps = rules.sigmoid(forget)
        opens = rules.sigmoid(opening[0]) if opening else (1 << functions.WIDTH_16) - 1 - keeps
        candidate = rules.tanh(new, gates.GATE_BITS)
        remembered = rules.product(keeps, cell, functions.WIDTH_16)
        cell = functions.in_int16(
            remembered + rules.product(opens, candidate, functions.WIDTH_16 + self.cell_bits)
        )
        return (np.clip(cell, -self.clip, self.clip) if self.clip else cell), output

    def _part(self, matrix: int, stored: np.ndarray, grid: Codes) -> np.ndarray:
        """Returns the gates' part of the inputs, or of the hidden state, not clipped."""
        of_kernel = self.kernels[matrix], LinearKind.FULLY_CONNECTED, WHOLE
        bias = self.bias if matrix == 0 else 0
        sums = windows.sums(stored, grid.zero_point, *of_kernel, bias)
        return fixed_point.rescaled(sums, _multipliers(self.scales[matrix], grid))

    # -- in a file -------------------------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        """See `Operation`.

        Raises ValueError for an input gate that is coupled, and for steps that come first.
        """
        count, units = len(self.bias) // self.units, self.units
        if count != len(_KERNELS) or self.time_first:
            raise ValueError(
                f"{self.output}: received {count} gates, or steps as the first dimension, expected "
                f"{len(_KERNELS)} gates and sequences as the first dimension."
            )
        tensors: list[int | str] = [-1] * _NUM_TENSORS[1]
        tensors[0] = self.inputs[0]
        for gate in range(count):
            rows = slice(gate * units, (gate + 1) * units)
            for matrix, (what, places) in enumerate(
                (("kernel", _KERNELS), ("recurrent_kernel", _RECURRENT))
            ):
                name = f"{self.output}/{what}_{gate}"
                codes = np.ascontiguousarray(self.kernels[matrix][rows], np.int8)
                scale = self.scales[matrix][rows.start]
                tensors[places[gate]] = writer.constant(name, codes, scale)
            bias = self.bias[rows].astype(np.int32)
            tensors[_BIASES[gate]] = writer.constant(f"{self.output}/bias_{gate}", bias)
        name = f"{self.output}/hidden_state"
        tensors[_HIDDEN_STATE] = writer.state(name, (units,), np.int8, self.state)
        cell = Codes(np.float32(2.0 ** (self.cell_bits - functions.WIDTH_16)), 0)
        name = f"{self.output}/cell_state"
        tensors[_CELL_STATE] = writer.state(name, (units,), np.int16, cell)
        operator = writer.operator(
            self.operator,
            tensors,
            self.output,
            fusedActivationFunction=tfl.ActivationFunctionType.TANH,
            cellClip=float(np.ldexp(self.clip, self.cell_bits - functions.WIDTH_16)),
        )
        operator.intermediates = [
            writer.between(f"{self.output}/intermediate_{i}", (), np.dtype(np.int8), self.hidden)
            for i in range(_NUM_INTERMEDIATES)
        ]

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        codes, source = operator.codes(), operator.source_codes()
        if codes is None or source is None:
            raise NotUnderstoodError("it reads or makes float values")
        _expect_usual_form(operator)
        shape = operator.tensor(0).shape
        if len(shape) != 3:
            raise NotUnderstoodError(f"its input has the shape {shape}, expected three dimensions")
        tensors = _KERNELS, _RECURRENT, _BIASES
        if len({operator.has(places[0]) for places in tensors}) > 1:
            raise NotUnderstoodError("its input gate has some of its tensors, and lacks others")
        if not operator.has(_KERNELS[0]):  # The input gate is coupled with the forget gate.
            tensors = _KERNELS[1:], _RECURRENT[1:], _BIASES[1:]
        units = operator.output.shape[-1]
        kernels, scales = zip(
            _rows(operator, tensors[0], (units, shape[2])),
            _rows(operator, tensors[1], (units, units)),
            strict=True,
        )
        bias = [operator.constant(place, "INT32") for place in tensors[2]]
        if any(array.shape != (units,) for array in bias):
            raise NotUnderstoodError(f"a bias does not have one number for each of {units} units")
        for place in (_HIDDEN_STATE, _CELL_STATE):
            if not operator.tensor(place).is_variable:
                raise NotUnderstoodError(f"its state {operator.tensor(place).name} is no variable")
        hidden = codes_of(operator.stored.intermediates[-1])
        state = codes_of(operator.tensor(_HIDDEN_STATE))
        if any(grid and grid.bits == WIDE for grid in (hidden, state)):
            raise NotUnderstoodError("its tensor is INT16, expected a hidden state of INT8")
        if hidden is None or state is None:
            raise NotUnderstoodError("its hidden state is float")
        cell_bits = _bits_of(operator.tensor(_CELL_STATE))
        operation = cls(
            (operator.source(),),
            operator.output.name,
            kernels=kernels,
            scales=scales,
            bias=np.concatenate(bias).astype(np.int64),
            cell_bits=cell_bits,
            clip=_clip_of(operator, cell_bits),
            hidden=hidden,
            state=state,
            made=codes,
            time_first=shape[:2] if operator.option("timeMajor") else None,
        )
        operation._expect_no_overflow(source)
        return operation, codes

    def expect_own_form(self, operator: OperatorView) -> None:
        """See `Operation`: its activation is not one of a rectifier's."""

    def _expect_no_overflow(self, source: Codes) -> None:
        """Raises where the sums of the inputs or of the hidden state may overflow in kernels."""
        reaches = []
        for matrix, grid, bias in ((0, source, np.abs(self.bias)), (1, self.state, 0)):
            widest = max(127 - grid.zero_point, grid.zero_point + 128)
            sizes = windows.magnitudes(self.kernels[matrix], LinearKind.FULLY_CONNECTED)
            sums = sizes * float(widest) + bias
            # Units of more than one are shifted to the left.
            reaches.append(sums * np.maximum(2 * _multipliers(self.scales[matrix], grid), 1))
        if not np.all(np.concatenate(reaches) < _LARGEST_SUM):
            raise NotUnderstoodError("its sums and biases may overflow in kernels")
        scale = min(self.hidden.scale, self.state.scale)
        if scale < _SMALLEST_SCALE:
            raise NotUnderstoodError(f"its hidden state has the scale {scale}")


def _multipliers(scales: np.ndarray, grid: Codes) -> np.ndarray:
    """Returns what a unit of each row's sum is in 16 bits; kernels multiply scales in float32."""
    units = np.asarray(grid.scale * scales, np.float32)
    return np.ldexp(units.astype(np.float64), functions.WIDTH_16 - gates.GATE_BITS)


# -- operators of a file ------------------------------------------------------------------------


def _expect_usual_form(operator: OperatorView) -> None:
    """Raises where the operator is no plain LSTM."""
    stored, activation = operator.stored, operator.option("fusedActivationFunction")
    if len(stored.inputs) not in _NUM_TENSORS:
        raise NotUnderstoodError(f"it reads {len(stored.inputs)} tensors, expected 20 or 24")
    if len(stored.intermediates) != _NUM_INTERMEDIATES:
        raise NotUnderstoodError(
            f"it has {len(stored.intermediates)} intermediate tensors, expected "
            f"{_NUM_INTERMEDIATES} with the grid of its hidden state"
        )
    for name, places in _VARIANTS.items():
        if any(map(operator.has, places)):
            raise NotUnderstoodError(f"it has {name}")
    if activation != tfl.ActivationFunctionType.TANH:
        raise NotUnderstoodError(f"its activation is {operator.activation}, expected TANH")
    if operator.option("diagonalRecurrentTensors"):
        raise NotUnderstoodError("its recurrent weights are diagonals")


def _rows(
    operator: OperatorView, places: Sequence[int], shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes of several gates' weights, one below the other, and each row's scale."""
    codes, scales = [], []
    for place in places:
        tensor = operator.tensor(place)
        values = operator.constant(place, "INT8")
        if values.shape != shape:
            raise NotUnderstoodError(
                f"its weights {tensor.name} have the shape {values.shape}, expected {shape}"
            )
        is_grid = tensor.scales.size == 1 and 0 < tensor.scales[0] < np.inf
        if not is_grid or any(tensor.zero_points):
            raise NotUnderstoodError(
                f"its weights {tensor.name} have the scales {tensor.scales[:3].tolist()} and the "
                f"zero points {tensor.zero_points[:3].tolist()}, expected one scale above 0, and 0"
            )
        codes.append(values.astype(np.int32))
        scales.append(np.full(shape[0], tensor.scales[0]))
    return np.concatenate(codes), np.concatenate(scales)


def _bits_of(state: StoredTensor) -> int:
    """Returns the bits of a cell state in front of its point."""
    scale = float(state.scales[0]) if state.scales.size == 1 else 0.0
    fraction, exponent = math.frexp(scale)
    bits = exponent - 1 + functions.WIDTH_16
    if fraction == 0.5 and bits < 0:
        raise NotUnderstoodError(
            f"its cell state has the scale 2^{exponent - 1}, for which LiteRT has no tanh: it "
            "takes the input gate instead, and all its codes are wrong; convert with inputs whose "
            "cell state reaches 1/2"
        )
    is_usual = state.type == "INT16" and fraction == 0.5 and not any(state.zero_points)
    if not (is_usual and 0 <= bits <= gates.MOST_CELL_BITS):
        raise NotUnderstoodError(
            f"its cell state is {state.type} with the scales {state.scales[:3].tolist()} and the "
            f"zero points {state.zero_points[:3].tolist()}, expected INT16 with a power of two "
            f"from 2^-{functions.WIDTH_16} to 2^-{functions.WIDTH_16 - gates.MOST_CELL_BITS}, and 0"
        )
    return bits


def _clip_of(operator: OperatorView, cell_bits: int) -> int:
    """Returns the largest magnitude of the cell state in codes; 0 where it is not clipped."""
    clip = float(operator.option("cellClip"))
    codes = math.ldexp(clip, functions.WIDTH_16 - cell_bits)
    # Kernels differ where a clip is less than one code.
    if clip == 0.0 or codes >= 1.0:
        return int(min(codes, (1 << functions.WIDTH_16) - 1))
    raise NotUnderstoodError(f"its cell_clip is {clip}, expected 0 or at least one code")
