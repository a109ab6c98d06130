"""Saved models that run code when they are loaded: each would make a file."""

import json
import pathlib
import zipfile

import h5py
import tf_keras as keras
from tf_keras.protobuf.saved_metadata_pb2 import SavedMetadata


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


def edit_texts(path, change):
    """Edits the configurations in a `.keras` or HDF5 file, or those of all parts of a SavedModel.

    `change` gets a text of JSON, the model's own first, and returns another.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        file = path / "keras_metadata.pb"
        metadata = SavedMetadata.FromString(file.read_bytes())
        for node in sorted(metadata.nodes, key=lambda node: node.node_id):
            node.metadata = change(node.metadata)
        file.write_bytes(metadata.SerializeToString())
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        content["config.json"] = change(content["config.json"].decode()).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in content.items():
                archive.writestr(name, data)
    else:
        with h5py.File(path, "r+") as file:
            file.attrs["model_config"] = change(file.attrs["model_config"])


def config_of(path):
    """The configuration of the model in a `.keras` or HDF5 file, or in a SavedModel."""
    texts = []
    edit_texts(path, lambda text: texts.append(text) or text)
    return json.loads(texts[0])


def with_config(path, config):
    """Puts another configuration of the model into a file or SavedModel."""
    texts = iter([json.dumps(config)])
    edit_texts(path, lambda text: next(texts, text))
    return path


def layer_in(config, name):
    """The part of a configuration that is about a layer."""
    (found,) = [one for one in config["config"]["layers"] if one["config"]["name"] == name]
    return found
