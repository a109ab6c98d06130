"""The head of a model file: which Keras wrote it, and its configuration, read without Keras.

Configurations of unusual size are refused: a few words can describe a giant model.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from sat_tf.files import expect_honest, expect_path, is_archive, opened_archive, read_member
from sat_tf.messages import reason_of

_PICKLED = "model.weights.npz"
_HDF5 = b"\x89HDF\r\n\x1a\n"
# Configurations with thousands of layers have one megabyte.
_LARGEST_CONFIG_BYTES = 2**25
_DEEPEST = 200
# DEFLATE shrinks zeros to a thousandth at most; small files are always read.
_LARGEST_RATIO = 1100
_ALWAYS_READ_BYTES = 2**24


class OtherFileError(ValueError):
    """A file of another kind than a Keras model; the message names the kind, and the fix."""


# Users also give files of other kinds; the end of the name says which.
_OTHERS = {
    (".tflite",): "a TFLite file, which is for sat-tf verify and sat-tf evaluate",
    (".yaml", ".yml"): "a YAML file, which is for --config or --policy",
    (".onnx", ".pt", ".pth", ".safetensors", ".ckpt"): "a file of another library",
    (".weights.h5",): "weights without their model; load them with model.load_weights(path)",
}
_TFLITE = b"TFL3"


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A `.keras` or HDF5 file."""

    path: pathlib.Path  # The path of the file.
    suffix: str  # `.keras` or `.h5`, by the contents of the file, whatever its name says.
    version: str  # The version of Keras that wrote it, such as "3.15.1"; "" if unknown.
    config: dict[str, Any]  # The model's configuration, as Keras wrote it.
    weight_bytes: int  # The bytes of all its arrays in memory.

    @property
    def is_keras3(self) -> bool:
        """Whether Keras 3 or a later version wrote the file."""
        major = self.version.split(".")[0]
        return major.isdigit() and int(major) >= 3


class Entry(NamedTuple):
    """An object that a configuration names: a model, layer, operation, function or value."""

    name: str  # The name of the layer that is or contains it; "" above all layers.
    class_name: str  # The name of its class in the file.
    module: str  # The module of its class in the file; "" where the file names none.
    registered_name: str | None  # The name that Keras registers; None where the file has none.
    config: Any  # Its own configuration; None where it has none.


def open_model_file(path: str | os.PathLike[str]) -> ModelFile:
    """Reads the head of a `.keras` or HDF5 file."""
    path = expect_path(path)
    if not path.is_file():  # a pipe would wait for its writer
        raise ValueError("received a path without a readable file, expected a .keras or HDF5 file")
    head = _head(path)
    is_hdf5 = head == _HDF5
    try:
        if not is_hdf5 and not is_archive(path):
            raise ValueError(
                "received a file that is neither a .keras archive nor HDF5, or a damaged one"
            )
        config, version, weight_bytes = _contents(path, is_hdf5)
        if not isinstance(config, dict):
            raise ValueError("received a file without the configuration of a model")
        expect_usual_size(config)
    except ValueError as error:
        # A file is recognized by its content, otherwise by its name.
        name = ".tflite" if head[4:] == _TFLITE else path.name.lower()
        for ends, description in _OTHERS.items():
            if name.endswith(ends):
                raise OtherFileError(
                    f"received {description}; expected a Keras model, saved with "
                    "model.save('model.keras')"
                ) from error
        raise
    return ModelFile(path, ".h5" if is_hdf5 else ".keras", version, config, weight_bytes)


def _head(path: pathlib.Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_HDF5))


def _contents(path: pathlib.Path, is_hdf5: bool) -> tuple[Any, str, int]:
    """The configuration in a file, the version of Keras that wrote it, and the bytes of arrays."""
    import h5py

    try:
        weight_bytes = array_bytes(path)
        if is_hdf5:
            with h5py.File(path) as file:
                stored = file.attrs["model_config"], file.attrs.get("keras_version", "")
            text, version = (attr.decode() if isinstance(attr, bytes) else attr for attr in stored)
        else:
            with opened_archive(path) as archive:
                text, metadata = (
                    read_member(archive, name, _LARGEST_CONFIG_BYTES)
                    for name in ("config.json", "metadata.json")
                )
            if text is None:
                raise ValueError("received a zip archive without the config.json of a model")
            version = json.loads(metadata or b"{}").get("keras_version", "")
        return json.loads(text), str(version), weight_bytes
    except RecursionError as error:
        raise ValueError("received a configuration that is nested too deeply") from error
    except MemoryError as error:
        raise ValueError("received a file that takes more memory than is available") from error
    except Exception as error:  # h5py, zipfile and zlib raise many types on damaged files
        raise ValueError(
            f"received a file that is damaged or holds no whole model ({reason_of(error)})"
        ) from error


def read_model_file(path: str | os.PathLike[str]) -> ModelFile | None:
    """Reads the head of a `.keras` or HDF5 file; None where `path` holds no whole model."""
    try:
        return open_model_file(path)
    except ValueError:
        return None


