"""Operators that compute with codes, in forms that sat-tf does not write."""

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sat_tf.export.foreign.rule import Read, made_codes, operand, operands, rule
from sat_tf.export.kernels import fixed_point, functions
from sat_tf.export.kernels.kernel_sets import MICRO, XNNPACK_SETS, LinearWork
from sat_tf.export.operations.linear import Linear
from sat_tf.export.operations.operation import stored_codes
from sat_tf.export.tflite.contents import NotUnderstoodError
from sat_tf.export.tflite.operator_view import OperatorView, grid_of
from sat_tf.export.tflite.tensors import Codes, Tensors

Arrays = Sequence[np.ndarray]
Reader = Callable[[OperatorView], Read | None]


def _codes(stored: np.ndarray, grid: Codes) -> np.ndarray:
    """Codes, stored - zero_point, of stored integers."""
    return stored.astype(np.int64) - grid.zero_point


def _ratio(source: Codes, output: Codes) -> fixed_point.Multipliers:
    """Output codes of an input code, a float32 quotient."""
    return fixed_point.fixed_point(float(np.float32(source.scale / output.scale)))


# -- rectifiers ------------------------------------------------------------------------------------


def rectifier(low: float, high: float | None) -> Reader:
    """The reader of a rectifier that is an operator of its own: another grid, and two ends."""

    def read(view: OperatorView) -> Read:
        given, codes = operand(view), made_codes(view)
        ratio, source = _ratio(given.codes, codes), _between(given.codes, low, high)
        codes = _between(codes, low, high)

        def function(graph: Tensors, arrays: Arrays) -> np.ndarray:
            if graph.kernels is MICRO and high is not None:
                # It clips the codes of the input, and does not bring them to another grid.
                return np.clip(arrays[0], source.lowest, source.highest)
            values = _codes(arrays[0], given.codes)
            return stored_codes(fixed_point.rounded_twice_away(values, ratio), codes)

        return rule(view, [given], function), codes

    return read


def _between(grid: Codes, low: float, high: float | None) -> Codes:
    """The codes of a grid between two real values."""
    end = 127 if high is None else grid.code_of(high)
    return dataclasses.replace(grid, lowest=grid.code_of(low), highest=end)


# -- linear ----------------------------------------------------------------------------------------


