"""Operators that NPUs have: every input that matters, by runtime.

On each of `--grids` grids of the input, codes that runtimes make are compared with the simulation:
functions of all 256 codes, on 10 grids of the output each, half of which make halves of a line;
SOFTMAX of all pairs and threes of codes, and of rows of up to 100; AVERAGE_POOL_2D of windows with
every sum; RESIZE_BILINEAR between all pairs of codes, by many factors. The first `--arm_grids` are
compared on the emulated Arm processors of `python -m tests.arm.system` too. TFLite Micro takes part
where it is installed.

    PYTHONPATH=. python benchmarks/native_functions.py
    PYTHONPATH=. python benchmarks/native_functions.py --grids=40 --arm_grids=0
"""

import functools
import math
from collections.abc import Iterator

import numpy as np
import rich.console
from absl import app, flags
from rows import as_table

from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels.kernel_sets import (
    ARM,
    KernelSet,
)
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.graph_file import serialize
from tests.arm.operators import FUNCTIONS, OF_SEVERAL, compared, functions_of_codes, subject_of
from tests.arm.system import PROCESSORS, check_on_arm, find_system
from tests.export.proofs import KERNELS

_GRIDS = flags.DEFINE_integer("grids", 12, "how many grids of the input")
_ARM_GRIDS = flags.DEFINE_integer("arm_grids", 2, "how many of them on emulated Arm processors")
# Runtimes without a kernel.
_WITHOUT = {("ELU", "reference"), ("GELU", "micro")}
_SMALLEST, _LARGEST = 0.004, 0.15
_BY_OPERATOR = {
    **{name: functools.partial(functions_of_codes, names=[name]) for name in FUNCTIONS},
    **OF_SEVERAL,
}
_ON_ARM = {"functions of one value": functions_of_codes, **OF_SEVERAL}


def _grids() -> Iterator[tuple[float, int]]:
    """Scales and zero points of codes; every other scale is a power of two."""
    rng = np.random.default_rng(0)
    for number in range(_GRIDS.value):
        power = rng.uniform(np.log2(_SMALLEST), np.log2(_LARGEST))
        yield 2.0 ** (round(power) if number % 2 else power), int(rng.integers(-128, 128))


def _counted(graph: Graph, images: np.ndarray, runtime: str, kernels: KernelSet) -> np.ndarray:
    """How many codes of its operators were compared, and how many differ."""
    ran = loaded(serialize(graph, {}), runtime, keep_tensors=True)
    ran.run(images)
    names = compared(graph)
    expected, found = simulate(graph.on(kernels), images), ran.tensors(names)
    differing = sum(np.count_nonzero(found[name] != expected[name]) for name in names)
    return np.array([sum(found[name].size for name in names), differing])


def _counted_on_arm(graph: Graph, images: np.ndarray) -> np.ndarray:
    """The same for each emulated Arm processor."""
    count = sum(math.prod(graph.tensors[name].shape) for name in compared(graph))
    checks = check_on_arm(subject_of(graph, ARM), images, find_system())
    return np.array([(count, check.codes_differing) for check in checks])


def _words(count: int, differing: int) -> str:
    return f"{differing:,} of {count:,}"


def main(_: list[str]) -> None:
    """Prints the tables."""
    runtimes = {name: kernels for name, kernels in KERNELS.items() if is_installed(name)}
    console, grids = rich.console.Console(), list(_grids())
    rows = []
    for name, make in _BY_OPERATOR.items():
        row = {"operator": name}
        for runtime, kernels in runtimes.items():
            if (name, runtime) in _WITHOUT:
                row[runtime] = "no kernel"
                continue
            graphs = (make(*grid) for grid in grids)
            row[runtime] = _words(*sum(_counted(*one, runtime, kernels) for one in graphs))
        rows.append(row)
    console.print(as_table(rows, "codes that differ from the simulation"))
    rows = []
    for name, make in _ON_ARM.items() if _ARM_GRIDS.value else ():
        graphs = (make(*grid) for grid in grids[: _ARM_GRIDS.value])
        counts = sum(_counted_on_arm(*one) for one in graphs)
        titles = [processor.title for processor in PROCESSORS]
        found = (_words(*one) for one in counts)
        rows.append({"operator": name, **dict(zip(titles, found, strict=True))})
    if rows:
        console.print(as_table(rows, "the same with XNNPACK on emulated Arm processors"))


if __name__ == "__main__":
    app.run(main)
