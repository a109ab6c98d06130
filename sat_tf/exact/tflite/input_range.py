"""The input of a model: the real value of every pixel, and the file's grid of pixels.

A pixel n = 0..255 of a channel enters the model as

    x = low + (high - low) · n / 255,

by one pair (low, high) for all channels, by a pair for each, or by a preprocessing of
`keras.applications`. The file takes the pixels themselves, which int8 kernels read as

    p = scale · (n - zero_point),        x = ratio · p + shift,

with one scale and one zero point for all channels. Where a pixel stands for real 0 and channels are
alike, p = x. Otherwise the first layer takes ratio and shift into its weights and its bias.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sat_tf.messages import behind, with_hint

_LARGEST_PIXEL = 255
# The value of one pixel must be a normal float32, as kernels have it.
_SMALLEST_RANGE = _LARGEST_PIXEL * float(np.finfo(np.float32).tiny)
# The largest end of a range: float32 still holds the difference of two ends.
_LARGEST = 1e30
# Real 0 is taken for a pixel that is closer to it than sums of float32 numbers can tell.
_SAME_PIXEL = 1e-4
# Statistics of ImageNet's pixels, as `keras.applications` has them: red, green and blue; for
# Caffe's, blue comes first.
_TORCH_MEAN, _TORCH_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE_MEAN = (103.939, 116.779, 123.68)


class ImageGrid(NamedTuple):
    """The pixels as the file reads them: p = scale · (pixel - zero_point)."""

    scale: float
    zero_point: int


def can_be_pictures(shape: Sequence[int | None]) -> bool:
    """Returns whether an input of a shape, without the batch, can be grey or coloured pictures.

    >>> can_be_pictures((None, None, 3)), can_be_pictures((96, 64))
    (True, False)
    """
    return len(shape) == 3 and shape[-1] in (1, 3)


@dataclasses.dataclass(frozen=True)
class InputRange:
    """Real values of the pixels 0 and 255.

    >>> InputRange((-1.0,), (1.0,)).grid
    ImageGrid(scale=0.00784313725490196, zero_point=128)
    """

    # The value of pixel 0: one number, or one for each channel in the order of the model's input.
    low: tuple[float, ...]
    high: tuple[float, ...]  # The value of pixel 255, likewise.
    # Whether the model takes the channels of a picture in reverse, as BGR.
    reversed_channels: bool = False

    @property
    def channels(self) -> int | None:
        """The number of channels that it names; None where one pair is for all channels."""
        return len(self.low) if len(self.low) > 1 or self.reversed_channels else None

    @property
    def scales(self) -> np.ndarray:
        """The value that one pixel more adds, float64, for each channel of the model's input."""
        return (np.asarray(self.high) - np.asarray(self.low)) / _LARGEST_PIXEL

    @functools.cached_property
    def grid(self) -> ImageGrid:
        """The scale of the coarsest channel, and the pixel nearest to real 0 of all channels."""
        zeros = -np.asarray(self.low) / self.scales
        zero_point = int(np.clip(math.floor(float(np.mean(zeros)) + 0.5), 0, _LARGEST_PIXEL))
        return ImageGrid(float(np.max(self.scales)), zero_point)

    @property
    def change(self) -> "Change":
        """The change from the grid of the file to the model's input."""
        shift = np.asarray(self.low) + self.scales * self.grid.zero_point
        shift = np.where(np.abs(shift) < _SAME_PIXEL * self.scales, 0.0, shift)
        return Change(self.scales / self.grid.scale, shift, self.reversed_channels, self.grid.scale)

    def fed(self, pixels: np.ndarray) -> np.ndarray:
        """Returns the model's input for pixels, (..., channels), in float32."""
        if self.reversed_channels:
            pixels = pixels[..., ::-1]
        if not any(self.low):
            return pixels.astype(np.float32) * self.scales.astype(np.float32)
        return np.asarray(np.asarray(self.low) + self.scales * pixels, np.float32)

    def pixels(self, values: np.ndarray) -> np.ndarray:
        """Returns the pixels, not rounded, of values of the model's input; see `fed`."""
        pixels = (values - np.asarray(self.low)) / self.scales
        return pixels[..., ::-1] if self.reversed_channels else pixels

    @property
    def scaling(self) -> str:
        """The Python code that scales pixels to it.

        >>> InputRange((-1.0,), (1.0,)).scaling, InputRange((0.0,), (1.0,)).scaling
        ('images / 127.5 - 1', 'images / 255')
        """
        if isinstance(self.spelling, str) and self.channels:
            name = f"mode={self.spelling!r}"
            return f"keras.applications.imagenet_utils.preprocess_input(images, {name})"
        if len(self.low) > 1:
            return f"low + (high - low) * images / 255 with low, high = {self}"
        low, divisor = self.low[0], _LARGEST_PIXEL / (self.high[0] - self.low[0])
        scaled = "images" if divisor == 1.0 else f"images / {divisor:.6g}"
        return scaled if low == 0.0 else f"{scaled} {'-' if low < 0 else '+'} {abs(low):.6g}"

    @property
    def spelling(self) -> Any:
        """The `input_range` of a policy for the same range."""
        for name, named_range in NAMED.items():
            if self == named_range:
                return name
        return plain_range((self.low, self.high))

    def __str__(self) -> str:
        if isinstance(self.spelling, str) and self.channels:
            return f'"{self.spelling}"'
        ends = [
            f"{values[0]:.6g}" if len(values) == 1 else f"({', '.join(f'{v:.6g}' for v in values)})"
            for values in (self.low, self.high)
        ]
        return f"({', '.join(ends)})"


