"""Hostile model files of both Kerases: `.keras`, HDF5 and SavedModel.

A model whose file was packed otherwise, with all that it means, computes what the original does.
"""

import json
import os
import pathlib
import random
import shutil
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.campaign.cases import Case
from tests.campaign.mutation import archive, changed_value, damaged, hostile_archive, members_of
from tests.campaign.originals import original

_ARCHIVES = ("float.keras", "quantized.keras", "keras3.keras")


def make(rng: random.Random) -> Case:
    """A hostile model, and a command that loads it."""
    return rng.choices((_archive, _same_archive, _hdf5, _saved_model), (50, 8, 25, 17))[0](rng)


def _command(
    name: str, rng: random.Random, check: Callable[[int], str | None] = lambda status: None
) -> Case:
    if name == "quantized.keras":
        words = ["export", name, "--dry_run"]
    else:
        words = ["explain", name, "--unsupported", "float"]
        if rng.random() < 0.15:
            words = ["audit", name]
    return Case(words, [name, pathlib.Path(name).stem], (), check, most_seconds=20)


def _archive(rng: random.Random) -> Case:
    name = rng.choice(_ARCHIVES)
    members = members_of(original(name).read_bytes())
    kind = rng.random()
    if kind < 0.6:
        members["config.json"] = _changed_config(members["config.json"], rng)
        content = archive(members)
    elif kind < 0.7:
        members["model.weights.h5"] = _changed_hdf5(members["model.weights.h5"], rng)
        content = archive(members)
    elif kind < 0.95:
        content = hostile_archive(members, rng)
    else:
        content = damaged(original(name).read_bytes(), rng)
    pathlib.Path(name).write_bytes(content)
    return _command(name, rng)


def _changed_config(content: bytes, rng: random.Random) -> bytes:
    config = json.loads(content)
    if rng.random() < 0.7:  # of one layer, as most of the text is about nothing
        layer = rng.choice(config["config"]["layers"])
        layer.update(changed_value(layer, rng))
    else:
        config = changed_value(config, rng)
    return json.dumps(config).encode("utf-8", "replace")


def _same_archive(rng: random.Random) -> Case:
    """Packed in another way, under another name, with more in it: the same model."""
    name = rng.choice(_ARCHIVES)
    members = members_of(original(name).read_bytes())
    kind = rng.choice(("deflate", "order", "more", "spaces", "comment", "keys"))
    if kind == "order":
        members = dict(reversed(members.items()))
    elif kind == "more":
        members["../more.txt"] = b"more"
    elif kind == "spaces":
        members["config.json"] = json.dumps(json.loads(members["config.json"]), indent=4).encode()
    elif kind == "keys":
        config = json.loads(members["config.json"])
        members["config.json"] = json.dumps(dict(reversed(config.items()))).encode()
    method = zipfile.ZIP_DEFLATED if kind == "deflate" else zipfile.ZIP_STORED
    comment = b"a comment" if kind == "comment" else b""
    pathlib.Path(name).write_bytes(archive(members, method=method, comment=comment))
    return _command(name, rng, lambda status: _other_outputs(name))


def _other_outputs(name: str) -> str | None:
    """Says whether the model in a file computes something else than the original."""
    from sat_tf.keras3.incoming import read_model

    found, expected = (read_model(path).model for path in (pathlib.Path(name), original(name)))
    images = np.random.default_rng(0).uniform(0, 255, (2, *expected.input_shape[1:]))
    same = np.array_equal(
        *(model(images.astype(np.float32)).numpy() for model in (found, expected))
    )
    return None if same else "the model computes something else than the original"


# -- HDF5 ------------------------------------------------------------------------------------------


def _hdf5(rng: random.Random) -> Case:
    content = original("float.h5").read_bytes()
    pathlib.Path("float.h5").write_bytes(_changed_hdf5(content, rng))
    return _command("float.h5", rng)


def _changed_hdf5(content: bytes, rng: random.Random) -> bytes:
    """Arrays and attributes changed, linked, outside, of giant sizes; or bytes."""
    import h5py

    if rng.random() < 0.4:
        return damaged(content, rng)
    path = pathlib.Path("changed.h5")
    path.write_bytes(content)
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        arrays = [name for name in names if isinstance(file[name], h5py.Dataset)]
        kind = rng.choice(
            (
                "config",
                "config",
                "gone",
                "shape",
                "type",
                "link",
                "loop",
                "outside",
                "giant",
                "value",
            )
        )
        name = rng.choice(arrays)
        if kind == "config" and "model_config" in file.attrs:
            text = file.attrs["model_config"]
            text = text if isinstance(text, bytes) else text.encode()
            file.attrs["model_config"] = _changed_config(text, rng).decode()[:60_000]
        elif kind == "value":
            file[name][...] = rng.choice((np.nan, np.inf, 0.0, 1e38))
        else:
            shape = file[name].shape
            del file[name]
            if kind == "shape":
                file[name] = np.zeros((*shape, 2), np.float32)
            elif kind == "type":
                file[name] = rng.choice(("text", np.zeros(shape, np.complex64), 1.0))
            elif kind == "link":
                file[name] = h5py.ExternalLink("/etc/hostname", "/")
            elif kind == "loop":
                file[name] = h5py.SoftLink(f"/{name}")
            elif kind == "outside":
                file.create_dataset(name, (4,), "u1", external=[("/etc/hostname", 0, 4)])
            elif kind == "giant":
                file.create_dataset(name, (2**40,), "f4")
    found = path.read_bytes()
    path.unlink()
    return found


# -- SavedModels -----------------------------------------------------------------------------------


def _saved_model(rng: random.Random) -> Case:
    shutil.copytree(original("saved"), "saved")
    path = rng.choice(sorted(path for path in pathlib.Path("saved").rglob("*") if path.is_file()))
    kind = rng.choice(("damaged", "damaged", "config", "config", "gone", "empty", "link", "pipe"))
    if kind == "config":
        _change_saved_config(pathlib.Path("saved/keras_metadata.pb"), rng)
    elif kind in ("damaged", "empty"):
        path.write_bytes(damaged(path.read_bytes(), rng) if kind == "damaged" else b"")
    else:
        path.unlink()
    if kind == "link":
        path.symlink_to(rng.choice(("/etc/hostname", path.name, "/dev/zero")))
    elif kind == "pipe":
        os.mkfifo(path)
    return _command("saved", rng)


def _change_saved_config(path: pathlib.Path, rng: random.Random) -> None:
    from tf_keras.protobuf import saved_metadata_pb2

    metadata: Any = saved_metadata_pb2.SavedMetadata()
    metadata.ParseFromString(path.read_bytes())
    node = rng.choice(metadata.nodes)
    try:
        config = changed_value(json.loads(node.metadata), rng)
        node.metadata = json.dumps(config)[:100_000]
    except ValueError:
        node.metadata = "{"
    path.write_bytes(metadata.SerializeToString())
