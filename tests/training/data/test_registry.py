import pathlib
import subprocess
import sys

import numpy as np

from sat_tf.training import data
from sat_tf.training.data.digits import load_digits


def test_a_set_in_memory_is_a_source_with_shifts():
    source = data.source("digits", image_size=8, shift_pixels=1)
    assert (source.name, source.image_size, source.shift_pixels) == ("digits", 8, 1)
    images = load_digits(8).test_images
    np.testing.assert_array_equal(source.held_out_sample(10_000)[0], images)
    np.testing.assert_array_equal(data.load("digits", image_size=8).test_images, images)


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
