import collections
import types
import unicodedata

import numpy as np
import PIL
import pytest

from benchmarks import drawn_glyphs as glyphs

# -- typefaces -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faces():
    return [glyphs.Typeface(name) for name in glyphs.FACES]


def test_eight_faces_train_and_four_others_of_every_family_and_style_test():
    assert (len(glyphs.TRAIN_FACES), len(glyphs.TEST_FACES)) == (8, 4)
    assert not set(glyphs.TRAIN_FACES) & set(glyphs.TEST_FACES)

    def families_and_styles(names):
        pairs = [name.replace("Italic", "Oblique").partition("-")[::2] for name in names]
        return collections.Counter(word or "Regular" for pair in pairs for word in pair)

    assert set(families_and_styles(glyphs.TRAIN_FACES)) == set(
        families_and_styles(glyphs.TEST_FACES)
    )
    styles = families_and_styles(glyphs.TEST_FACES)
    assert all(styles[style] == 1 for style in ("Regular", "Bold", "Oblique", "BoldOblique"))


def _box(ink):
    """Left, top, right and bottom edge of the ink."""
    return PIL.Image.fromarray(ink).getbbox()


def test_all_faces_stand_on_one_baseline_and_ink_is_centred(faces):
    for face in faces:
        bottoms = {letter: _box(face.draw(ord(letter)))[3] for letter in "HEp^"}
        assert bottoms["H"] == bottoms["E"] == glyphs.BASELINE < bottoms["p"], face.name
        # What differs by its height alone stays different.
        assert bottoms["^"] < glyphs.BASELINE - 10
        left, _, right, _ = _box(face.draw(ord("L")))
        # An odd number of free columns cannot be halved.
        assert abs(left - (glyphs.CELL_SIZE - right)) <= 1


# -- characters ------------------------------------------------------------------------------------


def test_candidates_are_2146_letters_numbers_and_symbols(faces):
    candidates = glyphs.candidate_characters(faces)
    # FreeType's hinting moves an edge by a pixel from version to version: one character in a
    # hundred may change sides.
    assert len(candidates) == pytest.approx(2146, rel=0.01)
    assert {unicodedata.category(chr(code_point))[0] for code_point in candidates} == set("LNS")
    assert candidates == sorted(candidates)


@pytest.mark.thorough
def test_look_alikes_keep_the_first_character_only(faces):
    # All candidates up to the Cyrillic capitals.
    kept = {chr(code_point) for code_point in glyphs.distinct_characters(faces, limit=620)}
    assert {"A", "Ω", "Ж"} <= kept
    greek_alpha, cyrillic_a = "\N{GREEK CAPITAL LETTER ALPHA}", "\N{CYRILLIC CAPITAL LETTER A}"
    assert not {greek_alpha, cyrillic_a} & kept


@pytest.mark.thorough
def test_kept_characters_are_further_apart_than_the_smallest_distance(faces):
    kept = glyphs.distinct_characters(faces, limit=60)
    vectors = []
    for code_point in kept:
        cells = np.stack([face.draw(code_point) for face in faces]).astype(np.float64)
        coarse = cells.reshape(len(faces), 16, 3, 16, 3).sum(axis=(2, 4)).ravel()
        vectors.append(coarse / np.sqrt((coarse**2).sum()))
    distances = np.linalg.norm(np.array(vectors)[:, None] - np.array(vectors), axis=-1)
    others = ~np.eye(len(kept), dtype=bool)
    assert distances[others].min() >= glyphs.SMALLEST_DISTANCE


@pytest.mark.slow
def test_1383_characters_look_different(faces):
    distinct = glyphs.distinct_characters(faces)
    # As for the candidates: the version of FreeType decides on the closest pairs.
    assert len(distinct) == pytest.approx(1383, rel=0.01)
    assert distinct[999] == pytest.approx(0x21F0, abs=0x40)


# -- pictures --------------------------------------------------------------------------------------

STILL = {name: (0.0, 0.0, number) for name, (_, _, number) in glyphs.RANGES.items()}
STILL["ink"] = (1.0, 1.0, 3)


