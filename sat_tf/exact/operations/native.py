"""Functions on codes: by operators of their own, a row each, or by tables; softmax."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.kernels import functions
from sat_tf.exact.kernels.functions import FunctionRule
from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.operations.operation import (
    Basis,
    Made,
    Operation,
    Portability,
    enumerated,
    stored_codes,
)
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, grid_of
from sat_tf.exact.tflite.tensors import Codes, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer

# The offset from a stored integer to its place in a table.
_FIRST = 128
STORED = np.arange(-_FIRST, _FIRST)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_CUBIC, _ROOT = np.float32(0.044715), np.float32(math.sqrt(2.0 / math.pi))
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.expm1(np.minimum(x, 0)), x)


def _gelu(x: np.ndarray, *, approximate: bool) -> np.ndarray:
    if approximate:
        # NumPy's own float32 tanh is less exact than that of C.
        gate = np.tanh((_ROOT * (x + _CUBIC * x * x * x)).astype(np.float64))
        return _HALF * x * (_ONE + gate.astype(np.float32))
    # This is x · Φ(x) without the cancellation in 1 + erf.
    share = _erfc(x * np.float32(-math.sqrt(0.5))).astype(np.float32)
    return _HALF * x * share


@dataclasses.dataclass(frozen=True)
class NativeRow:
    """An operator that computes a function of one value."""

    operator: Operator  # As a file has it.
    rule: Callable[[KernelSet], FunctionRule]  # Its codes, by the kernels that compute it.
    settings: tuple[str, ...] = ()  # The names of its options in a file.
    # Why its kernels do not take the scales of its input and output, with the fix.
    problem: Callable[[np.float32, np.float32], str | None] = lambda source, output: None


_ROWS = (
    NativeRow(
        Operator("ABS", 2, "AbsOptions"),
        lambda kernels: functools.partial(functions.magnitude, slopes=kernels.slopes),
    ),
    NativeRow(Operator("LOGISTIC", 2, ""), lambda kernels: kernels.logistic),
    NativeRow(Operator("TANH", 2, ""), lambda kernels: kernels.tanh),
    NativeRow(Operator("ELU", 1, ""), lambda kernels: functions.by_table(_elu, kernels.tabulated)),
    # XNNPACK leaves it to the builtin kernels.
    NativeRow(
        Operator("GELU", 2, "GeluOptions"),
        lambda kernels: functions.by_table(_gelu, functions.rounded_half_away),
        ("approximate",),
    ),
    NativeRow(
        Operator("HARD_SWISH", 1, "HardSwishOptions"),
        lambda kernels: kernels.hard_swish,
        problem=functions.hard_swish_problem,
    ),
    NativeRow(
        Operator("LEAKY_RELU", 2, "LeakyReluOptions"), lambda kernels: kernels.leaky, ("alpha",)
    ),
)
NATIVE: Mapping[str, NativeRow] = {row.operator.name: row for row in _ROWS}
# A softmax of codes: 0 to 255/256.
PROBABILITIES = Codes(functions.SOFTMAX_SCALE, functions.SOFTMAX_ZERO_POINT)
# The grids that kernels give the outputs of these, which TFLite fixes.
FIXED_GRIDS: Mapping[str, Codes] = {
    "LOGISTIC": PROBABILITIES,
    "TANH": Codes(np.float32(1.0 / 128.0), 0),
    "SOFTMAX": PROBABILITIES,
}


def takes_grid(operator: str, codes: Codes) -> bool:
    """Whether the kernels of an operator make codes of this grid."""
    return operator not in FIXED_GRIDS or grid_of(FIXED_GRIDS[operator]) == grid_of(codes)


def _expect_grid(operator: str, codes: Codes) -> None:
    if not takes_grid(operator, codes):
        fixed = FIXED_GRIDS[operator]
        raise NotUnderstoodError(
            f"its tensor has the scale {codes.scale} and the zero point {codes.zero_point}, "
            f"expected 1/{1.0 / fixed.scale:g} and {fixed.zero_point}"
        )


@dataclasses.dataclass(frozen=True)
class Native(Operation):
    """A function of one value by an operator of its own."""

    name: str  # Of the operator, a row of `NATIVE`.
    # Its options, by the names that the schema gives them.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    reads = tuple(NATIVE)
    rounds = True

    @property
    def row(self) -> NativeRow:
        """Its operator's row."""
        return NATIVE[self.name]

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.name,)

    def title(self, graph: Tensors) -> str:
        return self.name

    def scale_problem(self, graph: Tensors) -> str | None:
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        return self.row.problem(source.scale, output.scale)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (stored,) = inputs
        return self._table(graph, graph.kernels)[stored + _FIRST]

    def _table(self, graph: Tensors, kernels: KernelSet) -> np.ndarray:
        """The stored integers that kernels make of those from -128 on."""
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        return table_of(self.name, self.settings, source, output, kernels)

    def portability(self, graph: Tensors) -> Portability:
        return enumerated(
            STORED,
            lambda kernels, stored: self._table(graph, kernels)[stored + _FIRST],
            "values",
            total=STORED.size,
        )

    def write(self, writer: Writer) -> None:
        writer.operator(self.row.operator, self.inputs, self.output, **self.settings)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        source, codes = operator.source_codes(), operator.codes()
        if source is None or codes is None:
            raise NotUnderstoodError("it reads or makes float values")
        _expect_grid(operator.name, codes)
        settings = {name: operator.option(name) for name in NATIVE[operator.name].settings}
        made = cls((operator.source(),), operator.output.name, operator.name, settings)
        return made, codes


