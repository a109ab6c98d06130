"""The values that an input of a model has seen, and checks of the range that its file expects.

Only what is certain is a misfit: values far outside of the range, all of them within a few pixels
of it, or those of another usual range and none of this one, which end where that one does or are
on its pixels. Dark pictures, zero padding and augmentation a little out of range are no misfit.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sat_tf.exact.tflite.input_range import NAMED, PIXELS, InputRange

# Values beyond an end by this share of the range are no longer pictures with more contrast.
_FAR_OUTSIDE = 0.3
# Values that all lie within so few pixels, and not on pixels, do not come from a picture.
_FEW_PIXELS = 8.0
# This many pixels are few for other inputs, which are not dark, and which nobody resizes.
_FEW_FOR_OTHERS = 64.0
# Ends this near, as a share of the range, are the same.
_SAME_END = 0.02
# Rounding in float16 moves pixels by less than this, in pixels.
_OFF_GRID = 0.2
# Values that are no farther from the pixels of a range, in pixels, are on them: float16 moves none
# farther, and other values are not so near by chance.
_ON_GRID = 0.05
# A range fits if its values take this share of it.
_FILLED = 0.4
# This many images show whether values are on the pixels of a range.
_FEW_IMAGES = 64
# This many are read at once.
_AT_ONCE = 8

# The sources that can tell that a model was trained with a range; "" before any of them has.
STATISTICS, TRAINING = "the statistics of BatchNormalization", "training in it"
CHECKED_BY = ("", STATISTICS, TRAINING)

# The ends seen in training are moving averages: perhaps no batch had these very ends.
ON_AVERAGE = "on average over its latest batches"
RANGE_FIX = (
    "for that, give sat_tf.requantize, or sat_tf.quantize_model, a BitPolicy with these settings"
)

USUAL = (
    InputRange((0.0,), (1.0,)),
    InputRange((-0.5,), (0.5,)),
    NAMED["tf"],
    NAMED["torch"],
    PIXELS,
    InputRange((-128.0,), (127.0,)),
    NAMED["caffe"],
    # This is "caffe" without its reversal.
    InputRange(NAMED["caffe"].low[::-1], NAMED["caffe"].high[::-1]),
)


@dataclasses.dataclass(frozen=True)
class SeenValues:
    """The values that an input was fed."""

    lowest: np.ndarray  # Smallest value of a batch, one number or one for each channel.
    highest: np.ndarray  # Largest value, likewise.
    off_grid: float  # How far from a pixel's value the farthest is, in pixels, up to 0.5.
    are_pictures: bool = True  # Whether they have rows, columns and channels.
    # The same as `off_grid` for the pixels of each of `USUAL`; None where that is not known.
    off_usual: np.ndarray | None = None

    @classmethod
    def of(cls, values: Any, expected: InputRange) -> "SeenValues":
        """The values of an array, (n, ..., channels), or of anything whose slices are arrays."""
        by_channel = expected.channels is not None
        axes = tuple(range(values.ndim - 1)) if by_channel else None
        starts = range(0, len(values), _AT_ONCE)
        blocks = (values[start : start + _AT_ONCE] for start in starts)
        ends = [(np.min(block, axis=axes), np.max(block, axis=axes)) for block in blocks]
        few = values[:_FEW_IMAGES]
        off_pixels = {candidate: _off_pixels(few, candidate) for candidate in {expected, *USUAL}}
        return cls(
            np.min([lowest for lowest, _ in ends], axis=0),
            np.max([highest for _, highest in ends], axis=0),
            off_pixels[expected],
            values.ndim == 4,
            np.array([off_pixels[usual] for usual in USUAL]),
        )

    @property
    def says_nothing(self) -> bool:
        """Whether no range can be told from the values: all are one, or not finite."""
        ends = np.concatenate([np.atleast_1d(self.lowest), np.atleast_1d(self.highest)])
        return not np.all(np.isfinite(ends)) or bool(np.all(ends == ends[0]))

    def __str__(self) -> str:
        return f"values from {np.min(self.lowest):.4g} to {np.max(self.highest):.4g}"


def has_channels(found: InputRange, channels: int | None) -> bool:
    """Whether a range can be that of a number of channels."""
    return found.channels in (None, channels)


def _off_pixels(values: np.ndarray, candidate: InputRange) -> float:
    """How far from a pixel's value the farthest is, in pixels."""
    if not has_channels(candidate, values.shape[-1]):
        return 0.5
    farthest = 0.0
    for image in values:  # one by one they stay in the caches of a processor
        pixels = (image - np.asarray(candidate.low)) / candidate.scales
        farthest = max(farthest, float(np.max(np.abs(pixels - np.rint(pixels)))))
        if farthest == 0.5:  # nothing is farther
            break
    return farthest


