import pathlib
import subprocess
import sys

import numpy as np
import pytest

from sat_tf import data
from sat_tf.data import class_folders, digits, glyphs, record_folders, tfds_builder
from sat_tf.data.digits import load_digits


def test_the_table_names_every_data_set():
    assert dict(data.DATA_SETS) == {
        "digits": digits.load_digits,
        "glyphs": glyphs.load_glyphs,
        "folder": class_folders.load_folder_tree,
        "tfds": tfds_builder.load_tfds,
        "tfrecords": record_folders.load_tfrecords,
    }
    assert [name for name in data.DATA_SETS if data.is_in_memory(name)] == ["digits", "glyphs"]


def test_a_set_in_memory_is_a_source_with_shifts():
    source = data.source("digits", image_size=8, shift_pixels=1)
    assert (source.name, source.image_size, source.shift_pixels) == ("digits", 8, 1)
    np.testing.assert_array_equal(
        source.held_out_sample(10_000)[0], digits.load_digits(8).test_images
    )


@pytest.mark.parametrize("name", ["folder", "tfds", "tfrecords"])
def test_sets_that_are_not_in_memory_are_neither_loaded_nor_shifted(name):
    with pytest.raises(ValueError, match=f"'{name}', which is not held in memory; expected one of"):
        data.load(name)
    with pytest.raises(ValueError, match=f"shift_pixels: received 2 for {name}; expected 0"):
        data.source(name, shift_pixels=2)


def test_an_option_that_is_missing_is_named():
    with pytest.raises(ValueError, match="folder needs data_dir"):
        data.source("folder")


def test_the_function_source_is_not_hidden_by_the_module_of_that_name():
    import sat_tf.data.source

    assert callable(sat_tf.data.source)


def test_a_data_set_is_loaded_with_the_options_given():
    digits = data.load("digits", image_size=16, test_fraction=0.5)
    assert digits.image_size == 16
    np.testing.assert_array_equal(
        digits.test_images, load_digits(16, test_fraction=0.5).test_images
    )


def test_a_misspelt_data_set_is_answered_with_its_nearest_name():
    with pytest.raises(ValueError, match=r"'glyph'; did you mean 'glyphs'\?"):
        data.load("glyph")


def test_a_data_set_like_no_other_is_answered_with_all_names():
    with pytest.raises(ValueError, match="Expected one of: digits, glyphs, folder") as error:
        data.load("cifar10")
    assert "did you mean" not in str(error.value)


def test_all_unknown_options_are_named_at_once():
    with pytest.raises(ValueError, match="digits: 2 problems") as error:
        data.load("digits", image_sise=32, test_fracton=0.2, seed=0)
    assert "'image_sise'; did you mean 'image_size'?" in str(error.value)
    assert "'test_fracton'; did you mean 'test_fraction'?" in str(error.value)
    assert "'seed';" not in str(error.value)


def test_naming_the_data_sets_loads_no_library_but_numpy():
    package = pathlib.Path(data.__file__).parents[1]
    # An empty package of the same name in front, so that this is about the data sets alone.
    program = f"""
import sys, types
heavy = {{"tensorflow", "tf_keras", "sklearn", "matplotlib", "PIL", "rich"}}
sys.modules["sat_tf"] = types.ModuleType("sat_tf")
sys.modules["sat_tf"].__path__ = [{str(package)!r}]
import sat_tf.data
print(*sorted(heavy & set(sys.modules)))
"""
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.split() == []
