import collections

import numpy as np
import pytest

from sat_tf.training.data import glyphs
from sat_tf.training.data.glyphs import (
    BASELINE,
    CELL_SIZE,
    FACES,
    TEST_FACES,
    TRAIN_FACES,
    Typeface,
)


@pytest.fixture(scope="module")
def faces():
    return [Typeface(name) for name in FACES]


def test_eight_faces_train_and_four_others_test():
    assert (len(TRAIN_FACES), len(TEST_FACES)) == (8, 4)
    assert not set(TRAIN_FACES) & set(TEST_FACES)


def test_every_family_and_every_style_is_in_both_parts():
    def families_and_styles(names):
        pairs = [name.replace("Italic", "Oblique").partition("-")[::2] for name in names]
        return collections.Counter(word or "Regular" for pair in pairs for word in pair)

    assert set(families_and_styles(TRAIN_FACES)) == set(families_and_styles(TEST_FACES))
    styles = families_and_styles(TEST_FACES)
    assert all(styles[style] == 1 for style in ("Regular", "Bold", "Oblique", "BoldOblique"))


def test_all_faces_stand_on_one_baseline(faces):
    for face in faces:
        for letter in "HE":
            assert face.draw(ord(letter)).box[3] == BASELINE, (face.name, letter)
        assert face.draw(ord("p")).box[3] > BASELINE
        # What differs by its height alone stays different.
        assert face.draw(ord("^")).box[3] < BASELINE - 10


def test_ink_is_centred_between_left_and_right(faces):
    for face in faces:
        left, _, right, _ = face.draw(ord("L")).box
        # An odd number of free columns cannot be halved.
        assert abs(left - (CELL_SIZE - right)) <= 1


def test_the_box_is_the_ink(faces):
    for face in faces:
        ink, (left, top, right, bottom) = face.draw(ord("Ω"))
        assert ink.shape == (CELL_SIZE, CELL_SIZE)
        assert ink.dtype == np.uint8
        rows, columns = np.nonzero(ink)
        assert (rows.min(), rows.max() + 1) == (top, bottom)
        assert (columns.min(), columns.max() + 1) == (left, right)


def test_faces_draw_one_character_differently(faces):
    assert len({face.draw(ord("g")).ink.tobytes() for face in faces}) == len(faces)


def test_a_face_that_matplotlib_lacks_is_named():
    with pytest.raises(FileNotFoundError, match="expected the face DejaVuSansSerif that ships"):
        Typeface("DejaVuSansSerif")


def test_the_cell_halves_and_thirds_evenly():
    # The pictures have half its pixels, the comparison of characters a third.
    assert CELL_SIZE % 6 == 0
    assert glyphs.FONT_SIZE < CELL_SIZE
