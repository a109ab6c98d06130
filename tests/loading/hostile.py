"""Saved models that run code when they are loaded: each would make a file."""

import json
import pathlib
import zipfile

import h5py
import tf_keras as keras


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
    """The configuration in a `.keras` or HDF5 file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return json.loads(archive.read("config.json"))
    with h5py.File(path) as file:
        return json.loads(file.attrs["model_config"])


def with_config(path, config):
    """Puts another configuration into a `.keras` or HDF5 file."""
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
