import numpy as np
import pytest

from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels.kernel_sets import ARM, X86
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import serialize
from tests.arm.operators import (
    OF_SEVERAL,
    compared,
    functions_of_codes,
    means_of_codes,
    probabilities_of_codes,
    resized_codes,
    subject_of,
)
from tests.arm.system import check_on_arm
from tests.export.proofs import KERNELS


def _assert_as_simulated(graph, images, runtime):
    content = serialize(graph, {})
    ran = loaded(content, runtime, keep_tensors=True)
    ran.run(images)
    names = compared(graph)
    expected, found = simulate(graph.on(KERNELS[runtime]), images), ran.tensors(names)
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.parametrize("runtime", KERNELS)
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_runtimes_here_have_the_rules_of_their_kernels_on_every_input(name, runtime):
    if not is_installed(runtime):
        pytest.skip("TFLite Micro is an extra: pip install 'sat-tf[micro]'")
    _assert_as_simulated(*OF_SEVERAL[name](0.05, 3), runtime)


def test_arm_has_other_probabilities_and_other_places_than_x86():
    differing = set()
    for name, make in OF_SEVERAL.items():
        graph, images = make(0.05, 3)
        x86, arm = (simulate(graph.on(kernels), images) for kernels in (X86, ARM))
        if any(np.any(x86[tensor] != arm[tensor]) for tensor in compared(graph)):
            differing.add(name)
    assert differing == {"SOFTMAX", "RESIZE_BILINEAR"}


CASES = [
    *((functions_of_codes, *grid) for grid in ((0.0625, 0), (0.031, -38), (0.11, -128))),
    *((probabilities_of_codes, *grid) for grid in ((0.0625, 0), (0.31, -9))),
    (means_of_codes, 0.05, 3),
    (resized_codes, 0.05, 3),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "scale", "zero_point"), CASES)
def test_litert_on_arm_has_the_rules_of_arm_on_every_input(make, scale, zero_point, arm_system):
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
