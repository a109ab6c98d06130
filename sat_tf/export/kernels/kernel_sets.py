"""The table of kernel sets: kernels that round alike, by runtime and processor.

A new runtime or processor is a row. What a row does not say, an operation computes alike
everywhere: it selects codes, or looks them up.
"""

import abc
import dataclasses
import enum
import math
import platform
from collections.abc import Callable

import numpy as np

from sat_tf.export.kernels import fixed_point, float32, vectors, xnnpack

# Matrices that have a kernel of their own for products with a vector: these sizes at least.
_FEWEST_ROWS, _FEWEST_COLUMNS = 4, 8


# Of the input, of each channel's weights, and of the output.
LinearScales = tuple[np.float32, np.ndarray, np.float32]


class Engine(enum.Enum):
    """Which kernels of LiteRT compute an operation where XNNPACK takes part."""

    XNNPACK = "xnnpack"
    BUILTIN = "builtin"  # it leaves the operation to them


@dataclasses.dataclass(frozen=True)
class Affine:
    """The grid of a tensor: real value = scale · (stored - zero_point).

    Attributes:
        scale: float32.
        zero_point: the stored integer of real 0.
    """

    scale: np.float32
    zero_point: int


@dataclasses.dataclass(frozen=True)
class LinearWork:
    """A linear operation, as far as kernels choose their rounding by it.

    Attributes:
        operator: its name in the file.
        engine: the kernels that compute it where XNNPACK takes part.
        depth: how many products are in a sum.
        is_grouped: whether channels read only a part of the input's.
        one_scale: whether the file holds one scale for the weights of all channels.
        is_small_depthwise: whether Arm has a kernel of its own for it: depthwise convolutions of
            3x3 with strides of 1 or 2, a multiple of 8 channels and the usual padding.
    """

    operator: str
    engine: Engine = Engine.XNNPACK
    depth: int = 1
    is_grouped: bool = False
    one_scale: bool = False
    is_small_depthwise: bool = False


@dataclasses.dataclass(frozen=True)
class KernelSet(abc.ABC):
    """Kernels that round alike.

    All methods take exact integers and give integers that are neither clipped nor, but for means,
    moved by the zero point.

    Attributes:
        name: for users.
        title: in a table.
        where: on which processors, in words.
    """

    name: str
    title: str
    where: str

    @abc.abstractmethod
    def linear(
        self,
        work: LinearWork,
        sums: np.ndarray,
        scales: LinearScales,
    ) -> np.ndarray:
        """Sums of a linear operation as codes.

        Args:
            work: the operation.
            sums: Σ weight · code + bias, images on the first axis, channels on the last.
            scales: see `LinearScales`.
        """

    @abc.abstractmethod
    def summed(
        self,
        summands: list[np.ndarray],
        scales: list[np.float32],
        output_scale: np.float32,
        *,
        difference: bool = False,
    ) -> np.ndarray:
        """Codes of a sum, or a difference, of two tensors of codes."""

    @abc.abstractmethod
    def product(
        self, products: np.ndarray, scales: tuple[np.float32, np.float32], output_scale: np.float32
    ) -> np.ndarray:
        """Codes of a product of two tensors, whose codes are multiplied already."""

    @abc.abstractmethod
    def mean(
        self,
        sums: np.ndarray,
        count: int,
        source: Affine,
        output: Affine,
        *,
        keep_dims: bool = False,
    ) -> np.ndarray:
        """Stored integers of the mean of `count` stored integers with these sums.

        Args:
            sums: channels on the last axis.
            count: how many stored integers are in each.
            source: the grid of these.
            output: that of the mean.
            keep_dims: whether the operator keeps the dimensions that it sums over.
        """

    @abc.abstractmethod
    def quantized(self, real: np.ndarray, scale: np.float32) -> np.ndarray:
        """Codes of float32 values."""


@dataclasses.dataclass(frozen=True)
class Xnnpack(KernelSet):
    """XNNPACK, with the builtin kernels where it leaves an operation to them.

    Attributes:
        multiply: the rule of products, from products and their multiplier.
        average: the rule of means; see `xnnpack.mean_rounded_twice`.
        left: the kernels that compute the linear operations that it leaves to others.
    """

    multiply: Callable[[np.ndarray, np.float32], np.ndarray]
    average: Callable[[np.ndarray, np.float32, int, tuple[int, int]], np.ndarray]
    left: KernelSet

    def linear(
        self,
        work: LinearWork,
        sums: np.ndarray,
        scales: LinearScales,
    ) -> np.ndarray:
        """See `KernelSet`."""
        if work.engine is Engine.BUILTIN:
            return self.left.linear(work, sums, scales)
        return xnnpack.requantized(sums, narrow_multipliers(*scales))

    def summed(
        self,
        summands: list[np.ndarray],
        scales: list[np.float32],
        output_scale: np.float32,
        *,
        difference: bool = False,
    ) -> np.ndarray:
        """See `KernelSet`."""
        return xnnpack.summed(summands, scales, output_scale, difference=difference)

    def product(
        self, products: np.ndarray, scales: tuple[np.float32, np.float32], output_scale: np.float32
    ) -> np.ndarray:
        """See `KernelSet`."""
        return self.multiply(products, xnnpack.product_multiplier(*scales, output_scale))

    def mean(
        self,
        sums: np.ndarray,
        count: int,
        source: Affine,
        output: Affine,
        *,
        keep_dims: bool = False,
    ) -> np.ndarray:
        """See `KernelSet`."""
        del keep_dims
        multiplier = xnnpack.mean_multiplier(source.scale, output.scale, count)
        return self.average(sums, multiplier, count, (source.zero_point, output.zero_point))

    def quantized(self, real: np.ndarray, scale: np.float32) -> np.ndarray:
        """See `KernelSet`: one float32 product with the inverse scale, round half to even."""
        return np.asarray(np.rint(real * (np.float32(1.0) / scale)))


