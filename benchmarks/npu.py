"""What Arm's compiler for Ethos-U makes of networks at 8, 4, 3 and 2 bits, beside TFMOT's 8 bits.

Of every file: the operators that the NPU computes and those left to the CPU, the time of an
inference, which is the compiler's estimate, and the bytes of weights and of SRAM. The compiler
compresses weights, and those with few values more: fewer bits are smaller, and, where reading
weights takes longer than computing, faster. `--target=litert` makes the files that LiteRT's CPU
kernels get, with a byte a weight. Rows of other files, networks and targets in the CSV stay there,
and TFMOT's files are not compiled again.

    python benchmarks/npu.py
    python benchmarks/npu.py --target=litert --networks=swish,PReLU --bits=4
    python benchmarks/npu.py --networks= --picture=docs/images/npu.png
"""

import collections
import contextlib
import functools
import gc
import io
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import rich.console
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras
from absl import app, flags, logging
from npu_networks import FAMILIES, NETWORKS, Network
from rows import as_table, read_csv, write_csv

import sat_tf
from sat_tf.exact.targets.ethos_u import compile_file
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.messages import charts

# The systems that estimates are for: the NPU and the memory of its weights. The compiler takes
# those of the first three by default.
DEFAULTS: dict[str, dict[str, str]] = {
    "U55-128, flash": {"configuration": "ethos-u55-128"},
    "U65-256, DRAM": {"configuration": "ethos-u65-256"},
    "U85-256, DRAM": {"configuration": "ethos-u85-256"},
}
SYSTEMS = {
    **DEFAULTS,
    "U65-256, flash": {
        "configuration": "ethos-u65-256",
        "system_config": "Ethos_U65_Embedded",
        "memory_mode": "Shared_Sram",
    },
    "U85-256, flash": {
        "configuration": "ethos-u85-256",
        "system_config": "Ethos_U85_SYS_Flash_High",
        "memory_mode": "Shared_Sram",
    },
}
# The forms of LiteRT's CPU kernels, of which NPUs take no packed kernels.
_PLAIN = "litert"
_REFERENCE = "TFMOT"

_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), f"of {', '.join(NETWORKS)}")
_BITS = flags.DEFINE_list("bits", ["8", "4", "3", "2"], "of weights and activations")
_SMALL_BITS = flags.DEFINE_list("small_bits", ["4"], "the same, of networks with few weights")
_TARGET = flags.DEFINE_enum("target", "ethos-u55", [_PLAIN, "ethos-u55"], "what files are made for")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/npu.csv", "where to write rows")
_PICTURE = flags.DEFINE_string("picture", None, "where to draw the rows of the families")

_SHOWN = ("network", "file", "system", "on CPU", "estimated ms", "times TFMOT")
_KEY = ("network", "file", "target", "system")
_LIMITS = ("arithmetic", "weights", "scales and biases", "activations")


def _as_keras(arrays: Any) -> Any:
    """Arrays as Keras and sat-tf take them: a list where there are several."""
    arrays = list(arrays)
    return arrays[0] if len(arrays) == 1 else arrays


def _our_file(network: Network, bits: int, path: pathlib.Path) -> None:
    fields = dict(network.policy)
    if _TARGET.value != _PLAIN:
        fields["target"] = _TARGET.value
    model = sat_tf.quantize_model(network.build(), sat_tf.BitPolicy.mobile(bits, **fields))
    sat_tf.calibrate(model, _as_keras(network.examples()))
    sat_tf.export_tflite(model, path, pack="none" if _TARGET.value == _PLAIN else "auto")


def _tfmot_file(network: Network, path: pathlib.Path) -> None:
    model = tfmot.quantization.keras.quantize_model(network.build())
    examples = [array.astype(np.float32) for array in network.examples()]
    # A pass in training mode shows its quantizers the ranges, as training would.
    model(_as_keras(examples), training=True)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.inference_input_type = tf.uint8
    if network.policy.get("input_type"):
        converter.inference_input_type = tf.int8
    converter.inference_output_type = tf.int8
    path.write_bytes(converter.convert())


def _counted(names: Sequence[str]) -> str:
    """Names, each once, with how often it stands there: "3 GATHER, DEQUANTIZE"."""
    counts = collections.Counter(names)
    return ", ".join(name if count == 1 else f"{count} {name}" for name, count in counts.items())


def _compiled(path: pathlib.Path, system: Mapping[str, str]) -> dict[str, Any]:
    operators = len(read_contents(path.read_bytes(), path.name).operators)
    try:
        found = compile_file(path, **system)
    except ValueError as error:
        # A crash is a row, too.
        return {"operators": operators, "problem": str(error).splitlines()[0]}
    return {
        "operators": operators,
        "compiler's system": f"{found.system_config}, {found.memory_mode}",
        "on NPU": operators - len(found.on_cpu),
        "on CPU": _counted(found.on_cpu),
        "estimated ms": f"{found.milliseconds:.4f}",
        **{
            f"ms by {limit}": f"{found.milliseconds_by_limit.get(limit, 0.0):.4f}"
            for limit in _LIMITS
        },
        "weights memory": found.weights_memory,
        "weights bytes": found.weights_memory_bytes,
        "SRAM bytes": found.sram_bytes,
        "encoded weight bytes": found.encoded_weight_bytes,
    }


