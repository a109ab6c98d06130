"""The structure of a TFLite file, the differences of two, and the size of one."""

import dataclasses
import gzip
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sat_tf.export.tflite.contents import OPERATORS, TYPES, unpacked

# Under this name a file says how it was made.
SETTINGS_NAME = "sat_tf"

_PIECE = 2**24


def gzip_size(content: bytes) -> int:
    """Bytes after gzip as it compresses by itself (level 6), with no time stamp.

    Large files are compressed in pieces, as many at a time as there are processors. The pieces
    together are a gzip file too, larger by some bytes in a million.
    """
    pieces = (content[start : start + _PIECE] for start in range(0, len(content), _PIECE))
    with ThreadPoolExecutor() as pool:
        return sum(pool.map(lambda piece: len(gzip.compress(piece, 6, mtime=0)), pieces))


_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class TensorRecord:
    """A tensor of a file: all that decides what is computed with it."""

    name: str
    type: str
    shape: tuple[int, ...]
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    data: str


@dataclasses.dataclass(frozen=True)
class OperatorRecord:
    """An operator of a file; `settings` are its builtin options."""

    name: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    settings: str

    @property
    def is_float(self) -> bool:
        """Whether it reads or makes a float tensor."""
        return any(tensor.type == "FLOAT32" for tensor in self.inputs + self.outputs)


@dataclasses.dataclass(frozen=True)
class Structure:
    """The operators of a file, and its interface.

    Attributes:
        operators: in order.
        interface: its inputs and outputs, as tensors and in its signatures.
        metadata: its `sat_tf` metadata; None where it has none.
    """

    operators: tuple[OperatorRecord, ...]
    interface: str
    metadata: dict[str, Any] | None

    def operator_counts(self) -> dict[str, int]:
        """How many operators of each kind there are."""
        names = [operator.name for operator in self.operators]
        return {name: names.count(name) for name in sorted(set(names))}

    def float_operators(self) -> list[str]:
        """The operators that read or make float tensors, each with the tensor it makes."""
        return [f"{op.name} {op.outputs[0].name}" for op in self.operators if op.is_float]


def read_structure(content: bytes, name: str) -> Structure:
    """Reads a TFLite file.

    Args:
        content: the file.
        name: what errors call it.

    Raises:
        ValueError: it is not a TFLite file.
    """
    with unpacked(content, name) as model:
        subgraph = model.subgraphs[0]
        # Once each: several tensors may share a buffer.
        hashes = [
            "" if buffer.data is None else hashlib.sha256(bytes(buffer.data)).hexdigest()
            for buffer in model.buffers
        ]
        tensors = [_tensor_record(tensor, hashes) for tensor in subgraph.tensors]
        operators = tuple(_operator_record(model, op, tensors) for op in subgraph.operators)
        return Structure(operators, _interface(model), read_settings(model))


def differences(expected: Structure, found: Structure) -> list[str]:
    """The first few differences of `found` from `expected`."""
    counts = expected.operator_counts(), found.operator_counts()
    if counts[0] != counts[1]:
        return [f"its operators are {_counted(counts[1])}, expected {_counted(counts[0])}"]
    lines = []
    if expected.interface != found.interface:
        lines.append(f"its interface is {found.interface}, expected {expected.interface}")
    for wanted, got in zip(expected.operators, found.operators, strict=True):
        if wanted != got:
            lines.append(_operator_difference(wanted, got))
    hidden = len(lines) - _SHOWN
    return lines[:_SHOWN] + ([f"and {hidden} more operators differ"] if hidden > 0 else [])


def _operator_difference(wanted: OperatorRecord, got: OperatorRecord) -> str:
    where = f"{wanted.name} {wanted.outputs[0].name}"
    if (wanted.name, wanted.settings) != (got.name, got.settings):
        return f"{where}: {got.name} {got.settings}, expected {wanted.name} {wanted.settings}"
    pairs = zip(wanted.inputs + wanted.outputs, got.inputs + got.outputs, strict=False)
    for expected, found in pairs:
        for field in dataclasses.fields(TensorRecord):
            values = getattr(expected, field.name), getattr(found, field.name)
            if values[0] != values[1]:
                return f"{where}: the {field.name} of {expected.name} is not the model's"
    return f"{where}: reads other tensors"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _tensor_record(tensor: Any, hashes: list[str]) -> TensorRecord:
    quantization = tensor.quantization
    scale = quantization.scale if quantization is not None else None
    scales = () if scale is None else tuple(np.asarray(scale).tolist())
    return TensorRecord(
        name=tensor.name.decode(),
        type=TYPES[tensor.type],
        shape=tuple(int(size) for size in tensor.shape) if tensor.shape is not None else (),
        scales=scales,
        zero_points=tuple(np.asarray(quantization.zeroPoint).tolist()) if scales else (),
        axis=quantization.quantizedDimension if scales else 0,
        data=hashes[tensor.buffer],
    )


def _operator_record(model: Any, operator: Any, tensors: list[TensorRecord]) -> OperatorRecord:
    code = model.operatorCodes[operator.opcodeIndex]
    options = operator.builtinOptions
    settings = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in (vars(options) if options is not None else {}).items()
    }
    return OperatorRecord(
        name=OPERATORS[max(code.builtinCode, code.deprecatedBuiltinCode)],
        inputs=tuple(tensors[index] for index in operator.inputs if index >= 0),  # -1: no bias
        outputs=tuple(tensors[index] for index in operator.outputs),
        settings=json.dumps(settings, sort_keys=True, default=str),
    )


def _interface(model: Any) -> str:
    subgraph = model.subgraphs[0]
    tensors = {
        role: [subgraph.tensors[index].name.decode() for index in getattr(subgraph, role)]
        for role in ("inputs", "outputs")
    }
    signatures = {
        signature.signatureKey.decode(): {
            role: {
                entry.name.decode(): int(entry.tensorIndex) for entry in getattr(signature, role)
            }
            for role in ("inputs", "outputs")
        }
        for signature in model.signatureDefs or []
    }
    return json.dumps({**tensors, "signatures": signatures})


def read_settings(model: Any) -> dict[str, Any] | None:
    """The settings in an unpacked file; None without any."""
    for entry in model.metadata or []:
        if entry.name.decode() == SETTINGS_NAME:
            return dict(json.loads(bytes(model.buffers[entry.buffer].data)))
    return None
