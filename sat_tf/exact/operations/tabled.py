"""The operations that the row of their operator describes in full, and changes of shape."""

import abc
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.operations import arithmetic, movements, native
from sat_tf.exact.operations import operation as shared
from sat_tf.exact.operations.linear import SHARE_OF_WIDE
from sat_tf.exact.operations.native import FIRST, STORED
from sat_tf.exact.operations.operation import Basis, Call, Constant, Made, Operation, Row
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, codes_of, expect_grid
from sat_tf.exact.tflite.tensors import WIDE, Activation, Codes, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer

_MOVES = {row.name: row for row in movements.ROWS}
_COMPUTED = {row.name: row for row in (*native.ROWS, *arithmetic.ROWS)}
ROWS: Mapping[str, Row] = {**_MOVES, **_COMPUTED}


@dataclasses.dataclass(frozen=True)
class Tabled(Operation):
    """An output of an operator of `ROWS`; abstract."""

    name: str  # The operator's name.
    # Constants in order, with None for each input; empty where all that it reads are inputs.
    constants: tuple[Constant | None, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    place: int = 0  # The index of this output among the operator's outputs.

    @property
    def row(self) -> Row:
        """The row of its operator."""
        return ROWS[self.name]

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def joins(self) -> bool:
        return self.row.written is not None and self.row.written.joins

    @property
    def takes_wide(self) -> bool:
        return self.row.takes_wide

    @property
    def operands(self) -> tuple[Constant | None, ...]:
        """Its operands in order: constants, and None for each input."""
        return self.constants or (None,) * len(self.inputs)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        sources, names = iter(inputs), iter(self.inputs)
        arrays: list[np.ndarray] = []
        grids: list[Codes | None] = []
        for constant in self.operands:
            if constant is not None:
                are_codes = constant.values.dtype in (np.int8, np.int16)
                arrays.append(constant.values.astype(np.int32) if are_codes else constant.values)
                grids.append(constant.grid)
            else:
                tensor = graph.tensors.get(next(names))
                arrays.append(next(sources))
                grids.append(tensor.codes if tensor else None)
        codes = None if self.is_float(graph) else graph.codes(self.output)
        outputs = self.row.rule(Call(graph.kernels, arrays, grids, codes, self.options))
        return np.asarray(outputs[self.place] if self.row.makes_several else outputs)

    def write(self, writer: Writer) -> None:
        written = self.row.written
        if written is None:
            raise TypeError(f"{self.output}: {self.name} is an operator of other tools.")
        sources, names = iter(self.inputs), iter(written.constants)
        operands: list[int | str] = []
        for constant in self.operands:
            if constant is None:
                operands.append(next(sources))
                continue
            values, grid = np.asarray(constant.values, order="C"), constant.grid
            quantization = (grid.scale, grid.zero_point) if grid else ()
            operands.append(writer.constant(f"{self.output}/{next(names)}", values, *quantization))
        operator = Operator(self.name, written.version, written.schema)
        writer.operator(operator, operands, self.output, **self.options)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        codes = cls._made(operator)
        names, constants = [], list[Constant | None]()
        for index in range(len(operator.stored.inputs)):
            tensor = operator.tensor(index)
            if tensor.values is None:
                names.append(operator.source(index))
                constants.append(None)
            else:
                grid = None if tensor.holds_numbers else codes_of(tensor)
                constants.append(Constant(tensor.values, grid))
        options = {name: operator.option(name) for name in ROWS[operator.name].options}
        operands = tuple(constants) if any(constants) else ()
        output, place = operator.output.name, operator.place
        return cls(tuple(names), output, operator.name, operands, options, place), codes

    @classmethod
    @abc.abstractmethod
    def _made(cls, operator: OperatorView) -> Codes | None:
        """Returns the codes of the output; None where it is float."""

    def expect_own_form(self, operator: OperatorView) -> None:
        super().expect_own_form(operator)
        written, constants = self.row.written, self.operands[len(self.inputs) :]
        expected = len(written.constants) if written else 0
        count = written.tensors if written else 1
        fits = len(self.inputs) == count or self.joins
        if not fits or len(constants) != expected or None in constants:
            tensors = "a tensor" if count == 1 else f"{count} tensors"
            raise NotUnderstoodError(f"it does not read {tensors} and {expected} constants")
        if any(constant.grid and constant.grid.zero_point for constant in constants if constant):
            raise NotUnderstoodError("its constants have a zero point")

    @property
    def num_constants(self) -> int:
        return sum(constant is not None for constant in self.constants)

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        counted = [] if self.row.pads else filter(None, self.constants)
        return sum(constant.values.nbytes for constant in counted)


@dataclasses.dataclass(frozen=True)
class Moved(Tabled):
    """Values of tensors that an operator moves or selects."""

    reads = tuple(_MOVES)
    writes = tuple(name for name, row in _MOVES.items() if row.written)
    same_in_float_because = shared.SELECTED
    moves = True

    @property
    def on_rows(self) -> Self | None:
        if not self.joins:
            return None
        return dataclasses.replace(self, options={**self.options, "axis": self.options["axis"] + 1})

    @classmethod
    def _made(cls, operator: OperatorView) -> Codes | None:
        if operator.activation != Activation.NONE.value:
            raise NotUnderstoodError("it fuses an activation, which its kernels do not take")
        return operator.selected_codes()


@dataclasses.dataclass(frozen=True)
class Computed(Tabled):
    """Codes that an operator computes from others."""

    reads = tuple(_COMPUTED)
    writes = tuple(name for name, row in _COMPUTED.items() if row.written)
    rounds = True

    @property
    def on_rows(self) -> Self | None:
        return self if self.row.of_one_value else None

    @classmethod
    def _made(cls, operator: OperatorView) -> Codes | None:
        codes = operator.fused_codes()
        values = [tensor for tensor in operator.stored.reads if not tensor.holds_numbers]
        if codes is None or any(tensor.type == "FLOAT32" for tensor in values):
            raise NotUnderstoodError("it reads or makes float values")
        if grid := ROWS[operator.name].grid:
            expect_grid(native.FRACTIONS if codes.bits == WIDE else grid, codes)
        for index, tensor in enumerate(operator.stored.inputs):
            if tensor in values and tensor.data is None:
                operator.source_codes(index)
        return codes

    def scale_problem(self, graph: Tensors) -> str | None:
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        return self.row.problem(source.scale, output.scale)

    def share_rounded_otherwise(self, graph: Tensors) -> float:
        """See `Operation`: multipliers have 15 bits, and a leaky rectifier rounds twice."""
        is_coarse = self.name in ("BATCH_MATMUL", "LEAKY_RELU", "LOGISTIC", "TANH")
        return SHARE_OF_WIDE if is_coarse and WIDE in self.bits(graph) else 0.0

    def portability_of_codes(self, graph: Tensors) -> shared.Portability:
        if WIDE in self.bits(graph):
            return super().portability_of_codes(graph)
        if self.row.of_one_value:
            return shared.enumerated(
                STORED, lambda kernels, _: self._table(graph, kernels), "values", total=STORED.size
            )
        why = "" if self.row.same_because else "kernels may round it otherwise"
        if self.row.differs:
            sources = map(graph.codes, self.inputs)
            why = self.row.differs(*(next(sources) if c is None else c.grid for c in self.operands))
        if why:
            return shared.Portability(Basis.IMAGES, why)
        return shared.Portability(Basis.RULE, self.row.same_because)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        if self.row.of_one_value and WIDE not in self.bits(graph):
            return self._table(graph, graph.kernels)[inputs[0] + FIRST]
        return super().simulate(graph, *inputs)

    def _table(self, graph: Tensors, kernels: KernelSet) -> np.ndarray:
        """Returns the stored integers that kernels make from -128 to 127."""
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        return table_of(self.name, tuple(self.options.items()), source, output, kernels)


@functools.lru_cache(maxsize=256)
def table_of(
    name: str, options: tuple[Any, ...], source: Codes, output: Codes, kernels: KernelSet
) -> np.ndarray:
    """Returns the stored integers that kernels of a function of one value make from -128 to 127."""
    return np.asarray(ROWS[name].rule(Call(kernels, [STORED], [source], output, dict(options))))


def moved(
    name: str, source: str, output: str, shape: tuple[int, ...], *arguments: Any
) -> Operation:
    """Returns the operation that a layer's move becomes."""
    written = ROWS[name].written if name != _RESHAPE.name else None
    if written is None:
        return Reshape((source,), output)
    values, options = written.settings(shape, *arguments)
    constants = [Constant(np.array(numbers, np.int32)) for numbers in values]
    return Moved((source,), output, name, (None, *constants) if constants else (), options)


def joined(sources: Sequence[str], output: str, axis: int) -> Operation:
    """Returns the concatenation of tensors on one grid; the batch is not counted as an axis."""
    return Moved(tuple(sources), output, "CONCATENATION", options={"axis": axis + 1})


def matrix_product(first: str, second: str, output: str, *, transposed: bool) -> Operation:
    """Returns the product of matrices in two tensors, the second one transposed or not."""
    options = {"adjX": False, "adjY": transposed}
    return Computed((first, second), output, "BATCH_MATMUL", options=options)


def sloped(source: str, output: str, slopes: np.ndarray, scale: np.float32) -> Operation:
    """Returns a rectifier whose slopes below 0 are int8 codes that broadcast with the tensor."""
    constants = None, Constant(slopes, Codes(scale, 0))
    return Computed((source,), output, "PRELU", constants)


# -- other shapes ----------------------------------------------------------------------------------

_RESHAPE = Operator("RESHAPE", 1, "ReshapeOptions")


@dataclasses.dataclass(frozen=True)
class Reshape(Operation):
    """The same values in another shape."""

    operator = _RESHAPE
    reads = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
    writes = ("RESHAPE",)
    num_constants = 1  # the shape
    reshapes = True
    moves = True
    same_in_float_because = shared.SELECTED

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0].reshape(-1, *graph.tensors[self.output].shape)

    def write(self, writer: Writer) -> None:
        write_reshape(writer, self.inputs[0], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        return cls((operator.source(),), operator.output.name), operator.moved_codes()

    def expect_own_form(self, operator: OperatorView) -> None:
        operator.expect_shape(1, "newShape")


def write_reshape(writer: Writer, source: int | str, output: str) -> None:
    """Adds the operator that reshapes a tensor, given by name or by index, to `output`."""
    shape = np.array([-1, *writer.graph.tensors[output].shape], np.int32)
    constant = writer.constant(f"{output}/shape", shape)
    writer.operator(_RESHAPE, [source, constant], output, newShape=list(shape))
