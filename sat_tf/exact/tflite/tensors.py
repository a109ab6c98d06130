"""The storage of tensors in a file: codes and their grids, bits, windows, fused activations."""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import numpy as np

from sat_tf.exact.kernels.kernel_sets import KERNEL_SETS, KernelSet
from sat_tf.exact.tflite.input_range import STATE_TYPE, InputRange
from sat_tf.messages import name_of


class Activation(enum.Enum):
    """A rectifier, fused or a separate operator, that clips where the quantizer does."""

    NONE = "NONE"
    RELU = "RELU"
    UNIT = "RELU_N1_TO_1"
    SIX = "RELU6"  # in other tools' files
    ZERO_TO_ONE = "RELU_0_TO_1"  # only as a separate operator

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """The smallest and the largest value that it leaves; None where it does not clip."""
        return _ENDS[self]


_ENDS: Mapping[Activation, tuple[float | None, float | None]] = {
    Activation.NONE: (None, None),
    Activation.RELU: (0.0, None),
    Activation.UNIT: (-1.0, 1.0),
    Activation.SIX: (0.0, 6.0),
    Activation.ZERO_TO_ONE: (0.0, 1.0),
}

# The difference of a code as uint8 from the code as int8.
UNSIGNED_SHIFT = 128
WIDE = 16  # The bits of the integers of wide codes.
CODE_TYPES = ("int8", "int16")  # Types of inputs that are codes of real values.


@dataclasses.dataclass(frozen=True)
class Codes:
    """How a tensor stores real values as int8 or int16, or an output as uint8."""

    scale: np.float32  # Real value of one code in the units of the file; float32.
    zero_point: int  # The stored integer of real 0.
    lowest: int = -128  # Smallest stored integer.
    highest: int = 127  # Largest stored integer.
    unit: float = 1.0  # Real value of 1 in the units of the file.
    is_unsigned: bool = False  # Whether it is uint8.
    bits: int = 8  # Bits of a stored integer: 8, or 16 with the zero point 0.
    # The activation that clips it, where kernels round its ends differently: lowest..highest are
    # then the widest ends.
    rounded_ends: Activation = dataclasses.field(default=Activation.NONE, compare=False)

    @classmethod
    def wide(cls, scale: np.float32, lowest: int = -(2**15), *, unit: float = 1.0) -> "Codes":
        """Returns codes of 16 bits, from `lowest` on."""
        return cls(scale, 0, lowest, 2**15 - 1, unit, bits=WIDE)

    @property
    def whole(self) -> "Codes":
        """The same grid from the smallest to the largest integer of its type."""
        ends = np.iinfo(self.dtype)
        return dataclasses.replace(self, lowest=int(ends.min), highest=int(ends.max))

    @property
    def activation(self) -> Activation:
        """The activation to fuse, in addition to saturation, to clip to lowest..highest."""
        whole = self.whole
        if (self.lowest, self.highest) == (whole.lowest, whole.highest):
            return Activation.NONE
        six = whole.clipped(Activation.SIX)
        if self.lowest != self.zero_point or self.highest not in (whole.highest, six.highest):
            return Activation.UNIT
        return Activation.RELU if self.highest == whole.highest else Activation.SIX

    def clipped(self, activation: Activation) -> "Codes":
        """Returns the grid between the ends of an activation, the widest that kernels give it."""
        several = [self._between(activation, [kernels]) for kernels in KERNEL_SETS.values()]
        if all(codes == several[0] for codes in several):
            return several[0]
        widest = self._between(activation, KERNEL_SETS.values())
        return dataclasses.replace(widest, rounded_ends=activation)

    def on(self, kernels: KernelSet) -> "Codes":
        """Returns the same codes between the ends that kernels give its activation."""
        if self.rounded_ends is Activation.NONE:
            return self
        return self._between(self.rounded_ends, [kernels])

    def _between(self, activation: Activation, rules: Iterable[KernelSet]) -> "Codes":
        """Returns the same grid between the widest ends that any of `rules` give an activation."""

        def ends(value: float) -> list[int]:
            with np.errstate(over="ignore"):  # with the smallest scales
                sets = [kernels.on(self.bits) for kernels in rules]
                stored = [kernels.end(value, self.scale, self.zero_point) for kernels in sets]
            return np.clip(stored, self.lowest, self.highest).astype(int).tolist()

        low, high = activation.ends
        return dataclasses.replace(
            self,
            lowest=self.lowest if low is None else min(ends(low)),
            highest=self.highest if high is None else max(ends(high)),
        )

    def unsigned(self) -> "Codes":
        """Returns the same codes stored as uint8: 128 more than as int8."""
        return dataclasses.replace(
            self,
            zero_point=self.zero_point + UNSIGNED_SHIFT,
            lowest=self.lowest + UNSIGNED_SHIFT,
            highest=self.highest + UNSIGNED_SHIFT,
            is_unsigned=True,
        )

    @property
    def dtype(self) -> np.dtype:
        """The type of the stored integers."""
        return np.dtype(f"{'u' * self.is_unsigned}int{self.bits}")

    @property
    def real_scale(self) -> float:
        """Real value of one code."""
        return float(self.scale) * self.unit

    @property
    def real_range(self) -> tuple[float, float]:
        """Real values of the smallest and the largest stored integer."""
        low, high = self.lowest - self.zero_point, self.highest - self.zero_point
        return low * self.real_scale, high * self.real_scale


