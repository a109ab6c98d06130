import unicodedata

import numpy as np
import pytest

from sat_tf.training.data.glyphs import (
    FACES,
    SMALLEST_DISTANCE,
    Typeface,
    candidate_characters,
    distinct_characters,
    shared_characters,
)


@pytest.fixture(scope="module")
def faces():
    return [Typeface(name) for name in FACES]


def test_the_twelve_faces_share_2383_characters(faces):
    assert len(shared_characters(faces)) == 2383


def test_candidates_are_2146_letters_numbers_and_symbols(faces):
    candidates = list(candidate_characters(faces))
    # FreeType's hinting moves an edge by a pixel from version to version: one character in a
    # hundred may change sides.
    assert len(candidates) == pytest.approx(2146, rel=0.01)
    assert {unicodedata.category(chr(code_point))[0] for code_point in candidates} == set("LNS")
    assert candidates == sorted(candidates)


@pytest.mark.thorough
def test_look_alikes_keep_the_first_character_only(faces):
    # All candidates up to the Cyrillic capitals.
    kept = {chr(code_point) for code_point in distinct_characters(faces, limit=620)}
    assert {"A", "Ω", "Ж"} <= kept
    greek_alpha, cyrillic_a = "\N{GREEK CAPITAL LETTER ALPHA}", "\N{CYRILLIC CAPITAL LETTER A}"
    assert not {greek_alpha, cyrillic_a} & kept


@pytest.mark.slow
def test_a_smaller_limit_gives_a_prefix(faces):
    # On both sides of the chunks in which candidates are compared.
    longest = distinct_characters(faces, limit=140)
    assert len(longest) == 140
    for limit in (1, 2, 90, 139):
        assert distinct_characters(faces, limit=limit) == longest[:limit]


@pytest.mark.thorough
def test_kept_characters_are_further_apart_than_the_smallest_distance(faces):
    kept = distinct_characters(faces, limit=60)
    vectors = []
    for code_point in kept:
        cells = np.stack([face.draw(code_point).ink for face in faces]).astype(np.float64)
        coarse = cells.reshape(len(faces), 16, 3, 16, 3).sum(axis=(2, 4)).ravel()
        vectors.append(coarse / np.sqrt((coarse**2).sum()))
    distances = np.linalg.norm(np.array(vectors)[:, None] - np.array(vectors), axis=-1)
    others = ~np.eye(len(kept), dtype=bool)
    assert distances[others].min() >= SMALLEST_DISTANCE


@pytest.mark.slow
def test_1383_characters_look_different(faces):
    distinct = distinct_characters(faces)
    # As for the candidates: the version of FreeType decides on the closest pairs.
    assert len(distinct) == pytest.approx(1383, rel=0.01)
    assert distinct[999] == pytest.approx(0x21F0, abs=0x40)