def table_of(
    name: str, settings: Mapping[str, Any], source: Codes, output: Codes, kernels: KernelSet
) -> np.ndarray:
    """The stored integers that kernels make of those from -128 on, clipped."""
    grids = (source.scale, source.zero_point, output.scale, output.zero_point)
    made = _unclipped(name, tuple(sorted(settings.items())), grids, kernels)
    return stored_codes(made, output)


@functools.lru_cache(maxsize=256)
def _unclipped(
    name: str, settings: tuple[tuple[str, Any], ...], grids: tuple[Any, ...], kernels: KernelSet
) -> np.ndarray:
    scale, zero_point, output, output_zero = grids
    rule = NATIVE[name].rule(kernels)
    return rule(STORED - zero_point, functions.Grids(scale, output, output_zero, dict(settings)))


@dataclasses.dataclass(frozen=True)
class Sloped(Operation):
    """PRELU: a value below 0 is multiplied by a slope of its channel or its place."""

    slopes: np.ndarray  # Int8 codes, shaped like the input without the batch, or broadcast to it.
    slope_scale: np.float32  # Of these codes, whose zero point is 0.

    operator = Operator("PRELU", 1, "")
    num_constants = 1
    same_because = "it multiplies codes by one rule"

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        source, output = graph.codes(self.inputs[0]), graph.codes(self.output)
        codes = inputs[0].astype(np.int64) - source.zero_point
        factors = graph.kernels.slopes(source.scale, self.slope_scale, output.scale)
        made = functions.sloped(codes, codes * self.slopes.astype(np.int64), factors)
        return stored_codes(made, output)

    def write(self, writer: Writer) -> None:
        slopes = writer.constant(f"{self.output}/slopes", self.slopes, self.slope_scale)
        writer.operator(self.operator, [*self.inputs, slopes], self.output)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        codes, slopes = operator.codes(), operator.tensor(1)
        if operator.source_codes() is None or codes is None:
            raise NotUnderstoodError("it reads or makes float values")
        values = operator.constant(1, "INT8")
        if slopes.scales.size != 1 or np.any(slopes.zero_points):
            raise NotUnderstoodError("its slopes have several scales, or a zero point")
        made = cls((operator.source(),), operator.output.name, values, slopes.scales[0])
        return made, codes

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return int(self.slopes.nbytes)


# -- tables ---------------------------------------------------------------------------------------

_CAST = Operator("CAST", 1, "CastOptions")
_ADD = Operator("ADD", 1, "AddOptions")  # of int32
_GATHER = Operator("GATHER", 2, "GatherOptions")


class _Places(NamedTuple):
    """The codes that an int32 tensor is made of, and what was added to them."""

    source: str
    added: int


