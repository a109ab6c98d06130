"""The Keras 3 example quantizes, trains, exports and verifies on every backend."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "keras3_finetune.py"


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_no_code_of_its_file_differs(backend, tmp_path):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    short = ["--float_epochs=2", "--epochs=1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), f"--backend={backend}", f"--output={tmp_path}", *short],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f" on {backend}" in done.stdout
    assert "0 of 477,824 codes differ" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} >= {"model.tflite", "quantized.keras"}
