"""The tests of the mathematics on JAX and PyTorch, where TensorFlow is not: a process for each."""

import numpy as np
import pytest

from tests.keras3.processes import run_on
from tests.quantizers.compute import computed, every_row

OF_TENSORFLOW = ("backends", "on_tensorflow", "parameter_sums")


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_the_tests_of_the_mathematics_pass_without_tensorflow(backend):
    ignored = [f"--ignore=tests/core/test_{name}.py" for name in OF_TENSORFLOW]
    # Draws of many shapes would be compiled one by one.
    marked = ["-m", "not slow and not thorough and not hypothesis"]
    plugin = ["--noconftest", "-p", "tests.core.execution", "-o", "addopts="]
    arguments = ["-m", "pytest", "tests/core", *ignored, *marked, *plugin]
    printed = run_on(backend, *arguments, timeout=1200)
    assert " passed" in printed


# This is a part of the largest magnitude. Sums and tanh are rounded in other ways, and where dsq is
# steep a value next to the middle of two codes moves its gradient most.
ROOM = 1e-4


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_values_and_gradients_are_those_on_tensorflow_and_need_none_of_it(backend, tmp_path):
    path = tmp_path / "rows.npz"
    run_on(backend, "-m", "tests.quantizers.compute", path, timeout=600)
    received = dict(np.load(path))
    for number, row in enumerate(every_row()):
        for name, expected in computed(row).items():
            found = received.pop(f"{number} {name}")
            assert found.dtype == expected.dtype
            size = np.max(np.abs(expected.astype(np.float64)), initial=0.0)
            np.testing.assert_allclose(
                found, expected, rtol=0, atol=ROOM * size, err_msg=f"{row}: {name}"
            )
    assert not received
