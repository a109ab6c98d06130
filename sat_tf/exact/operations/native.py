"""Functions of one value, as rows of operators or as tables, and softmax."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.kernels import fixed_point, functions, wide
from sat_tf.exact.kernels.functions import FunctionRule
from sat_tf.exact.kernels.kernel_sets import MICRO, KernelSet
from sat_tf.exact.operations import operation as shared
from sat_tf.exact.operations.operation import Call, Made, Operation, Portability, Row, Rule, Written
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, codes_of, expect_grid, grid_of
from sat_tf.exact.tflite.tensors import WIDE, Activation, Codes, Storage, Tensors
from sat_tf.exact.tflite.writer import Operator, Writer

# The offset from a stored integer to its place in a table.
FIRST = 128
STORED = np.arange(-FIRST, FIRST)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)
_CUBIC, _ROOT = np.float32(0.044715), np.float32(math.sqrt(2.0 / math.pi))
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.expm1(np.minimum(x, 0)), x)


def _gelu(x: np.ndarray, *, approximate: bool) -> np.ndarray:
    if approximate:
        # NumPy's own float32 tanh is less exact than C's.
        gate = np.tanh((_ROOT * (x + _CUBIC * x * x * x)).astype(np.float64))
        return _HALF * x * (_ONE + gate.astype(np.float32))
    # This is x · Φ(x) without the cancellation in 1 + erf.
    share = _erfc(x * np.float32(-math.sqrt(0.5))).astype(np.float32)
    return _HALF * x * share


def _by(rule_of: Callable[[KernelSet], FunctionRule]) -> Rule:
    """Returns the rule of an operator for which kernel sets have functions on codes."""

    def rule(call: Call) -> np.ndarray:
        output = call.output
        grids = functions.Grids(call.grid().scale, output.scale, output.zero_point, call.options)
        rule_of_kernels = rule_of(call.kernels.on(output.bits))
        return shared.stored_codes(rule_of_kernels(call.codes(), grids), output)

    return rule


# XNNPACK leaves some functions to the builtin kernels, which have a table of 256 codes.
def _in_table(curve: functions.Curve) -> Rule:
    return _by(lambda kernels: functions.by_table(curve, functions.rounded_half_away))


_FARTHEST = np.float32(2.0**20)  # codes, beyond which a function saturates


def _saturating(curve: functions.Curve) -> Rule:
    """Returns the rule of a function whose values may be infinite or NaN."""

    def rule(call: Call) -> np.ndarray:
        end = _FARTHEST * call.output.scale
        with np.errstate(all="ignore"):
            return np.asarray(_in_table(lambda x: np.clip(curve(x), -end, end))(call))

    return rule


def _rectifier(activation: Activation) -> Rule:
    """Returns the rule of a rectifier operator: codes on another grid, clipped at its ends."""

    def rule(call: Call) -> np.ndarray:
        source, output = call.grid(), call.output
        if call.kernels is MICRO and activation is not Activation.RELU:
            # TFLite Micro clips the codes of the input, without bringing them to another grid.
            ends = Codes(source.scale, source.zero_point).clipped(activation).on(call.kernels)
            return np.clip(call.arrays[0], ends.lowest, ends.highest)
        ratio = float(np.float32(source.scale / output.scale))
        return shared.stored_codes(fixed_point.rescaled(call.codes(), ratio), output)

    return rule


_ROOT_BITS = 20  # after the point of an inverse root


def _inverse_root(call: Call) -> np.ndarray:
    """Computes 1 / √x in integers; 1 / √0 saturates."""
    scale = 1.0 / float(np.sqrt(np.float32(call.grid().scale)) * call.output.scale)
    codes, ratio = call.codes(), fixed_point.fixed_point(scale)
    roots = fixed_point.inverse_roots(np.maximum(codes, 1))
    fine = fixed_point.scaled(np.ones_like(codes), roots, _ROOT_BITS)
    stored = shared.stored_codes(fixed_point.scaled(fine, ratio, -_ROOT_BITS), call.output)
    return np.where(codes == 0, 127, stored)


def _root(call: Call) -> np.ndarray:
    """Computes √x in float32, rounded towards zero."""
    real = call.grid().scale * np.maximum(call.codes(), 0).astype(np.float32)
    return shared.stored_codes(np.trunc(np.sqrt(real) / call.output.scale), call.output)


def _negated(call: Call) -> np.ndarray:
    """Negates stored integers, whatever their grid; -128 stays, as int8 does not hold 128."""
    stored = call.arrays[0]
    return np.where(stored == -FIRST, stored, -stored)


# The grid of a softmax of codes: 0 to 255/256.
PROBABILITIES = Codes(functions.SOFTMAX_SCALE, functions.SOFTMAX_ZERO_POINT)
# The same of 16 bits, which sigmoid and tanh share.
FRACTIONS = Codes.wide(wide.SCALE)
_TANHS = Codes(np.float32(1.0 / 128.0), 0)
_LEAKY = Written(2, "LeakyReluOptions")


def _function(name: str, rule: Rule, *options: str, **fields: Any) -> Row:
    takes_wide = name in wide.OPERATORS
    return Row(name, rule, options, of_one_value=True, takes_wide=takes_wide, **fields)


ROWS = (
    _function(
        "ABS",
        _by(lambda kernels: functools.partial(functions.magnitude, slopes=kernels.slopes)),
        written=Written(2, "AbsOptions"),
    ),
    _function(
        "LOGISTIC", _by(lambda kernels: kernels.logistic), grid=PROBABILITIES, written=Written(2)
    ),
    _function("TANH", _by(lambda kernels: kernels.tanh), grid=_TANHS, written=Written(2)),
    _function(
        "ELU", _by(lambda kernels: functions.by_table(_elu, kernels.tabulated)), written=Written(1)
    ),
    _function("GELU", _in_table(_gelu), "approximate", written=Written(2, "GeluOptions")),
    _function(
        "HARD_SWISH",
        _by(lambda kernels: kernels.hard_swish),
        problem=functions.hard_swish_problem,
        written=Written(1, "HardSwishOptions"),
    ),
    _function("LEAKY_RELU", _by(lambda kernels: kernels.leaky), "alpha", written=_LEAKY),
    *(_function(end.value, _rectifier(end)) for end in Activation if end is not Activation.NONE),
    _function("EXP", _saturating(np.exp)),
    _function("LOG", _saturating(np.log)),
    _function("RSQRT", _inverse_root, written=Written(2)),
    _function("SQRT", _root),
    _function("NEG", _negated),
)
# The rows of the operators that sat-tf writes.
NATIVE: Mapping[str, Row] = {row.name: row for row in ROWS if row.written}
# The grids of outputs that TFLite fixes, by operator.
FIXED_GRIDS: Mapping[str, Codes] = {
    **{row.name: row.grid for row in ROWS if row.grid},
    "SOFTMAX": PROBABILITIES,
}


def fixed_grid(operator: str, bits: int) -> Codes:
    """Returns the grid that TFLite fixes for an operator's codes of 8 or of 16 bits."""
    return FRACTIONS if bits == WIDE else FIXED_GRIDS[operator]


