import json

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.version import FORMAT
from tests.golden import make
from tests.loading.hostile import edit_texts

FILES = sorted(
    path.name for pattern in ("*.keras", "*.h5.gz") for path in make.FOLDER.glob(pattern)
)


def _load(name, folder):
    return keras.models.load_model(make.unpack(make.FOLDER / name, folder), compile=False)


def test_there_are_files_of_every_format():
    assert {name.split("_")[0] for name in FILES} == {f"format{n}" for n in range(1, FORMAT + 1)}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_an_earlier_version_gives_what_it_gave(name, tmp_path):
    model = _load(name, tmp_path)
    with np.load(make.FOLDER / f"{name.split('.')[0]}.npz") as saved:
        images, expected = saved["images"], saved["expected"]
        for index, value in enumerate(model.get_weights()):
            np.testing.assert_array_equal(value, saved[f"weight{index}"])
    # Processors add in their own order, which is a few units in the last place; a code that was
    # rounded otherwise would be a whole step, 1 % of an output and more.
    np.testing.assert_allclose(model(images), expected, rtol=1e-5, atol=1e-5)
    assert not model.get_layer("quant_depthwise").trainable
    levels = [v for v in model.trainable_variables if "clipping_level" in v.name]
    assert all(level.constraint.minimum == 1e-3 for level in levels)


@pytest.fixture(params=["model.keras", "model.h5", "model"])
def saved(request, tmp_path):
    """A model in every format, with the images of `trained`."""
    model, images = make.trained(make.POLICIES["mobile"])
    model.save(tmp_path / request.param)
    return tmp_path / request.param, images, model(images).numpy()


def _with_marks(path, change):
    """Edits the configuration of every layer in a file that has the mark."""

    def changed(config):
        if "saved_by" in config:
            change(config)
        return config

    edit_texts(path, lambda text: json.dumps(json.loads(text, object_hook=changed)))


@pytest.mark.thorough
def test_every_layer_is_marked_and_a_file_without_a_mark_is_an_older_one_and_loads(saved):
    path, images, expected = saved
    marks = [layer.get_config().get("saved_by") for layer in keras.models.load_model(path).layers]
    assert marks[1:] == [{"sat_tf": sat_tf.__version__, "format": FORMAT}] * (len(marks) - 1)
    _with_marks(path, lambda config: config.pop("saved_by"))
    np.testing.assert_array_equal(keras.models.load_model(path)(images), expected)


def test_a_file_of_a_newer_format_is_refused_with_the_fix(saved):
    newer = {"sat_tf": "9.1.0", "format": FORMAT + 1}
    _with_marks(saved[0], lambda config: config.update(saved_by=newer))
    message = rf"sat-tf 9\.1\.0 in format {FORMAT + 1}, expected format {FORMAT} or lower.*install"
    with pytest.raises(ValueError, match=message):
        keras.models.load_model(saved[0])
