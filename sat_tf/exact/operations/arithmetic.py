"""Rows of the operators that compute one code from several values, one rule for each."""

import math

import numpy as np

from sat_tf.exact.kernels import fixed_point, functions
from sat_tf.exact.kernels.kernel_sets import MICRO, REFERENCE, XNNPACK_SETS, LinearWork
from sat_tf.exact.operations.operation import Call, Row, Written, stored_codes
from sat_tf.exact.tflite.tensors import WIDE, Codes

_IN_INTEGERS = "XNNPACK leaves it to the builtin kernels, which compute in integers alike"


def _sloped(call: Call) -> np.ndarray:
    """Multiplies values below 0 by the slope of their channel or their place."""
    factors = call.kernels.slopes(call.grid(0).scale, call.grid(1).scale, call.output.scale)
    codes = call.codes(0)
    return stored_codes(functions.sloped(codes, codes * call.codes(1), factors), call.output)


def _batch_product(call: Call) -> np.ndarray:
    """Multiplies matrices of two tensors, or of one and a constant."""
    turned = call.options["adjX"], call.options["adjY"]
    x_codes, y_codes = (
        np.swapaxes(call.codes(index), -1, -2) if turn else call.codes(index)
        for index, turn in enumerate(turned)
    )
    sums = (x_codes.astype(np.float64) @ y_codes.astype(np.float64)).astype(np.int64)  # exact
    x_scale, y_scale, output_scale = call.grid(0).scale, call.grid(1).scale, call.output.scale
    multiplier = float(np.float32(x_scale * y_scale)) / float(output_scale)
    if call.output.bits == WIDE:
        products = fixed_point.rounded_in_int64(sums, fixed_point.fixed_point(multiplier))
        return stored_codes(products, call.output)
    # XNNPACK leaves other matrices than those with the zero point 0 to the builtin kernels.
    if call.kernels in XNNPACK_SETS and call.grid(1).zero_point == 0:
        work = LinearWork("BATCH_MATMUL", depth=x_codes.shape[-1])
        scales = x_scale, np.asarray(y_scale), output_scale
        return stored_codes(call.kernels.linear(work, sums, scales), call.output)
    return stored_codes(fixed_point.rescaled(sums, multiplier), call.output)


LOWEST = -128
_PRODUCTS_ALIKE = (
    "one float32 product, rounded half to even, in all of XNNPACK's kernels; and the plain C++ "
    "sources where the second factor has a zero point"
)


def overflow_on_arm(first: Codes, second: Codes) -> str:
    """Says why products of matrices may overflow in XNNPACK's kernels without `sdot`; "" if not.

    Those of Cortex-A72 and A73, for example, add two products in 16 bits: 2 · -128 · -128 is one
    too many. Matrices with a zero point have other kernels.
    """
    if second.zero_point or (first.lowest, second.lowest) != (LOWEST, LOWEST):
        return ""
    return "kernels of older Arm processors do not hold sums of products of -128 and -128"


_NORMALS, _NORMAL_BITS = Codes(np.float32(1 / 128), 0), 7


def _normalization(call: Call) -> np.ndarray:
    """Divides values by the root of the sum of their squares over the last axis, in integers."""
    codes = call.codes()
    squares = np.maximum(np.sum(codes**2, axis=-1, keepdims=True), 1)
    roots = fixed_point.inverse_roots(squares)
    return stored_codes(fixed_point.scaled(codes, roots, _NORMAL_BITS), call.output)


def _quotient(call: Call) -> np.ndarray:
    """Divides in integers: multiplies by the inverse, both scaled up to fill 32 bits."""
    divisor = call.codes(1)
    if np.any(divisor == 0):
        raise ValueError("it divides by 0")
    number, divisor = np.broadcast_arrays(call.codes(0) * np.sign(divisor), np.abs(divisor))
    # 1 / (2^bits · (1 + x)).
    bits = np.frexp(divisor.astype(np.float64))[1].astype(np.int64) - 1
    inverses = functions.inverses_of_one_plus((divisor << (31 - bits)) - (np.int64(1) << 31))
    # The shifted number fills int32, in which one bit is its sign.
    headroom = 31 - np.frexp(np.abs(number + (number < 0)).astype(np.float64))[1].astype(np.int64)
    wide = fixed_point.high_product(number << headroom, inverses)
    ratio = np.float32(call.grid(0).scale / np.float32(call.grid(1).scale * call.output.scale))
    multiplier = fixed_point.fixed_point(float(ratio))
    high = fixed_point.high_product(wide, multiplier.mantissas)
    quotients = fixed_point.shifted_in_int32(high, bits + headroom - multiplier.exponents)
    return stored_codes(quotients, call.output)


