import numpy as np
import PIL
import pytest

from sat_tf.training.data import glyphs
from sat_tf.training.data.glyphs import load_glyphs

SMALL = {"num_classes": 12, "train_per_class": 10, "test_per_class": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def small(folder):
    return load_glyphs(**SMALL, cache_dir=folder)


def _of_class(images, label, per_class):
    return images[label * per_class : (label + 1) * per_class]


def _refuse(*arguments, **options):
    raise AssertionError("drawn again")


def test_glyphs_are_small_colour_pictures_in_the_order_of_their_classes(small):
    assert small.name == "glyphs"
    assert small.num_classes == 12
    assert small.train_images.shape == (120, 24, 24, 3)
    assert small.test_images.shape == (60, 24, 24, 3)
    np.testing.assert_array_equal(small.train_labels, np.repeat(np.arange(12), 10))
    np.testing.assert_array_equal(small.test_labels, np.repeat(np.arange(12), 5))


def test_no_two_pictures_are_equal(small):
    images = np.concatenate([small.train_images, small.test_images])
    assert len({image.tobytes() for image in images}) == len(images)


def test_a_set_drawn_twice_is_the_same(small, tmp_path):
    again = load_glyphs(**SMALL, cache_dir=tmp_path)
    np.testing.assert_array_equal(again.train_images, small.train_images)
    np.testing.assert_array_equal(again.test_images, small.test_images)


def test_fewer_classes_are_the_first_of_more(small, folder):
    fewer = load_glyphs(**SMALL | {"num_classes": 4}, cache_dir=folder)
    np.testing.assert_array_equal(fewer.train_images, small.train_images[:40])
    np.testing.assert_array_equal(fewer.test_images, small.test_images[:20])


def test_fewer_pictures_are_the_first_of_more(small, folder):
    fewer = load_glyphs(num_classes=12, train_per_class=3, test_per_class=1, cache_dir=folder)
    for label in range(12):
        np.testing.assert_array_equal(
            _of_class(fewer.train_images, label, 3), _of_class(small.train_images, label, 10)[:3]
        )
        np.testing.assert_array_equal(
            _of_class(fewer.test_images, label, 1), _of_class(small.test_images, label, 5)[:1]
        )


def test_another_seed_changes_every_picture(small, folder):
    other = load_glyphs(**SMALL, seed=1, cache_dir=folder)
    for ours, theirs in (
        (small.train_images, other.train_images),
        (small.test_images, other.test_images),
    ):
        assert (ours != theirs).any(axis=(1, 2, 3)).all()


def test_held_out_pictures_can_be_told_by_their_likeness_to_training_pictures(folder):
    digits_and_letters = load_glyphs(num_classes=30, cache_dir=folder)
    centres = np.stack(
        [
            _normalized(_of_class(digits_and_letters.train_images, label, 64)).mean(axis=0)
            for label in range(30)
        ]
    )
    products = _normalized(digits_and_letters.test_images) @ centres.T
    accuracy = (products.argmax(axis=1) == digits_and_letters.test_labels).mean()
    # Chance is 1/30; the nearest mean knows nothing of shifts or slants, and is right on most
    # pictures only if they can be read and their labels are right.
    assert accuracy > 0.6


def _normalized(images):
    grey = images.astype(np.float64).mean(axis=-1).reshape(len(images), -1)
    grey -= grey.mean(axis=1, keepdims=True)
    return grey / np.linalg.norm(grey, axis=1, keepdims=True)


def test_a_second_load_does_not_draw(small, folder, monkeypatch):
    monkeypatch.setattr(glyphs, "distinct_characters", _refuse)
    again = load_glyphs(**SMALL, cache_dir=folder)
    np.testing.assert_array_equal(again.train_images, small.train_images)
    np.testing.assert_array_equal(again.test_labels, small.test_labels)


def test_the_environment_names_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAT_TF_CACHE", str(tmp_path / "cache"))
    load_glyphs(num_classes=1, train_per_class=1, test_per_class=1)
    (path,) = (tmp_path / "cache").iterdir()
    assert path.match("glyphs-*.npz")


@pytest.mark.thorough
def test_everything_that_changes_a_picture_changes_the_cache_file(tmp_path, monkeypatch):
    tiny = {"num_classes": 2, "train_per_class": 2, "test_per_class": 2, "seed": 0}

    def files():
        return len(list(tmp_path.iterdir()))

    load_glyphs(**tiny, cache_dir=tmp_path)
    assert files() == 1
    for expected, argument in enumerate(tiny, start=2):
        load_glyphs(**tiny | {argument: 3}, cache_dir=tmp_path)
        assert files() == expected
    monkeypatch.setattr(PIL, "__version__", "0.0")
    load_glyphs(**tiny, cache_dir=tmp_path)
    assert files() == 6


def test_progress_shows_a_bar_for_either_part(tmp_path, capsys):
    options = {"num_classes": 2, "train_per_class": 1, "test_per_class": 1}
    load_glyphs(**options, cache_dir=tmp_path / "silent")
    assert capsys.readouterr().out == ""
    load_glyphs(**options, cache_dir=tmp_path / "shown", progress=True)
    shown = capsys.readouterr().out
    assert "Drawing train pictures" in shown
    assert "Drawing test pictures" in shown


def test_more_classes_than_there_are_characters_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "distinct_characters", lambda faces, *, limit: [65, 66][:limit])
    with pytest.raises(ValueError, match="num_classes=3: expected at most 2, the number"):
        load_glyphs(num_classes=3, cache_dir=tmp_path)


@pytest.mark.slow
def test_the_full_set_has_72_000_pictures_of_1000_classes(tmp_path):
    full = load_glyphs(cache_dir=tmp_path)
    assert full.num_classes == 1000
    assert full.train_images.shape == (64_000, 24, 24, 3)
    assert full.test_images.shape == (8_000, 24, 24, 3)