@dataclasses.dataclass(frozen=True)
class Reference(KernelSet):
    """Kernels of the plain C++ sources, without vectors: gemmlowp's rounding throughout.

    Attributes:
        dense: the rule of matrix products, from sums and scales.
        multiplier: of products of two tensors, from their scales and that of the output.
    """

    dense: Callable[[np.ndarray, LinearWork, LinearScales], np.ndarray]
    multiplier: Callable[[np.float32, np.float32, np.float32], float]

    def linear(
        self,
        work: LinearWork,
        sums: np.ndarray,
        scales: LinearScales,
    ) -> np.ndarray:
        """See `KernelSet`."""
        if work.operator == "FULLY_CONNECTED":
            return self.dense(sums, work, scales)
        multipliers = fixed_point.fixed_point(wide_multipliers(*scales))
        return fixed_point.rounded_twice_away(_integers(sums), multipliers)

    def summed(
        self,
        summands: list[np.ndarray],
        scales: list[np.float32],
        output_scale: np.float32,
        *,
        difference: bool = False,
    ) -> np.ndarray:
        """See `KernelSet`."""
        return fixed_point.summed(summands, scales, output_scale, difference=difference)

    def product(
        self, products: np.ndarray, scales: tuple[np.float32, np.float32], output_scale: np.float32
    ) -> np.ndarray:
        """See `KernelSet`.

        Vectors hold a product in 16 bits behind its rounding. What does not fit them, 128 times the
        range of int8 and more, is not simulated: calibrated scales are far from it.
        """
        multiplier = fixed_point.fixed_point(self.multiplier(*scales, output_scale))
        return fixed_point.rounded_twice_away(products, multiplier)

    def mean(
        self,
        sums: np.ndarray,
        count: int,
        source: Affine,
        output: Affine,
        *,
        keep_dims: bool = False,
    ) -> np.ndarray:
        """See `KernelSet`."""
        del keep_dims
        scales, zeros = (source.scale, output.scale), (source.zero_point, output.zero_point)
        return fixed_point.mean(sums, count, scales, zeros)

    def quantized(self, real: np.ndarray, scale: np.float32) -> np.ndarray:
        """See `KernelSet`: a float32 quotient, halves away from zero."""
        return float32.rounded_away(real / scale)


@dataclasses.dataclass(frozen=True)
class Builtin(Reference):
    """The builtin kernels, which take vectors where they can.

    Attributes:
        matrix: the rule of matrix products, which convolutions are too.
        small_depthwise: that of the depthwise convolutions with a kernel of their own.
    """

    matrix: fixed_point.Rule
    small_depthwise: fixed_point.Rule

    def linear(
        self,
        work: LinearWork,
        sums: np.ndarray,
        scales: LinearScales,
    ) -> np.ndarray:
        """See `KernelSet`."""
        sums = _integers(sums)
        multipliers = fixed_point.fixed_point(_multipliers(work, scales))
        if work.is_grouped:
            return fixed_point.rounded_twice_away(sums, multipliers)
        if work.is_small_depthwise:
            return self.small_depthwise(sums, multipliers)
        if work.operator in ("DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"):
            return vectors.requantized(sums, multipliers)
        # A product with a vector, of an image by itself, has a kernel of its own.
        is_vector = math.prod(sums.shape[1:-1]) == 1
        if is_vector and sums.shape[-1] >= _FEWEST_ROWS and work.depth >= _FEWEST_COLUMNS:
            return fixed_point.rounded_twice_up(sums, multipliers)
        return self.matrix(sums, multipliers)

    def summed(
        self,
        summands: list[np.ndarray],
        scales: list[np.float32],
        output_scale: np.float32,
        *,
        difference: bool = False,
    ) -> np.ndarray:
        """See `KernelSet`; differences have no kernel with vectors."""
        if difference:
            return super().summed(summands, scales, output_scale, difference=True)
        return vectors.sum_of(summands, scales, output_scale)

    def mean(
        self,
        sums: np.ndarray,
        count: int,
        source: Affine,
        output: Affine,
        *,
        keep_dims: bool = False,
    ) -> np.ndarray:
        """See `KernelSet`."""
        if not keep_dims:
            return super().mean(sums, count, source, output)
        scales, zeros = (source.scale, output.scale), (source.zero_point, output.zero_point)
        return vectors.mean_of_stored(sums, count, scales, zeros)

    def quantized(self, real: np.ndarray, scale: np.float32) -> np.ndarray:
        """See `KernelSet`."""
        return vectors.quantized(real, scale)


