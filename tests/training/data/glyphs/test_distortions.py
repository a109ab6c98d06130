import types

import numpy as np
import pytest

from sat_tf.training.data import glyphs as distortions
from sat_tf.training.data.glyphs import (
    CELL_SIZE,
    RANGES,
    Range,
    Typeface,
    draw_amounts,
    pictures,
    place,
)

STILL = {name: Range(0.0, 0.0, span.number) for name, span in RANGES.items()} | {
    "ink": Range(1.0, 1.0, 3)
}


@pytest.fixture(scope="module")
def face():
    return Typeface("DejaVuSerif-Bold")


def _randoms(count):
    return [np.random.RandomState(number) for number in range(count)]


def _set_ranges(monkeypatch, **ranges):
    monkeypatch.setattr(distortions, "RANGES", types.MappingProxyType(STILL | ranges))


def test_without_distortion_a_picture_is_the_drawing_at_half_size(face, monkeypatch):
    _set_ranges(monkeypatch)
    drawing = face.draw(ord("R"))
    (picture,) = pictures([drawing], _randoms(1))
    halved = drawing.ink.reshape(24, 2, 24, 2).astype(np.float64).mean(axis=(1, 3))
    # Pillow rounds the mean of four pixels to an integer.
    assert abs(picture - halved[:, :, None]).max() <= 0.5


def test_a_positive_shift_moves_right_and_down(face, monkeypatch):
    _set_ranges(monkeypatch)
    (still,) = pictures([face.draw(ord("x"))], _randoms(1))
    _set_ranges(monkeypatch, shift=Range(1.0, 1.0, 2))
    (moved,) = pictures([face.draw(ord("x"))], _randoms(1))
    np.testing.assert_array_equal(moved, np.roll(still, (1, 1), axis=(0, 1)))


def test_scaling_up_adds_ink_in_proportion(face, monkeypatch):
    _set_ranges(monkeypatch)
    (still,) = pictures([face.draw(ord("x"))], _randoms(1))
    _set_ranges(monkeypatch, log_scale=Range(0.1, 0.1))
    (larger,) = pictures([face.draw(ord("x"))], _randoms(1))
    # Interpolation and rounding of 24x24 pixels shift the sum by less than a hundredth.
    assert larger.sum() / still.sum() == pytest.approx(np.exp(0.2), rel=0.01)


@pytest.mark.parametrize("character", "xÅЩp№⅕Ǟ")
def test_no_picture_cuts_a_character_off(character, face):
    box = np.array(face.draw(ord(character)).box)
    amounts = draw_amounts(_randoms(500))
    matrices, shifts = place(np.tile(box, (500, 1)), amounts)
    left, top, right, bottom = box - CELL_SIZE / 2
    for corner in ((left, top), (right, top), (left, bottom), (right, bottom)):
        moved = matrices @ np.array(corner) + shifts
        assert abs(moved).max() < CELL_SIZE / 2


def test_amounts_fill_their_ranges_and_never_leave_them():
    amounts = draw_amounts(_randoms(1000))
    assert amounts.keys() == RANGES.keys()
    for name, span in RANGES.items():
        values = amounts[name]
        assert values.shape == (1000, span.number)
        assert span.low <= values.min()
        assert values.max() <= span.high
        # A thousand even draws miss the outer hundredth at an end once in 20 000 times.
        assert values.max() - values.min() > 0.98 * (span.high - span.low)


def test_ink_is_lighter_than_its_ground_in_every_picture(face):
    drawing = face.draw(ord("W"))
    drawn = pictures([drawing] * 200, _randoms(200)).astype(np.float64).mean(axis=-1)
    # The brightest and the darkest ninth of the pixels, so that noise averages out.
    ordered = np.sort(drawn.reshape(200, -1), axis=1)
    assert (ordered[:, -64:].mean(axis=1) - ordered[:, :64].mean(axis=1)).min() > 50


def test_a_picture_does_not_depend_on_its_neighbours(face):
    drawings = [face.draw(ord(letter)) for letter in "abcde"]
    together = pictures(drawings, _randoms(5))
    for number, drawing in enumerate(drawings):
        (alone,) = pictures([drawing], [np.random.RandomState(number)])
        np.testing.assert_array_equal(alone, together[number])
