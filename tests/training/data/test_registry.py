import pathlib
import subprocess
import sys

import numpy as np

from sat_tf.training import data
from sat_tf.training.data import class_folders, digits, glyphs, record_folders, tfds_builder
from sat_tf.training.data.digits import load_digits


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


def test_the_function_source_is_not_hidden_by_the_module_of_that_name():
    import sat_tf.training.data.source

    assert callable(sat_tf.training.data.source)


def test_a_data_set_is_loaded_with_the_options_given():
    digits = data.load("digits", image_size=16, test_fraction=0.5)
    assert digits.image_size == 16
    np.testing.assert_array_equal(
        digits.test_images, load_digits(16, test_fraction=0.5).test_images
    )


def test_naming_the_data_sets_loads_no_library_but_numpy_and_pillow():
    package = pathlib.Path(data.__file__).parents[1]
    # An empty package of the same name in front, so that this is about the data sets alone.
    program = f"""
import sys, types
heavy = {{"tensorflow", "tf_keras", "sklearn", "matplotlib", "rich"}}
sys.modules["sat_tf"] = types.ModuleType("sat_tf")
sys.modules["sat_tf"].__path__ = [{str(package)!r}]
import sat_tf.training.data
print(*sorted(heavy & set(sys.modules)))
"""
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert loaded.stdout.split() == []