def array_bytes(path: pathlib.Path) -> int:
    """Bytes in memory of all arrays in a file; ValueError where these are elsewhere, or giants."""
    import h5py

    total = 0
    if _head(path) == _HDF5:
        with h5py.File(path) as file:
            total = _array_bytes(file)
    else:
        with opened_archive(path) as archive:
            entries = archive.infolist()
            # Keras 2 and 3 would read this file in place of HDF5, and releases of both run the
            # code that is pickled in it.
            if _PICKLED in archive.namelist():
                raise ValueError(f"its weights are in {_PICKLED}, expected them in HDF5")
            _expect_size(sum(entry.file_size for entry in entries), path)
            expect_honest(archive)
            for entry in entries:
                if entry.filename.endswith(".h5"):
                    with archive.open(entry) as opened, h5py.File(opened) as file:
                        total += _array_bytes(file)
    _expect_size(total, path)
    return total


def _array_bytes(group: Any) -> int:
    """The bytes of a group's arrays; refuses links and external arrays, which show other files."""
    import h5py

    total, waiting, seen = 0, [group], set()
    while waiting:
        group = waiting.pop()
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"its {name} is a link, expected the array itself")
            member = group[name]
            place = h5py.h5o.get_info(member.id).addr
            if place in seen:
                continue
            seen.add(place)
            if isinstance(member, h5py.Group):
                waiting.append(member)
            elif isinstance(member, h5py.Dataset):
                if member.external or member.is_virtual:
                    raise ValueError(f"its data set {name!r} is kept in another file")
                total += member.nbytes
    return total


def _expect_size(size: int, path: pathlib.Path) -> None:
    on_disk = path.stat().st_size
    if size > max(_LARGEST_RATIO * on_disk, _ALWAYS_READ_BYTES):
        raise ValueError(f"it has {on_disk:,} bytes, and would take {size:,} in memory")


def is_keras3_file(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a `.keras` or HDF5 file that Keras 3 wrote."""
    file = read_model_file(path)
    return file is not None and file.is_keras3


def parts(config: Any) -> Iterator[Entry]:
    """Yields every object that a configuration names, at any depth, in the order of the file."""
    waiting = [(config, "", 0)]
    while waiting:
        value, name, depth = waiting.pop()
        if depth > _DEEPEST:
            raise ValueError(f"received a configuration nested deeper than {_DEEPEST} levels")
        values: Any = ()
        if isinstance(value, dict):
            settings = value.get("config")
            if isinstance(settings, dict) and isinstance(settings.get("name"), str):
                name = settings["name"]
            if "class_name" in value:
                class_name, registered = value["class_name"], value.get("registered_name")
                if not isinstance(registered, str | None):
                    raise ValueError(
                        f"received {name or class_name} with registered_name={registered!r}, "
                        "expected text or nothing"
                    )
                yield Entry(
                    name, str(class_name), str(value.get("module") or ""), registered, settings
                )
            values = value.values()
        elif isinstance(value, list):
            values = value
        waiting.extend((inner, name, depth + 1) for inner in reversed(list(values)))


def values_in(config: Any) -> Iterator[Any]:
    """Yields every value of a configuration, at any depth, itself included."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        yield value
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


# These are ten times the numbers of the largest published networks.
_MOST_LAYERS = 10_000
_MOST_TENSORS = 10_000
# Functions of TensorFlow and operations of Keras 3 that make as many tensors as they are told.
_SPLITTING = {"split", "array_split", "hsplit", "vsplit", "unstack", "dynamic_partition"}
# These settings decide how many tensors a layer makes of one, where no count is given.
_SIZES = {"batch_input_shape", "batch_shape", "shape", "target_shape", "build_input_shape"}
_SIZES |= {"n", "units", "filters", "size", "padding", "output_dim", "input_length"}


def expect_usual_size(config: Any) -> None:
    """Refuses a model with very many layers, or with a layer that makes very many tensors."""
    layers, largest, unrolled = 0, 0, ""
    makers = [(0, "")]
    for value in values_in(config):
        if not isinstance(value, dict):
            continue
        if isinstance(value.get("layers"), list):
            layers += len(value["layers"])
        largest = max([largest, *(_largest(value[name]) for name in _SIZES & value.keys())])
        settings = value.get("config")
        if not isinstance(settings, dict):
            continue
        name = str(value.get("name") or settings.get("name") or value.get("class_name"))
        operation = str(settings.get("function", value.get("class_name"))).split(".")[-1].lower()
        if operation in _SPLITTING:
            makers.append((max(_largest(settings), _largest(value.get("inbound_nodes"))), name))
        if operation == "unstack" or settings.get("unroll") is True:
            unrolled = name
    if layers > _MOST_LAYERS:
        raise ValueError(f"received {layers:,} layers, expected at most {_MOST_LAYERS:,}")
    count, name = max(*makers, (largest, unrolled) if unrolled else (0, ""))
    if count > _MOST_TENSORS:
        raise ValueError(
            f"{name}: received a layer that may make {count:,} tensors of one, expected at most "
            f"{_MOST_TENSORS:,}"
        )


def _largest(value: Any) -> int:
    """The largest integer in a value, at any depth; 0 without a positive one."""
    return max([0, *(number for number in values_in(value) if isinstance(number, int))])
