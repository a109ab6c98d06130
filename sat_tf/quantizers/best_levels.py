"""Clipping levels with the smallest quantization error on a sample of a tensor.

The error is the mean of |q(x; α) - x|^p. p = 2 up to 7 bits. At 8 bits p = 4, which clips less:
where rounding is small, what counts is that clipping moves means, which squeeze-and-excitation
passes on and no BatchNormalization takes back.

Where all that reads the tensor is a function, such as swish, the error is that of what the function
gives, |f(q(x; α)) - f(x)|^p: large negative values, all of which become nearly 0 there, must not
cost the others their resolution.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from sat_tf.core import grid as grids
from sat_tf.core.grid import scale_and_zero
from sat_tf.core.tensors import Tensor
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.quantizers.values import SMALLEST_CLIPPING_LEVEL, Function, SampledValues, itself

# The power p of the error by bit width.
_POWERS = {8: 4}
_USUAL_POWER = 2
# A range is not symmetric where that makes the error, in codes, smaller by this factor or more.
_WORTH_A_SKEW = 0.95
# What is observed is clipped where that makes the error smaller by this factor or more.
_OBSERVED_BITS, _WORTH_CLIPPING = 8, 0.9
# The ends of such a range are searched for in turn, among so many of their size, and then among
# these around the best one, as shares of it.
_COARSE_STEPS = 10
_FINE_STEPS = np.array([-5, -4, -3, -2, -1, 1, 2, 3, 4, 5]) / 100.0

# A sample has so many values of a batch at random, and about so many of the largest, which decide
# what clipping costs: among values at random there are too few of them.
_AT_RANDOM = 8192
_LARGEST = 2048
# Each block of so many values is known by its largest magnitude: few blocks hold one of the tail.
_BLOCK = 2**12


class _Flat:
    """All values of a batch in one row, which is never copied: it may be most of the memory."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = [part.reshape(-1) for part in parts]
        self.size = sum(part.size for part in self.parts)
        starts = [np.arange(0, part.size, _BLOCK) for part in self.parts]
        ends = [
            (np.minimum.reduceat(part, at), np.maximum.reduceat(part, at))
            for part, at in zip(self.parts, starts, strict=True)
        ]
        self._largest = [np.maximum(highest, -lowest) for lowest, highest in ends]
        lowest, highest = (np.concatenate(each) for each in zip(*ends, strict=True))
        # NaN where there is a NaN.
        self.ends = float(np.min(lowest, initial=0.0)), float(np.max(highest, initial=0.0))

    def at(self, places: np.ndarray) -> np.ndarray:
        """The values in some places."""
        found, start = np.empty(places.shape, np.float32), 0
        for part in self.parts:
            inside = (places >= start) & (places < start + part.size)
            found[inside] = part[places[inside] - start]
            start += part.size
        return found

    def beyond(self, bound: float) -> np.ndarray:
        """The values with a larger magnitude, in their order."""
        blocks = (
            part[_BLOCK * place : _BLOCK * (place + 1)]
            for part, largest in zip(self.parts, self._largest, strict=True)
            for place in np.flatnonzero(largest > bound)
        )
        found = [block[np.abs(block) > bound] for block in blocks]
        return np.concatenate([np.empty(0, np.float32), *found])


@dataclasses.dataclass
class Sample:
    """A sample of one tensor: some values, how many each stands for, the ends of all of them."""

    name: str  # Of the layer that gives it.
    file: IO[bytes]  # Holds the values; several samples may share it.
    function: Function = itself  # The one that alone reads it.
    # The smallest and the largest value that was there, or 0.
    ends: tuple[float, float] = (0.0, 0.0)
    # A piece of the file starts somewhere, and has so many values that each stand for so many.
    _pieces: list[tuple[int, int, float]] = dataclasses.field(default_factory=list, init=False)

    @property
    def largest(self) -> float:
        """The largest magnitude of all that was there."""
        return max(-self.ends[0], self.ends[1])

    @property
    def values(self) -> np.ndarray:
        """The values from all batches."""
        found = []
        for start, size, _ in self._pieces:
            self.file.seek(start)
            found.append(np.frombuffer(self.file.read(4 * size), np.float32))
        return np.concatenate(found)

    @property
    def counts(self) -> np.ndarray:
        """How many each of the values stands for."""
        sizes, counts = [size for _, size, _ in self._pieces], [one for *_, one in self._pieces]
        return np.repeat(np.array(counts), sizes)

    def take(self, parts: Sequence[Tensor]) -> None:
        """Looks at one batch of the tensor, whose parts are one behind the other."""
        batch = _Flat([np.asarray(part).astype(np.float32, copy=False) for part in parts])
        if not np.all(np.isfinite(batch.ends)):
            raise ValueError(
                f"{self.name}: received NaN or infinite activations, expected finite ones; check "
                "the images, and the weights and statistics of the layers before it."
            )
        self.ends = min(self.ends[0], batch.ends[0]), max(self.ends[1], batch.ends[1])
        if batch.size <= _AT_RANDOM + _LARGEST:
            self._add(np.concatenate(batch.parts), 1.0)
            return
        # At random: an even stride would meet some channels again and again, others never.
        chosen = np.random.default_rng(len(self._pieces)).integers(0, batch.size, _AT_RANDOM)
        values = batch.at(chosen)
        place = max(1, round(_AT_RANDOM * _LARGEST / batch.size))
        bound = np.partition(np.abs(values), -place)[-place]
        tail = batch.beyond(bound)
        others = values[np.abs(values) <= bound]
        self._add(tail, 1.0)
        self._add(others, (batch.size - tail.size) / others.size)

    def _add(self, values: np.ndarray, count: float) -> None:
        self.file.seek(0, 2)  # to its end, where other samples may have written
        self._pieces.append((self.file.tell(), values.size, count))
        self.file.write(values.data)

    def best_range(self, quantizer: ActivationQuantizer) -> dict[str, float]:
        """The variables of a range with the smallest error; the tensor must not be all 0."""
        return quantizer.best_range(self._sampled)

    def best_observed_range(self) -> tuple[float, float]:
        """The ends of an observer's range with the smallest error."""
        return best_observed_range(self._sampled) if self.largest > 0.0 else (0.0, 0.0)

    @property
    def _sampled(self) -> SampledValues:
        return SampledValues(self.values, self.largest, self.counts, self.function, self.ends)