def misfit(seen: SeenValues, expected: InputRange) -> str | None:
    """Says what is certainly wrong with values, with the range that fits; None where nothing is."""
    if seen.says_nothing:
        return None
    low, high = np.asarray(expected.low), np.asarray(expected.high)
    width = high - low
    outside = np.maximum(low - seen.lowest, seen.highest - high) / width
    span = (seen.highest - seen.lowest) / expected.scales
    off_grid = _off_grid(seen, expected)
    limit = _FEW_PIXELS if seen.are_pictures else _FEW_FOR_OTHERS
    far, few = np.any(outside > _FAR_OUTSIDE), off_grid and np.all(span <= limit)
    of_ends = not _ends_in(seen, expected) and _recognized(seen) is not None
    fits_another = off_grid and (of_ends or _of_pixels(seen) is not None)
    if not (far or few or fits_another):
        return None
    if (_recognized(seen) or _of_pixels(seen)) == PIXELS:
        # A policy that states another range is right more often than arrays that nobody scaled.
        return (
            f"{seen}, which are pixels, expected input_range={expected}: scale the images, as "
            f"{expected.scaling}, or give them as uint8, which is scaled for you. Only if the "
            f"model was trained on pixels, change the policy, to {fitting(seen)}"
        )
    return f"{seen}, expected input_range={expected}; what fits is {fitting(seen)}"


def _off_grid(seen: SeenValues, expected: InputRange) -> bool:
    """Whether values lie between the pixels of a range."""
    off = seen.off_grid
    if seen.off_usual is not None and expected in USUAL:
        # Values that were seen with another range are compared with this one too.
        off = float(seen.off_usual[USUAL.index(expected)])
    return off > _OFF_GRID


def pixel_doubt(seen: SeenValues, expected: InputRange) -> str | None:
    """Says what may be wrong with values that are no misfit; None where nothing may."""
    if seen.says_nothing:
        return None
    if _off_grid(seen, expected):
        if seen.are_pictures:
            why = "resized pictures have such values, others should not"
        else:
            why = "where they are no pixels, set BitPolicy(input_type='int8'), or 'float32'"
        return (
            f"{seen}, of which some lie between those of the pixels 0 to 255, to which the "
            f"exported file rounds them; {why}"
        )
    if np.all((seen.highest - seen.lowest) / expected.scales <= _FEW_PIXELS):
        return (
            f"{seen} are a few pixels only of input_range={expected}; if they are all that there "
            f"is, {fitting(seen)} fits"
        )
    return None


def each_its_own(inputs: Sequence[str], name: str) -> str:
    """Says how a policy speaks of one of several inputs; "" where there is only one."""
    if len(inputs) < 2:
        return ""
    return (
        f"; where inputs differ, as input_range={{{name!r}: ...}} or input_type={{{name!r}: ...}}"
    )


def unseen(expected: InputRange) -> str:
    """The words for an input that was never fed anything in training or calibration."""
    return (
        f"nothing was seen of what the model is fed, so that input_range={expected} is taken at "
        "its word; call sat_tf.calibrate(model, images), which compares the two"
    )


def fitting_range(seen: SeenValues) -> InputRange | None:
    """The usual range that fits what was seen; None where none does."""
    return _recognized(seen) or _of_pixels(seen) or _filled(seen)


def fitting(seen: SeenValues) -> str:
    """The settings of a policy that fit what was seen."""
    input_range = fitting_range(seen)
    if input_range is not None:
        alternative = "" if seen.are_pictures else ", or input_type='int8' for what is no pixel"
        return f"input_range={input_range}{alternative}"
    low, high = (float(v) for v in (np.min(seen.lowest), np.max(seen.highest)))
    digits = 2 - math.floor(math.log10(max(abs(low), abs(high))))
    factor = 10.0**digits
    low, high = math.floor(low * factor) / factor, math.ceil(high * factor) / factor
    return f"input_range=({low:.6g}, {high:.6g}) for pictures, and input_type='int8' for others"


def _ends_in(seen: SeenValues, input_range: InputRange) -> bool:
    """Whether the values end where a range does."""
    low, high = np.asarray(input_range.low), np.asarray(input_range.high)
    lowest, highest = seen.lowest, seen.highest
    if np.size(lowest) != low.size:
        low, high, lowest, highest = np.min(low), np.max(high), np.min(lowest), np.max(highest)
    off = np.maximum(np.abs(lowest - low), np.abs(highest - high))
    return bool(np.all(off <= _SAME_END * (high - low)))


def _recognized(seen: SeenValues) -> InputRange | None:
    return next((usual for usual in USUAL if _ends_in(seen, usual)), None)


def _of_pixels(seen: SeenValues) -> InputRange | None:
    """The coarsest usual range whose pixels the values are, all of them within its ends."""
    if seen.off_usual is None:
        return None
    fitting_ones = [
        usual
        for usual, off in zip(USUAL, seen.off_usual, strict=True)
        if off <= _ON_GRID and _within(seen, usual)
    ]
    return max(fitting_ones, key=lambda usual: float(np.min(usual.scales)), default=None)


def _within(seen: SeenValues, input_range: InputRange) -> bool:
    low, high = min(input_range.low), max(input_range.high)
    slack = _SAME_END * (high - low)
    return bool(low - slack <= np.min(seen.lowest) and np.max(seen.highest) <= high + slack)


def _filled(seen: SeenValues) -> InputRange | None:
    """The narrowest usual range that the values do not leave and take a good part of."""
    low, high = float(np.min(seen.lowest)), float(np.max(seen.highest))
    for usual in USUAL:
        if _within(seen, usual) and high - low >= _FILLED * (max(usual.high) - min(usual.low)):
            return usual
    return None