def fully_connected(view: OperatorView) -> Read | None:
    """A matrix product of every row of a tensor of any shape; None where it is float."""
    source, depth = view.tensor(0), view.tensor(1).shape[-1]
    if view.codes() is None:
        return None
    keeps = bool(view.option("keepNumDims"))
    rows = dataclasses.replace(source, shape=(math.prod(source.shape) // max(depth, 1), depth))
    options = copy.copy(view.stored.options)
    options.keepNumDims = False
    stored = dataclasses.replace(
        view.stored, inputs=(rows, *view.stored.inputs[1:]), options=options
    )
    made = Linear.read(dataclasses.replace(view, stored=stored))
    if made is None:
        raise NotUnderstoodError("no operation of sat-tf has it in this form")
    product, codes = made[0], made_codes(view)

    def function(graph: Tensors, arrays: Arrays) -> np.ndarray:
        # Kernels take a product of one row otherwise than of several, wherever these come from.
        found = product.simulate(graph, arrays[0].reshape(1, -1, depth))
        shape = arrays[0].shape[:-1] if keeps else (-1,)
        return found.reshape(*shape, found.shape[-1])

    return rule(view, [operand(view)], function), codes


def batch_product(view: OperatorView) -> Read:
    """Matrix products of two tensors, or of one and a constant."""
    first, second, codes = operand(view, 0), operand(view, 1), made_codes(view)
    turned = view.option("adjX"), view.option("adjY")
    if second.value is not None and view.tensor(1).scales.size != 1:
        raise NotUnderstoodError("its constant has several scales")

    def function(graph: Tensors, arrays: Arrays) -> np.ndarray:
        one, other = (
            np.swapaxes(array, -1, -2) if turn else array
            for array, turn in zip(
                (_codes(arrays[0], first.codes), _codes(arrays[1], second.codes)),
                turned,
                strict=True,
            )
        )
        sums = (one.astype(np.float64) @ other.astype(np.float64)).astype(np.int64)  # exact
        scales = (first.codes.scale, np.asarray(second.codes.scale), codes.scale)
        if graph.kernels in XNNPACK_SETS:
            work = LinearWork(view.name, depth=one.shape[-1])
            return stored_codes(graph.kernels.linear(work, sums, scales), codes)
        multiplier = float(np.float32(scales[0] * second.codes.scale)) / float(codes.scale)
        made = fixed_point.rounded_twice_away(sums, fixed_point.fixed_point(multiplier))
        return stored_codes(made, codes)

    return rule(view, [first, second], function), codes


# -- functions of one value ------------------------------------------------------------------------

_STORED = np.arange(-128, 128)
_FARTHEST = np.float32(2.0**20)  # codes: beyond these a function saturates


def tabulated(curve: functions.Curve) -> Reader:
    """The reader of a function that builtin kernels look up in a table of 256."""

    def read(view: OperatorView) -> Read:
        given, codes = operand(view), made_codes(view)
        end = _FARTHEST * codes.scale
        rounding = functions.by_table(
            lambda x: np.clip(curve(x), -end, end), functions.rounded_half_away
        )
        with np.errstate(all="ignore"):
            made = rounding(
                _codes(_STORED, given.codes), given.codes.scale, codes.scale, codes.zero_point, {}
            )
        table = stored_codes(made, codes)
        return rule(view, [given], lambda graph, arrays: table[arrays[0] + 128]), codes

    return read


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


def inverse_root(view: OperatorView) -> Read:
    """1 / √x in integers; that of 0 saturates."""
    given, codes = operand(view), made_codes(view)
    scale = 1.0 / float(np.sqrt(np.float32(given.codes.scale)) * codes.scale)
    ratio = fixed_point.fixed_point(scale)

    def function(graph: Tensors, arrays: Arrays) -> np.ndarray:
        found = _codes(arrays[0], given.codes)
        roots = _scaled(np.ones_like(found), _inverse_roots(np.maximum(found, 1)), _ROOT_BITS)
        made = stored_codes(_scaled(roots, ratio, -_ROOT_BITS), codes)
        return np.where(found == 0, 127, made)

    return rule(view, [given], function), codes


def normalization(view: OperatorView) -> Read:
    """Values divided by the root of the sum of their squares over the last axis, in integers."""
    given, codes = operand(view), made_codes(view)
    if grid_of(codes) != _OF_NORMALS:
        raise NotUnderstoodError("its scale and zero point are not 1/128 and 0")

    def function(graph: Tensors, arrays: Arrays) -> np.ndarray:
        found = _codes(arrays[0], given.codes)
        squares = np.maximum(np.sum(found**2, axis=-1, keepdims=True), 1)
        return stored_codes(_scaled(found, _inverse_roots(squares), _NORMAL_BITS), codes)

    return rule(view, [given], function), codes


def _scaled(values: np.ndarray, by: fixed_point.Multipliers, bits: int) -> np.ndarray:
    """Products with multipliers that are 2^bits times as large, rounded twice."""
    larger = by._replace(exponents=by.exponents + bits)
    return fixed_point.rounded_twice_away(values, larger)


_SQUARE_BITS = 7  # with which a difference is taken before it is squared


def squared_difference(view: OperatorView) -> Read:
    """The square of the difference of two tensors, in integers."""
    given, codes = operands(view), made_codes(view)

    def function(graph: Tensors, arrays: Arrays) -> np.ndarray:
        scales = [one.codes.scale for one in given]
        first, second = (
            fixed_point.rounded_twice_away(_codes(array, one.codes) << _SQUARE_BITS, multiplier)
            for array, one, multiplier in zip(
                arrays, given, fixed_point.summand_multipliers(scales), strict=True
            )
        )
        widest = 2.0 * float(max(scales))
        multiplier = widest**2 / float(np.float32(1 << 2 * _SQUARE_BITS) * codes.scale)
        squares = (first - second) ** 2
        made = fixed_point.rounded_twice_away(squares, fixed_point.fixed_point(multiplier))
        return stored_codes(made, codes)

    return rule(view, given, function), codes


READERS: Mapping[str, Reader] = {
    "RELU": rectifier(0.0, None),
    "RELU6": rectifier(0.0, 6.0),
    "RELU_N1_TO_1": rectifier(-1.0, 1.0),
    "RELU_0_TO_1": rectifier(0.0, 1.0),
    "FULLY_CONNECTED": fully_connected,
    "BATCH_MATMUL": batch_product,
    "EXP": tabulated(np.exp),
    "LOG": tabulated(np.log),
    "RSQRT": inverse_root,
    "L2_NORMALIZATION": normalization,
    "SQUARED_DIFFERENCE": squared_difference,
}