@dataclasses.dataclass(frozen=True)
class Change:
    """x = ratio · p + shift for each channel, with p's channels in reverse if `reverses`."""

    ratio: np.ndarray  # Positive, float64, one number or one a channel of x.
    shift: np.ndarray  # Likewise, of any sign.
    reverses: bool = False  # Whether channel c of x is channel -1 - c of p.
    scale: float = 0.0  # The value that one pixel adds to x.

    @property
    def is_none(self) -> bool:
        """Whether x is p."""
        return self.only_shifts and not np.any(self.shift)

    @property
    def only_shifts(self) -> bool:
        """Whether all channels are alike except for the shift, and in order."""
        return not self.reverses and bool(np.all(self.ratio == 1.0))

    @property
    def is_rounding(self) -> bool:
        """Whether it is only the error of rounding real 0 to a pixel, half a pixel at most."""
        return self.only_shifts and bool(np.all(np.abs(self.shift) <= 0.5001 * self.scale))

    def after(self, other: "Change") -> "Change":
        """Returns the change from this one's p to another's, for the same x."""
        ratio, shift = self.ratio / other.ratio, (self.shift - other.shift) / other.ratio
        if other.reverses:
            ratio, shift = ratio[::-1], shift[::-1]
        return Change(ratio, shift, self.reverses != other.reverses, self.scale)


PIXELS = InputRange((0.0,), (255.0,))
NO_CHANGE = Change(np.ones(1), np.zeros(1))

# The modes of `keras.applications.imagenet_utils.preprocess_input`.
NAMED: dict[str, InputRange] = {
    "tf": InputRange((-1.0,), (1.0,)),
    "torch": InputRange(
        tuple(-m / d for m, d in zip(_TORCH_MEAN, _TORCH_DEVIATION, strict=True)),
        tuple((1.0 - m) / d for m, d in zip(_TORCH_MEAN, _TORCH_DEVIATION, strict=True)),
    ),
    "caffe": InputRange(
        tuple(-mean for mean in _CAFFE_MEAN),
        tuple(_LARGEST_PIXEL - mean for mean in _CAFFE_MEAN),
        True,
    ),
}

# The types that a file can take for an input: pixels, codes of a calibrated range, or real values.
INPUT_TYPES = ("uint8", "int8", "int16", "float32")
STATE_TYPE = "int8"  # The type of a state, whose codes leave a file and enter it again.
# The types that a file can take unchanged, for layers left float only.
KEPT_TYPES = (
    *("float32", "float64", "bool"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)

_EXPECTED = (
    "(low, high), the real values of the pixels 0 and 255, each a number or one for each channel, "
    "or the name of a preprocessing of keras.applications: " + ", ".join(map(repr, NAMED))
)


def range_problem(value: Any) -> str | None:
    """Says why a value is no `input_range`, for the message of a policy; None where it is one."""
    if isinstance(value, Mapping):
        for name, input_range in value.items():
            if not isinstance(name, str):
                return f"expected names of inputs; received {name!r}"
            if problem := range_problem(input_range):
                return behind(f"for {name!r} ", problem)
        return None
    if isinstance(value, str):
        return None if value in NAMED else with_hint(f"expected {_EXPECTED}", value, NAMED)
    is_pair = isinstance(value, Sequence) and len(value) == 2
    ends = [_numbers(end) for end in value] if is_pair else [None]
    if None in ends:
        return f"expected {_EXPECTED}"
    low, high = (end or () for end in ends)
    lengths = {len(low), len(high)} - {1}
    if len(lengths) > 1 or not low or not high:
        return f"expected as many numbers for low as for high; received {len(low)} and {len(high)}"
    sizes = [b - a for a, b in zip(*_as_long(low, high), strict=True)]
    if min(sizes) <= 0:
        return "expected every low to be less than its high; swap them"
    if min(sizes) <= _SMALLEST_RANGE:
        return f"expected more than {_SMALLEST_RANGE:.3g} between low and high; scale the images up"
    return None


def type_problem(value: Any) -> str | None:
    """Says why a value is no `input_type`, for the message of a policy; None where it is one."""
    expected = f"expected one of {', '.join(INPUT_TYPES)}, or a mapping of inputs to them"
    if isinstance(value, Mapping):
        wrong = (name for name, input_type in value.items() if input_type not in INPUT_TYPES)
        bad = next(wrong, None)
        return None if bad is None else f"{expected}; received {value[bad]!r} for {bad!r}"
    if value is None or (isinstance(value, str) and value in INPUT_TYPES):
        return None
    return with_hint(expected, str(value), INPUT_TYPES)


def plain_range(value: Any) -> Any:
    """Brings a valid `input_range` to one form: a name, floats, tuples of floats, or a mapping."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {name: plain_range(input_range) for name, input_range in value.items()}
    low, high = _as_long(*(_numbers(end) or () for end in value))
    if len({*zip(low, high, strict=True)}) == 1:
        return low[0], high[0]
    return low, high


def range_of(value: Any) -> InputRange:
    """Returns the range of a valid value that is no mapping."""
    if isinstance(value, str):
        return NAMED[value]
    low, high = (_numbers(end) or () for end in plain_range(value))
    return InputRange(low, high)


def _numbers(value: Any) -> tuple[float, ...] | None:
    values = (value,) if isinstance(value, numbers.Real) else value
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        return None
    plain = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in values)
    if not plain or not all(abs(v) <= _LARGEST for v in values):  # false for NaN
        return None
    return tuple(float(v) for v in values)


def _as_long(
    low: tuple[float, ...], high: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns both with as many numbers as the longer one."""
    size = max(len(low), len(high))
    return (low * size if len(low) == 1 else low), (high * size if len(high) == 1 else high)
