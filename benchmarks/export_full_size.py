"""Exports MobileNet-V1 and V2 at 224x224 with 1000 classes, w4a4, and verifies the files.

Weights are random, and the statistics of BatchNormalization look like trained ones: time, size and
exactness do not depend on what was learnt.

    python benchmarks/export_full_size.py
"""

import csv
import json
import pathlib
import time
from typing import Any

import numpy as np
import rich.console
import rich.table
import tf_keras as keras
from absl import app, flags

import sat_tf
from sat_tf.models import build
from sat_tf.wholefile import written_whole

_IMAGES = flags.DEFINE_integer("images", 8, "random images to verify on")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/export.csv", "where to write rows")
_FOLDER = flags.DEFINE_string("folder", "runs/export", "where to write files and certificates")


def _trained_statistics(model: keras.Model, rng: np.random.Generator) -> None:
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            count = layer.gamma.shape[0]
            layer.gamma.assign(rng.normal(1.0, 0.4, count))
            layer.beta.assign(rng.normal(0.0, 0.3, count))
            layer.moving_mean.assign(rng.normal(0.0, 0.3, count))
            layer.moving_variance.assign(rng.uniform(0.3, 2.0, count))


def _measure(name: str, folder: pathlib.Path) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    model = build(name)
    _trained_statistics(model, rng)
    images = rng.integers(0, 256, (64 + _IMAGES.value, 224, 224, 3)).astype(np.uint8)
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    sat_tf.calibrate(quantized, images[_IMAGES.value :])
    path = folder / f"{name}.tflite"
    report = sat_tf.export_tflite(quantized, path)
    start = time.perf_counter()
    certificate = sat_tf.verify_tflite(
        quantized, path, images[: _IMAGES.value], certificate_path=path.with_suffix(".json")
    )
    delegation = certificate.runtimes["xnnpack"].delegation
    return {
        "model": name,
        "export seconds": f"{report.seconds:.1f}",
        "bytes": report.bytes,
        "gzip bytes": report.gzip_bytes,
        "codes compared": certificate.codes_compared,
        "codes differing": certificate.codes_differing,
        "differing, builtin kernels": certificate.runtimes["builtin"].codes_differing,
        "XNNPACK partitions": delegation.partitions,
        "delegated": f"{delegation.delegated} of {delegation.operators}",
        "verify seconds": f"{time.perf_counter() - start:.1f}",
        "float operators": ", ".join(report.float_operators),
        "operators": json.dumps(report.operators),
    }


def main(argv: list[str]) -> None:
    """Measures both models, prints a table and writes a CSV."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    folder, output = pathlib.Path(_FOLDER.value), pathlib.Path(_OUTPUT.value)
    folder.mkdir(parents=True, exist_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    console = rich.console.Console()
    rows = []
    for name in ("mobilenet_v1", "mobilenet_v2"):
        with console.status(f"{name}: quantizing, exporting, verifying"):
            rows.append(_measure(name, folder))
    table = rich.table.Table("", *(row["model"] for row in rows), title="w4a4, 224x224")
    for key in list(rows[0])[1:]:
        table.add_row(key, *(str(row[key]) for row in rows))
    console.print(table)
    with written_whole(output) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    console.print(f"wrote {output}")


if __name__ == "__main__":
    app.run(main)