@pytest.fixture(scope="module")
def face():
    return glyphs.Typeface("DejaVuSerif-Bold")


def _randoms(count):
    return [np.random.RandomState(number) for number in range(count)]


def _x(face, monkeypatch, **ranges):
    monkeypatch.setattr(glyphs, "RANGES", types.MappingProxyType(STILL | ranges))
    return glyphs.pictures([face.draw(ord("x"))], _randoms(1))[0]


def test_without_distortion_a_picture_is_the_drawing_at_half_size(face, monkeypatch):
    picture, drawing = _x(face, monkeypatch), face.draw(ord("x"))
    halved = drawing.reshape(24, 2, 24, 2).astype(np.float64).mean(axis=(1, 3))
    # Pillow rounds the mean of four pixels to an integer.
    assert abs(picture - halved[:, :, None]).max() <= 0.5


def test_a_positive_shift_moves_right_and_down_and_scaling_up_adds_ink(face, monkeypatch):
    still = _x(face, monkeypatch)
    moved = _x(face, monkeypatch, shift=(1.0, 1.0, 2))
    np.testing.assert_array_equal(moved, np.roll(still, (1, 1), axis=(0, 1)))
    larger = _x(face, monkeypatch, log_scale=(0.1, 0.1, 1))
    # Interpolation and rounding of 24x24 pixels shift the sum by less than a hundredth.
    assert larger.sum() / still.sum() == pytest.approx(np.exp(0.2), rel=0.01)


@pytest.mark.parametrize("character", "xÅЩp№⅕Ǟ")
def test_no_picture_cuts_a_character_off(character, face):
    box = np.array(_box(face.draw(ord(character))))
    amounts = glyphs.draw_amounts(_randoms(500))
    matrices, shifts = glyphs.place(np.tile(box, (500, 1)), amounts)
    left, top, right, bottom = box - glyphs.CELL_SIZE / 2
    for corner in ((left, top), (right, top), (left, bottom), (right, bottom)):
        moved = matrices @ np.array(corner) + shifts
        assert abs(moved).max() < glyphs.CELL_SIZE / 2


def test_amounts_fill_their_ranges_and_never_leave_them():
    amounts = glyphs.draw_amounts(_randoms(1000))
    assert amounts.keys() == glyphs.RANGES.keys()
    for name, (low, high, number) in glyphs.RANGES.items():
        values = amounts[name]
        assert values.shape == (1000, number)
        assert low <= values.min()
        assert values.max() <= high
        # A thousand even draws miss the outer hundredth at an end once in 20 000 times.
        assert values.max() - values.min() > 0.98 * (high - low)


def test_ink_is_lighter_than_its_ground_in_every_picture(face):
    drawing = face.draw(ord("W"))
    drawn = glyphs.pictures([drawing] * 200, _randoms(200)).astype(np.float64).mean(axis=-1)
    # The brightest and the darkest ninth of the pixels, so that noise averages out.
    ordered = np.sort(drawn.reshape(200, -1), axis=1)
    assert (ordered[:, -64:].mean(axis=1) - ordered[:, :64].mean(axis=1)).min() > 50


def test_a_picture_does_not_depend_on_its_neighbours(face):
    drawings = [face.draw(ord(letter)) for letter in "abcde"]
    together = glyphs.pictures(drawings, _randoms(5))
    for number, drawing in enumerate(drawings):
        (alone,) = glyphs.pictures([drawing], [np.random.RandomState(number)])
        np.testing.assert_array_equal(alone, together[number])


