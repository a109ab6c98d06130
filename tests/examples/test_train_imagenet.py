"""The example script: its flags, and the demo it runs without any."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "examples" / "train_imagenet.py"


def run(*arguments, folder, timeout=120):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def test_help_explains_every_flag(tmp_path):
    done = run("--help", folder=tmp_path)
    for flag in ("--config", "--set", "--run_dir", "--mode", "--seed"):
        assert flag in done.stdout
    assert "<train|evaluate|export>" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config=none.yaml"], "none.yaml: No such file or directory"),
        (["--set=policy.weight_bits=9", "--set=sede=1"], "2 problems"),
        (["--mode=evaluate"], "has no config.yaml, quantized.keras"),
        (["--mode=export", "--run_dir=here"], "here: not found; expected a folder of sat-tf"),
        (["--mode=evaluate", "--seed=3"], "received --seed 3 with --mode=evaluate, expected none"),
        (["--mode=fly"], "flag --mode=fly"),
        (["digits"], "expected flags such as --config=FILE"),
        (["--run_dir=/dev/null/run"], "/dev/null is a file"),
    ],
)
def test_bad_input_is_one_error_without_a_traceback(tmp_path, arguments, expected):
    done = run(*arguments, folder=tmp_path)
    assert done.returncode != 0
    assert expected in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_demo_keeps_its_promises(tmp_path, seed):
    done = run(f"--seed={seed}", folder=tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "digits_mobilenet_v2_w4a4"
    results = json.loads((folder / "results.json").read_text())
    assert results["float_top1"] >= 0.97
    assert results["quantized_top1"] >= results["float_top1"] - 0.01
    # A run ends with its best epoch, the start included.
    assert results["quantized_top1"] >= results["start_top1"]
    assert results["kept_epoch"] is not None
    assert abs(results["tflite_top1"] - results["quantized_top1"]) <= 0.005
    assert results["codes_compared"] > 0
    assert results["codes_differing"] == 0
