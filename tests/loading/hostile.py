"""Saved models that run code when they are loaded: each would make a file."""

import json
import pathlib
import zipfile

import h5py
import tf_keras as keras
from tf_keras.protobuf import saved_metadata_pb2


def small(*layers):
    """A small image model with some layers in the middle."""
    image = keras.Input((6, 6, 3), name="image")
    x = keras.layers.Conv2D(4, 3, use_bias=False, name="conv")(image)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.ReLU(name="relu")(x)
    for layer in layers:
        x = layer(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(image, keras.layers.Dense(3, name="head")(x), name="small")


def marking(marker):
    """A Lambda layer whose code makes the file `marker`."""
    code = f"lambda x: [open({str(marker)!r}, 'w').close(), x][1]"
    return keras.layers.Lambda(eval(code), name="harmless")


def saved(model, path, marker):
    """Saves a model; what its layers have made while it was built is taken away."""
    model.save(path)
    pathlib.Path(marker).unlink(missing_ok=True)
    return path


def config_of(path):
    """The configuration in a `.keras` or HDF5 file, or in a SavedModel."""
    if pathlib.Path(path).is_dir():
        return json.loads(_root_of(_metadata(path)).metadata)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    with h5py.File(path) as file:
        return json.loads(file.attrs["model_config"])


def _metadata(folder):
    metadata = saved_metadata_pb2.SavedMetadata()
    metadata.ParseFromString((pathlib.Path(folder) / "keras_metadata.pb").read_bytes())
    return metadata


def _root_of(metadata):
    (root,) = [node for node in metadata.nodes if node.node_id == 0]
    return root


def with_config(path, config):
    """Puts another configuration into a `.keras` or HDF5 file, or into a SavedModel."""
    if pathlib.Path(path).is_dir():
        metadata = _metadata(path)
        _root_of(metadata).metadata = json.dumps(config)
        (pathlib.Path(path) / "keras_metadata.pb").write_bytes(metadata.SerializeToString())
        return path
    if not zipfile.is_zipfile(path):
        with h5py.File(path, "a") as file:
            file.attrs["model_config"] = json.dumps(config)
        return path
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def layer_in(config, name):
    """The part of a configuration that is about a layer."""
    (found,) = [one for one in config["config"]["layers"] if one["config"]["name"] == name]
    return found
