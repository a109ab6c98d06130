"""Clipping levels with the smallest quantization error on a sample of a tensor.

The error is the mean of |q(x; α) - x|^p. p = 2 up to 7 bits. At 8 bits p = 4, which clips less:
where rounding is small, what counts is that clipping moves means, which squeeze-and-excitation
passes on and no BatchNormalization takes back.

Where only a function, such as swish, reads the tensor, the error is that of the function's values,
|f(q(x; α)) - f(x)|^p: large negative values, all of which become nearly 0 there, must not cost the
others their resolution.
"""

import math
from collections.abc import Callable

import numpy as np

from sat_tf.core import grid as grids
from sat_tf.core.grid import scale_and_zero
from sat_tf.quantizers.values import SMALLEST_CLIPPING_LEVEL, SampledValues

# The power p of the error by bit width.
_POWERS = {8: 4, 15: 4, 16: 4}
_USUAL_POWER = 2
# A range is not symmetric where that makes the error, in codes, smaller by this factor or more.
_WORTH_A_SKEW = 0.95
# An observed range is clipped where that makes the error smaller by this factor or more.
_OBSERVED_BITS, _WORTH_CLIPPING = 8, 0.9
# The ends of such a range are searched for in turn, among this number of shares of the extreme
# value, and then at these distances from the best share.
_COARSE_STEPS = 10
_FINE_STEPS = np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]) / 100.0