def takes_grid(operator: str, codes: Codes) -> bool:
    """Whether the kernels of an operator make codes of this grid."""
    is_free = operator not in FIXED_GRIDS
    return is_free or grid_of(fixed_grid(operator, codes.bits)) == grid_of(codes)


# -- tables ---------------------------------------------------------------------------------------

_CAST = Operator("CAST", 1, "CastOptions")
_ADD = Operator("ADD", 1, "AddOptions")  # of int32
_GATHER = Operator("GATHER", 2, "GatherOptions")


class _Places(NamedTuple):
    """The tensor of codes that became int32, and the number that was added to them."""

    source: str
    added: int


@dataclasses.dataclass(frozen=True)
class Lookup(Operation):
    """stored = table[stored of the input + 128]: exact in every runtime, whatever the function."""

    table: np.ndarray  # Int8, 256 stored integers.

    reads = ("CAST", "ADD", "GATHER")
    num_constants = 2  # the table and a number
    same_because = "it looks codes up in a table"
    of_each_code = True

    @property
    def operators(self) -> tuple[str, ...]:
        return _CAST.name, _ADD.name, _GATHER.name

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        return np.asarray(self.table.astype(np.int32)[inputs[0] + FIRST])

    @property
    def told_apart(self) -> tuple[int, int] | None:
        # The ends of a sigmoid, for example, are flat.
        changes = np.flatnonzero(np.diff(self.table))
        return (int(changes[0]) - FIRST, int(changes[-1]) + 1 - FIRST) if changes.size else None

    def write(self, writer: Writer) -> None:
        """Adds CAST and ADD, as places in a table are int32, and GATHER."""
        name, shape = self.output, writer.graph.tensors[self.output].shape
        codes = writer.graph.codes(name)
        table = writer.constant(f"{name}/table", self.table, codes.scale, codes.zero_point)
        offset = writer.constant(f"{name}/first", np.array(FIRST, np.int32))
        number, place = (writer.between(f"{name}/{role}", shape) for role in ("number", "place"))
        types = {"inDataType": tfl.TensorType.INT8, "outDataType": tfl.TensorType.INT32}
        writer.operator(_CAST, self.inputs, number, **types)
        writer.operator(_ADD, [number, offset], place)
        writer.operator(_GATHER, [table, place], name, axis=0)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Accepts a CAST to int32, additions to its output, and a GATHER from a table by these."""
        if operator.name == "ADD":
            source = operator.stored.inputs[0]
            entry = operator.progress.pending.get(source.name) if source else None
            return isinstance(entry, _Places)
        if operator.name == "CAST":
            return operator.output.type == "INT32"
        return operator.is_constant(0) and operator.tensor(1).name in operator.progress.pending

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        pending = operator.progress.pending
        if operator.name == "CAST":
            if operator.source_codes() is None:
                raise NotUnderstoodError("it does not make int32 of codes")
            pending[operator.output.name] = _Places(operator.source(), 0)
            return None
        if operator.name == "ADD":
            source, added = pending[operator.tensor(0).name]
            added += int(operator.constant(1, "INT32"))
            pending[operator.output.name] = _Places(source, added)
            return None
        table, codes = operator.constant(0, "INT8"), operator.codes()
        entry = pending.get(operator.tensor(1).name)
        source, added = entry if isinstance(entry, _Places) else ("", 0)
        if table.shape != (2 * FIRST,) or added != FIRST or codes is None:
            raise NotUnderstoodError("it does not look up each code in a table of 256")
        codes = Codes(codes.scale, codes.zero_point, int(np.min(table)), int(np.max(table)))
        return cls((source,), operator.output.name, table), codes

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return int(self.table.nbytes)


# The end of the name of ids as int32: files of other tools cast numbers for any use.
_IDS = "/ids"


class _Ids(NamedTuple):
    """The tensor with ids that became int32, and its type."""

    source: str
    dtype: str


@dataclasses.dataclass(frozen=True)
class RowLookup(Operation):
    """stored = table[id]: rows of a table of codes by ids, exact in every runtime."""

    table: np.ndarray  # Int8, (rows, size).
    ids: str = "int32"  # The type of the ids.

    reads = (_CAST.name, _GATHER.name)
    num_constants = 1
    has_fixed_grid = True
    reads_numbers = True

    @property
    def operators(self) -> tuple[str, ...]:
        return (_GATHER.name,) if self.ids == "int32" else (_CAST.name, _GATHER.name)

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`; kernels refuse ids beyond the table, and cut off a fraction."""
        ids = inputs[0].astype(np.int64)
        lowest, highest = np.min(ids, initial=0), np.max(ids, initial=0)
        if lowest < 0 or highest >= len(self.table):
            raise ValueError(
                f"{self.output}: received ids from {lowest} to {highest}, expected 0 to "
                f"{len(self.table) - 1}, the rows of its table; give ids of the model's vocabulary."
            )
        return self.table[ids].astype(np.int32)

    def write(self, writer: Writer) -> None:
        """Adds GATHER, which takes ids of any shape, after a CAST unless they are int32."""
        name, graph = self.output, writer.graph
        scales = np.atleast_1d(graph.codes(name).scale)
        table = writer.kernel(f"{name}/table", self.table, Storage.INT8, scales, 0)
        place: int | str = self.inputs[0]
        if self.ids != "int32":
            place = writer.between(f"{name}{_IDS}", graph.tensors[name].shape[:-1])
            types = {"inDataType": getattr(tfl.TensorType, self.ids.upper())}
            writer.operator(_CAST, self.inputs, place, **types, outDataType=tfl.TensorType.INT32)
        writer.operator(_GATHER, [table, place], name, axis=0)

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Accepts the CAST of ids, and a GATHER of rows by an input of int32, or by such ids."""
        if operator.name == _CAST.name:
            return operator.output.name.endswith(_IDS)
        table, places = operator.tensor(0), operator.tensor(1)
        is_table = operator.is_constant(0) and table.type == "INT8" and len(table.shape) == 2
        image, pending = operator.progress.image(places.name), operator.progress.pending
        are_ids = image.type == "INT32" if image else isinstance(pending.get(places.name), _Ids)
        return is_table and are_ids and not operator.option("axis")

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        pending = operator.progress.pending
        if operator.name == _CAST.name:
            dtype = operator.tensor(0).type.lower()
            pending[operator.output.name] = _Ids(operator.source(), dtype)
            return None
        codes, places = operator.codes(), operator.tensor(1).name
        if codes is None or grid_of(codes_of(operator.tensor(0))) != grid_of(codes):
            raise NotUnderstoodError("its table has another grid than its output")
        if operator.option("batchDims"):
            raise NotUnderstoodError("it has a table for each image")
        source, dtype = pending.get(places, _Ids(places, "int32"))
        return cls((source,), operator.output.name, operator.constant(0, "INT8"), dtype), codes

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        return 0 if shares_kernel else int(self.table.nbytes)


# -- softmax --------------------------------------------------------------------------------------

_OF_CODES = Operator("SOFTMAX", 2, "SoftmaxOptions")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns probabilities over the last axis, float32."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=-1, keepdims=True), np.float32)


@dataclasses.dataclass(frozen=True)
class Softmax(Operation):
    """Softmax over the last axis: float values give float32, and codes give `PROBABILITIES`.

    XNNPACK leaves the softmax of codes to the builtin kernels. They add powers in float32 on x86,
    and integers of 16 bits on Arm; the reference kernels and TFLite Micro compute everything in
    fixed point: about one code in a thousand differs, by one.
    """

    beta: float = 1.0  # The factor of its inputs.

    operator = Operator("SOFTMAX", 1, "SoftmaxOptions")
    makes_probabilities = True
    rounds = True
    takes_wide = True

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """See `Operation`: the codes that it reads are as portable as without it."""
        if WIDE in self.bits(graph):
            return super().portability_of_codes(graph)
        why = "no delegate takes it, and the builtin kernels of x86 and of Arm differ in about one "
        return Portability(shared.Basis.IMAGES, f"{why}code of a thousand")

    def ends_process(self, graph: Tensors, kernels: KernelSet) -> str | None:
        """See `Operation`: a sum of many similar powers does not fit fixed-point kernels."""
        classes = graph.tensors[self.output].shape[-1]
        tensor = graph.tensors[self.output].codes
        is_short = tensor is None or (
            kernels.on(tensor.bits).softmax is not functions.softmax_in_fixed_point
        )
        if is_short or classes <= functions.MOST_CLASSES:
            return None
        return (
            f"its kernel of SOFTMAX ends the process where {classes:,} classes are about equally "
            f"likely, and takes {functions.MOST_CLASSES} safely"
        )

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """See `Operation`; kernels differ in the last bits of float values."""
        (source,) = inputs
        if self.is_float(graph):
            return softmax(source * np.float32(self.beta))
        # In float64, which some kernels round to float32.
        codes = graph.codes(self.inputs[0])
        return graph.kernels.on(codes.bits).softmax(source, np.float64(codes.scale) * self.beta)

    def write(self, writer: Writer) -> None:
        operator = self.operator if self.is_float(writer.graph) else _OF_CODES
        writer.operator(operator, self.inputs, self.output, beta=self.beta)

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        codes, beta = operator.codes(), operator.option("beta")
        if not 0 < beta < np.inf:
            raise NotUnderstoodError(f"its beta is {beta}")
        if (operator.source_codes() is None) != (codes is None):
            raise NotUnderstoodError("it reads codes and makes float values, or the reverse")
        if codes is not None:
            expect_grid(fixed_grid(cls.operator.name, codes.bits), codes)
        return cls((operator.source(),), operator.output.name, float(beta)), codes

    def expect_own_form(self, operator: OperatorView) -> None:
        if self.beta != 1.0:
            raise NotUnderstoodError(f"its beta is {self.beta}")
