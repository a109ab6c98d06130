"""Operators that compute with codes, and that sat-tf does not write: a row each."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from sat_tf.exact.kernels import fixed_point, functions
from sat_tf.exact.kernels.kernel_sets import MICRO, XNNPACK_SETS, KernelSet, LinearWork
from sat_tf.exact.operations.movements import Moved
from sat_tf.exact.operations.operation import Made, stored_codes
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView, codes_of, grid_of
from sat_tf.exact.tflite.tensors import Activation, Codes, Tensors


class Call(NamedTuple):
    """An operator, and the stored integers that it reads."""

    kernels: KernelSet
    stored: list[np.ndarray]  # With the batch dimension.
    grids: tuple[Codes, ...]
    output: Codes
    options: Mapping[str, Any]

    def codes(self, index: int = 0) -> np.ndarray:
        """Codes, stored - zero_point, of a tensor that it reads."""
        return self.stored[index].astype(np.int64) - self.grids[index].zero_point


Rule = Callable[[Call], np.ndarray]  # Gives stored integers.


@dataclasses.dataclass(frozen=True)
class Computed(Moved):
    """An operator of `RULES`."""

    grids: tuple[Codes, ...] = ()  # Of all that it reads, in order.

    moves = False

    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        rule, _ = RULES[self.name]
        stored = self.arrays(inputs)
        return rule(Call(graph.kernels, stored, self.grids, graph.codes(self.output), self.options))

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        inputs, arrays = cls.read_in_order(operator)
        codes = operator.fused_codes()
        grids = [
            operator.source_codes(index) if array is None else codes_of(operator.tensor(index))
            for index, array in enumerate(arrays)
        ]
        if codes is None or None in grids:
            raise NotUnderstoodError("it reads or makes float values")
        options = {name: operator.option(name) for name in RULES[operator.name][1]}
        read = inputs, operator.output.name, operator.name, arrays, options
        return cls(*read, grids=tuple(filter(None, grids))), codes


def rectifier(activation: Activation) -> Rule:
    """The rule of a rectifier that is an operator of its own: another grid, whose ends it clips."""

    def rule(call: Call) -> np.ndarray:
        (source,), output = call.grids, call.output
        if call.kernels is MICRO and activation is not Activation.RELU:
            # It clips the codes of the input, and does not bring them to another grid.
            ends = Codes(source.scale, source.zero_point).clipped(activation)
            return np.clip(call.stored[0], ends.lowest, ends.highest)
        ratio = fixed_point.fixed_point(float(np.float32(source.scale / output.scale)))
        return stored_codes(fixed_point.rounded_twice_away(call.codes(), ratio), output)

    return rule


def batch_product(call: Call) -> np.ndarray:
    """Matrix products of two tensors, or of one and a constant."""
    turned = call.options["adjX"], call.options["adjY"]
    one, other = (
        np.swapaxes(call.codes(index), -1, -2) if turn else call.codes(index)
        for index, turn in enumerate(turned)
    )
    sums = (one.astype(np.float64) @ other.astype(np.float64)).astype(np.int64)  # exact
    first, second, output = (grid.scale for grid in (*call.grids, call.output))
    if call.kernels in XNNPACK_SETS:
        work = LinearWork("BATCH_MATMUL", depth=one.shape[-1])
        scales = first, np.asarray(second), output
        return stored_codes(call.kernels.linear(work, sums, scales), call.output)
    multiplier = float(np.float32(first * second)) / float(output)
    made = fixed_point.rounded_twice_away(sums, fixed_point.fixed_point(multiplier))
    return stored_codes(made, call.output)


_FARTHEST = np.float32(2.0**20)  # codes: beyond these a function saturates


def tabulated(curve: functions.Curve) -> Rule:
    """The rule of a function of which builtin kernels have a table of 256 codes."""

    def rule(call: Call) -> np.ndarray:
        (source,), output = call.grids, call.output
        end = _FARTHEST * output.scale
        of_codes = functions.by_table(
            lambda x: np.clip(curve(x), -end, end), functions.rounded_half_away
        )
        with np.errstate(all="ignore"):
            grids = functions.Grids(source.scale, output.scale, output.zero_point)
            made = of_codes(call.codes(), grids)
        return stored_codes(made, output)

    return rule


_ROOT_BITS = 20  # behind the point of an inverse root
# The first two have 3 bits in front of the point.
_ONE, _THREE_HALVES, _HALF_ROOT_OF_TWO = map(np.asarray, (1 << 28, 3 << 27, 1518500250))
_STEPS = 5
_LARGEST = np.asarray((1 << 31) - 1)
_OF_NORMALS, _NORMAL_BITS = (np.float32(1 / 128), 0), 7


def _inverse_roots(numbers: np.ndarray) -> fixed_point.Multipliers:
    """1 / √n of integers from 1 on, by Newton's method in 32 bits: x += x/2 · (1 - n · x²).

    >>> found = _inverse_roots(np.array([1, 4, 255, 2**30]))
    >>> np.ldexp(found.mantissas, found.exponents - 31).round(7).tolist()
    [1.0, 0.5, 0.0626224, 3.05e-05]
    """
    narrow, fours = numbers.astype(np.int64), np.zeros_like(numbers, np.int64)
    while np.any(is_wide := narrow >= 1 << 29):
        narrow, fours = np.where(is_wide, narrow // 4, narrow), fours + is_wide
    pairs = (30 - np.floor(np.log2(narrow)).astype(np.int64)) // 2 - 1
    wide = (narrow << (2 * pairs)) >> 1
    half = (wide + 1) >> 1
    x = np.full_like(wide, _ONE)
    times = fixed_point.high_product
    for _ in range(_STEPS):
        cube = times(times(x, x), x) << 6
        x = (times(x, _THREE_HALVES) - times(half, cube)) << 3
    mantissas, exponents = times(x, _HALF_ROOT_OF_TWO), pairs - 11 - fours
    is_one = numbers == 1
    return fixed_point.Multipliers(
        np.where(is_one, _LARGEST, mantissas), np.where(is_one, 0, exponents)
    )


def _scaled(values: np.ndarray, by: fixed_point.Multipliers, bits: int) -> np.ndarray:
    """Products with multipliers that are 2^bits times as large, rounded twice."""
    larger = by._replace(exponents=by.exponents + bits)
    return fixed_point.rounded_twice_away(values, larger)


def inverse_root(call: Call) -> np.ndarray:
    """1 / √x in integers; that of 0 saturates."""
    scale = 1.0 / float(np.sqrt(np.float32(call.grids[0].scale)) * call.output.scale)
    codes, ratio = call.codes(), fixed_point.fixed_point(scale)
    roots = _scaled(np.ones_like(codes), _inverse_roots(np.maximum(codes, 1)), _ROOT_BITS)
    made = stored_codes(_scaled(roots, ratio, -_ROOT_BITS), call.output)
    return np.where(codes == 0, 127, made)


def normalization(call: Call) -> np.ndarray:
    """Values divided by the root of the sum of their squares over the last axis, in integers."""
    if grid_of(call.output) != _OF_NORMALS:
        raise ValueError("its scale and zero point are not 1/128 and 0")
    codes = call.codes()
    squares = np.maximum(np.sum(codes**2, axis=-1, keepdims=True), 1)
    return stored_codes(_scaled(codes, _inverse_roots(squares), _NORMAL_BITS), call.output)


_SQUARE_BITS = 7  # with which a difference is taken before it is squared


def squared_difference(call: Call) -> np.ndarray:
    """The square of the difference of two tensors, in integers."""
    scales = [grid.scale for grid in call.grids]
    first, second = (
        fixed_point.rounded_twice_away(call.codes(index) << _SQUARE_BITS, multiplier)
        for index, multiplier in enumerate(fixed_point.summand_multipliers(scales))
    )
    widest = 2.0 * float(max(scales))
    multiplier = widest**2 / float(np.float32(1 << 2 * _SQUARE_BITS) * call.output.scale)
    squares = (first - second) ** 2
    made = fixed_point.rounded_twice_away(squares, fixed_point.fixed_point(multiplier))
    return stored_codes(made, call.output)


# Each with the names of its options that count.
RULES: Mapping[str, tuple[Rule, tuple[str, ...]]] = {
    **{kind.value: (rectifier(kind), ()) for kind in Activation if kind is not Activation.NONE},
    "BATCH_MATMUL": (batch_product, ("adjX", "adjY")),
    "EXP": (tabulated(np.exp), ()),
    "LOG": (tabulated(np.log), ()),
    "RSQRT": (inverse_root, ()),
    "L2_NORMALIZATION": (normalization, ()),
    "SQUARED_DIFFERENCE": (squared_difference, ()),
}
