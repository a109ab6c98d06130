"""Bits of MobileNet-V2 shared out by what an Ethos-U needs, beside 4 bits everywhere.

Each budget is what 4 bits everywhere use: of milliseconds, and of mean weight bits, which count
parameters. Every layer has the same cost, 4^-bits, so that choices differ by their budgets alone.
The file of each choice is compiled: rows are the compiler's estimates.

    python benchmarks/allocated_for_npu.py
"""

import collections
import pathlib
import tempfile
from typing import Any

import numpy as np
import rich.console
from absl import app, flags
from npu_networks import FAMILIES
from rows import as_table

import sat_tf
from sat_tf.exact.targets.ethos_u import CompiledFile, compile_file
from sat_tf.graph import layer_kinds

_NPU = flags.DEFINE_string("npu", "ethos-u55-128", "a configuration of an Ethos-U55")
_BITS = flags.DEFINE_list("bits", ["2", "3", "4", "5", "6", "8"], "to choose from")


def main(argv: list[str]) -> None:
    """Prints a row for each budget."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    network, bits = FAMILIES["MobileNet-V2"], tuple(map(int, _BITS.value))
    model, (images,) = network.build(), network.examples()
    policy = sat_tf.BitPolicy.mobile(4, activation_bits=8, target="ethos-u55")

    def compiled(own: sat_tf.BitPolicy) -> CompiledFile:
        quantized = sat_tf.quantize_model(model, own)
        sat_tf.calibrate(quantized, images)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.tflite")
            sat_tf.export_tflite(quantized, path)
            return compile_file(path, _NPU.value)

    def row(budget: str, file: CompiledFile, of_layers: list[int]) -> dict[str, Any]:
        counts = collections.Counter(of_layers)
        return {
            "budget": budget,
            "ms": f"{file.milliseconds:.3f}",
            "compiled bytes": len(file.content),
            "layers by bits": ", ".join(f"{one}: {counts[one]}" for one in sorted(counts)),
        }

    layers = [layer for layer in sat_tf.explain(model, policy).layers if layer.weights]
    four = compiled(policy)
    rows = [row("4 bits everywhere", four, [one.weights.bits for one in layers if one.weights])]
    bits_of = [one.weights.bits for one in layers if one.weights]
    sizes = [np.prod(layer_kinds.kernel_of(model.get_layer(one.name)).shape) for one in layers]
    budgets = {
        "milliseconds": four.milliseconds,
        "average_weight_bits": np.average(bits_of, weights=sizes),
    }
    for name, limit in budgets.items():
        found = sat_tf.allocate(
            model,
            policy=policy,
            budget={name: float(limit)},
            cost={one.name: {own: 4.0**-own for own in bits} for one in layers},
            npu=_NPU.value,
            weight_bits=bits,
            activation_bits=(8,),
        )
        own = [layer.weight_bits or 0 for layer in found.layers]
        total = found.totals["milliseconds"].value
        rows.append({**row(name, compiled(found.policy), own), "sum of ms": f"{total:.6g}"})
    rows[0]["sum of ms"] = ""
    rich.console.Console().print(as_table(rows, "estimates of Arm's compiler"))


if __name__ == "__main__":
    app.run(main)
