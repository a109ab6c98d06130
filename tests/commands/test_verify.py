"""`sat-tf verify`: files, certificates and kits."""

import json
import pathlib
import re
import subprocess
import tomllib

import numpy as np
import pytest
from packaging.requirements import Requirement

import sat_tf
from sat_tf.commands.train import load_config
from sat_tf.commands.verify import choose_files
from sat_tf.exact.certificate.certificate import read_certificate
from tests.commands.light import told_without_tensorflow
from tests.exact.device.kits import certificate_in, checked
from tests.exact.test_without_tensorflow import python  # noqa: F401
from tests.export import zoo
from tests.loading import hostile
from tests.training.small import write_pictures


def test_arguments_name_a_file_and_its_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("run").mkdir()
    for name in (
        "m.tflite",
        "m.keras",
        "run/quantized.keras",
        "run/model.tflite",
        "run/config.yaml",
    ):
        pathlib.Path(name).touch()
    for words, tflite, model in (
        (["m.tflite"], "m.tflite", None),
        (["m.keras", "m.tflite"], "m.tflite", pathlib.Path("m.keras")),
        (["run"], "run/model.tflite", pathlib.Path("run/quantized.keras")),
        (["run", "m.tflite"], "m.tflite", pathlib.Path("run/quantized.keras")),
    ):
        *files, folder = choose_files(*words)
        assert files == [pathlib.Path(tflite), model]
        assert (folder is not None) == (words[0] == "run")


# -- --target, from the plan over the file to what is checked of it --------------------------------


@pytest.mark.essential
def test_a_file_for_an_npu_is_planned_written_and_checked(files, tmp_path, sat):
    path, target = tmp_path / "model.tflite", "--target ethos-u55"
    on_target = "operators run on Arm Ethos-U55."
    assert on_target in sat(f"explain {files}/float.h5 {target}")
    assert on_target in sat(f"export {files}/quantized.keras --out {path} {target}")
    words = f"--images {files}/images.npy --num_images 2 --runtime xnnpack --target int8"
    checked = sat(f"verify {path} {words}")
    assert "operators are those of TFLite's int8 specification." in checked
    assert "The file is for Arm Ethos-U55, which was not here" in checked
    certificate = read_certificate(path.with_name("certificate.json"))
    assert certificate.cpu_fallback == {"int8": []}
    assert certificate.target == "ethos-u55"
    # A run has its target in the policy.
    for given, target, packing in ([], "litert", "auto"), (["policy.target=int8"], "int8", "none"):
        config = load_config(None, given)
        assert (config.policy.processor.name, config.packing) == (target, packing)


def test_a_certificate_names_what_a_target_leaves_to_the_cpu(files, tmp_path, sat):
    path = tmp_path / "model.tflite"
    sat(f"export {files}/quantized.keras --out {path}")
    words = f"--images {files}/images.npy --num_images 2 --runtime xnnpack --target ethos-u55"
    said = sat(f"verify {path} {words}")
    certificate = read_certificate(path.with_name("certificate.json"))
    lines = certificate.cpu_fallback["ethos-u55"]
    (left,) = [line for line in lines if "DEQUANTIZE" in line]
    assert said.count(left) == 1
    of = f"{len(lines)} of {sum(certificate.operators.values())}"
    notes = [note.words for note in certificate.statements]
    assert f"Arm Ethos-U55 leaves {of} operators to the CPU." in notes
    assert left in notes


# -- kits and their certificates -------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file, and twenty images for it."""
    found = tmp_path_factory.mktemp("devices")
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3)).astype(np.uint8)
    model = sat_tf.quantize_model(hostile.small(), sat_tf.BitPolicy.mobile(4))
    sat_tf.export_tflite(sat_tf.calibrate(model, images), found / "model.tflite")
    np.save(found / "images.npy", images)
    return found


