"""Products and means, against LiteRT on emulated Arm processors: every input."""

import numpy as np
import pytest

from sat_tf.exact.kernels.kernel_sets import ARM, X86
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.pools import Mean
from sat_tf.exact.operations.quantize import Dequantize, ShiftImage
from sat_tf.exact.operations.tabled import moved
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor
from sat_tf.export.lowering.scales import make_portable
from tests.arm.operators import subject_of
from tests.arm.system import PROCESSORS, check_on_arm

ONE = np.float32(1.0)


def _graph(shape: tuple[int, ...], *made: tuple[Operation, tuple[int, ...], Codes]) -> Graph:
    """A graph that makes float values of the last of some tensors of codes."""
    pixels = Codes(ONE, -128)
    found = [(ShiftImage(("image",), "codes"), shape, pixels), *made]
    last, size, _ = found[-1]
    tensors = {op.output: Tensor(op.output, shape, codes) for op, shape, codes in found}
    tensors["real"] = Tensor("real", size, None)
    return Graph(
        "made",
        tensors,
        (*(op for op, _, _ in found), Dequantize((last.output,), "real")),
        (Image("image", shape, ONE),),
        "real",
    )


def _product(ratio: float) -> tuple[Graph, np.ndarray]:
    """A product of the left and the right half of an image, which hold all pairs of pixels."""
    half = (256, 256, 1)
    halves = [
        moved(
            "STRIDED_SLICE",
            "codes",
            name,
            (256, 512, 1),
            ((0, 256, 1), (start, start + 256, 1), (0, 1, 1)),
        )
        for name, start in (("left", 0), ("right", 256))
    ]
    graph = _graph(
        (256, 512, 1),
        *((operation, half, Codes(ONE, -128)) for operation in halves),
        (Pair(("left", "right"), "y", Pointwise.PRODUCT), half, Codes(np.float32(1 / ratio), -128)),
    )
    one, other = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    return graph, np.concatenate([one, other], axis=1).astype(np.uint8)[np.newaxis, ..., np.newaxis]


def _mean(scale: float, zero_point: int) -> tuple[Graph, np.ndarray]:
    """A mean of 7x7 pixels, and images with every sum there is."""
    channels = 256
    output = Codes(np.float32(scale), zero_point)
    graph = _graph((7, 7, channels), (Mean(("codes",), "y"), (channels,), output))
    totals = np.arange(49 * 255 + 1)
    totals = np.pad(totals, (0, -totals.size % channels)).reshape(-1, channels)
    base, more = np.divmod(totals, 49)
    images = base[:, np.newaxis] + (np.arange(49)[:, np.newaxis] < more[:, np.newaxis])
    return graph, images.reshape(-1, 7, 7, channels).astype(np.uint8)


# Ratios and scales for which the rules differ on some inputs, and two for which they do not.
CASES = {
    "product, 2^-8": lambda: _product(2.0**-8),
    "product, 1/254": lambda: _product(1 / 254),
    "product, 1/255": lambda: _product(1 / 255),
    "mean, 2.0": lambda: _mean(2.0, -128),
    "mean, 1.2632": lambda: _mean(1.2631578, 40),
    "mean, 0.98": lambda: _mean(0.98, -128),
}
DIFFERING = ("product, 2^-8", "product, 1/254", "mean, 2.0", "mean, 1.2632")


@pytest.fixture(params=CASES)
def case(request) -> tuple[Graph, np.ndarray]:
    return CASES[request.param]()


def _litert(graph: Graph, images: np.ndarray) -> np.ndarray:
    runtime = Runtime(serialize(graph, {}), keep_tensors=True)
    made = []
    for image in images:
        runtime.run(image[np.newaxis])
        made.append(runtime.tensors(["y"])["y"])
    return np.concatenate(made)


def _differing(graph: Graph) -> int:
    """How many inputs of its product or mean get another code on Arm."""
    return sum(
        operation.portability(graph).differing.get(ARM.name, 0) for operation in graph.operations
    )


def test_the_cases_differ_where_they_are_said_to():
    assert {name for name, made in CASES.items() if _differing(made()[0])} == set(DIFFERING)


def test_litert_here_has_the_rules_of_x86_on_every_input(case):
    graph, images = case
    found = _litert(graph, images)
    np.testing.assert_array_equal(found, simulate(graph.on(X86), images)["y"])


@pytest.mark.thorough
@pytest.mark.parametrize("name", DIFFERING)
def test_litert_on_arm_has_the_rules_of_arm_on_every_input(name, arm_system):
    graph, images = CASES[name]()
    found = check_on_arm(subject_of(graph, ARM), images, arm_system)
    assert [check.codes_differing for check in found] == [0, 0, 0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", DIFFERING)
def test_portable_graphs_have_the_codes_of_x86_on_arm(name, arm_system):
    graph, images = CASES[name]()
    moved = make_portable(graph)
    assert not moved.warnings
    # One processor: what they differ in is not the rounding of products and means.
    (found,) = check_on_arm(subject_of(moved, X86), images, arm_system, PROCESSORS[:1])
    assert found.codes_differing == 0
    np.testing.assert_array_equal(_litert(moved, images), simulate(moved, images)["y"])
