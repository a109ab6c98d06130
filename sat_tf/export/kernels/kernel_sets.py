"""The table of kernel sets: kernels that round alike, by runtime and processor.

A new runtime or processor is a row. What a row does not say, an operation computes alike
everywhere: it selects codes, or looks them up.
"""

import abc
import dataclasses
import enum
import platform
from collections.abc import Callable

import numpy as np

from sat_tf.export.kernels import fixed_point, xnnpack


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
        operator: str,
        engine: Engine,
        sums: np.ndarray,
        scales: tuple[np.float32, np.ndarray, np.float32],
    ) -> np.ndarray:
        """Sums of a linear operation as codes.

        Args:
            operator: its name in the file.
            engine: the kernels that compute it where XNNPACK takes part.
            sums: Σ weight · code + bias, channels on the last axis.
            scales: of the input, of each channel's weights, and of the output.
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
    def mean(self, sums: np.ndarray, count: int, source: Affine, output: Affine) -> np.ndarray:
        """Stored integers of the mean of `count` stored integers with these sums."""

    @abc.abstractmethod
    def quantized(self, real: np.ndarray, scale: np.float32) -> np.ndarray:
        """Codes of float32 values."""


@dataclasses.dataclass(frozen=True)
class Xnnpack(KernelSet):
    """XNNPACK, with the builtin kernels where it leaves an operation to them.

    Attributes:
        multiply: the rule of products, from products and their multiplier.
        average: the rule of means; see `xnnpack.mean_rounded_twice`.
        left: the rule of linear operations that it leaves to the builtin kernels.
    """

    multiply: Callable[[np.ndarray, np.float32], np.ndarray]
    average: Callable[[np.ndarray, np.float32, int, tuple[int, int]], np.ndarray]
    left: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def linear(
        self,
        operator: str,
        engine: Engine,
        sums: np.ndarray,
        scales: tuple[np.float32, np.ndarray, np.float32],
    ) -> np.ndarray:
        """See `KernelSet`."""
        del operator
        if engine is Engine.BUILTIN:
            return self.left(sums, wide_multipliers(*scales))
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

    def mean(self, sums: np.ndarray, count: int, source: Affine, output: Affine) -> np.ndarray:
        """See `KernelSet`."""
        multiplier = xnnpack.mean_multiplier(source.scale, output.scale, count)
        return self.average(sums, multiplier, count, (source.zero_point, output.zero_point))

    def quantized(self, real: np.ndarray, scale: np.float32) -> np.ndarray:
        """See `KernelSet`: one float32 product with the inverse scale, round half to even."""
        return np.asarray(np.rint(real * (np.float32(1.0) / scale)))


def narrow_multipliers(source: np.float32, weights: np.ndarray, output: np.float32) -> np.ndarray:
    """Output codes of one unit of the sum, a channel, as XNNPACK computes them in float32."""
    return np.asarray(source * weights.astype(np.float32) / output, np.float32)


def wide_multipliers(source: np.float32, weights: np.ndarray, output: np.float32) -> np.ndarray:
    """The same as the builtin kernels compute them in float64."""
    return np.asarray(float(source) * weights.astype(np.float32).astype(np.float64) / float(output))


X86 = Xnnpack(
    "xnnpack_x86",
    "XNNPACK on x86",
    "x86, and processors without rules of their own: WebAssembly, RISC-V",
    multiply=xnnpack.product_in_float32,
    average=xnnpack.mean_rounded_twice,
    left=fixed_point.requantized,
)
ARM = Xnnpack(
    "xnnpack_arm",
    "XNNPACK on Arm",
    "Armv8 and Armv9, as clang builds it: Android, iOS, the wheels for Linux and macOS",
    multiply=xnnpack.product_in_fixed_point,
    average=xnnpack.mean_fused,
    left=fixed_point.requantized,
)
ARM_UNFUSED = Xnnpack(
    "xnnpack_arm_unfused",
    "XNNPACK on Arm, unfused",
    "Armv7 without fused multiply-add, and builds that do not fuse, such as GCC's with CMake",
    multiply=xnnpack.product_in_fixed_point,
    average=xnnpack.mean_rounded_twice,
    left=fixed_point.requantized,
)

KERNEL_SETS: dict[str, KernelSet] = {row.name: row for row in (X86, ARM, ARM_UNFUSED)}

# The kernel sets of XNNPACK: a file is portable where all of them compute the same codes.
XNNPACK_SETS: tuple[Xnnpack, ...] = (X86, ARM, ARM_UNFUSED)

_ARM_MACHINES = ("aarch64", "arm64")


def of_this_machine() -> Xnnpack:
    """The kernels that LiteRT's wheel runs here with XNNPACK."""
    machine = platform.machine().lower()
    if machine in _ARM_MACHINES:
        return ARM
    return ARM_UNFUSED if machine.startswith("arm") else X86
