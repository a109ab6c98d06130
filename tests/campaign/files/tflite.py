"""Hostile `.tflite` files: changed by structure, in their bytes, with archives behind, or made up.

An accepted file has a certificate in which no code differs from the simulation.
"""

import json
import pathlib
import random
import warnings
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.certificate.certificate import read_certificate
from sat_tf.export.targets.table import TARGETS
from tests.campaign.cases import Case
from tests.campaign.mutation import HOSTILE_TEXTS, changed_value, damaged, hostile_archive
from tests.campaign.originals import original, tflite_files
from tests.export.damage import changed, shared_entries, shared_tables

_NAME = "model.tflite"
_HOSTILE_INTEGERS = (0, 1, -1, 2, 3, 4, 7, 127, 128, 255, 256, 1000, 2**20, 2**31 - 1, -(2**31))
_HOSTILE_FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-38, 1e-10, 1.0, 0.5, 3e38, np.nan, np.inf, -np.inf)
_LABELS = {"labels.txt": b"cat\ndog\ncow\n"}
_FAR = 200
# A file is written in one of these ways; numbers are shares in percent.
_WAYS = {
    "structure": 55,
    "damaged": 20,
    "archive": 8,
    "metadata": 7,
    "made up": 7,
    "shared": 3,
}


def make(rng: random.Random) -> Case:
    """A hostile file, and a command that reads it."""
    (way,) = rng.choices(list(_WAYS), list(_WAYS.values()))
    source = rng.choice(sorted(tflite_files()))
    content = tflite_files()[source]
    if way == "structure":
        found = _restructured(content, rng)
    elif way == "damaged":
        found = damaged(content, rng)
    elif way == "archive":
        archive = hostile_archive(_LABELS, rng)
        found = content + b"\0" * rng.choice((0, 0, 1, 4)) + archive
    elif way == "metadata":
        found = changed(content, lambda model, graph: _metadata(model, rng))
    elif way == "shared":
        found = _shared(rng)
    else:
        found = _made_up(rng)
    pathlib.Path(_NAME).write_bytes(found)
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
        outputs = [f"proof/{name}" for name in _WRITTEN]
        words += ["--out", "proof"]
    if kind == "target":
        words += ["--target", rng.choice(sorted(TARGETS))]
    if kind == "kit":
        words += ["--kit", "kit.zip"]
        outputs.append("kit.zip")
    return Case(words, [_NAME, "images.npy"], outputs, _wrong)


_WRITTEN = (
    *("certificate.json", "certificate.html", "overlay.json"),
    *("operators.csv", "operators.html"),
)


def _wrong(status: int) -> str | None:
    """Says what is wrong with a verification that came to an end."""
    if status == 1 and not pathlib.Path("proof.json").exists():
        return "codes differ from the simulation"
    path = pathlib.Path("proof/certificate.json")
    if path.is_file() and read_certificate(path).codes_differing:
        return "the certificate counts differing codes, and the exit status is 0"
    return None


# -- by structure ----------------------------------------------------------------------------------


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
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.random()
        if kind < 0.12:
            _rewire(graph, rng)
        elif kind < 0.2:
            operator = rng.choice(graph.operators)
            operator.builtinOptions, operator.builtinOptionsType = rng.choice(
                (
                    (None, 0),
                    *((one.builtinOptions, one.builtinOptionsType) for one in graph.operators),
                )
            )
        elif kind < 0.28:
            code = rng.choice(model.operatorCodes)
            code.builtinCode = rng.randrange(_FAR)
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        elif kind < 0.32:
            rng.choice((model.subgraphs, model.buffers, model.operatorCodes)).append(
                rng.choice((graph, model.buffers[0], model.operatorCodes[0]))
            )
        elif kind < 0.55:
            _change_field(rng.choice(graph.tensors), rng)
        elif kind < 0.75:
            _change_field(rng.choice(graph.operators), rng)
        elif kind < 0.85:
            _change_field(rng.choice(model.buffers), rng)
        else:
            _change_field(model, rng)


def _rewire(graph: Any, rng: random.Random) -> None:
    """Makes an operator read or make other tensors: a loop, one that is made twice, a constant."""
    operator = rng.choice(graph.operators)
    name = rng.choice(("inputs", "outputs"))
    places = list(getattr(operator, name))
    other = rng.choice((*range(len(graph.tensors)), -1, len(graph.tensors)))
    if places and rng.random() < 0.7:
        places[rng.randrange(len(places))] = other
    else:
        places = rng.choice(([], [*places, other], places[:-1], places * 2))
    setattr(operator, name, places)


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


