"""The Keras 3 example quantizes, trains, exports and verifies on every backend."""

import pathlib

import pytest

from tests.keras3.processes import run_on

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "keras3_finetune.py"


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_no_code_of_its_file_differs(backend, tmp_path):
    short = ["--float_epochs=1", "--epochs=1"]
    said = run_on(backend, SCRIPT, f"--backend={backend}", f"--output={tmp_path}", *short)
    assert f" on {backend}" in said
    assert "0 of 477,824 codes differ" in said
    assert {path.name for path in tmp_path.iterdir()} >= {"model.tflite", "quantized.keras"}
