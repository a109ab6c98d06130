"""Bilinear resizing, on int8 with its rounding: integer weights of neighbours, and one division.

A pixel of the result lies between two rows and two columns. Its value is the sum of four products
of stored integers and weights; the weights of a pixel add up to 2^(2 · bits).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sat_tf.exact.kernels.fixed_point import shifted_away, shifted_up
from sat_tf.exact.kernels.xnnpack import fused_multiply_add, multiply_add


class Places(NamedTuple):
    """The places of a resized axis on the axis that is read."""

    low: np.ndarray  # The place read before each one.
    high: np.ndarray  # The place read after each one.
    # The weights of the places after, in units of 2^-bits, int64; those before have the rest.
    weights: np.ndarray

    def positions(self, bits: int) -> np.ndarray:
        """Returns the places in units of 2^-bits: one number a pixel, whichever neighbour it is."""
        return (self.low << bits) + self.weights


class AxisGrid(NamedTuple):
    """The layout of the places of an axis over those of another axis."""

    before: int  # The number of places that are read.
    after: int  # The number of places that are made.
    half_pixel_centers: bool = True  # Pixels are placed by their centers.
    align_corners: bool = False  # The first and the last pixels lie on each other.

    @property
    def intervals(self) -> tuple[int, int]:
        """The numbers of places read and made; one less each between corners that are aligned."""
        less = int(self.align_corners and self.after > 1)
        return self.before - less, self.after - less

    @property
    def scale(self) -> np.float32:
        """The number of places read for each one that is made."""
        before, after = self.intervals
        return np.float32(before) / np.float32(after)


class Interpolation(NamedTuple):
    """A rule of bilinear resizing."""

    bits: int  # The bits of the weights along one axis.
    places: Callable[[AxisGrid], Places]  # Gives the places of an axis.
    rounded: Callable[[np.ndarray, int], np.ndarray]  # Divides sums by 2^(2 · bits).


def _in_float32(
    grid: AxisGrid,
    *,
    move: Callable[[np.ndarray, np.float32, np.float32], np.ndarray],
    bits: int = 11,
) -> Places:
    """Returns XNNPACK's places: float32 positions, weights rounded half to even to 11 bits."""
    indices = np.arange(grid.after, dtype=np.float32)
    if grid.half_pixel_centers:
        half = np.float32(0.5)
        (offset,) = move(np.array([half]), grid.scale, -half)
        positions = move(indices, grid.scale, offset)
    else:
        positions = indices * grid.scale
    last = grid.before - 1
    positions = np.clip(positions, np.float32(0.0), np.float32(last))
    low = positions.astype(np.int64)
    weights = (positions - low.astype(np.float32)) * np.float32(1 << bits)
    return Places(low, np.minimum(low + 1, last), np.rint(weights).astype(np.int64))


def _in_integers(grid: AxisGrid, *, bits: int = 10) -> Places:
    """Returns the builtin kernels' places: positions in units of 2^-10, a rounded step apart.

    A weight is negative before the first place, where both neighbours are the first one. Steps
    that are rounded up may lead past the last place: the kernels read there, beyond the image.
    """
    (before, after), unit = grid.intervals, 1 << bits
    scale = (unit * before + after // 2) // after
    positions = np.arange(grid.after, dtype=np.int64) * scale
    if grid.half_pixel_centers:
        positions = positions + scale // 2 - unit // 2
    low = np.maximum(positions // unit, 0)
    high = np.minimum((positions + unit - 1) // unit, grid.before - 1)
    return Places(low, high, positions - unit * low)


# XNNPACK's source adds a product to a float32 number, which compilers fuse where processors can.
OF_XNNPACK, OF_XNNPACK_FUSED = (
    Interpolation(11, functools.partial(_in_float32, move=move), shifted_up)
    for move in (multiply_add, fused_multiply_add)
)
OF_BUILTIN = Interpolation(10, _in_integers, shifted_away)


def resized(
    stored: np.ndarray, rows: Places, columns: Places, interpolation: Interpolation
) -> np.ndarray:
    """Returns stored integers of resized images; a place beyond the image counts as the last."""
    unit = 1 << interpolation.bits
    rows, columns = (
        axis._replace(low=np.minimum(axis.low, length - 1))
        for axis, length in zip((rows, columns), stored.shape[1:], strict=False)
    )
    wide = stored.astype(np.int64)
    down = rows.weights[:, np.newaxis, np.newaxis]
    wide = wide[:, rows.low] * (unit - down) + wide[:, rows.high] * down
    across = columns.weights[:, np.newaxis]
    wide = wide[:, :, columns.low] * (unit - across) + wide[:, :, columns.high] * across
    return interpolation.rounded(wide, 2 * interpolation.bits).astype(np.int32)


def interpolated(values: np.ndarray, rows: AxisGrid, columns: AxisGrid) -> np.ndarray:
    """Returns the float32 values of resized images, with the batch first: columns, then rows."""
    left_columns, right_columns, fractions = _neighbours(columns)
    across = values[:, :, left_columns]
    across = across + (values[:, :, right_columns] - across) * fractions[:, np.newaxis]
    top_rows, bottom_rows, fractions = _neighbours(rows)
    down = across[:, top_rows]
    return np.asarray(down + (across[:, bottom_rows] - down) * fractions[:, np.newaxis, np.newaxis])


def _neighbours(grid: AxisGrid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the places before and after each pixel made, and how far it lies between them."""
    half = np.float32(0.5 if grid.half_pixel_centers else 0.0)
    places = (np.arange(grid.after, dtype=np.float32) + half) * grid.scale - half
    low = np.floor(places)
    high = np.minimum(np.ceil(places), grid.before - 1)
    return np.maximum(low, 0.0).astype(int), high.astype(int), places - low