@dataclasses.dataclass(frozen=True)
class Lookup(Operation):
    """stored = table[stored of the input + 128]: exact in every runtime, whatever the function."""

    table: np.ndarray  # Int8, 256 stored integers.

    reads = ("CAST", "ADD", "GATHER")
    num_constants = 2  # the table and a number
    same_because = "it looks codes up in a table"

    @property
    def operators(self) -> tuple[str, ...]:
        return _CAST.name, _ADD.name, _GATHER.name

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        (stored,) = inputs
        return np.asarray(self.table.astype(np.int32)[stored + _FIRST])

    def write(self, writer: Writer) -> None:
        """Integers can be places in a table once they are int32."""
        name, shape = self.output, writer.graph.tensors[self.output].shape
        codes = writer.graph.codes(name)
        table = writer.constant(f"{name}/table", self.table, codes.scale, codes.zero_point)
        first = writer.constant(f"{name}/first", np.array(_FIRST, np.int32))
        number, place = (writer.between(f"{name}/{part}", shape) for part in ("number", "place"))
        types = {"inDataType": tfl.TensorType.INT8, "outDataType": tfl.TensorType.INT32}
        writer.operator(_CAST, self.inputs, number, **types)
        writer.operator(_ADD, [number, first], place)
        writer.operator(_GATHER, [table, place], name, axis=0)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Every CAST, additions to what they make, and gathering from a constant."""
        if operator.name == "ADD":
            first = operator.stored.inputs[0]
            found = operator.progress.pending.get(first.name) if first else None
            return isinstance(found, _Places)
        return operator.name == "CAST" or operator.is_constant(0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        pending = operator.progress.pending
        if operator.name == "CAST":
            if operator.source_codes() is None or operator.output.type != "INT32":
                raise NotUnderstoodError("it does not make int32 of codes")
            pending[operator.output.name] = _Places(operator.source(), 0)
            return None
        if operator.name == "ADD":
            source, added = pending[operator.tensor(0).name]
            added += int(operator.constant(1, "INT32"))
            pending[operator.output.name] = _Places(source, added)
            return None
        table, codes = operator.constant(0, "INT8"), operator.codes()
        found = pending.get(operator.tensor(1).name)
        source, added = found if isinstance(found, _Places) else ("", 0)
        if table.shape != (2 * _FIRST,) or added != _FIRST or codes is None:
            raise NotUnderstoodError("it does not look up each code in a table of 256")
        codes = Codes(codes.scale, codes.zero_point, int(np.min(table)), int(np.max(table)))
        return cls((source,), operator.output.name, table), codes

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return int(self.table.nbytes)


# -- softmax --------------------------------------------------------------------------------------

_OF_CODES = Operator("SOFTMAX", 2, "SoftmaxOptions")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, float32."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=-1, keepdims=True), np.float32)


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Softmax over the last axis: of float values in float32, of codes as `PROBABILITIES`.

    XNNPACK leaves that of codes to the builtin kernels. On x86 they add powers in float32, on Arm
    integers of 16 bits, in the reference kernels and in TFLite Micro all is in fixed point: about
    one code of a thousand differs, by one.
    """

    operator = Operator("SOFTMAX", 1, "SoftmaxOptions")
    makes_probabilities = True
    rounds = True

    def portability(self, graph: Tensors) -> Portability:
        """See `Operation`: the codes that it reads hold wherever they do without it."""
        if self.is_float(graph):
            return super().portability(graph)
        return Portability(
            Basis.IMAGES,
            "no delegate takes it, and the builtin kernels of x86 and of Arm differ in about one "
            "code of a thousand",
        )

    def ends_process(self, graph: Tensors, kernels: KernelSet) -> str | None:
        """See `Operation`: sums in fixed point of many like powers do not fit their kernels."""
        classes = graph.tensors[self.output].shape[-1]
        is_short = self.is_float(graph) or kernels.softmax is not functions.softmax_in_fixed_point
        if is_short or classes <= functions.MOST_CLASSES:
            return None
        return (
            f"its kernel of SOFTMAX ends the process where {classes:,} classes are about equally "
            f"likely, and takes {functions.MOST_CLASSES} safely"
        )

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`; of float values kernels differ in the last bits."""
        (source,) = inputs
        if self.is_float(graph):
            return softmax(source)
        return graph.kernels.softmax(source, graph.codes(self.inputs[0]).scale)

    def write(self, writer: Writer) -> None:
        operator = self.operator if self.is_float(writer.graph) else _OF_CODES
        writer.operator(operator, self.inputs, self.output, beta=1.0)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        operator.expect(beta=1.0, otherwise="it is scaled:")
        codes = operator.codes()
        if (operator.source_codes() is None) != (codes is None):
            raise NotUnderstoodError("it reads codes and makes float values, or the reverse")
        if codes is not None:
            _expect_grid(operator.name, codes)
        return cls((operator.source(),), operator.output.name), codes
