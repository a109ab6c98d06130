"""Outputs that are values, such as boxes, landmarks or pixels: how far each channel is off.

A class is right or wrong; a value is more or less off, and each channel of the last axis has a unit
of its own. So a channel is measured by its own standard deviation, and by how many different values
are left of it: one scale for the whole output may leave none to a channel that is small beside the
others.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

# A channel is off where its error is larger, in standard deviations of the reference: less than
# 94 % of its variance is then explained.
MOST_ERROR = 0.25
# It is off, too, where fewer different values are left, of twice as many or more.
FEWEST_VALUES = 8
# Channels that vary by less than this share of the usual, such as pixels at a border, are off by an
# error that is no larger than that of others: that is no fault where they are the end of a row of
# ever quieter channels. Behind a gap of this factor they are values of another unit, and lost.
_QUIET = 0.2
_GAP = 10.0
# Errors are estimated from a sample: one that is larger by this factor is no larger.
_ROOM = 1.25
# Fewer channels than these are each a value of its own, and none of them is excused.
_FEWEST_ALIKE = 16
# Beyond this, a standard deviation is what float32 rounds.
_CONSTANT = 1e-6
# Different values are counted in as many places at most: counting sorts them.
_MOST_COUNTED = 2**16
# The worst channels are kept.
_MOST_KEPT = 16


@dataclasses.dataclass(frozen=True)
class ChannelCount:
    """How one channel of an output compares with that of the reference.

    Attributes:
        channel: its place in the last axis, from 0.
        error: root mean square of the differences, in standard deviations of the reference's
            channel; of one that is constant, in those of the whole output. Infinite where one is
            NaN.
        spread: the standard deviation of the reference's channel.
        values: how many different values it has.
        reference_values: how many the reference has.
    """

    channel: int
    error: float
    spread: float
    values: int
    reference_values: int

    @property
    def is_off(self) -> bool:
        """Whether it differs by more than `MOST_ERROR`, or has too few values left."""
        few = self.values < FEWEST_VALUES <= self.reference_values / 2
        return few or not self.error <= MOST_ERROR


@dataclasses.dataclass(frozen=True)
class ValueCount:
    """How the channels of an output compare with the reference's.

    Attributes:
        channels: those that differ most: at most 16, the worst first.
        num_channels: how many there are.
        off: how many are off, quiet ones left out.
        quiet: how many are off, but vary so little beside others that it is no fault.
        fewest_values: the one with the fewest different values.
    """

    channels: list[ChannelCount]
    num_channels: int
    off: int
    quiet: int
    fewest_values: ChannelCount

    @property
    def is_bad(self) -> bool:
        """Whether a channel is off that is not merely quiet."""
        return self.off > 0

    def __str__(self) -> str:
        worst, fewest = self.channels[0], self.fewest_values
        several = self.num_channels > 1
        text = f"{worst.error:.2g} standard deviations"
        if several:
            text += f" in the worst of {self.num_channels:,} channels ({worst.channel})"
        where = f" in channel {fewest.channel}" if several else ""
        text += (
            f", {fewest.values:,} different value{'' if fewest.values == 1 else 's'} left of "
            f"{fewest.reference_values:,}{where}"
        )
        if several and self.off:
            text += f"; {self.off:,} channel{' is' if self.off == 1 else 's are'} off"
        if self.quiet:
            text += f"; not judged, as they hardly vary: {self.quiet:,}"
        return text


def compared_channels(values: np.ndarray, reference: np.ndarray) -> ValueCount:
    """The channels of an output against those of the reference.

    Args:
        values: (n, ..., channels), or (n,) of one number an image.
        reference: likewise.

    >>> pixels = np.linspace(0.0, 300.0, 400)
    >>> found = compared_channels(
    ...     np.stack([pixels, np.round(pixels / 300)], axis=1),  # of scores, 0 and 1 are left
    ...     np.stack([pixels, pixels / 300], axis=1),
    ... )
    >>> print(found)
    1 standard deviations in the worst of 2 channels (1), 2 different values left of 400 in \
channel 1; 1 channel is off
    """
    channels = reference.shape[-1] if reference.ndim > 1 else 1
    own, wanted = values.reshape(-1, channels), reference.reshape(-1, channels)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        spreads = np.std(wanted, axis=0, dtype=np.float64)
        errors = np.sqrt(np.mean(np.square(own.astype(np.float64) - wanted), axis=0))
        varies = spreads > _CONSTANT * np.max(np.abs(wanted), axis=0, initial=0.0)
        units = np.where(varies, spreads, np.std(wanted, dtype=np.float64))
        ratios = np.where(errors == 0.0, 0.0, errors / units)
    ratios = np.where(np.isnan(ratios), np.inf, ratios)
    counted = slice(None, None, max(1, len(wanted) // _MOST_COUNTED))
    found = [
        ChannelCount(
            channel=channel,
            error=float(ratios[channel]),
            spread=float(spreads[channel]),
            values=len(np.unique(own[counted, channel])),
            reference_values=len(np.unique(wanted[counted, channel])),
        )
        for channel in range(channels)
    ]
    quiet = {count.channel for count in _quiet(found, errors)}
    off = [count for count in found if count.is_off and count.channel not in quiet]
    order = sorted(found, key=lambda count: (count not in off, -count.error))
    return ValueCount(
        channels=order[:_MOST_KEPT],
        num_channels=channels,
        off=len(off),
        quiet=len(quiet),
        fewest_values=min(found, key=lambda count: count.values / count.reference_values),
    )


def _quiet(found: Sequence[ChannelCount], errors: np.ndarray) -> list[ChannelCount]:
    """The channels that are off, but belong to the quiet end of those that are not."""
    if len(found) < _FEWEST_ALIKE:
        return []
    kept = [count for count in found if not count.is_off]
    usual = _ROOM * max((errors[count.channel] for count in kept), default=0.0)
    spread = float(np.sqrt(np.mean([count.spread**2 for count in found])))
    quiet = [
        count
        for count in found
        if count.is_off and count.spread < _QUIET * spread and errors[count.channel] <= usual
    ]
    loudest = max((count.spread for count in quiet), default=0.0)
    is_row = any(count.spread < _GAP * loudest for count in kept)
    return quiet if is_row else []
