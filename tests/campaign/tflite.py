"""Hostile `.tflite` files: changed by structure, in their bytes, or with archives behind.

An accepted file has a certificate in which no code differs from the simulation.
"""

import pathlib
import random
import warnings
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.targets.operator_constraints import TARGETS
from tests.campaign.cases import Case
from tests.campaign.mutation import HOSTILE_TEXTS, archive, damaged, hostile, hostile_archive
from tests.campaign.originals import original, tflite_files
from tests.export.damage import changed, shared_entries, shared_tables

_NAME = "model.tflite"
_HOSTILE_INTEGERS = (0, 1, -1, 2, 3, 4, 7, 127, 128, 255, 256, 1000, 2**20, 2**31 - 1, -(2**31))
_HOSTILE_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-38, 1e-10, 1.0, 0.5, 3e38, np.nan, np.inf, -np.inf)
_FAR = 200
_WRITTEN = ("proof/certificate.*", "proof/operators.*")


def make_tflite(rng: random.Random) -> Case:
    """A hostile file, and a command that reads it."""
    content = tflite_files()[rng.choice(sorted(tflite_files()))]
    changes = (_restructured, damaged, _with_archive, _with_metadata, _of_shared_tables)
    (change,) = rng.choices(changes, (62, 20, 8, 7, 3))
    pathlib.Path(_NAME).write_bytes(change(content, rng))
    return _command(rng)


def _command(rng: random.Random) -> Case:
    kind = rng.choices(("verify", "target", "evaluate", "kit", "check"), (78, 6, 2, 7, 7))[0]
    runtimes = ["--runtime", "xnnpack", "--runtime", rng.choice(("builtin", "arm_xnnpack"))]
    words, outputs = ["verify", _NAME, "--num_images", "2", *runtimes], []
    if kind == "evaluate":
        np.save("images.npy", np.zeros((2, 6, 6, 3), np.uint8))
        words = ["evaluate", _NAME, "--images", "images.npy"]
    elif kind == "check":
        pathlib.Path("proof.json").write_bytes(original("proof/certificate.json").read_bytes())
        words += ["--certificate", "proof.json"]
    else:
        outputs = [*_WRITTEN]
        words += ["--out", "proof"]
    if kind == "target":
        words += ["--target", rng.choice(sorted(TARGETS))]
    if kind == "kit":
        words += ["--kit", "kit.zip"]
        outputs.append("kit.zip")
    return Case(words, [_NAME, "images.npy"], outputs, _wrong)


def _wrong(status: int) -> str | None:
    """Says what is wrong with a verification that came to an end."""
    if status == 1 and not pathlib.Path("proof.json").exists():
        return "codes differ from the simulation"
    path = pathlib.Path("proof/certificate.json")
    if path.is_file() and read_certificate(path).codes_differing:
        return "the certificate counts differing codes, and the exit status is 0"
    return None


def _restructured(content: bytes, rng: random.Random) -> bytes:
    """The file with one to four of its fields changed; those that fit in no flatbuffer are not."""
    for _ in range(20):
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return changed(content, lambda model, graph: _change_some(model, graph, rng))
        except Exception:  # the builder refuses in many ways what does not fit
            continue
    return content


