"""Clipping levels with the smallest quantization error on a sample of a tensor.

The error is the mean of |q(x; α) - x|^p. p = 2 up to 7 bits. At 8 bits p = 4, which clips less:
where rounding is small, what counts is that clipping moves means, which squeeze-and-excitation
passes on and no BatchNormalization takes back.

Where all that reads the tensor is a function, such as swish, the error is that of what the function
gives, |f(q(x; α)) - f(x)|^p: large negative values, all of which become nearly 0 there, must not
cost the others their resolution.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from sat_tf.core import grid as grids
from sat_tf.core.ranges import scale_and_zero
from sat_tf.core.tensors import Tensor
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.quantizers.settings import SMALLEST_CLIPPING_LEVEL
from sat_tf.quantizers.values import Function, SampledValues, itself

# The power p of the error by bit width.
_POWERS = {8: 4}
_USUAL_POWER = 2

# A sample has so many values of a batch at random, and about so many of the largest, which decide
# what clipping costs: among values at random there are too few of them.
_AT_RANDOM = 8192
_LARGEST = 2048
# Each block of so many values is known by its largest magnitude: few blocks hold one of the tail.
_BLOCK = 2**12


class _Flat:
    """All values of a batch in one row, which is never copied: it may be most of the memory.

    Args:
        parts: of the batch, float32.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = [part.reshape(-1) for part in parts]
        self.size = sum(part.size for part in self.parts)
        starts = [np.arange(0, part.size, _BLOCK) for part in self.parts]
        self._largest = [
            np.maximum(np.maximum.reduceat(part, at), -np.minimum.reduceat(part, at))
            for part, at in zip(self.parts, starts, strict=True)
        ]

    def largest_magnitude(self) -> float:
        """The largest magnitude; NaN if there is a NaN."""
        return float(np.max(np.concatenate(self._largest), initial=0.0))

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
    """A sample of one tensor: some values, how many each stands for, the largest magnitude.

    Attributes:
        name: of the layer that gives it.
        file: holds the values; several samples may share it.
        function: the one that alone reads it.
        largest: magnitude of all that was there.
    """

    name: str
    file: IO[bytes]
    function: Function = itself
    largest: float = 0.0
    # A piece of the file starts somewhere, and has so many values that each stand for so many.
    _pieces: list[tuple[int, int, float]] = dataclasses.field(default_factory=list, init=False)

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
        """Looks at one batch of the tensor.

        Args:
            parts: of the batch, one behind the other.

        Raises:
            ValueError: some of it is NaN or infinite.
        """
        batch = _Flat([np.asarray(part).astype(np.float32, copy=False) for part in parts])
        largest = batch.largest_magnitude()
        if not np.isfinite(largest):
            raise ValueError(
                f"{self.name}: received NaN or infinite activations, expected finite ones; check "
                "the images, and the weights and statistics of the layers before it."
            )
        self.largest = max(self.largest, largest)
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

    def best_level(self, quantizer: ActivationQuantizer) -> float:
        """The clipping level with the smallest error; the tensor must not be all 0."""
        sample = SampledValues(self.values, self.largest, self.counts, self.function)
        return quantizer.best_level(sample)


def search(
    quantize: Callable[[np.ndarray, float], np.ndarray], sample: SampledValues, num_bits: int
) -> float:
    """The clipping level with the smallest quantization error, of 100 evenly spaced ones.

    Args:
        quantize: what becomes of float32 values at a clipping level.
        sample: the values; no level above its largest magnitude is tried.
        num_bits: bits of the quantizer.
    """
    values = np.asarray(sample.values, np.float32).reshape(-1)
    wanted = sample.function(values)
    power = _POWERS.get(num_bits, _USUAL_POWER)
    counts = np.ones(values.shape) if sample.counts is None else sample.counts
    total = np.sum(counts)
    best, smallest = sample.largest, np.inf
    for level in np.arange(100, 0, -1) / 100.0 * sample.largest:
        differences = sample.function(quantize(values, level)) - wanted
        errors = np.abs(differences.astype(np.float64)) ** power
        error = float(np.sum(errors * counts) / total)
        if error < smallest:
            best, smallest = float(level), error
    return best


def best_clipping_level(sample: SampledValues, num_bits: int, *, signed: bool) -> float:
    """The best level of `pact.quantize_activation` or, where `signed`, of `pact.quantize_stream`.

    >>> sample = SampledValues(np.array([0.0, 1.0, 2.0, 3.0]), largest=3.0)
    >>> best_clipping_level(sample, 2, signed=False)
    3.0
    """
    intervals = grids.levels(num_bits, "narrow" if signed else "dorefa")

    def quantize(values: np.ndarray, level: float) -> np.ndarray:
        scale = np.float32((2.0 if signed else 1.0) * level / intervals)
        clipped = np.clip(values, np.float32(-level if signed else 0.0), np.float32(level))
        return np.asarray(np.floor(clipped / scale + np.float32(0.5)) * scale)

    return search(quantize, sample, num_bits)


def best_offset_level(
    sample: SampledValues, num_bits: int, *, lowest: float, share: float
) -> float:
    """The best level of `asymmetric.quantize_offset`, of those up to the largest value."""
    intervals = grids.levels(num_bits)

    def quantize(values: np.ndarray, level: float) -> np.ndarray:
        scale, zero = scale_and_zero(level, intervals, lowest, share, np.floor)
        codes = np.clip(
            np.floor(values / np.float32(scale) + np.float32(0.5)), -zero, intervals - zero
        )
        return np.asarray(codes * np.float32(scale))

    highest = float(np.max(np.asarray(sample.values, np.float32)))
    largest = max(highest, SMALLEST_CLIPPING_LEVEL)
    return search(quantize, SampledValues(sample.values, largest, sample.counts), num_bits)
