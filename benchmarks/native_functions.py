"""Functions of one value by operators of their own: every code, by runtime.

All 256 codes are compared with the simulation, on each of `--grids` grids of the input with 10
grids of the output each, half of which make halves of a line. The first ones are compared on the
emulated Arm processors of `python -m tests.arm.system` too. TFLite Micro takes part where it is
installed.

    PYTHONPATH=. python benchmarks/native_functions.py
    PYTHONPATH=. python benchmarks/native_functions.py --grids=40 --arm_grids=0
"""

import importlib.util
from collections.abc import Iterator

import numpy as np
import rich.console
from absl import app, flags
from rows import as_table

from sat_tf.export.kernels.kernel_sets import (
    ARM,
    MICRO,
    REFERENCE,
    KernelSet,
    builtin_of_this_machine,
    of_this_machine,
)
from sat_tf.export.litert.micro import MicroRuntime
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.graph import Graph, simulate
from sat_tf.export.operations.graph_file import serialize
from tests.arm.processors import PROCESSORS, check_on_arm
from tests.arm.system import find_system
from tests.arm.test_kernels import FUNCTIONS, functions_of_codes, subject_of

_GRIDS = flags.DEFINE_integer("grids", 12, "how many grids of the input")
_ARM_GRIDS = flags.DEFINE_integer("arm_grids", 2, "how many of them on emulated Arm processors")
_RUNTIMES = {
    "xnnpack": of_this_machine(),
    "builtin": builtin_of_this_machine(),
    "reference": REFERENCE,
    "micro": MICRO,
}
# Runtimes without a kernel.
_WITHOUT = {("ELU", "reference"), ("GELU", "micro")}
_SMALLEST, _LARGEST = 0.004, 0.15


def _grids() -> Iterator[tuple[float, int]]:
    """Scales and zero points of pixels; every other scale is a power of two."""
    rng = np.random.default_rng(0)
    for number in range(_GRIDS.value):
        power = rng.uniform(np.log2(_SMALLEST), np.log2(_LARGEST))
        yield 2.0 ** (round(power) if number % 2 else power), int(rng.integers(0, 256))


def _counted(graph: Graph, images: np.ndarray, runtime: str, kernels: KernelSet) -> np.ndarray:
    """How many codes of its functions were compared, and how many differ."""
    load = MicroRuntime if runtime == "micro" else Runtime
    more = {} if runtime == "micro" else {"runtime": runtime}
    loaded = load(serialize(graph, {}), keep_tensors=True, **more)
    loaded.run(images)
    names = [op.output for op in graph.operations if op.inputs == ("codes",)]
    expected, found = simulate(graph.on(kernels), images), loaded.tensors(names)
    differing = sum(np.count_nonzero(found[name] != expected[name]) for name in names)
    return np.array([sum(found[name].size for name in names), differing])


def main(_: list[str]) -> None:
    """Prints the table."""
    runtimes = dict(_RUNTIMES)
    if importlib.util.find_spec("tflite_micro") is None:
        del runtimes["micro"]
    console, grids = rich.console.Console(), list(_grids())
    rows = []
    for name in FUNCTIONS:
        row = {"operator": name}
        for runtime, kernels in runtimes.items():
            if (name, runtime) in _WITHOUT:
                row[runtime] = "no kernel"
                continue
            graphs = (functions_of_codes(*grid, [name]) for grid in grids)
            compared, differing = sum(_counted(*one, runtime, kernels) for one in graphs)
            row[runtime] = f"{differing:,} of {compared:,}"
        rows.append(row)
    console.print(as_table(rows, "codes that differ from the simulation"))
    for grid in grids[: _ARM_GRIDS.value]:
        graph, images = functions_of_codes(*grid)
        checks = check_on_arm(subject_of(graph, ARM), images, find_system())
        for processor, check in zip(PROCESSORS, checks, strict=True):
            counts = f"{check.codes_differing:,} of {check.codes_compared:,}"
            console.print(f"{processor.title}, all operators: {counts}")


if __name__ == "__main__":
    app.run(main)
