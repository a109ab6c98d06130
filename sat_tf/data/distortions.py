"""How drawn characters become pictures: tilted, tinted, shaded, noisy, but never cut off."""

import math
import types
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sat_tf.data.typefaces import CELL_SIZE, Drawing

PICTURE_SIZE = 24

Floats = npt.NDArray[np.float64]


class Range(NamedTuple):
    """Where amounts are drawn from, evenly, and how many of them each picture takes."""

    low: float
    high: float
    number: int = 1


RANGES: Mapping[str, Range] = types.MappingProxyType(
    {
        "rotation": Range(-math.radians(6), math.radians(6)),
        "log_scale": Range(-0.07, 0.12),
        "log_aspect": Range(-0.06, 0.06),
        "shear": Range(-0.09, 0.09),
        # Across and down, in pixels of the picture.
        "shift": Range(-1.0, 1.0, number=2),
        # Red, green and blue, from 0 for none to 1 for full: ink is always lighter than its ground.
        "ground": Range(0.0, 0.25, number=3),
        "ink": Range(0.7, 1.0, number=3),
        # Relative change of the brightness from the centre to the edge, and the edge it grows to.
        "shading": Range(0.0, 0.2),
        "shading_direction": Range(0.0, 2 * math.pi),
        # Standard deviation, on the scale of the colours.
        "noise": Range(0.0, 0.05),
    }
)

_DRAWN_PIXELS_PER_PIXEL = CELL_SIZE // PICTURE_SIZE
_CENTRE = CELL_SIZE / 2
# Half a drawn pixel stays free at every edge for the blur of the interpolation.
_REACH = _CENTRE - 0.5


def pictures(
    drawings: Sequence[Drawing], randoms: Sequence[np.random.RandomState]
) -> npt.NDArray[np.uint8]:
    """Distorts each drawing by random amounts.

    Args:
        drawings: characters in their cells of 48x48 pixels, one for each picture.
        randoms: where the amounts and the noise of each picture come from. A picture depends on
            its own drawing and its own generator, not on its neighbours.

    Returns:
        (len(drawings), 24, 24, 3), uint8.
    """
    amounts = draw_amounts(randoms)
    noise = np.stack([r.standard_normal((PICTURE_SIZE, PICTURE_SIZE, 3)) for r in randoms])
    matrices, shifts = place(np.array([drawing.box for drawing in drawings]), amounts)
    # Pillow asks, for each pixel of the result, where it comes from: the inverse map.
    inverses = np.linalg.inv(matrices)
    origins = _CENTRE - (inverses @ (_CENTRE + shifts)[:, :, None])[:, :, 0]
    ink = [_move(*move) for move in zip(drawings, inverses, origins, strict=True)]
    colours = _colour(np.stack(ink) / 255, amounts)
    colours += amounts["noise"][:, :, None, None] * noise
    return np.clip(np.rint(255 * colours), 0, 255).astype(np.uint8)


def draw_amounts(randoms: Sequence[np.random.RandomState]) -> dict[str, Floats]:
    """The amounts of each picture by their names in `RANGES`, (pictures, number)."""
    ends = np.cumsum([span.number for span in RANGES.values()])
    shares = np.stack([random.random_sample(ends[-1]) for random in randoms])
    return {
        name: span.low + (span.high - span.low) * part
        for (name, span), part in zip(
            RANGES.items(), np.split(shares, ends[:-1], axis=1), strict=True
        )
    }


def place(boxes: npt.NDArray[np.int64], amounts: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Where drawings go: a linear map about the cell's centre, then a shift.

    Args:
        boxes: left, top, right and bottom edges of the drawings, (pictures, 4), in drawn pixels.
        amounts: as of `draw_amounts`.

    Returns:
        Matrices (pictures, 2, 2) and shifts (pictures, 2) in drawn pixels, across and down, which
        together keep every box inside the cell: a shift is cut where it would leave it, and what is
        too large is shrunk.
    """
    angle, shear = amounts["rotation"][:, 0], amounts["shear"][:, 0]
    scale, aspect = np.exp(amounts["log_scale"])[:, 0], np.exp(amounts["log_aspect"])[:, 0]
    rotation = _matrices(np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle))
    stretch = _matrices(scale * aspect, scale * shear, np.zeros_like(scale), scale / aspect)
    matrices = rotation @ stretch

    left, top, right, bottom = boxes.T - _CENTRE
    corners = np.stack([[left, left, right, right], [top, bottom, top, bottom]]).transpose(2, 0, 1)
    moved = matrices @ corners
    lowest, highest = moved.min(axis=2), moved.max(axis=2)
    # Few characters are so large that this changes anything.
    shrink = np.minimum(1.0, (2 * _REACH / (highest - lowest)).min(axis=1))[:, None]
    shifts = _DRAWN_PIXELS_PER_PIXEL * amounts["shift"]
    shifts = np.clip(shifts, -_REACH - shrink * lowest, _REACH - shrink * highest)
    return shrink[:, :, None] * matrices, shifts


def _matrices(*rows: Floats) -> Floats:
    """Four vectors (n,), row by row, to matrices (n, 2, 2)."""
    return np.stack(rows, axis=-1).reshape(-1, 2, 2)


def _move(drawing: Drawing, inverse: Floats, origin: Floats) -> npt.NDArray[np.uint8]:
    """The ink of one drawing, moved and reduced to (24, 24)."""
    from PIL import Image

    moved = Image.fromarray(drawing.ink).transform(
        (CELL_SIZE, CELL_SIZE),
        Image.Transform.AFFINE,
        (*inverse[0], origin[0], *inverse[1], origin[1]),
        resample=Image.Resampling.BILINEAR,
    )
    return np.asarray(moved.reduce(_DRAWN_PIXELS_PER_PIXEL))


def _colour(ink: Floats, amounts: Mapping[str, Floats]) -> Floats:
    """Shares of ink (pictures, 24, 24) to shaded colours (pictures, 24, 24, 3)."""
    ground = amounts["ground"][:, None, None, :]
    colours = ground + ink[..., None] * (amounts["ink"][:, None, None, :] - ground)
    steps = np.linspace(-1, 1, PICTURE_SIZE)
    direction = amounts["shading_direction"][:, :, None]
    slope = np.cos(direction) * steps + np.sin(direction) * steps[:, None]
    return colours * (1 + amounts["shading"][:, :, None] * slope)[..., None]
