import json
import subprocess
import sys
import zipfile

import h5py

from sat_tf.loading.model_file import (
    is_keras3_file,
    open_model_file,
    parts,
    read_model_file,
)


def _write(path, version, config):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version}))
        archive.writestr("config.json", json.dumps(config))
    return path


def test_the_version_tells_keras_3_from_keras_2(tmp_path):
    assert is_keras3_file(_write(tmp_path / "3.keras", "3.15.1", {}))
    assert is_keras3_file(_write(tmp_path / "4.keras", "4.0", {}))
    assert not is_keras3_file(_write(tmp_path / "2.keras", "2.21.0", {}))
    assert not is_keras3_file(_write(tmp_path / "none.keras", "", {}))


def test_hdf5_files_are_told_apart_too(tmp_path):
    for name, version in (("3.h5", "3.15.1"), ("2.h5", "2.21.0")):
        with h5py.File(tmp_path / name, "w") as file:
            file.attrs["keras_version"] = version
            file.attrs["model_config"] = json.dumps({"class_name": "Functional"})
    assert is_keras3_file(tmp_path / "3.h5")
    assert not is_keras3_file(tmp_path / "2.h5")
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file.attrs["keras_version"] = "3.15.1"
    assert read_model_file(tmp_path / "weights.h5") is None


def test_what_is_no_keras_file_is_none(tmp_path):
    (tmp_path / "text.keras").write_text("text")
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as archive:
        archive.writestr("readme", "text")
    for path in ("text.keras", "other.keras", "missing.keras", "."):
        assert read_model_file(tmp_path / path) is None
        assert not is_keras3_file(tmp_path / path)


def test_a_model_is_one_whatever_its_name_says(tmp_path):
    assert open_model_file(_write(tmp_path / "model.tflite", "3.15.1", {})).is_keras3


def test_all_parts_are_found_in_nested_models(tmp_path):
    dense = {"class_name": "Dense", "module": "keras.layers", "config": {"name": "dense"}}
    own = {"class_name": "Own", "module": "shop", "config": {"name": "own"}}
    inner = {"class_name": "Functional", "config": {"name": "inner", "layers": [dense, own]}}
    model = {"class_name": "Sequential", "config": {"name": "outer", "layers": [inner]}}
    found = read_model_file(_write(tmp_path / "model.keras", "3.0", model))
    assert [part.name for part in parts(found.config)] == ["outer", "inner", "dense", "own"]
    assert [part.module for part in parts(found.config)] == ["", "", "keras.layers", "shop"]


def test_neither_keras_nor_tensorflow_is_loaded_to_read_a_file(tmp_path):
    path = _write(tmp_path / "3.keras", "3.15.1", {})
    program = (
        "import sys\nfrom sat_tf.loading.model_file import is_keras3_file\n"
        "assert is_keras3_file(sys.argv[1])\n"
        "assert not {'keras', 'tf_keras', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