def free_name(name: str, taken: Collection[str]) -> str:
    """Appends underscores to the name until it differs from the names in use."""
    while name in taken:
        name += "_"
    return name


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An activation."""

    name: str  # Its name in the file.
    shape: tuple[int, ...]  # Its sizes without the batch dimension.
    codes: Codes | None  # How it is stored; None for float32.


@dataclasses.dataclass(frozen=True)
class Image:
    """An input: uint8 pixels, or the values of a model for other data."""

    name: str  # Its name in the file.
    shape: tuple[int, ...]  # Rows, columns and channels, or any other shape of the model's input.
    # The real value of one pixel level, or one code, in the first kernels; None for values that
    # layers left float, or tables, read as they are.
    scale: np.float32 | None
    zero_point: int = 0  # The pixel, or the code, of the real value 0.
    # The range of the Keras model's input, for pixels; None where only the file is known.
    range: InputRange | None = None
    # "uint8", "int8" or "int16" for codes of real values, or "float32" for real values themselves;
    # any type of files for values as they are.
    type: str = "uint8"
    bits: int = 8  # Bits of the codes of real values.

    def fed(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the Keras model's input for the file's; pixels and codes as float32."""
        if self.is_kept or self.type == "float32":
            return pixels
        if self.type in CODE_TYPES:
            return dequantized(pixels, self.codes)
        if self.range is None:
            raise TypeError(f"{self.name}: received the graph of a file, expected one of a model.")
        return self.range.fed(pixels)

    def taken(self, values: np.ndarray) -> np.ndarray:
        """Returns the file's input for values: real ones become codes where it takes codes."""
        if self.is_kept:
            return values.astype(self.type)
        if self.type in CODE_TYPES and values.dtype != self.type:
            return quantized(values.astype(np.float32), self.codes).astype(self.type)
        return values.astype(np.float32) if self.type == "float32" else values

    def drawn(self, pixels: np.ndarray) -> np.ndarray:
        """Returns random pixels as random values of this type, over all codes."""
        if self.is_kept:
            raise ValueError(
                f"{name_of(self.name)}: received random values for an input that takes "
                f"{self.type} as it is, such as ids, expected values that mean something; give the "
                "arrays that the Keras model takes."
            )
        if self.type == "uint8":
            return pixels
        codes, stored = self.codes, pixels.astype(np.int32) - 128
        if codes.bits == WIDE:  # their distance is 257, so that they reach from end to end
            stored = stored * 257 + 128
        typed = stored.astype(codes.dtype)
        return typed if self.type in CODE_TYPES else dequantized(typed, codes)

    @property
    def is_kept(self) -> bool:
        """Whether what reads it takes it as it is: layers left float, or tables."""
        return self.scale is None

    @property
    def codes(self) -> Codes:
        """The input as int8 or int16; pixels are stored as pixel - 128."""
        if self.scale is None:
            raise TypeError(f"{self.name}: received an input that is kept, expected codes.")
        if self.bits == WIDE:
            return Codes.wide(self.scale)
        return Codes(self.scale, self.zero_point - (128 if self.type == "uint8" else 0))


