"""Programs on another backend of Keras 3, in processes of their own, and without TensorFlow."""

import importlib.util
import os
import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[2]
_ABSENT = ("tensorflow", "tf_keras", "tensorflow_model_optimization", "wrapt", "pydantic")


def block_tensorflow():
    """From now on neither it nor what it brings can be imported, but on its own backend."""
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        sys.modules.update(dict.fromkeys(_ABSENT))


def run_on(backend, *arguments, timeout=500):
    """What `python ARGUMENTS` prints on a backend; skips the test where that is not installed."""
    import pytest

    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=_ROOT,
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