class _Errors:
    """The quantization error of a sample, to a power p."""

    def __init__(self, sample: SampledValues, power: int) -> None:
        self.values = np.asarray(sample.values, np.float32).reshape(-1)
        self._function, self._wanted = sample.function, sample.function(self.values)
        counts = np.ones(self.values.shape) if sample.counts is None else sample.counts
        self._shares = counts / np.sum(counts)
        self.power = power

    def of(self, quantized: np.ndarray) -> float:
        """The error of the quantized values."""
        errors = (self._function(quantized) - self._wanted).astype(np.float64)
        for _ in range(self.power // 2):
            np.square(errors, out=errors)
        return float(np.einsum("i,i", errors, self._shares))  # in one pass, on this core alone


def search(
    quantize: Callable[[np.ndarray, float], np.ndarray], sample: SampledValues, num_bits: int
) -> float:
    """The clipping level with the smallest error, of 100 up to the largest magnitude."""
    errors = _Errors(sample, _POWERS.get(num_bits, _USUAL_POWER))
    return _best_of_levels(quantize, errors, sample.largest)[0]


def _best_of_levels(
    quantize: Callable[[np.ndarray, float], np.ndarray], errors: _Errors, largest: float
) -> tuple[float, float]:
    """The clipping level of `search`, with its error."""
    best, smallest = largest, np.inf
    for level in np.arange(100, 0, -1) / 100.0 * largest:
        error = errors.of(quantize(errors.values, level))
        if error < smallest:
            best, smallest = float(level), error
    return best, smallest


def best_clipping_level(sample: SampledValues, num_bits: int, *, signed: bool) -> float:
    """The best level of `pact.quantize_activation`."""
    return search(_up_to_level(num_bits, signed=signed), sample, num_bits)


def _up_to_level(num_bits: int, *, signed: bool) -> Callable[[np.ndarray, float], np.ndarray]:
    """Returns the quantization at a level, which both ends have, or without `signed` the upper."""
    intervals = grids.levels(num_bits, "narrow" if signed else "dorefa")

    def quantize(values: np.ndarray, level: float) -> np.ndarray:
        scale = np.float32((2.0 if signed else 1.0) * level / intervals)
        codes = np.clip(values, np.float32(-level if signed else 0.0), np.float32(level))
        codes /= scale
        codes += np.float32(0.5)
        return np.multiply(np.floor(codes, out=codes), scale, out=codes)

    return quantize


def best_skewed_range(sample: SampledValues, num_bits: int) -> tuple[float, float]:
    """The best level and skew of `asymmetric.quantize_skewed`; the skew is 0 where it gains little.

    The search starts with the best symmetric range, and goes on with each end in turn.
    """
    errors = _Errors(sample, _POWERS.get(num_bits, _USUAL_POWER))
    symmetric = _up_to_level(num_bits, signed=True)
    level, of_symmetric = _best_of_levels(symmetric, errors, sample.largest)
    full = _full_range(sample, errors)
    ends, smallest = _best_ends(errors, num_bits, full, np.clip(full, -level, level))
    below, above = abs(float(ends[0])), float(ends[1])
    if below == above or smallest >= _WORTH_A_SKEW**errors.power * of_symmetric:
        return level, 0.0
    larger = max(below, above)
    return larger, (above - below) / larger


def best_observed_range(
    sample: SampledValues, num_bits: int = _OBSERVED_BITS
) -> tuple[float, float]:
    """The ends with the least squared error; those of all values where that gains little.

    It gains nothing at 16 bits.
    """
    errors = _Errors(sample, _USUAL_POWER)
    full = _full_range(sample, errors)
    if num_bits > _OBSERVED_BITS:
        return float(full[0]), float(full[1])
    ends, smallest = _best_ends(errors, _OBSERVED_BITS, full, full)
    of_full = _error_of_ends(errors, _OBSERVED_BITS, full)
    if smallest >= _WORTH_CLIPPING**errors.power * of_full:
        ends = full
    return float(ends[0]), float(ends[1])


def best_range_of_logits(logits: np.ndarray) -> tuple[float, float]:
    """The ends of the range with the smallest squared error of the softmax of logits.

    Logits far below the largest one of their row hardly count, and would cost ties resolution.
    """
    largest = float(np.max(np.abs(logits), initial=0.0))
    if largest < SMALLEST_CLIPPING_LEVEL:
        return min(float(np.min(logits)), 0.0), max(float(np.max(logits)), 0.0)

    def softmax(values: np.ndarray) -> np.ndarray:
        rows = values.reshape(logits.shape)
        powers = np.exp(rows - np.max(rows, axis=1, keepdims=True))
        powers /= np.sum(powers, axis=1, keepdims=True)
        return powers.reshape(-1)

    return best_observed_range(SampledValues(logits, largest, function=softmax))


def _full_range(sample: SampledValues, errors: _Errors) -> np.ndarray:
    """Both ends of the values, on their sides of 0."""
    lowest, highest = sample.ends or (float(np.min(errors.values)), float(np.max(errors.values)))
    return np.array([min(lowest, 0.0), max(highest, 0.0)])


def _error_of_ends(errors: _Errors, num_bits: int, ends: np.ndarray) -> float:
    if ends[1] - ends[0] < SMALLEST_CLIPPING_LEVEL:
        return math.inf
    return errors.of(_rounded(errors.values, *_offset_grid(num_bits, *ends)))


def _best_ends(
    errors: _Errors, num_bits: int, full: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, float]:
    """The ends with the smallest error, which are searched for in turn, and that error."""
    ends, smallest = start, _error_of_ends(errors, num_bits, start)
    coarse = np.arange(_COARSE_STEPS, 0, -1) / _COARSE_STEPS
    for steps in (coarse, None):
        for side in np.argsort(-np.abs(full), kind="stable"):
            if not full[side]:
                continue
            around = ends[side] / full[side] + _FINE_STEPS
            for share in around if steps is None else steps:
                tried = ends.copy()
                tried[side] = min(share, 1.0) * full[side]
                error = _error_of_ends(errors, num_bits, tried)
                if error < smallest:
                    ends, smallest = tried, error
    return ends, smallest


def best_offset_level(
    sample: SampledValues, num_bits: int, *, lowest: float, share: float
) -> float:
    """The best level of `asymmetric.quantize_offset`, of those up to the largest value."""

    def quantize(values: np.ndarray, level: float) -> np.ndarray:
        return _rounded(values, *_offset_grid(num_bits, lowest, level, share))

    highest = float(np.max(np.asarray(sample.values, np.float32)))
    largest = max(highest, SMALLEST_CLIPPING_LEVEL)
    return search(quantize, SampledValues(sample.values, largest, sample.counts), num_bits)


def _offset_grid(
    num_bits: int, lowest: float, highest: float, share: float = 0.0
) -> tuple[float, float, float]:
    """Scale, lowest and highest code of a range with an end below 0 and one above."""
    intervals = grids.levels(num_bits)
    scale, below = scale_and_zero(highest, intervals, lowest, share, np.floor)
    return scale, -below, intervals - below


def _rounded(values: np.ndarray, scale: float, lowest: float, highest: float) -> np.ndarray:
    """Values on a grid."""
    codes = values / np.float32(scale)
    codes += np.float32(0.5)
    np.floor(codes, out=codes)
    np.clip(codes, np.float32(lowest), np.float32(highest), out=codes)
    return np.multiply(codes, np.float32(scale), out=codes)