SMALL = {"num_classes": 12, "train_per_class": 10, "test_per_class": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def small(folder):
    return glyphs.load_glyphs(**SMALL, cache_dir=folder)


def test_no_two_of_the_pictures_are_equal_and_they_are_in_the_order_of_their_classes(small):
    assert (small.name, small.num_classes) == ("glyphs", 12)
    assert small.train_images.shape == (120, 24, 24, 3)
    assert small.test_images.shape == (60, 24, 24, 3)
    np.testing.assert_array_equal(small.train_labels, np.repeat(np.arange(12), 10))
    np.testing.assert_array_equal(small.test_labels, np.repeat(np.arange(12), 5))
    images = np.concatenate([small.train_images, small.test_images])
    assert len({image.tobytes() for image in images}) == len(images)


@pytest.mark.essential
def test_a_set_drawn_twice_is_the_same_and_another_seed_changes_every_picture(
    small, folder, tmp_path
):
    again = glyphs.load_glyphs(**SMALL, cache_dir=tmp_path)
    np.testing.assert_array_equal(again.train_images, small.train_images)
    np.testing.assert_array_equal(again.test_images, small.test_images)
    other = glyphs.load_glyphs(**SMALL, seed=1, cache_dir=folder)
    assert (small.train_images != other.train_images).any(axis=(1, 2, 3)).all()
    assert (small.test_images != other.test_images).any(axis=(1, 2, 3)).all()


def test_a_second_load_does_not_draw(small, folder, monkeypatch):
    monkeypatch.setattr(glyphs, "distinct_characters", None)
    again = glyphs.load_glyphs(**SMALL, cache_dir=folder)
    np.testing.assert_array_equal(again.train_images, small.train_images)
    np.testing.assert_array_equal(again.test_labels, small.test_labels)


def test_fewer_classes_and_fewer_pictures_are_the_first_of_more(small, folder):
    fewer = glyphs.load_glyphs(num_classes=4, train_per_class=3, test_per_class=1, cache_dir=folder)
    for part, count in (("train_images", 3), ("test_images", 1)):
        by_class = getattr(small, part).reshape(12, -1, 24, 24, 3)[:4, :count]
        np.testing.assert_array_equal(getattr(fewer, part), np.concatenate(by_class))


def test_held_out_pictures_can_be_told_by_their_likeness_to_training_pictures(folder):
    characters, parts = glyphs.load_glyphs(num_classes=30, cache_dir=folder), []
    for images in (characters.train_images, characters.test_images):
        grey = images.astype(np.float64).mean(axis=-1).reshape(len(images), -1)
        grey -= grey.mean(axis=1, keepdims=True)
        parts.append(grey / np.linalg.norm(grey, axis=1, keepdims=True))
    products = parts[1] @ parts[0].reshape(30, 64, -1).mean(axis=1).T
    accuracy = (products.argmax(axis=1) == characters.test_labels).mean()
    # Chance is 1/30; the nearest mean knows nothing of shifts or slants, and is right on most
    # pictures only if they can be read and their labels are right.
    assert accuracy > 0.6


@pytest.mark.thorough
def test_everything_that_changes_a_picture_changes_the_cache_file(tmp_path, monkeypatch):
    tiny = {"num_classes": 2, "train_per_class": 2, "test_per_class": 2, "seed": 0}

    for expected, changed in enumerate(("", *tiny, "version"), start=1):
        if changed == "version":
            monkeypatch.setattr(PIL, "__version__", "0.0")
        glyphs.load_glyphs(**tiny | ({changed: 3} if changed in tiny else {}), cache_dir=tmp_path)
        assert len(list(tmp_path.iterdir())) == expected


def test_progress_shows_a_bar_for_either_part(tmp_path, capsys):
    options = {"num_classes": 2, "train_per_class": 1, "test_per_class": 1}
    glyphs.load_glyphs(**options, cache_dir=tmp_path / "silent")
    assert capsys.readouterr().out == ""
    glyphs.load_glyphs(**options, cache_dir=tmp_path / "shown", progress=True)
    shown = capsys.readouterr().out
    assert "Drawing train pictures" in shown
    assert "Drawing test pictures" in shown


def test_more_classes_than_there_are_characters_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "distinct_characters", lambda faces, *, limit: [65, 66][:limit])
    with pytest.raises(ValueError, match="num_classes=3: expected at most 2, the number"):
        glyphs.load_glyphs(num_classes=3, cache_dir=tmp_path)


@pytest.mark.slow
def test_the_full_set_has_72_000_pictures_of_1000_classes(tmp_path):
    full = glyphs.load_glyphs(cache_dir=tmp_path)
    assert full.num_classes == 1000
    assert full.train_images.shape == (64_000, 24, 24, 3)
    assert full.test_images.shape == (8_000, 24, 24, 3)