_COLUMNS = (
    *(*_KEY, "compiler's system", "file bytes", "operators", "on NPU", "on CPU"),
    *("estimated ms", "times TFMOT", *(f"ms by {limit}" for limit in _LIMITS)),
    *("weights memory", "weights bytes", "weights, times TFMOT", "SRAM bytes"),
    *("encoded weight bytes", "problem"),
)


def _rows(
    name: str, folder: pathlib.Path, known: Sequence[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of a network's files, beside those that are known of TFMOT's."""
    network, path = NETWORKS[name], folder / "model.tflite"
    makers: dict[str, Callable[[], None]] = {}
    reference = {row["system"]: row for row in known}
    if not reference:
        makers[_REFERENCE] = lambda: _tfmot_file(network, path)
    for bits in _BITS.value if name in FAMILIES else _SMALL_BITS.value:
        makers[f"sat-tf, {bits} bits"] = lambda bits=int(bits): _our_file(network, bits, path)
    for file, make in makers.items():
        target = "" if file == _REFERENCE else _TARGET.value
        case = dict.fromkeys(_COLUMNS, "") | {"network": name, "file": file, "target": target}
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                make()
        except Exception as error:  # each tool refuses in its own way
            yield {**case, "problem": str(error).strip().splitlines()[0]}
            continue
        finally:
            keras.backend.clear_session()
            gc.collect()
        case["file bytes"] = path.stat().st_size
        for system, names in (SYSTEMS if name in FAMILIES else DEFAULTS).items():
            row = {**case, "system": system, **_compiled(path, names)}
            if file == _REFERENCE:
                reference[system] = row
            yield {**row, **_beside(row, reference.get(system, {}))}


def _beside(row: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """How a file compares with TFMOT's; operators on the CPU have no time and are no weights."""
    wholly = not theirs.get("on CPU") and row["on CPU"] in ("", "DEQUANTIZE")
    if not (row["estimated ms"] and theirs.get("estimated ms") and wholly):
        return {}
    return {
        times: f"{float(row[of]) / float(theirs[of]):.3f}"
        for of, times in (
            ("estimated ms", "times TFMOT"),
            ("weights bytes", "weights, times TFMOT"),
        )
    }


def _draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A panel for each family: estimated time, and weights in flash, over bits."""
    picture, axes = charts.canvas(3, 2, size=(5.6, 7.0), sharex=True, sharey=True)
    *panels, legend = axes.flat
    for name, panel in zip(FAMILIES, panels, strict=True):
        of_npu = dict(zip(("U55", "U65", "U85"), charts.SERIES, strict=False))
        for system in SYSTEMS:
            style = dict(of_npu[system[:3]])
            if system.endswith("DRAM"):
                style["markerfacecolor"] = "white"
            times = _of_bits(rows, name, system, "times TFMOT")
            panel.plot(_BITS.value, times, **style, label=f"time, {system}")
        flash = _of_bits(rows, name, "U55-128, flash", "weights, times TFMOT")
        style = {"color": charts.GREY, "marker": "x", "linestyle": ":"}
        panel.plot(_BITS.value, flash, **style, label="bytes in flash")
        panel.axhline(1.0, color=charts.BLACK, linewidth=0.8)
        panel.set_title(name)
        panel.set_ylim(0.0, 1.1)
    for panel in panels[-2:]:
        panel.tick_params(labelbottom=True)
    picture.supxlabel("bits", fontsize=13)
    legend.axis("off")
    legend.legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=11)
    picture.supylabel("times TFMOT's int8 file, estimated", fontsize=13)
    return picture


def _of_bits(
    rows: Sequence[Mapping[str, Any]], network: str, system: str, column: str
) -> list[float]:
    wanted = {"network": network, "system": system, "target": _TARGET.value}
    found = {row["file"]: row[column] for row in rows if wanted.items() <= row.items()}
    return [float(found[f"sat-tf, {bits} bits"]) for bits in _BITS.value]


def main(argv: list[str]) -> None:
    """Compiles every file, writing the CSV after each network; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    if unknown := [name for name in _NETWORKS.value if name not in NETWORKS]:
        raise app.UsageError(f"--networks: received {unknown}, expected {', '.join(NETWORKS)}.")
    logging.set_verbosity(logging.ERROR)  # the converter says a lot
    console = rich.console.Console()
    rows = read_csv(_OUTPUT.value)
    new: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in _NETWORKS.value:
            with console.status(name):
                theirs = [
                    row for row in rows if (row["network"], row["file"]) == (name, _REFERENCE)
                ]
                found = list(_rows(name, pathlib.Path(folder), theirs))
            new += found
            made = {tuple(row[key] for key in _KEY[:3]) for row in found}
            rows = [row for row in rows if tuple(row[key] for key in _KEY[:3]) not in made]
            order = list(NETWORKS)
            rows = sorted([*rows, *found], key=lambda row: order.index(row["network"]))
            write_csv(rows, _OUTPUT.value)
    if new:
        console.print(as_table(new, "estimates of Arm's compiler", _SHOWN))
    if _PICTURE.value:
        charts.write(functools.partial(_draw, rows), _PICTURE.value)


if __name__ == "__main__":
    app.run(main)
