"""Weights whose output channels have numbers of bits of their own.

That is the search space of AutoQB / AutoQ (Lou et al., ICLR 2020), which searches it by
reinforcement learning. Here the objective is the squared rounding error of the kernel, of which the
minimum is found exactly.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sat_tf.configs import (
    LevelsOfWeights,
    ScaledWithSurrogate,
    Tensor,
    Variables,
    axes_within,
    find_grid,
    namespace,
    range_shape,
)
from sat_tf.quantizers import l1

# Sums of errors that differ by no more than this share of the largest error are equal.
_ROUNDING = 1e-12
# Layers of this many bits have them in all channels, whatever the limits of other layers.
_ALL_BITS = 8


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ChannelBitsQuantizer(ScaledWithSurrogate, LevelsOfWeights):
    """Weights of `l1.quantize_weights`, each output channel with its own bits (Lou et al. 2020).

    `num_bits` is the mean over channels. The variable `channel_bits`, uint8, holds the bits of
    each: `least_error_bits` of the kernel when a model is quantized, and when it gets other bits.
    Training does not change them. Where `num_bits` is not between the limits, all channels have
    `num_bits`; in policies, only the 8 bits of first and last layers may be outside.
    """

    policy_name: ClassVar[str] = "channel_bits"
    method: ClassVar[str] = "L1"
    asks: ClassVar[tuple[str, ...]] = (*ScaledWithSurrogate.asks, "grid")
    follows_grid: ClassVar[bool] = True
    zeros_stay_with: ClassVar[str] = "weight_grid='narrow'"
    int8_remedy: ClassVar[str] = "weight_grid='auto', or a lower weight_options['highest']"
    levels_name: ClassVar[str] = "channel_bits"
    levels_type: ClassVar[str] = "uint8"
    levels_settings: ClassVar[tuple[str, ...]] = (
        *("num_bits", "range_axes", "lowest", "highest", "grid"),
    )

    lowest: int = 2  # The fewest bits of a channel.
    highest: int = 8  # The most bits of a channel.
    grid: str = "auto"
    over_size: bool = False  # Divide the gradient by the size: see `l1.quantize_weights`.

    def __post_init__(self) -> None:
        super().__post_init__()
        are_integers = type(self.lowest) is type(self.highest) is int
        if not are_integers or not 1 <= self.lowest <= self.highest <= _ALL_BITS:
            raise ValueError(
                f"lowest={self.lowest!r}, highest={self.highest!r}: expected integers from 1 to 8, "
                "and lowest to be no more."
            )
        find_grid(self.grid, self.lowest)

    @classmethod
    def asked(cls, request: Any) -> dict[str, Any]:
        # Channels of different bits have scales of their own, whatever the range.
        return {**super().asked(request), "range_axes": request.channel_axes}

    @classmethod
    def bits_problem(cls, num_bits: int, options: Mapping[str, Any]) -> str | None:
        """Why no channels between the limits have that mean."""
        quantizer = cls(num_bits=None, **options)
        if quantizer.lowest <= num_bits <= quantizer.highest or num_bits == _ALL_BITS:
            return None
        limit = f"'lowest': {num_bits}" if num_bits < quantizer.lowest else f"'highest': {num_bits}"
        return (
            f"received a mean that no channels of {quantizer.lowest} to {quantizer.highest} bits "
            f"have; give weight_options {{{limit}}}, or other bits."
        )

    @property
    def _possible(self) -> range:
        """The bits that a channel can have."""
        if self.lowest < self.bits < self.highest:
            return range(self.lowest, self.highest + 1)
        return range(self.bits, self.bits + 1)

    def _codes(self, bits: Iterable[int]) -> Iterator[range]:
        """The codes at each of these numbers of bits."""
        for width in map(int, bits):
            row = find_grid(self.grid, width)
            low, high = row.code_ends(width)
            yield range(low, high + 1, row.codes_per_unit)

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        return range_shape(kernel_shape, self.range_axes)

    def first_levels(self, kernel: Tensor) -> np.ndarray:
        shape, possible = self.levels_shape(kernel.shape), self._possible
        if len(possible) == 1:
            return np.full(shape, self.bits, np.uint8)
        errors = squared_errors(
            kernel, possible[0], possible[-1], self.grid, channel_axes=self.range_axes
        )
        bits = least_error_bits(np.asarray(errors), possible[0], self.bits)
        return bits.reshape(shape).astype(np.uint8)

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Any) -> Tensor:
        """The weights; while a floor is above the mean, channels have no fewer bits than that."""
        n = namespace(latent)
        bits, floor = (n.cast(bits, "int32") for bits in (variables[self.levels_name], num_bits))
        return l1.quantize_weights(
            latent,
            n.where(floor > self.bits, n.maximum(bits, floor), bits),
            self.grid,
            range_axes=self.range_axes,
            over_size=self.over_size,
            surrogate=self.estimator,
        )

    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: Any
    ) -> tuple[Tensor, Tensor]:
        levels = namespace(latent).cast(variables[self.levels_name], "int32")
        return l1.weight_codes(latent, levels, self.grid, range_axes=self.range_axes)

    @property
    def largest_code(self) -> int:
        return max(-self.code_ends[0], self.code_ends[1])

    @property
    def code_ends(self) -> tuple[int, int]:
        return self._ends(self._possible)

    def code_ends_of(self, kernel: Tensor) -> tuple[int, int]:
        """The smallest and the largest code of the bits that the channels of a kernel get."""
        return self._ends(np.unique(self.first_levels(kernel)))

    def _ends(self, bits: Iterable[int]) -> tuple[int, int]:
        codes = set().union(*self._codes(bits))
        return min(codes), max(codes)

    @property
    def top_unit(self) -> int:
        return 2 * self.largest_code

    def code_count(self, variables: Variables) -> int:
        return len(set().union(*self._codes(np.unique(variables[self.levels_name]))))

    @property
    def grid_name(self) -> str:
        """The name of the grid; for an automatic one, that of its grid if all channels share it."""
        if self.num_bits is None:
            return self.grid
        names = {find_grid(self.grid, width).name for width in self._possible}
        return names.pop() if len(names) == 1 else self.grid

    @property
    def holds_zero(self) -> bool:
        return self.num_bits is None or all(0 in codes for codes in self._codes(self._possible))

    def describe(self) -> str:
        line = super().describe()
        if self.num_bits is None or len(self._possible) == 1:
            return line
        return f"{line}, {self.lowest} to {self.highest} bits per channel with that mean"


def squared_errors(
    kernel: Tensor, lowest: int, highest: int, grid: str = "auto", *, channel_axes: tuple[int, ...]
) -> Tensor:
    """Σ (q - w)² of each channel at each number of bits, with q of `l1.quantize_weights`.

    NaN and infinite weights are left out. The result is (channels, highest - lowest + 1).
    """
    n = namespace(kernel)
    latent = n.cast(n.tensor(kernel), "float32")
    inner = tuple(axes_within(len(latent.shape), channel_axes))
    finite = n.isfinite(latent)
    columns = []
    for bits in range(lowest, highest + 1):
        quantized = l1.quantize_weights(latent, bits, grid, range_axes=channel_axes)
        error = n.in_widest(n.where(finite, quantized - latent, 0.0))
        columns.append(n.reshape(n.sum(n.square(error), axis=inner), [-1]))
    return n.stack(columns, axis=1)


def least_error_bits(errors: np.ndarray, lowest: int, mean: int) -> np.ndarray:
    """The bits b of the channels with the least Σ_c errors_c(b_c) of all with Σ_c b_c = C · mean.

    They are found by dynamic programming: channel after channel, the least sum for each number of
    bits that those before have spent. Of equal sums the one with the most even bits wins.
    """
    errors = np.asarray(errors, np.float64)
    channels, columns = errors.shape
    spent = channels * (mean - lowest)
    if not 0 <= spent <= channels * (columns - 1):
        raise ValueError(
            f"mean={mean!r}: received errors at {lowest} to {lowest + columns - 1} bits, expected "
            "a mean among them."
        )
    even = _ROUNDING * (np.max(np.abs(errors)) or 1.0) * np.arange(columns) ** 2
    # The least sums of the channels so far, by what they have spent, after those of less than 0.
    least = np.full(spent + columns, np.inf)
    least[columns - 1] = 0.0
    choices = []
    for row in errors + even:
        sums = [
            least[columns - 1 - more : least.size - more] + row[more] for more in range(columns)
        ]
        choices.append(np.argmin(sums, axis=0).astype(np.uint8))
        least[columns - 1 :] = np.min(sums, axis=0)
    bits = np.full(channels, lowest)
    for channel in reversed(range(channels)):
        more = int(choices[channel][spent])
        bits[channel] += more
        spent -= more
    return bits
