"""Where the bytes of files are: weights, biases, scales, zero points, names, and the rest.

Networks of `npu_networks.py` at 4 bits, and files that are named. "plain" is the same file as
FlatBuffers' own builder writes it, each vector of zero points by itself.

    python benchmarks/file_bytes.py --files=demo=runs/digits_mobilenet_v2_w4a4/export/model.tflite
"""

import collections
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import flatbuffers
import numpy as np
import rich.console
from absl import app, flags
from ai_edge_litert import schema_py_generated as tfl
from npu_networks import NETWORKS
from rows import as_table, write_csv

import sat_tf

_NETWORKS = flags.DEFINE_list(
    "networks", ["MobileNet-V2", "ResNet-18", "DS-CNN", "MBConv"], f"of {', '.join(NETWORKS)}"
)
_FILES = flags.DEFINE_list("files", [], "further files, each as name=path")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/file_bytes.csv", "where to write rows")

_BITS = 4
_WITH_KERNELS = {
    getattr(tfl.BuiltinOperator, name)
    for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
}
_LENGTH = 4  # bytes in front of a vector, and of an offset to it
_KINDS = (
    *("kernels", "biases", "other constants", "scales of kernels", "scales of biases"),
    *("other scales", "zero points", "names", "metadata", "tables"),
)


def _roles(graph: Any, model: Any) -> dict[int, str]:
    """What constants are to the operators that read them, by their tensors."""
    roles = {}
    for number in range(graph.OperatorsLength()):
        operator = graph.Operators(number)
        code = model.OperatorCodes(operator.OpcodeIndex())
        if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) in _WITH_KERNELS:
            kernel, *rest = list(operator.InputsAsNumpy())[1:]
            if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) == (
                tfl.BuiltinOperator.TRANSPOSE_CONV
            ):
                rest = rest[1:]
            roles[int(kernel)] = "kernels"
            roles |= {int(index): "biases" for index in rest if index >= 0}
    return roles


def breakdown(content: bytes) -> dict[str, int]:
    """The bytes of a file by what they are; vectors that are shared are counted once."""
    model = tfl.Model.GetRootAs(content)
    graph = model.Subgraphs(0)
    roles, found = _roles(graph, model), collections.Counter(dict.fromkeys(_KINDS, 0))
    seen: set[int] = set()

    def add(kind: str, vector: Any) -> None:
        if not isinstance(vector, np.ndarray):  # none there
            return
        place = vector.__array_interface__["data"][0]
        if place not in seen:
            seen.add(place)
            found[kind] += vector.nbytes + _LENGTH

    for entry in map(model.Metadata, range(model.MetadataLength())):
        add("metadata", model.Buffers(entry.Buffer()).DataAsNumpy())
    for index in range(graph.TensorsLength()):
        tensor, role = graph.Tensors(index), roles.get(index, "other constants")
        found["names"] += len(tensor.Name()) + 1 + _LENGTH
        add(role, model.Buffers(tensor.Buffer()).DataAsNumpy())
        if (quantization := tensor.Quantization()) is not None:
            of = "other scales" if role == "other constants" else f"scales of {role}"
            add(of, quantization.ScaleAsNumpy())
            add("zero points", quantization.ZeroPointAsNumpy())
    found["tables"] = len(content) - found.total()
    return dict(found)


def _plain(content: bytes) -> bytes:
    """The same file with no vector shared."""
    builder = flatbuffers.Builder(len(content))
    model = tfl.ModelT.InitFromPackedBuf(content, 0)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _files() -> Iterator[tuple[str, bytes]]:
    for entry in _FILES.value:
        name, _, path = entry.partition("=")
        yield name, pathlib.Path(path).read_bytes()
    for name in _NETWORKS.value:
        network = NETWORKS[name]
        model = sat_tf.quantize_model(
            network.build(), sat_tf.BitPolicy.mobile(_BITS, **network.policy)
        )
        sat_tf.calibrate(model, *network.examples())
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.tflite"
            sat_tf.export_tflite(model, path)
            yield f"{name}, w{_BITS}a{_BITS}", path.read_bytes()


def main(argv: list[str]) -> None:
    """Writes a row for each file as it is and as it would be; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows = []
    for name, content in _files():
        for of, written in (("plain", _plain(content)), ("shared", content)):
            rows.append({"file": name, "written": of, "bytes": len(written), **breakdown(written)})
    write_csv(rows, _OUTPUT.value)
    rich.console.Console(width=200).print(as_table(rows, "bytes"))


if __name__ == "__main__":
    app.run(main)