@pytest.mark.essential
def test_a_kit_goes_out_and_its_certificate_comes_back(folder, tmp_path):
    words = ("verify", "model.tflite", "--images", "images.npy")
    kit = ("--kit", str(tmp_path / "kit.zip"), "--out", str(tmp_path / "proof"))
    said = told_without_tensorflow(*words, *kit, status=0, cwd=folder)
    assert "16 images" in said
    assert "On the device: python kit.zip" in said
    assert checked(tmp_path / "kit.zip", tmp_path).returncode == 0
    certificate = str(certificate_in(tmp_path))
    said = told_without_tensorflow(*words, "--certificate", certificate, status=0, cwd=folder)
    assert "nothing differs there; the codes that its kit expected are those of the" in said
    said = told_without_tensorflow(*words[:2], "--certificate", certificate, status=0, cwd=folder)
    assert "is not checked without its images: name them with --images" in said
    values = json.loads((tmp_path / "proof" / "certificate.json").read_text())
    assert values["num_images"] == 20


def test_certificates_are_checked_on_the_files_that_they_were_made_with(folder, tmp_path, sat):
    photos, proof = tmp_path / "photos", tmp_path / "proof"
    write_pictures(photos, np.load(folder / "images.npy"))
    (photos / "004.png").write_bytes(b"no picture")  # of the first ten, one cannot be read
    verify = f"verify {folder}/model.tflite --images {photos}"
    sat(f"{verify} --num_images 10 --out {proof} --kit {tmp_path}/kit.zip")
    assert checked(tmp_path / "kit.zip", tmp_path).returncode == 0
    certificates = [proof / "certificate.json", certificate_in(tmp_path)]
    files = json.loads(certificates[0].read_text())["images_from"]["files"]
    assert list(files) == [f"{number:03}.png" for number in (0, 2, 6, 8, 11, 13, 15, 17, 19)]
    (photos / "003.png").write_bytes(b"no picture either")
    (photos / "new.png").write_bytes((photos / "000.png").read_bytes())
    for certificate in certificates:
        said = sat(f"{verify} --certificate {certificate}")
        assert "holds; the codes" in said or "are those of the simulation here" in said
    (photos / "006.png").unlink()
    (photos / "008.png").write_bytes((photos / "000.png").read_bytes())
    for certificate in certificates:
        said = sat(f"{verify} --certificate {certificate}", status=2)
        assert "2 of 9 pictures that are not there or have changed (006.png, 008.png)" in said


@pytest.mark.thorough
def test_a_file_is_verified_with_what_the_documentation_installs(python, tmp_path):  # noqa: F811
    sat_tf.export_tflite(zoo.quantized("bottleneck"), tmp_path / "model.tflite")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 40, 30, 3), dtype=np.uint8)
    write_pictures(tmp_path / "photos", pixels)
    words = [python, "-P", "-m", "sat_tf", "verify", "model.tflite", "--images", "photos"]
    settings = {"cwd": tmp_path, "env": {"COLUMNS": "200"}, "check": True}
    subprocess.run([*words, "--out", "proof"], **settings)
    certificate = read_certificate(tmp_path / "proof" / "certificate.json")
    assert certificate.is_exact
    assert certificate.codes_compared > 0
    assert (tmp_path / "proof" / "certificate.html").is_file()
    subprocess.run([*words, "--certificate", "proof/certificate.json"], **settings)


def test_they_are_requirements_of_the_package():
    root = pathlib.Path(sat_tf.__file__).parents[1]
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    ranges = {}
    for one in map(Requirement, settings["project"]["dependencies"]):
        ranges.setdefault(one.name, one.specifier)
    page = (root / "docs" / "guides" / "verify.md").read_text(encoding="utf-8")
    # The other way round, pip complains of all that is left out.
    others, alone = re.findall(r"^pip install (.+)$", page, re.MULTILINE)
    assert alone == "--no-deps sat-tf"
    for one in (Requirement(word.strip("'")) for word in others.split()):
        assert set(one.specifier) <= set(ranges[one.name])