_SQUARE_BITS = 7  # bits added to a difference before it is squared


def _squared_difference(call: Call) -> np.ndarray:
    """Squares a difference, which is computed as a sum is, with fewer bits."""
    scales, output = [call.grid(index).scale for index in (0, 1)], call.output
    minuends, subtrahends = (
        fixed_point.rounded_twice_away(call.codes(index) << _SQUARE_BITS, multiplier)
        for index, multiplier in enumerate(fixed_point.summand_multipliers(scales))
    )
    widest = 2.0 * float(max(scales))
    ratio = widest**2 / float(np.float32(1 << 2 * _SQUARE_BITS) * output.scale)
    if ratio >= 1.0:  # kernels end the process
        raise ValueError(f"its scale of {output.scale:.4g} is too small for its kernels")
    squares = (minuends - subtrahends) ** 2
    return stored_codes(fixed_point.rescaled(squares, ratio), output)


def _axes(call: Call) -> tuple[tuple[int, ...], int]:
    """Returns the axes that an operator reduces, from 0 on, and the number of values a result."""
    shape = call.arrays[0].shape
    axes = tuple(sorted({int(axis) % len(shape) for axis in call.arrays[1].flat}))
    return axes, math.prod(shape[axis] for axis in axes)


def _total(call: Call) -> np.ndarray:
    """Sums over any axes exactly, then rounds as the kernels do."""
    axes, count = _axes(call)
    source, output = call.grid(), call.output
    sums = np.sum(call.arrays[0], axes, np.int64, keepdims=bool(call.options["keepDims"]))
    scales, zeros = (source.scale, output.scale), (source.zero_point, output.zero_point)
    totals = call.kernels.total(np.asarray(sums), count, scales, zeros)
    return np.clip(totals, output.lowest, output.highest).astype(np.int32)


def _product(call: Call) -> np.ndarray:
    """Multiplies over any axes, value after value, rounding each time, in integers."""
    axes, count = _axes(call)
    keeps, output = bool(call.options["keepDims"]), call.output
    if count == 1 and call.kernels not in (REFERENCE, MICRO):  # others copy codes, on any grid
        return call.arrays[0] if keeps else np.squeeze(call.arrays[0], axes)
    ratio = float(call.grid().scale) / float(output.scale) ** (1.0 / count)
    multiplier, codes = fixed_point.fixed_point(ratio), call.codes()
    last = np.moveaxis(codes, axes, range(-len(axes), 0))
    products, *factors = np.moveaxis(last.reshape(*last.shape[: -len(axes)], -1), -1, 0)
    for factor in factors:
        products = fixed_point.rounded_in_int64(products * factor, multiplier)
    stored = stored_codes(fixed_point.rounded_in_int64(products, multiplier), output)
    return np.expand_dims(stored, axes) if keeps else stored


_LOGARITHMS = Codes(np.float32(1 / 16), 127)
_PRELU = Written(1, "", ("slopes",))
_BATCH_PRODUCT = Written(2, "BatchMatMulOptions", tensors=2)
# A row has the names of the options that its rule reads.
ROWS = (
    Row("PRELU", _sloped, (), "it multiplies codes by one rule", written=_PRELU),
    Row(
        "BATCH_MATMUL",
        _batch_product,
        ("adjX", "adjY"),
        _PRODUCTS_ALIKE,
        takes_wide=True,
        written=_BATCH_PRODUCT,
        differs=overflow_on_arm,
    ),
    Row("L2_NORMALIZATION", _normalization, same_because=_IN_INTEGERS, grid=_NORMALS),
    Row("DIV", _quotient, same_because=_IN_INTEGERS),
    Row("SQUARED_DIFFERENCE", _squared_difference, same_because=_IN_INTEGERS),
    Row("SUM", _total, ("keepDims",)),
    Row("REDUCE_PROD", _product, ("keepDims",), same_because=_IN_INTEGERS),
    Row(
        "LOG_SOFTMAX",
        lambda call: call.kernels.log_softmax(call.arrays[0], call.grid().scale),
        grid=_LOGARITHMS,
    ),
    # CAST leaves stored integers as they are, whatever their grid.
    Row("CAST", lambda call: call.arrays[0], same_because="it stores codes as they are"),
)