def _metadata(model: Any, rng: random.Random) -> None:
    """Changes an entry of the metadata: JSON, a flatbuffer of its own, or anything."""
    if not model.metadata:
        entry = tfl.MetadataT()
        entry.name, entry.buffer = rng.choice((b"sat_tf", b"TFLITE_METADATA")), len(model.buffers)
        model.metadata = [entry]
        model.buffers.append(tfl.BufferT())
        model.buffers[-1].data = b"{}"
    entry = rng.choice(model.metadata)
    buffer = model.buffers[entry.buffer]
    content = bytes(buffer.data)
    if content[:1] == b"{":
        found = changed_value(json.loads(content), rng)
        text = json.dumps(found, allow_nan=True).encode("utf-8", "replace")
        content = rng.choice((text, b"[" * 5000, b'{"float_head": ' + b"[" * 90_000, text[:-1]))
    else:
        content = damaged(content, rng)
    buffer.data = np.frombuffer(content, np.uint8)
    if rng.random() < 0.2:
        entry.buffer = rng.choice((0, 1, 2**31, len(model.buffers)))


def _shared(rng: random.Random) -> bytes:
    """Few bytes that unpack to many: vectors whose entries are all the same table."""
    count = rng.choice((10, 280, 5000, 50_000))
    if rng.random() < 0.5:
        sizes = [1] * rng.choice((1, 100, 10_000))
        name = b"x" * rng.choice((1, 50_000))
        return shared_tables(count, rng.choice((1, count)), name=name, sizes=sizes)
    return shared_entries(count, rng.choice((1, count)), "x" * rng.choice((1, 80_000)))


# -- made up ---------------------------------------------------------------------------------------

_KINDS = (
    *("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "ADD", "MUL", "SUB", "MEAN", "SOFTMAX"),
    *("RESHAPE", "TRANSPOSE", "PAD", "CONCATENATION", "SPLIT", "STRIDED_SLICE", "QUANTIZE"),
    *(
        "DEQUANTIZE",
        "AVERAGE_POOL_2D",
        "MAX_POOL_2D",
        "LOGISTIC",
        "TANH",
        "RESIZE_BILINEAR",
        "WHILE",
    ),
    *("IF", "CUSTOM", "GATHER", "TRANSPOSE_CONV", "BATCH_MATMUL", "CALL_ONCE"),
    *("VAR_HANDLE",),
    *("PACK", "UNPACK", "SQUEEZE", "EXPAND_DIMS", "LEAKY_RELU", "PRELU", "HARD_SWISH", "SHAPE"),
)
_SHAPES = ((1, 6, 6, 3), (1, 4), (4, 3, 3, 3), (4,), (1,), (), (1, 0, 6, 3), (1, 6, 6, 1), (2,))


def _made_up(rng: random.Random) -> bytes:
    """A file of tensors and operators that were drawn, and that mostly do not fit each other."""
    model, graph = tfl.ModelT(), tfl.SubGraphT()
    model.version, model.subgraphs, model.description = 3, [graph], b"made up"
    model.buffers, model.operatorCodes, graph.operators = [tfl.BufferT()], [], []
    graph.tensors = [_drawn_tensor(model, number, rng) for number in range(rng.randint(2, 12))]
    count = len(graph.tensors)
    for _ in range(rng.randint(0, 5)):
        code = tfl.OperatorCodeT()
        code.builtinCode = getattr(tfl.BuiltinOperator, rng.choice(_KINDS))
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), rng.choice((1, 1, 5))
        operator = tfl.OperatorT()
        operator.opcodeIndex = len(model.operatorCodes)
        operator.inputs = [rng.randrange(-1, count) for _ in range(rng.randint(0, 4))]
        operator.outputs = [rng.randrange(count) for _ in range(rng.randint(0, 2))]
        model.operatorCodes.append(code)
        graph.operators.append(operator)
    graph.inputs = [0] if rng.random() < 0.9 else []
    graph.outputs = [count - 1] if rng.random() < 0.9 else []
    if rng.random() < 0.3:
        entry = tfl.MetadataT()
        entry.name, entry.buffer = b"sat_tf", len(model.buffers)
        model.metadata = [entry]
        model.buffers.append(tfl.BufferT())
        model.buffers[-1].data = np.frombuffer(b'{"float_head": false}', np.uint8)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _drawn_tensor(model: Any, number: int, rng: random.Random) -> Any:
    tensor = tfl.TensorT()
    tensor.name = rng.choice((f"tensor {number}", *HOSTILE_TEXTS)).encode("utf-8", "replace")
    tensor.shape = list(rng.choice(_SHAPES))
    tensor.type = rng.choice((tfl.TensorType.INT8,) * 4 + tuple(range(18)))
    if rng.random() < 0.7:
        tensor.quantization = tfl.QuantizationParametersT()
        tensor.quantization.scale = np.array([rng.choice((0.5, 0.1, *_HOSTILE_FLOATS))], np.float32)
        tensor.quantization.zeroPoint = np.array([rng.choice((0, 0, -128, 2**40))], np.int64)
    if rng.random() < 0.4:
        buffer = tfl.BufferT()
        buffer.data = np.frombuffer(rng.randbytes(rng.choice((0, 4, 36, 108))), np.uint8)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    return tensor
