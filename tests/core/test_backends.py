"""The tests of the mathematics on JAX and PyTorch, where TensorFlow is not: a process for each."""

import pytest

from tests.keras3.processes import run_on

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
