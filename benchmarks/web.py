"""Files in LiteRT.js, LiteRT's WebAssembly runtime: every code compared with the simulation.

Its outputs are compared with LiteRT's on this machine. Both builds of the runtime are run: the one
with relaxed SIMD, which is loaded where a browser has that, and the compatible one.

    (cd examples/web && npm install)
    python benchmarks/web.py
"""

import time
from typing import Any

import numpy as np
import rich.console
from absl import app, flags
from browser import BUILDS, in_browser, litert_version
from every_code import SMALL_FILES, SmallFile, differing
from rows import as_table, write_csv

from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph

_IMAGES = flags.DEFINE_integer("images", 8, "images to compare on", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/web.csv", "where to write rows")


def _measure(file: SmallFile) -> list[dict[str, Any]]:
    content, images = file.exported(_IMAGES.value)
    graph = read_graph(content, file.model)
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
    for file in SMALL_FILES:
        rows += _measure(file)
        write_csv(rows, _OUTPUT.value)
    rich.console.Console().print(as_table(rows, "codes that differ from the simulation"))


if __name__ == "__main__":
    app.run(main)
