"""What quantizers give on JAX and PyTorch, where TensorFlow is not, against TensorFlow's."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.keras3.quantizers.compute import computed, every_row

ROOT = pathlib.Path(__file__).parents[3]
# Of the largest magnitude. Sums and tanh are rounded in other ways, and where dsq is steep a value
# next to the middle of two codes moves its gradient most.
ROOM = 1e-4

WITHOUT_TENSORFLOW = """
import sys
for absent in ("tensorflow", "tf_keras", "tensorflow_model_optimization", "wrapt"):
    sys.modules[absent] = None
import importlib, pkgutil
import sat_tf.keras3.core, sat_tf.keras3.quantizers
for package in (sat_tf.keras3.core, sat_tf.keras3.quantizers):
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
import keras
print(keras.backend.backend())
"""


def _environment(backend):
    return {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}


def _needs(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_nothing_of_it_imports_tensorflow(backend):
    _needs(backend)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW],
        env=_environment(backend),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == backend


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_values_and_gradients_are_those_on_tensorflow(backend, tmp_path):
    _needs(backend)
    path = tmp_path / "rows.npz"
    done = subprocess.run(
        [sys.executable, "-m", "tests.keras3.quantizers.compute", str(path)],
        cwd=ROOT,
        env=_environment(backend),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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
