import json
import pathlib
import shutil
import zipfile

import h5py
import numpy as np
import pytest
import tf_keras as keras
from tf_keras.protobuf.saved_metadata_pb2 import SavedMetadata

import sat_tf
from sat_tf.version import FORMAT
from tests.golden import make

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


# -- the mark ----------------------------------------------------------------------------------


def _edit_keras(saved, change):
    with zipfile.ZipFile(saved) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["config.json"] = change(parts["config.json"].decode()).encode()
    with zipfile.ZipFile(saved, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _edit_h5(saved, change):
    with h5py.File(saved, "r+") as file:
        file.attrs["model_config"] = change(file.attrs["model_config"])


def _edit_saved_model(saved, change):
    path = saved / "keras_metadata.pb"
    metadata = SavedMetadata.FromString(path.read_bytes())
    for node in metadata.nodes:
        node.metadata = change(node.metadata)
    path.write_bytes(metadata.SerializeToString())


EDITORS = {"model.keras": _edit_keras, "model.h5": _edit_h5, "model": _edit_saved_model}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model in every format, and what it computes."""
    folder = tmp_path_factory.mktemp("saved")
    model, images = make.trained(make.POLICIES["mobile"])
    for name in EDITORS:
        model.save(folder / name)
    return folder, images, model(images).numpy()


def _copy(saved, name, folder) -> pathlib.Path:
    copy = shutil.copytree if (saved / name).is_dir() else shutil.copy
    return copy(saved / name, folder / name)


def _with_mark(change):
    """An editor of every mark in a text of JSON; `change` gets the layer's configuration."""

    def changed(config):
        if "saved_by" in config:
            change(config)
        return config

    return lambda text: json.dumps(json.loads(text, object_hook=changed))


@pytest.mark.thorough
def test_every_layer_is_marked_with_the_version_and_the_format():
    model, _ = make.trained(make.POLICIES["mobile"])
    marks = [layer.get_config().get("saved_by") for layer in model.layers[1:]]
    assert marks == [{"sat_tf": sat_tf.__version__, "format": FORMAT}] * len(marks)


@pytest.mark.thorough
@pytest.mark.parametrize("name", EDITORS)
def test_a_file_without_a_mark_is_an_older_one_and_loads(name, saved, tmp_path):
    folder, images, expected = saved
    path = _copy(folder, name, tmp_path)
    EDITORS[name](path, _with_mark(lambda config: config.pop("saved_by")))
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded(images), expected)


@pytest.mark.parametrize("name", EDITORS)
def test_a_file_of_a_newer_format_is_refused_with_the_fix(name, saved, tmp_path):
    path = _copy(saved[0], name, tmp_path)
    newer = {"sat_tf": "9.1.0", "format": FORMAT + 1}
    EDITORS[name](path, _with_mark(lambda config: config.update(saved_by=newer)))
    message = rf"sat-tf 9\.1\.0 in format {FORMAT + 1}, expected format {FORMAT} or lower.*install"
    with pytest.raises(ValueError, match=message):
        keras.models.load_model(path)
