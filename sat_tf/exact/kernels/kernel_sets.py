"""The table of kernel sets: kernels that round alike, by runtime and processor.

A new runtime or processor is a row. Operations that have no field in a row compute alike
everywhere: they select codes, or look them up.
"""

import dataclasses
import functools
import math
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from sat_tf.exact.kernels import bilinear, fixed_point, functions, gates, wide, xnnpack
from sat_tf.exact.kernels.bilinear import Interpolation
from sat_tf.exact.kernels.fixed_point import Scales, Terms, Zeros
from sat_tf.exact.kernels.functions import FunctionRule, Rounding, Slopes
from sat_tf.exact.kernels.gates import Gates

# Matrices of at least these sizes have a kernel of their own for products with a vector.
_FEWEST_ROWS, _FEWEST_COLUMNS = 4, 8

# The scales of the input, of each channel's weights, and of the output.
LinearScales = tuple[np.float32, np.ndarray, np.float32]


@dataclasses.dataclass(frozen=True)
class LinearWork:
    """The properties of a linear operation that kernels choose their rounding by."""

    operator: str  # The operator's name in the file.
    is_builtin: bool = False  # Whether XNNPACK leaves it to the builtin kernels.
    depth: int = 1  # The number of products in a sum.
    is_grouped: bool = False  # Whether channels read only a part of the input's channels.
    one_scale: bool = False  # Whether the file holds one scale for the weights of all channels.
    # Whether Arm has a kernel of its own for it: depthwise convolutions of 3x3 with strides of 1 or
    # 2, a multiple of 8 channels and the usual padding.
    is_small_depthwise: bool = False


