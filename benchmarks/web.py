"""Files in LiteRT.js, LiteRT's WebAssembly runtime: every code compared with the simulation.

Its outputs are compared with LiteRT's on this machine. Both builds of the runtime are run: the one
with relaxed SIMD, which is loaded where a browser has that, and the compatible one.

    (cd examples/web && npm install)
    python benchmarks/web.py
"""

import pathlib
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
import rich.console
import tf_keras as keras
from absl import app, flags
from browser import BUILDS, differing, in_browser, litert_version
from full_size import make_realistic, smooth_images
from rows import as_table, write_csv

import sat_tf
from sat_tf import models
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.operations.simulator import simulate
from sat_tf.qat.policy import BitPolicy


class _File(NamedTuple):
    model: str
    policy: str
    settings: dict[str, Any]
    fields: BitPolicy


_SIZE, _CLASSES, _CALIBRATION_IMAGES = 32, 10, 32
_SMALL_RESNET = {"width_multiplier": 0.25, "stem_pool": False}
_FILES = (
    _File("mobilenet_v2", "w4a4", {"width_multiplier": 0.5}, BitPolicy.mobile(4)),
    _File("mobilenet_v2", "w8a8", {"width_multiplier": 0.5}, BitPolicy.mobile(8)),
    _File("resnet18", "w4a4", _SMALL_RESNET, BitPolicy.mobile(4)),
)
_IMAGES = flags.DEFINE_integer("images", 8, "images to compare on", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/web.csv", "where to write rows")


def _measure(file: _File, folder: pathlib.Path) -> list[dict[str, Any]]:
    keras.utils.set_random_seed(0)
    model = getattr(models, file.model)(_SIZE, _CLASSES, seed=0, **file.settings)
    make_realistic(model)
    pictures = smooth_images(_CALIBRATION_IMAGES + _IMAGES.value, _SIZE)
    calibration, images = np.split(pictures, [_CALIBRATION_IMAGES])
    quantized = sat_tf.quantize_model(model, file.fields)
    sat_tf.calibrate(quantized, calibration.astype(np.float32))
    path = folder / "model.tflite"
    sat_tf.export_tflite(quantized, path)
    content = path.read_bytes()
    graph = read_graph(content, path.name)
    expected = simulate(graph, images)
    of_litert = Runtime(content, keep_tensors=False).run(images)
    rows = []
    for build in BUILDS:
        start = time.perf_counter()
        found = in_browser(content, graph, images, build)
        rows.append(
            {
                "model": file.model,
                "policy": file.policy,
                "runtime": f"LiteRT.js {litert_version()}, {build}",
                "images": len(images),
                "tensors": len(found.codes),
                "codes compared": sum(codes.size for codes in found.codes.values()),
                "codes differing": differing(found.codes, expected),
                "outputs compared": found.outputs.size,
                "outputs differing from LiteRT": np.count_nonzero(found.outputs != of_litert),
                "of the copy": np.count_nonzero(found.outputs_of_copy != of_litert),
                "seconds": f"{time.perf_counter() - start:.1f}",
            }
        )
    return rows


def main(argv: list[str]) -> None:
    """Runs every file in every build."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for file in _FILES:
            rows += _measure(file, pathlib.Path(folder))
            write_csv(rows, _OUTPUT.value)
            keras.backend.clear_session()
    rich.console.Console().print(as_table(rows, "codes that differ from the simulation"))


if __name__ == "__main__":
    app.run(main)