def is_one_state(leaving: Tensor, entering: Image) -> bool:
    """Returns whether the codes of an output can be fed to an input as they are."""
    codes = leaving.codes
    if codes is None or codes.is_unsigned or entering.is_kept or entering.type != STATE_TYPE:
        return False
    grids = [(float(codes.scale), codes.zero_point) for codes in (codes, entering.codes)]
    return grids[0] == grids[1] and codes.unit == 1.0 and leaving.shape == entering.shape


def quantized(real: np.ndarray, codes: Codes) -> np.ndarray:
    """Returns real values as stored integers, as XNNPACK's QUANTIZE makes them."""
    rounded, ends = np.rint(real * (np.float32(1.0) / codes.scale)), np.iinfo(codes.dtype)
    return np.clip(rounded + codes.zero_point, ends.min, ends.max).astype(np.int32)


def dequantized(stored: np.ndarray, codes: Codes) -> np.ndarray:
    """Returns stored integers as real values, in float32."""
    return np.asarray((stored.astype(np.int32) - codes.zero_point).astype(np.float32) * codes.scale)


def real_outputs(stored: np.ndarray, scales: np.ndarray, zero_points: np.ndarray) -> np.ndarray:
    """Returns outputs of a file as real values: integers by their scale, and others as they are."""
    if scales.size != 1 or not np.issubdtype(stored.dtype, np.integer):
        return stored
    return dequantized(stored, Codes(np.float32(scales[0]), int(zero_points[0])))


@dataclasses.dataclass(frozen=True)
class Window:
    """The places of the kernel of a convolution or pooling."""

    strides: tuple[int, int] = (1, 1)  # Strides in rows and columns.
    padding: str = "VALID"  # "SAME" or "VALID".
    dilation: tuple[int, int] = (1, 1)  # Dilation in rows and columns.
    # Rows and columns of a transposed convolution beyond Keras's rule, see
    # `windows.transposed_size`; below 0 where it makes fewer.
    more: tuple[int, int] = (0, 0)


WHOLE = Window()


class Storage(enum.Enum):
    """Bits of a weight code in the file: two's complement."""

    INT8 = 8
    INT4 = 4
    INT2 = 2

    @property
    def lowest(self) -> int:
        """The smallest code it holds."""
        return -(2 ** (self.value - 1))

    @property
    def highest(self) -> int:
        """The largest code it holds."""
        return 2 ** (self.value - 1) - 1


class Tensors(Protocol):
    """The graph of an operation, as far as the operation may know it."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors except the inputs, by name."""

    @property
    def kernels(self) -> KernelSet:
        """The kernels whose rounding `simulate` follows."""

    def codes(self, name: str) -> Codes:
        """Returns how tensor `name`, which is not float, is stored."""

    @property
    def images(self) -> tuple[Image, ...]:
        """The inputs."""


# -- batches of images -----------------------------------------------------------------------------

# One array, or one for each input in the order of the model's inputs.
Pixels = np.ndarray | tuple[np.ndarray, ...]


def arrays_of(images: Pixels) -> tuple[np.ndarray, ...]:
    """Returns the images of each input."""
    return images if isinstance(images, tuple) else (images,)


def number_of(images: Pixels) -> int:
    """Returns the number of images that each input gets."""
    return len(arrays_of(images)[0])


def some_of(images: Pixels, start: int, stop: int) -> Pixels:
    """Returns a batch of the images."""
    if isinstance(images, tuple):
        return tuple(array[start:stop] for array in images)
    return images[start:stop]


def joined(outputs: list[np.ndarray]) -> np.ndarray:
    """Joins a model's outputs to one array: the only output, or all values of each image.

    Where their lengths differ, for example with a shape, all outputs belong to one image.
    """
    if len(outputs) == 1:
        return outputs[0]
    lengths = {output.shape[:1] for output in outputs}
    count = len(outputs[0]) if len(lengths) == 1 and outputs[0].ndim else 1
    return np.concatenate([output.reshape(count, -1) for output in outputs], axis=1)