def _change_some(model: Any, graph: Any, rng: random.Random) -> None:
    """Changes fields, operators, what they read, and what there is once."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        operator, other = rng.choice(graph.operators), rng.choice(graph.operators)
        kinds = ("wires", "options", "code", "twice", "tensor", "operator", "buffer", "model")
        (kind,) = rng.choices(kinds, (12, 8, 8, 4, 23, 20, 10, 15))
        if kind == "wires":  # a loop, a tensor that is made twice, a constant
            name = rng.choice(("inputs", "outputs"))
            places = list(getattr(operator, name))
            tensor = rng.choice((*range(len(graph.tensors)), -1, len(graph.tensors)))
            if places and rng.random() < 0.7:
                places[rng.randrange(len(places))] = tensor
            else:
                places = rng.choice(([], [*places, tensor], places[:-1], places * 2))
            setattr(operator, name, places)
        elif kind == "options":
            operator.builtinOptions = other.builtinOptions
            operator.builtinOptionsType = other.builtinOptionsType
        elif kind == "code":
            code = rng.choice(model.operatorCodes)
            code.builtinCode = rng.randrange(_FAR)
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        elif kind == "twice":
            tables = rng.choice((model.subgraphs, model.buffers))
            tables.append(rng.choice(tables))
        else:
            tables = {"tensor": graph.tensors, "operator": [operator], "buffer": model.buffers}
            _change_field(rng.choice(tables.get(kind, [model])), rng)


def _change_field(thing: Any, rng: random.Random) -> None:
    """Changes a field of a table, or of one that it holds."""
    names = sorted(vars(thing))
    name = rng.choice(names)
    value = getattr(thing, name)
    if hasattr(value, "Pack") and rng.random() < 0.85:
        _change_field(value, rng)
    elif isinstance(value, list) and value and hasattr(value[0], "Pack") and rng.random() < 0.7:
        _change_field(rng.choice(value), rng)
    else:
        setattr(thing, name, _other_value(value, rng))


def _other_value(value: Any, rng: random.Random) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return _other_vector(value, rng)
    if isinstance(value, bytes | str):
        return rng.choice(HOSTILE_TEXTS).encode("utf-8", "replace")
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return rng.choice(_HOSTILE_FLOATS)
    if isinstance(value, int):
        return rng.choice((*_HOSTILE_INTEGERS, value + 1, value - 1, -value, *range(20)))
    # A missing field may be a number, a vector or a table; the builder takes one of them.
    return rng.choice((None, [1, 2], [0], np.array([np.nan], np.float32), b"x", 1))


def _other_vector(value: Any, rng: random.Random) -> Any:
    if rng.random() < 0.3 or not len(value):
        whole = list(value)
        return rng.choice((None, [], whole[:-1], whole + whole, whole[::-1], whole * 1000))
    is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    found = np.array(value) if not isinstance(value, list) else list(value)
    for _ in range(rng.choice((1, 1, len(found)))):
        choices = _HOSTILE_FLOATS if is_float else (*_HOSTILE_INTEGERS, *range(8))
        other = rng.choice(choices)
        if isinstance(found, np.ndarray) and not is_float:
            other = np.array(other).astype(found.dtype)
        found[rng.randrange(len(found))] = other
    return found


def _with_archive(content: bytes, rng: random.Random) -> bytes:
    behind = hostile_archive(archive([("labels.txt", b"cat\ndog\ncow\n")]), rng)
    return content + b"\0" * rng.choice((0, 0, 1, 4)) + behind


def _with_metadata(content: bytes, rng: random.Random) -> bytes:
    """Another entry of the metadata: JSON, a flatbuffer of its own, or anything."""

    def change(model: Any, graph: Any) -> None:
        if not model.metadata:
            entry, names = tfl.MetadataT(), (b"sat_tf", b"TFLITE_METADATA")
            entry.name, entry.buffer = rng.choice(names), len(model.buffers)
            model.metadata = [entry]
            model.buffers.append(tfl.BufferT())
            model.buffers[-1].data = b"{}"
        entry = rng.choice(model.metadata)
        buffer = model.buffers[entry.buffer]
        data = bytes(buffer.data)
        name = "metadata.json" if data[:1] == b"{" else "anything"
        buffer.data = np.frombuffer(hostile(name, data, rng), np.uint8)
        if rng.random() < 0.2:
            entry.buffer = rng.choice((0, 1, 2**31, len(model.buffers)))

    return changed(content, change)


def _of_shared_tables(_: bytes, rng: random.Random) -> bytes:
    """Few bytes that unpack to many: vectors whose entries are all the same table."""
    count = rng.choice((10, 280, 5000, 50_000))
    if rng.random() < 0.5:
        sizes = [1] * rng.choice((1, 100, 10_000))
        name = b"x" * rng.choice((1, 50_000))
        return shared_tables(count, rng.choice((1, count)), name=name, sizes=sizes)
    return shared_entries(count, rng.choice((1, count)), "x" * rng.choice((1, 80_000)))