class _Errors:
    """The quantization error of a sample, to a power p."""

    def __init__(self, sample: SampledValues, power: int) -> None:
        self.values = np.asarray(sample.values, np.float32).reshape(-1)
        self._function, self._wanted = sample.function, sample.function(self.values)
        counts = np.ones(self.values.shape) if sample.counts is None else sample.counts
        self._shares = counts / np.sum(counts)
        self.power = power

    def of(self, quantized: np.ndarray) -> float:
        """The error of what became of the values."""
        errors = (self._function(quantized) - self._wanted).astype(np.float64)
        for _ in range(self.power // 2):
            np.square(errors, out=errors)
        return float(np.einsum("i,i", errors, self._shares))  # in one pass, on this core alone


def search(
    quantize: Callable[[np.ndarray, float], np.ndarray], sample: SampledValues, num_bits: int
) -> float:
    """The clipping level with the smallest quantization error, of 100 evenly spaced ones.

    No level above the largest magnitude of the sample is tried.
    """
    errors = _Errors(sample, _POWERS.get(num_bits, _USUAL_POWER))
    return _best_of_levels(quantize, errors, sample.largest)[0]


def _best_of_levels(
    quantize: Callable[[np.ndarray, float], np.ndarray], errors: _Errors, largest: float
) -> tuple[float, float]:
    """The same, with its error."""
    best, smallest = largest, np.inf
    for level in np.arange(100, 0, -1) / 100.0 * largest:
        error = errors.of(quantize(errors.values, level))
        if error < smallest:
            best, smallest = float(level), error
    return best, smallest


def best_clipping_level(sample: SampledValues, num_bits: int, *, signed: bool) -> float:
    """The best level of `pact.quantize_activation` or, where `signed`, of `pact.quantize_stream`.

    >>> sample = SampledValues(np.array([0.0, 1.0, 2.0, 3.0]), largest=3.0)
    >>> best_clipping_level(sample, 2, signed=False)
    3.0
    """
    return search(_up_to_level(num_bits, signed=signed), sample, num_bits)


def _up_to_level(num_bits: int, *, signed: bool) -> Callable[[np.ndarray, float], np.ndarray]:
    """What becomes of values at a level that both ends have, or the upper one alone."""
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

    The search starts with the best symmetric range, and goes on with each end in turn: the error is
    the sum of what each clips and of a rounding error, which grows with the range.

    >>> values = np.linspace(-1.0, 7.0, 256)
    >>> level, skew = best_skewed_range(SampledValues(values, largest=7.0), 8)
    >>> level, round(skew, 3)
    (7.0, 0.857)
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


def best_observed_range(sample: SampledValues) -> tuple[float, float]:
    """The ends of an observer's 8-bit range with the smallest squared error.

    It is the whole range where clipping gains little: all of the network reads an input.

    >>> best_observed_range(SampledValues(np.arange(-128.0, 128.0), largest=128.0))
    (-128.0, 127.0)
    """
    errors = _Errors(sample, _USUAL_POWER)
    full = _full_range(sample, errors)
    ends, smallest = _best_ends(errors, _OBSERVED_BITS, full, full)
    of_full = _error_of_ends(errors, _OBSERVED_BITS, full)
    if smallest >= _WORTH_CLIPPING**errors.power * of_full:
        ends = full
    return float(ends[0]), float(ends[1])


def best_range_of_logits(logits: np.ndarray) -> tuple[float, float]:
    """The ends of the range with the smallest squared error of what softmax makes of logits.

    Where some are certain and others nearly ties, a grid of all of them is too coarse for the ties:
    what is far below the largest one of its row, and how far, is of no account.

    >>> best_range_of_logits(np.array([[0.0, 1.0], [1.0, 0.5], [-200.0, 1.0]]))[0] > -200.0
    True
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
