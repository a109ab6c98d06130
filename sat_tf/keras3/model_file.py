"""What a file says of the Keras that wrote it, read without TensorFlow and without Keras."""

import dataclasses
import json
import os
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from sat_tf.wholefile import expect_path

_HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A `.keras` or HDF5 file.

    Attributes:
        path: where it is.
        version: of the Keras that wrote it, such as "3.15.1"; "" where the file does not say.
        config: of the model, as Keras wrote it.
    """

    path: pathlib.Path
    version: str
    config: dict[str, Any]

    @property
    def is_keras3(self) -> bool:
        """Whether Keras 3 or a later one wrote it."""
        first = self.version.split(".")[0]
        return first.isdigit() and int(first) >= 3

    def parts(self) -> Iterator["Part"]:
        """The model and all its layers, those of nested models included."""
        yield from _parts(self.config)


class Part(NamedTuple):
    """A model, layer or operation as a file names it."""

    name: str
    class_name: str
    module: str
    registered_name: str | None


def read_model_file(path: str | os.PathLike[str]) -> ModelFile | None:
    """Reads the head of a `.keras` or HDF5 file; None where `path` is none of a whole model.

    Args:
        path: any path, also of a folder or of a file in another format.
    """
    path = expect_path(path)
    try:
        version, config = (_read_hdf5 if _is_hdf5(path) else _read_archive)(path)
    except (OSError, KeyError, ValueError, AttributeError, zipfile.BadZipFile):
        return None
    return ModelFile(path, version, config) if isinstance(config, dict) else None


def _read_archive(path: pathlib.Path) -> tuple[str, Any]:
    with zipfile.ZipFile(path) as archive:
        metadata = json.loads(archive.read("metadata.json"))
        return str(metadata.get("keras_version", "")), json.loads(archive.read("config.json"))


def _is_hdf5(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_HDF5)) == _HDF5


def _read_hdf5(path: pathlib.Path) -> tuple[str, Any]:
    import h5py

    with h5py.File(path) as file:
        return str(file.attrs.get("keras_version", "")), json.loads(file.attrs["model_config"])


def is_keras3_file(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a `.keras` or HDF5 file that Keras 3 wrote.

    >>> is_keras3_file("/nowhere/model.keras")
    False
    """
    found = read_model_file(path)
    return found is not None and found.is_keras3


def _parts(config: Any) -> Iterator[Part]:
    if isinstance(config, list):
        for part in config:
            yield from _parts(part)
    if not isinstance(config, dict):
        return
    inner, kind = config.get("config"), config.get("class_name")
    if isinstance(kind, str) and isinstance(inner, dict) and "name" in inner:
        module = str(config.get("module") or "")
        yield Part(str(inner["name"]), kind, module, config.get("registered_name"))
    for part in config.values():
        yield from _parts(part)
