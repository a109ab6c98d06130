"""Bits of output channels: of all numbers with one mean, those with the least squared error.

Bits for each channel are the search space of AutoQB / AutoQ (Lou et al., ICLR 2020), which searches
it by reinforcement learning. Here the objective is the squared rounding error of the kernel on the
grid of `sat_tf.core.l1`, of which the minimum is found exactly.
"""

import numpy as np
import tensorflow as tf

from sat_tf.core import l1

# Of the sum of all errors: what rounding of float64 may have done to a comparison.
_ROUNDING = 1e-12


def squared_errors(
    kernel: tf.Tensor,
    lowest: int,
    highest: int,
    grid: str = "auto",
    *,
    channel_axes: tuple[int, ...],
) -> np.ndarray:
    """Σ (q - w)² of each channel at each number of bits, with q of `l1.quantize_weights`.

    NaN and infinite weights have no part in it.

    Args:
        kernel: latent weights w, float32.
        lowest: the fewest bits, at least 1.
        highest: the most bits, at most 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        channel_axes: the kernel's axes of output channels.

    Returns:
        float64, (channels, highest - lowest + 1); channels in the order of the kernel's memory.

    Raises:
        ValueError: bits out of range, unknown grid, or a grid without a step at the lowest bits.

    >>> kernel = tf.constant([[1.0, 2.0], [1.0, -6.0]])
    >>> squared_errors(kernel, 1, 2, channel_axes=(1,)).tolist()
    [[0.0, 0.5], [8.0, 0.0]]
    """
    latent = tf.cast(kernel, tf.float32)
    rank = latent.shape.rank
    keep = {axis % rank for axis in channel_axes}
    inner = [axis for axis in range(rank) if axis not in keep]
    finite = tf.math.is_finite(latent)
    columns = []
    for bits in range(lowest, highest + 1):
        made = l1.quantize_weights(latent, bits, grid, range_axes=channel_axes)
        error = tf.cast(tf.where(finite, made - latent, 0.0), tf.float64)
        columns.append(tf.reshape(tf.reduce_sum(tf.square(error), inner), [-1]))
    return np.stack([column.numpy() for column in columns], axis=1)


def least_error_bits(errors: np.ndarray, lowest: int, mean: int) -> np.ndarray:
    """The bits b of the channels with the least Σ_c errors_c(b_c) of all with Σ_c b_c = C · mean.

    Errors that are convex in the bits, as nearly all are, leave nothing to search: bits are given
    one at a time to where the error drops most. Others are replaced by their lower convex
    envelopes, which makes the same rule a lower bound of the optimum; where that bound is above
    what the rule reaches, the channels that the gap leaves open are solved by dynamic programming
    over channels and bits spent. The result is the optimum in both cases. Of equal drops those at
    fewer bits come first, and then those of the first channels.

    Args:
        errors: of each channel (a row) at the lowest bits, one more, and so on; finite.
        lowest: the bits of the first column.
        mean: from the lowest bits to those of the last column.

    Returns:
        int64, one number of bits for each row.

    >>> least_error_bits(np.array([[9.0, 2.0, 0.0], [5.0, 4.0, 3.9]]), lowest=2, mean=3).tolist()
    [4, 2]
    >>> least_error_bits(np.array([[9.0, 9.0, 0.0], [5.0, 1.0, 0.5]]), lowest=2, mean=3).tolist()
    [4, 2]
    """
    errors = np.asarray(errors, np.float64)
    channels, columns = errors.shape
    spent = channels * (mean - lowest)
    if not 0 <= spent <= channels * (columns - 1):
        raise ValueError(
            f"mean={mean!r}: received errors at {lowest} to {lowest + columns - 1} bits, expected "
            "a mean among them."
        )
    envelope = _lower_envelope(errors)
    # Not increasing along a row, but for rounding.
    drops = np.minimum.accumulate(-np.diff(envelope, axis=1), axis=1)
    order = np.argsort(-drops.T.ravel(), kind="stable")[:spent]
    chosen = np.bincount(order % channels, minlength=channels)
    rows = np.arange(channels)
    gap = float(np.sum(errors[rows, chosen] - envelope[rows, chosen]))
    tolerance = _ROUNDING * float(np.sum(np.abs(errors[:, 0])))
    if gap > tolerance:
        # What one bit is worth at the optimum of the envelopes: an option that costs more than the
        # gap beyond the best one of its row is in no better choice.
        worth = float(drops.T.ravel()[order[-1]])
        lost = errors + worth * np.arange(columns)
        lost -= np.min(envelope + worth * np.arange(columns), axis=1, keepdims=True)
        possible = lost <= gap + tolerance
        is_open = np.sum(possible, axis=1) > 1
        options = np.where(possible, errors, np.inf)[is_open]
        chosen[is_open] = _least_sum(options, int(np.sum(chosen[is_open])))
    return chosen + lowest


def _lower_envelope(errors: np.ndarray) -> np.ndarray:
    """The largest convex function of the column that is nowhere above each row."""
    columns = errors.shape[1]
    envelope = errors.copy()
    for low in range(columns):
        for high in range(low + 2, columns):
            for between in range(low + 1, high):
                share = (between - low) / (high - low)
                chord = (1.0 - share) * errors[:, low] + share * errors[:, high]
                envelope[:, between] = np.minimum(envelope[:, between], chord)
    return envelope


def _least_sum(options: np.ndarray, spent: int) -> np.ndarray:
    """The column of each row with the least sum of all whose columns add up to `spent`."""
    rows, columns = options.shape
    least = np.full(spent + 1, np.inf)  # of the rows so far, by what they have spent
    least[0] = 0.0
    taken = np.zeros((rows, spent + 1), np.uint8)
    for row in range(rows):
        found = np.full(spent + 1, np.inf)
        for column in range(min(columns, spent + 1)):
            tried = least[: spent + 1 - column] + options[row, column]
            better = tried < found[column:]
            found[column:][better] = tried[better]
            taken[row, column:][better] = column
        least = found
    chosen = np.zeros(rows, np.int64)
    for row in reversed(range(rows)):
        chosen[row] = taken[row, spent]
        spent -= int(chosen[row])
    return chosen
