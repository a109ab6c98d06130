"""How many bits of the file each kernel takes, and the settings of a file."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.linear import Linear, LinearKind
from sat_tf.export.tflite.tensors import Storage
from sat_tf.messages import did_you_mean, list_problems
from sat_tf.version import __version__

# How each choice stores a kernel: the first type that holds its codes, smallest first, else int8.
# LiteRT has no convolutions with INT2 kernels.
PACKINGS: Mapping[str, Mapping[LinearKind, tuple[Storage, ...]]] = {
    "none": {},
    "int4": {
        LinearKind.CONVOLUTION: (Storage.INT4,),
        LinearKind.DEPTHWISE: (Storage.INT4,),
        LinearKind.FULLY_CONNECTED: (Storage.INT2, Storage.INT4),
    },
}
_BITS_PER_BYTE = 8


def packing_problem(pack: object) -> str | None:
    """Why `pack` is not the name of a packing, with a suggestion; None where it is."""
    if isinstance(pack, str) and pack in PACKINGS:
        return None
    names = " or ".join(repr(name) for name in PACKINGS)
    return f"pack: received {pack!r}, expected {names}. {did_you_mean(str(pack), PACKINGS)}"


def pack_graph(graph: Graph, pack: str) -> Graph:
    """Decides how the file stores each kernel; for the codes as they are trained.

    Args:
        graph: a traced graph, before its codes are multiplied.
        pack: a name of `PACKINGS`.

    Returns:
        The graph with the storage of each kernel, and with warnings of what it costs.

    Raises:
        ValueError: no such packing, or no kernel fits into fewer bits than 8; with the fix.
    """
    problem = packing_problem(pack)
    if problem:
        raise ValueError(problem)
    choices = PACKINGS[pack]
    if not choices:
        return graph
    packed: list[Linear] = []
    left: list[str] = []
    operations = []
    for operation in graph.operations:
        if isinstance(operation, Linear) and _is_trained(operation):
            storage, reasons = _storage(operation, _choices(graph, operation, choices))
            if storage is Storage.INT8:
                left.append(f"{operation.output} ({reasons})")
            else:
                operation = dataclasses.replace(operation, storage=storage)
                packed.append(operation)
        operations.append(operation)
    if not packed:
        problems = [f"{kernel}: stays int8" for kernel in left]
        fix = "with weight_bits=3 or less, or with weight_bits=4 and weight_grid='narrow'"
        if all(op.real for op in graph.operations if isinstance(op, Linear)):
            fix = "with activation_bits: kernels of float activations are stored in 8 bits"
        problems.append(
            "received no kernel that fits into 4 bits, expected at least one; use pack='none', or "
            f"requantize {fix}."
        )
        raise ValueError(list_problems(f"model {graph.name!r}, pack={pack!r}", problems))
    warnings = (*graph.warnings, *_warnings(pack, packed, left))
    return dataclasses.replace(graph, operations=tuple(operations), warnings=warnings)


def _is_trained(linear: Linear) -> bool:
    """Whether its kernel holds weights; those the export adds for itself have one code a channel.

    They are tiny, and multiplied by 127 they round best.
    """
    return bool(np.any(np.ptp(linear.kernel, axis=linear.inner_axes) > 0))


def _choices(
    graph: Graph, linear: Linear, choices: Mapping[LinearKind, tuple[Storage, ...]]
) -> tuple[Storage, ...]:
    """How a kernel may be stored, as far as it depends on the operation."""
    channels = graph.tensors[linear.inputs[0]].shape[-1]
    grouped = linear.kind is LinearKind.CONVOLUTION and linear.kernel.shape[-1] != channels
    return () if grouped else choices.get(linear.kind, ())


def _storage(linear: Linear, choices: tuple[Storage, ...]) -> tuple[Storage, str]:
    """The first choice that a kernel fits, or INT8 and why it fits none."""
    if linear.real:
        return Storage.INT8, "it computes in float32"
    if not choices:
        return Storage.INT8, "transposed and grouped convolutions read int8 only"
    low, high = int(np.min(linear.kernel)), int(np.max(linear.kernel))
    for storage in choices:
        if storage.lowest <= low and high <= storage.highest and _runs_on_xnnpack(linear, storage):
            return storage, ""
    widest = choices[-1]
    if widest.lowest <= low and high <= widest.highest:
        columns = linear.kernel.shape[1]
        return Storage.INT8, f"its {columns} inputs do not fill whole bytes"
    limits = f"{widest.name} holds {widest.lowest} to {widest.highest}"
    return Storage.INT8, f"codes {low} to {high}, {limits}"


def _runs_on_xnnpack(linear: Linear, storage: Storage) -> bool:
    """Whether XNNPACK computes a packed layer, or never does, whatever its shape.

    It wants rows of whole bytes and, for 2 bits, more than one of them. Other dense layers would go
    to the builtin kernels, which round differently, for the sake of a few bytes.
    """
    if linear.kind is not LinearKind.FULLY_CONNECTED:
        return True
    rows, columns = linear.kernel.shape
    whole = columns % (_BITS_PER_BYTE // storage.value) == 0
    return whole and (rows > 1 or storage is not Storage.INT2)


def _warnings(pack: str, packed: list[Linear], left: list[str]) -> list[str]:
    lines = []
    convolutions = sum(linear.kind is not LinearKind.FULLY_CONNECTED for linear in packed)
    if convolutions:
        lines.append(
            f"pack={pack!r} makes the model slower, two to four times as a rule: XNNPACK does not "
            f"run convolutions with packed kernels, so LiteRT's builtin kernels run {convolutions} "
            "of them, and unpack them at every call. They round twice, where XNNPACK rounds once, "
            "and not alike on every processor: the certificate holds for x86. For a fast model use "
            "pack='none', and compress the file."
        )
    if left:
        lines.append(
            f"pack={pack!r}: {len(packed)} of {len(packed) + len(left)} kernels are packed; these "
            f"stay int8: {', '.join(left)}."
        )
    return lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSettings:
    """How a model is written as a file; see `sat_tf.export_tflite`.

    Attributes:
        float_head: the last layer is float.
        pack: how kernels are stored, a name of `packing.PACKINGS`.
        softmax: the output is probabilities.
        resizable: the batch size is free.

    Raises:
        ValueError: a setting is invalid; lists every one.
    """

    float_head: bool = False
    pack: str = "none"
    softmax: bool = False
    resizable: bool = False

    def __post_init__(self) -> None:
        problems = [
            f"{name}: received {value!r}, expected True or False."
            for name, value in dataclasses.asdict(self).items()
            if name != "pack" and not isinstance(value, bool)
        ]
        problem = packing_problem(self.pack)
        if problem:
            problems.append(problem)
        if problems:
            raise ValueError(list_problems("export_tflite", problems))

    def to_json(self, float_layers: Mapping[str, str]) -> bytes:
        """The settings as an entry of the file.

        Args:
            float_layers: the layers that are left float, by the tensors that they make.
        """
        values = {"version": __version__, **dataclasses.asdict(self), "islands": dict(float_layers)}
        return json.dumps(values, sort_keys=True).encode()

    @classmethod
    def of_file(cls, found: Mapping[str, Any] | None, path: str) -> "FileSettings":
        """The settings that a file says it was written with.

        Args:
            found: its entry `structure.SETTINGS_NAME`; None where it has none.
            path: what errors call it.

        Raises:
            ValueError: the file is not one of `export_tflite`.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        # Earlier versions wrote only this one; the others had their defaults.
        if found is not None and "float_head" in found:
            try:
                return cls(**{name: found[name] for name in names if name in found})
            except ValueError:
                pass  # No version writes other values: the file is not ours either.
        raise ValueError(
            f"{path}: received a TFLite file that sat_tf.export_tflite did not write, expected one "
            "that it wrote from this model; export the model again."
        )
