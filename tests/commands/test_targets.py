"""`--target`, from the plan over the file to what is checked of it."""

import pytest

from sat_tf.commands import main
from sat_tf.commands.train import load_config
from sat_tf.export.certificate.certificate import read_certificate


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
    certificate = read_certificate(path.with_name("certificate.json"))
    (left,) = certificate.elsewhere.values()
    assert all(line in checked.replace("\n", " ") for line in left[:1])
    page = path.with_name("certificate.html").read_text(encoding="utf-8")
    assert certificate.target == "ethos-u55"
    assert ("Edge TPU leaves" in page) is bool(left)


def test_a_certificate_names_what_a_target_leaves_to_the_cpu(files, tmp_path, said):
    path = tmp_path / "model.tflite"
    assert main.main(["export", str(files / "quantized.keras"), "--out", str(path)]) == 0
    words = ["verify", str(path), "--images", str(files / "images.npy"), "--num_images", "2"]
    assert main.main([*words, "--runtime", "xnnpack", "--target", "ethos-u55"]) == 0
    certificate = read_certificate(path.with_name("certificate.json"))
    (left,) = [line for line in certificate.elsewhere["ethos-u55"] if "DEQUANTIZE" in line]
    assert said().count(left) == 1
    notes = [note.words for note in certificate.statements]
    count = len(certificate.elsewhere["ethos-u55"])
    of = f"{count} of {sum(certificate.operators.values())}"
    assert f"Arm Ethos-U55 leaves {of} operators to the CPU." in notes
    assert left in notes


@pytest.mark.parametrize(("given", "expected"), [([], "litert"), (["edgetpu"], "edgetpu")])
def test_a_run_has_its_target_in_the_policy(given, expected):
    config = load_config(None, [f"policy.target={name}" for name in given])
    assert config.policy.processor.name == expected
    assert config.packing == ("none" if given else "auto")