def narrow_multipliers(source: np.float32, weights: np.ndarray, output: np.float32) -> np.ndarray:
    """Output codes of one unit of the sum, a channel, as XNNPACK computes them in float32."""
    return np.asarray(source * weights.astype(np.float32) / output, np.float32)


def wide_multipliers(source: np.float32, weights: np.ndarray, output: np.float32) -> np.ndarray:
    """The same as the builtin kernels compute them in float64."""
    return np.asarray(float(source) * weights.astype(np.float32).astype(np.float64) / float(output))


def _multipliers(work: LinearWork, scales: LinearScales) -> np.ndarray:
    """The same, but that a matrix with one scale has the product of two in float32."""
    if not (work.operator == "FULLY_CONNECTED" and work.one_scale):
        return wide_multipliers(*scales)
    source, weights, output = scales
    both = np.asarray(source * weights.astype(np.float32), np.float32)
    return np.asarray(both.astype(np.float64) / float(output))


def _integers(sums: np.ndarray) -> np.ndarray:
    return sums.astype(np.int64)


def _dense_in_fixed_point(sums: np.ndarray, work: LinearWork, scales: LinearScales) -> np.ndarray:
    multipliers = fixed_point.fixed_point(_multipliers(work, scales))
    return fixed_point.rounded_twice_away(_integers(sums), multipliers)


def _dense_in_float64(sums: np.ndarray, work: LinearWork, scales: LinearScales) -> np.ndarray:
    del work
    return float32.rounded_away(sums.astype(np.float64) * wide_multipliers(*scales))


REFERENCE = Reference(
    "reference",
    "LiteRT, reference kernels",
    "all processors",
    dense=_dense_in_float64,
    multiplier=fixed_point.multiplier_in_float32,
)
MICRO = Reference(
    "micro",
    "TFLite Micro",
    "all processors, with its reference kernels; not CMSIS-NN's or a vendor's",
    dense=_dense_in_fixed_point,
    multiplier=fixed_point.multiplier_in_float64,
)
BUILTIN_X86 = Builtin(
    "builtin_x86",
    "LiteRT, builtin kernels on x86",
    "x86 with AVX, as the wheels have it",
    dense=_dense_in_fixed_point,
    multiplier=fixed_point.multiplier_in_float32,
    matrix=fixed_point.rounded_twice_up,
    small_depthwise=fixed_point.rounded_twice_up,
)
BUILTIN_ARM = Builtin(
    "builtin_arm",
    "LiteRT, builtin kernels on Arm",
    "Armv8",
    dense=_dense_in_fixed_point,
    multiplier=fixed_point.multiplier_in_float32,
    matrix=fixed_point.rounded_once,
    small_depthwise=fixed_point.rounded_before_shifts,
)
X86 = Xnnpack(
    "xnnpack_x86",
    "XNNPACK on x86",
    "x86, and processors without rules of their own: WebAssembly, RISC-V",
    multiply=xnnpack.product_in_float32,
    average=xnnpack.mean_rounded_twice,
    left=BUILTIN_X86,
)
ARM = Xnnpack(
    "xnnpack_arm",
    "XNNPACK on Arm",
    "Armv8 and Armv9, as clang builds it: Android, iOS, the wheels for Linux and macOS",
    multiply=xnnpack.product_in_fixed_point,
    average=xnnpack.mean_fused,
    left=BUILTIN_ARM,
)
ARM_UNFUSED = Xnnpack(
    "xnnpack_arm_unfused",
    "XNNPACK on Arm, unfused",
    "Armv7 without fused multiply-add, and builds that do not fuse, such as GCC's with CMake",
    multiply=xnnpack.product_in_fixed_point,
    average=xnnpack.mean_rounded_twice,
    left=BUILTIN_ARM,
)

KERNEL_SETS: dict[str, KernelSet] = {
    row.name: row for row in (X86, ARM, ARM_UNFUSED, BUILTIN_X86, BUILTIN_ARM, REFERENCE, MICRO)
}

# The kernel sets of XNNPACK: a file is portable where all of them compute the same codes.
XNNPACK_SETS: tuple[Xnnpack, ...] = (X86, ARM, ARM_UNFUSED)

_ARM_MACHINES = ("aarch64", "arm64")


def builtin_of_this_machine() -> Builtin:
    """LiteRT's builtin kernels here."""
    return BUILTIN_X86 if of_this_machine() is X86 else BUILTIN_ARM


def of_this_machine() -> Xnnpack:
    """The kernels that LiteRT's wheel runs here with XNNPACK."""
    machine = platform.machine().lower()
    if machine in _ARM_MACHINES:
        return ARM
    return ARM_UNFUSED if machine.startswith("arm") else X86
