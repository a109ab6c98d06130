"""Operators on every input that matters, against LiteRT here and on emulated Arm processors."""

import numpy as np
import pytest

from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels.kernel_sets import ARM, X86
from sat_tf.exact.litert.runtime import Runtime, loaded
from sat_tf.exact.operations.conversions import Dequantize
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.pools import Mean
from sat_tf.exact.operations.tabled import moved
from sat_tf.exact.tflite.tensors import Codes
from sat_tf.export.lowering.scales import make_portable
from tests.arm import operators
from tests.arm.operators import OF_SEVERAL, compared, subject_of
from tests.arm.system import PROCESSORS, check_on_arm
from tests.exact.foreign.one_operator import chained
from tests.export.proofs import KERNELS

PIXELS = Codes(np.float32(1.0), -128)


def _product(ratio: float) -> tuple[Graph, np.ndarray]:
    """A product of the left and the right half of an image, which hold all pairs of pixels."""
    half, whole = (256, 256, 1), (256, 512, 1)
    slices = {
        name: ((0, 256, 1), (start, start + 256, 1), (0, 1, 1))
        for name, start in (("left", 0), ("right", 256))
    }
    halves = [moved("STRIDED_SLICE", "x", name, whole, each) for name, each in slices.items()]
    product, made = Pair(("left", "right"), "y", Pointwise.PRODUCT), np.float32(1 / ratio)
    rows = *((one, half, PIXELS) for one in halves), (product, half, Codes(made, -128))
    graph = chained(whole, PIXELS, *rows, (Dequantize(("y",), "real"), half, None))
    one, other = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    return graph, np.concatenate([one, other], axis=1).astype(np.uint8)[np.newaxis, ..., np.newaxis]


def _mean(scale: float, zero_point: int) -> tuple[Graph, np.ndarray]:
    """A mean of 7x7 pixels, and images with every sum there is."""
    channels = 256
    output = Codes(np.float32(scale), zero_point)
    rows = (Mean(("x",), "y"), (channels,), output), (Dequantize(("y",), "real"), (channels,), None)
    graph = chained((7, 7, channels), PIXELS, *rows)
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


def _litert(graph: Graph, images: np.ndarray) -> np.ndarray:
    runtime = Runtime(serialize(graph, {}), keep_tensors=True)
    made = []
    for image in images:
        runtime.run(image[np.newaxis])
        made.append(runtime.tensors(["y"])["y"])
    return np.concatenate(made)


def test_the_cases_differ_where_they_are_said_to():
    differing = set()
    for name, made in CASES.items():
        graph, _ = made()
        found = [operation.portability(graph).differing for operation in graph.operations]
        differing |= {name for counts in found if counts.get(ARM.name)}
    assert differing == set(DIFFERING)


@pytest.mark.parametrize("name", CASES)
def test_litert_here_has_the_rules_of_x86_on_every_input(name):
    graph, images = CASES[name]()
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


@pytest.mark.parametrize("runtime", KERNELS)
@pytest.mark.parametrize(
    ("name", "zero_point"), [*((name, 3) for name in OF_SEVERAL), ("BATCH_MATMUL", 0)]
)
def test_runtimes_here_have_the_rules_of_their_kernels_on_every_input(name, zero_point, runtime):
    if not is_installed(runtime):
        pytest.skip("TFLite Micro is an extra: pip install 'sat-tf[micro]'")
    graph, images = OF_SEVERAL[name](0.05, zero_point)
    ran = loaded(serialize(graph, {}), runtime, keep_tensors=True)
    ran.run(images)
    expected, found = simulate(graph.on(KERNELS[runtime]), images), ran.tensors(compared(graph))
    for tensor, codes in found.items():
        np.testing.assert_array_equal(codes, expected[tensor], err_msg=tensor)


def test_arm_has_other_probabilities_and_other_places_than_x86():
    differing = set()
    for make in OF_SEVERAL.values():
        graph, images = make(0.05, 3)
        x86, arm = (simulate(graph.on(kernels), images) for kernels in (X86, ARM))
        differing |= {name for name in compared(graph) if np.any(x86[name] != arm[name])}
    assert {name.rstrip("_0123456789") for name in differing} == {"SOFTMAX", "RESIZE_BILINEAR"}
    lengths = {int(name.split("_")[3]) for name in differing if name.startswith("RESIZE")}
    assert lengths == {after for _, after in operators.FUSED_LENGTHS}


ON_ARM = [
    *((operators.functions_of_codes, *grid) for grid in ((0.0625, 0), (0.031, -38), (0.11, -128))),
    *((operators.probabilities_of_codes, *grid) for grid in ((0.0625, 0), (0.31, -9))),
    (operators.means_of_codes, 0.05, 3),
    *((operators.matrices_of_codes, 0.05, zero_point) for zero_point in (0, 3)),
    (operators.resized_codes, 0.05, 3),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "scale", "zero_point"), ON_ARM)
def test_operators_on_arm_have_the_rules_of_arm_on_every_input(make, scale, zero_point, arm_system):
    graph, images = make(scale, zero_point)
    found = check_on_arm(subject_of(graph, ARM), images, arm_system)
    assert [check.codes_differing for check in found] == [0, 0, 0]


@pytest.mark.thorough
def test_emulated_arm_processors_compute_every_code(small_file, few_images, arm_system):
    found = check_on_arm(read_subject(small_file), few_images, arm_system)
    assert [device.kernels for device in found] == ["asimd", "asimddp", "i8mm"]
    assert {device.machine for device in found} == {"aarch64"}
    assert {device.delegate for device in found} == {"XNNPACK"}
    assert {(device.codes_differing, device.outputs_differing) for device in found} == {(0, 0)}
