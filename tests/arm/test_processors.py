"""Emulated Arm processors, where they are there."""

import pytest

from sat_tf.export.certificate.proof import read_subject
from tests.arm.processors import check_on_arm


@pytest.mark.thorough
def test_emulated_arm_processors_compute_every_code(small_file, few_images, arm_system):
    found = check_on_arm(read_subject(small_file), few_images, arm_system)
    assert [device.kernels for device in found] == ["NEON", "dot product", "matrix (i8mm)"]
    assert {device.machine for device in found} == {"aarch64"}
    assert {device.delegate for device in found} == {"XNNPACK"}
    assert {(device.codes_differing, device.outputs_differing) for device in found} == {(0, 0)}