LinearRule = Callable[[LinearWork, np.ndarray, LinearScales], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class KernelSet:
    """Kernels that round alike.

    All functions take exact integers and give integers that are neither clipped nor, except for
    means and softmax, moved by the zero point.
    """

    name: str  # The name for users.
    title: str  # The title in a table.
    # Sums of a linear operation as codes, from the operation, Σ weight · code + bias with images on
    # the first axis and channels on the last, and `LinearScales`.
    linear: LinearRule
    # Codes of a sum of two tensors of codes, or with difference=True of a difference, from both
    # tensors, their scales, and that of the output.
    summed: Callable[..., np.ndarray]
    # Codes of a product of two tensors, from the products of their codes, their scales, and that of
    # the output.
    product: Callable[[np.ndarray, Scales, np.float32], np.ndarray]
    # Stored integers of means, from sums with channels on the last axis, the count of stored
    # integers in each, the scales and the zero points of the input and of the output, and whether
    # the operator keeps the dimensions that it sums over.
    mean: Callable[[np.ndarray, int, Scales, Zeros, bool], np.ndarray]
    # Stored integers of sums, from sums of stored integers and the count of these in each, the
    # scales and the zero points of the input and of the output.
    total: Callable[[np.ndarray, int, Scales, Zeros], np.ndarray]
    # The stored integer of an end of an activation, from its value, the scale and the zero point,
    # as a number that may be beyond int8.
    end: Callable[[float, np.float32, int], float]
    # Codes of float32 values, from these and the scale.
    quantized: Callable[[np.ndarray, np.float32], np.ndarray]
    # Stored probabilities, clipped, from stored integers with classes last, and their scale.
    softmax: Callable[[np.ndarray, np.float64], np.ndarray]
    log_softmax: Callable[[np.ndarray, np.float32], np.ndarray]  # The same in logarithms.
    interpolation: Interpolation  # The rule of bilinear resizing.
    # Codes of a function's float32 values in a table of 256, from these, the scale and the zero
    # point of the output; see `functions.Rounding`.
    tabulated: Rounding
    logistic: FunctionRule  # Codes of a sigmoid.
    tanh: FunctionRule  # Codes of a tanh.
    slopes: Slopes  # The multipliers of functions with another slope below 0.
    leaky: FunctionRule  # Codes of a leaky rectifier.
    hard_swish: FunctionRule  # Codes of a hard-swish.
    # Codes on another scale, from these, their scale and that of the output.
    rescaled: Callable[[np.ndarray, np.float32, np.float32], np.ndarray]
    gates: Gates  # The rounding of an LSTM.

    def on(self, bits: int) -> "KernelSet":
        """Returns the kernels that its runtime has for codes of 8 or of 16 bits."""
        return _WIDE[self.name] if bits == 16 else self


def narrow_multipliers(source: np.float32, weights: np.ndarray, output: np.float32) -> np.ndarray:
    """Returns output codes of a unit of the sum, by channel, as XNNPACK does in float32."""
    return np.asarray(source * weights.astype(np.float32) / output, np.float32)


def wide_multipliers(source: np.float32, weights: np.ndarray, output: np.float32) -> np.ndarray:
    """Returns output codes of a unit of the sum, by channel, as builtin kernels do in float64."""
    return np.asarray(float(source) * weights.astype(np.float32).astype(np.float64) / float(output))


def _multipliers(work: LinearWork, scales: LinearScales) -> np.ndarray:
    """Returns `wide_multipliers`; a matrix with one scale has the product of two in float32."""
    if not (work.operator == "FULLY_CONNECTED" and work.one_scale):
        return wide_multipliers(*scales)
    source, weights, output = scales
    both = np.asarray(source * weights.astype(np.float32), np.float32)
    return np.asarray(both.astype(np.float64) / float(output))


def _products(
    work: LinearWork, sums: np.ndarray, scales: LinearScales, rule: fixed_point.Rule
) -> np.ndarray:
    return rule(sums.astype(np.int64), fixed_point.fixed_point(_multipliers(work, scales)))


# The plain C++ sources, without vectors: gemmlowp's rounding throughout. All processors have them.
# Vectors hold a product of two tensors in 16 bits after its rounding. Products that do not fit,
# 128 times the range of int8 and more, are not simulated: calibrated scales are far from them.
REFERENCE = KernelSet(
    "reference",
    "LiteRT, reference kernels",
    linear=lambda work, sums, scales: (
        fixed_point.rounded_away(sums.astype(np.float64) * wide_multipliers(*scales))
        if work.operator == "FULLY_CONNECTED"
        else _products(work, sums, scales, fixed_point.rounded_twice_away)
    ),
    summed=fixed_point.summed,
    product=lambda products, scales, output: fixed_point.rescaled(
        products, xnnpack.product_multiplier(*scales, output)
    ),
    mean=lambda sums, count, scales, zeros, _: fixed_point.mean(sums, count, scales, zeros),
    total=lambda sums, count, scales, zeros: (
        zeros[1]
        + fixed_point.rescaled(sums - zeros[0] * count, float(scales[0]) / float(scales[1]))
    ),
    # Both are float32 quotients, halves away from zero.
    end=lambda value, scale, zero: float(
        fixed_point.rounded_away(np.asarray(np.float32(value) / scale)) + zero
    ),
    quantized=lambda real, scale: fixed_point.rounded_away(real / scale),
    softmax=functions.softmax_in_fixed_point,
    log_softmax=functions.log_softmax_in_fixed_point,
    interpolation=bilinear.OF_BUILTIN,
    tabulated=functions.rounded_half_away,
    logistic=functions.by_table(functions.logistic, functions.rounded_half_away),
    tanh=functions.by_table(functions.tanh, functions.rounded_half_away),
    slopes=functions.narrow_slopes,
    leaky=functions.leaky,
    hard_swish=functions.hard_swish,
    rescaled=lambda codes, source, output: fixed_point.rescaled(
        codes, float(source) / float(output)
    ),
    gates=gates.OF_LITERT,
)
# This is all processors with TFLite Micro's reference kernels; not CMSIS-NN's or a vendor's.
MICRO = dataclasses.replace(
    REFERENCE,
    name="micro",
    title="TFLite Micro",
    linear=functools.partial(_products, rule=fixed_point.rounded_twice_away),
    # TFLite Micro alone computes the multiplier of a product in float64.
    product=lambda products, scales, output: fixed_point.rescaled(
        products, float(scales[0]) * float(scales[1]) / float(output)
    ),
    logistic=functions.logistic_in_fixed_point,
    tanh=functions.tanh_in_fixed_point,
    slopes=functions.wide_slopes,
    leaky=functools.partial(functions.leaky, slopes=functions.wide_slopes),
    gates=gates.OF_MICRO,
)
# This is Arm's reference model of NPUs, on the program that its converter makes of a file. It also
# rounds twice in all linear operations, and interpolates exactly, with halves up.
TOSA = dataclasses.replace(
    REFERENCE,
    name="tosa",
    title="TOSA",
    linear=MICRO.linear,
    end=lambda value, scale, zero: float(
        fixed_point.rounded_away(np.asarray(value / float(scale))) + zero
    ),
    interpolation=bilinear.OF_XNNPACK,
    slopes=MICRO.slopes,
    leaky=MICRO.leaky,
)


def _in_vectors(matrix: fixed_point.Rule, small_depthwise: fixed_point.Rule) -> LinearRule:
    """Returns the rule of linear operations that take vectors where they can."""

    def linear(work: LinearWork, sums: np.ndarray, scales: LinearScales) -> np.ndarray:
        # A product with a vector, of an image by itself, has a kernel of its own.
        is_vector = math.prod(sums.shape[1:-1]) == 1
        if work.is_grouped:
            rule: fixed_point.Rule = fixed_point.rounded_twice_away
        elif work.is_small_depthwise:
            rule = small_depthwise
        elif work.operator in ("DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"):
            rule = fixed_point.requantized_in_blocks
        elif is_vector and sums.shape[-1] >= _FEWEST_ROWS and work.depth >= _FEWEST_COLUMNS:
            rule = fixed_point.rounded_twice_up
        else:
            rule = matrix
        return _products(work, sums, scales, rule)

    return linear


def _total_in_float32(
    sums: np.ndarray, count: int, scales: Scales, zeros: Zeros, add: Callable[..., np.ndarray]
) -> np.ndarray:
    """Returns stored integers of sums: a product and a sum in float32, halves away from zero."""
    ratio = np.float32(scales[0] / scales[1])
    offset = np.float32(np.float32(-zeros[0]) * ratio) * np.float32(count)
    return fixed_point.rounded_away(add(sums, ratio, np.float32(offset))) + zeros[1]


# The builtin kernels take vectors where they can, and otherwise round like the plain sources. This
# is x86 with AVX, as the wheels have it.
BUILTIN_X86 = dataclasses.replace(
    REFERENCE,
    name="builtin_x86",
    title="LiteRT, builtin kernels on x86",
    linear=_in_vectors(fixed_point.rounded_twice_up, fixed_point.rounded_twice_up),
    # Differences have no kernel with vectors.
    summed=lambda summands, scales, output, *, difference=False: (
        fixed_point.summed(summands, scales, output, difference=True)
        if difference
        else fixed_point.summed_in_blocks(summands, scales, output)
    ),
    mean=lambda sums, count, scales, zeros, keep_dims: (
        fixed_point.mean_in_blocks if keep_dims else fixed_point.mean
    )(sums, count, scales, zeros),
    total=functools.partial(_total_in_float32, add=xnnpack.multiply_add),
    quantized=fixed_point.quantized_in_blocks,
    softmax=functions.softmax_in_float32,
    log_softmax=functools.partial(functions.log_softmax_in_float32, add=xnnpack.multiply_add),
    rescaled=lambda codes, source, output: fixed_point.rounded_twice_up(
        codes, fixed_point.fixed_point(float(source) / float(output))
    ),
)
# This is Armv8.
BUILTIN_ARM = dataclasses.replace(
    BUILTIN_X86,
    name="builtin_arm",
    title="LiteRT, builtin kernels on Arm",
    linear=_in_vectors(fixed_point.rounded_once, fixed_point.rounded_before_shifts),
    total=functools.partial(_total_in_float32, add=xnnpack.fused_multiply_add),
    softmax=functions.softmax_with_tables,
    log_softmax=functools.partial(functions.log_softmax_in_float32, add=xnnpack.fused_multiply_add),
    hard_swish=functions.hard_swish_of_arm,
)


def _delegated(builtin_kernels: KernelSet) -> LinearRule:
    """Returns XNNPACK's rule of linear operations, some of which it leaves to other kernels."""
    return lambda work, sums, scales: (
        builtin_kernels.linear(work, sums, scales)
        if work.is_builtin
        else xnnpack.requantized(sums, narrow_multipliers(*scales))
    )


# XNNPACK leaves some linear operations, softmax and hard-swish to the builtin kernels. This is x86,
# and processors without rules of their own: WebAssembly, RISC-V.
X86 = dataclasses.replace(
    BUILTIN_X86,
    name="xnnpack_x86",
    title="XNNPACK on x86",
    linear=_delegated(BUILTIN_X86),
    summed=xnnpack.summed,
    product=lambda products, scales, output: xnnpack.requantized(
        products, xnnpack.product_multiplier(*scales, output)
    ),
    mean=lambda sums, count, scales, zeros, _: xnnpack.mean(
        sums, xnnpack.mean_multiplier(*scales, count), count, zeros, xnnpack.multiply_add
    ),
    total=lambda sums, count, scales, zeros: xnnpack.mean(
        sums, np.float32(scales[0] / scales[1]), count, zeros, xnnpack.multiply_add
    ),
    # Halves to even, with the zero point.
    end=lambda value, scale, zero: float(np.rint(np.float32(value) / scale + np.float32(zero))),
    # One float32 product with the inverse scale, round half to even.
    quantized=lambda real, scale: np.asarray(np.rint(real * (np.float32(1.0) / scale))),
    interpolation=bilinear.OF_XNNPACK,
    tabulated=functions.rounded_moved,
    logistic=functions.by_table(functions.logistic_in_float64, functions.rounded_moved),
    tanh=functions.by_table(functions.tanh, functions.rounded_moved),
    leaky=functions.leaky_of_xnnpack,
    rescaled=xnnpack.rescaled,
)
# This is Armv7 without fused multiply-add, and builds that do not fuse, such as GCC's with CMake.
ARM_UNFUSED = dataclasses.replace(
    X86,
    name="xnnpack_arm_unfused",
    title="XNNPACK on Arm, unfused",
    linear=_delegated(BUILTIN_ARM),
    product=lambda products, scales, output: xnnpack.product_in_fixed_point(
        products, xnnpack.product_multiplier(*scales, output)
    ),
    softmax=BUILTIN_ARM.softmax,
    log_softmax=BUILTIN_ARM.log_softmax,
    hard_swish=BUILTIN_ARM.hard_swish,
)
# This is Armv8 and Armv9, as clang builds it: Android, iOS, the wheels for Linux and macOS.
# Compilers fuse products with sums.
ARM = dataclasses.replace(
    ARM_UNFUSED,
    name="xnnpack_arm",
    title="XNNPACK on Arm",
    mean=lambda sums, count, scales, zeros, _: xnnpack.mean(
        sums, xnnpack.mean_multiplier(*scales, count), count, zeros, xnnpack.fused_multiply_add
    ),
    total=lambda sums, count, scales, zeros: xnnpack.mean(
        sums, np.float32(scales[0] / scales[1]), count, zeros, xnnpack.fused_multiply_add
    ),
    tabulated=functions.rounded_moved_fused,
    logistic=functions.by_table(functions.logistic_in_float64, functions.rounded_moved_fused),
    tanh=functions.by_table(functions.tanh, functions.rounded_moved_fused),
    interpolation=bilinear.OF_XNNPACK_FUSED,
)

_ROWS = X86, ARM, ARM_UNFUSED, BUILTIN_X86, BUILTIN_ARM, REFERENCE, MICRO, TOSA
KERNEL_SETS: dict[str, KernelSet] = {row.name: row for row in _ROWS}


# -- codes of 16 bits ------------------------------------------------------------------------------
# XNNPACK takes none. The builtin kernels for them have vectors for quantization and for sums of two
# tensors of one shape.


def _wide_sums(
    summands: Terms, scales: list[np.float32], output: np.float32, *, difference: bool = False
) -> np.ndarray:
    bits = fixed_point.WIDE_SUM_BITS
    if difference or summands[0].shape[1:] != summands[1].shape[1:]:
        return fixed_point.summed(summands, scales, output, difference=difference, bits=bits)
    return fixed_point.summed_in_blocks(summands, scales, output, bits)


def _wide(*rows: KernelSet, **rules: Any) -> dict[str, KernelSet]:
    """Returns rows for 16 bits: their sums have 15 more bits, and their linear sums 64 in all."""
    rules = {
        "linear": lambda work, sums, scales: (
            fixed_point.rounded_away(sums.astype(np.float64) * wide_multipliers(*scales))
            if work.operator == "FULLY_CONNECTED"
            else _products(work, sums, scales, fixed_point.rounded_in_int64)
        ),
        "summed": functools.partial(fixed_point.summed, bits=fixed_point.WIDE_SUM_BITS),
        "softmax": wide.softmax,
        "logistic": wide.curve(wide.sigmoids, 0),
        "tanh": wide.curve(wide.tanhs, 1),
        **rules,
    }
    return {
        row.name: dataclasses.replace(REFERENCE, name=row.name, title=row.title, **rules)
        for row in rows
    }


_WIDE_PRODUCTS = functools.partial(_products, rule=fixed_point.rounded_in_int64)
_ON_ARMV7 = functools.partial(fixed_point.quantized_in_blocks, nearest=fixed_point.moved_away)
_BUILTIN = {
    "summed": _wide_sums,
    "logistic": wide.curve(wide.sigmoids, 0, functions.sigmoids),
    "tanh": wide.curve(wide.tanhs, 1, functions.tanhs),
}
_WIDE = {
    **_wide(X86, ARM, BUILTIN_X86, BUILTIN_ARM, quantized=BUILTIN_X86.quantized, **_BUILTIN),
    **_wide(ARM_UNFUSED, quantized=_ON_ARMV7, **_BUILTIN),
    **_wide(REFERENCE),
    **_wide(
        MICRO,
        linear=_WIDE_PRODUCTS,
        product=MICRO.product,
        slopes=MICRO.slopes,
        leaky=MICRO.leaky,
        softmax=functools.partial(wide.softmax, precision="float32"),
    ),
    **_wide(TOSA, linear=_WIDE_PRODUCTS),
}

# The kernel sets of XNNPACK: a file is portable where all of them compute the same codes.
XNNPACK_SETS: tuple[KernelSet, ...] = (X86, ARM, ARM_UNFUSED)

_ARM_MACHINES = ("aarch64", "arm64")


def builtin_of_this_machine() -> KernelSet:
    """Returns LiteRT's builtin kernels on this machine."""
    return BUILTIN_X86 if of_this_machine() is X86 else BUILTIN_ARM


def of_this_machine() -> KernelSet:
    """Returns the kernels that LiteRT's wheel runs on this machine with XNNPACK."""
    machine = platform.machine().lower()
    if machine in _ARM_MACHINES:
        return ARM
    return ARM_UNFUSED if machine.startswith("arm") else X86
