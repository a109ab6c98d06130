"""`--target`, from the plan over the file to what is checked of it."""

import pytest

from sat_tf.commands import main
from sat_tf.commands.train import load_config


def test_a_file_for_an_npu_is_planned_written_and_checked(files, tmp_path, said):
    target = ["--target", "ethos-u55"]
    assert main.main(["explain", str(files / "float.h5"), *target]) == 0
    planned = said()
    path = tmp_path / "model.tflite"
    assert main.main(["export", str(files / "quantized.keras"), "--out", str(path), *target]) == 0
    written = said()
    words = ["verify", str(path), "--images", str(files / "images.npy"), "--num_images", "2"]
    assert main.main([*words, "--runtime", "xnnpack", "--target", "edgetpu"]) == 0
    checked = said()
    assert "operators run on Arm Ethos-U55." in planned
    assert "operators run on Arm Ethos-U55." in written
    assert "Google's Edge TPU" in checked
    assert "The file is for Arm Ethos-U55, which was not here" in checked


@pytest.mark.parametrize(("given", "expected"), [([], "litert"), (["edgetpu"], "edgetpu")])
def test_a_run_has_its_target_in_the_policy(given, expected):
    config = load_config(None, [f"policy.target={name}" for name in given])
    assert config.policy.processor.name == expected
    assert config.packing == ("none" if given else "auto")
